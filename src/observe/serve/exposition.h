/* A run as Prometheus reads it: every figure of the newest step, what adds up since the start, and the state of this
 * node's GPUs. Steps are added on the thread that trains; the text is made on the server's. docs/metrics.md lists the
 * series. */
#ifndef OBSERVE_SERVE_EXPOSITION_H
#define OBSERVE_SERVE_EXPOSITION_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "observe/figures.h"
#include "observe/snapshot.h"

/* What stays the same for a rank. Plain data that travels between ranks. */
typedef struct exposed_rank {
    int32_t node;
    char pci_bus_id[32]; /* of its GPU; "": it has none */
    int64_t memory_limit_bytes;
} exposed_rank;

/* What happens between steps. */
typedef struct exposed_events {
    int64_t checkpoint_step;  /* 0: none yet */
    double checkpoint_time;   /* seconds since 1970; that of the start where there is none */
    int64_t checkpoint_fails; /* so far */
    double validation_loss;   /* NaN: none yet */
} exposed_events;

typedef struct exposition_config {
    run_snapshot *snapshot;    /* borrowed */
    const exposed_rank *ranks; /* (n_ranks), copied */
    int n_ranks;
    int node;      /* whose ranks are shown; the one with rank 0 shows the figures of the whole run, too */
    int64_t steps; /* at which the run ends */
    int restarts;
    exposed_events events;               /* before the first step */
    const char *run, *strategy, *device; /* copied */
} exposition_config;

typedef struct exposition exposition;

fsdp_status exposition_new(const exposition_config *c, exposition **out); /* the caller frees *out */
void exposition_free(exposition *e);                                      /* NULL is legal */

/* A step that has been put into the snapshot, `f->times` included. */
void exposition_add(exposition *e, const step_figures *f, const rank_snapshot *ranks, const exposed_events *events);
/* In Prometheus's text format 0.0.4; malloc'd, NULL when out of memory. On any one thread. */
char *exposition_text(exposition *e, size_t *bytes);

#endif
