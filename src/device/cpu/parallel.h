/* Threads of the CPU device: the one place where kernels, copies and products enter an OpenMP region. What is shared
 * out is theirs; how many threads there are was decided when the device opened (base/host/threads.h).
 *
 * Regions take no memory after the first, under two rules kept here: OpenMP frees a team of one after every region, so
 * one thread's work is called directly; and it ends and starts threads when teams change their size, so every team is
 * of one size, `pool`, and those that are not needed do nothing. */
#ifndef DEVICE_CPU_PARALLEL_H
#define DEVICE_CPU_PARALLEL_H

#include <stdint.h>

/* Runs member(context, rank, size) for every rank below size, at the same time. size is `threads`, or less when OpenMP
 * gives less than `pool` (at least `threads`), and 1 inside another region. Members may meet at an OpenMP barrier when
 * threads is pool and size is above 1. */
typedef void parallel_member(void *context, int rank, int size);
void parallel_team(int pool, int threads, parallel_member *member, void *context);

/* Calls body(context, i) for i = 0, step, 2 step ... below n. Each of `threads` threads (1, or as many as the device
 * has) takes one contiguous share, the first ones a step more where it does not divide evenly. */
typedef void parallel_body(const void *context, int64_t i);
void parallel_for(int threads, int64_t n, int64_t step, parallel_body *body, const void *context);

#endif
