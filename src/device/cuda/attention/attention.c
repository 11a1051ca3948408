/* Attention: cuDNN where it has an engine, the own kernels for the rest (biases, masks, dropout, rows of several
 * documents, fp32, odd rows). Both keep the same statistics (lse), so a forward by one may be followed by a backward by
 * the other. */
#include "device/cuda/cudnn/attention_plan.h"

#include "base/error.h"

#define WIDEST_HEAD 256

static fsdp_status check_arguments(const attention_args *a)
{
    if (a->head_dim < 1 || a->head_dim > WIDEST_HEAD)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "attention with a head dimension of %lld; at most %d is supported on a GPU",
                         (long long)a->head_dim, WIDEST_HEAD);
    if (a->kv_heads < 1 || a->q_heads % a->kv_heads != 0)
        return error_set(FSDP_ERR_INPUT,
                         "attention with %lld query heads over %lld key heads: the first must be a multiple",
                         (long long)a->q_heads, (long long)a->kv_heads);
    if (a->d_bias && attention_bias_form(a) == BIAS_OTHER)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "attention bias with strides %lld (query) and %lld (key): no deterministic gradient for it",
                         (long long)a->bias_query, (long long)a->bias_key);
    return FSDP_OK;
}

/* cuDNN reads 16 bytes at a time. */
static bool is_aligned(const attention_args *a)
{
    uintptr_t all = (uintptr_t)a->q.p | (uintptr_t)a->k.p | (uintptr_t)a->v.p | (uintptr_t)a->out.p |
                    (uintptr_t)a->lse | (uintptr_t)a->d_out.p | (uintptr_t)a->d_q.p | (uintptr_t)a->d_k.p |
                    (uintptr_t)a->d_v.p;
    return all % 16 == 0;
}

/* The same as an engine sees it: all gradients wanted. */
static bool wants_all(const attention_args *a)
{
    return a->d_q.p && a->d_k.p && a->d_v.p;
}

/* A missing plan is no failure: the own kernels are there. */
static attention_plan find(const device *d, const attention_args *a, bool backward)
{
    attention_plan plan = {0};
    if (a->dropout > 0) /* cuDNN would draw other random numbers than the other devices */
        return plan;
    /* cuDNN takes documents only as ragged sequences, each with offsets and a length of its own in a batch of fixed
     * size: how many a batch holds would be part of its plan. The own kernels read where documents start from device
     * memory, so that one recorded graph serves every batch, and pass over the tiles in front. */
    if (a->starts)
        return plan;
    if (attention_plan_find((cuda_device *)d, a, backward, &plan) != FSDP_OK)
        plan.plan = NULL;
    return plan;
}

size_t cuda_attention_forward_workspace(const device *d, const attention_args *a)
{
    attention_plan plan = find(d, a, false);
    return attention_plan_workspace(&plan);
}

size_t cuda_attention_backward_workspace(const device *d, const attention_args *a)
{
    attention_plan plan = find(d, a, true);
    size_t own = gpu_attention_backward_workspace(d, a), planned = attention_plan_workspace(&plan);
    return own > planned ? own : planned;
}

fsdp_status cuda_attention_forward(stream *s, const attention_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    FSDP_TRY(check_arguments(a));
    if (is_aligned(a)) {
        attention_plan plan = find(&s->device->base, a, false);
        if (plan.plan)
            return attention_plan_run(s, &plan, a);
    }
    return cuda_check(launch_attention_forward(&s->launch, a), "attention");
}

fsdp_status cuda_attention_backward(stream *s, const attention_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    FSDP_TRY(check_arguments(a));
    if (is_aligned(a) && wants_all(a)) {
        attention_plan plan = find(&s->device->base, a, true);
        if (plan.plan)
            return attention_plan_run(s, &plan, a);
    }
    return cuda_check(launch_attention_backward(&s->launch, a), "attention's gradient");
}

const char *cuda_attention_engine(device *d, const attention_args *a, bool backward)
{
    return find(d, a, backward).plan ? "cudnn" : "own";
}
