/* metrics.jsonl: one JSON object per line, one line per optimizer step. A line is written by a single call at the end
 * of the file, so that a run killed at any instant leaves whole lines, and a resumed one appends to them. */
#ifndef OBSERVE_METRICS_H
#define OBSERVE_METRICS_H

#include <fsdp/status.h>

#include "observe/figures.h"

typedef struct metrics metrics;

/* Appends to `path`, whose folder is made where needed. A torn last line is ended first. The caller closes *out. */
fsdp_status metrics_open(const char *path, metrics **out);
fsdp_status metrics_step(metrics *m, const step_figures *f);
/* A line for a validation, for a file of its own: step, loss and perplexity, or for images (accuracy not NaN) accuracy.
 */
fsdp_status metrics_validation(metrics *m, int64_t step, double loss, double accuracy);
fsdp_status metrics_close(metrics *m); /* frees, also on failure; NULL is legal */

#endif
