/* The table's entry for matrix products; gemm/gemm.h has what is behind it. */
#include "base/checked.h"
#include "device/cpu/simd/span.h"
#include "device/symmetric.h"

SIMD_KERNEL(gemm, gemm_args)
{
    return gemm_gemm(&s->device->product, a);
}

SIMD_WORKSPACE(gemm, gemm_args)
{
    return gemm_workspace_bytes(&((const device_cpu *)d)->product, a);
}

/* ---- Symmetric products ---- */

enum { STRIPS = 8, LEAST_STRIP = 64, MIRROR_SIDE = 32, BLOCK = 8 };

/* Rows of one product; the last strip has the rest. */
static int64_t strip_of(int64_t n)
{
    return max_i64(LEAST_STRIP, ceil_div(ceil_div(n, STRIPS), LEAST_STRIP) * LEAST_STRIP);
}

/* What stands at (i, i), rounded once: gamma may cancel most of the product, whose rounding would then be large. */
static void write_diagonal(const symmetric_args *a, const symmetric_item *x, int64_t i)
{
    float left_scratch[SPAN], right_scratch[SPAN], sum = 0.0f, was;
    for (int64_t first = 0; first < x->k; first += SPAN) {
        int64_t n = min_i64(SPAN, x->k - first);
        const float *left = span_read((buffer){(void *)(uintptr_t)x->a, FSDP_BF16}, i * x->k + first, n, left_scratch);
        const float *right =
            span_read((buffer){(void *)(uintptr_t)x->b, FSDP_BF16}, i * x->k + first, n, right_scratch);
        float part = 0.0f;
#pragma omp simd reduction(+ : part)
        for (int64_t j = 0; j < n; j++)
            part += left[j] * right[j];
        sum += part;
    }
    sum = a->alpha * sum + a->gamma;
    if (a->beta != 0.0f)
        sum += a->beta * *span_read((buffer){(void *)(uintptr_t)x->c, FSDP_BF16}, i * x->n + i, 1, &was);
    span_write((buffer){x->d, FSDP_BF16}, i * x->n + i, 1, &sum, false);
}

typedef struct mirror {
    const symmetric_args *all;
    const symmetric_item *x;
} mirror;

typedef uint16_t eight __attribute__((vector_size(16)));

/* Runs of 1, 2 or 4 elements of x and y by turns: of the first half of both, or of the second. */
#define LOW_1(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_1(x, y) __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_2(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 2, 3, 10, 11)
#define HIGH_2(x, y) __builtin_shufflevector(x, y, 4, 5, 12, 13, 6, 7, 14, 15)
#define LOW_4(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_4(x, y) __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)

/* A block of 8 x 8, to its mirrored place in the same matrix, whose rows are n apart. */
static void mirror_block(int64_t n, const uint16_t *from, uint16_t *to)
{
    eight r[BLOCK], t[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        memcpy(&r[i], from + i * n, sizeof r[i]);
    for (int i = 0; i < BLOCK; i += 2) {
        t[i] = LOW_1(r[i], r[i + 1]);
        t[i + 1] = HIGH_1(r[i], r[i + 1]);
    }
    for (int i = 0; i < BLOCK; i += 4) {
        r[i] = LOW_2(t[i], t[i + 2]);
        r[i + 1] = HIGH_2(t[i], t[i + 2]);
        r[i + 2] = LOW_2(t[i + 1], t[i + 3]);
        r[i + 3] = HIGH_2(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < BLOCK / 2; i++) {
        t[2 * i] = LOW_4(r[i], r[i + 4]);
        t[2 * i + 1] = HIGH_4(r[i], r[i + 4]);
    }
    for (int i = 0; i < BLOCK; i++)
        memcpy(to + i * n, &t[i], sizeof t[i]);
}

/* Rows `first` on of the lower triangle become columns of the upper one. */
static void mirror_rows(const void *context, int64_t first)
{
    const mirror *m = context;
    int64_t n = m->x->n, end = min_i64(first + MIRROR_SIDE, n);
    uint16_t *d = m->x->d;
    for (int64_t i = first; i < end; i += BLOCK) {
        int64_t j = 0, last = min_i64(i + BLOCK, end);
        for (; last - i == BLOCK && j + BLOCK <= i; j += BLOCK)
            mirror_block(n, d + i * n + j, d + j * n + i);
        for (; j < last; j++)
            for (int64_t k = max_i64(i, j + 1); k < last; k++)
                d[j * n + k] = d[k * n + j];
    }
    for (int64_t i = first; i < end && m->all->gamma != 0.0f; i++)
        write_diagonal(m->all, m->x, i);
}

SIMD_KERNEL(symmetric, symmetric_args)
{
    for (int i = 0; i < a->n_items; i++) {
        const symmetric_item *x = &a->items[i];
        const mirror m = {a, x};
        for (int64_t first = 0; first < x->n; first += strip_of(x->n)) {
            gemm_args strip = symmetric_gemm(a, x, first, min_i64(first + strip_of(x->n), x->n));
            FSDP_TRY(gemm_gemm(&s->device->product, &strip));
        }
        parallel_for(cpu_threads_for(s, x->n * x->n), x->n, MIRROR_SIDE, mirror_rows, &m);
    }
    return FSDP_OK;
}

SIMD_WORKSPACE(symmetric, symmetric_args)
{
    size_t most = 0;
    for (int i = 0; i < a->n_items; i++) {
        const symmetric_item *x = &a->items[i];
        for (int64_t first = 0; first < x->n; first += strip_of(x->n)) {
            gemm_args strip = symmetric_gemm(a, x, first, min_i64(first + strip_of(x->n), x->n));
            size_t bytes = gemm_workspace_bytes(&((const device_cpu *)d)->product, &strip);
            most = bytes > most ? bytes : most;
        }
    }
    return most;
}
