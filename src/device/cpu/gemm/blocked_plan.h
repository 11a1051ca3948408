/* How a blocked product is cut up: what is packed and how much at a time, the blocks threads take, and the memory that
 * needs. Nothing here changes a bit of the result. */
#ifndef DEVICE_CPU_GEMM_BLOCKED_PLAN_H
#define DEVICE_CPU_GEMM_BLOCKED_PLAN_H

#include "device/cpu/gemm/kernel.h"

typedef enum streamed_operand { STREAM_NONE, STREAM_A, STREAM_B } streamed_operand;

typedef struct block_plan {
    int64_t super_rows, super_columns, chunk; /* packed at a time */
    int64_t block_rows, block_columns;
    int team;       /* threads it is for */
    int64_t n_sums; /* one per thread; with several chunks, one per block of the super-block */
    bool in_place;  /* whole tiles of rows of op(a) are read where they lie; only what is left over is packed */
    int copy_ahead; /* not 0: a block's columns of op(b) are copied, a pass at a time, by its first row of tiles, which
                     * fetches so many rows ahead */
    streamed_operand streamed; /* packed a block at a time by the thread that takes it; its super-block is all of it */
    size_t a_bytes, b_bytes, sums_bytes, bytes;
} block_plan;

/* How the threads share the work: all of them as one `team` on each product, or each alone on products of its own. */
typedef struct block_division {
    int threads, team;
} block_division;

block_division divide_blocked(int max_threads, const gemm_args *args);

/* A team's memory: as much as packing everything asks for, which depends on the sizes alone, not on how the operands
 * lie in memory. */
size_t blocked_bytes(const gemm_kernel *kernel, const gemm_args *args, block_division d);

/* Packs as little as fits that. */
block_plan plan_blocked(const gemm_kernel *kernel, const gemm_args *args, block_division d);

#endif
