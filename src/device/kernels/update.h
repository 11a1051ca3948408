/* Arguments of what closes a step: the gradient norm, clipping, and the passes of optimizers (kernels.h). */
#ifndef DEVICE_KERNELS_UPDATE_H
#define DEVICE_KERNELS_UPDATE_H

#include <fsdp/kinds.h>

#include "device/kernels/operand.h"

#define NORM_BLOCK 64

/* blocks[i] = sum of squares of elements i*64 .. i*64+63 of x (the last block may be short), in fp32 products and an
 * fp64 sum in an order that the device fixes by places in the block (index order on the CPU): the gradient norm is
 * summed over these blocks so that it has the same bits however the shards are cut. */
typedef struct norm_blocks_args {
    int64_t n;
    buffer x;
    double *blocks; /* (ceil(n / 64)) */
} norm_blocks_args;

/* *out (+)= x[0] + x[1] + ... in index order up to rounding of fixed-size partial sums: the same bits for the same n.
 */
typedef struct sum_f64_args {
    int64_t n;
    const double *x;
    double *out;
    bool add;
} sum_f64_args;

/* totals[0] (+)= *loss_sum, totals[1] (+)= *count: the loss of a step, over its micro-batches. */
typedef struct loss_total_args {
    const float *loss_sum, *count;
    double *totals; /* (2) */
    bool add;
} loss_total_args;

/* Hyperparameters of one optimizer step, in device memory. */
typedef struct optimizer_scalars {
    float lr, beta1, beta2, eps, weight_decay, momentum;
    float bias_correction1, bias_correction2; /* 1 - beta^step */
    float gradient_scale;                     /* clip factor times 1/loss scale */
    uint32_t skip;                            /* 1: leave everything as it is (an overflow was found) */
    float average_decay;                      /* of the average of the weights; 0: it begins with this step */
    uint64_t step;                            /* counted from 1: what 16-bit moments are rounded by */
} optimizer_scalars;

/* Closes a step: from its totals over all ranks {sum of squares of the gradients, sum of losses, count}, how the
 * optimizer is to scale the gradients. They were computed with the loss multiplied by 1/unscale, as a sum, so with f =
 * unscale / (divisor > 0 ? divisor : count): norm = sqrt(totals[0]) * f; scalars->gradient_scale = f * (max_norm > 0 ?
 * min(1, max_norm / (norm + 1e-6)) : 1); scalars->skip = 1 when norm is not finite or count is 0, else 0. report =
 * {norm, totals[1] / count, count, skip}. In fp64. */
typedef struct clip_args {
    const double *totals; /* (3) */
    double unscale, divisor;
    float max_norm;
    float *report; /* (4) */
    optimizer_scalars *scalars;
} clip_args;

/* One pass over a flat range: parameters, moments, and the low-precision copy that the next gather reads.
 * ADAM adds weight_decay * parameter to the gradient, ADAMW decays the parameter itself. SGD uses moment1 when momentum
 * != 0 (its first step, bias_correction1 == 1, starts the buffer with the gradient). MUON decays as ADAMW does, then
 * takes off lr * direction_scale * direction; it reads neither gradient nor moments. ADAFACTOR, with lr times rate[0],
 * decays as ADAMW does and takes off lr * rate[1] * gradient, which is what adafactor_update left there, in fp32; it
 * has no moments here. `decay` false: weight_decay counts as 0. moment_dtype: fp32, or bf16, to which the new moments
 * are rounded at random (stochastic.h) after the update has used them as they were computed. *magnitude becomes the
 * largest of what it was and of the magnitudes of copy, or of parameter where there is none; also where nothing is
 * updated. */
typedef struct optimizer_args {
    fsdp_optimizer_kind kind;
    int64_t n;
    bool decay;
    bool grouped; /* lr_factor multiplies the rate, and weight_decay takes the place of the scalars', decay or not */
    float lr_factor, weight_decay;
    float *parameter;          /* fp32 master */
    const void *gradient;      /* shard of gradient_dtype */
    fsdp_dtype gradient_dtype; /* fp32 or bf16 */
    void *moment1, *moment2;
    fsdp_dtype moment_dtype;
    uint32_t key[2];  /* 16-bit moments: rng_key of the seed and the unit, */
    uint64_t element; /* and where in the unit the range begins */
    float *average;   /* optional: of the parameter over the steps */
    buffer copy;      /* optional: the parameter in param_dtype */
    bool copy_half;   /* copy, of bf16, is rounded as the high half of halves.h is: to nearest, ties away from zero */
    uint16_t *low;    /* devices with `halves`: parameter is NULL, the master is copy (bf16) and these low halves */
    const uint16_t *direction; /* MUON: bf16 */
    float direction_scale;
    const float *rate; /* ADAFACTOR: (2), device memory */
    float *magnitude;  /* optional */
    /* Optional, processors only: where the values from before the update are kept. */
    float *old_parameter, *old_average;
    void *old_moment1, *old_moment2;
    const optimizer_scalars *scalars;
} optimizer_args;

/* Muon's first pass over a flat range. With g the scaled gradient: moment = momentum * moment + (1 - momentum) * g, and
 * direction = momentum * moment + (1 - momentum) * g (Nesterov's), in bf16. Nothing is written where scalars say skip.
 */
typedef struct muon_direction_args {
    int64_t n;
    const float *gradient;
    float *moment;
    uint16_t *direction; /* bf16 */
    const optimizer_scalars *scalars;
} muon_direction_args;

/* out = x / max(sqrt(*squares), least) */
typedef struct normalize_args {
    int64_t rows, columns;
    bool transpose; /* out is (columns, rows) */
    buffer x, out;  /* (rows, columns) */
    const double *squares;
    float least;
} normalize_args;

/* ---- Adafactor ----
 *
 * A parameter of two or more dimensions is a list of matrices (rows, columns), whose squared gradients are kept as
 * means of rows and of columns. Ranks hold parts of it, cut anywhere. Sums of squares are kept as two numbers, coarse
 * and fine: each square is first rounded to a multiple of a grid that all agree on, then what is left to one of a finer
 * grid. Multiples add up without rounding, so the sums have the same bits in any order and however the parameter is
 * cut. The grids of rows and columns follow from `total`, the sum of all squares of the gradient; those of whole
 * parameters are 2^-16 and 2^-42. Nothing is done where scalars say skip. */
typedef struct adafactor_part {
    int64_t n, first;          /* elements of the part, and where in the parameter it begins */
    int64_t rows, columns;     /* of a matrix; rows 0: a vector, which has second moments of its own */
    int64_t n_rows, n_columns; /* of all matrices */
    float *gradient;           /* fp32; adafactor_update leaves the update there */
    const float *parameter;    /* fp32 master; NULL: it is copy and low, as optimizer_args has it */
    const uint16_t *copy, *low;
    float *moment2;                            /* of a vector's part */
    double *row_sums;                          /* (2, n_rows), added to */
    double *column_sums;                       /* (2, n_columns), added to */
    double *weight_squares;                    /* (2), added to: of the parameter */
    double *update_squares;                    /* (2), added to: of the update before it is clipped */
    const float *row_factors, *column_factors; /* (n_rows), (n_columns) */
    const double *total;
    const optimizer_scalars *scalars;
} adafactor_part;

/* From the sums over all ranks: row and column means move by beta2 towards those of the scaled squares plus 1e-30, and
 * row_factor = 1 / sqrt(row / mean of its matrix's rows), column_factor = 1 / sqrt(column). */
typedef struct adafactor_factors_args {
    int64_t matrices, rows, columns;
    const double *row_sums, *column_sums;
    float *row_means, *column_means; /* the optimizer's state */
    float *row_factors, *column_factors;
    const optimizer_scalars *scalars;
} adafactor_factors_args;

/* rate[0] = scale ? max(1e-3, root mean square of the parameter) : 1, rate[1] = 1 / max(1, that of the update / clip)
 */
typedef struct adafactor_rate_args {
    int64_t numel;
    const double *weight_squares, *update_squares;
    bool scale;
    float clip;
    float *rate; /* (2) */
} adafactor_rate_args;

#endif
