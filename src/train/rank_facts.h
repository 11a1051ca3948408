/* ranks.json: what each rank planned and took, and where its time went; written once, when a run ends. */
#ifndef TRAIN_RANK_FACTS_H
#define TRAIN_RANK_FACTS_H

#include <fsdp/train.h>

#include "observe/memory.h"
#include "observe/snapshot.h"
#include "plan/workload.h"

typedef struct train_run train_run;

/* Bytes of each class that `plan` has for this rank, on its device, or on the host where that is the device. */
void rank_facts_classes(const train_run *run, const memory_plan *plan, int64_t classes[MEMORY_USES]);

/* `rows` are all ranks' memory, `plan` is this rank's, `newest` (n_ranks) what ranks told after their last step,
 * `seconds` (n_ranks * LAP_COUNT) the time of each rank by lap.
 * Collective; rank 0 writes, and a file that cannot be written is a warning. */
fsdp_status rank_facts_write(train_run *run, const memory_plan *plan, const memory_row *rows,
                             const rank_snapshot *newest, const double *seconds);

#endif
