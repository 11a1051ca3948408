/* Sums go through registers, four vectors at a time, straight into the result: a block in the first-level cache in
 * between costs a third of the speed on data larger than the caches, as its write and its read compete with the
 * sources. Reading ahead by hand is worth up to 2x on Intel's server processors and costs a fifth on AMD's (Sapphire
 * Rapids and Zen 4 were measured). A copy is a sum of one source. */
#include "comm/vector.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

enum { LINE_BYTES = 64, AHEAD_BYTES = 2048 };

/* Returns how many elements it has done: all but a rest shorter than four vectors. */
#define SUM_VECTORS(suffix, attribute, vector, width, LOAD, ADD, STORE, STREAM)                                        \
    attribute static int64_t sum_##suffix(float *out, const float *const *sources, int n_sources, int64_t n, bool add, \
                                          bool streaming)                                                              \
    {                                                                                                                  \
        int64_t i = 0;                                                                                                 \
        bool ahead = __builtin_cpu_is("intel");                                                                        \
        for (; i + 4 * (width) <= n; i += 4 * (width)) {                                                               \
            vector sums[4];                                                                                            \
            if (ahead)                                                                                                 \
                read_ahead(sources, n_sources, i, 4 * (width));                                                        \
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

/* The address may lie past the end: asking for it is harmless. */
static inline __attribute__((always_inline)) void read_ahead(const float *const *sources, int n_sources, int64_t at,
                                                             int64_t n)
{
    for (int k = 0; k < n_sources; k++)
        for (int64_t i = 0; i < n; i += LINE_BYTES / (int)sizeof(float))
            _mm_prefetch((const char *)((uintptr_t)(sources[k] + at + i) + AHEAD_BYTES), _MM_HINT_T0);
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

bool vector_sum(float *out, const float *const *sources, int n_sources, int64_t n, bool add, bool streaming)
{
    if (n_sources > VECTOR_MAX_SOURCES || !__builtin_cpu_supports("avx2"))
        return false;
    int64_t done = 0; /* streaming stores want whole lines */
    if (streaming)
        done = (int64_t)((-(uintptr_t)out & (LINE_BYTES - 1)) / sizeof *out);
    done = done < n ? done : n;
    sum_singly(out, sources, n_sources, 0, done, add);
    const float *rest[VECTOR_MAX_SOURCES];
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

void vector_copy(void *to, const void *from, size_t bytes, bool streaming)
{
    size_t head = -(uintptr_t)to & (LINE_BYTES - 1);
    if (!streaming || bytes < head || !__builtin_cpu_supports("avx2")) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(to, from, head);
    float *out = (float *)((char *)to + head);
    const char *in = (const char *)from + head;
    const float *source = (const float *)(const void *)in; /* of any alignment: only vectors are loaded from it */
    int64_t n = (int64_t)((bytes - head) / sizeof *out);
    size_t done = sizeof *out * (size_t)(__builtin_cpu_supports("avx512f") ? sum_avx512(out, &source, 1, n, false, true)
                                                                           : sum_avx2(out, &source, 1, n, false, true));
    memcpy((char *)out + done, in + done, bytes - head - done);
    _mm_sfence();
}
#else
bool vector_sum(float *out, const float *const *sources, int n_sources, int64_t n, bool add, bool streaming)
{
    (void)out, (void)sources, (void)n_sources, (void)n, (void)add, (void)streaming;
    return false;
}

void vector_copy(void *to, const void *from, size_t bytes, bool streaming)
{
    (void)streaming;
    memcpy(to, from, bytes);
}
#endif
