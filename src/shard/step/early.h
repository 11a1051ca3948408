/* Gathers that begin before the program that needs them: at the end of a step, as soon as a unit is updated and while
 * the others are, for the forward to come. */
#ifndef SHARD_STEP_EARLY_H
#define SHARD_STEP_EARLY_H

#include "shard/model.h"

/* The next unit of a schedule that is gathered early, from event *at on, which moves behind its gather; -1: there is no
 * other. */
int early_next(const fsdp_model *m, const schedule *s, int *at);
bool early_has(const fsdp_model *m, const schedule *s, int index); /* it is one of them */

/* After the unit's update, for the program that trained last. Collective, in the order of early_next. */
fsdp_status early_gather(fsdp_model *m, int index);

/* Before a program runs: units that it wants first, and where they are, stay; the others are given up. Ranks whose
 * programs differ in sizes alone come to the same result. */
fsdp_status early_keep(fsdp_model *m, const schedule *next);
/* Before the unit's parameters become others: what was gathered early is given up. */
fsdp_status early_drop(fsdp_model *m, int index);

#endif
