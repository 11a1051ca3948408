/* Convolution by cuDNN: its graphs, which arguments they serve, and their memory. Tensors stay as they lie (N, C, H,
 * W); engines that want another order copy into their workspace. Plans are kept by cudnn_plans.c.
 *
 * A weight gradient in fp32 of 16-bit images has no engine of its own. bf16 and fp16 numbers are tf32 numbers, so the
 * images are copied to fp32 and the tensor cores form the same products, summed and stored in fp32. */
#include "device/cuda/cudnn/conv2d_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

#ifdef CUDA_HAS_CUDNN

#define ENGINE_LIMIT ((int64_t)256 << 20)

enum { UID_X = 1, UID_WEIGHT, UID_Y };

static int64_t x_numel(const conv2d_args *a)
{
    return a->batch * a->in_channels * a->in_h * a->in_w;
}

static int64_t y_numel(const conv2d_args *a)
{
    return a->batch * a->out_channels * a->out_h * a->out_w;
}

static graph_layout contiguous(int64_t n, int64_t channels, int64_t h, int64_t w)
{
    return (graph_layout){{n, channels, h, w}, {channels * h * w, h * w, w, 1}};
}

void conv2d_graph_build(graph_builder *b, const void *shape)
{
    const conv2d_shape *s = shape;
    const conv2d_args *a = &s->sizes;
    const int64_t stride[2] = {a->stride_h, a->stride_w}, padding[2] = {a->padding_h, a->padding_w};
    cudnnDataType_t type = s->dtype == FSDP_BF16  ? CUDNN_DATA_BFLOAT16
                           : s->dtype == FSDP_F16 ? CUDNN_DATA_HALF
                                                  : CUDNN_DATA_FLOAT;
    graph_tensor x = graph_add_tensor(b, UID_X, type, contiguous(a->batch, a->in_channels, a->in_h, a->in_w));
    graph_tensor weight =
        graph_add_tensor(b, UID_WEIGHT, type, contiguous(a->out_channels, a->in_channels, a->kernel_h, a->kernel_w));
    graph_tensor y = graph_add_tensor(b, UID_Y, type, contiguous(a->batch, a->out_channels, a->out_h, a->out_w));
    graph_add_convolution(b, s->kind, stride, padding, x, weight, y, s->add);
}

/* Only what sums plain products in fp32 and in the same order every time; of fp32 numbers, without rounding them first
 * unless tensor cores are asked for. */
graph_choice conv2d_choice(const conv2d_shape *shape)
{
    graph_choice choice = {.workspace_limit = ENGINE_LIMIT,
                           .forbidden = GRAPH_NOTE(FFT) | GRAPH_NOTE(WINOGRAD) | GRAPH_NOTE(WINOGRAD_TILE_4x4) |
                                        GRAPH_NOTE(WINOGRAD_TILE_6x6) | GRAPH_NOTE(WINOGRAD_TILE_13x13) |
                                        GRAPH_NOTE(REDUCED_PRECISION_REDUCTION) | GRAPH_NOTE(NONDETERMINISTIC)};
    if (shape->dtype == FSDP_F32)
        choice.forbidden |= GRAPH_NOTE(DOWN_CONVERT_INPUTS);
    if (shape->dtype == FSDP_F32 && !shape->tensor_cores) {
        choice.forbidden |= GRAPH_NOTE(TENSOR_CORE);
        choice.plain = true;
    }
    return choice;
}

/* The types of the images and of the result; false where cuDNN takes no such mixture. */
static bool find_dtypes(const conv2d_args *a, graph_convolution kind, fsdp_dtype *images, fsdp_dtype *result)
{
    fsdp_dtype second = FSDP_F32;
    switch (kind) {
    case CONVOLUTION_Y:
        *images = a->x.dtype, second = a->weight.dtype, *result = a->y.dtype;
        break;
    case CONVOLUTION_X:
        *images = a->dy.dtype, second = a->weight.dtype, *result = a->dx.dtype;
        break;
    default:
        *images = a->x.dtype, second = a->dy.dtype, *result = a->d_weight.dtype;
        break;
    }
    return *images == second && (*images == *result || (kind == CONVOLUTION_WEIGHT && *result == FSDP_F32));
}

static void make_key(const conv2d_shape *s, char key[PLAN_KEY_CHARS])
{
    static const char *const names[] = {"y", "x", "weight"};
    const conv2d_args *a = &s->sizes;
    snprintf(key, PLAN_KEY_CHARS,
             "%s%s %s%s %lldx%lldx%lldx%lld to %lld by %lldx%lld stride %lld,%lld padding %lld,%lld", names[s->kind],
             s->add ? " added" : "", fsdp_dtype_name(s->dtype), s->tensor_cores ? " tf32" : "", (long long)a->batch,
             (long long)a->in_channels, (long long)a->in_h, (long long)a->in_w, (long long)a->out_channels,
             (long long)a->kernel_h, (long long)a->kernel_w, (long long)a->stride_h, (long long)a->stride_w,
             (long long)a->padding_h, (long long)a->padding_w);
}

fsdp_status conv2d_plan_find(cuda_device *d, const conv2d_args *a, graph_convolution kind, bool add, conv2d_plan *out)
{
    fsdp_dtype images, result;
    memset(out, 0, sizeof *out);
    out->kind = kind;
    if (!d->cudnn || d->libraries.cudnn_version < 90000 || !find_dtypes(a, kind, &images, &result) || x_numel(a) == 0 ||
        y_numel(a) == 0)
        return FSDP_OK;
    bool widened = images != result;
    conv2d_shape shape = {.kind = kind,
                          .sizes = *a,
                          .dtype = result,
                          .add = add,
                          .tensor_cores = result == FSDP_F32 && (widened || d->tf32)};
    char key[PLAN_KEY_CHARS];
    make_key(&shape, key);
    if (widened) {
        out->x_bytes = round_up((size_t)x_numel(a) * sizeof(float), 256);
        out->y_bytes = round_up((size_t)y_numel(a) * sizeof(float), 256);
    }
    plan_request request = {.kind = "convolution",
                            .key = key,
                            .build = conv2d_graph_build,
                            .shape = &shape,
                            .choice = conv2d_choice(&shape)};
    request.choice.workspace_limit -= (int64_t)(out->x_bytes + out->y_bytes);
    if (request.choice.workspace_limit <= 0)
        return FSDP_OK;
    FSDP_TRY(cudnn_plans_find(d, &request, &out->plan));
    out->engine_bytes = cudnn_plan_workspace(out->plan);
    return FSDP_OK;
}

size_t conv2d_plan_workspace(const conv2d_plan *plan)
{
    return plan->plan ? plan->engine_bytes + plan->x_bytes + plan->y_bytes : 0;
}

/* An fp32 copy at `to`. */
static fsdp_status widen(stream *s, buffer from, int64_t n, void *to)
{
    axpby_args cast = {.n = n, .alpha = 1.0f, .a = from, .out = {to, FSDP_F32}};
    return cuda_check(launch_axpby(&s->launch, &cast), "convolution's weight gradient");
}

fsdp_status conv2d_plan_run(stream *s, const conv2d_plan *plan, const conv2d_args *a)
{
    const int64_t uids[] = {UID_X, UID_WEIGHT, UID_Y};
    char *x_copy = (char *)a->workspace + plan->engine_bytes, *y_copy = x_copy + plan->x_bytes;
    void *pointers[] = {a->x.p, a->weight.p, a->y.p};
    if (plan->kind == CONVOLUTION_X)
        pointers[0] = a->dx.p, pointers[2] = a->dy.p;
    if (plan->kind == CONVOLUTION_WEIGHT)
        pointers[1] = a->d_weight.p, pointers[2] = a->dy.p;
    if (plan->x_bytes) {
        FSDP_TRY(widen(s, a->x, x_numel(a), x_copy));
        FSDP_TRY(widen(s, a->dy, y_numel(a), y_copy));
        pointers[0] = x_copy, pointers[2] = y_copy;
    }
    return cudnn_plan_run(s, plan->plan, 3, uids, pointers, a->workspace);
}

#else /* built without cuDNN: the own kernels serve everything */

fsdp_status conv2d_plan_find(cuda_device *d, const conv2d_args *a, graph_convolution kind, bool add, conv2d_plan *out)
{
    (void)d;
    (void)a;
    (void)add;
    memset(out, 0, sizeof *out);
    out->kind = kind;
    return FSDP_OK;
}

size_t conv2d_plan_workspace(const conv2d_plan *plan)
{
    (void)plan;
    return 0;
}

fsdp_status conv2d_plan_run(stream *s, const conv2d_plan *plan, const conv2d_args *a)
{
    (void)s;
    (void)plan;
    (void)a;
    return error_set(FSDP_ERR_STATE, "no convolution plan without cuDNN");
}

#endif
