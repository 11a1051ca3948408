/* Attention's operands for bf16 products: when they are used, what is packed how, and panels of keys and values that
 * are kept from one tile of queries to the next. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_PANELS_H
#define DEVICE_CPU_SIMD_ATTENTION_PANELS_H

#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/panels.h"
#include "device/cpu/simd/attention.h"

#define FEW_QUERIES 16    /* so many and fewer are not worth packing keys and values for */
#define KEY_TILES_KEPT 64 /* at most, by each thread */

/* The kernel for bf16 products, or NULL: products are fp32. Depends on nothing that is unknown when memory is planned.
 */
static inline const gemm_kernel *attention_kernel(const struct device *d, const attention_args *a)
{
    const gemm_kernel *kernel = ((const device_cpu *)d)->product.bf16;
    bool bf16 = a->q.dtype == FSDP_BF16 && a->k.dtype == FSDP_BF16 && a->v.dtype == FSDP_BF16;
    bool takes_bf16 = kernel->element_bytes == sizeof(uint16_t) && cpu_features_get()->avx512_bf16;
    return bf16 && takes_bf16 && a->q_length > FEW_QUERIES ? kernel : NULL;
}

/* Rows `at`, `at + row`, ... of a buffer, each head_dim long, as an operand of a product over the head, or over them.
 */
static inline panel_source over_head(const attention_args *a, buffer b, int64_t at, int64_t row, int64_t n)
{
    return (panel_source){element_address(b, at), b.dtype,    .stride_i = row,
                          .stride_k = 1,          .count = n, .depth = a->head_dim};
}

static inline panel_source over_rows(const attention_args *a, buffer b, int64_t at, int64_t row, int64_t n)
{
    return (panel_source){element_address(b, at), b.dtype,   .stride_i = 1, .stride_k = row,
                          .count = a->head_dim,   .depth = n};
}

/* A tile of weights (n_keys, lanes) as an operand of a product over its queries, or over its keys. */
static inline panel_source over_queries(const query_tile *t, const float *weights, int64_t n_keys)
{
    return (panel_source){weights, FSDP_F32, .stride_i = t->lanes, .stride_k = 1, .count = n_keys, .depth = t->n};
}

static inline panel_source over_keys(const query_tile *t, const float *weights, int64_t n_keys)
{
    return (panel_source){weights, FSDP_F32, .stride_i = 1, .stride_k = t->lanes, .count = t->n, .depth = n_keys};
}

/* A tile of keys as rows over the head, or of values. */
static inline size_t key_bytes(const attention_args *a, const gemm_kernel *kernel)
{
    return panels_bytes(kernel, PANEL_ROWS, KEYS, a->head_dim);
}

/* The tiles of keys, and their values, that a thread has packed last: tile i, counted over all heads and samples, in
 * slot i modulo n_slots. */
typedef struct kept_keys {
    int64_t n_slots;
    int64_t *held; /* the tile in each slot; -1: none */
    char *panels;
    size_t slot_bytes;
} kept_keys;

static inline int64_t tiles_of_keys(const attention_args *a)
{
    return ceil_div(a->kv_length, KEYS);
}

static inline kept_keys kept_keys_lay(const attention_args *a, size_t slot_bytes, layout *l)
{
    kept_keys k = {.n_slots = max_i64(1, min_i64(KEY_TILES_KEPT, tiles_of_keys(a))), .slot_bytes = slot_bytes};
    k.held = layout_take(l, (size_t)k.n_slots * sizeof *k.held);
    k.panels = layout_take(l, (size_t)k.n_slots * slot_bytes);
    for (int64_t i = 0; l->base && i < k.n_slots; i++)
        k.held[i] = -1;
    return k;
}

/* The tile's slot; `packed`: it is there already. */
static inline char *kept_keys_slot(const kept_keys *kept, const attention_args *a, const key_tile *k, bool *packed)
{
    int64_t tile = (k->batch * a->kv_heads + k->head) * tiles_of_keys(a) + k->first / KEYS, slot = tile % kept->n_slots;
    *packed = kept->held[slot] == tile;
    kept->held[slot] = tile;
    return kept->panels + (size_t)slot * kept->slot_bytes;
}

#endif
