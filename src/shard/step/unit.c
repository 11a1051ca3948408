/* Moves of a unit between its states, and the collectives that go with them. */
#include "shard/step/unit.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "shard/plan/schedule.h"

static const char *const parameter_names[] = {"SHARDED", "GATHERING", "FULL"};
static const char *const gradient_names[] = {"NONE", "FULL", "REDUCING", "SHARDED"};
static const char *const gradient_events[] = {"gradients NONE", "gradients FULL", "gradients REDUCING",
                                              "gradients SHARDED"};

/* [from][to] */
static const bool parameter_moves[3][3] = {
    [PARAMETERS_SHARDED] = {[PARAMETERS_GATHERING] = true},
    [PARAMETERS_GATHERING] = {[PARAMETERS_FULL] = true},
    [PARAMETERS_FULL] = {[PARAMETERS_SHARDED] = true},
};
static const bool gradient_moves[4][4] = {
    [GRADIENTS_NONE] = {[GRADIENTS_FULL] = true},
    [GRADIENTS_FULL] = {[GRADIENTS_REDUCING] = true, [GRADIENTS_FULL] = true}, /* FULL again: held over micro-batches */
    [GRADIENTS_REDUCING] = {[GRADIENTS_SHARDED] = true},
    [GRADIENTS_SHARDED] = {[GRADIENTS_FULL] = true, [GRADIENTS_NONE] = true},
};

/* Of the buffer that is gathered into; 0 where this rank holds all of the unit anyway. */
static int64_t gathered_bytes(const unit *u)
{
    const unit_segment *s = &u->segments[0];
    size_t bytes =
        schedule_gathered_bytes(u->layout, fsdp_dtype_size(s->dtype), u->coded) + schedule_blocks_bytes(u->layout);
    return s->numel < s->layout->padded ? (int64_t)bytes : 0;
}

fsdp_status unit_move_parameters(unit *u, parameter_state to)
{
    if (!parameter_moves[u->parameters][to])
        return error_set(FSDP_ERR_STATE, "unit %s: parameters cannot go from %s to %s", u->layout->name,
                         parameter_names[u->parameters], parameter_names[to]);
    u->parameters = to;
    HOOK(HOOK_UNIT, HOOK_INSTANT, u->layout->name, parameter_names[to], gathered_bytes(u), 1);
    return FSDP_OK;
}

fsdp_status unit_move_gradients(unit *u, gradient_state to)
{
    if (!gradient_moves[u->gradients][to])
        return error_set(FSDP_ERR_STATE, "unit %s: gradients cannot go from %s to %s", u->layout->name,
                         gradient_names[u->gradients], gradient_names[to]);
    u->gradients = to;
    HOOK(HOOK_UNIT, HOOK_INSTANT, u->layout->name, gradient_events[to], u->gradient_bytes, 1);
    return FSDP_OK;
}

static void *element(void *base, int64_t index, fsdp_dtype dtype)
{
    return (uint8_t *)base + (size_t)index * fsdp_dtype_size(dtype);
}

/* Values of element `first` and of those behind it lie at `base`, codes of the first elements at `codes`; either may be
 * NULL. */
static void point_segment(const layout_segment *s, fsdp_dtype dtype, int64_t first, uint8_t *base, uint8_t *codes)
{
    for (int k = 0; k < s->n_slots; k++) {
        const layout_slot *slot = &s->slots[k];
        bool valued = base && slot->offset >= first, coded = codes && slot->offset < s->coded_end;
        slot->parameter->data = valued ? element(base, slot->offset - first, dtype) : NULL;
        slot->parameter->codes = coded ? codes + slot->offset : NULL;
    }
}

/* At nothing: those of 8 bits, too. Otherwise it is unit_widen that points those. */
static void point_parameters(unit *u, fsdp_dtype dtype, uint8_t *memory)
{
    size_t size = fsdp_dtype_size(dtype);
    for (int i = 0; i < u->n_segments; i++) {
        const layout_segment *s = u->segments[i].layout;
        uint8_t *base = memory ? memory + schedule_segment_offset(u->layout, i, size, u->coded) : NULL;
        if (memory && s->int8)
            continue;
        if (memory && u->coded && s->coded_end > 0)
            point_segment(s, dtype, s->coded_end, base + schedule_codes_bytes(s), base);
        else
            point_segment(s, dtype, 0, base, NULL);
    }
}

void unit_point_at_copy(unit *u, fsdp_dtype dtype)
{
    for (int i = 0; i < u->n_segments; i++) {
        if (!u->segments[i].layout->int8)
            point_segment(u->segments[i].layout, dtype, 0, u->segments[i].copy, u->segments[i].codes);
    }
}

static fsdp_status start_gather(unit *u, comm_group *g, const comm_span *spans, int n_spans, comm_request *r,
                                int64_t step, stream *s)
{
    FSDP_TRY(unit_move_parameters(u, PARAMETERS_GATHERING));
    comm_op op = {.unit = u->layout->name, .step = step, .n_spans = n_spans, .spans = spans, .stream = s};
    return comm_all_gather(g, &op, r);
}

/* Where segment i is gathered. */
static uint8_t *gathered_at(const unit *u, int i, unit_places at)
{
    const unit_segment *s = &u->segments[i];
    return s->layout->int8 ? at.blocks
                           : at.memory + schedule_segment_offset(u->layout, i, fsdp_dtype_size(s->dtype), u->coded);
}

static comm_span gather_span(const unit *u, int i, void *part, const int64_t *counts, unit_places to)
{
    fsdp_dtype dtype = u->segments[i].layout->int8 ? FSDP_U8 : u->segments[i].dtype;
    return (comm_span){.send = {part, dtype}, .recv = {gathered_at(u, i, to), dtype}, .counts = counts};
}

/* A code for every element of the part, so that ranks send alike; then the values of what has none, if there are any:
 * norms and biases, which one rank or a few hold. */
static int coded_spans(const unit *u, int i, unit_places to, comm_span *spans)
{
    const unit_segment *s = &u->segments[i];
    const layout_segment *l = s->layout;
    uint8_t *base = gathered_at(u, i, to);
    int64_t before = min_i64(max_i64(l->coded_end - s->first, 0), s->numel); /* in the part */
    spans[0] = (comm_span){.send = {s->codes, FSDP_U8}, .recv = {base, FSDP_U8}, .counts = s->counts};
    spans[1] = (comm_span){.send = {element(s->copy, before, s->dtype), s->dtype},
                           .recv = {base + schedule_codes_bytes(l), s->dtype},
                           .counts = s->rest_counts};
    return l->coded_end < l->padded ? 2 : 1;
}

fsdp_status unit_gather(unit *u, comm_group *g, unit_places to, bool coded, int64_t step, stream *s)
{
    int n = 0;
    u->coded = coded;
    for (int i = 0; i < u->n_segments; i++) {
        const unit_segment *segment = &u->segments[i];
        if (coded && segment->layout->coded_end > 0) /* also where this rank has none of them */
            n += coded_spans(u, i, to, &u->gather_spans[n]);
        else
            u->gather_spans[n++] = gather_span(u, i, segment->copy, segment->counts, to);
    }
    return start_gather(u, g, u->gather_spans, n, &u->gather, step, s);
}

fsdp_status unit_keep(unit *u, comm_group *g, unit_places from, uint8_t *kept, device *d, stream *s)
{
    int size = comm_group_size(g), rank = comm_group_rank(g);
    for (int i = 0; i < u->n_segments; i++) {
        const layout_segment *l = u->segments[i].layout;
        size_t element = fsdp_dtype_size(u->segments[i].dtype);
        FSDP_TRY(d->copy(s, kept + schedule_kept_offset(u->layout, i, element, size),
                         gathered_at(u, i, from) + layout_kept_bytes(l, layout_kept_first(l, size, rank), element),
                         layout_kept_bytes(l, layout_kept_numel(l, size, rank), element)));
    }
    return FSDP_OK;
}

fsdp_status unit_gather_kept(unit *u, comm_group *g, uint8_t *kept, unit_places to, int64_t step, stream *s)
{
    for (int i = 0; i < u->n_segments; i++) {
        size_t element = fsdp_dtype_size(u->segments[i].dtype);
        uint8_t *part = kept + schedule_kept_offset(u->layout, i, element, comm_group_size(g));
        u->keep_spans[i] = gather_span(u, i, part, u->segments[i].keep_counts, to);
    }
    return start_gather(u, g, u->keep_spans, u->n_segments, &u->keep, step, s);
}

fsdp_status unit_widen(unit *u, const uint8_t *blocks, uint8_t *wide, device *d, stream *s)
{
    const unit_segment *segment = &u->segments[u->n_segments - 1];
    int8_args a = {.n = segment->layout->padded,
                   .blocks = blocks ? (void *)(uintptr_t)blocks : segment->copy,
                   .values = {wide, segment->dtype}};
    point_segment(segment->layout, segment->dtype, 0, wide, NULL);
    return d->kernels->widen(s, &a);
}

fsdp_status unit_await(unit *u, fsdp_dtype dtype, uint8_t *memory, stream *s)
{
    FSDP_TRY(comm_wait(&u->gather, s));
    FSDP_TRY(comm_wait(&u->keep, s)); /* one of the two is under way */
    FSDP_TRY(unit_move_parameters(u, PARAMETERS_FULL));
    point_parameters(u, dtype, memory);
    return FSDP_OK;
}

fsdp_status unit_release(unit *u)
{
    FSDP_TRY(unit_move_parameters(u, PARAMETERS_SHARDED));
    point_parameters(u, FSDP_F32, NULL);
    return FSDP_OK;
}

fsdp_status unit_take_gradients(unit *u, fsdp_dtype dtype, uint8_t *memory)
{
    u->gradient_bytes = memory ? (int64_t)schedule_gradient_bytes(u->layout, fsdp_dtype_size(dtype)) : 0;
    FSDP_TRY(unit_move_gradients(u, GRADIENTS_FULL));
    const layout_segment *s = u->segments[0].layout;
    void *base = memory ? (void *)memory : u->segments[0].gradient;
    for (int k = 0; k < s->n_slots; k++)
        s->slots[k].parameter->grad = element(base, s->slots[k].offset, dtype);
    return FSDP_OK;
}

fsdp_status unit_reduce(unit *u, comm_group *g, fsdp_dtype dtype, uint8_t *memory, void *sum, bool add, int64_t step,
                        stream *s)
{
    bool whole = u->layout->whole;
    FSDP_TRY(unit_move_gradients(u, GRADIENTS_REDUCING));
    unit_segment *segment = &u->segments[0];
    u->reduce_span = (comm_span){.send = {memory, dtype}, .recv = {sum, segment->gradient_dtype}, .add = add};
    if (whole)
        u->reduce_span.count = segment->layout->padded;
    else
        u->reduce_span.counts = segment->counts;
    comm_op op = {.unit = u->layout->name, .step = step, .n_spans = 1, .spans = &u->reduce_span, .stream = s};
    return whole ? comm_all_reduce(g, &op, &u->reduce) : comm_reduce_scatter(g, &op, &u->reduce);
}

fsdp_status unit_replicate(unit *u, comm_group *g, void *sum, int64_t step, stream *s)
{
    buffer values = {sum, u->segments[0].gradient_dtype};
    u->replicate_span = (comm_span){.send = values, .recv = values, .count = u->segments[0].numel};
    comm_op op = {.unit = u->layout->name, .step = step, .n_spans = 1, .spans = &u->replicate_span, .stream = s};
    FSDP_TRY(comm_all_reduce(g, &op, &u->replicate));
    u->replicating = true;
    return FSDP_OK;
}

fsdp_status unit_reduced(unit *u, stream *s)
{
    FSDP_TRY(comm_wait_sent(&u->reduce, s));
    return unit_move_gradients(u, GRADIENTS_SHARDED);
}
