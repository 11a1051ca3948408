/* A run while it trains, as the live page and `fsdp top` show it. The thread that trains adds steps; the server's
 * thread makes text of them: all there is, or what is new since a client was told last. The data has the form of a
 * report's (report/report_data.h), so that the same scripts draw it, and `live` beside it: what only a run that trains
 * has. */
#ifndef REPORT_LIVE_LIVE_RUN_H
#define REPORT_LIVE_LIVE_RUN_H

#include <fsdp/status.h>

#include "observe/figures.h"
#include "observe/serve/exposition.h"
#include "observe/snapshot.h"

typedef struct live_config {
    const char *folder, *checkpoints;      /* of the run; copied, as all texts are */
    const char *model, *strategy, *device; /* in words */
    const exposed_rank *ranks;             /* (n_ranks), copied */
    const int64_t *planned;                /* (n_ranks * MEMORY_USES) bytes, copied */
    int n_ranks, node;
    int64_t step, steps; /* done before, and at which the run ends */
    int restarts;
    exposed_events events; /* before the first step */
    const char *id;        /* by which `fsdp top` knows that this run answers; NULL: none */
} live_config;

typedef struct live_run live_run;

/* Reads what the folder has of earlier sessions. Opened and closed while no work runs. The caller frees *out. */
fsdp_status live_run_open(const live_config *c, live_run **out);
void live_run_close(live_run *l); /* NULL is legal */

/* On the thread that trains; `f->times` is there. */
void live_run_step(live_run *l, const step_figures *f, const rank_snapshot *ranks, const exposed_events *events);
void live_run_validation(live_run *l, int64_t step, double loss, double accuracy);
/* The run went back to `step`, and its files were cut back to it: they are read again. On the thread that trains. */
void live_run_rewind(live_run *l, int64_t step);
/* A line that the run said; any thread. */
void live_run_say(live_run *l, bool warning, const char *text);

/* On the server's thread. Everything, as JSON: {runs: [run], live}; malloc'd. `lately`: of the curves the last 200
 * steps at most, and no settings, for whoever asks again and again. */
char *live_run_document(live_run *l, bool lately, size_t *bytes);
/* What a client is told next, as a server-sent event: {whole, run, curves, live}. `cursor` begins with zeros and
 * remembers what the client has; NULL: nothing is new, or no memory. `last`: the run ends now. */
enum { LIVE_CURSOR = 4 };
char *live_run_message(live_run *l, int64_t cursor[LIVE_CURSOR], bool last, size_t *bytes);

#endif
