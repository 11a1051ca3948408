/* The trace of a run (--trace): when it begins and ends, and what is put into it from the device. */
#ifndef TRAIN_RUN_TRACE_H
#define TRAIN_RUN_TRACE_H

#include "device/activity.h"
#include "observe/memory.h"
#include "observe/trace.h"

typedef struct train_run train_run;

typedef struct run_trace {
    trace *trace;                /* NULL: not begun */
    activity_recorder *recorder; /* of the device while it is traced; NULL: none */
    bool written;
    int64_t after; /* the run began after this step */
} run_trace;

/* Before a step: the trace covers trace_steps steps from trace_first on, or fewer when the run ends. A run that was
 * resumed after trace_first begins with its second step, because its first one makes programs. `meter` says what memory
 * is taken already. Collective where the trace ends. */
fsdp_status run_trace_follow(run_trace *t, train_run *run, const fsdp_memory_meter *meter);
fsdp_status run_trace_end(run_trace *t, train_run *run);
/* The file of the trace, as the summary names it; "" when there is none, with a line that says so. */
void run_trace_describe(const run_trace *t, train_run *run, char *text, size_t bytes);
/* Before the device is closed: a recording that has not ended is dropped. */
void run_trace_leave_device(run_trace *t);
void run_trace_close(run_trace *t);

#endif
