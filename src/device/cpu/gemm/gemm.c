/* Chooses what matrix products run on and hands them there. Kernels and loops are elsewhere (blocked.c,
 * rows.c, onednn.c). */
#include "device/cpu/gemm/gemm.h"

#include <stdio.h>

#include "base/error.h"
#include "base/checked.h"
#include "base/host/threads.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/fp8.h"
#include "device/cpu/gemm/onednn.h"
#include "device/cpu/gemm/blocked.h"
#include "device/cpu/gemm/kernel.h"
#include "device/cpu/gemm/probe.h"
#include "device/cpu/gemm/rows.h"

enum { MAX_THREADS = 128 }; /* more would not fit their sums into the workspace */

/* The kernels this processor runs best, oneDNN left aside. */
static const gemm_kernel *best_fp32(const cpu_features *f)
{
#if defined(__x86_64__)
    if (f->avx512)
        return &avx512_fp32;
#endif
    (void)f;
    return &gemm_portable;
}

static const gemm_kernel *best_bf16(const cpu_features *f, bool with_amx)
{
#if defined(__x86_64__)
    if (with_amx && !gemm_probe_amx())
        return &amx_bf16;
    if (f->avx512_bf16_fast)
        return &avx512_bf16;
#endif
    (void)with_amx;
    return best_fp32(f); /* widening beats a vdpbf16ps that runs at half the rate of fp32 */
}

static fsdp_status check_wanted(cpu_gemm wanted, const cpu_features *f)
{
    const char *no_amx = wanted == CPU_GEMM_AMX ? gemm_probe_amx() : NULL;
    if (no_amx)
        return error_set(FSDP_ERR_UNSUPPORTED, "matrix products with AMX were asked for, but %s", no_amx);
    if (wanted == CPU_GEMM_AVX512 && !f->avx512)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "matrix products with AVX-512 were asked for, but this processor, or its "
                         "system, has no AVX-512 F, BW, DQ and VL");
    if (wanted == CPU_GEMM_ONEDNN && !onednn_available(f->amx_palette_listed))
        return error_set(FSDP_ERR_UNSUPPORTED, "matrix products by oneDNN were asked for, but this build has none; "
                                               "configure with -DFSDP_ONEDNN=ON and libdnnl-dev installed");
    return FSDP_OK;
}

/* Our own fp32 kernel goes before oneDNN wherever it has AVX-512: as fast, the same bits for any number of threads, and
 * no allocation in a step, which oneDNN makes in every call. */
static bool prefers_onednn(cpu_gemm wanted, const cpu_features *f)
{
    if (wanted == CPU_GEMM_ONEDNN)
        return true;
    return wanted == CPU_GEMM_AUTO && !f->avx512 && onednn_available(f->amx_palette_listed);
}

static void describe(cpu_gemm_set *set, const char *remark)
{
    char library[32];
    onednn_name(library, sizeof library);
    snprintf(set->description, sizeof set->description, "fp32 %s, bf16 %s%s%s", set->onednn ? library : set->fp32->name,
             set->bf16->name, set->bf16 == set->fp32 && set->fp32 != &gemm_portable ? " (widened)" : "", remark);
}

fsdp_status gemm_choose(cpu_gemm wanted, cpu_gemm_set *out)
{
    const cpu_features *f = cpu_features_get();
    FSDP_TRY(check_wanted(wanted, f));
    cpu_gemm_set set = {.fp32 = best_fp32(f), .bf16 = best_bf16(f, wanted != CPU_GEMM_AVX512)};
    if (wanted == CPU_GEMM_PORTABLE)
        set.fp32 = set.bf16 = &gemm_portable;
    set.onednn = prefers_onednn(wanted, f);
    set.max_threads = (int)min_i64(threads_count(), MAX_THREADS);
    bool failed = wanted == CPU_GEMM_AUTO && f->amx_bf16 && gemm_probe_amx();
    describe(&set, failed ? "; AMX is listed but failed its trial" : "");
    *out = set;
    return FSDP_OK;
}

const char *gemm_describe(const cpu_gemm_set *set)
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
    return a->k > 0 && a->a.dtype == FSDP_F32 && a->d.dtype == FSDP_F32 &&
           (a->beta == 0.0f || a->c.dtype == FSDP_F32) && (!a->bias.p || a->bias.dtype == FSDP_F32);
}

static const gemm_kernel *kernel_for(const cpu_gemm_set *set, const gemm_args *a)
{
    return a->a.dtype == FSDP_BF16 ? set->bf16 : set->fp32;
}

static bool is_fp8(const gemm_args *a)
{
    return fp8_is(a->a.dtype) && fp8_is(a->b.dtype);
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

size_t gemm_workspace_bytes(const cpu_gemm_set *set, const gemm_args *a)
{
    if (is_fp8(a))
        return fp8_gemm_workspace(set, a);
    if (is_empty(a) || gemm_rows_fit(a) || (set->onednn && onednn_fits(a)))
        return 0;
    return gemm_blocked_workspace(kernel_for(set, a), set->max_threads, a);
}

fsdp_status gemm_gemm(const cpu_gemm_set *set, const gemm_args *a)
{
    if (is_fp8(a))
        return fp8_gemm(set, a);
    FSDP_TRY(check(a));
    if (is_empty(a))
        return FSDP_OK;
    if (set->onednn && onednn_fits(a))
        return onednn_gemm(a, set->max_threads);
    if (gemm_rows_fit(a)) {
        gemm_rows(kernel_for(set, a), set->max_threads, a);
        return FSDP_OK;
    }
    if (!a->workspace)
        return error_set(FSDP_ERR_STATE,
                         "matrix product of %lld x %lld x %lld was given no workspace; it needs %zu bytes",
                         (long long)a->m, (long long)a->n, (long long)a->k, gemm_workspace_bytes(set, a));
    gemm_blocked(kernel_for(set, a), set->max_threads, a);
    return FSDP_OK;
}
