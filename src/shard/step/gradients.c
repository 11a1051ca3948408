/* The close of a step: reductions are waited for, replicas summed, the gradient norm taken; and the flat ranges that
 * the optimizer updates. */
#include "base/checked.h"
#include "base/error.h"
#include "shard/model.h"
#include "shard/offload/offload.h"

/* What each shard group of a unit has summed is summed across its groups. In the last micro-batch that began as each
 * unit was reduced (events.c), or landed in host memory; what is left is what that micro-batch did not use. */
static fsdp_status sum_replicas(fsdp_model *m)
{
    for (int i = 0; i < m->layout->n_units; i++) {
        unit *u = &m->units[i];
        if (model_has_replicas(m, i) && u->segments[0].gradient && !m->offloaded[i] && !u->replicating)
            FSDP_TRY(unit_replicate(u, m->shardings[i].replica_group, u->segments[0].gradient, m->step, m->compute));
    }
    for (int i = 0; i < m->layout->n_units; i++)
        FSDP_TRY(comm_wait(&m->units[i].replicate, m->compute));
    return FSDP_OK;
}

fsdp_status model_add_squares(fsdp_model *m, const void *gradient, int64_t n, double *out, bool add, stream *s)
{
    const kernel_table *k = m->dev->kernels;
    norm_blocks_args blocks = {
        .n = n, .x = {(void *)(uintptr_t)gradient, m->config.gradient_dtype}, .blocks = m->norm_blocks};
    sum_f64_args sum = {.n = ceil_div(n, NORM_BLOCK), .x = m->norm_blocks, .out = out, .add = add};
    FSDP_TRY(k->norm_blocks(s, &blocks));
    return k->sum_f64(s, &sum);
}

fsdp_status model_squares(fsdp_model *m, int index, const void *gradient, double *out, bool add, stream *s)
{
    const unit_segment *segment = &m->units[index].segments[0];
    element_range counted = model_counted(m, index, segment->layout);
    if (counted.n == 0)
        return add ? FSDP_OK : m->dev->zero(s, out, sizeof *out);
    return model_add_squares(m, unit_gradient_at(segment, gradient, counted.first - segment->first), counted.n, out,
                             add, s);
}

/* Those of an offloaded unit were taken as its gradient landed; adding them here keeps the order of units. */
static fsdp_status add_landed_squares(fsdp_model *m, int index, double *out, bool add)
{
    sum_f64_args one = {.n = 1, .x = &m->unit_squares[index], .out = out, .add = add};
    return m->dev->kernels->sum_f64(m->compute, &one);
}

static fsdp_status await_gradient(fsdp_model *m, int index)
{
    unit *u = &m->units[index];
    if (u->gradients != GRADIENTS_REDUCING)
        return FSDP_OK;
    if (!m->carrier)
        return unit_reduced(u, m->compute);
    u->gradients = GRADIENTS_SHARDED;
    return m->carrier->await_reduction(m->carrier->context, index);
}

fsdp_status model_await_gradients(fsdp_model *m)
{
    for (int i = 0; i < m->layout->n_units; i++)
        FSDP_TRY(await_gradient(m, i));
    return FSDP_OK;
}

/* Of what this rank counts; the sum over ranks goes in rank order, which gives all strategies the same bits. The last
 * reductions of backward go on while the squares of other units are taken. */
static fsdp_status local_squares(fsdp_model *m)
{
    bool first = true;
    double *out = &m->scalars->totals[0];
    for (int i = 0; i < m->layout->n_units; i++) {
        const unit_segment *segment = &m->units[i].segments[0];
        FSDP_TRY(await_gradient(m, i));
        if (!segment->gradient)
            continue;
        if (m->offloaded[i])
            FSDP_TRY(add_landed_squares(m, i, out, !first));
        else
            FSDP_TRY(model_squares(m, i, segment->gradient, out, !first, m->compute));
        first = false;
    }
    return first ? m->dev->zero(m->compute, out, sizeof *out) : FSDP_OK;
}

static fsdp_status reduce_totals(fsdp_model *m)
{
    if (m->n_ranks == 1)
        return FSDP_OK;
    buffer totals = {m->scalars->totals, FSDP_F64};
    if (m->carrier)
        return m->carrier->sum(m->carrier->context, sizeof m->scalars->totals / sizeof(double), sizeof(double));
    comm_span span = {.send = totals, .recv = totals, .count = sizeof m->scalars->totals / sizeof(double)};
    comm_op op = {
        .label = "gradient norm and loss", .step = m->step, .n_spans = 1, .spans = &span, .stream = m->compute};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_reduce(comm_world(m->world->comm), &op, &request));
    return comm_wait(&request, m->compute);
}

/* Held gradients of unit `index` that are not reduced yet; zeros where no micro-batch of this rank used it. */
static fsdp_status reduce_held(fsdp_model *m, int index)
{
    unit *u = &m->units[index];
    uint8_t *held = m->gradient.memory + m->last_training->schedule->units[index].gradient_offset;
    if (u->gradients == GRADIENTS_NONE) {
        FSDP_TRY(unit_take_gradients(u, m->policies[index].reduce_dtype, held));
        FSDP_TRY(m->dev->zero(m->compute, held, (size_t)u->layout->segments[0].padded * m->grad_bytes[index]));
    }
    if (m->offloaded[index])
        return offload_reduce(m, index, held);
    FSDP_TRY(unit_reduce(u, m->shardings[index].shard_group, m->policies[index].reduce_dtype, held,
                         u->segments[0].gradient, false, m->step, m->compute));
    return unit_reduced(u, m->compute);
}

static fsdp_status reduce_all_held(fsdp_model *m)
{
    /* Every trained unit on every rank, in one order: ranks need not have used the same ones. */
    for (int i = 0; model_holds_gradients(m) && i < m->layout->n_units; i++) {
        gradient_state now = m->units[i].gradients;
        if (m->layout->units[i].segments[0].trainable && now != GRADIENTS_SHARDED && now != GRADIENTS_REDUCING)
            FSDP_TRY(reduce_held(m, i));
    }
    return FSDP_OK;
}

fsdp_status model_start_settling(fsdp_model *m)
{
    if (m->settled)
        return FSDP_OK;
    if (m->micro == 0)
        return error_set(FSDP_ERR_STATE, "there are no gradients: no fsdp_backward since the last optimizer step");
    FSDP_TRY(offload_wait(m));
    FSDP_TRY(reduce_all_held(m));
    FSDP_TRY(sum_replicas(m));
    FSDP_TRY(offload_finish_gradients(m));
    m->settled = true;
    return FSDP_OK;
}

fsdp_status model_settle_gradients(fsdp_model *m)
{
    FSDP_TRY(model_start_settling(m));
    return model_await_gradients(m);
}

fsdp_status model_may_accumulate(const fsdp_model *m)
{
    if (m->micro > 0 && m->config.gradient_dtype != FSDP_F32)
        return error_set(FSDP_ERR_STATE,
                         "a second micro-batch in a step: gradients of %s are not added to; set gradient_dtype fp32, "
                         "or make one micro-batch a step",
                         fsdp_dtype_name(m->config.gradient_dtype));
    if (m->settled)
        return error_set(FSDP_ERR_STATE, "a micro-batch after the gradients of this step have been read: call "
                                         "fsdp_step first, or read them after the last micro-batch");
    for (int i = 0; i < m->layout->n_units; i++)
        if (m->units[i].replicating)
            return error_set(FSDP_ERR_STATE, "a micro-batch after the last of this step: its gradients are summed over "
                                             "replicas already; call fsdp_step, or pass `last` with this one");
    return FSDP_OK;
}

fsdp_status model_finish_gradients(fsdp_model *m)
{
    FSDP_TRY(model_start_settling(m));
    FSDP_TRY(local_squares(m));
    return reduce_totals(m);
}

int model_ranges(const fsdp_model *m)
{
    int n = 0;
    for (int i = 0; i < m->layout->n_units; i++)
        n += m->units[i].segments[0].gradient != NULL;
    return n;
}

int model_range_unit(const fsdp_model *m, int index)
{
    int i = 0;
    while (!m->units[i].segments[0].gradient || index-- > 0)
        i++;
    return i;
}

int model_unit_range(const fsdp_model *m, int which)
{
    int range = 0;
    for (int i = 0; i < which; i++)
        range += m->units[i].segments[0].gradient != NULL;
    return m->units[which].segments[0].gradient ? range : -1;
}

model_range model_range_at(const fsdp_model *m, int index)
{
    int at = model_range_unit(m, index);
    const unit_segment *segment = &m->units[at].segments[0];
    void *written = m->offloaded[at] ? segment->host_copy : segment->copy;
    return (model_range){.unit = m->units[at].layout->name,
                         .parameter = segment->master,
                         .gradient = segment->gradient,
                         .copy = {written == (void *)segment->master ? NULL : written, segment->dtype},
                         .low = segment->low,
                         .first = segment->first,
                         .n = segment->numel,
                         .decay_end = min_i64(max_i64(segment->layout->decay_end - segment->first, 0), segment->numel),
                         .offloaded = m->offloaded[at]};
}

fsdp_status model_before_update(fsdp_model *m, int index)
{
    return comm_wait_sent(&m->units[model_range_unit(m, index)].gather, m->compute);
}

void model_after_update(fsdp_model *m)
{
    for (int i = 0; i < m->layout->n_units; i++) {
        m->units[i].stale = true;
        m->units[i].gradients = GRADIENTS_NONE;
        m->units[i].replicating = false;
    }
    m->micro = 0;
    m->settled = false;
    m->gradient_factor = 0;
    m->step++;
}
