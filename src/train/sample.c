/* A sample of what a language model has learned, at the end of a run: written token by token over a fixed window, by all
 * ranks together, since each holds only its shards. `fsdp generate` is the tool for more. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/rng.h"
#include "train/run.h"

#define TEMPERATURE 0.7

/* Draws from softmax(logits / temperature). */
static int32_t draw(const float *logits, int64_t n, float uniform)
{
    double most = logits[0], sum = 0, reached = 0;
    for (int64_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += exp((logits[i] - most) / TEMPERATURE);
    for (int64_t i = 0; i < n; i++) {
        reached += exp((logits[i] - most) / TEMPERATURE);
        if (reached >= uniform * sum)
            return (int32_t)i;
    }
    return (int32_t)(n - 1);
}

typedef struct writing {
    int32_t *ids;  /* the window */
    float *logits; /* (width, vocabulary) */
    int64_t width, vocabulary, n;
} writing;

static fsdp_status next_token(train_run *run, writing *w, float uniform, int32_t *token)
{
    int64_t shape[] = {1, w->width};
    fsdp_tape *t = fsdp_begin_evaluation(run->model);
    fsdp_tensor *logits = fsdp_output(t, fsdp_llama_logits(fsdp_model_module(run->model), t, fsdp_input(t, FSDP_I32, 2, shape, w->ids)));
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(logits, w->logits, w->width * w->vocabulary));
    *token = draw(w->logits + (w->n - 1) * w->vocabulary, w->vocabulary, uniform);
    return FSDP_OK;
}

/* Appends; a full window loses its first half. */
static void append(writing *w, int32_t token)
{
    if (w->n == w->width) {
        int64_t kept = w->width / 2;
        memmove(w->ids, w->ids + w->width - kept, (size_t)kept * sizeof *w->ids);
        w->n = kept;
    }
    w->ids[w->n++] = token;
}

static fsdp_status write_tokens(train_run *run, const char *prompt, int64_t n_tokens, writing *w, int32_t *all, int64_t *n_all)
{
    const int32_t *start;
    size_t n_start;
    rng_key key = rng_key_make((uint64_t)run->settings->seed);
    FSDP_TRY(fsdp_tokenizer_encode(run->tokenizer, prompt, strlen(prompt), false, &start, &n_start));
    for (size_t i = 0; i < n_start && *n_all < n_tokens; i++) {
        append(w, start[i]);
        all[(*n_all)++] = start[i];
    }
    while (*n_all < n_tokens) {
        int32_t token = 0;
        FSDP_TRY(next_token(run, w, rng_to_uniform(rng_word(key, 1, (uint64_t)*n_all)), &token));
        append(w, token);
        all[(*n_all)++] = token;
    }
    return FSDP_OK;
}

fsdp_status run_sample(train_run *run, const char *prompt, int64_t n_tokens, char **text)
{
    *text = NULL;
    if (run->model_config.type != MODEL_LLAMA || !run->tokenizer)
        return FSDP_OK;
    writing w = {.width = min_i64(run->info.width, run->model_config.llama.positions), .vocabulary = run->model_config.llama.vocabulary};
    int32_t *all = calloc((size_t)n_tokens + 1, sizeof *all);
    int64_t n_all = 0;
    w.ids = calloc((size_t)w.width, sizeof *w.ids);
    w.logits = calloc((size_t)(w.width * w.vocabulary), sizeof *w.logits);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!all || !w.ids || !w.logits)
        error_set(status, "writing a sample: out of host memory");
    else
        status = write_tokens(run, prompt, n_tokens, &w, all, &n_all);
    const char *decoded;
    if (status == FSDP_OK)
        status = fsdp_tokenizer_decode(run->tokenizer, all, (size_t)n_all, true, &decoded, NULL);
    if (status == FSDP_OK && !(*text = strdup(decoded)))
        status = error_set(FSDP_ERR_MEMORY, "writing a sample: out of host memory");
    free(all);
    free(w.ids);
    free(w.logits);
    return status;
}
