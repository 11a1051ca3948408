/* What a run's figures say, in words. */
#ifndef REPORT_VERDICT_H
#define REPORT_VERDICT_H

#include "report/run_files.h"

/* Steps at which the loss jumped above what the steps before let expect, or was not finite. */
typedef struct loss_spikes {
    int64_t n, n_not_finite; /* all there are */
    int64_t steps[32];       /* the first of both */
    int n_steps;
} loss_spikes;

/* Finds them while losses come; begins with zeros. */
enum { LOSS_WINDOW = 32 };
typedef struct loss_watch {
    loss_spikes found;
    double window[LOSS_WINDOW]; /* the last that were finite */
    int64_t seen;
} loss_watch;

void loss_watch_add(loss_watch *w, int64_t step, double loss);
void loss_spikes_find(const run_files *r, loss_spikes *out);

/* Array of {question, level: "good", "look", "bad" or "unknown", text}. NULL when out of memory. */
json_t *verdict_of(const run_files *r, const loss_spikes *spikes);

#endif
