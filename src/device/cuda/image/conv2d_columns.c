/* Convolution as products: images are laid out as columns (image.cu), as many at a time as the workspace holds, and
 * cuBLASLt does the rest. Weight gradients of the images are summed in order. For what conv2d_plan.c does not serve. */
#include "device/cuda/image/conv2d_columns.h"

#include "base/checked.h"
#include "base/error.h"

static buffer at(buffer b, int64_t elements)
{
    b.p = (char *)b.p + elements * (int64_t)fsdp_dtype_size(b.dtype);
    return b;
}

fsdp_status conv2d_columns_forward(stream *s, const conv2d_args *a)
{
    gpu_conv_sizes size = gpu_conv_measure(&s->device->base, a, false);
    for (int64_t first = 0; first < a->batch; first += size.images) {
        int64_t images = min_i64(size.images, a->batch - first);
        FSDP_TRY(cuda_check(launch_image_to_columns(&s->launch, a, first, images, a->workspace), "convolution"));
        buffer y = at(a->y, first * a->out_channels * size.area);
        gemm_args product = {
            .m = a->out_channels,
            .n = size.area,
            .k = size.depth,
            .alpha = 1.0f,
            .beta = a->bias.p ? 1.0f : 0.0f,
            .a = a->weight,
            .b = {a->workspace, a->x.dtype},
            .c = y,
            .d = y,
            .lda = size.depth,
            .ldb = size.area,
            .ldc = size.area,
            .ldd = size.area,
            .batch = images,
            .stride_b = size.depth * size.area,
            .stride_c = a->out_channels * size.area,
            .stride_d = a->out_channels * size.area,
        };
        FSDP_TRY(cuda_gemm(s, &product));
    }
    return FSDP_OK;
}

/* d_weight of the images, each into its own slot of `slots`; slot 0 carries the sum of the images before. */
static fsdp_status weight_gradient(stream *s, const conv2d_args *a, const gpu_conv_sizes *size, int64_t first,
                                   int64_t images, float *slots)
{
    FSDP_TRY(cuda_check(launch_image_to_columns(&s->launch, a, first, images, a->workspace), "convolution's gradient"));
    buffer slot = {slots + size->weight, FSDP_F32};
    gemm_args product = {
        .transpose_b = true,
        .m = a->out_channels,
        .n = size->depth,
        .k = size->area,
        .alpha = 1.0f,
        .a = at(a->dy, first * a->out_channels * size->area),
        .b = {a->workspace, a->x.dtype},
        .c = slot,
        .d = slot,
        .lda = size->area,
        .ldb = size->area,
        .ldc = size->depth,
        .ldd = size->depth,
        .batch = images,
        .stride_a = a->out_channels * size->area,
        .stride_b = size->depth * size->area,
        .stride_c = size->weight,
        .stride_d = size->weight,
    };
    FSDP_TRY(cuda_gemm(s, &product));
    bool last = first + images == a->batch, begun = first > 0;
    buffer out = last ? a->d_weight : (buffer){slots, FSDP_F32};
    return cuda_check(launch_sum_partials(&s->launch, begun ? slots : slots + size->weight, images + (begun ? 1 : 0),
                                          size->weight, out, last && a->add_weight),
                      "convolution's weight gradient");
}

static fsdp_status input_gradient(stream *s, const conv2d_args *a, const gpu_conv_sizes *size, int64_t first,
                                  int64_t images)
{
    buffer columns = {a->workspace, FSDP_F32};
    gemm_args product = {
        .transpose_a = true,
        .m = size->depth,
        .n = size->area,
        .k = a->out_channels,
        .alpha = 1.0f,
        .a = a->weight,
        .b = at(a->dy, first * a->out_channels * size->area),
        .c = columns,
        .d = columns,
        .lda = size->depth,
        .ldb = size->area,
        .ldc = size->area,
        .ldd = size->area,
        .batch = images,
        .stride_b = a->out_channels * size->area,
        .stride_c = size->depth * size->area,
        .stride_d = size->depth * size->area,
    };
    FSDP_TRY(cuda_gemm(s, &product));
    return cuda_check(launch_columns_to_image(&s->launch, a, first, images, a->workspace),
                      "convolution's input gradient");
}

fsdp_status conv2d_columns_backward(stream *s, const conv2d_args *a, bool weight, bool input)
{
    gpu_conv_sizes size = gpu_conv_measure(&s->device->base, a, true);
    float *slots = (float *)((char *)a->workspace + size.columns_bytes);
    for (int64_t first = 0; first < a->batch; first += size.images) {
        int64_t images = min_i64(size.images, a->batch - first);
        if (weight)
            FSDP_TRY(weight_gradient(s, a, &size, first, images, slots));
        if (input)
            FSDP_TRY(input_gradient(s, a, &size, first, images));
    }
    return FSDP_OK;
}
