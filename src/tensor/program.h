/* A recording made executable: the order of instructions (forward, what is computed again, backward), where every
 * gradient is first written and later added to, and the place of every value in one slab of memory, or in host memory
 * while nobody reads it.
 * Knows nothing of sharding: those above ask where parameters are used and hang their work between instructions. */
#ifndef TENSOR_PROGRAM_H
#define TENSOR_PROGRAM_H

#include "tensor/op.h"

typedef struct transfer transfer;

typedef struct instruction {
    run_phase phase;
    node *n;      /* NULL for the phases of a transfer */
    uint32_t add; /* backward, bit i: add to the gradient of input i instead of overwriting it */
    storage *workspace;
    transfer *moved; /* NULL for the phases of a node */
} instruction;

/* Memory of one or several tensors. Planned ones live in the slab from instruction `first` to `last`. */
struct storage {
    storage *shared; /* this storage is that one; NULL: it stands for itself */
    bool planned;
    bool may_leave; /* to host memory, between forward and backward */
    bool cleared;   /* fsdp_tensor.cleared */
    size_t bytes;
    int first, last;
    int forward_last, backward_first; /* of its uses, -1: none */
    size_t offset;
};

/* A value that spends the time between its last use in forward and its first in backward in host memory. Its copies run
 * on a stream of their own: STORE starts one after the last use, STORED makes the compute stream wait for it (the
 * memory is free from there on), FETCH starts the copy back, FETCHED makes the compute stream wait for that.
 * Within a program every STORE is followed by its STORED and every FETCH by its FETCHED, in this order, so all of it
 * together can be recorded as one graph; a part of it only where it holds neither half of such a pair. */
struct transfer {
    storage *from, *to; /* the stay in forward, the stay in backward */
    size_t host_offset;
    event *done; /* recorded after each of the two copies */
};

typedef struct program program;

typedef struct program_options {
    bool backward;     /* compute gradients from `root` */
    bool stage_inputs; /* host inputs are copied into the slab first (devices with memory of their own) */
    /* Inputs of checkpointed regions of at least this size wait for backward in host memory; 0: none does. */
    size_t offload_bytes;
} program_options;

/* Takes the tape on success (the program lives in its memory); the caller keeps it on failure. `root` is the loss
 * sum when options->backward, else NULL. */
fsdp_status program_compile(fsdp_tape *t, fsdp_tensor *root, const program_options *options, program **out);
void program_free(program *p);

size_t program_slab_bytes(const program *p);
size_t program_host_bytes(const program *p); /* of values that wait in host memory */
int program_length(const program *p);        /* instructions */
const instruction *program_at(const program *p, int index);
int program_forward_length(const program *p); /* instructions before the first of backward */
const fsdp_tape *program_tape(const program *p);
int program_transfers(const program *p); /* values that wait in host memory */
/* Which of them an instruction moves. */
int program_transfer_index(const program *p, const instruction *step);

/* Work between instructions: called before instruction `index` runs (index == length: at the end). */
typedef fsdp_status (*program_hook)(void *context, int index);

/* First and last instruction of forward and of backward that read the parameter's value, and that write its gradient;
 * -1: none. */
typedef struct parameter_use {
    fsdp_parameter *parameter;
    int forward_first, forward_last, backward_first, backward_last, grad_first, grad_last;
} parameter_use;

/* One entry per parameter that the program touches. The array belongs to the program. */
const parameter_use *program_parameter_uses(const program *p, int *n);

typedef struct program_run_args {
    device *dev;
    stream *compute;
    uint8_t *slab; /* program_slab_bytes() */
    uint8_t *host; /* program_host_bytes() of MEMORY_HOST; may be NULL where that is 0, like the next */
    stream *transfers;
    const float *seed;
    const step_scalars *scalars;
    const statistics_group *statistics;
    const peer_group *peers; /* NULL: this rank alone */
    bool accumulate_parameters;
    bool deterministic;
    program_hook before; /* may be NULL */
    void *before_context;
} program_run_args;

/* `recording` has the same signature; its inputs are used. */
fsdp_status program_run(program *p, const fsdp_tape *recording, const program_run_args *args);

/* Runs instructions [first, end) only; for graphs captured piecewise. program_run is stage, then all of them. */
fsdp_status program_stage_inputs(program *p, const fsdp_tape *recording, const program_run_args *args);
fsdp_status program_run_range(program *p, const program_run_args *args, int first, int end);

/* Where an output lies after a run; `x` may come from any recording with the program's signature. */
fsdp_status program_output(const program *p, const fsdp_tensor *x, const uint8_t *slab, buffer *out);

#endif
