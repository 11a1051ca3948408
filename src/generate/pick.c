/* The next token from logits: greedy, or drawn after temperature, then the top k, then the top part of probability. */
#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/rng.h"
#include "generate/generate.h"

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

size_t choice_scratch_bytes(int64_t n)
{
    return (size_t)n * sizeof(candidate);
}

static int32_t likeliest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

/* Of two equals the one with the lower id comes first. */
static bool comes_before(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static int compare(const void *a, const void *b)
{
    return comes_before(a, b) ? -1 : 1;
}

/* Restores a heap whose head is the candidate that comes last. */
static void sift_down(candidate *heap, int64_t n, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && comes_before(&heap[child], &heap[child + 1]))
            child++;
        if (!comes_before(&heap[at], &heap[child]))
            return;
        candidate swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

/* The first `k` of all candidates into `out`, in order. */
static void take_first(const float *logits, int64_t n, int64_t k, candidate *out)
{
    for (int64_t i = 0; i < k; i++)
        out[i] = (candidate){logits[i], (int32_t)i};
    if (k < n) {
        for (int64_t i = k / 2; i >= 0; i--)
            sift_down(out, k, i);
        for (int64_t i = k; i < n; i++) {
            candidate c = {logits[i], (int32_t)i};
            if (comes_before(&c, &out[0])) {
                out[0] = c;
                sift_down(out, k, 0);
            }
        }
    }
    qsort(out, (size_t)k, sizeof *out, compare);
}

/* How many of the sorted candidates have `part` of their probability: at least one, and the one that reaches it. */
static int64_t reaching(const candidate *c, int64_t n, double temperature, double part)
{
    double sum = 0, reached = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp(((double)c[i].logit - c[0].logit) / temperature);
    for (int64_t i = 0; i < n; i++) {
        reached += exp(((double)c[i].logit - c[0].logit) / temperature);
        if (reached >= part * sum)
            return i + 1;
    }
    return n;
}

static int32_t draw(const candidate *c, int64_t n, double temperature, double uniform)
{
    double most = -INFINITY, sum = 0, reached = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, c[i].logit);
    for (int64_t i = 0; i < n; i++)
        sum += exp((c[i].logit - most) / temperature);
    for (int64_t i = 0; i < n; i++) {
        reached += exp((c[i].logit - most) / temperature);
        if (reached > uniform * sum)
            return c[i].id;
    }
    return c[n - 1].id;
}

int32_t choice_make(const choice_options *o, const float *logits, int64_t n, uint64_t index, void *scratch)
{
    if (o->temperature <= 0 || o->top_k == 1)
        return likeliest(logits, n);
    candidate *c = scratch;
    int64_t k = o->top_k > 0 ? min_i64(o->top_k, n) : n;
    if (k < n || o->top_p < 1) {
        take_first(logits, n, k, c);
        k = o->top_p < 1 ? reaching(c, k, o->temperature, o->top_p) : k;
    } else {
        for (int64_t i = 0; i < n; i++)
            c[i] = (candidate){logits[i], (int32_t)i};
    }
    rng_key key = rng_key_fold_text(rng_key_make(o->seed), "generate");
    return draw(c, k, o->temperature, rng_to_uniform(rng_word(key, 0, index)));
}
