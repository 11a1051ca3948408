/* Updates of offloaded units that do not wait for the norm: while backward still runs, the processor updates units
 * whose gradient has come, with the numbers that the step will have if its gradients are not clipped, and keeps their
 * old values. When the numbers turn out otherwise, the old values come back, and the update is made again: no bit can
 * tell.
 *
 *     compute   backward of unit 7 | unit 6 | unit 5 | ... | norm
 *     worker                       | update 7 | update 6 |   | update 0 | ...    stands: 7 and 6 are done
 *                                                            | undo 7, update 7 ... otherwise, in their turn
 *
 * After a step that was clipped or skipped, and for a while after a guess that was wrong, nothing runs ahead. */
#ifndef SHARD_OFFLOAD_AHEAD_H
#define SHARD_OFFLOAD_AHEAD_H

#include "optim/update.h"
#include "shard/model.h"
#include "shard/offload/offload.h"

typedef struct ahead ahead;

/* Elements that there is room for old values of, and those that an update of n elements takes of it. */
int64_t ahead_room(const fsdp_model *m);
int64_t ahead_numel(int64_t n);
/* Host memory for old values, of a model that has its layout; numbers and halves as split_bytes has them. 0: the
 * configuration does not ask for it. */
size_t ahead_bytes(const fsdp_model *m, int numbers, int halves);

/* What the numbers of the step that is under way will be, if nothing is clipped; called on the caller's thread. */
typedef void (*ahead_guesser)(void *context, optimizer_scalars *out);

/* Borrows model, update and context. */
fsdp_status ahead_create(fsdp_model *m, update *u, const fsdp_optimizer_config *config, ahead_guesser guess,
                         void *context, ahead **out);
void ahead_free(ahead *a); /* NULL is legal; what ran ahead is undone */

/* The step's numbers are known: whether what ran ahead was made with them. `guessable`: they are what a guess would
 * have been, so that the next step is worth one. */
bool ahead_stands(ahead *a, const optimizer_scalars *known, bool guessable);

#endif
