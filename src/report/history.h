/* The steps of a run, thinned as they come to what a screen can show: of every stretch of steps the one of the lowest
 * and the one of the highest loss, so that no spike is lost, and the time of each lap as a sum, so that thinning hides
 * nothing. Memory and points are bounded, however long the run. */
#ifndef REPORT_HISTORY_H
#define REPORT_HISTORY_H

#include "report/run_files.h"

enum { HISTORY_POINTS = 4000 }; /* at most that many steps are drawn */

typedef struct history_stretch {
    metrics_row low, high; /* a loss that is not finite is the highest */
    int64_t n;             /* steps in it */
    double laps[LAP_COUNT];
} history_stretch;

typedef struct history {
    history_stretch *stretches;  /* (HISTORY_POINTS) */
    int64_t n_stretches, length; /* steps in every stretch but the last */
    int64_t n_steps;
    int64_t edition; /* changes when steps that were there before are drawn no more */
    metrics_row newest;
} history;

fsdp_status history_open(history *h);
void history_close(history *h); /* legal on zeros */

void history_clear(history *h); /* no steps any more */

void history_add(history *h, const metrics_row *row); /* steps ascend */
/* `to` becomes as `from`; cheap where it was so a few steps ago. */
void history_copy(history *to, const history *from);

/* null where it is not finite, or so large that differences would not be. */
json_t *history_number(double value);
/* Steps after `since` and their figures: {step: [...], loss: [...], ...}. */
json_t *history_curves(const history *h, int64_t since);
/* Adds the newest step to curves that thinning left without it: their end is where the run is. */
void history_end(const history *h, json_t *curves);
/* The newest step's figures: {loss, ...}. */
json_t *history_newest(const history *h);
/* Mean seconds of every lap over at most 200 stretches: {step: [...], laps: [{name, values}]}. */
json_t *history_times(const history *h);

#endif
