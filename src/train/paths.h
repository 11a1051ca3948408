/* Where a run will write, looked at before it starts: a job that cannot keep its results says so at once. */
#ifndef TRAIN_PATHS_H
#define TRAIN_PATHS_H

#include <fsdp/settings.h>

/* FSDP_ERR_INPUT, with the flag named, when a file or folder that the settings name could not be made. Makes nothing.
 * `checkpoints`: where the run saves. */
fsdp_status paths_check(const fsdp_settings *s, const char *checkpoints);

/* Both lead to the same place, through links too; what does not exist yet is compared by its names. */
bool paths_are_same(const char *a, const char *b);

#endif
