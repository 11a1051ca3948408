/* Operations of your own: a forward, a backward and the memory they need. They work like the library's in every
 * strategy, under activation checkpointing and with offload; the memory plan counts them.
 *
 *     static fsdp_status cube_forward(const fsdp_operation_run *r)
 *     {
 *         const float *x = r->inputs[0].data;
 *         float *y = r->outputs[0].data;
 *         for (int64_t i = 0; i < r->outputs[0].numel; i++)
 *             y[i] = x[i] * x[i] * x[i];
 *         return FSDP_OK;
 *     }
 *     static const fsdp_operation cube = {.size = sizeof cube, .name = "cube", .forward = cube_forward,
 *                                         .backward = cube_backward, .reads_inputs = 1};
 *
 *     fsdp_shape shape = fsdp_shape_of(x);
 *     fsdp_tensor *y = NULL;
 *     fsdp_operation_record(t, &cube, 1, &x, 1, &shape, NULL, 0, &y); */
#ifndef FSDP_OPERATION_H
#define FSDP_OPERATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_shape {
    fsdp_dtype dtype;
    int n_dims;
    int64_t sizes[FSDP_MAX_DIMS];
} fsdp_shape;

/* Type and sizes of a tensor; no dimensions for NULL. */
FSDP_API fsdp_shape fsdp_shape_of(const fsdp_tensor *x);

/* An operand while the operation runs. Contiguous, 256-byte aligned or a view into such memory. */
typedef struct fsdp_operand {
    void *data; /* device memory; NULL: absent, or not needed */
    fsdp_shape shape;
    int64_t numel;
    bool add; /* of an input's gradient: add to what is there instead of overwriting it */
} fsdp_operand;

typedef struct fsdp_operation_run {
    size_t size;
    const char *device;     /* "cpu" or "cuda" */
    void *stream;           /* cuda: the cudaStream_t to enqueue on; cpu: NULL, work is done on return */
    int threads;            /* cpu: threads of this rank */
    const void *attributes; /* as recorded */
    int n_inputs, n_outputs;
    const fsdp_operand *inputs;           /* in backward: those that reads_inputs names */
    const fsdp_operand *outputs;          /* in backward: those that reads_outputs names */
    const fsdp_operand *output_gradients; /* backward only */
    const fsdp_operand *input_gradients;  /* backward only; dtype may be the reduction's where x is a parameter */
    void *workspace;                      /* as many bytes as `workspace` asked for */
} fsdp_operation_run;

typedef struct fsdp_operation {
    size_t size;
    const char *name; /* in traces, breakdowns and messages */
    fsdp_status (*forward)(const fsdp_operation_run *run);
    fsdp_status (*backward)(const fsdp_operation_run *run); /* NULL: no gradient flows through */
    /* Scratch bytes for these shapes; no memory is there yet. NULL: none. */
    size_t (*workspace)(const fsdp_operation_run *run, bool backward);
    uint32_t reads_inputs, reads_outputs; /* bit i: backward reads that input or output */
    bool recordable; /* cuda: does nothing but enqueue on the stream, with the same arguments for the same memory, so
                        that it may become part of a graph; otherwise steps with it run without graphs */
} fsdp_operation;

#define FSDP_OPERATION_INIT                                                                                            \
    {                                                                                                                  \
        .size = sizeof(fsdp_operation)                                                                                 \
    }

enum { FSDP_OPERATION_OPERANDS = 8 }; /* maximum number of inputs, and of outputs */

/* Records one use. `operation` must stay valid as long as the model; `attributes` are copied and are part of what tells
 * recordings apart. `outputs` receives n_outputs tensors; false, and NULL in them, after an error. */
FSDP_API bool fsdp_operation_record(fsdp_tape *t, const fsdp_operation *operation, int n_inputs,
                                    fsdp_tensor *const *inputs, int n_outputs, const fsdp_shape *shapes,
                                    const void *attributes, size_t attributes_bytes, fsdp_tensor **outputs);

#ifdef __cplusplus
}
#endif
#endif
