/* Tensors and the tape they are recorded on.
 *
 * A tape records operations; nothing is computed while recording. When a step is run (fsdp_backward, fsdp_evaluate)
 * the recording is compared with the ones seen before: a known one reuses its memory plan, a new one is planned first.
 * So model code is an ordinary C function, called anew each step, and a step in the steady state allocates nothing.
 *
 * Operations return NULL after an error and accept NULL inputs, so that a chain of calls needs one check at its end:
 * the tape keeps the first error and fsdp_backward and fsdp_evaluate return it. Tensors belong to their tape and are
 * valid until it begins its next recording.
 *
 *     fsdp_tape *t = fsdp_begin_evaluation(model);
 *     fsdp_tensor *y = fsdp_output(t, fsdp_call(net, t, fsdp_input(t, FSDP_F32, 2, size, batch)));
 *     FSDP_TRY(fsdp_evaluate(t));
 *     FSDP_TRY(fsdp_read(y, values, n)); */
#ifndef FSDP_TENSOR_H
#define FSDP_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_MAX_DIMS 6

typedef struct fsdp_tensor fsdp_tensor;
typedef struct fsdp_tape fsdp_tape;
typedef struct fsdp_parameter fsdp_parameter;

/* Initial values of a parameter. */
typedef enum fsdp_init {
    FSDP_INIT_ZERO,
    FSDP_INIT_ONE,
    FSDP_INIT_NORMAL,  /* standard deviation `scale` */
    FSDP_INIT_UNIFORM, /* in [-scale, scale) */
} fsdp_init;

/* Products of linear layers in 8 bits, a scale for each operand. x and weights are E4M3. */
typedef enum fsdp_fp8 {
    FSDP_FP8_OFF,
    FSDP_FP8_HYBRID, /* gradients of results are E5M2: more range */
    FSDP_FP8_E4M3    /* gradients of results too are E4M3: more precision */
} fsdp_fp8;

/* When weights are rounded for such products. The results have the same bits. */
typedef enum fsdp_fp8_weights {
    FSDP_FP8_WEIGHTS_AUTO,     /* each step where that saves gathering them in more bits, else each use; fsdp train
                                * also chooses each step for several micro-batches, if it fits */
    FSDP_FP8_WEIGHTS_EACH_USE, /* in forward and in backward of every micro-batch */
    FSDP_FP8_WEIGHTS_EACH_STEP /* once after each optimizer step; takes a byte more for each weight that a rank holds */
} fsdp_fp8_weights;

/* Number of dimensions. */
FSDP_API int fsdp_tensor_dims(const fsdp_tensor *x);
FSDP_API int64_t fsdp_tensor_size(const fsdp_tensor *x, int dim); /* dim may be negative: -1 is the last */
/* Number of elements. */
FSDP_API int64_t fsdp_tensor_numel(const fsdp_tensor *x);
/* Element type. */
FSDP_API fsdp_dtype fsdp_tensor_dtype(const fsdp_tensor *x);

/* Data from outside: borrowed, host memory, must stay valid until the step has run. */
FSDP_API fsdp_tensor *fsdp_input(fsdp_tape *t, fsdp_dtype dtype, int n_dims, const int64_t *shape, const void *data);

/* Asks for the value of `x` to be kept to the end of the step, where fsdp_read can fetch it. Returns x. */
FSDP_API fsdp_tensor *fsdp_output(fsdp_tape *t, fsdp_tensor *x);

/* After a step: the value of an output, converted to fp32; `n` must be its numel. */
FSDP_API fsdp_status fsdp_read(fsdp_tensor *x, float *values, int64_t n);

/* Operations recorded between begin and end are not kept for backward but computed again there, with the same random
 * numbers and without moving running statistics: memory for time. Regions do not nest. */
FSDP_API void fsdp_checkpoint_begin(fsdp_tape *t);
/* Ends the region. */
FSDP_API void fsdp_checkpoint_end(fsdp_tape *t);
/* Inside a region: with selective checkpointing this value is kept after all. Returns x. */
FSDP_API fsdp_tensor *fsdp_keep(fsdp_tape *t, fsdp_tensor *x);

/* What is recorded between begin and end takes no gradient. Nests. */
FSDP_API void fsdp_no_grad_begin(fsdp_tape *t);
/* Ends the innermost fsdp_no_grad_begin. */
FSDP_API void fsdp_no_grad_end(fsdp_tape *t);

/* False while evaluating: dropout does nothing, batch norm uses its running statistics. */
FSDP_API bool fsdp_training(const fsdp_tape *t);

/* The first error of this recording, FSDP_OK when there is none; its message is that of fsdp_last_error. */
FSDP_API fsdp_status fsdp_tape_status(const fsdp_tape *t);
/* For operations of your own: records the present message as the tape's error. Returns NULL. */
FSDP_API fsdp_tensor *fsdp_tape_fail(fsdp_tape *t, fsdp_status status);

#ifdef __cplusplus
}
#endif
#endif
