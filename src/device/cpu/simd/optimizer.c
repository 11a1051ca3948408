/* The optimizer step on a flat fp32 range, in one pass: gradient in; parameter, moments and the low-precision copy out;
 * and what decides how that step scales its gradients. */
#include "device/cpu/simd/span.h"

/* What a step does, with everything that does not depend on the element worked out beforehand. */
typedef struct update {
    const optimizer_args *args;
    optimizer_kind kind;
    float lr, beta1, beta2, eps, momentum, gradient_scale;
    float keep;       /* AdamW: factor on the parameter */
    float l2;         /* Adam, SGD: share of the parameter added to the gradient */
    float step_size;  /* lr / bias_correction1 */
    float root_scale; /* 1 / sqrt(bias_correction2) */
    bool first;
} update;

static update update_prepare(const optimizer_args *a)
{
    const optimizer_numbers *n = a->numbers;
    float decay = a->decay ? n->weight_decay : 0.0f;
    bool adamw = a->kind == OPTIMIZER_ADAMW;
    return (update){
        .args = a,
        .kind = a->kind,
        .lr = n->lr,
        .beta1 = n->beta1,
        .beta2 = n->beta2,
        .eps = n->eps,
        .momentum = n->momentum,
        .gradient_scale = n->gradient_scale,
        .keep = adamw ? 1.0f - n->lr * decay : 1.0f,
        .l2 = adamw ? 0.0f : decay,
        .step_size = a->kind == OPTIMIZER_SGD ? n->lr : n->lr / n->bias_correction1,
        .root_scale = a->kind == OPTIMIZER_SGD ? 1.0f : 1.0f / sqrtf(n->bias_correction2),
        .first = n->bias_correction1 == 1.0f,
    };
}

static void adam_span(const update *u, int64_t n, float *restrict parameter, const float *restrict gradient,
                      float *restrict moment1, float *restrict moment2)
{
    float beta1 = u->beta1, beta2 = u->beta2, rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    float scale = u->gradient_scale, keep = u->keep, l2 = u->l2, step = u->step_size, root = u->root_scale,
          eps = u->eps;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float p = parameter[i];
        float g = simd_fma(l2, p, gradient[i] * scale);
        float m = simd_fma(beta1, moment1[i], rest1 * g);
        float v = simd_fma(beta2, moment2[i], rest2 * g * g);
        moment1[i] = m;
        moment2[i] = v;
        parameter[i] = p * keep - step * (m / (sqrtf(v) * root + eps));
    }
}

static void sgd_span(const update *u, int64_t n, float *restrict parameter, const float *restrict gradient,
                     float *restrict moment)
{
    float scale = u->gradient_scale, l2 = u->l2, lr = u->lr, momentum = u->first ? 0.0f : u->momentum;
    if (u->momentum == 0.0f || !moment) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            parameter[i] -= lr * simd_fma(l2, parameter[i], gradient[i] * scale);
    } else {
        bool first = u->first;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = simd_fma(l2, parameter[i], gradient[i] * scale);
            float m = first ? g : simd_fma(momentum, moment[i], g);
            moment[i] = m;
            parameter[i] -= lr * m;
        }
    }
}

static void update_span(const void *context, int64_t first)
{
    const update *u = context;
    const optimizer_args *a = u->args;
    int64_t n = min_i64(SPAN, a->n - first);
    float *moment1 = a->moment1 ? a->moment1 + first : NULL;
    if (u->kind == OPTIMIZER_SGD)
        sgd_span(u, n, a->parameter + first, a->gradient + first, moment1);
    else
        adam_span(u, n, a->parameter + first, a->gradient + first, moment1, a->moment2 + first);
    if (a->copy.p)
        span_write(a->copy, first, n, a->parameter + first, false);
}

SIMD_KERNEL(optimizer, optimizer_args)
{
    if (a->numbers->skip)
        return FSDP_OK;
    update u = update_prepare(a);
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, update_span, &u);
    return FSDP_OK;
}

SIMD_KERNEL(loss_total, loss_total_args)
{
    (void)s;
    a->totals[0] = (a->add ? a->totals[0] : 0.0) + (double)*a->loss_sum;
    a->totals[1] = (a->add ? a->totals[1] : 0.0) + (double)*a->count;
    return FSDP_OK;
}

SIMD_KERNEL(clip, clip_args)
{
    (void)s;
    double count = a->totals[2], factor = a->unscale / count, norm = sqrt(a->totals[0]) * factor;
    bool skip = !isfinite(norm) || count == 0.0;
    double limit = (double)a->max_norm, clipped = limit > 0.0 ? limit / (norm + 1e-6) : 1.0;
    a->numbers->gradient_scale = (float)(factor * (clipped < 1.0 ? clipped : 1.0));
    a->numbers->skip = skip;
    a->report[0] = (float)norm;
    a->report[1] = (float)(a->totals[1] / count);
    a->report[2] = (float)count;
    a->report[3] = skip ? 1.0f : 0.0f;
    return FSDP_OK;
}
