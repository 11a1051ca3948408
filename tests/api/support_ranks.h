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

/* The same for each of `n` contexts of `size` bytes. On the CPU each has forked ranks of its own; on a GPU, where
 * opening a world takes seconds, one world is for all, one after another. */
bool ranks_run_each(int ranks, rank_body *body, void *contexts, int n, size_t size);
/* The same for copies in shared memory, with what the ranks left in them; NULL: a rank failed. */
const void *ranks_run_copies(int ranks, rank_body *body, const void *contexts, int n, size_t size);

/* The variant after `i` in a loop over `n`: on the CPU the next, on a GPU the last one after the first. */
int ranks_next_variant(int i, int n);

enum { OUTCOME_VALUES = 4 };

/* What a run reached, for comparing it with others. */
typedef struct outcome {
    uint64_t parameters;           /* their hash; 0: not taken */
    double norm;                   /* of all parameters */
    double values[OUTCOME_VALUES]; /* losses of the steps, or norms */
} outcome;

/* How far runs on a GPU may be apart that compute the same in another way, relative to each value. Noise of 1e-6 in the
 * inputs moves losses by less than 1e-6 in fp32, noise of a rounding to bf16 by about 1e-3. */
#define TOLERANCE_F32 1e-5
#define TOLERANCE_BF16 2e-3

/* Runs that differ in strategy, groups or policy have the same bits on the CPU. On a GPU NCCL sums in its own order and
 * products are chosen by what they find, so there norms and values agree within `tolerance`. Says what differs. */
bool outcomes_agree(const outcome *a, const outcome *b, double tolerance);

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
