/* Which values wait for backward in host memory, and where in the program their copies start and must have ended.
 * Leaves to program_memory.c the places, to program_run.c the copies. */
#include <stdlib.h>

#include "base/error.h"
#include "tensor/program_internal.h"

/* A copy has a region's time to hide under, so places are counted in spans: the instructions from the first of a region
 * to the first of another one, what lies outside regions going with the region before. */
typedef struct spans {
    int *of;    /* (instructions + 1): span of an instruction */
    int *first; /* (n): its first instruction */
    int n;
} spans;

static fsdp_status no_memory(const program *p)
{
    return error_set(FSDP_ERR_MEMORY, "planning transfers for %d operations: out of host memory", p->tape->n_nodes);
}

static void spans_free(spans *s)
{
    free(s->of);
    free(s->first);
}

static fsdp_status spans_count(const program *p, spans *s)
{
    *s = (spans){.of = malloc(((size_t)p->length + 1) * sizeof *s->of),
                 .first = malloc(((size_t)p->length + 1) * sizeof *s->first)};
    if (!s->of || !s->first) {
        spans_free(s);
        return no_memory(p);
    }
    int region = -1;
    s->first[s->n++] = 0;
    for (int i = 0; i < p->length; i++) {
        int here = p->list[i].n->region;
        if (i == p->forward_length)
            region = -1; /* the last region of forward is the first of backward: two spans */
        if (here >= 0 && here != region) {
            region = here;
            s->first[s->n++] = i;
        }
        s->of[i] = s->n - 1;
    }
    s->of[p->length] = s->n - 1;
    return FSDP_OK;
}

/* When the copies of a value happen: each instruction comes before the one of this number. */
typedef struct absence {
    int store, stored, fetch, fetched;
} absence;

/* The copy out starts after the last use in forward and has the rest of that region and the whole next one; the copy
 * back has all of the region before the one that reads first in backward. False: no region lies between the two, so
 * that the way would be for nothing. That is what keeps on the device whatever is needed near the turn: the inputs of
 * the last regions, and what all regions of a decoder read (T5's encoder output), since the last of them in forward is
 * the first in backward. What many regions read otherwise (position biases of an encoder) leaves once, after the last
 * of them, and comes back once, before the first. */
static bool plan_absence(const program *p, const spans *s, const storage *value, absence *out)
{
    int turn = p->forward_length, next = s->of[value->forward_last] + 2, before = s->of[value->backward_first] - 1;
    out->store = value->forward_last + 1;
    out->stored = next < s->n && s->first[next] < turn ? s->first[next] : turn;
    out->fetch = before >= 0 && s->first[before] > turn ? s->first[before] : turn;
    out->fetched = value->backward_first;
    int away = s->of[out->stored]; /* the first span that is over before the copy back starts */
    if (s->first[away] < out->stored)
        away++;
    return s->of[out->fetch] > away;
}

/* Inputs of checkpointed regions may leave; outputs of the step, and what backward finds where forward put it without
 * asking for its replay (a loss), stay. */
static void mark_candidates(const program *p)
{
    const fsdp_tape *t = p->tape;
    for (int i = 0; i < t->n_nodes; i++) {
        const node *n = t->nodes[i];
        for (int k = 0; k < n->n_inputs && n->region >= 0; k++) {
            const fsdp_tensor *x = n->inputs[k];
            if (x && x->data && x->kind == TENSOR_VALUE && x->producer->region != n->region)
                storage_of(x->data)->may_leave = true;
        }
    }
    for (int i = 0; i < t->n_tensors; i++) {
        const fsdp_tensor *x = t->tensors[i];
        if (x->kind == TENSOR_VALUE && x->data && (x->wanted || x->producer->op->loss_in_backward))
            storage_of(x->data)->may_leave = false;
    }
}

/* From here on backward means `to` where it meant `from`. */
static void part(const program *p, storage *from, storage *to)
{
    for (int i = 0; i < p->tape->n_tensors; i++) {
        fsdp_tensor *x = p->tape->tensors[i];
        if (storage_of(x->replay) == from)
            x->replay = to;
        if (storage_of(x->grad) == from)
            x->grad = to;
    }
}

typedef struct insertion {
    int before;
    instruction step;
} insertion;

static int by_place(const void *a, const void *b)
{
    const insertion *x = a, *y = b;
    if (x->before != y->before)
        return x->before - y->before;
    if (x->step.phase != y->step.phase)
        return (int)x->step.phase - (int)y->step.phase;
    return x->step.moved < y->step.moved ? -1 : x->step.moved > y->step.moved;
}

static fsdp_status insert(program *p, insertion *all, int n)
{
    instruction *list = malloc((size_t)(p->length + n) * sizeof *list);
    if (!list)
        return no_memory(p);
    qsort(all, (size_t)n, sizeof *all, by_place);
    int length = 0, next = 0;
    for (int i = 0; i <= p->length; i++) {
        for (; next < n && all[next].before == i; next++) {
            p->forward_length += all[next].step.phase <= PHASE_STORED;
            list[length++] = all[next].step;
        }
        if (i < p->length)
            list[length++] = p->list[i];
    }
    free(p->list);
    p->list = list;
    p->length = p->capacity = length;
    return FSDP_OK;
}

static fsdp_status move_values(program *p, const spans *s, insertion *all)
{
    int n = 0, n_values = p->n_storages;
    for (int i = 0; i < n_values; i++) {
        storage *value = p->storages[i];
        absence away;
        if (!value->may_leave || value->bytes < p->options.offload_bytes || value->forward_last < 0 ||
            value->backward_first < 0 || !plan_absence(p, s, value, &away))
            continue;
        transfer *moved = &p->transfers[p->n_transfers++];
        *moved = (transfer){.from = value, .to = program_new_storage(p, value->bytes)};
        if (!moved->to)
            return no_memory(p);
        part(p, value, moved->to);
        const int places[] = {away.store, away.stored, away.fetch, away.fetched};
        for (int k = 0; k < 4; k++)
            all[n++] = (insertion){places[k], {.phase = (run_phase)(PHASE_STORE + k), .moved = moved}};
    }
    return n > 0 ? insert(p, all, n) : FSDP_OK;
}

fsdp_status program_offload(program *p)
{
    if (p->options.offload_bytes == 0 || !p->options.backward || p->tape->n_regions == 0)
        return FSDP_OK;
    spans s;
    FSDP_TRY(spans_count(p, &s));
    program_note_lifetimes(p);
    insertion *all = malloc(((size_t)p->n_storages * 4 + 1) * sizeof *all);
    p->transfers = calloc((size_t)p->n_storages + 1, sizeof *p->transfers);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (all && p->transfers) {
        mark_candidates(p);
        status = move_values(p, &s, all);
    } else {
        no_memory(p);
    }
    free(all);
    spans_free(&s);
    return status;
}
