/* Arguments of kernels that fill, convert, add up and move flat memory (kernels.h). */
#ifndef DEVICE_KERNELS_FLAT_H
#define DEVICE_KERNELS_FLAT_H

#include "device/kernels/operand.h"

/* Numbers first .. first+n-1 of the stream `key` (base/rng.h): normal with mean a and deviation b, or uniform in [a,
 * b). The same bits as on the host. */
typedef struct random_args {
    int64_t n;
    uint32_t key[2];
    uint64_t first;
    bool normal;
    float a, b;
    float *out;
} random_args;

/* fp32 numbers as two halves each, as halves.h says. join: whole from the halves; otherwise the halves from whole. */
typedef struct halves_args {
    int64_t n;
    float *whole;
    uint16_t *high, *low;
    bool join;
} halves_args;

/* Numbers as blocks of 8 bits (int8_block.h): `narrow` makes the blocks of the values, `widen` the values of the
 * blocks. */
typedef struct int8_args {
    int64_t n;     /* a multiple of INT8_BLOCK */
    void *blocks;  /* (n / INT8_BLOCK) of int8_block, at a multiple of 4 bytes */
    buffer values; /* (n) */
} int8_args;

/* out (+)= the sum over k of part k, from the first to the last in fp32 and rounded once: what a reduction gives whose
 * parts have come from n_parts ranks. Part `own` is `mine`, which may be out; the others lie in `parts`. */
typedef struct sum_parts_args {
    int64_t n;
    int n_parts, own;
    buffer parts;   /* (n_parts - 1, stride): all but part `own`, the first n of each */
    int64_t stride; /* elements from one to the next */
    buffer mine;    /* (n), of the dtype of parts */
    buffer out;     /* (n) */
    bool add;
} sum_parts_args;

/* Moves `bytes` from `from` to `to`, each begun again at its end, in no less than `seconds`, by as many blocks; 0
 * blocks: by the copy engines, which cannot be recorded. */
typedef struct paced_move_args {
    const void *from;
    void *to;
    size_t from_bytes, to_bytes, bytes;
    double seconds;
    int blocks;
} paced_move_args;

#endif
