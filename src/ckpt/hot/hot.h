/* Hot snapshots: checkpoints of kind local in memory that the launcher holds (FSDP_SNAPSHOTS), with a copy on the next
 * node. They outlive the ranks, and the copies outlive a node; with the last launcher they are gone.
 *
 * A snapshot is a save like any other (save.h) with two things added: whoever has committed its part also puts it into
 * the next node's folder before it calls the part done, and the one before is removed only when all ranks have heard
 * that the newer one is whole. So at every moment the parts of one save are all somewhere, and at most two saves are
 * held. Parts of the same save have the same number in their manifests: a mixture is never taken for a snapshot. */
#ifndef CKPT_HOT_HOT_H
#define CKPT_HOT_HOT_H

#include "base/host/job.h"
#include "ckpt/load/load.h"
#include "ckpt/save/save.h"

typedef struct ckpt_hot ckpt_hot;

/* Collective. The job is borrowed. FSDP_ERR_INPUT where no launcher holds memory for snapshots. */
fsdp_status ckpt_hot_open(const job *j, comm_group *world, ckpt_hot **out);
void ckpt_hot_free(ckpt_hot *h); /* NULL is legal */

/* What snapshots take of this node's memory when each rank has `bytes`: two of every rank, and with other nodes two
 * copies of the node before; and the room that there is (0: unknown). */
size_t ckpt_hot_bytes(const ckpt_hot *h, int64_t bytes);
size_t ckpt_hot_room(const ckpt_hot *h);

/* Where and how a snapshot is saved: directory, kind and what happens after its commit. */
void ckpt_hot_configure(ckpt_hot *h, ckpt_save_config *config);
/* After the end of a save, on all ranks alike: `save` is the newest that is whole (0: the last one failed). Removes all
 * others from this node. */
void ckpt_hot_settle(ckpt_hot *h, uint64_t save);

/* The newest snapshot of which every part is held somewhere, at any world size; result->step is -1 where there is none.
 * Collective, the same on all ranks. Damaged ones are skipped with a warning. */
fsdp_status ckpt_hot_resume(ckpt_hot *h, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                            ckpt_load_result *result);

#endif
