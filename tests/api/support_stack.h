/* A small net and its data, for tests of what a sharded model offers: three residual blocks of two linear layers, by
 * type units, and a head. */
#ifndef TESTS_API_SUPPORT_STACK_H
#define TESTS_API_SUPPORT_STACK_H

#include "api/support_ranks.h"

enum { STACK_WIDTH = 20, STACK_BATCH = 5, STACK_BLOCKS = 3 };

/* Children a, b, c of type "block" with up and down, and head. */
fsdp_module *stack_new(void);
/* fsdp_shard of a new one, which is freed where that fails. */
fsdp_status stack_shard(fsdp_world *w, const fsdp_config *config, fsdp_model **model);

/* The batch of a step on this rank: x (STACK_BATCH, STACK_WIDTH); and the loss of what the net makes of it. */
void stack_values(fsdp_world *w, int step, float *x);
fsdp_loss stack_loss(fsdp_tape *t, fsdp_tensor *out, int step);
/* Records a batch that follows from step and rank, and runs it backward. */
fsdp_status stack_backward(fsdp_world *w, fsdp_model *m, int step, bool last);

/* Names of all parameters, in tree order; returns how many. */
int stack_names(const char *const **names);

/* FNV-1a of what is given, for comparing bits across runs. */
uint64_t stack_hash(uint64_t hash, const void *data, size_t bytes);

/* All parameters of the model, hashed; their norm too. Collective. */
fsdp_status stack_hash_parameters(fsdp_model *m, uint64_t *hash);
fsdp_status stack_sum_up_parameters(fsdp_model *m, outcome *o);

#endif
