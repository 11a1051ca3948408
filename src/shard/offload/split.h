/* An update of offloaded units that device and processor share. The processor works through a range from its start, in
 * host memory; meanwhile chunks from its end come to the device, are updated there and go back, several at a time so
 * that both directions of the link are busy. A chunk leaves whenever a slot is free, so each side gets what its speed
 * allows and no rate has to be known beforehand. Both sides compute the same bits.
 *
 *     processor   | piece 0 | piece 1 | piece 2 | ...                      <- low
 *     slot 0      | chunk 9 in | update, copy | out | chunk 6 in | ...     high ->
 *     slot 1          | chunk 8 in | update, copy | out | ...
 */
#ifndef SHARD_OFFLOAD_SPLIT_H
#define SHARD_OFFLOAD_SPLIT_H

#include "optim/update.h"
#include "shard/model.h"
#include "shard/offload/offload.h"

typedef struct split split;

/* Whether the configuration asks for it and a unit is offloaded. */
bool split_wanted(const fsdp_model *m);
/* Device memory of the slots, of a model that has its layout; an element has that many numbers of optimizer state, some
 * of them of 16 bits. */
size_t split_bytes(const fsdp_model *m, int numbers, int halves);

/* Allocates the slots. Borrows model and update, whose configuration this is. */
fsdp_status split_create(fsdp_model *m, update *u, const fsdp_optimizer_config *config, split **out);
void split_free(split *x); /* NULL is legal; of work that is over (offload_settle) */

/* Before the units of a step: the numbers of m->scalars are kept until the next call. Compute has been waited for. */
fsdp_status split_begin(split *x);
/* Updates a range, on the worker's thread. What the device has taken is done when lanes.in is there. */
fsdp_status split_update(split *x, int range, const optimizer_scalars *scalars, offload_lanes lanes, int64_t *on_host);

#endif
