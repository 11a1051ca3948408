/* Adafactor's part of an optimizer step: means of squared gradients by row and by column, over all ranks. Every rank of
 * a shard group keeps all means; they are small beside the parameters. */
#ifndef SHARD_STEP_ADAFACTOR_H
#define SHARD_STEP_ADAFACTOR_H

#include "optim/update.h"
#include "shard/model.h"

typedef struct adafactor adafactor;

/* Allocates means (zero) and sums, and tells the spans where their rates will be. Borrows the model. */
fsdp_status adafactor_create(fsdp_model *m, const fsdp_optimizer_config *config, update_range *ranges, int n_ranges,
                             adafactor **out);
void adafactor_free(adafactor *a); /* NULL is legal */

/* After the norm is known: the means move, updates take the place of gradients, and rates are there. What is left is
 * update_apply. */
fsdp_status adafactor_prepare(adafactor *a, update *u);

/* Device memory of a parameter's means of rows, or of columns; NULL: it has none. */
float *adafactor_means(const adafactor *a, const char *name, bool rows);

/* Of one rank, before there are units. */
typedef struct adafactor_plan {
    size_t bytes;          /* on the device */
    int64_t saved_bytes;   /* means, in a checkpoint */
    int64_t reduced_bytes; /* received in a step */
} adafactor_plan;
adafactor_plan adafactor_make_plan(const fsdp_model *m);

#endif
