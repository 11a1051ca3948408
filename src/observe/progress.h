/* The line of progress. Collects steps between two lines and says how fast they went and how long it will take. */
#ifndef OBSERVE_PROGRESS_H
#define OBSERVE_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

#include "observe/figures.h"

typedef struct progress {
    int64_t total_steps; /* 0: not known */
    double step_seconds; /* moving average, for the time left */
    double loss;         /* likewise */
    int64_t steps;       /* so far */
    double seconds, flops;
    int64_t samples, tokens; /* since the last line */
} progress;

progress progress_begin(int64_t total_steps);
void progress_add(progress *p, const step_figures *f);
/* "Batch N Loss: x, Speed: y samples/sec, lr: z, ..." over the steps since the last call. The beginning is fixed: hang
 * detectors look for it. */
void progress_line(progress *p, const step_figures *f, char *text, size_t bytes);
/* "Batch N/TOTAL, loss x, ...": for a line of a terminal that is rewritten in place. The loss is averaged. */
void progress_live(const progress *p, const step_figures *f, char *text, size_t bytes);

#endif
