#include "shard/build/resident.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "shard/build/codes.h"
#include "shard/offload/offload.h"

/* Least memory that values pass through, in numbers of the norm. */
enum { ROOM_BLOCKS = 1 << 14 };

static bool has_copy(const layout_segment *s, fsdp_dtype dtype)
{
    return s->int8 || dtype != FSDP_F32;
}

/* What is never updated is what is computed with: of frozen parameters there is nothing but the copy. */
static bool has_master(const layout_segment *s, fsdp_dtype dtype)
{
    return s->trainable || !has_copy(s, dtype);
}

/* Of segment k of a unit: what this rank holds. */
static int64_t part_numel(const fsdp_model *m, int index, int k)
{
    return model_part(m, index, &m->layout->units[index].segments[k]).n;
}

static void add_sizes(const fsdp_model *m, int index, int k, resident_sizes *z)
{
    const layout_segment *s = &m->layout->units[index].segments[k];
    fsdp_dtype dtype = m->policies[index].param_dtype;
    bool offloaded = m->offloaded[index] && s->trainable;
    size_t numel = (size_t)part_numel(m, index, k), whole = round_up(numel * sizeof(float), 256),
           halves = round_up(numel * sizeof(uint16_t), 256),
           copy = round_up(layout_kept_bytes(s, (int64_t)numel, fsdp_dtype_size(dtype)), 256),
           gradient = round_up(numel * fsdp_dtype_size(m->config.gradient_dtype), 256),
           codes = round_up(codes_bytes(m, index, s), 256);
    z->copy += codes;
    z->shared += codes;
    if (offloaded) {
        z->copy += copy;
        z->shared += copy;
        z->host_gradient += gradient;
        z->host_whole += whole;
        z->host_half += halves;
        z->host_low += has_copy(s, dtype) ? whole / 2 : 0;
        z->host += whole + gradient + (has_copy(s, dtype) ? copy : 0);
    } else {
        if (has_master(s, dtype))
            z->master += model_splits_masters(m, dtype) ? halves : whole;
        z->copy += has_copy(s, dtype) ? copy : 0;
        z->shared += has_copy(s, dtype) ? copy : whole;
        z->gradient += s->trainable ? gradient : 0;
        z->whole += s->trainable ? whole : 0;
        z->half += s->trainable ? halves : 0;
    }
}

resident_sizes resident_measure(const fsdp_model *m)
{
    resident_sizes z = {.master = 0};
    for (int i = 0; i < m->layout->n_units; i++) {
        for (int k = 0; k < m->layout->units[i].n_segments; k++)
            add_sizes(m, i, k, &z);
    }
    return z;
}

static void *take(uint8_t **at, size_t bytes)
{
    void *memory = *at;
    *at += round_up(bytes, 256);
    return memory;
}

/* Where the next part of each kind begins. */
typedef struct places {
    uint8_t *shared, *resident, *host;
} places;

static void place_part(const fsdp_model *m, int index, unit_segment *segment, places *at)
{
    bool offloaded = m->offloaded[index] && segment->layout->trainable;
    size_t numel = (size_t)segment->numel, whole = numel * sizeof(float),
           copy = layout_kept_bytes(segment->layout, segment->numel, fsdp_dtype_size(segment->dtype)),
           codes = codes_bytes(m, index, segment->layout);
    bool copied = has_copy(segment->layout, segment->dtype);
    if (offloaded) {
        segment->master = take(&at->host, whole);
        segment->host_copy = copied ? take(&at->host, copy) : segment->master;
        segment->copy = take(&at->shared, copy);
    } else {
        if (!has_master(segment->layout, segment->dtype))
            segment->master = NULL;
        else if (model_splits_masters(m, segment->dtype))
            segment->low = take(&at->resident, numel * sizeof *segment->low);
        else
            segment->master = take(copied ? &at->resident : &at->shared, whole);
        segment->copy = copied ? take(&at->shared, copy) : segment->master;
    }
    segment->codes = segment->layout->coded_end > 0 ? take(&at->shared, codes) : NULL;
    if (segment->layout->trainable)
        segment->gradient =
            take(offloaded ? &at->host : &at->resident, numel * fsdp_dtype_size(segment->gradient_dtype));
}

/* Peers read the copies (or, in fp32, the masters): those lie in shared memory, the rest in private memory. */
static fsdp_status allocate_places(fsdp_model *m)
{
    resident_sizes z = resident_measure(m);
    m->shared_bytes = z.shared;
    m->resident_bytes = z.master + z.copy - z.shared + z.gradient;
    m->host_bytes = z.host;
    FSDP_TRY(comm_allocate(m->world->comm, m->shared_bytes, (void **)&m->shared));
    if (m->resident_bytes > 0)
        FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, m->resident_bytes, (void **)&m->resident));
    if (m->host_bytes > 0)
        FSDP_TRY(m->dev->allocate(m->dev, MEMORY_HOST, m->host_bytes, (void **)&m->host));
    return FSDP_OK;
}

/* What collectives count of a segment: elements, or bytes of blocks. */
static int64_t counted(const layout_segment *s, int64_t numel)
{
    return s->int8 ? (int64_t)layout_kept_bytes(s, numel, 0) : numel;
}

fsdp_status resident_place_units(fsdp_model *m)
{
    /* A rank without any elements has no memory; its pointers still say what there is on other ranks. */
    static _Alignas(64) uint8_t nothing[64];
    places at = {m->shared ? m->shared : nothing, m->resident ? m->resident : nothing, m->host ? m->host : nothing};
    m->units = calloc((size_t)m->layout->n_units, sizeof *m->units);
    if (!m->units)
        return error_set(FSDP_ERR_MEMORY, "sharding a model: out of host memory");
    for (int i = 0; i < m->layout->n_units; i++) {
        unit *u = &m->units[i];
        u->layout = &m->layout->units[i];
        u->n_segments = u->layout->n_segments;
        u->stale = true;
        for (int k = 0; k < u->n_segments; k++) {
            unit_segment *segment = &u->segments[k];
            const layout_segment *s = segment->layout = &u->layout->segments[k];
            segment->dtype = m->policies[i].param_dtype;
            segment->gradient_dtype = m->config.gradient_dtype;
            segment->first = model_part(m, i, s).first;
            segment->numel = part_numel(m, i, k);
            place_part(m, i, segment, &at);
            segment->counts = calloc((size_t)s->n_shards, 3 * sizeof *segment->counts);
            if (!segment->counts)
                return error_set(FSDP_ERR_MEMORY, "placing unit %s: out of host memory", u->layout->name);
            for (int r = 0; r < s->n_shards; r++)
                segment->counts[r] = counted(s, layout_shard_numel(s, r));
            segment->rest_counts = segment->counts + 2 * s->n_shards;
            for (int r = 0; r < s->n_shards; r++)
                segment->rest_counts[r] = max_i64(0, s->cuts[r + 1] - max_i64(s->cuts[r], s->coded_end));
            segment->keep_counts = segment->counts + s->n_shards;
            for (int r = 0; r < m->keep_groups[i]; r++)
                segment->keep_counts[r] = counted(s, layout_kept_numel(s, m->keep_groups[i], r));
        }
    }
    return FSDP_OK;
}

void resident_forget_units(fsdp_model *m)
{
    for (int i = 0; m->units && i < m->layout->n_units; i++) {
        for (int k = 0; k < m->units[i].n_segments; k++)
            free(m->units[i].segments[k].counts);
    }
    free(m->units);
    m->units = NULL;
}

/* Keeps only as many bits as the buffer's type has, rounded to nearest even. */
static float rounded(float x, fsdp_dtype dtype)
{
    uint32_t bits, dropped = dtype == FSDP_BF16 ? 16 : 13; /* of the 23 bits after the point */
    if (dtype == FSDP_F32 || !isfinite(x))
        return x;
    if (dtype == FSDP_F16 && fabsf(x) < 0x1p-14f)
        return rintf(x * 0x1p24f) * 0x1p-24f; /* fp16 has no smaller exponent: fixed steps */
    memcpy(&bits, &x, sizeof bits);
    bits += (1u << (dropped - 1)) - 1 + (bits >> dropped & 1);
    bits &= ~((1u << dropped) - 1);
    memcpy(&x, &bits, sizeof bits);
    return dtype == FSDP_F16 && fabsf(x) > 65504 ? copysignf(INFINITY, x) : x;
}

static fsdp_status place_buffers(fsdp_model *m)
{
    for (int i = 0; i < m->contents.n_buffers; i++)
        m->buffers_bytes += round_up((size_t)m->contents.buffers[i]->numel * sizeof(float), 256);
    if (m->buffers_bytes == 0)
        return FSDP_OK;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, m->buffers_bytes, (void **)&m->buffers));
    uint8_t *at = (uint8_t *)m->buffers;
    for (int i = 0; i < m->contents.n_buffers; i++) {
        fsdp_buffer *b = m->contents.buffers[i];
        b->data = take(&at, (size_t)b->numel * sizeof(float));
        for (int64_t k = 0; k < b->numel && !b->persistent; k++)
            b->initial[k] = rounded(b->initial[k], m->config.buffer_dtype);
        FSDP_TRY(model_put(m, b->data, b->initial, (size_t)b->numel * sizeof(float)));
    }
    return FSDP_OK;
}

/* One number for every block of the largest trained part. Values that pass through this memory
 * on their way to frozen parts want some room too. */
static int64_t norm_blocks(const fsdp_model *m)
{
    int64_t trained = 0, frozen = 0, least = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        const layout_unit *u = &m->layout->units[i];
        if (layout_int8_segment(u)) /* they pass as whole blocks */
            least = LAYOUT_BLOCK;
        for (int k = 0; k < u->n_segments; k++) {
            int64_t *largest = u->segments[k].trainable ? &trained : &frozen;
            *largest = max_i64(*largest, part_numel(m, i, k));
        }
    }
    return max_i64(least, max_i64(ceil_div(trained, NORM_BLOCK), min_i64(ceil_div(frozen, NORM_BLOCK), ROOM_BLOCKS)));
}

size_t resident_norm_bytes(const fsdp_model *m)
{
    int64_t landed = offload_any(m) ? (int64_t)m->layout->n_units : 0;
    return (size_t)(norm_blocks(m) + 1 + landed) * sizeof(double);
}

static fsdp_status place_scalars(fsdp_model *m)
{
    m->norm_blocks_bytes = resident_norm_bytes(m);
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, m->norm_blocks_bytes, (void **)&m->norm_blocks));
    m->norm_part = m->norm_blocks + norm_blocks(m);
    m->unit_squares = m->norm_part + 1;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, sizeof *m->scalars, (void **)&m->scalars));
    return m->dev->allocate(m->dev, MEMORY_HOST, MODEL_HOST_SCALARS * sizeof *m->host_scalars,
                            (void **)&m->host_scalars);
}

size_t resident_figures_bytes(const fsdp_model *m)
{
    size_t n = 0;
    for (int i = 0; i < m->contents.n_parameters && m->config.fp8_check; i++)
        n += m->contents.parameters[i]->fp8 != FSDP_FP8_OFF;
    return n * sizeof(fp8_figures);
}

static fsdp_status place_figures(fsdp_model *m)
{
    size_t n = 0;
    m->figures_bytes = resident_figures_bytes(m);
    if (m->figures_bytes == 0)
        return FSDP_OK;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, m->figures_bytes, (void **)&m->figures));
    FSDP_TRY(m->dev->zero(m->compute, m->figures, m->figures_bytes));
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        p->figures = p->fp8 != FSDP_FP8_OFF ? &m->figures[n++] : NULL;
    }
    return FSDP_OK;
}

/* What all that was placed is for; sign -1: it goes. */
static void note_memory(fsdp_model *m, int64_t sign)
{
    resident_sizes z = resident_measure(m);
    memory_use_note(MEMORY_PARAMETERS, sign * (int64_t)z.master);
    memory_use_note(MEMORY_COPIES, sign * (int64_t)z.copy);
    memory_use_note(MEMORY_GRADIENTS, sign * (int64_t)z.gradient);
    memory_use_note(MEMORY_BUFFERS, sign * (int64_t)(m->buffers_bytes + m->norm_blocks_bytes + sizeof *m->scalars +
                                                     m->figures_bytes + m->scales_bytes));
    m->memory_noted = sign > 0;
}

fsdp_status resident_allocate(fsdp_model *m)
{
    FSDP_TRY(allocate_places(m));
    FSDP_TRY(resident_place_units(m));
    FSDP_TRY(place_buffers(m));
    FSDP_TRY(place_scalars(m));
    FSDP_TRY(place_figures(m));
    FSDP_TRY(codes_place(m));
    note_memory(m, 1);
    return FSDP_OK;
}

void resident_release(fsdp_model *m)
{
    if (m->memory_noted)
        note_memory(m, -1);
    m->dev->release(m->dev, MEMORY_HOST, m->host_scalars, MODEL_HOST_SCALARS * sizeof *m->host_scalars);
    m->dev->release(m->dev, MEMORY_DEVICE, m->scalars, sizeof *m->scalars);
    m->dev->release(m->dev, MEMORY_DEVICE, m->norm_blocks, m->norm_blocks_bytes);
    m->dev->release(m->dev, MEMORY_DEVICE, m->figures, m->figures_bytes);
    m->dev->release(m->dev, MEMORY_DEVICE, m->scales, m->scales_bytes);
    m->dev->release(m->dev, MEMORY_DEVICE, m->buffers, m->buffers_bytes);
    m->dev->release(m->dev, MEMORY_HOST, m->host, m->host_bytes);
    m->dev->release(m->dev, MEMORY_DEVICE, m->resident, m->resident_bytes);
    comm_release(m->world->comm, m->shared);
    resident_forget_units(m);
}
