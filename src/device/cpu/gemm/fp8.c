/* The operands as fp32 in the workspace, then the product of those. */
#include "device/cpu/gemm/fp8.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/float_bits.h"
#include "device/cpu/parallel.h"

#define SHARE 4096 /* elements a thread takes at a time */

static size_t operand_bytes(int64_t rows, int64_t k)
{
    return round_up((size_t)(rows * k) * sizeof(float), 256);
}

/* The product in fp32. workspace: NULL when only its size is asked for. */
static gemm_args widened(const gemm_args *a, char *workspace)
{
    gemm_args wide = *a;
    wide.a = (buffer){workspace, FSDP_F32};
    wide.b = (buffer){workspace ? workspace + operand_bytes(a->m, a->k) : NULL, FSDP_F32};
    wide.workspace = workspace ? workspace + operand_bytes(a->m, a->k) + operand_bytes(a->n, a->k) : NULL;
    wide.lda = wide.ldb = a->k;
    return wide;
}

size_t fp8_gemm_workspace(const cpu_gemm_set *set, const gemm_args *a)
{
    gemm_args wide = widened(a, NULL);
    return operand_bytes(a->m, a->k) + operand_bytes(a->n, a->k) + gemm_workspace_bytes(set, &wide);
}

typedef struct widening {
    const uint8_t *from;
    float *to;
    int64_t n;
    const float8_format *format;
} widening;

static void widen_share(const void *context, int64_t first)
{
    const widening *w = context;
    for (int64_t i = first; i < min_i64(first + SHARE, w->n); i++)
        w->to[i] = float_bits_from_f8(w->from[i], w->format);
}

static void widen(int threads, buffer from, int64_t n, float *to)
{
    widening w = {from.p, to, n, from.dtype == FSDP_E5M2 ? &float8_e5m2 : &float8_e4m3};
    parallel_for(threads, n, SHARE, widen_share, &w);
}

fsdp_status fp8_gemm(const cpu_gemm_set *set, const gemm_args *a)
{
    bool fits = !a->transpose_a && a->transpose_b && a->batch == 1 && a->lda == a->k && a->ldb == a->k &&
                a->m % 16 == 0 && a->n % 16 == 0 && a->k % 16 == 0;
    if (!fits || !a->scale_a || !a->scale_b || !a->workspace || (a->a.dtype == FSDP_E5M2 && a->b.dtype == FSDP_E5M2))
        return error_set(FSDP_ERR_INPUT, "matrix product of %lld x %lld x %lld in 8 bits: not of the form that has one",
                         (long long)a->m, (long long)a->n, (long long)a->k);
    gemm_args wide = widened(a, a->workspace);
    widen(set->max_threads, a->a, a->m * a->k, wide.a.p);
    widen(set->max_threads, a->b, a->n * a->k, wide.b.p);
    wide.alpha = a->alpha * (*a->scale_a * *a->scale_b);
    return gemm_gemm(set, &wide);
}
