/* What the public calls have in common: finding the checkpoint that a path means, and giving results as text. */
#ifndef CKPT_COMMANDS_REPORT_H
#define CKPT_COMMANDS_REPORT_H

#include <stdio.h>

#include "ckpt/save/directory.h"
#include "ckpt/load/source.h"

/* The checkpoint or model folder that `path` means; malloc'd. A directory of checkpoints: its newest complete one. */
fsdp_status report_resolve(const char *path, char **out);
bool report_is_directory_of_checkpoints(const char *path);
/* The directory of checkpoints that `path` is, or that of the run in that folder; malloc'd. *run (malloc'd): what that
 * run calls itself, if it saves where others may as well; NULL: all that is there is meant. */
fsdp_status report_directory(const char *path, char **out, char **run);
/* The checkpoints in it; of a run, its own. */
fsdp_status report_list(const char *path, ckpt_listing *listing);

/* Takes `report`. As JSON, or as `print` writes it; names in it are from files, so either shows control characters
 * escaped. */
typedef void (*report_printer)(FILE *out, const json_t *report);
fsdp_status report_text(json_t *report, bool json, report_printer print, char **text);

const char *report_string(const json_t *object, const char *key); /* "" when absent */
int64_t report_int(const json_t *object, const char *key);
/* "12.3 MiB" */
const char *report_size(int64_t bytes, char *text, size_t room);

#endif
