/* What a run shows over HTTP: to Prometheus (--metrics_port) on the first rank of every node, to people (--dashboard)
 * on rank 0. */
#ifndef TRAIN_SERVE_H
#define TRAIN_SERVE_H

#include "observe/figures.h"
#include "observe/snapshot.h"
#include "train/run.h"

typedef struct serve serve;

/* *out is NULL where nothing is served: without the flag, and on other ranks. `snapshot` and *out's owner outlive it.
 * Collective. */
fsdp_status serve_open(train_run *run, run_snapshot *snapshot, serve **out);
void serve_close(serve *s); /* NULL is legal */

/* A step that is in the snapshot. NULL is legal. */
void serve_step(serve *s, const train_run *run, const step_figures *f, const rank_snapshot *ranks);
/* What happens between steps; likewise. */
void serve_rewind(serve *s, int64_t step); /* the run went back to `step`, and its files with it */
void serve_validation(serve *s, const train_run *run, double loss);
void serve_say(serve *s, bool warning, const char *text);

#endif
