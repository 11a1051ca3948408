/* metrics.jsonl: one JSON object per line, one line per optimizer step. A line is written by a single call at the end
 * of the file, so that a run killed at any instant leaves whole lines, and a resumed one appends to them. */
#ifndef OBSERVE_METRICS_H
#define OBSERVE_METRICS_H

#include <fsdp/status.h>

#include "observe/figures.h"

typedef struct metrics metrics;

/* Appends to `path`, whose folder is made where needed. A torn last line is ended first. The caller closes *out. */
fsdp_status metrics_open(const char *path, metrics **out);
/* Removes the lines at the end that are of steps after `step`: a run that goes on from there makes them again. A torn
 * last line goes, too. A file that does not exist is fine. */
fsdp_status metrics_cut(const char *path, int64_t step);
fsdp_status metrics_rewind(metrics *m, int64_t step); /* the same, of the file that is open */
/* Where times are known, "times" has an object for each lap that took any: seconds from the line before to this one,
 * the least, mean and most over the ranks, and the rank that had the most; "exposed" is the sum of all waits for
 * collectives. "waited_for" is the rank that was busy longest, and in which phase it was longer than the others;
 * "slow_rank" is there when one has slowed the others down for several steps. docs/metrics.md lists all fields. */
fsdp_status metrics_step(metrics *m, const step_figures *f);
/* A line for a validation, for a file of its own: step, loss and perplexity, or for images (accuracy not NaN) accuracy.
 */
fsdp_status metrics_validation(metrics *m, int64_t step, double loss, double accuracy);
fsdp_status metrics_close(metrics *m); /* frees, also on failure; NULL is legal */

#endif
