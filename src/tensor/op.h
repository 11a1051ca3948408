/* What an operation is: how it computes forward and backward from buffers. One op_def per operation, in the ops_*.c
 * file of its family; nothing else in the library switches over operations. */
#ifndef TENSOR_OP_H
#define TENSOR_OP_H

#include "device/device.h"
#include "tensor/tape.h"

typedef struct run_context run_context;

struct op_def {
    const char *name;
    fsdp_status (*forward)(const run_context *c, const node *n);
    fsdp_status (*backward)(const run_context *c, const node *n); /* NULL: no gradient flows through */
    /* Scratch bytes beyond planned tensors; NULL: none. */
    size_t (*workspace)(const device *d, const node *n, bool backward);

    /* 1 + index of the input that the output may overwrite (or is the same memory as, for views); 0: none. The forward
     * function must work with both: output memory equal to that input's, or its own. */
    int in_place;
    bool view; /* the output always is the input's memory, and no work is done */
    /* 1 + index of the input whose gradient may be the very buffer of the output's gradient (same size and type):
     * backward then finds both equal and transforms in place. 0: none. */
    int pass_through;
    /* 1 + index of the input whose gradient backward may write over the input itself, element by element. 0: none. */
    int gradient_in_place;
    /* Whether input i is a parameter that may come as codes alone (parameter.codes); NULL: none is. */
    bool (*reads_codes)(const node *n, int i);
    /* Magnitudes for products in 8 bits, taken on the way (0: not). magnitude: 1 + index of the output, where there is
     * one, in which forward leaves the largest of output 0; who wants it adds the output (fp8_linear). scales: 1 +
     * index of the input, where there is one, that belongs to the layer which input 0 comes from: backward leaves the
     * largest of input 0's whole gradient there. */
    int magnitude, scales;
    bool cheap;            /* worth computing again rather than keeping, when memory is wanted */
    bool outside_graphs;   /* must run each time it is asked for: a graph cannot hold it */
    bool meets_peers;      /* exchanges with other ranks, where there are several */
    bool loss_in_backward; /* as the root of a training step, forward is left out: backward computes the loss too */
};

/* The last four belong to no node: a value leaves for host memory, has arrived there, starts back, is back. */
typedef enum run_phase {
    PHASE_FORWARD,
    PHASE_REPLAY,
    PHASE_BACKWARD,
    PHASE_STORE,
    PHASE_STORED,
    PHASE_FETCH,
    PHASE_FETCHED
} run_phase;

/* A way to add statistics over the ranks of a group, for batch norm: sums `n` fp64 numbers in place. */
typedef struct statistics_group {
    fsdp_status (*sum)(void *context, stream *s, double *values, int64_t n);
    void *context;
    int size; /* ranks; 1: not called */
} statistics_group;

/* A way to exchange values with the ranks of a group: `n` elements of each. */
typedef struct peer_group {
    fsdp_status (*gather)(void *context, stream *s, buffer mine, buffer all, int64_t n);
    fsdp_status (*scatter_sum)(void *context, stream *s, buffer all, buffer mine, int64_t n, bool add);
    void *context;
    int size; /* ranks; 1: not called */
} peer_group;

struct run_context {
    device *dev;
    stream *compute;
    run_phase phase;
    bool training;
    bool with_backward;         /* this run computes gradients */
    bool accumulate_parameters; /* gradients of parameters are added to what earlier micro-batches left */
    uint32_t add;               /* of the present instruction, bit i: gradient of input i is added to */
    const float *seed;          /* device memory: gradient of the loss */
    const step_scalars *scalars;
    bool deterministic;
    uint64_t random_seed;
    const statistics_group *statistics;
    const peer_group *peers;
    uint8_t *slab;
    void *workspace; /* of the present instruction */
};

/* Value of a tensor in the present phase; {NULL} for a NULL tensor. */
buffer run_data(const run_context *c, const fsdp_tensor *x);
/* Gradient of output i. */
buffer run_output_grad(const run_context *c, const node *n, int i);
/* Where to put the gradient of input i, {NULL} when it is not needed, and whether to add. */
buffer run_input_grad(const run_context *c, const node *n, int i, bool *add);
/* True when the gradient of input i is needed. */
bool node_wants_grad(const node *n, int i);

#endif
