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

/* Collective. The job is borrowed. `bytes`: of this rank's part of a snapshot. FSDP_ERR_INPUT where no launcher holds
 * memory for snapshots. */
fsdp_status ckpt_hot_open(const job *j, int64_t bytes, comm_group *world, ckpt_hot **out);
void ckpt_hot_free(ckpt_hot *h); /* NULL is legal */

/* FSDP_ERR_INPUT where a host of the job has too little memory for them (room.h). Collective, the same on all ranks. */
fsdp_status ckpt_hot_check_room(const ckpt_hot *h, comm_group *world);

/* Where and how a snapshot is saved: directory, kind and what happens after its commit. */
void ckpt_hot_configure(ckpt_hot *h, ckpt_save_config *config);
/* After the end of a save, on all ranks alike: `save` is the newest that is whole (0: the last one failed). Removes all
 * others from this node. */
void ckpt_hot_settle(ckpt_hot *h, uint64_t save);

/* The newest snapshot of which every part is held somewhere: its step, and the run that made it; -1: there is none. The
 * same on all ranks. */
int64_t ckpt_hot_newest(const ckpt_hot *h, comm_group *world, const char **run);

/* Loads it, at any world size; result->step is -1 where there is none.
 * Collective, the same on all ranks. Damaged ones are skipped with a warning. */
fsdp_status ckpt_hot_resume(ckpt_hot *h, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                            ckpt_load_result *result);

#endif
