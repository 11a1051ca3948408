/* Sums of fp32 in registers, four vectors at a time. Going through a block in the first-level cache instead costs a
 * third of the speed on data larger than the caches: its write and its read compete with the sources. */
#include "comm/sum.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { LINE_BYTES = 64 };

/* Returns how many elements it has done: all but a rest shorter than four vectors. */
#define SUM_VECTORS(suffix, attribute, vector, width, LOAD, ADD, STORE, STREAM)                                        \
    attribute static int64_t sum_##suffix(float *out, const float *const *sources, int n_sources, int64_t n, bool add, \
                                          bool streaming)                                                              \
    {                                                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + 4 * (width) <= n; i += 4 * (width)) {                                                               \
            vector sums[4];                                                                                            \
            for (int q = 0; q < 4; q++)                                                                                \
                sums[q] = LOAD(sources[0] + i + q * (width));                                                          \
            for (int k = 1; k < n_sources; k++)                                                                        \
                for (int q = 0; q < 4; q++)                                                                            \
                    sums[q] = ADD(sums[q], LOAD(sources[k] + i + q * (width)));                                        \
            for (int q = 0; add && q < 4; q++)                                                                         \
                sums[q] = ADD(LOAD(out + i + q * (width)), sums[q]);                                                   \
            for (int q = 0; q < 4; q++) {                                                                              \
                if (streaming)                                                                                         \
                    STREAM(out + i + q * (width), sums[q]);                                                            \
                else                                                                                                   \
                    STORE(out + i + q * (width), sums[q]);                                                             \
            }                                                                                                          \
        }                                                                                                              \
        return i;                                                                                                      \
    }

SUM_VECTORS(avx2, __attribute__((target("avx2"))), __m256, 8, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps,
            _mm256_stream_ps)
SUM_VECTORS(avx512, __attribute__((target("avx512f"))), __m512, 16, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps,
            _mm512_stream_ps)

static void sum_singly(float *out, const float *const *sources, int n_sources, int64_t first, int64_t end, bool add)
{
    for (int64_t i = first; i < end; i++) {
        float sum = sources[0][i];
        for (int k = 1; k < n_sources; k++)
            sum += sources[k][i];
        out[i] = add ? out[i] + sum : sum;
    }
}

bool sum_f32(float *out, const float *const *sources, int n_sources, int64_t n, bool add, bool streaming)
{
    if (n_sources > SUM_MOST_SOURCES || !__builtin_cpu_supports("avx2"))
        return false;
    int64_t done = 0; /* streaming stores want whole lines */
    if (streaming)
        done = (int64_t)((-(uintptr_t)out & (LINE_BYTES - 1)) / sizeof *out);
    done = done < n ? done : n;
    sum_singly(out, sources, n_sources, 0, done, add);
    const float *rest[SUM_MOST_SOURCES];
    for (int k = 0; k < n_sources; k++)
        rest[k] = sources[k] + done;
    if (__builtin_cpu_supports("avx512f"))
        done += sum_avx512(out + done, rest, n_sources, n - done, add, streaming);
    else
        done += sum_avx2(out + done, rest, n_sources, n - done, add, streaming);
    sum_singly(out, sources, n_sources, done, n, add);
    if (streaming)
        _mm_sfence();
    return true;
}
#else
bool sum_f32(float *out, const float *const *sources, int n_sources, int64_t n, bool add, bool streaming)
{
    (void)out, (void)sources, (void)n_sources, (void)n, (void)add, (void)streaming;
    return false;
}
#endif
