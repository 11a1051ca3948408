/* Gradients by name, between the last micro-batch and the optimizer's step: reading, norms, scaling. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/float_bits.h"
#include "shard/model.h"
#include "shard/offload/offload.h"

/* Sums become gradients as the optimizer makes them so: by the same float, or clipping by hand would be another. */
static fsdp_status find_factor(fsdp_model *m)
{
    double count;
    if (m->gradient_factor != 0)
        return FSDP_OK;
    FSDP_TRY(model_fetch(m, &count, &m->scalars->totals[2], sizeof count));
    FSDP_TRY(comm_all_reduce_f64(comm_world(m->world->comm), "count of a step", m->step, FSDP_REDUCE_SUM, &count, 1));
    if (count == 0)
        return error_set(FSDP_ERR_NUMERIC, "the losses of this step count no sample: they have no gradient");
    double divisor = m->config.gradient_divisor > 0 ? m->config.gradient_divisor : count;
    m->gradient_factor = (float)(m->expected_count / m->loss_scale / divisor);
    return FSDP_OK;
}

/* From here on this rank's sums may be read and written wherever they lie. */
static fsdp_status open_gradients(fsdp_model *m)
{
    FSDP_TRY(model_settle_gradients(m));
    FSDP_TRY(offload_settle(m));
    return find_factor(m);
}

/* ---- Reading ---- */

typedef struct gradient_reading {
    const fsdp_parameter *parameter;
    int64_t first, n;
    float *out;
} gradient_reading;

static float value_at(const uint8_t *raw, fsdp_dtype dtype, int64_t index)
{
    float whole;
    uint16_t half;
    if (dtype == FSDP_F32) {
        memcpy(&whole, raw + (size_t)index * sizeof whole, sizeof whole);
        return whole;
    }
    memcpy(&half, raw + (size_t)index * sizeof half, sizeof half);
    return float_bits_from_bf16(half);
}

static fsdp_status read_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    const gradient_reading *r = context;
    int64_t begin = max_i64(slice->first, r->first), end = min_i64(slice->first + slice->n, r->first + r->n);
    if (end <= begin || slice->parameter != r->parameter)
        return FSDP_OK;
    const unit_segment *segment = slice->segment;
    const void *from = unit_gradient_at(segment, segment->gradient, slice->at + (begin - slice->first));
    float *to = r->out + (begin - r->first);
    int64_t n = end - begin;
    size_t bytes = (size_t)n * fsdp_dtype_size(segment->gradient_dtype);
    uint8_t *raw = (uint8_t *)to + ((size_t)n * sizeof *to - bytes); /* at the end: widened in place, front to back */
    if (segment->host_copy)
        memcpy(raw, from, bytes);
    else
        FSDP_TRY(model_fetch(m, raw, from, bytes));
    for (int64_t i = 0; i < n; i++)
        to[i] = value_at(raw, segment->gradient_dtype, i) * m->gradient_factor;
    return FSDP_OK;
}

fsdp_status fsdp_gradient_read(fsdp_model *m, const char *name, int64_t first, int64_t n, float *out)
{
    fsdp_parameter *p;
    FSDP_TRY(model_find_elements(m, name, first, n, &p));
    if (!p->trainable)
        return error_set(FSDP_ERR_INPUT, "%s is frozen: it has no gradient", name);
    FSDP_TRY(open_gradients(m));
    gradient_reading r = {p, first, n, out};
    memset(out, 0, (size_t)n * sizeof *out);
    FSDP_TRY(model_for_each_slice(m, read_slice, &r));
    return model_join_slices(m, p->unit, "reading a gradient", out, n);
}

/* ---- Patterns ---- */

static fsdp_status check_pattern(const fsdp_model *m, const char *pattern)
{
    bool matched = false;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        if (fnmatch(pattern, p->name, 0) != 0)
            continue;
        matched = true;
        if (p->trainable)
            return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT,
                     matched ? "every parameter that matches \"%s\" is frozen: there is no gradient"
                             : "no parameter matches \"%s\"",
                     pattern);
}

/* ---- Norms ---- */

/* Sum of squares of n elements, where they lie, in host memory. */
static fsdp_status squares(fsdp_model *m, bool offloaded, const void *gradient, int64_t n, double *out)
{
    if (!offloaded) {
        FSDP_TRY(model_add_squares(m, gradient, n, m->norm_part, false, m->compute));
        return model_fetch(m, out, m->norm_part, sizeof *out);
    }
    const kernel_table *k = offload_host(m)->kernels;
    double *blocks = malloc((size_t)ceil_div(n, NORM_BLOCK) * sizeof *blocks);
    if (!blocks)
        return error_set(FSDP_ERR_MEMORY, "norm of a gradient in host memory: out of host memory");
    norm_blocks_args parts = {.n = n, .x = {(void *)(uintptr_t)gradient, m->config.gradient_dtype}, .blocks = blocks};
    sum_f64_args sum = {.n = ceil_div(n, NORM_BLOCK), .x = blocks, .out = out};
    fsdp_status status = k->norm_blocks(offload_host_stream(m), &parts);
    if (status == FSDP_OK)
        status = k->sum_f64(offload_host_stream(m), &sum);
    free(blocks);
    return status;
}

/* Of what this rank counts of the matching parameters: cut alike by every strategy. */
static fsdp_status local_squares(fsdp_model *m, const char *pattern, double *out)
{
    *out = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        const unit_segment *segment = &m->units[i].segments[0];
        const layout_segment *s = segment->layout;
        element_range counted = model_counted(m, i, s);
        for (int k = 0; segment->gradient && k < s->n_slots; k++) {
            int64_t from, n, at;
            double sum;
            if (fnmatch(pattern, s->slots[k].parameter->name, 0) != 0)
                continue;
            layout_overlap(&s->slots[k], counted.first, counted.first + counted.n, &from, &n, &at);
            if (n == 0)
                continue;
            const void *gradient = unit_gradient_at(segment, segment->gradient, at - segment->first);
            FSDP_TRY(squares(m, m->offloaded[i], gradient, n, &sum));
            *out += sum;
        }
    }
    return FSDP_OK;
}

fsdp_status fsdp_gradient_norm(fsdp_model *m, const char *pattern, double *norm)
{
    double sum;
    FSDP_TRY(check_pattern(m, pattern));
    FSDP_TRY(open_gradients(m));
    FSDP_TRY(local_squares(m, pattern, &sum));
    FSDP_TRY(comm_all_reduce_f64(comm_world(m->world->comm), "norm of gradients", m->step, FSDP_REDUCE_SUM, &sum, 1));
    *norm = sqrt(sum) * (double)m->gradient_factor;
    return FSDP_OK;
}

/* ---- Scaling ---- */

typedef struct gradient_scaling {
    const char *pattern;
    float factor;
} gradient_scaling;

static fsdp_status scale_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    const gradient_scaling *s = context;
    if (!slice->segment->gradient || fnmatch(s->pattern, slice->parameter->name, 0) != 0)
        return FSDP_OK;
    const unit_segment *segment = slice->segment;
    buffer values = {unit_gradient_at(segment, segment->gradient, slice->at), segment->gradient_dtype};
    axpby_args scale = {.n = slice->n, .alpha = s->factor, .a = values, .out = values};
    if (slice->segment->host_copy)
        return offload_host(m)->kernels->axpby(offload_host_stream(m), &scale);
    return m->dev->kernels->axpby(m->compute, &scale);
}

fsdp_status fsdp_gradient_scale(fsdp_model *m, const char *pattern, float factor)
{
    gradient_scaling s = {pattern, factor};
    FSDP_TRY(check_pattern(m, pattern));
    if (!isfinite(factor))
        return error_set(FSDP_ERR_INPUT, "gradients cannot be scaled by a factor that is not finite");
    FSDP_TRY(open_gradients(m));
    FSDP_TRY(model_for_each_slice(m, scale_slice, &s));
    return offload_take_squares(m);
}
