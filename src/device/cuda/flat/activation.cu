/* Activations alone and gated (SwiGLU and its kin), forward and backward, and rotary embedding in place. */
#include "device/cuda/magnitude.cuh"

#define THREADS 256
#define MEASURING_BLOCKS 1024 /* along the rows, where each ends with a look at one address */

/* Value and slope of an activation at x. */
template <int KIND> static __device__ __forceinline__ float2 activate(float x)
{
    if (KIND == ACTIVATION_RELU)
        return make_float2(x > 0.0f || isnan(x) ? x : 0.0f, x > 0.0f ? 1.0f : 0.0f);
    if (KIND == ACTIVATION_SILU) {
        const float sigmoid = 1.0f / (1.0f + __expf(-x));
        return make_float2(x * sigmoid, sigmoid * (1.0f + x * (1.0f - sigmoid)));
    }
    if (KIND == ACTIVATION_GELU_ERF) {
        const float cdf = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
        return make_float2(x * cdf, cdf + x * 0.39894228040143268f * __expf(-0.5f * x * x));
    }
    const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    const float t = tanhf(inner), slope = 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x);
    return make_float2(0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
}

#define FOR_VECTORS(i, n, V)                                                                                           \
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * V; i < (n);                                    \
         i += gridDim.x * (int64_t)blockDim.x * V)

template <int KIND, int D, int V> __global__ void __launch_bounds__(THREADS) activation_forward(const activation_args a)
{
    FOR_VECTORS(i, a.n, V)
    {
        floats<V> x = load<D, V>(a.x, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] = activate<KIND>(x.v[j]).x;
        store<D, V>(a.y, i, x);
    }
}

template <int KIND, int D, int V>
__global__ void __launch_bounds__(THREADS) activation_backward(const activation_args a)
{
    FOR_VECTORS(i, a.n, V)
    {
        floats<V> x = load<D, V>(a.x, i), dy = load<D, V>(a.dy, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] = activate<KIND>(x.v[j]).y * dy.v[j];
        store_or_add<D, V>(a.dx, i, x, a.add_dx);
    }
}

/* The block index runs along a row first, so that no thread divides 64-bit numbers. */
template <int KIND, int D, int V> __global__ void __launch_bounds__(THREADS) gated_forward(const gated_args a)
{
    const int64_t column = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * V;
    uint32_t largest = 0;
    for (int64_t row = blockIdx.y; row < a.rows && column < a.columns; row += gridDim.y) {
        floats<V> gate = load<D, V>(a.x, row * 2 * a.columns + column);
        floats<V> up = load<D, V>(a.x, (row * 2 + 1) * a.columns + column);
#pragma unroll
        for (int j = 0; j < V; j++)
            gate.v[j] = activate<KIND>(gate.v[j]).x * up.v[j];
        store<D, V>(a.y, row * a.columns + column, gate);
        largest = largest_of<V>(largest, gate);
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, a.y.dtype), (uint32_t *)a.magnitude);
}

template <int KIND, int D, int V> __global__ void __launch_bounds__(THREADS) gated_backward(const gated_args a)
{
    const int64_t column = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * V;
    uint32_t largest = 0;
    for (int64_t row = blockIdx.y; row < a.rows && column < a.columns; row += gridDim.y) {
        const int64_t gate_at = row * 2 * a.columns + column, up_at = gate_at + a.columns;
        floats<V> gate = load<D, V>(a.x, gate_at), up = load<D, V>(a.x, up_at);
        floats<V> dy = load<D, V>(a.dy, row * a.columns + column), d_up;
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float2 f = activate<KIND>(gate.v[j]);
            d_up.v[j] = f.x * dy.v[j];
            gate.v[j] = f.y * up.v[j] * dy.v[j];
        }
        largest = largest_of<V>(largest, store_or_add<D, V>(a.dx, gate_at, gate, a.add_dx));
        largest = largest_of<V>(largest, store_or_add<D, V>(a.dx, up_at, d_up, a.add_dx));
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, a.dx.dtype), (uint32_t *)a.magnitude);
}

/* The four kinds, spelled out once. */
#define FOR_KIND(kind, LAUNCH)                                                                                         \
    switch (kind) {                                                                                                    \
    case ACTIVATION_SILU:                                                                                              \
        LAUNCH(ACTIVATION_SILU);                                                                                       \
        break;                                                                                                         \
    case ACTIVATION_GELU_ERF:                                                                                          \
        LAUNCH(ACTIVATION_GELU_ERF);                                                                                   \
        break;                                                                                                         \
    case ACTIVATION_GELU_TANH:                                                                                         \
        LAUNCH(ACTIVATION_GELU_TANH);                                                                                  \
        break;                                                                                                         \
    case ACTIVATION_RELU:                                                                                              \
        LAUNCH(ACTIVATION_RELU);                                                                                       \
        break;                                                                                                         \
    }

template <int KIND> static void start_activation(const launch *l, const activation_args *a, bool backward)
{
    const bool vectors =
        a->n % 8 == 0 && is_aligned(a->x) && is_aligned(a->y) && is_aligned(a->dy) && is_aligned(a->dx);
    const int dtype =
        backward ? common_dtype(a->x, a->dy, a->dx, no_buffer) : common_dtype(a->x, a->y, no_buffer, no_buffer);
#define CALL(D, V)                                                                                                     \
    do {                                                                                                               \
        const unsigned blocks = flat_blocks(l, launch_ceil(a->n, V), THREADS);                                         \
        if (backward)                                                                                                  \
            activation_backward<KIND, D, V><<<blocks, THREADS, 0, l->stream>>>(*a);                                    \
        else                                                                                                           \
            activation_forward<KIND, D, V><<<blocks, THREADS, 0, l->stream>>>(*a);                                     \
    } while (0)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
}

template <int KIND> static void start_gated(const launch *l, const gated_args *a, bool backward)
{
    const bool vectors =
        a->columns % 8 == 0 && is_aligned(a->x) && is_aligned(a->y) && is_aligned(a->dy) && is_aligned(a->dx);
    const int dtype =
        backward ? common_dtype(a->x, a->dy, a->dx, no_buffer) : common_dtype(a->x, a->y, no_buffer, no_buffer);
#define CALL(D, V)                                                                                                     \
    do {                                                                                                               \
        const int threads = row_threads(launch_ceil(a->columns, V), THREADS);                                          \
        const dim3 blocks((unsigned)launch_ceil(a->columns, (int64_t)threads *V),                                      \
                          (unsigned)launch_min(a->rows, a->magnitude ? MEASURING_BLOCKS : 65535));                     \
        if (backward)                                                                                                  \
            gated_backward<KIND, D, V><<<blocks, threads, 0, l->stream>>>(*a);                                         \
        else                                                                                                           \
            gated_forward<KIND, D, V><<<blocks, threads, 0, l->stream>>>(*a);                                          \
    } while (0)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
}

extern "C" cudaError_t launch_activation_forward(const launch *l, const activation_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
#define LAUNCH(KIND) start_activation<KIND>(l, a, false)
    FOR_KIND(a->kind, LAUNCH)
#undef LAUNCH
    return cudaGetLastError();
}

extern "C" cudaError_t launch_activation_backward(const launch *l, const activation_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
#define LAUNCH(KIND) start_activation<KIND>(l, a, true)
    FOR_KIND(a->kind, LAUNCH)
#undef LAUNCH
    return cudaGetLastError();
}

extern "C" cudaError_t launch_gated_forward(const launch *l, const gated_args *a)
{
    if (a->rows == 0 || a->columns == 0)
        return cudaSuccess;
#define LAUNCH(KIND) start_gated<KIND>(l, a, false)
    FOR_KIND(a->kind, LAUNCH)
#undef LAUNCH
    return cudaGetLastError();
}

extern "C" cudaError_t launch_gated_backward(const launch *l, const gated_args *a)
{
    if (a->rows == 0 || a->columns == 0)
        return cudaSuccess;
#define LAUNCH(KIND) start_gated<KIND>(l, a, true)
    FOR_KIND(a->kind, LAUNCH)
#undef LAUNCH
    return cudaGetLastError();
}

/* A thread turns V pairs (i, i + half) of one head; a block works on one row, whose angles then come from the cache. */
template <int D, int V> __global__ void __launch_bounds__(THREADS) rope(const rope_args a)
{
    uint32_t largest = 0;
    const int half = (int)(a.head_dim / 2), per_head = half / V, n = (int)a.heads * per_head;
    const float sign = a.inverse ? -1.0f : 1.0f;
    const buffer cosines = {(void *)a.cosine, FSDP_F32}, sines = {(void *)a.sine, FSDP_F32};
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t position = a.positions ? a.positions[row] : row % a.length + a.first_position;
        const bool known = !a.positions || (position >= 0 && position < a.n_positions);
        for (int item = threadIdx.x; item < n; item += blockDim.x) {
            const int head = item / per_head, i = (item - head * per_head) * V;
            const int64_t at = row * a.row + head * a.head_dim + i;
            floats<V> x = load<D, V>(a.x, at), y = load<D, V>(a.x, at + half);
            floats<V> cosine = load<FSDP_F32, V>(cosines, known ? position * half + i : 0);
            floats<V> sine = load<FSDP_F32, V>(sines, known ? position * half + i : 0);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float first = x.v[j], second = y.v[j], turn = sign * sine.v[j];
                x.v[j] = known ? first * cosine.v[j] - second * turn : 0.0f;
                y.v[j] = known ? second * cosine.v[j] + first * turn : 0.0f;
            }
            store<D, V>(a.x, at, x);
            store<D, V>(a.x, at + half, y);
            largest = largest_of<V>(largest_of<V>(largest, x), y);
        }
        if (a.magnitude)
            for (int64_t i = a.heads * a.head_dim + threadIdx.x * V; i < a.row; i += blockDim.x * V)
                largest = largest_of<V>(largest, load<D, V>(a.x, row * a.row + i));
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, a.x.dtype), (uint32_t *)a.magnitude);
}

extern "C" cudaError_t launch_rope(const launch *l, const rope_args *a)
{
    const bool turns = a->heads > 0 && a->head_dim >= 2;
    if (a->rows == 0 || (!turns && !a->magnitude))
        return cudaSuccess;
    const bool vectors = a->head_dim % 16 == 0 && a->row % 8 == 0 && is_aligned(a->x) &&
                         (((uintptr_t)a->cosine | (uintptr_t)a->sine) & 15) == 0;
    const unsigned blocks = (unsigned)launch_min(a->rows, a->magnitude ? 2 * MEASURING_BLOCKS : INT32_MAX);
    const int64_t pairs = launch_max(1, a->heads * (a->head_dim / 2)); /* none: what is not turned is measured */
#define CALL(D, V) rope<D, V><<<blocks, row_threads(launch_ceil(pairs, V), THREADS), 0, l->stream>>>(*a)
    DISPATCH((int)a->x.dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}
