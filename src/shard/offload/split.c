/* Chunks and pieces of an update that device and processor share, and the memory that chunks pass through. */
#include "shard/offload/split.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"

/* Elements. A chunk is large enough for the link's full speed; a small model's units still have several. */
#define MOST_IN_CHUNK ((int64_t)2 << 20)
enum { SLOTS = 4, CHUNKS = 16, MULTIPLE = 128, SCALARS_ROOM = 256 };

typedef struct slot {
    stream *s;
    event *done;     /* what was sent through it last is back in host memory */
    uint8_t *memory; /* a chunk's parameters, moments, average and gradients, one after another */
    bool used;       /* by the range in hand */
} slot;

struct split {
    fsdp_model *model;
    update *update;
    int64_t chunk; /* elements */
    fsdp_dtype kept_dtype;
    uint8_t *memory;
    size_t bytes;
    optimizer_scalars *scalars; /* device memory: those of the step */
    event *begun;
    slot slots[SLOTS];
};

bool split_wanted(const fsdp_model *m)
{
    return m->config.cpu_offload_split && offload_any(m);
}

/* Of this rank's parts of the offloaded units, the largest. */
static int64_t largest_part(const fsdp_model *m)
{
    int64_t most = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        const layout_segment *s = &m->layout->units[i].segments[0];
        if (m->offloaded[i] && s->trainable)
            most = max_i64(most, model_part(m, i, s).n);
    }
    return most;
}

static int64_t chunk_numel(const fsdp_model *m)
{
    int64_t share = max_i64(ceil_div(largest_part(m), CHUNKS), 1);
    return min_i64(ceil_div(share, MULTIPLE) * MULTIPLE, MOST_IN_CHUNK);
}

static size_t slot_bytes(const fsdp_model *m, int numbers, int halves)
{
    size_t kept = (size_t)(numbers - halves) * sizeof(float) + (size_t)halves * sizeof(uint16_t);
    return (size_t)chunk_numel(m) * (sizeof(float) + kept + fsdp_dtype_size(m->config.gradient_dtype));
}

size_t split_bytes(const fsdp_model *m, int numbers, int halves)
{
    return split_wanted(m) ? SLOTS * slot_bytes(m, numbers, halves) + SCALARS_ROOM : 0;
}

fsdp_status split_create(fsdp_model *m, update *u, const fsdp_optimizer_config *config, split **out)
{
    int numbers = update_kept(config), halves = update_halves(config);
    device *dev = m->dev;
    split *x = calloc(1, sizeof *x);
    fsdp_status status;
    if (!x)
        return error_set(FSDP_ERR_MEMORY, "sharing the update of offloaded units: out of host memory");
    x->model = m;
    x->update = u;
    x->chunk = chunk_numel(m);
    x->kept_dtype = config->state_dtype;
    x->bytes = split_bytes(m, numbers, halves);
    TRY_OR(fail, dev->allocate(dev, MEMORY_DEVICE, x->bytes, (void **)&x->memory));
    TRY_OR(fail, dev->event_create(dev, &x->begun));
    x->scalars = (optimizer_scalars *)(void *)x->memory;
    for (int i = 0; i < SLOTS; i++) {
        slot *k = &x->slots[i];
        k->memory = x->memory + SCALARS_ROOM + (size_t)i * slot_bytes(m, numbers, halves);
        TRY_OR(fail, dev->stream_create(dev, 1, &k->s));
        TRY_OR(fail, dev->event_create(dev, &k->done));
    }
    *out = x;
    return FSDP_OK;
fail:
    split_free(x);
    return status;
}

void split_free(split *x)
{
    if (!x)
        return;
    device *dev = x->model->dev;
    for (int i = 0; i < SLOTS; i++) {
        if (x->slots[i].s) {
            (void)dev->stream_synchronize(x->slots[i].s);
            dev->stream_free(x->slots[i].s);
        }
        dev->event_free(x->slots[i].done);
    }
    dev->event_free(x->begun);
    dev->release(dev, MEMORY_DEVICE, x->memory, x->bytes);
    free(x);
}

fsdp_status split_begin(split *x)
{
    fsdp_model *m = x->model;
    stream *s = x->slots[0].s;
    FSDP_TRY(m->dev->copy(s, x->scalars, &m->scalars->optimizer, sizeof *x->scalars));
    FSDP_TRY(m->dev->event_record(s, x->begun));
    FSDP_TRY(m->dev->stream_wait(m->compute, x->begun)); /* which writes the next step's there */
    for (int i = 1; i < SLOTS; i++)
        FSDP_TRY(m->dev->stream_wait(x->slots[i].s, x->begun));
    return FSDP_OK;
}

/* An array of a chunk in both memories. */
typedef struct staged {
    void *host, *device;
    size_t bytes;
} staged;

enum { STAGED = 5, WRITTEN = 4 }; /* parameter, moments, average, gradient: all but the last go back */

/* Elements first .. first+n-1 of an array, or nothing where there is none. Each array has room for a whole chunk, so
 * that all of them are aligned. */
static staged stage(const split *x, uint8_t **at, void *base, fsdp_dtype dtype, int64_t first, int64_t n)
{
    size_t size = fsdp_dtype_size(dtype);
    if (!base)
        return (staged){NULL, NULL, 0};
    staged a = {(uint8_t *)base + (size_t)first * size, *at, (size_t)n * size};
    *at += (size_t)x->chunk * size;
    return a;
}

static fsdp_status send_chunk(split *x, slot *k, int range, int64_t first, int64_t end)
{
    fsdp_model *m = x->model;
    const update_range *r = update_range_at(x->update, range);
    const unit_segment *segment = &m->units[model_range_unit(m, range)].segments[0];
    uint8_t *at = k->memory;
    int64_t n = end - first;
    staged a[STAGED] = {
        stage(x, &at, r->parameter, FSDP_F32, first, n), stage(x, &at, r->moment1, x->kept_dtype, first, n),
        stage(x, &at, r->moment2, x->kept_dtype, first, n), stage(x, &at, r->average, FSDP_F32, first, n),
        stage(x, &at, r->gradient, r->gradient_dtype, first, n)};
    update_part part = {
        .first = first,
        .end = end,
        .dev = m->dev,
        .parameter = a[0].device,
        .moment1 = a[1].device,
        .moment2 = a[2].device,
        .average = a[3].device,
        .gradient = a[4].device,
        .copy = {(uint8_t *)segment->copy + (size_t)first * fsdp_dtype_size(segment->dtype), segment->dtype}};
    for (int i = 0; i < STAGED; i++)
        if (a[i].host)
            FSDP_TRY(m->dev->copy(k->s, a[i].device, a[i].host, a[i].bytes));
    FSDP_TRY(update_apply_part(x->update, range, &part, k->s, x->scalars));
    for (int i = 0; i < WRITTEN; i++)
        if (a[i].host)
            FSDP_TRY(m->dev->copy(k->s, a[i].host, a[i].device, a[i].bytes));
    k->used = true;
    return m->dev->event_record(k->s, k->done);
}

/* Chunks from the end of what is left, as far as slots are free. What fits a piece is left to the processor. */
static fsdp_status send_chunks(split *x, int range, int64_t low, int64_t *high, int64_t piece)
{
    for (int i = 0; i < SLOTS && piece < *high - low; i++) {
        bool free = true;
        FSDP_TRY(x->model->dev->event_done(x->slots[i].done, &free));
        if (!free)
            continue;
        int64_t first = (*high - 1 - low) / x->chunk * x->chunk + low; /* whole chunks from low on */
        FSDP_TRY(send_chunk(x, &x->slots[i], range, first, *high));
        *high = first;
    }
    return FSDP_OK;
}

fsdp_status split_update(split *x, int range, const optimizer_scalars *scalars, offload_lanes lanes, int64_t *on_host)
{
    device *dev = x->model->dev;
    int64_t low = 0, high = update_range_at(x->update, range)->n, piece = 2 * x->chunk;
    for (int i = 0; i < SLOTS; i++)
        x->slots[i].used = false;
    while (low < high) {
        FSDP_TRY(send_chunks(x, range, low, &high, piece));
        update_part part = {.first = low, .end = min_i64(low + piece, high)};
        FSDP_TRY(update_apply_part(x->update, range, &part, lanes.host, scalars));
        low = part.end;
    }
    for (int i = 0; i < SLOTS; i++)
        if (x->slots[i].used)
            FSDP_TRY(dev->stream_wait(lanes.in, x->slots[i].done));
    *on_host = high;
    return FSDP_OK;
}
