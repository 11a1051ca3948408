/* Weights of linear layers that are kept in 8 bits beside the values that they are rounded from: which they are, where
 * their codes and scales lie, and how they are made, once after each optimizer step and whenever values are written.
 * They follow from the parameters alone, so no checkpoint has them. */
#ifndef SHARD_BUILD_CODES_H
#define SHARD_BUILD_CODES_H

#include "optim/update.h"
#include "shard/model.h"

/* Marks the parameters; before the layout is made. */
void codes_choose(fsdp_model *m);

/* Bytes of the codes that this rank has of a segment. */
size_t codes_bytes(const fsdp_model *m, int index, const layout_segment *s);
/* Bytes of all scales, and of those that ranks agree on in each step. */
size_t codes_scales_bytes(const fsdp_model *m);
size_t codes_agreed_bytes(const fsdp_model *m);

/* Takes memory for the scales; the parameters that have some point into it, from m->scales on. */
fsdp_status codes_place(fsdp_model *m);
void codes_give_scales(fsdp_model *m);

/* Groups with codes that are trained, on any rank. */
int codes_trained(const fsdp_model *m);
/* What this rank has of them in a unit's trained segment, for the update that writes them to measure; out has room for
 * all. Returns how many. */
int codes_magnitudes(const unit_segment *s, update_magnitude *out);
/* Before the updates of a step, which measure what they write; and after them: codes follow the new values; with all
 * ranks. */
fsdp_status codes_before_update(fsdp_model *m);
fsdp_status codes_round_trained(fsdp_model *m);
/* All of one unit does; with the ranks that share it. */
fsdp_status codes_round_unit(fsdp_model *m, int index);

#endif
