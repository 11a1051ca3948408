/* Batch normalisation over (batch, channels, area), one thread per channel. The two sums of each direction are fp64 and
 * leave the kernel, followed by the count, so that a group of ranks can add them before they are applied. */
#include "device/cpu/simd/span.h"

#define CHANNEL_AT(a, sample, channel) (((sample) * (a)->channels + (channel)) * (a)->area)

static double *count_of(const batchnorm_args *a)
{
    return &a->sums[2 * a->channels];
}

static void forward_reduce_channel(const void *context, int64_t channel)
{
    const batchnorm_args *a = context;
    float scratch[SPAN];
    double sum = 0.0, squares = 0.0;
    for (int64_t sample = 0; sample < a->rows; sample++) {
        for (int64_t first = 0; first < a->area; first += SPAN) {
            int64_t n = min_i64(SPAN, a->area - first);
            const float *x = span_read(a->x, CHANNEL_AT(a, sample, channel) + first, n, scratch);
#pragma omp simd reduction(+ : sum, squares)
            for (int64_t i = 0; i < n; i++) {
                sum += (double)x[i];
                squares += (double)x[i] * (double)x[i];
            }
        }
    }
    a->sums[channel] = sum;
    a->sums[a->channels + channel] = squares;
}

SIMD_KERNEL(batchnorm_forward_reduce, batchnorm_args)
{
    parallel_for(cpu_threads_for(s, a->batch * a->channels * a->area), a->channels, 1, forward_reduce_channel, a);
    *count_of(a) = (double)a->rows * (double)a->area;
    return FSDP_OK;
}

/* Mean and reciprocal deviation that this channel is normalised with; moves the running statistics. A replay has both
 * and must not move anything a second time. */
static void channel_statistics(const batchnorm_args *a, int64_t channel)
{
    if (!a->sums)
        return;
    if (a->evaluate) {
        a->mean[channel] = a->running_mean[channel];
        a->rstd[channel] = 1.0f / sqrtf(a->running_var[channel] + a->eps);
        return;
    }
    double count = *count_of(a), mean = a->sums[channel] / count;
    double variance = a->sums[a->channels + channel] / count - mean * mean;
    variance = variance > 0.0 ? variance : 0.0;
    a->mean[channel] = (float)mean;
    a->rstd[channel] = (float)(1.0 / sqrt(variance + (double)a->eps));
    if (a->momentum > 0.0f && a->running_mean && a->running_var) {
        double unbiased = count > 1.0 ? variance * count / (count - 1.0) : variance;
        float move = a->momentum;
        a->running_mean[channel] = (1.0f - move) * a->running_mean[channel] + move * (float)mean;
        a->running_var[channel] = (1.0f - move) * a->running_var[channel] + move * (float)unbiased;
    }
}

static void forward_apply_channel(const void *context, int64_t channel)
{
    const batchnorm_args *a = context;
    float x_scratch[SPAN], scratch[SPAN];
    channel_statistics(a, channel);
    float mean = a->mean[channel], scale = a->rstd[channel] * (a->weight.p ? element_read(a->weight, channel) : 1.0f);
    float shift = a->bias.p ? element_read(a->bias, channel) : 0.0f;
    for (int64_t sample = 0; sample < a->batch; sample++) {
        for (int64_t first = 0; first < a->area; first += SPAN) {
            int64_t at = CHANNEL_AT(a, sample, channel) + first, n = min_i64(SPAN, a->area - first);
            const float *x = span_read(a->x, at, n, x_scratch);
            float *y = span_target(a->y, at, false, scratch);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                y[i] = (x[i] - mean) * scale + shift;
            span_write(a->y, at, n, y, false);
        }
    }
}

SIMD_KERNEL(batchnorm_forward_apply, batchnorm_args)
{
    parallel_for(cpu_threads_for(s, a->batch * a->channels * a->area), a->channels, 1, forward_apply_channel, a);
    return FSDP_OK;
}

static void backward_reduce_channel(const void *context, int64_t channel)
{
    const batchnorm_args *a = context;
    float x_scratch[SPAN], dy_scratch[SPAN];
    float mean = a->mean[channel], rstd = a->rstd[channel];
    double sum = 0.0, dot = 0.0;
    for (int64_t sample = 0; sample < a->rows; sample++) {
        for (int64_t first = 0; first < a->area; first += SPAN) {
            int64_t at = CHANNEL_AT(a, sample, channel) + first, n = min_i64(SPAN, a->area - first);
            const float *x = span_read(a->x, at, n, x_scratch);
            const float *dy = span_read(a->dy, at, n, dy_scratch);
#pragma omp simd reduction(+ : sum, dot)
            for (int64_t i = 0; i < n; i++) {
                sum += (double)dy[i];
                dot += (double)(dy[i] * ((x[i] - mean) * rstd));
            }
        }
    }
    a->sums[channel] = sum;
    a->sums[a->channels + channel] = dot;
}

SIMD_KERNEL(batchnorm_backward_reduce, batchnorm_args)
{
    parallel_for(cpu_threads_for(s, a->batch * a->channels * a->area), a->channels, 1, backward_reduce_channel, a);
    *count_of(a) = (double)a->rows * (double)a->area;
    return FSDP_OK;
}

static void add_to_element(buffer b, int64_t index, float value, bool add)
{
    element_write(b, index, add ? element_read(b, index) + value : value);
}

/* With running statistics (evaluate) mean and deviation are constants, so only the scale remains. */
static void backward_apply_channel(const void *context, int64_t channel)
{
    const batchnorm_args *a = context;
    float x_scratch[SPAN], dy_scratch[SPAN], scratch[SPAN];
    float mean = a->mean[channel], rstd = a->rstd[channel];
    float scale = rstd * (a->weight.p ? element_read(a->weight, channel) : 1.0f);
    float dy_mean = a->evaluate ? 0.0f : (float)(a->sums[channel] / *count_of(a));
    float dot_mean = a->evaluate ? 0.0f : (float)(a->sums[a->channels + channel] / *count_of(a));
    for (int64_t sample = 0; a->dx.p && sample < a->rows; sample++) {
        for (int64_t first = 0; first < a->area; first += SPAN) {
            int64_t at = CHANNEL_AT(a, sample, channel) + first, n = min_i64(SPAN, a->area - first);
            const float *x = span_read(a->x, at, n, x_scratch);
            const float *dy = span_read(a->dy, at, n, dy_scratch);
            float *dx = span_target(a->dx, at, a->add_dx, scratch);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                dx[i] = scale * (dy[i] - dy_mean - (x[i] - mean) * rstd * dot_mean);
            span_write(a->dx, at, n, dx, a->add_dx);
        }
    }
    for (int64_t sample = a->rows; a->dx.p && !a->add_dx && sample < a->batch; sample++)
        memset(element_address(a->dx, CHANNEL_AT(a, sample, channel)), 0,
               (size_t)a->area * fsdp_dtype_size(a->dx.dtype));
    const double *local = a->local_sums ? a->local_sums : a->sums;
    if (a->d_bias.p)
        add_to_element(a->d_bias, channel, (float)local[channel], a->add_bias);
    if (a->d_weight.p)
        add_to_element(a->d_weight, channel, (float)local[a->channels + channel], a->add_weight);
}

SIMD_KERNEL(batchnorm_backward_apply, batchnorm_args)
{
    parallel_for(cpu_threads_for(s, a->batch * a->channels * a->area), a->channels, 1, backward_apply_channel, a);
    return FSDP_OK;
}
