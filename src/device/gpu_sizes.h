/* Sizes that the GPU's launchers, their C callers and plans must agree on. Also included by the .cu files. */
#ifndef DEVICE_GPU_SIZES_H
#define DEVICE_GPU_SIZES_H

#include <stddef.h>
#include <stdint.h>

#include "device/kernels.h"

static inline int64_t launch_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t launch_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t launch_ceil(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit;
}

/* Row chunks that sums over rows are cut into: each gives one partial row, summed in order afterwards. */
static inline int64_t partial_rows(int n_multiprocessors, int64_t rows)
{
    return launch_max(1, launch_min(rows, (int64_t)n_multiprocessors * 4));
}

/* Partial sums of a flat reduction. */
#define SUM_PARTIALS 1024

/* Workspace of the embedding gradient: counts, offsets and two lists of rows. */
static inline size_t embedding_workspace_bytes(int64_t rows, int64_t vocabulary)
{
    return (size_t)(vocabulary + (vocabulary + 1) + 2 * rows + 64) * sizeof(int32_t);
}

/* How bias gradients are brought together (see attention_bias.cu). */
typedef enum bias_form {
    BIAS_FULL,     /* every (query, key) has its own element */
    BIAS_DIAGONAL, /* by key - query */
    BIAS_KEY,      /* by key alone */
    BIAS_QUERY,    /* by query alone */
    BIAS_OTHER,    /* no deterministic sum known */
} bias_form;

static inline bias_form attention_bias_form(const attention_args *a)
{
    int64_t query = a->bias_query < 0 ? -a->bias_query : a->bias_query;
    int64_t key = a->bias_key < 0 ? -a->bias_key : a->bias_key;
    if (query == 0 && key == 0)
        return BIAS_OTHER; /* one number for all, or no bias at all */
    if (a->bias_query == -a->bias_key)
        return BIAS_DIAGONAL;
    if (query == 0)
        return BIAS_KEY;
    if (key == 0)
        return BIAS_QUERY;
    if (query >= key * a->kv_length || key >= query * a->q_length)
        return BIAS_FULL;
    return BIAS_OTHER;
}

/* Floats of partial bias gradients with tiles of T queries by T keys: fewer than 2 T sums for each of them, for every
 * batch and head that has a bias of its own. */
static inline int64_t attention_bias_floats(const attention_args *a, int64_t tile)
{
    int64_t batches = a->bias_batch ? a->batch : 1, heads = a->bias_head ? a->q_heads : 1;
    return batches * heads * launch_ceil(a->q_length, tile) * launch_ceil(a->kv_length, tile) * 2 * tile;
}

/* Enough for either of the two tile sizes of the own kernel. */
static inline size_t attention_bias_bytes(const attention_args *a)
{
    bias_form form = attention_bias_form(a);
    if (form == BIAS_FULL || form == BIAS_OTHER)
        return 0;
    return (size_t)launch_max(attention_bias_floats(a, 32), attention_bias_floats(a, 64)) * sizeof(float);
}

static inline size_t attention_own_backward_bytes(const attention_args *a)
{
    size_t delta = (size_t)(a->batch * a->q_heads * a->q_length) * sizeof(float);
    return (delta + 255) / 256 * 256 + attention_bias_bytes(a);
}

#endif
