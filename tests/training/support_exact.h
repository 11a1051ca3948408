/* A model whose gradients are small integers, drawn from a seed: sums of them have no rounding, so every strategy on
 * any number of ranks must give the bits of one process. Layers do not feed each other; each has rows of its own. */
#ifndef TESTS_TRAINING_EXACT_H
#define TESTS_TRAINING_EXACT_H

#include <fsdp/module.h>
#include <fsdp/optim.h>
#include <fsdp/world.h>

#include "training/support_ranks.h"

enum { EXACT_LAYERS = 4, EXACT_PARAMETERS = 2 * EXACT_LAYERS + 2, EXACT_MAX = 900, EXACT_ROWS = 60, EXACT_WIDTH = 30 };

typedef struct exact_parameter {
    char name[32];
    int64_t rows, columns; /* a vector has one row */
    bool vector, muon;
} exact_parameter;

typedef struct exact_model {
    uint64_t seed;
    int n_layers;
    int64_t inputs[EXACT_LAYERS], outputs[EXACT_LAYERS];
    int64_t unit; /* parameters of a unit, about */
    exact_parameter parameters[EXACT_PARAMETERS];
    int n_parameters;
} exact_model;

typedef struct exact_run {
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
} exact_run;

exact_model exact_draw(uint64_t seed);
int64_t exact_numel(const exact_model *m, int parameter);

/* In a process that is a rank. config.wrap is filled in. On failure nothing is left open. */
fsdp_status exact_open(const exact_model *m, fsdp_config *config, const fsdp_optimizer_config *optimizer,
                       exact_run *out);
void exact_close(exact_run *e);
/* The micro-batches of a step. */
fsdp_status exact_backward(exact_run *e, const exact_model *m, int step, int micro_batches);
fsdp_status exact_hash(const exact_run *e, const exact_model *m, uint64_t *out);

fsdp_status exact_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool exact_ranks(int ranks, fsdp_status (*body)(int rank, void *context), void *context);

/* n cases from a seed on: each draws a model, types, clipping, accumulation, and compares one process with several. */
void exact_same_bits_everywhere(fsdp_optimizer_kind kind, uint64_t first, int n);

#endif
