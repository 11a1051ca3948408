/* Chooses what matrix products run on and hands them there. Kernels and loops are elsewhere (product_blocked.c,
 * product_rows.c, onednn_gemm.c). */
#include "device/cpu/product.h"

#include <omp.h>
#include <stdio.h>

#include "base/error.h"
#include "base/checked.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/onednn_gemm.h"
#include "device/cpu/product_blocked.h"
#include "device/cpu/product_kernel.h"

fsdp_status product_choose(cpu_product wanted, cpu_product_set *out)
{
    const cpu_features *f = cpu_features_get();
    cpu_product_set set = {.fp32 = &avx512_fp32, .bf16 = &avx512_bf16};
    set.max_threads = (int)max_i64(omp_get_num_procs(), omp_get_max_threads());
    set.onednn = wanted == CPU_PRODUCT_ONEDNN && onednn_available(f->amx_palette_listed);
    char library[32];
    onednn_name(library, sizeof library);
    snprintf(set.description, sizeof set.description, "fp32 %s, bf16 %s", set.onednn ? library : set.fp32->name,
             set.bf16->name);
    *out = set;
    return FSDP_OK;
}

const char *product_describe(const cpu_product_set *set)
{
    return set->description;
}

static bool is_floating(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16;
}

static bool is_empty(const gemm_args *a)
{
    return a->m <= 0 || a->n <= 0 || a->batch <= 0;
}

static bool onednn_fits(const gemm_args *a)
{
    return a->k > 0 && a->a.dtype == FSDP_F32 && a->d.dtype == FSDP_F32 && (a->beta == 0.0f || a->c.dtype == FSDP_F32) &&
           (!a->bias.p || a->bias.dtype == FSDP_F32);
}

static const product_kernel *kernel_for(const cpu_product_set *set, const gemm_args *a)
{
    return a->a.dtype == FSDP_BF16 ? set->bf16 : set->fp32;
}

static fsdp_status check(const gemm_args *a)
{
    if (a->m < 0 || a->n < 0 || a->k < 0 || a->batch < 0)
        return error_set(FSDP_ERR_INPUT, "matrix product of %lld x %lld x %lld, batch %lld: sizes must not be negative",
                         (long long)a->m, (long long)a->n, (long long)a->k, (long long)a->batch);
    if (a->a.dtype != a->b.dtype)
        return error_set(FSDP_ERR_INPUT, "matrix product of %s and %s: both operands must have one dtype",
                         fsdp_dtype_name(a->a.dtype), fsdp_dtype_name(a->b.dtype));
    if (!is_floating(a->a.dtype) || !is_floating(a->d.dtype) || (a->beta != 0.0f && !is_floating(a->c.dtype)) ||
        (a->bias.p && !is_floating(a->bias.dtype)))
        return error_set(FSDP_ERR_INPUT, "matrix product: operands must be fp32, bf16 or fp16");
    return FSDP_OK;
}

size_t product_gemm_workspace(const cpu_product_set *set, const gemm_args *a)
{
    if (is_empty(a) || (set->onednn && onednn_fits(a)))
        return 0;
    return product_blocked_workspace(kernel_for(set, a), set->max_threads, a);
}

fsdp_status product_gemm(const cpu_product_set *set, const gemm_args *a)
{
    FSDP_TRY(check(a));
    if (is_empty(a))
        return FSDP_OK;
    if (set->onednn && onednn_fits(a))
        return onednn_gemm(a);
    if (!a->workspace)
        return error_set(FSDP_ERR_STATE, "matrix product of %lld x %lld x %lld was given no workspace; it needs %zu bytes",
                         (long long)a->m, (long long)a->n, (long long)a->k, product_gemm_workspace(set, a));
    product_blocked(kernel_for(set, a), set->max_threads, a);
    return FSDP_OK;
}
