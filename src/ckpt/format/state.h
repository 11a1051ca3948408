/* What a checkpoint holds, as its producer describes it: global named tensors, and the slices of them that this rank
 * has. Checkpoints know nothing of units, shards and strategies; their owner (the sharded model, the optimizer) lists
 * its slices, and any other world can ask for its own slices of the same tensors later. */
#ifndef CKPT_FORMAT_STATE_H
#define CKPT_FORMAT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/kinds.h>
#include <fsdp/status.h>

#include "base/json.h"
#include "format/weights/safetensors.h"

#define CKPT_MAX_DIMS SAFETENSORS_MAX_DIMS

#define CKPT_N_KINDS (FSDP_CKPT_LOCAL + 1)

const char *ckpt_kind_name(fsdp_checkpoint_kind kind); /* "sharded", "full", "local" */
fsdp_status ckpt_kind_parse(const char *name, fsdp_checkpoint_kind *out);

/* What a tensor is to training. The names in files are those of ckpt_role_name. */
typedef enum ckpt_role {
    CKPT_PARAMETER, /* master value */
    CKPT_BUFFER,    /* part of the model that gradients do not reach: running statistics */
    CKPT_MOMENT1,   /* optimizer state of the parameter of the same name */
    CKPT_MOMENT2,
    CKPT_OTHER,   /* further optimizer state of that parameter */
    CKPT_AVERAGE, /* of that parameter over the steps */
    CKPT_ROWS,    /* second moments of that parameter as means of rows, */
    CKPT_COLUMNS, /* and of columns: Adafactor's */
    CKPT_ROLE_COUNT
} ckpt_role;

#define CKPT_ROLE_BIT(role) (1u << (role))
#define CKPT_ROLES_MODEL (CKPT_ROLE_BIT(CKPT_PARAMETER) | CKPT_ROLE_BIT(CKPT_BUFFER))
#define CKPT_ROLES_OPTIMIZER                                                                                           \
    (CKPT_ROLE_BIT(CKPT_MOMENT1) | CKPT_ROLE_BIT(CKPT_MOMENT2) | CKPT_ROLE_BIT(CKPT_OTHER) |                           \
     CKPT_ROLE_BIT(CKPT_AVERAGE) | CKPT_ROLE_BIT(CKPT_ROWS) | CKPT_ROLE_BIT(CKPT_COLUMNS))
#define CKPT_ROLES_ALL (CKPT_ROLES_MODEL | CKPT_ROLES_OPTIMIZER)

const char *ckpt_role_name(ckpt_role role); /* "parameter", "moment1", ... */
bool ckpt_role_parse(const char *name, ckpt_role *out);
/* By role, then by name; for qsort and bsearch of whatever has both. */
int ckpt_role_order(ckpt_role a_role, const char *a_name, ckpt_role b_role, const char *b_name);

/* A global tensor; values are exchanged as fp32. (role, name) is unique. Every rank lists all of them, in the same
 * order. */
typedef struct ckpt_tensor {
    const char *name;
    ckpt_role role;
    int n_dims;
    int64_t shape[CKPT_MAX_DIMS];
    bool base; /* frozen, beside adapters: a checkpoint may refer to it instead of holding it (ckpt/load/base.h) */
    fsdp_dtype dtype; /* in files: fp32, or bf16 for what has no more bits; an export chooses the model's itself */
} ckpt_tensor;

int64_t ckpt_tensor_numel(const ckpt_tensor *tensor);

/* Elements first .. first + count - 1 of a tensor (flat, row-major), as they lie with this rank. A rank may have
 * several slices of a tensor, of any size, in any order; its own do not overlap. Over all ranks the slices that have
 * `writes` set tile every tensor: where ranks hold the same elements (replicas), the producer sets it on one of them.
 */
typedef struct ckpt_slice {
    int tensor; /* index */
    int64_t first, count;
    float *data;  /* host memory of the elements; NULL: reached through the state's read and write */
    void *handle; /* the producer's, for those */
    bool writes;  /* this rank saves these elements (kind local saves all) */
} ckpt_slice;

/* Borrowed throughout; save and load say for how long. */
typedef struct ckpt_state {
    size_t size;
    int n_tensors;
    const ckpt_tensor *tensors;
    int n_slices;
    const ckpt_slice *slices;

    /* Elements first .. first + n - 1 of the slice (counted from its own start) out of or into wherever they lie.
     * Called on the thread that calls save or load, one call at a time; read in ascending order within a slice, write
     * in any. May be NULL when every slice has data. */
    fsdp_status (*read)(void *context, const ckpt_slice *slice, int64_t first, int64_t n, float *out);
    fsdp_status (*write)(void *context, const ckpt_slice *slice, int64_t first, int64_t n, const float *in);
    void *context;

    const json_t *extra; /* object, the same on all ranks: step, data position, random state, schedule, scaler */

    /* What the run chose by measuring and must choose again for the same bits (which kernel for which shape): bytes
     * that are not read here. Rank 0's are saved (kind local: each rank's own), all ranks get them back. */
    const void *autotune; /* NULL: none */
    size_t autotune_bytes;
} ckpt_state;

#define CKPT_MAX_AUTOTUNE_BYTES ((size_t)4 << 20)

#define CKPT_STATE_INIT                                                                                                \
    {                                                                                                                  \
        .size = sizeof(ckpt_state)                                                                                     \
    }

/* FSDP_ERR_STATE, with the tensor named, when the description contradicts itself (slices outside their tensor or
 * overlapping, a name listed twice, no way to reach elements). What other ranks have is not looked at. */
fsdp_status ckpt_state_check(const ckpt_state *state);

/* Bytes of the slices that this rank saves; `all` counts those of replicas too (kind local). */
int64_t ckpt_state_bytes(const ckpt_state *state, bool all);

/* Bytes of all tensors whose role is in the mask, over the whole world. */
int64_t ckpt_state_total_bytes(const ckpt_state *state, unsigned roles);

#endif
