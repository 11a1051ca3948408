/* Muon's part of an optimizer step: directions of matrices, which lie cut over the shards, are brought together,
 * orthogonalized by one rank each, and handed back. The momentum stays with the shards. */
#ifndef SHARD_STEP_MUON_H
#define SHARD_STEP_MUON_H

#include "optim/update.h"
#include "shard/model.h"

typedef struct muon muon;

/* Decides which rank orthogonalizes which matrix, allocates what the exchange works in, and tells Muon's spans where
 * their directions will lie. *out is NULL where no unit has a matrix for it. Borrows the model. */
fsdp_status muon_create(fsdp_model *m, update_range *ranges, int n_ranges, muon **out);
void muon_free(muon *m); /* NULL is legal */

/* Range `index` has a matrix: muon_update updates all of it. */
bool muon_has(const muon *m, int index);
fsdp_status muon_update(muon *m, update *u);

/* Of one rank, before there are units. */
typedef struct muon_plan {
    size_t workspace;       /* bytes on the device */
    int64_t gathered_bytes; /* received in a step */
} muon_plan;
fsdp_status muon_make_plan(const fsdp_model *m, muon_plan *out);

#endif
