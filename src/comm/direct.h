/* Sums of bf16 and fp16 values between GPUs, accumulated in fp32. NCCL's ring passes partial sums on and rounds each of
 * them. Here every rank sends its values directly to the rank that owns their sum, and a kernel there adds them up in
 * rank order and rounds once: the bits that the CPU's backends give. As many bytes arrive as in a ring, and more where
 * an all_reduce hands its sums round in fp32. What arrives waits in staging memory of a fixed size, so long sums come
 * in rounds.
 *
 * Shapes, rounds and kernels are here; what moves the values is the backend's. */
#ifndef COMM_DIRECT_H
#define COMM_DIRECT_H

#include "comm/engine.h"

/* One span of a reduction on this rank. */
typedef struct direct_sum {
    const comm_group *group;
    const comm_span *span;
    bool scatters;
    int64_t each;     /* elements of a rank's part in a round, at most */
    int64_t n_rounds; /* the same on all ranks */
    int64_t stride;   /* elements from one peer's values to the next in staging memory */
} direct_sum;

/* Elements of the span. */
typedef struct direct_part {
    int64_t first, n;
} direct_part;

bool direct_is(const comm_request *r, const comm_span *p);

/* Staging memory for a reduce_scatter of which this rank owns `numel` elements, or an all_reduce of as many. */
size_t direct_staging_bytes(const comm_config *config, comm_kind kind, int n_ranks, int64_t numel);

direct_sum direct_begin(const comm_request *r, const comm_span *p);

/* The part of the round that `rank` sums. Of an all_reduce, parts are equal but for the last rank's, which has the rest
 * besides: up to nine elements for every rank. */
direct_part direct_part_of(const direct_sum *d, int64_t round, int rank);

/* Where peer's values for this rank's part arrive. */
void *direct_slot(const direct_sum *d, void *staging, int peer);

typedef struct direct_carrier {
    stream *stream; /* on which all this happens in order */
    void *context;
    /* Every rank's values of this round go to who sums them: of peers, into the slots. */
    fsdp_status (*scatter)(void *context, const direct_sum *d, int64_t round, void *staging);
    /* Parts of all_reduce's round go to everybody. `whole` begins at rank 0's, and this rank's is there. */
    fsdp_status (*gather)(void *context, const direct_sum *d, int64_t round, buffer whole);
} direct_carrier;

/* Enqueues the whole sum. `staging`: as many bytes as direct_staging_bytes says, 256-byte aligned. */
fsdp_status direct_run(const direct_sum *d, const direct_carrier *c, void *staging);

#endif
