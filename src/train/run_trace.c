/* Listeners change only between steps, after background work has ended. */
#include "train/run_trace.h"

#include <stdio.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "train/run.h"
#include "train/trace_gather.h"

static void add_span(void *context, const device_activity *a)
{
    static const int kinds[] = {
        [ACTIVITY_KERNEL] = TRACE_KERNEL, [ACTIVITY_COPY] = TRACE_COPY, [ACTIVITY_WAIT] = HOOK_WAIT};
    trace_device_span s = {.name = a->name,
                           .kind = kinds[a->kind],
                           .begin_ns = a->begin_ns,
                           .end_ns = a->end_ns,
                           .launched_ns = a->launched_ns,
                           .bytes = a->bytes,
                           .stream = a->stream};
    trace_add_device(context, &s);
}

static fsdp_status begin(run_trace *t, train_run *run, const fsdp_memory_meter *meter)
{
    FSDP_TRY(state_settle(run->state));
    int64_t uses[MEMORY_USES];
    memory_meter_uses(meter, uses);
    FSDP_TRY(trace_start(0, uses, &t->trace));
    FSDP_TRY(activity_start(run->world->dev, run->world->compute, &t->recorder));
    if (t->recorder && run->rank == 0)
        run_say(run, FSDP_LINE_INFO, "--trace: what runs on the GPU is timed by %s", activity_source(t->recorder));
    return FSDP_OK;
}

/* A trace without the device's part is still one. */
static void add_device(run_trace *t, train_run *run)
{
    activity_recorder *r = t->recorder;
    t->recorder = NULL;
    if (activity_stop(r, add_span, t->trace) != FSDP_OK)
        run_say(run, FSDP_LINE_WARNING, "--trace: rank %d has no times of the GPU: %s", run->rank, fsdp_last_error());
}

fsdp_status run_trace_end(run_trace *t, train_run *run)
{
    if (!t->trace || t->written)
        return FSDP_OK;
    FSDP_TRY(state_settle(run->state));
    trace_stop(t->trace);
    add_device(t, run);
    t->written = true;
    return trace_gather(comm_world(run->world->comm), t->trace, run->settings->trace);
}

/* The first step tells which operation asked for which kernel. It runs plainly for that; later ones run as they do
 * untraced, where the device keeps records. */
fsdp_status run_trace_follow(run_trace *t, train_run *run, const fsdp_memory_meter *meter)
{
    const fsdp_settings *s = run->settings;
    int64_t first = s->trace_first > t->after ? s->trace_first : t->after + 2, next = run->step + 1;
    if (!s->trace)
        return FSDP_OK;
    if (!t->trace && next == first)
        return begin(t, run, meter);
    if (next == first + s->trace_steps)
        return run_trace_end(t, run);
    return next == first + 1 && t->recorder && activity_has_records(t->recorder) ? trace_skip_operations(t->trace)
                                                                                 : FSDP_OK;
}

void run_trace_describe(const run_trace *t, train_run *run, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!run->settings->trace)
        return;
    if (!t->trace) {
        run_say(run, FSDP_LINE_INFO, "--trace: nothing was traced, the run ended before --trace_first=%lld",
                (long long)run->settings->trace_first);
        return;
    }
    snprintf(text, bytes, "%s", run->settings->trace);
}

void run_trace_leave_device(run_trace *t)
{
    (void)activity_stop(t->recorder, NULL, NULL);
    t->recorder = NULL;
}

void run_trace_close(run_trace *t)
{
    trace_free(t->trace);
    *t = (run_trace){.trace = NULL};
}
