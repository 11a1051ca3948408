/* Forked ranks with torchrun's environment, for tests that train. */
#ifndef TESTS_TRAINING_RANKS_H
#define TESTS_TRAINING_RANKS_H

#include <stdbool.h>

#include <fsdp/status.h>

/* Runs `body` in `ranks` forked processes (memory that they share is the caller's to map). True when all return
 * FSDP_OK; messages of those that do not go to stderr. The calling process must not have computed on several threads
 * before. */
bool ranks_run(int ranks, fsdp_status (*body)(int rank, void *context), void *context);

#endif
