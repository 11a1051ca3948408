/* Ordered reductions, block by block: a block of sums stays in the first-level cache while every source is added to it,
 * so each source is read once and the result is written once. The loops are plain C, compiled for several instruction
 * sets; only fp16 conversion names instructions. Sums of fp32, the usual case, are left to vector.c.
 */
#include "comm/reduce.h"

#include <string.h>

#include "comm/vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define REDUCE_X86 1
#endif

enum { BLOCK = 1024, REDUCE_MAX_SOURCES = 256 };

#define INLINE static inline __attribute__((always_inline))

INLINE float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* To the nearest, ties to even; a NaN stays one. */
INLINE uint16_t narrow_to_bf16(float value)
{
    uint32_t bits = float_to_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static float widen_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
    if (exponent == 31) /* the quiet bit is set, as the processor does */
        return bits_to_float(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) {
        float tiny = (float)fraction * 0x1p-24f;
        return bits_to_float(sign | float_to_bits(tiny));
    }
    return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t narrow_to_f16(float value)
{
    uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 1023));
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 rounds to units of 2^-24 */
        uint32_t units = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000;
        return (uint16_t)(sign | units);
    }
    uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

/* A NaN wins, whichever side it is on. */
INLINE float combine(fsdp_reduction reduction, float a, float b)
{
    if (reduction == FSDP_REDUCE_MAX)
        return b > a || b != b ? b : a;
    if (reduction == FSDP_REDUCE_MIN)
        return b < a || b != b ? b : a;
    return a + b;
}

/* sums = source (first), or sums op source. */
INLINE void take_f32(float *restrict sums, const float *source, int n, bool first, fsdp_reduction reduction)
{
    if (first)
        memcpy(sums, source, (size_t)n * sizeof *sums);
    else
        for (int i = 0; i < n; i++)
            sums[i] = combine(reduction, sums[i], source[i]);
}

INLINE void take_bf16(float *restrict sums, const uint16_t *source, int n, bool first, fsdp_reduction reduction)
{
    for (int i = 0; i < n; i++) {
        float value = bits_to_float((uint32_t)source[i] << 16);
        sums[i] = first ? value : combine(reduction, sums[i], value);
    }
}

INLINE void give_bf16(uint16_t *restrict out, const float *sums, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = narrow_to_bf16(sums[i]);
}

/* The loops above with the reduction known to the compiler. */
INLINE void take_any(float *restrict sums, const void *source, fsdp_dtype dtype, int n, bool first,
                     fsdp_reduction reduction)
{
    switch (reduction) {
    case FSDP_REDUCE_MAX:
    case FSDP_REDUCE_MIN:
        if (dtype == FSDP_F32)
            take_f32(sums, source, n, first, reduction);
        else
            take_bf16(sums, source, n, first, reduction);
        break;
    default:
        if (dtype == FSDP_F32)
            take_f32(sums, source, n, first, FSDP_REDUCE_SUM);
        else if (first)
            take_bf16(sums, source, n, true, FSDP_REDUCE_SUM);
        else
            take_bf16(sums, source, n, false, FSDP_REDUCE_SUM);
    }
}

typedef struct kernel_set {
    void (*take)(float *sums, const void *source, fsdp_dtype dtype, int n, bool first, fsdp_reduction reduction);
    void (*give_bf16)(uint16_t *out, const float *sums, int n);
    void (*add_pair)(float *out, const float *a, const float *b, int n); /* out = a + b; out may be a or b */
    void (*widen_f16)(float *out, const uint16_t *in, int n);
    void (*narrow_f16)(uint16_t *out, const float *in, int n);
} kernel_set;

#define KERNEL_SET(suffix, attribute)                                                                                  \
    attribute static void take_##suffix(float *sums, const void *source, fsdp_dtype dtype, int n, bool first,          \
                                        fsdp_reduction reduction)                                                      \
    {                                                                                                                  \
        take_any(sums, source, dtype, n, first, reduction);                                                            \
    }                                                                                                                  \
    attribute static void give_bf16_##suffix(uint16_t *out, const float *sums, int n)                                  \
    {                                                                                                                  \
        give_bf16(out, sums, n);                                                                                       \
    }                                                                                                                  \
    attribute static void add_pair_##suffix(float *out, const float *a, const float *b, int n)                         \
    {                                                                                                                  \
        for (int i = 0; i < n; i++)                                                                                    \
            out[i] = a[i] + b[i];                                                                                      \
    }

KERNEL_SET(plain, )

static void widen_f16_plain(float *out, const uint16_t *in, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = widen_f16(in[i]);
}

static void narrow_f16_plain(uint16_t *out, const float *in, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = narrow_to_f16(in[i]);
}

static const kernel_set plain = {take_plain, give_bf16_plain, add_pair_plain, widen_f16_plain, narrow_f16_plain};

#ifdef REDUCE_X86
#define AVX2 __attribute__((target("avx2,f16c")))
#define AVX512 __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl")))
KERNEL_SET(avx2, AVX2)
KERNEL_SET(avx512, AVX512)

AVX2 static void widen_f16_avx2(float *out, const uint16_t *in, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(in + i))));
    widen_f16_plain(out + i, in + i, n - i);
}

AVX2 static void narrow_f16_avx2(uint16_t *out, const float *in, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    narrow_f16_plain(out + i, in + i, n - i);
}

static const kernel_set avx2 = {take_avx2, give_bf16_avx2, add_pair_avx2, widen_f16_avx2, narrow_f16_avx2};
static const kernel_set avx512 = {take_avx512, give_bf16_avx512, add_pair_avx512, widen_f16_avx2, narrow_f16_avx2};
#endif

static const kernel_set *kernels(void)
{
#ifdef REDUCE_X86
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return &avx512;
    if (__builtin_cpu_supports("avx2"))
        return &avx2;
#endif
    return &plain;
}

/* Less than this is not worth waking another thread for. */
enum { MIN_SHARE_BYTES = 256 << 10, LINE_BYTES = 64 };

/* The team is always all of them: OpenMP allocates when its size changes. */
static int sharers(int workers, size_t bytes)
{
    size_t most = bytes / MIN_SHARE_BYTES;
    return workers < 2 || most < 2 ? 1 : (size_t)workers < most ? workers : (int)most;
}

/* Where part k of n begins; parts begin on lines. */
static size_t share_begin(size_t bytes, int k, int n)
{
    return k == n ? bytes : bytes / (size_t)n * (size_t)k / LINE_BYTES * LINE_BYTES;
}

void copy_bytes(void *to, const void *from, size_t bytes, bool streaming, int workers)
{
    if (bytes == 0 || to == from)
        return;
    int n = sharers(workers, bytes);
    if (n == 1) {
        vector_copy(to, from, bytes, streaming);
        return;
    }
#pragma omp parallel for num_threads(workers) schedule(static)
    for (int k = 0; k < n; k++) {
        size_t begin = share_begin(bytes, k, n), end = share_begin(bytes, k + 1, n);
        vector_copy((char *)to + begin, (const char *)from + begin, end - begin, streaming);
    }
}

static const void *at(const void *base, int64_t index, fsdp_dtype dtype)
{
    return (const char *)base + index * (int64_t)fsdp_dtype_size(dtype);
}

static void take_source(const kernel_set *k, const reduce_args *a, int source, int64_t from, int n, float *sums)
{
    const void *data = at(a->sources[source], from, a->from);
    bool first = source == 0 && !a->before;
    if (a->from == FSDP_F16) {
        float wide[BLOCK];
        k->widen_f16(first ? sums : wide, data, n);
        if (!first)
            k->take(sums, wide, FSDP_F32, n, false, a->reduction);
    } else {
        k->take(sums, data, a->from, n, first, a->reduction);
    }
}

/* Adds what is in `out` to the sums: out + sum, in that order. */
static void add_present(const kernel_set *k, const reduce_args *a, const void *out, int n, float *sums)
{
    float present[BLOCK];
    if (a->to == FSDP_F16)
        k->widen_f16(present, out, n);
    else
        k->take(present, out, a->to, n, true, FSDP_REDUCE_SUM);
    k->add_pair(sums, present, sums, n);
}

/* False, and nothing done, where vector.c has no loop for it. */
static bool sum_plainly(const reduce_args *a)
{
    const float *sources[VECTOR_MAX_SOURCES];
    int n = 0;
    if (a->from != FSDP_F32 || a->to != FSDP_F32 || a->reduction != FSDP_REDUCE_SUM)
        return false;
    if (!a->before)
        return vector_sum(a->out, (const float *const *)a->sources, a->n_sources, a->n, a->add, a->streaming);
    if (a->n_sources >= VECTOR_MAX_SOURCES)
        return false;
    sources[n++] = a->before;
    for (int source = 0; source < a->n_sources; source++)
        sources[n++] = a->sources[source];
    return vector_sum(a->out, sources, n, a->n, a->add, a->streaming);
}

static void reduce_floats(const reduce_args *a)
{
    const kernel_set *k = kernels();
    if (sum_plainly(a))
        return;
    _Alignas(64) float sums[BLOCK];
    for (int64_t i = 0; i < a->n; i += BLOCK) {
        int n = a->n - i < BLOCK ? (int)(a->n - i) : BLOCK;
        void *out = (char *)a->out + i * (int64_t)fsdp_dtype_size(a->to);
        if (a->before)
            memcpy(sums, at(a->before, i, FSDP_F32), (size_t)n * sizeof(float));
        for (int source = 0; source < a->n_sources; source++)
            take_source(k, a, source, i, n, sums);
        if (a->add)
            add_present(k, a, out, n, sums);
        if (a->to == FSDP_BF16)
            k->give_bf16(out, sums, n);
        else if (a->to == FSDP_F16)
            k->narrow_f16(out, sums, n);
        else
            memcpy(out, sums, (size_t)n * sizeof(float));
    }
}

#define REDUCE_SAME(name, type)                                                                                        \
    static void name(const reduce_args *a)                                                                             \
    {                                                                                                                  \
        type *out = a->out;                                                                                            \
        for (int64_t i = 0; i < a->n; i++) {                                                                           \
            type value = ((const type *)(a->before ? a->before : a->sources[0]))[i];                                   \
            for (int k = a->before ? 0 : 1; k < a->n_sources; k++) {                                                   \
                type next = ((const type *)a->sources[k])[i];                                                          \
                if (a->reduction == FSDP_REDUCE_MAX)                                                                   \
                    value = next > value || next != next ? next : value;                                               \
                else if (a->reduction == FSDP_REDUCE_MIN)                                                              \
                    value = next < value || next != next ? next : value;                                               \
                else                                                                                                   \
                    value = (type)(value + next);                                                                      \
            }                                                                                                          \
            out[i] = a->add ? (type)(out[i] + value) : value;                                                          \
        }                                                                                                              \
    }

REDUCE_SAME(reduce_f64, double)
REDUCE_SAME(reduce_i32, int32_t)
REDUCE_SAME(reduce_i64, int64_t)

static void reduce_alone(const reduce_args *a)
{
    switch (a->from) {
    case FSDP_F64:
        reduce_f64(a);
        break;
    case FSDP_I32:
        reduce_i32(a);
        break;
    case FSDP_I64:
        reduce_i64(a);
        break;
    default:
        reduce_floats(a);
    }
}

/* Elements first .. first+n-1 of a reduction. */
static void reduce_part(const reduce_args *a, int64_t first, int64_t n)
{
    const void *sources[REDUCE_MAX_SOURCES];
    reduce_args part = *a;
    for (int k = 0; k < a->n_sources; k++)
        sources[k] = at(a->sources[k], first, a->from);
    part.sources = sources;
    part.before = a->before ? at(a->before, first, reduce_sum_dtype(a->from)) : NULL;
    part.out = (char *)a->out + first * (int64_t)fsdp_dtype_size(a->to);
    part.n = n;
    reduce_alone(&part);
}

void reduce_ordered(const reduce_args *a)
{
    size_t size = fsdp_dtype_size(a->from);
    int n = a->n_sources > REDUCE_MAX_SOURCES ? 1 : sharers(a->workers, (size_t)a->n * size);
    if (n == 1) {
        reduce_alone(a);
        return;
    }
#pragma omp parallel for num_threads(a->workers) schedule(static)
    for (int k = 0; k < n; k++) {
        int64_t begin = (int64_t)(share_begin((size_t)a->n * size, k, n) / size);
        int64_t end = (int64_t)(share_begin((size_t)a->n * size, k + 1, n) / size);
        reduce_part(a, begin, end - begin);
    }
}
