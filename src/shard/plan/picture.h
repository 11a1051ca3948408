/* One training step of a plan, value by value: the units, and what lives in memory from which instruction to which. The
 * source of `fsdp plan --units` and --timeline; taken from the very program and schedule that a job would run. */
#ifndef SHARD_PLAN_PICTURE_H
#define SHARD_PLAN_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "tensor/program_values.h"

typedef enum picture_class {
    PICTURE_GATHERED,       /* a unit's full parameters, or a part that a smaller group keeps */
    PICTURE_FULL_GRADIENTS, /* a unit's gradients before they are reduced */
    PICTURE_INPUTS,
    PICTURE_ACTIVATIONS,
    PICTURE_RECOMPUTED,
    PICTURE_ACTIVATION_GRADIENTS,
    PICTURE_WORKSPACE,
    PICTURE_CLASSES
} picture_class;

typedef struct picture_life {
    picture_class class;
    int unit; /* to which it belongs, or which computes; -1: none yet */
    char name[VALUE_NAME];
    size_t bytes;
    int first, last; /* instructions, inclusive */
    bool backward;   /* of gathered units: the stay of backward */
} picture_life;

typedef struct picture_unit {
    char *name;
    int64_t parameters, trained;
    size_t bytes;          /* all parameters in fp32, as a checkpoint has them */
    size_t shard_bytes;    /* the same of this rank's shard, with padding */
    size_t gathered_bytes; /* full parameters in the type that is gathered */
    size_t gradient_bytes; /* full gradients in the type that is reduced */
    bool offloaded;
} picture_unit;

typedef struct plan_picture {
    int length, forward_length; /* instructions */
    int n_units, n_lives;
    picture_unit *units;
    picture_life *lives;
    size_t gather_bytes, gradient_bytes, slab_bytes; /* of the arenas, which are as large from the first step on */
} plan_picture;

struct fsdp_model;
struct schedule;
/* Fills in *out, which must be zeros or cleared. */
fsdp_status plan_picture_take(plan_picture *out, const struct fsdp_model *m, const program *p,
                              const struct schedule *s);
void plan_picture_clear(plan_picture *p); /* legal on zeros */

/* Bytes of each class that live at each instruction, (length + 1, PICTURE_CLASSES); the last row is the end of the
 * step. malloc'd. */
fsdp_status plan_picture_series(const plan_picture *p, int64_t **out);

#endif
