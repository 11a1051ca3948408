/* What a run leaves for people: progress lines, metrics.jsonl, TensorBoard, the trace, the summary table. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include <fsdp/train.h>

typedef struct train_run train_run;
typedef struct report report;
struct fsdp_batch;

/* Numbers of one optimizer step. */
typedef struct report_step {
    int64_t step; /* counted from 1 */
    double loss, gradient_norm, lr;
    double tokens, samples; /* of the step, over all ranks */
    double seconds;
    bool skipped;
    int stop; /* not 0: why this rank was asked to end */
} report_step;

/* Starts counting memory; before anything is allocated. */
fsdp_status report_meter(report **out);
/* Opens the files of the run, on rank 0. */
fsdp_status report_open(train_run *run, report *r);
void report_leave_device(report *r); /* before the device is closed; NULL is legal */
void report_close(report *r);        /* NULL is legal */

fsdp_status report_before_step(report *r, train_run *run);
/* A line that the run has said, for whoever watches it. Any thread. */
void report_said(report *r, bool warning, const char *text);
/* --log_samples: a line per micro-batch and rank, "step rank sample sample ...". */
fsdp_status report_samples(report *r, train_run *run, const struct fsdp_batch *batch);
/* Tells all ranks of the step (and *stop: the largest reason to stop that any rank gave), then writes it down.
 * Collective. */
fsdp_status report_add(report *r, train_run *run, const report_step *step, int *stop);
fsdp_status report_validation(report *r, train_run *run, double loss);
/* What a run spends its time on besides its steps. */
typedef enum report_activity { ACTIVITY_STARTING, ACTIVITY_VALIDATING, ACTIVITY_SAVING, N_ACTIVITIES } report_activity;
/* The time since `begun` (clock_seconds) went into it. */
void report_spent(report *r, report_activity activity, double begun);
/* The table at the end: time, losses, and memory per rank compared with that of no sharding. Collective. */
fsdp_status report_summary(report *r, train_run *run);
/* How the run ended, `status` with this thread's error message, into run.json, and report.html beside it: by rank 0,
 * however that was. What cannot be written is a warning. */
void report_end(train_run *run, fsdp_status status);

#endif
