/* Convolution: cuDNN where it has an engine (conv2d_plan.c), products of columns for the rest (conv2d_columns.c), and
 * the bias. Each of the three results finds its own way. */
#include "device/cuda/image/conv2d_columns.h"
#include "device/cuda/cudnn/conv2d_plan.h"

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A missing plan is no failure: the own kernels are there. */
static conv2d_plan find(const device *d, const conv2d_args *a, graph_convolution kind, bool add)
{
    conv2d_plan plan;
    if (conv2d_plan_find((cuda_device *)d, a, kind, add, &plan) != FSDP_OK)
        plan.plan = NULL;
    return plan;
}

/* Of the plans for a result, added or not: which it will be is not known yet. */
static size_t planned_workspace(const device *d, const conv2d_args *a, graph_convolution kind)
{
    conv2d_plan stored = find(d, a, kind, false), added = find(d, a, kind, true);
    return max_size(conv2d_plan_workspace(&stored), conv2d_plan_workspace(&added));
}

size_t cuda_conv2d_forward_workspace(const device *d, const conv2d_args *a)
{
    return max_size(gpu_conv2d_forward_workspace(d, a), planned_workspace(d, a, CONVOLUTION_Y));
}

size_t cuda_conv2d_backward_workspace(const device *d, const conv2d_args *a)
{
    size_t planned = max_size(planned_workspace(d, a, CONVOLUTION_X), planned_workspace(d, a, CONVOLUTION_WEIGHT));
    return max_size(gpu_conv2d_backward_workspace(d, a), planned);
}

/* cuDNN reads 16 bytes at a time. */
static bool is_aligned(const void *x, const void *weight, const void *y)
{
    return ((uintptr_t)x | (uintptr_t)weight | (uintptr_t)y) % 16 == 0;
}

static bool is_empty(const conv2d_args *a)
{
    return a->batch == 0 || a->out_h * a->out_w == 0 || a->out_channels == 0;
}

fsdp_status cuda_conv2d_forward(stream *s, const conv2d_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    if (is_empty(a))
        return FSDP_OK;
    if (a->bias.p) /* the convolution then adds to it, rounding once */
        FSDP_TRY(cuda_check(launch_channel_bias(&s->launch, a), "convolution's bias"));
    if (is_aligned(a->x.p, a->weight.p, a->y.p)) {
        conv2d_plan plan = find(&s->device->base, a, CONVOLUTION_Y, a->bias.p != NULL);
        if (plan.plan)
            return conv2d_plan_run(s, &plan, a);
    }
    return conv2d_columns_forward(s, a);
}

fsdp_status cuda_conv2d_backward(stream *s, const conv2d_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    if (is_empty(a))
        return FSDP_OK;
    bool weight = a->d_weight.p, input = a->dx.p;
    if (weight && is_aligned(a->x.p, a->d_weight.p, a->dy.p)) {
        conv2d_plan plan = find(&s->device->base, a, CONVOLUTION_WEIGHT, a->add_weight);
        if (plan.plan) {
            FSDP_TRY(conv2d_plan_run(s, &plan, a));
            weight = false;
        }
    }
    if (input && is_aligned(a->dx.p, a->weight.p, a->dy.p)) {
        conv2d_plan plan = find(&s->device->base, a, CONVOLUTION_X, a->add_dx);
        if (plan.plan) {
            FSDP_TRY(conv2d_plan_run(s, &plan, a));
            input = false;
        }
    }
    if (weight || input)
        FSDP_TRY(conv2d_columns_backward(s, a, weight, input));
    if (a->d_bias.p)
        FSDP_TRY(cuda_check(launch_channel_bias_backward(&s->launch, a), "convolution's bias gradient"));
    return FSDP_OK;
}

const char *cuda_conv2d_engine(device *d, const conv2d_args *a, bool backward)
{
    bool all = backward
                   ? find(d, a, CONVOLUTION_X, a->add_dx).plan && find(d, a, CONVOLUTION_WEIGHT, a->add_weight).plan
                   : find(d, a, CONVOLUTION_Y, a->bias.p != NULL).plan != NULL;
    return all ? "cudnn" : "own";
}
