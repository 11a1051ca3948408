/* Forked ranks with torchrun's environment, for tests that see the public headers alone. */
#ifndef TESTS_API_SUPPORT_RANKS_H
#define TESTS_API_SUPPORT_RANKS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/fsdp.h>

/* Runs `body` in `ranks` forked processes, each with its world open. True when all return FSDP_OK; messages of those
 * that do not go to stderr. Worlds are on the CPU; with FSDP_TEST_DEVICE=cuda all are on the first GPU, and without a
 * GPU the test is skipped. */
typedef fsdp_status rank_body(fsdp_world *world, void *context);
bool ranks_run(int ranks, rank_body *body, void *context);

bool ranks_are_on_gpu(void);

/* The defaults; on a GPU with kernels that are not chosen by timing, so that runs can be compared bit by bit. */
fsdp_config ranks_config(void);

/* Memory that forked ranks share with the test; zeroed, never freed. */
void *shared_memory(size_t bytes);

/* For bodies: fails with the expression when it is false. */
#define EXPECT(world, condition)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d, line %d: %s\n", fsdp_world_rank(world), __LINE__, #condition);                   \
            return FSDP_ERR_STATE;                                                                                     \
        }                                                                                                              \
    } while (0)

#endif
