/* Ranks as forked processes with torchrun's environment. */
#ifndef TESTS_SUPPORT_FORKED_RANKS_H
#define TESTS_SUPPORT_FORKED_RANKS_H

#include <stdbool.h>

#include <fsdp/status.h>

/* Runs `body` in `ranks` forked processes (memory that they share is the caller's to map). True when all return
 * FSDP_OK; messages of those that do not go to stderr. The calling process must not have computed on several threads
 * before. */
bool forked_ranks_run(int ranks, fsdp_status (*body)(int rank, void *context), void *context);

/* In a rank, before its world is opened: all ranks of the test share the first GPU. */
void forked_rank_share_gpu(int rank);

#endif
