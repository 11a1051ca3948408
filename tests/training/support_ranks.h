/* The ranks of tests that train. */
#ifndef TESTS_TRAINING_RANKS_H
#define TESTS_TRAINING_RANKS_H

#include "support/forked_ranks.h"

static inline bool ranks_run(int ranks, fsdp_status (*body)(int rank, void *context), void *context)
{
    return forked_ranks_run(ranks, body, context);
}

#endif
