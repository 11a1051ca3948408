/* Symmetric products: on Hopper by the own kernel of symmetric.cu, which leaves out what lies above the diagonal;
 * elsewhere, and where rows do not begin on 16 bytes, whole by cuBLASLt, with the mirror after it. */
#include "device/cuda/gemm/symmetric.h"

#include <string.h>

#include <cudaTypedefs.h>

#include "base/checked.h"
#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "device/symmetric.h"

#if CUDART_VERSION >= 12050
/* The driver is not linked, so that programs start without one. */
static PFN_cuTensorMapEncodeTiled_v12000 find_encoder(void)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    PFN_cuTensorMapEncodeTiled_v12000 encoder;
    memcpy(&encoder, &function, sizeof encoder);
    return encoder;
}

/* x: (n, k) */
static bool make_map(PFN_cuTensorMapEncodeTiled_v12000 encode, const uint16_t *x, int64_t n, int64_t k,
                     CUtensorMap *out)
{
    const cuuint64_t size[2] = {(cuuint64_t)k, (cuuint64_t)n}, row_bytes[1] = {(cuuint64_t)k * sizeof *x};
    const cuuint32_t box[2] = {SYMMETRIC_BOX_DEPTH, SYMMETRIC_BOX_ROWS}, step[2] = {1, 1};
    return encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)(uintptr_t)x, size, row_bytes, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool fits(const symmetric_item *x, bool has_c)
{
    const uintptr_t addresses =
        (uintptr_t)x->a | (uintptr_t)x->b | (uintptr_t)x->d | (has_c ? (uintptr_t)x->c : (uintptr_t)0);
    return x->n % 8 == 0 && x->k % 8 == 0 && x->n > 0 && x->k > 0 && x->n < 1 << 24 && x->k < 1 << 30 &&
           addresses % 16 == 0;
}

/* Tiles whose first column is not beyond their last row. */
static int tiles_of(int64_t n)
{
    int tiles = 0;
    for (int64_t i = 0; i * SYMMETRIC_BOX_ROWS < n; i++)
        tiles += (int)(i / 2 + 1);
    return tiles;
}

/* The deepest first: what is left for the last blocks is short then. */
static void sort_by_depth(const symmetric_args *a, int order[SYMMETRIC_ITEMS])
{
    for (int i = 0; i < a->n_items; i++) {
        int k = i;
        for (; k > 0 && a->items[order[k - 1]].k < a->items[i].k; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

static bool describe(const cuda_device *d, const symmetric_args *a, symmetric_launch *out)
{
    int order[SYMMETRIC_ITEMS];
    if (d->gpu.compute_capability != 90 || a->n_items > SYMMETRIC_ITEMS)
        return false;
    for (int i = 0; i < a->n_items; i++)
        if (!fits(&a->items[i], a->beta != 0.0f))
            return false;
    PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
    if (!encode)
        return false;
    *out = (symmetric_launch){.alpha = a->alpha, .beta = a->beta, .gamma = a->gamma};
    sort_by_depth(a, order);
    for (int i = 0; i < a->n_items; i++) {
        const symmetric_item *x = &a->items[order[i]];
        out->items[i] =
            (symmetric_matrix){.n = (int)x->n, .k = (int)x->k, .tiles = tiles_of(x->n), .c = x->c, .d = x->d};
        out->tiles += out->items[i].tiles;
        if (!make_map(encode, x->a, x->n, x->k, &out->a[i]) || !make_map(encode, x->b, x->n, x->k, &out->b[i]))
            return false;
    }
    return true;
}
#endif

static fsdp_status run_whole(stream *s, const symmetric_args *a, const symmetric_item *x)
{
    const gemm_args product = symmetric_gemm(a, x, 0, x->n);
    FSDP_TRY(cuda_gemm(s, &product));
    return x->n == 0 ? FSDP_OK : cuda_check(launch_mirror(&s->launch, a, x), "mirroring a product");
}

fsdp_status cuda_symmetric(stream *s, const symmetric_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
#if CUDART_VERSION >= 12050
    symmetric_launch products;
    if (describe(s->device, a, &products))
        return products.tiles == 0 ? FSDP_OK
                                   : cuda_check(launch_symmetric(&s->launch, &products), "symmetric products");
#endif
    for (int i = 0; i < a->n_items; i++)
        FSDP_TRY(run_whole(s, a, &a->items[i]));
    return FSDP_OK;
}
