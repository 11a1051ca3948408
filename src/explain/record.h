/* What one rank heard of its own two steps: events in memory that the process that tells the tale shares. */
#ifndef EXPLAIN_RECORD_H
#define EXPLAIN_RECORD_H

#include <stdatomic.h>

#include "plan/workload.h"

enum { RECORD_NAME = 48, RECORD_EVENTS = 8192, RECORD_STEPS = 2, RECORD_TEXT = 512 };

typedef enum record_kind {
    RECORD_STEP,       /* a step begins */
    RECORD_OPERATION,  /* name: the operation, detail: forward, replay or backward */
    RECORD_UNIT,       /* name: the unit, detail: its new state, bytes: of the full buffer */
    RECORD_COLLECTIVE, /* name: all_gather, ..., detail: the unit, bytes: received */
    RECORD_OPTIMIZER,  /* the update begins */
    RECORD_LOSS,       /* a step has ended; value: its loss */
} record_kind;

typedef struct record_event {
    record_kind kind;
    char name[RECORD_NAME], detail[RECORD_NAME];
    int64_t bytes;
    double value;
} record_event;

typedef struct rank_record {
    atomic_int n; /* may pass RECORD_EVENTS: the rest was lost */
    record_event events[RECORD_EVENTS];
    atomic_llong memory; /* bytes that this rank holds now */
    int64_t taken;       /* the same after the last step */
    size_t planned;      /* what the plan said */
    bool done;
    char error[RECORD_TEXT];
} rank_record;

/* The small model that is told about, and how it is sharded. `config` names types of `w`'s model. */
void record_subject(workload *w, fsdp_config *config, fsdp_strategy strategy, int n_ranks);

/* Runs two steps on each of n_ranks processes, which it forks, and fills in their records, (n_ranks) of *out, to be
 * ended by records_free. Fails with the first rank's message when one fails, and after a minute without an end. */
fsdp_status records_take(fsdp_strategy strategy, int n_ranks, rank_record **out);
void records_free(rank_record *records, int n_ranks); /* NULL is legal */

#endif
