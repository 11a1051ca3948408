/* Shadow steps: what 8 bits cost each layer, from what its operation measured (tensor/ops_fp8_shadow.c), summed over
 * all ranks; and the layers that fall back because of it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sized.h"
#include "shard/model.h"

/* Of one layer, as fp64 numbers that ranks add up. */
enum { OUTPUT, OUTPUT_ERROR, GRADIENT, GRADIENT_ERROR, LOST, OPERANDS = LOST + 6, SUMS = OPERANDS + 3 };

static bool is_checked(const fsdp_parameter *p)
{
    return p->figures && p->fp8 != FSDP_FP8_OFF;
}

/* Elements of the three operands on this rank; 0 where its batch has no 8-bit product with the weight, or none of a
 * gradient. Of a weight that is used several times, figures are those of the use that came last: in forward the last,
 * in backward the first that the loss depends on. */
static void count_operands(const fsdp_tape *t, const fsdp_parameter *p, double out[3])
{
    for (int i = 0; i < t->n_nodes; i++) {
        const node *n = t->nodes[i];
        if (strcmp(n->op->name, "linear_fp8_shadow") != 0 || n->inputs[1]->parameter != p)
            continue;
        out[0] = (double)n->inputs[0]->numel;
        out[1] = (double)n->inputs[1]->numel;
        if (out[2] == 0 && n->outputs[0]->grad)
            out[2] = (double)n->outputs[0]->numel;
    }
}

static void take_sums(const fp8_figures *f, double *out)
{
    out[OUTPUT] = (double)f->output_squares;
    out[OUTPUT_ERROR] = (double)f->output_error;
    out[GRADIENT] = (double)f->gradient_squares;
    out[GRADIENT_ERROR] = (double)f->gradient_error;
    for (int i = 0; i < 6; i++)
        out[LOST + i] = (double)f->lost[i / 2][i % 2];
}

/* Of all layers that are checked, in the order of parameters, over all ranks: these may have batches of different
 * shapes, and must judge alike. */
static fsdp_status collect(fsdp_model *m, const fsdp_tape *t, double *sums, int n)
{
    fp8_figures *host = malloc(m->figures_bytes + 1);
    if (!host)
        return error_set(FSDP_ERR_MEMORY, "fp8 check: out of host memory");
    fsdp_status status = model_fetch(m, host, m->figures, m->figures_bytes);
    for (int i = 0, k = 0; status == FSDP_OK && i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        if (!is_checked(p))
            continue;
        take_sums(&host[p->figures - m->figures], &sums[SUMS * k]);
        count_operands(program_tape(t->program), p, &sums[SUMS * k++ + OPERANDS]);
    }
    free(host);
    FSDP_TRY(status);
    return comm_all_reduce_f64(comm_world(m->world->comm), "fp8 check", m->step, FSDP_REDUCE_SUM, sums, SUMS * n);
}

static double ratio(double error, double whole)
{
    return error == 0 ? 0 : sqrt(error / whole);
}

static double part(double lost, double all)
{
    return lost == 0 ? 0 : lost / all;
}

/* An operand is judged by the product that it is of. Where that product is not finite in param_dtype either, by a bad
 * sample or a loss scale that is too large, the batch says nothing of 8 bits. */
static fsdp_fp8_layer judge(const fsdp_parameter *p, const double *sums, const fsdp_fp8_bounds *bounds)
{
    const bool has_output = isfinite(sums[OUTPUT]), has_gradient = isfinite(sums[GRADIENT]);
    const bool judged[] = {has_output, has_output, has_gradient};
    fsdp_fp8_layer l = {.name = p->name,
                        .output_error = ratio(sums[OUTPUT_ERROR], sums[OUTPUT]),
                        .gradient_error = ratio(sums[GRADIENT_ERROR], sums[GRADIENT])};
    l.falls_back =
        (has_output && !(l.output_error <= bounds->error)) || (has_gradient && !(l.gradient_error <= bounds->error));
    for (int i = 0; i < 3; i++) {
        l.flushed[i] = part(sums[LOST + 2 * i], sums[OPERANDS + i]);
        l.saturated[i] = part(sums[LOST + 2 * i + 1], sums[OPERANDS + i]);
        l.falls_back |= judged[i] && !(l.saturated[i] <= bounds->saturated);
    }
    return l;
}

void model_fp8_fall_back(fsdp_model *m, const char *name)
{
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        if (!name && p->fp8_fell_back) {
            p->fp8_fell_back = false;
            p->fp8 = m->config.fp8;
        } else if (name && strcmp(p->name, name) == 0 && p->fp8 != FSDP_FP8_OFF) {
            p->fp8_fell_back = true;
            p->fp8 = FSDP_FP8_OFF;
        }
    }
}

static fsdp_status check_call(const fsdp_model *m, const fsdp_tape *t, fsdp_loss loss, const fsdp_fp8_bounds *limits)
{
    if (!m->figures)
        return error_set(FSDP_ERR_STATE, "fsdp_fp8_check: set `fp8` and `fp8_check` of the configuration");
    if (!t->shadow)
        return error_set(FSDP_ERR_STATE, "fsdp_fp8_check: record a loss after fsdp_begin_shadow");
    FSDP_TRY(model_check_loss("fsdp_fp8_check", t, loss));
    if (!(limits->error >= 0 && limits->saturated >= 0))
        return error_set(FSDP_ERR_INPUT, "fsdp_fp8_check: bounds are numbers from 0 on, not %g and %g", limits->error,
                         limits->saturated);
    if (m->micro > 0)
        return error_set(FSDP_ERR_STATE,
                         "fsdp_fp8_check in the middle of a step: call it before its first micro-batch");
    return FSDP_OK;
}

fsdp_status fsdp_fp8_check(fsdp_tape *t, fsdp_loss loss, const fsdp_fp8_bounds *bounds,
                           void (*visit)(void *context, const fsdp_fp8_layer *layer), void *context)
{
    fsdp_model *m = t->owner;
    SIZED_READ(fsdp_fp8_bounds, FSDP_FP8_BOUNDS_INIT, limits, bounds);
    FSDP_TRY(fsdp_tape_status(t));
    FSDP_TRY(check_call(m, t, loss, &limits));
    int n = 0;
    for (int i = 0; i < m->contents.n_parameters; i++)
        n += is_checked(m->contents.parameters[i]);
    double *sums = calloc((size_t)n * SUMS + 1, sizeof *sums);
    if (!sums)
        return error_set(FSDP_ERR_MEMORY, "fp8 check: out of host memory");
    fsdp_status status = m->dev->zero(m->compute, m->figures, m->figures_bytes);
    if (status == FSDP_OK)
        status = model_run_shadow(m, t, loss.sum);
    if (status == FSDP_OK)
        status = collect(m, t, sums, n);
    for (int i = 0, k = 0; status == FSDP_OK && i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        if (!is_checked(p))
            continue;
        const double *mine = &sums[SUMS * k++];
        if (mine[OPERANDS] == 0) /* no layer of its own in 8 bits: a table, or a shape that has none */
            continue;
        fsdp_fp8_layer layer = judge(p, mine, &limits);
        if (visit)
            visit(context, &layer);
        if (layer.falls_back) {
            p->fp8_fell_back = true;
            p->fp8 = FSDP_FP8_OFF;
        }
    }
    free(sums);
    return status;
}
