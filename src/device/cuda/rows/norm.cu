/* RMS and layer normalisation over rows of any width and mixture of types, forward and backward. One block works on one
 * row at a time; gradients of weight and bias are summed per row chunk in registers and then over the chunks in order,
 * so they have the same bits every time. RMS normalisation of the usual rows is in rmsnorm.cu. */
#include "device/cuda/magnitude.cuh"

/* `shift` plus the weights of V columns. */
template <int V>
static __device__ __forceinline__ floats<V> load_weight(const layernorm_args &a, int64_t column, float shift)
{
    floats<V> weight = load<DYNAMIC, V>(a.weight, column);
#pragma unroll
    for (int j = 0; j < V; j++)
        weight.v[j] += shift;
    return weight;
}

/* Both norms in the shape of the larger one; rms: no mean, no bias. Only rms has a shift. */
template <bool LAYER, int D, int V> __global__ void norm_forward(const layernorm_args a, float shift)
{
    __shared__ float shared[128];
    const int64_t row = blockIdx.x, n = a.columns / V, base = row * a.columns;
    float sum = 0, squares = 0;
    uint32_t largest = 0;
    floats<V> first;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        floats<V> x = load<D, V>(a.x, base + i * V);
        if (i == threadIdx.x)
            first = x;
#pragma unroll
        for (int j = 0; j < V; j++) {
            sum += x.v[j];
            squares += x.v[j] * x.v[j];
        }
    }
    float2 total = block_sum2(sum, squares, shared);
    float mean = 0;
    if (LAYER) { /* the variance around the mean in a second pass: x^2 alone would cancel */
        mean = total.x / (float)a.columns;
        squares = 0;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
            floats<V> x = i == threadIdx.x ? first : load<D, V>(a.x, base + i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                squares += (x.v[j] - mean) * (x.v[j] - mean);
        }
        total = block_sum2(0, squares, shared + 64);
    }
    const float rstd = 1.0f / sqrtf(total.y / (float)a.columns + a.eps);
    if (threadIdx.x == 0) {
        a.rstd[row] = rstd;
        if (LAYER)
            a.mean[row] = mean;
    }
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        floats<V> x = i == threadIdx.x ? first : load<D, V>(a.x, base + i * V);
        floats<V> weight = load_weight<V>(a, i * V, shift);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] = (x.v[j] - mean) * rstd * weight.v[j];
        if (LAYER && a.bias.p) {
            floats<V> bias = load<DYNAMIC, V>(a.bias, i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                x.v[j] += bias.v[j];
        }
        store<D, V>(a.y, base + i * V, x);
        largest = largest_of<V>(largest, x);
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, a.y.dtype), (uint32_t *)a.magnitude);
}

/* dx of one row, given the row's two means over columns of w*dy and w*dy*xhat. */
template <bool LAYER, int V>
static __device__ __forceinline__ floats<V> row_gradient(const floats<V> &x, const floats<V> &dy,
                                                         const floats<V> &weight, float mean, float rstd, float mean_dy,
                                                         float mean_dy_xhat)
{
    floats<V> out;
#pragma unroll
    for (int j = 0; j < V; j++) {
        float xhat = (x.v[j] - mean) * rstd;
        float scaled = weight.v[j] * dy.v[j];
        out.v[j] = rstd * (scaled - (LAYER ? mean_dy : 0.0f) - xhat * mean_dy_xhat);
    }
    return out;
}

/* Rows that fit the block in N vectors a thread: each block takes `chunk` rows, the next row's loads under way while
 * this one is reduced, and keeps its part of the weight gradients in registers. */
template <bool LAYER, int D, int V, int N>
__global__ void __launch_bounds__(512) norm_backward_chunk(const layernorm_args a, float shift, int64_t chunk)
{
    __shared__ float shared[128];
    const int64_t n = a.columns / V;
    const int64_t first = blockIdx.x * chunk, last = min(first + chunk, a.rows);
    uint32_t largest = 0;
    floats<V> weight[N], x[N], dy[N], d_weight[N], d_bias[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int64_t i = threadIdx.x + k * (int64_t)blockDim.x;
        const bool inside = i < n;
#pragma unroll
        for (int j = 0; j < V; j++)
            weight[k].v[j] = x[k].v[j] = dy[k].v[j] = d_weight[k].v[j] = d_bias[k].v[j] = 0;
        if (inside) {
            weight[k] = load_weight<V>(a, i * V, shift);
            x[k] = load<D, V>(a.x, first * a.columns + i * V);
            dy[k] = load<D, V>(a.dy, first * a.columns + i * V);
        }
    }
    for (int64_t row = first; row < last; row++) {
        const float rstd = a.rstd[row], mean = LAYER ? a.mean[row] : 0.0f;
        float sum_dy = 0, sum_dy_xhat = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
#pragma unroll
            for (int j = 0; j < V; j++) {
                float xhat = (x[k].v[j] - mean) * rstd, scaled = weight[k].v[j] * dy[k].v[j];
                sum_dy += scaled;
                sum_dy_xhat += scaled * xhat;
                d_weight[k].v[j] += dy[k].v[j] * xhat;
                if (LAYER)
                    d_bias[k].v[j] += dy[k].v[j];
            }
        floats<V> next_x[N], next_dy[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int64_t i = threadIdx.x + k * (int64_t)blockDim.x;
            next_x[k] = x[k];
            next_dy[k] = dy[k];
            if (i < n && row + 1 < last) {
                next_x[k] = load<D, V>(a.x, (row + 1) * a.columns + i * V);
                next_dy[k] = load<D, V>(a.dy, (row + 1) * a.columns + i * V);
            }
        }
        /* Two halves of shared memory in turn: a slow warp may still read the other one. */
        float2 total = block_sum2(sum_dy, sum_dy_xhat, shared + 64 * (int)(row & 1));
        total.x /= (float)a.columns;
        total.y /= (float)a.columns;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int64_t i = threadIdx.x + k * (int64_t)blockDim.x;
            if (i < n && a.dx.p) {
                const floats<V> dx = row_gradient<LAYER, V>(x[k], dy[k], weight[k], mean, rstd, total.x, total.y);
                largest = largest_of<V>(largest, store_or_add<D, V>(a.dx, row * a.columns + i * V, dx, a.add_dx));
            }
            x[k] = next_x[k];
            dy[k] = next_dy[k];
        }
    }
    const buffer partial = {a.workspace, FSDP_F32};
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int64_t i = threadIdx.x + k * (int64_t)blockDim.x;
        if (i >= n)
            continue;
        if (a.d_weight.p)
            store<FSDP_F32, V>(partial, blockIdx.x * a.columns + i * V, d_weight[k]);
        if (LAYER && a.d_bias.p)
            store<FSDP_F32, V>(partial, (gridDim.x + blockIdx.x) * a.columns + i * V, d_bias[k]);
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, a.dx.dtype), (uint32_t *)a.magnitude);
}

/* Any width: dx alone, the row read twice. */
template <bool LAYER, int D, int V> __global__ void norm_backward_row(const layernorm_args a, float shift)
{
    __shared__ float shared[64];
    const int64_t row = blockIdx.x, n = a.columns / V, base = row * a.columns;
    const float rstd = a.rstd[row], mean = LAYER ? a.mean[row] : 0.0f;
    float sum_dy = 0, sum_dy_xhat = 0;
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        floats<V> x = load<D, V>(a.x, base + i * V), dy = load<D, V>(a.dy, base + i * V);
        floats<V> weight = load_weight<V>(a, i * V, shift);
#pragma unroll
        for (int j = 0; j < V; j++) {
            sum_dy += weight.v[j] * dy.v[j];
            sum_dy_xhat += weight.v[j] * dy.v[j] * (x.v[j] - mean) * rstd;
        }
    }
    float2 total = block_sum2(sum_dy, sum_dy_xhat, shared);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        floats<V> x = load<D, V>(a.x, base + i * V), dy = load<D, V>(a.dy, base + i * V);
        floats<V> weight = load_weight<V>(a, i * V, shift);
        const floats<V> dx =
            row_gradient<LAYER, V>(x, dy, weight, mean, rstd, total.x / (float)a.columns, total.y / (float)a.columns);
        largest = largest_of<V>(largest, store_or_add<D, V>(a.dx, base + i * V, dx, a.add_dx));
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, a.dx.dtype), (uint32_t *)a.magnitude);
}

/* Any width: the weight gradients of one row chunk, a thread per column. Runs before dx may overwrite dy. */
template <bool LAYER> __global__ void norm_backward_weight(const layernorm_args a, int64_t chunk)
{
    const int64_t column = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (column >= a.columns)
        return;
    const int64_t first = blockIdx.y * chunk, last = min(first + chunk, a.rows);
    float d_weight = 0, d_bias = 0;
    for (int64_t row = first; row < last; row++) {
        const float dy = load_one(a.dy.p, a.dy.dtype, row * a.columns + column);
        const float x = load_one(a.x.p, a.x.dtype, row * a.columns + column);
        d_weight += dy * (x - (LAYER ? a.mean[row] : 0.0f)) * a.rstd[row];
        d_bias += dy;
    }
    float *partial = (float *)a.workspace;
    if (a.d_weight.p)
        partial[blockIdx.y * a.columns + column] = d_weight;
    if (LAYER && a.d_bias.p)
        partial[(gridDim.y + blockIdx.y) * a.columns + column] = d_bias;
}

static bool rows_are_vectors(const layernorm_args *a)
{
    return a->columns % 8 == 0 && is_aligned(a->x) && is_aligned(a->weight) && is_aligned(a->bias) &&
           is_aligned(a->y) && is_aligned(a->dy) && is_aligned(a->dx);
}

template <bool LAYER> static cudaError_t forward(const launch *l, const layernorm_args *a, float shift)
{
    if (a->rows == 0 || a->columns == 0)
        return cudaSuccess;
    const int dtype = common_dtype(a->x, a->y, no_buffer, no_buffer);
    const bool vectors = rows_are_vectors(a);
#define CALL(D, V)                                                                                                     \
    norm_forward<LAYER, D, V><<<(unsigned)a->rows, row_threads(a->columns / V, 1024), 0, l->stream>>>(*a, shift)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}

template <bool LAYER> static cudaError_t backward(const launch *l, const layernorm_args *a, float shift)
{
    if (a->rows == 0 || a->columns == 0)
        return cudaSuccess;
    const int dtype = common_dtype(a->x, a->dy, a->dx, no_buffer);
    const bool vectors = rows_are_vectors(a);
    const int64_t chunk = launch_ceil(a->rows, partial_rows(l->n_multiprocessors, a->rows));
    const int64_t n_partials = launch_ceil(a->rows, chunk);
    const unsigned blocks = (unsigned)n_partials;
    if (vectors && a->columns <= 8 * 512) {
        const int threads = row_threads(a->columns / 8, 512);
#define CALL(D, V) norm_backward_chunk<LAYER, D, V, 1><<<blocks, threads, 0, l->stream>>>(*a, shift, chunk)
        DISPATCH(dtype, true, CALL);
#undef CALL
    } else if (vectors && a->columns <= 8 * 1024) {
        const int threads = row_threads(launch_ceil(a->columns / 8, 2), 512);
#define CALL(D, V) norm_backward_chunk<LAYER, D, V, 2><<<blocks, threads, 0, l->stream>>>(*a, shift, chunk)
        DISPATCH(dtype, true, CALL);
#undef CALL
    } else {
        if (a->d_weight.p || a->d_bias.p)
            norm_backward_weight<LAYER>
                <<<dim3((unsigned)launch_ceil(a->columns, 128), blocks), 128, 0, l->stream>>>(*a, chunk);
        if (a->dx.p) {
#define CALL(D, V)                                                                                                     \
    norm_backward_row<LAYER, D, V><<<(unsigned)a->rows, row_threads(a->columns / V, 1024), 0, l->stream>>>(*a, shift)
            DISPATCH(dtype, vectors, CALL);
#undef CALL
        }
    }
    cudaError_t error = cudaGetLastError();
    float *partial = (float *)a->workspace;
    if (error == cudaSuccess && a->d_weight.p)
        error = launch_sum_partials(l, partial, n_partials, a->columns, a->d_weight, a->add_weight);
    if (error == cudaSuccess && LAYER && a->d_bias.p)
        error =
            launch_sum_partials(l, partial + n_partials * a->columns, n_partials, a->columns, a->d_bias, a->add_bias);
    return error;
}

static layernorm_args from_rms(const rmsnorm_args *a)
{
    layernorm_args out = {};
    out.rows = a->rows;
    out.columns = a->columns;
    out.eps = a->eps;
    out.x = a->x;
    out.weight = a->weight;
    out.y = a->y;
    out.rstd = a->rstd;
    out.dy = a->dy;
    out.dx = a->dx;
    out.d_weight = a->d_weight;
    out.add_dx = a->add_dx;
    out.add_weight = a->add_weight;
    out.magnitude = a->magnitude;
    out.workspace = a->workspace;
    return out;
}

extern "C" cudaError_t launch_rmsnorm_any_forward(const launch *l, const rmsnorm_args *a)
{
    const layernorm_args as_layer = from_rms(a);
    return forward<false>(l, &as_layer, a->shift);
}

extern "C" cudaError_t launch_rmsnorm_any_backward(const launch *l, const rmsnorm_args *a)
{
    const layernorm_args as_layer = from_rms(a);
    return backward<false>(l, &as_layer, a->shift);
}

extern "C" cudaError_t launch_layernorm_forward(const launch *l, const layernorm_args *a)
{
    return forward<true>(l, a, 0);
}

extern "C" cudaError_t launch_layernorm_backward(const launch *l, const layernorm_args *a)
{
    return backward<true>(l, a, 0);
}
