/* A model's state by name: filling parameters from a source, listing this rank's slices for checkpoints, reading
 * values. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/build/codes.h"
#include "shard/offload/offload.h"
#include "shard/step/early.h"

#define CHUNK ((int64_t)1 << 20) /* elements that pass through host memory at a time */

/* Of groups that hold the same the first one writes; what every rank has whole: rank 0. */
static bool writes(const fsdp_model *m, int index)
{
    return model_has_whole(m, index) ? m->rank == 0 : m->shardings[index].replica_rank == 0;
}

static bool slice_of(const fsdp_model *m, const unit_segment *segment, int place, int range, model_slice *out)
{
    const layout_slot *p = &segment->layout->slots[place];
    int64_t at;
    *out = (model_slice){
        .parameter = p->parameter, .segment = segment, .range = range, .writes = writes(m, p->parameter->unit)};
    layout_overlap(p, segment->first, segment->first + segment->numel, &out->first, &out->n, &at);
    out->at = at - segment->first;
    return out->n > 0;
}

fsdp_status model_for_each_slice(fsdp_model *m, slice_visitor visit, void *context)
{
    int range = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        unit *u = &m->units[i];
        for (int k = 0; k < u->n_segments; k++) {
            unit_segment *segment = &u->segments[k];
            for (int p = 0; p < segment->layout->n_slots; p++) {
                model_slice slice;
                if (slice_of(m, segment, p, segment->gradient ? range : -1, &slice))
                    FSDP_TRY(visit(m, &slice, context));
            }
            range += segment->gradient != NULL;
        }
    }
    return FSDP_OK;
}

static fsdp_status count_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    (void)m;
    (void)slice;
    ++*(int *)context;
    return FSDP_OK;
}

int model_slices(const fsdp_model *m)
{
    int n = 0;
    model_for_each_slice((fsdp_model *)(uintptr_t)m, count_slice, &n);
    return n;
}

typedef struct wanted_slice {
    int index;
    model_slice slice;
} wanted_slice;

static fsdp_status take_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    (void)m;
    wanted_slice *wanted = context;
    if (wanted->index-- == 0)
        wanted->slice = *slice;
    return FSDP_OK;
}

model_slice model_slice_at(const fsdp_model *m, int index)
{
    wanted_slice wanted = {.index = index};
    model_for_each_slice((fsdp_model *)(uintptr_t)m, take_slice, &wanted);
    return wanted.slice;
}

/* There are no fp32 values of the segment: it is kept as halves, or only what is gathered. */
static bool is_packed(const unit_segment *segment)
{
    return !segment->master;
}

static fsdp_status pack_blocks(fsdp_model *m, const unit_segment *segment, int64_t at, int64_t n, float *whole,
                               bool unpack)
{
    int8_args a = {.n = n,
                   .blocks = (uint8_t *)segment->copy + layout_kept_bytes(segment->layout, at, 0),
                   .values = {whole, FSDP_F32}};
    return unpack ? m->dev->kernels->widen(m->compute, &a) : m->dev->kernels->narrow(m->compute, &a);
}

/* Elements at .. at+n-1 of such a segment, whole blocks if it has those, from fp32 values in device memory or to them.
 */
static fsdp_status pack(fsdp_model *m, const unit_segment *segment, int64_t at, int64_t n, float *whole, bool unpack)
{
    if (segment->layout->int8)
        return pack_blocks(m, segment, at, n, whole, unpack);
    buffer copy = {(uint8_t *)segment->copy + (size_t)at * fsdp_dtype_size(segment->dtype), segment->dtype};
    halves_args halves = {.n = n, .whole = whole, .high = copy.p, .low = segment->low, .join = unpack};
    axpby_args cast = {.n = n, .alpha = 1, .a = {whole, FSDP_F32}, .out = copy};
    if (segment->low) {
        halves.low += at;
        return m->dev->halves(m->compute, &halves);
    }
    if (unpack) {
        cast.out = cast.a;
        cast.a = copy;
    }
    return m->dev->kernels->axpby(m->compute, &cast);
}

/* The norm's memory that values may pass through: where blocks are summed up, not the sums of offloaded units behind
 * it, which wait there for the step. */
static int64_t passing_bytes(const fsdp_model *m)
{
    return (m->norm_part - m->norm_blocks) * (int64_t)sizeof *m->norm_blocks;
}

/* How many values pass at a time: whole blocks. */
static int64_t room(const fsdp_model *m)
{
    int64_t most = passing_bytes(m) / (int64_t)sizeof(float);
    return most > LAYOUT_BLOCK ? most / LAYOUT_BLOCK * LAYOUT_BLOCK : most;
}

/* Parts of blocks cannot be written: their scale is that of all their numbers. */
static fsdp_status check_blocks(const fsdp_parameter *p, int64_t first, int64_t n)
{
    if (!p->int8 || (first % LAYOUT_BLOCK == 0 && n % LAYOUT_BLOCK == 0))
        return FSDP_OK;
    return error_set(
        FSDP_ERR_UNSUPPORTED,
        "%s is kept as blocks of %d in 8 bits, and its elements %lld to %lld are no whole blocks: write "
        "whole ones, or load it from a file that does not cut it there (fsdp ckpt reshard or import makes one)",
        p->name, LAYOUT_BLOCK, (long long)first, (long long)(first + n - 1));
}

static fsdp_status move_packed(fsdp_model *m, const model_slice *p, int64_t first, int64_t n, float *host, bool unpack)
{
    float *whole = (float *)(void *)m->norm_blocks;
    bool int8 = p->segment->layout->int8;
    if (!unpack)
        FSDP_TRY(check_blocks(p->parameter, p->first + first, n));
    for (int64_t done = 0, now; done < n; done += now) {
        int64_t at = p->at + first + done, before = int8 ? at % LAYOUT_BLOCK : 0; /* in the block that is read */
        now = min_i64(room(m) - before, n - done);
        int64_t packed = int8 ? ceil_div(before + now, LAYOUT_BLOCK) * LAYOUT_BLOCK : now;
        if (!unpack)
            FSDP_TRY(model_put(m, whole, host + done, (size_t)now * sizeof(float)));
        FSDP_TRY(pack(m, p->segment, at - before, packed, whole, unpack));
        if (unpack)
            FSDP_TRY(model_fetch(m, host + done, whole + before, (size_t)now * sizeof(float)));
    }
    return m->dev->stream_synchronize(m->compute);
}

fsdp_status model_read_slice(fsdp_model *m, const model_slice *p, int64_t first, int64_t n, float *out)
{
    FSDP_TRY(offload_settle(m));
    if (is_packed(p->segment))
        return move_packed(m, p, first, n, out, true);
    if (p->segment->host_copy) {
        memcpy(out, p->segment->master + p->at + first, (size_t)n * sizeof(float));
        return FSDP_OK;
    }
    return model_fetch(m, out, p->segment->master + p->at + first, (size_t)n * sizeof(float));
}

fsdp_status model_write_slice(fsdp_model *m, const model_slice *p, int64_t first, int64_t n, const float *in)
{
    FSDP_TRY(offload_settle(m));
    if (is_packed(p->segment))
        return move_packed(m, p, first, n, (float *)(uintptr_t)in, false);
    if (p->segment->host_copy) {
        memcpy(p->segment->master + p->at + first, in, (size_t)n * sizeof(float));
        return FSDP_OK;
    }
    return model_put(m, p->segment->master + p->at + first, in, (size_t)n * sizeof(float));
}

/* Filling. */

/* Initial values made by the host; `context` is room for a chunk of them. */
static fsdp_status fill_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    float *chunk = context;
    for (int64_t done = 0; done < slice->n; done += CHUNK) {
        int64_t n = min_i64(CHUNK, slice->n - done);
        parameter_initial_values(slice->parameter, m->config.seed, slice->first + done, n, chunk);
        FSDP_TRY(model_write_slice(m, slice, done, n, chunk));
    }
    return FSDP_OK;
}

/* Sent to the device, which rounds it as it does the masters that it keeps as halves: where a unit lies changes no bit.
 * The low halves are of no use. */
static fsdp_status refresh_half(fsdp_model *m, const unit_segment *segment)
{
    int64_t most = passing_bytes(m) / (int64_t)(sizeof(float) + sizeof(uint16_t));
    float *whole = (float *)(void *)m->norm_blocks;
    for (int64_t done = 0; done < segment->numel; done += most) {
        halves_args a = {.n = min_i64(most, segment->numel - done),
                         .whole = whole,
                         .high = (uint16_t *)segment->copy + done,
                         .low = (uint16_t *)(void *)(whole + most)};
        FSDP_TRY(m->dev->copy(m->compute, whole, segment->master + done, (size_t)a.n * sizeof *whole));
        FSDP_TRY(m->dev->halves(m->compute, &a));
    }
    return FSDP_OK;
}

/* Written where the masters are, then sent to the device. */
static fsdp_status refresh_from_host(fsdp_model *m, const unit_segment *segment)
{
    device *host = offload_host(m);
    axpby_args cast = {
        .n = segment->numel, .alpha = 1, .a = {segment->master, FSDP_F32}, .out = {segment->host_copy, segment->dtype}};
    if (model_splits_masters(m, segment->dtype))
        return refresh_half(m, segment);
    if (segment->host_copy != (void *)segment->master)
        FSDP_TRY(host->kernels->axpby(offload_host_stream(m), &cast));
    return m->dev->copy(m->compute, segment->copy, segment->host_copy,
                        (size_t)segment->numel * fsdp_dtype_size(segment->dtype));
}

static fsdp_status refresh_segment(fsdp_model *m, const unit_segment *segment)
{
    axpby_args cast = {
        .n = segment->numel, .alpha = 1, .a = {segment->master, FSDP_F32}, .out = {segment->copy, segment->dtype}};
    if (segment->copy == (void *)segment->master || is_packed(segment) || segment->numel == 0)
        return FSDP_OK;
    return segment->host_copy ? refresh_from_host(m, segment) : m->dev->kernels->axpby(m->compute, &cast);
}

fsdp_status model_refresh_unit(fsdp_model *m, int index)
{
    unit *u = &m->units[index];
    FSDP_TRY(offload_settle(m));
    u->stale = true;
    FSDP_TRY(early_drop(m, index));
    FSDP_TRY(comm_wait_sent(&u->gather, m->compute));
    for (int k = 0; k < u->n_segments; k++)
        FSDP_TRY(refresh_segment(m, &u->segments[k]));
    FSDP_TRY(codes_round_unit(m, index));
    return m->dev->stream_synchronize(m->compute);
}

fsdp_status model_refresh_copies(fsdp_model *m)
{
    for (int i = 0; i < m->layout->n_units; i++)
        FSDP_TRY(model_refresh_unit(m, i));
    return FSDP_OK;
}

fsdp_status model_before_writes(fsdp_model *m)
{
    FSDP_TRY(offload_settle(m));
    for (int i = 0; i < m->layout->n_units; i++)
        FSDP_TRY(comm_wait_sent(&m->units[i].gather, m->compute));
    return m->dev->stream_synchronize(m->compute);
}

static fsdp_status zero_packed(fsdp_model *m, const unit_segment *segment)
{
    FSDP_TRY(m->dev->zero(m->compute, segment->copy,
                          layout_kept_bytes(segment->layout, segment->numel, fsdp_dtype_size(segment->dtype))));
    return segment->low ? m->dev->zero(m->compute, segment->low, (size_t)segment->numel * sizeof(uint16_t)) : FSDP_OK;
}

/* Padding is zero for good. */
static fsdp_status clear_masters(fsdp_model *m)
{
    FSDP_TRY(offload_settle(m));
    for (int i = 0; i < m->layout->n_units; i++) {
        FSDP_TRY(comm_wait_sent(&m->units[i].gather, m->compute));
        for (int k = 0; k < m->units[i].n_segments; k++) {
            unit_segment *segment = &m->units[i].segments[k];
            size_t bytes = (size_t)segment->numel * sizeof(float);
            if (segment->host_copy)
                FSDP_TRY(offload_host(m)->zero(offload_host_stream(m), segment->master, bytes));
            else if (segment->numel > 0 && segment->master)
                FSDP_TRY(m->dev->zero(m->compute, segment->master, bytes));
            else if (segment->numel > 0)
                FSDP_TRY(zero_packed(m, segment));
        }
    }
    return FSDP_OK;
}

/* Initial values made by the device. Those that are not kept in its memory as fp32 pass through the norm's memory. */
static fsdp_status initialize_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    (void)context;
    const fsdp_parameter *p = slice->parameter;
    rng_key key = rng_key_fold_text(rng_key_make(m->config.seed), p->name);
    const unit_segment *segment = slice->segment;
    bool passes = is_packed(segment) || segment->host_copy;
    int64_t most = passes ? room(m) : slice->n;
    bool normal = p->init == FSDP_INIT_NORMAL;
    if (p->init == FSDP_INIT_ZERO)
        return FSDP_OK; /* as all masters were before */
    for (int64_t done = 0, n; done < slice->n; done += n) {
        n = min_i64(most, slice->n - done);
        int64_t at = slice->at + done;
        float *out = passes ? (float *)(void *)m->norm_blocks : segment->master + at;
        random_args values = {.n = n,
                              .key = {key.k[0], key.k[1]},
                              .first = (uint64_t)(slice->first + done),
                              .normal = normal,
                              .a = normal ? 0 : -p->init_scale,
                              .b = p->init_scale,
                              .out = out};
        fill_args ones = {.n = n, .alpha = 1, .out = {out, FSDP_F32}};
        FSDP_TRY(p->init == FSDP_INIT_ONE ? m->dev->kernels->fill(m->compute, &ones)
                                          : m->dev->random(m->compute, &values));
        if (is_packed(segment))
            FSDP_TRY(pack(m, segment, at, n, out, false));
        if (segment->host_copy)
            FSDP_TRY(m->dev->copy(m->compute, segment->master + at, out, (size_t)n * sizeof(float)));
    }
    return FSDP_OK;
}

fsdp_status model_initialize(fsdp_model *m)
{
    void *chunk = m->dev->random ? NULL : malloc((size_t)CHUNK * sizeof(float));
    if (!m->dev->random && !chunk)
        return error_set(FSDP_ERR_MEMORY, "initial values: out of host memory");
    fsdp_status status = clear_masters(m);
    if (status == FSDP_OK)
        status = model_for_each_slice(m, chunk ? fill_slice : initialize_slice, chunk);
    free(chunk);
    FSDP_TRY(status);
    FSDP_TRY(m->dev->stream_synchronize(m->compute));
    return model_refresh_copies(m);
}

/* Reading by name: every rank gives what it has, the sum over the group is the value. */

typedef struct reading {
    const char *name;
    int64_t first, n;
    float *out;
} reading;

static fsdp_status read_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    reading *r = context;
    int64_t begin = max_i64(slice->first, r->first), end = min_i64(slice->first + slice->n, r->first + r->n);
    if (end <= begin || strcmp(slice->parameter->name, r->name) != 0)
        return FSDP_OK;
    return model_read_slice(m, slice, begin - slice->first, end - begin, r->out + (begin - r->first));
}

fsdp_status model_find_elements(const fsdp_model *m, const char *name, int64_t first, int64_t n, fsdp_parameter **out)
{
    *out = module_find_parameter(&m->contents, name);
    if (!*out)
        return error_set(FSDP_ERR_INPUT, "the model has no parameter named %s", name);
    if (first < 0 || n < 0 || n > (*out)->numel || first > (*out)->numel - n)
        return error_set(FSDP_ERR_INPUT, "%lld elements from %lld of %s, which has %lld", (long long)n,
                         (long long)first, name, (long long)(*out)->numel);
    return FSDP_OK;
}

fsdp_status model_join_slices(fsdp_model *m, int index, const char *label, float *values, int64_t n)
{
    if (model_has_all_at_hand(m, index))
        return FSDP_OK;
    comm_span span = {.send = {values, FSDP_F32}, .recv = {values, FSDP_F32}, .count = n};
    comm_op op = {.label = label, .step = m->step, .n_spans = 1, .spans = &span};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_reduce(m->shardings[index].shard_group, &op, &request));
    return comm_wait(&request, NULL);
}

fsdp_status fsdp_parameter_read(fsdp_model *m, const char *name, int64_t first, int64_t n, float *out)
{
    fsdp_parameter *p;
    FSDP_TRY(model_find_elements(m, name, first, n, &p));
    reading r = {name, first, n, out};
    memset(out, 0, (size_t)n * sizeof *out);
    FSDP_TRY(model_for_each_slice(m, read_slice, &r));
    return model_join_slices(m, p->unit, "reading a parameter", out, n);
}

typedef struct writing {
    const fsdp_parameter *parameter;
    int64_t first, n;
    const float *values;
} writing;

static fsdp_status write_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    const writing *w = context;
    int64_t begin = max_i64(slice->first, w->first), end = min_i64(slice->first + slice->n, w->first + w->n);
    if (end <= begin || slice->parameter != w->parameter)
        return FSDP_OK;
    return model_write_slice(m, slice, begin - slice->first, end - begin, w->values + (begin - w->first));
}

fsdp_status fsdp_parameter_write(fsdp_model *m, const char *name, int64_t first, int64_t n, const float *values)
{
    fsdp_parameter *p = NULL;
    FSDP_TRY(model_find_elements(m, name, first, n, &p));
    FSDP_TRY(check_blocks(p, first, n));
    writing w = {p, first, n, values};
    FSDP_TRY(offload_settle(m));
    FSDP_TRY(comm_wait_sent(&m->units[p->unit].gather, m->compute)); /* peers have read what they gathered */
    m->base_known &= p->adapter;                                     /* no file has what the caller writes */
    FSDP_TRY(model_for_each_slice(m, write_slice, &w));
    return model_refresh_unit(m, p->unit);
}

fsdp_status fsdp_summon(fsdp_model *m, fsdp_summoned use, void *context)
{
    int64_t largest = 0;
    for (int i = 0; i < m->contents.n_parameters; i++)
        largest = max_i64(largest, m->contents.parameters[i]->numel);
    float *values = malloc((size_t)largest * sizeof *values);
    if (!values) /* the other ranks are told when they wait for this one */
        return error_set(FSDP_ERR_MEMORY, "summoning full parameters: no memory for %lld values", (long long)largest);
    fsdp_status status = FSDP_OK, used = FSDP_OK;
    for (int i = 0; i < m->contents.n_parameters && status == FSDP_OK; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        status = fsdp_parameter_read(m, p->name, 0, p->numel, values);
        if (status == FSDP_OK && used == FSDP_OK)
            used = use(context, p->name, p->n_dims, p->shape, values);
    }
    free(values);
    return status == FSDP_OK ? used : status; /* reading that succeeds leaves the message of `use` */
}
