/* Matrix products through cuBLASLt. Row-major operands are handed over swapped: what is (m, n) row by row is (n, m)
 * column by column, so d' = b' a' needs no transposing. Which algorithm serves a shape is decided once by timing
 * (gemm_table.c); what cuBLASLt has no kernel for goes through fp32 scratch memory and launch_gemm_finish. */
#include "device/cuda/gemm/gemm_table.h"

#include <string.h>

#include "base/error.h"

static fsdp_status check_fp8(const gemm_args *a)
{
    bool fits = !a->transpose_a && a->transpose_b && a->batch <= 1 && a->m % 16 == 0 && a->n % 16 == 0 &&
                a->k % 16 == 0 && (a->a.dtype == FSDP_E4M3 || a->b.dtype == FSDP_E4M3);
    if (!fits || !a->scale_a || !a->scale_b)
        return error_set(FSDP_ERR_INPUT, "product of %lld x %lld x %lld in 8 bits: not of the form that has one",
                         (long long)a->m, (long long)a->n, (long long)a->k);
    return FSDP_OK;
}

static fsdp_status check_arguments(const gemm_args *a)
{
    if (a->m < 0 || a->n < 0 || a->k < 0)
        return error_set(FSDP_ERR_INPUT, "product of negative size (%lld x %lld x %lld)", (long long)a->m,
                         (long long)a->n, (long long)a->k);
    if (gpu_is_fp8(a->a.dtype) && gpu_is_fp8(a->b.dtype) && a->d.dtype <= FSDP_F16)
        return check_fp8(a);
    if (a->a.dtype != a->b.dtype || a->a.dtype > FSDP_F16 || a->d.dtype > FSDP_F16)
        return error_set(FSDP_ERR_INPUT, "product of %s and %s into %s: the operands must have one floating type",
                         fsdp_dtype_name(a->a.dtype), fsdp_dtype_name(a->b.dtype), fsdp_dtype_name(a->d.dtype));
    return FSDP_OK;
}

static fsdp_status library_check(cublasStatus_t status, const gemm_args *a)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return FSDP_OK;
    return error_set(FSDP_ERR_DEVICE, "cuBLASLt failed (status %d) on a product of %lld x %lld x %lld in %s",
                     (int)status, (long long)a->m, (long long)a->n, (long long)a->k, fsdp_dtype_name(a->a.dtype));
}

/* workspace_bytes: of a->workspace. */
static fsdp_status run_native(stream *s, const gemm_args *a, size_t workspace_bytes, bool *found)
{
    cuda_device *d = s->device;
    gemm_entry *entry = NULL;
    gemm_table_lock(d->gemms);
    fsdp_status status = gemm_table_find(s, a, workspace_bytes, &entry);
    *found = status == FSDP_OK && entry->usable;
    if (*found)
        status = library_check(gemm_entry_run(d, s->launch.stream, entry, a, workspace_bytes, a->c.p, a->d.p, NULL), a);
    gemm_table_unlock(d->gemms);
    return status;
}

static fsdp_status no_algorithm(const gemm_args *a)
{
    return error_set(FSDP_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s",
                     (long long)a->m, (long long)a->n, (long long)a->k, fsdp_dtype_name(a->a.dtype));
}

static fsdp_status finish(stream *s, const gemm_args *a, const float *t)
{
    return cuda_check(launch_gemm_finish(&s->launch, a, t), "finishing a product");
}

/* t = op(a) op(b) in fp32 scratch memory, then one kernel for everything else. */
static fsdp_status run_through_scratch(stream *s, const gemm_args *a)
{
    if (!a->workspace)
        return error_set(FSDP_ERR_INPUT, "a product of %s into %s needs workspace", fsdp_dtype_name(a->a.dtype),
                         fsdp_dtype_name(a->d.dtype));
    float *scratch = a->workspace;
    gemm_args plain = *a;
    plain.workspace = (char *)a->workspace + gpu_gemm_scratch(a);
    plain.alpha = 1.0f;
    plain.beta = 0.0f;
    plain.bias.p = NULL;
    plain.c = plain.d = (buffer){scratch, FSDP_F32};
    plain.ldc = plain.ldd = a->n;
    plain.stride_c = plain.stride_d = a->m * a->n;
    bool found = false;
    FSDP_TRY(run_native(s, &plain, gpu_gemm_library(&s->device->base, a), &found));
    return found ? finish(s, a, scratch) : no_algorithm(a);
}

/* d += bias, where the product itself could not take it along. */
static fsdp_status add_bias(stream *s, const gemm_args *a, buffer bias)
{
    gemm_args rest = *a;
    rest.c = a->d;
    rest.ldc = a->ldd;
    rest.stride_c = a->stride_d;
    rest.beta = 1.0f;
    rest.bias = bias;
    return finish(s, &rest, NULL);
}

static fsdp_status run(stream *s, gemm_args *a)
{
    if (a->k == 0)
        return finish(s, a, NULL);
    if (gpu_gemm_scratch(a) > 0)
        return run_through_scratch(s, a);
    if (a->beta != 0.0f && a->c.dtype != a->d.dtype) { /* the library adds only what has the result's type */
        gemm_args first = *a;
        first.bias.p = NULL;
        FSDP_TRY(finish(s, &first, NULL));
        a->c = a->d;
        a->ldc = a->ldd;
        a->stride_c = a->stride_d;
        a->beta = 1.0f;
    }
    bool found = false;
    size_t workspace_bytes = a->workspace ? s->device->base.workspace_limit : 0;
    buffer bias = a->bias;
    if (!bias.p || (bias.dtype == a->d.dtype && (uintptr_t)bias.p % 16 == 0))
        FSDP_TRY(run_native(s, a, workspace_bytes, &found));
    if (found || !bias.p)
        return found ? FSDP_OK : no_algorithm(a);
    a->bias.p = NULL;
    FSDP_TRY(run_native(s, a, workspace_bytes, &found));
    return found ? add_bias(s, a, bias) : no_algorithm(a);
}

/* The library's fast 16-bit kernels want multiples of 8 elements along whatever is contiguous; a product that is off by
 * one in such a dimension takes up to eight times as long. The few elements beyond are a product of their own. */
enum { FAST_MULTIPLE = 8, WORTH_SPLITTING = 1024 };

static buffer moved(buffer b, int64_t elements)
{
    if (b.p)
        b.p = (char *)b.p + (size_t)elements * fsdp_dtype_size(b.dtype);
    return b;
}

static int64_t beyond_multiple(int64_t size)
{
    return size >= WORTH_SPLITTING ? size % FAST_MULTIPLE : 0;
}

/* Whether all that keeps the product from the fast kernels is its size. */
static bool can_split(const gemm_args *a)
{
    const int64_t steps = a->lda | a->ldb | a->ldc | a->ldd;
    const uintptr_t addresses = (uintptr_t)a->a.p | (uintptr_t)a->b.p | (uintptr_t)a->c.p | (uintptr_t)a->d.p;
    return a->batch == 1 && fsdp_dtype_size(a->a.dtype) == 2 && gpu_gemm_scratch(a) == 0 &&
           steps % FAST_MULTIPLE == 0 && addresses % 16 == 0;
}

static fsdp_status run_columns(stream *s, const gemm_args *a)
{
    gemm_args most = *a, last = *a;
    last.n = beyond_multiple(a->n);
    most.n = a->n - last.n;
    last.b = moved(a->b, a->transpose_b ? most.n * a->ldb : most.n);
    last.bias = moved(a->bias, most.n);
    last.c = moved(a->c, most.n);
    last.d = moved(a->d, most.n);
    FSDP_TRY(run(s, &most));
    return run(s, &last);
}

static fsdp_status run_rows(stream *s, const gemm_args *a)
{
    gemm_args most = *a, last = *a;
    last.m = beyond_multiple(a->m);
    most.m = a->m - last.m;
    last.a = moved(a->a, a->transpose_a ? most.m : most.m * a->lda);
    last.c = moved(a->c, most.m * a->ldc);
    last.d = moved(a->d, most.m * a->ldd);
    FSDP_TRY(run(s, &most));
    return run(s, &last);
}

/* The few terms go first: what they lose in rounding to d's type is little of a rounding of the whole sum. */
static fsdp_status run_terms(stream *s, const gemm_args *a)
{
    gemm_args most = *a, last = *a;
    last.k = beyond_multiple(a->k);
    most.k = a->k - last.k;
    last.a = moved(a->a, a->transpose_a ? most.k * a->lda : most.k);
    last.b = moved(a->b, a->transpose_b ? most.k : most.k * a->ldb);
    last.bias.p = NULL;
    most.beta = 1.0f;
    FSDP_TRY(run(s, &last));
    return run(s, &most);
}

static fsdp_status run_split(stream *s, gemm_args *a)
{
    if (can_split(a)) {
        if (beyond_multiple(a->n))
            return run_columns(s, a);
        if (beyond_multiple(a->m) && a->transpose_a)
            return run_rows(s, a);
        if (beyond_multiple(a->k) && (!a->transpose_a || a->transpose_b) && a->beta == 0.0f)
            return run_terms(s, a);
    }
    return run(s, a);
}

fsdp_status cuda_gemm(stream *s, const gemm_args *arguments)
{
    gemm_args a = *arguments;
    FSDP_TRY(cuda_enter(s->device));
    FSDP_TRY(check_arguments(&a));
    if (a.batch < 1)
        a.batch = 1;
    if (a.m == 0 || a.n == 0)
        return FSDP_OK;
    if (a.beta == 0.0f) { /* c is not read, and may not be there */
        a.c = a.d;
        a.ldc = a.ldd;
        a.stride_c = a.stride_d;
    }
    return run_split(s, &a);
}
