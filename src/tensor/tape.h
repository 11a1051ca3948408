/* The recording: tensors, nodes (one operation each) and what their backward reads.
 * Leaves to program.h: the order of execution, gradients, memory. */
#ifndef TENSOR_TAPE_H
#define TENSOR_TAPE_H

#include <stddef.h>

#include <fsdp/tensor.h>

#include "base/arena.h"
#include "base/rng.h"
#include "device/device.h"
#include "tensor/parameter.h"

typedef struct node node;
typedef struct op_def op_def;
typedef struct storage storage;

typedef enum tensor_kind {
    TENSOR_VALUE,     /* computed by a node */
    TENSOR_PARAMETER, /* lies where its parameter (or the head of its group) says */
    TENSOR_INPUT,     /* host data, given anew each step */
    TENSOR_BUFFER,    /* device memory that outlives steps (rope tables, running statistics) */
} tensor_kind;

struct fsdp_tensor {
    fsdp_tape *tape;
    int id;
    tensor_kind kind;
    fsdp_dtype dtype;
    int n_dims;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t numel;
    bool requires_grad;
    bool is_output; /* asked for with fsdp_output */
    bool cleared;   /* zero before the program's first instruction: maxima that kernels raise */
    bool keep;      /* marked with fsdp_keep: kept although its node lies in a checkpointed region */

    node *producer; /* NULL unless TENSOR_VALUE */
    int n_consumers;
    fsdp_parameter *parameter; /* TENSOR_PARAMETER: the parameter or the head of the group */
    const void *pointer;       /* TENSOR_INPUT: host data; TENSOR_BUFFER: device memory */

    /* Filled in by the program: whether the value is wanted after the step (outputs, the loss) and kept for backward;
     * its memory as forward computes it, as backward sees it (another one when it is computed again), and that of its
     * gradient. Storages may be shared: reshapes, operations in place. */
    bool wanted, kept;
    bool grad_measured; /* who writes its gradient last leaves its magnitude (op_def.scales) */
    storage *data, *replay, *grad;
};

struct node {
    const op_def *op;
    int index;
    int n_inputs, n_outputs;
    fsdp_tensor **inputs;  /* entries may be NULL: optional operands */
    fsdp_tensor **outputs; /* what backward needs besides (row statistics, chosen indices) are outputs too */
    void *attributes;      /* the operation's own numbers; plain bytes, part of the signature */
    size_t attributes_bytes;

    uint32_t saves_inputs;  /* bit i: backward reads input i */
    uint32_t saves_outputs; /* bit i: backward reads output i */
    uint32_t keeps_outputs; /* bit i: output i is kept even when the node is computed again (batch statistics) */
    bool requires_grad;
    int region;       /* checkpointed region, -1 outside */
    const char *name; /* what traces and messages call it; NULL: the operation's */
};

struct fsdp_tape {
    arena *memory;
    const device *target; /* sizes workspaces */
    bool training;
    uint64_t seed;
    int peers; /* ranks whose values fsdp_all_gather joins; 0 counts as 1 */

    node **nodes;
    int n_nodes, nodes_capacity;
    fsdp_tensor **tensors;
    int n_tensors, tensors_capacity;

    int region, n_regions; /* current region or -1 */
    int no_grad_depth;
    int64_t counted_rows; /* set while recording: samples from here on only pad the batch; -1: all count */
    /* Set by the code that runs the model, before recording; part of the plan, so they stay as they are. */
    bool recompute_cheap; /* operations marked cheap are computed again in backward instead of kept */
    bool shadow;    /* layers in 8 bits compute in the type of their operands, and measure what 8 bits would give */
    bool selective; /* fsdp_keep counts: checkpointed regions keep what their model marked */

    fsdp_status status;
    char message[512];
    uint64_t signature;

    /* The planned program this recording matched; fsdp_read looks values up there. Set by the code that runs it. */
    struct program *program;
    void *owner; /* the owner of the tape: the sharded model */
};

fsdp_status tape_create(const device *target, fsdp_tape **out);
void tape_free(fsdp_tape *t);
/* The same recording once more, in memory of its own: for another program of it. Ids are the same. The caller owns
 * *out. */
fsdp_status tape_copy(const fsdp_tape *t, fsdp_tape **out);

/* Begins a recording: forgets the last one, keeps its memory. */
void tape_reset(fsdp_tape *t, bool training);

/* Leaf tensors. */
fsdp_tensor *tape_parameter(fsdp_tape *t, fsdp_parameter *p); /* on its own */
fsdp_tensor *tape_parameter_group(fsdp_tape *t,
                                  fsdp_parameter *p); /* p heads a group: members stacked along the first dimension */
fsdp_tensor *tape_buffer(fsdp_tape *t, fsdp_dtype dtype, int n_dims, const int64_t *shape, void *memory);

/* For operations: a result, a node. `attributes` is copied. NULL inputs are allowed where the operation allows them.
 * saves_* are what backward reads; requires_grad follows from the inputs. Returns NULL when the tape has failed. */
fsdp_tensor *tape_value(fsdp_tape *t, fsdp_dtype dtype, int n_dims, const int64_t *shape);
fsdp_tensor *tape_maxima(fsdp_tape *t, int64_t n); /* n fp32 numbers that are 0 before the program's first operation */
node *tape_record(fsdp_tape *t, const op_def *op, int n_inputs, fsdp_tensor *const *inputs, int n_outputs,
                  fsdp_tensor *const *outputs, const void *attributes, size_t attributes_bytes, uint32_t saves_inputs,
                  uint32_t saves_outputs);

/* One more output of a node that is recorded; false when the tape has failed. */
bool tape_add_output(fsdp_tape *t, node *n, fsdp_tensor *output);

/* Sets the tape's error from a message and returns NULL, for `return tape_refuse(t, "linear: ...")`. */
fsdp_tensor *tape_refuse(fsdp_tape *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool tape_failed(const fsdp_tape *t);

/* "(4, 512, 64)", for messages; in the tape's memory. */
const char *tape_shape_text(fsdp_tape *t, const fsdp_tensor *x);

/* Product of all dimensions but the last; 1 for a vector. */
int64_t tensor_rows(const fsdp_tensor *x);
int64_t tensor_columns(const fsdp_tensor *x); /* the last dimension */
size_t tensor_bytes(const fsdp_tensor *x);
bool tensor_same_shape(const fsdp_tensor *a, const fsdp_tensor *b);

#endif
