/* fp32 products through oneDNN's row-major sgemm. What sgemm does not know (a c that is not d, a bias) is put into d
 * before the product, which then adds to it. */
#include "device/cpu/gemm/onednn.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "device/cpu/parallel.h"

#ifdef FSDP_WITH_ONEDNN
#include <dnnl.h>

bool onednn_available(bool tiles_safe)
{
    /* Refused when a product ran before; then the choice made at that time stands, and that is ours. */
    dnnl_set_max_cpu_isa(tiles_safe ? dnnl_cpu_isa_all : dnnl_cpu_isa_avx512_core_bf16);
    return true;
}

void onednn_name(char *out, size_t bytes)
{
    const dnnl_version_t *v = dnnl_version();
    snprintf(out, bytes, "oneDNN %d.%d", v->major, v->minor);
}

typedef struct preparation {
    const gemm_args *args;
    float *d;
    const float *c;
} preparation;

/* Row i of d = beta * c + bias */
static void prepare_row(const void *context, int64_t i)
{
    const preparation *p = context;
    const gemm_args *a = p->args;
    const float *bias = a->bias.p;
    float *to = p->d + i * a->ldd;
    if (a->beta == 0.0f)
        memcpy(to, bias, (size_t)a->n * sizeof *to);
    else
        for (int64_t j = 0; j < a->n; j++)
            to[j] = a->beta * p->c[i * a->ldc + j] + (bias ? bias[j] : 0.0f);
}

fsdp_status onednn_gemm(const gemm_args *a, int threads)
{
    for (int64_t i = 0; i < a->batch; i++) {
        float *d = (float *)a->d.p + i * a->stride_d;
        const float *c = a->beta == 0.0f ? NULL : (const float *)a->c.p + i * a->stride_c;
        float beta = a->beta;
        if (a->bias.p || (c && (c != d || a->ldc != a->ldd))) {
            preparation p = {.args = a, .d = d, .c = c};
            parallel_for(a->m * a->n > 1 << 16 ? threads : 1, a->m, 1, prepare_row, &p);
            beta = 1.0f;
        }
        dnnl_status_t status = dnnl_sgemm(a->transpose_a ? 'T' : 'N', a->transpose_b ? 'T' : 'N', a->m, a->n, a->k,
                                          a->alpha, (const float *)a->a.p + i * a->stride_a, a->lda,
                                          (const float *)a->b.p + i * a->stride_b, a->ldb, beta, d, a->ldd);
        if (status != dnnl_success)
            return error_set(status == dnnl_out_of_memory ? FSDP_ERR_MEMORY : FSDP_ERR_DEVICE,
                             "oneDNN refused a product of %lld x %lld x %lld (status %d)", (long long)a->m,
                             (long long)a->n, (long long)a->k, (int)status);
    }
    return FSDP_OK;
}

#else

bool onednn_available(bool tiles_safe)
{
    (void)tiles_safe;
    return false;
}

void onednn_name(char *out, size_t bytes)
{
    if (bytes)
        out[0] = '\0';
}

fsdp_status onednn_gemm(const gemm_args *a, int threads)
{
    (void)a;
    (void)threads;
    return error_set(FSDP_ERR_UNSUPPORTED, "this build has no oneDNN; configure with -DFSDP_ONEDNN=ON");
}

#endif
