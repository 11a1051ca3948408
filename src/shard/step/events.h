/* Carrying out the events of a schedule while its program runs. */
#ifndef SHARD_STEP_EVENTS_H
#define SHARD_STEP_EVENTS_H

#include "shard/model.h"

/* One run of a program: what its events need to know. */
typedef struct event_run {
    fsdp_model *m;
    planned_program *planned;
    gradient_residency gradients;
    micro_batch batch;
    int next;    /* event; set by events_before */
    bool turned; /* likewise: backward has begun */
} event_run;

/* A program_hook; `context` is an event_run. Also where forward turns into backward. */
fsdp_status events_before(void *context, int index);

/* Of a program that is in its forward phase: backward begins. In a graph that is being recorded, each launch will tell
 * when it did. */
fsdp_status events_turn(fsdp_model *m, planned_program *p, bool more);

/* Units that this program does not train have no gradient this time: zero for the first micro-batch. */
fsdp_status events_clear_untrained(fsdp_model *m, const schedule *s);

#endif
