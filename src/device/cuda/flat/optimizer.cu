/* AdamW, Adam, SGD and the steps of Muon and Adafactor over a flat range in one pass: 16 bytes a thread and array,
 * hyperparameters from device memory so that a recorded graph sees each step's, and the low-precision copy written on
 * the way out. */
#include "device/cuda/magnitude.cuh"
#include "device/halves.h"
#include "device/stochastic.h"

#define THREADS 256

/* What a step does, worked out as simd/optimizer.c does it: the same operations, rounded one by one where that file
 * rounds, give the same bits in device and in host memory. So it does not matter where a range is updated. */
struct step {
    float lr, beta1, beta2, rest1, rest2, eps, momentum, scale;
    float keep;         /* AdamW, Muon, Adafactor: factor on the parameter */
    float l2;           /* Adam, SGD: share of the parameter added to the gradient */
    float size;         /* what a direction, an update or a quotient of moments is multiplied by */
    float inverse_root; /* 1 / sqrt(bias_correction2) */
    bool first;
};

template <int KIND> static __device__ __forceinline__ step read_step(const optimizer_args &a)
{
    const optimizer_scalars *n = a.scalars;
    const bool decays = KIND == FSDP_ADAMW || KIND == FSDP_MUON || KIND == FSDP_ADAFACTOR;
    const float decay = a.grouped ? a.weight_decay : a.decay ? n->weight_decay : 0.0f;
    step s;
    s.lr = __fmul_rn(a.grouped ? __fmul_rn(n->lr, a.lr_factor) : n->lr, a.rate ? a.rate[0] : 1.0f);
    s.beta1 = n->beta1;
    s.beta2 = n->beta2;
    s.rest1 = 1.0f - n->beta1;
    s.rest2 = 1.0f - n->beta2;
    s.eps = n->eps;
    s.momentum = n->momentum;
    s.scale = n->gradient_scale;
    s.keep = decays ? __fsub_rn(1.0f, __fmul_rn(s.lr, decay)) : 1.0f;
    s.l2 = decays ? 0.0f : decay;
    if (KIND == FSDP_MUON)
        s.size = __fmul_rn(s.lr, a.direction_scale);
    else if (KIND == FSDP_ADAFACTOR)
        s.size = __fmul_rn(s.lr, a.rate[1]);
    else
        s.size = KIND == FSDP_SGD ? s.lr : __fdiv_rn(s.lr, n->bias_correction1);
    s.inverse_root = __fdiv_rn(1.0f, __fsqrt_rn(n->bias_correction2));
    s.first = n->bias_correction1 == 1.0f;
    return s;
}

template <int KIND>
static __device__ __forceinline__ void update(const step &s, float &parameter, float gradient, float &moment1,
                                              float &moment2)
{
    if (KIND == FSDP_MUON || KIND == FSDP_ADAFACTOR) {
        parameter = __fsub_rn(__fmul_rn(parameter, s.keep), __fmul_rn(s.size, gradient));
        return;
    }
    const float g = __fmaf_rn(s.l2, parameter, __fmul_rn(gradient, s.scale));
    if (KIND == FSDP_SGD) {
        if (s.momentum != 0.0f)
            moment1 = s.first ? g : __fmaf_rn(s.momentum, moment1, g);
        parameter = __fsub_rn(parameter, __fmul_rn(s.size, s.momentum != 0.0f ? moment1 : g));
        return;
    }
    moment1 = __fmaf_rn(s.beta1, moment1, __fmul_rn(s.rest1, g));
    moment2 = __fmaf_rn(s.beta2, moment2, __fmul_rn(__fmul_rn(s.rest2, g), g));
    const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(moment2), s.inverse_root), s.eps);
    parameter = __fsub_rn(__fmul_rn(parameter, s.keep), __fmul_rn(s.size, __fdiv_rn(moment1, root)));
}

static __device__ __forceinline__ float join_halves(uint32_t high, uint32_t low)
{
    return __uint_as_float(halves_join(high, low));
}

static __device__ __forceinline__ uint32_t split_halves(float whole, uint32_t *low)
{
    return halves_split(__float_as_uint(whole), low);
}

/* Masters as halves, V of them. */
template <int V> static __device__ __forceinline__ void load_halves(const optimizer_args &a, int64_t i, float *p)
{
    if constexpr (V == 4) {
        const uint2 high = *(const uint2 *)((const uint16_t *)a.copy.p + i), low = *(const uint2 *)(a.low + i);
        p[0] = join_halves(high.x & 0xffffu, low.x & 0xffffu);
        p[1] = join_halves(high.x >> 16, low.x >> 16);
        p[2] = join_halves(high.y & 0xffffu, low.y & 0xffffu);
        p[3] = join_halves(high.y >> 16, low.y >> 16);
    } else {
        p[0] = join_halves(((const uint16_t *)a.copy.p)[i], a.low[i]);
    }
}

template <int V> static __device__ __forceinline__ void store_halves(const optimizer_args &a, int64_t i, const float *p)
{
    uint32_t high[V], low[V];
#pragma unroll
    for (int j = 0; j < V; j++)
        high[j] = split_halves(p[j], &low[j]);
    if constexpr (V == 4) {
        *(uint2 *)((uint16_t *)a.copy.p + i) = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
        *(uint2 *)(a.low + i) = make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16);
    } else {
        ((uint16_t *)a.copy.p)[i] = (uint16_t)high[0];
        a.low[i] = (uint16_t)low[0];
    }
}

/* The copy, as the high halves of what is kept as halves elsewhere. */
template <int V> static __device__ __forceinline__ void store_high(const optimizer_args &a, int64_t i, const float *p)
{
    uint32_t high[V], low;
#pragma unroll
    for (int j = 0; j < V; j++)
        high[j] = split_halves(p[j], &low);
    if constexpr (V == 4)
        *(uint2 *)((uint16_t *)a.copy.p + i) = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
    else
        ((uint16_t *)a.copy.p)[i] = (uint16_t)high[0];
}

/* The master, and its copy in a smaller type where there is one. */
template <int V> static __device__ __forceinline__ void store_whole(const optimizer_args &a, int64_t i, const float *p)
{
    if constexpr (V == 4) {
        *(float4 *)(a.parameter + i) = *(const float4 *)p;
        if (a.copy.p && a.copy_half)
            store_high<V>(a, i, p);
        else if (a.copy.p && a.copy.dtype == FSDP_BF16)
            *(uint2 *)((uint16_t *)a.copy.p + i) = make_uint2(pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]));
        else if (a.copy.p && a.copy.dtype == FSDP_F16)
            *(uint2 *)((uint16_t *)a.copy.p + i) = make_uint2(pack_f16(p[0], p[1]), pack_f16(p[2], p[3]));
        else if (a.copy.p)
            *(float4 *)((float *)a.copy.p + i) = *(const float4 *)p;
    } else {
        a.parameter[i] = p[0];
        if (a.copy.p && a.copy_half)
            store_high<V>(a, i, p);
        else if (a.copy.p)
            store_one(a.copy.p, a.copy.dtype, i, p[0]);
    }
}

__global__ void __launch_bounds__(THREADS) halves(const halves_args a)
{
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * THREADS) {
        if (a.join) {
            a.whole[i] = join_halves(a.high[i], a.low[i]);
        } else {
            uint32_t low;
            a.high[i] = (uint16_t)split_halves(a.whole[i], &low);
            a.low[i] = (uint16_t)low;
        }
    }
}

extern "C" cudaError_t launch_halves(const launch *l, const halves_args *a)
{
    if (a->n > 0)
        halves<<<flat_blocks(l, a->n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

/* A decay of 0 begins the average, whatever was there. */
template <int V>
static __device__ __forceinline__ void update_average(const optimizer_args &a, int64_t i, const float *p)
{
    const float decay = a.scalars->average_decay;
    alignas(16) float average[V];
    if constexpr (V == 4)
        *(float4 *)average = *(const float4 *)(a.average + i);
    else
        average[0] = a.average[i];
#pragma unroll
    for (int j = 0; j < V; j++)
        average[j] = decay == 0.0f ? p[j] : __fmaf_rn(decay, average[j], __fmul_rn(1.0f - decay, p[j]));
    if constexpr (V == 4)
        *(float4 *)(a.average + i) = *(const float4 *)average;
    else
        a.average[i] = average[0];
}

/* V numbers from `from` + i as fp32: NUMBER is their type in memory, float or uint16_t (bf16). */
template <typename NUMBER, int V>
static __device__ __forceinline__ void load_numbers(const void *from, int64_t i, float *to)
{
    const NUMBER *at = (const NUMBER *)from + i;
    if constexpr (sizeof(NUMBER) == 4 && V == 4) {
        *(float4 *)to = *(const float4 *)at;
    } else if constexpr (sizeof(NUMBER) == 4) {
        to[0] = at[0];
    } else if constexpr (V == 4) {
        const uint2 two = *(const uint2 *)at;
        to[0] = __uint_as_float(two.x << 16);
        to[1] = __uint_as_float(two.x & 0xffff0000u);
        to[2] = __uint_as_float(two.y << 16);
        to[3] = __uint_as_float(two.y & 0xffff0000u);
    } else {
        to[0] = __uint_as_float((uint32_t)at[0] << 16);
    }
}

/* What the update subtracts: the gradient, or Muon's direction. */
template <int KIND, int V>
static __device__ __forceinline__ void load_step(const optimizer_args &a, int64_t i, float *g)
{
    if constexpr (KIND == FSDP_MUON)
        load_numbers<uint16_t, V>(a.direction, i, g);
    else if (a.gradient_dtype == FSDP_F32)
        load_numbers<float, V>(a.gradient, i, g);
    else
        load_numbers<uint16_t, V>(a.gradient, i, g);
}

/* Moments back into memory; `random` has 16 bits for each of those that are rounded. */
template <typename MOMENT, int V>
static __device__ __forceinline__ void store_moments(void *to, int64_t i, const float *from, const uint32_t *random)
{
    MOMENT *at = (MOMENT *)to + i;
    if constexpr (sizeof(MOMENT) == 4 && V == 4) {
        *(float4 *)at = *(const float4 *)from;
    } else if constexpr (sizeof(MOMENT) == 4) {
        at[0] = from[0];
    } else {
        uint32_t rounded[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            rounded[j] = stochastic_bf16(__float_as_uint(from[j]), random[j]);
        if constexpr (V == 4)
            *(uint2 *)at = make_uint2(rounded[0] | rounded[1] << 16, rounded[2] | rounded[3] << 16);
        else
            at[0] = (uint16_t)rounded[0];
    }
}

/* The random bits of elements i .. i+V-1, which lie in one block of stochastic.h. */
template <int V>
static __device__ __forceinline__ void draw(const optimizer_args &a, int64_t i, uint32_t *random1, uint32_t *random2)
{
    const uint64_t element = a.element + (uint64_t)i;
    const rng_key key = {{a.key[0], a.key[1]}};
    const stochastic_numbers numbers = stochastic_numbers_at(key, a.scalars->step, element);
#pragma unroll
    for (int j = 0; j < V; j++) {
        const uint32_t word = stochastic_word(numbers, (uint32_t)(element % STOCHASTIC_BLOCK) + j);
        random1[j] = stochastic_bits1(word);
        random2[j] = stochastic_bits2(word);
    }
}

/* Magnitude of the number that the copy takes a master for; as in magnitude_as_stored. */
static __device__ __forceinline__ uint32_t magnitude_of_copy(const optimizer_args &a, bool halves, uint32_t bits)
{
    uint32_t low;
    if (halves || (a.copy.p && a.copy_half))
        return halves_split(bits, &low) << 16;
    return a.copy.p ? magnitude_as_stored(bits, a.copy.dtype) : bits;
}

/* V is 4 or 1; HALVES: the master is copy and rest. Moments are touched only where the kind has them. */
template <int KIND, int V, bool HALVES, typename MOMENT>
__global__ void __launch_bounds__(THREADS) optimizer(const optimizer_args a)
{
    const bool skip = a.scalars->skip;
    if (skip && !a.magnitude)
        return;
    const step s = read_step<KIND>(a);
    uint32_t largest = 0;
    const bool has2 = KIND == FSDP_ADAMW || KIND == FSDP_ADAM, has1 = has2 || (KIND == FSDP_SGD && s.momentum != 0.0f);
    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * V; i < a.n;
         i += (int64_t)gridDim.x * THREADS * V) {
        alignas(16) float p[V], g[V], m[V], v[V];
        if constexpr (HALVES)
            load_halves<V>(a, i, p);
        else if constexpr (V == 4)
            *(float4 *)p = *(const float4 *)(a.parameter + i);
        else
            p[0] = a.parameter[i];
        if (skip) { /* what is there is measured */
            largest = largest_of<V>(largest, *(const floats<V> *)p);
            continue;
        }
        load_step<KIND, V>(a, i, g);
        if (has1)
            load_numbers<MOMENT, V>(a.moment1, i, m);
        if (has2)
            load_numbers<MOMENT, V>(a.moment2, i, v);
#pragma unroll
        for (int j = 0; j < V; j++)
            update<KIND>(s, p[j], g[j], m[j], v[j]);
        uint32_t random1[V], random2[V];
        if constexpr (sizeof(MOMENT) == 2)
            draw<V>(a, i, random1, random2);
        if (has1)
            store_moments<MOMENT, V>(a.moment1, i, m, random1);
        if (has2)
            store_moments<MOMENT, V>(a.moment2, i, v, random2);
        if (a.average)
            update_average<V>(a, i, p);
        if constexpr (HALVES)
            store_halves<V>(a, i, p);
        else
            store_whole<V>(a, i, p);
        largest = largest_of<V>(largest, *(const floats<V> *)p);
    }
    if (a.magnitude)
        magnitude_leave(magnitude_of_copy(a, HALVES, largest), (uint32_t *)a.magnitude);
}

static void *moment_at(void *moments, fsdp_dtype dtype, int64_t first)
{
    return moments ? (char *)moments + first * (dtype == FSDP_F32 ? 4 : 2) : NULL;
}

template <int KIND, int V, typename MOMENT>
static void start(const launch *l, const optimizer_args *a, int64_t first, int64_t n)
{
    optimizer_args part = *a;
    part.n = n;
    part.parameter = a->parameter ? a->parameter + first : NULL;
    part.low = a->low ? a->low + first : NULL;
    part.gradient = a->gradient ? (const char *)a->gradient + first * (a->gradient_dtype == FSDP_F32 ? 4 : 2) : NULL;
    part.direction = a->direction ? a->direction + first : NULL;
    part.moment1 = moment_at(a->moment1, a->moment_dtype, first);
    part.moment2 = moment_at(a->moment2, a->moment_dtype, first);
    part.element += (uint64_t)first;
    part.average = a->average ? a->average + first : NULL;
    if (a->copy.p)
        part.copy.p = (char *)a->copy.p + first * (a->copy.dtype == FSDP_F32 ? 4 : 2);
    const unsigned blocks = flat_blocks(l, launch_ceil(n, V), THREADS);
    if (n > 0 && a->low)
        optimizer<KIND, V, true, MOMENT><<<blocks, THREADS, 0, l->stream>>>(part);
    else if (n > 0)
        optimizer<KIND, V, false, MOMENT><<<blocks, THREADS, 0, l->stream>>>(part);
}

/* Four elements at a time as far as all arrays are aligned for that, and the random numbers of four are of one block.
 */
template <int KIND, typename MOMENT> static cudaError_t start_with(const launch *l, const optimizer_args *a)
{
    const int per_moment = sizeof(MOMENT) == 4 ? 1 : 2;
    const uintptr_t all = (uintptr_t)a->parameter | (uintptr_t)a->gradient * (a->gradient_dtype == FSDP_F32 ? 1 : 2) |
                          (uintptr_t)a->moment1 * per_moment | (uintptr_t)a->moment2 * per_moment |
                          (uintptr_t)a->average | (uintptr_t)a->direction * 2 |
                          ((uintptr_t)a->copy.p * (a->copy.dtype == FSDP_F32 ? 1 : 2)) | (uintptr_t)a->low * 2;
    const bool whole_blocks = sizeof(MOMENT) == 4 || a->element % 4 == 0;
    const int64_t vectors = (all & 15) == 0 && whole_blocks ? a->n / 4 * 4 : 0;
    start<KIND, 4, MOMENT>(l, a, 0, vectors);
    start<KIND, 1, MOMENT>(l, a, vectors, a->n - vectors);
    return cudaGetLastError();
}

template <int KIND> static cudaError_t start_kind(const launch *l, const optimizer_args *a)
{
    return a->moment_dtype == FSDP_BF16 ? start_with<KIND, uint16_t>(l, a) : start_with<KIND, float>(l, a);
}

extern "C" cudaError_t launch_optimizer(const launch *l, const optimizer_args *a)
{
    switch (a->kind) {
    case FSDP_ADAMW:
        return start_kind<FSDP_ADAMW>(l, a);
    case FSDP_ADAM:
        return start_kind<FSDP_ADAM>(l, a);
    case FSDP_SGD:
        return start_kind<FSDP_SGD>(l, a);
    case FSDP_MUON:
        return start_kind<FSDP_MUON>(l, a);
    case FSDP_ADAFACTOR:
        return start_kind<FSDP_ADAFACTOR>(l, a);
    }
    return cudaErrorInvalidValue;
}

template <int V> __global__ void __launch_bounds__(THREADS) muon_direction(const muon_direction_args a)
{
    if (a.scalars->skip)
        return;
    const float scale = a.scalars->gradient_scale, momentum = a.scalars->momentum, rest = 1.0f - momentum;
    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * V; i < a.n;
         i += (int64_t)gridDim.x * THREADS * V) {
        alignas(16) float g[V], m[V];
        if constexpr (V == 4) {
            *(float4 *)g = *(const float4 *)(a.gradient + i);
            *(float4 *)m = *(const float4 *)(a.moment + i);
        } else {
            g[0] = a.gradient[i];
            m[0] = a.moment[i];
        }
#pragma unroll
        for (int j = 0; j < V; j++) {
            g[j] = rest * (g[j] * scale);
            m[j] = momentum * m[j] + g[j];
            g[j] = momentum * m[j] + g[j];
        }
        if constexpr (V == 4) {
            *(float4 *)(a.moment + i) = *(const float4 *)m;
            *(uint2 *)(a.direction + i) = make_uint2(pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3]));
        } else {
            a.moment[i] = m[0];
            store_one(a.direction, FSDP_BF16, i, g[0]);
        }
    }
}

extern "C" cudaError_t launch_muon_direction(const launch *l, const muon_direction_args *a)
{
    const uintptr_t all = (uintptr_t)a->gradient | (uintptr_t)a->moment | (uintptr_t)a->direction * 2;
    const int64_t vectors = (all & 15) == 0 ? a->n / 4 * 4 : 0;
    muon_direction_args rest = *a;
    muon_direction_args whole = *a;
    whole.n = vectors;
    rest.n = a->n - vectors;
    rest.gradient += vectors;
    rest.moment += vectors;
    rest.direction += vectors;
    if (whole.n > 0)
        muon_direction<4><<<flat_blocks(l, launch_ceil(whole.n, 4), THREADS), THREADS, 0, l->stream>>>(whole);
    if (rest.n > 0)
        muon_direction<1><<<flat_blocks(l, rest.n, THREADS), THREADS, 0, l->stream>>>(rest);
    return cudaGetLastError();
}
