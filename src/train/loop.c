/* The training loop: micro-batches, optimizer steps, and between them validation, checkpoints and reports. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "base/record/laps.h"
#include "base/sized.h"
#include "settings/settings_table.h"
#include "train/agree.h"
#include "train/record.h"
#include "train/run.h"

/* One micro-batch, the `first` or `last` of its step. *samples grows by what it held over all ranks. */
static fsdp_status run_micro_batch(train_run *run, bool first, bool last, double *samples)
{
    fsdp_batch *b;
    HOOK(HOOK_PHASE, HOOK_BEGIN, "data", NULL, 0, 0);
    FSDP_TRY(fsdp_loader_next(run->loader, &b));
    if (!b) /* an epoch has ended */
        FSDP_TRY(fsdp_loader_next(run->loader, &b));
    HOOK(HOOK_PHASE, HOOK_END, "data", NULL, 0, 0);
    if (!b)
        return error_set(FSDP_ERR_STATE, "the data ended before the run did");
    FSDP_TRY(report_samples(run->report, run, b));
    if (first)
        FSDP_TRY(run_fp8_check(run, b));
    fsdp_tape *t = fsdp_begin(run->model);
    FSDP_TRY(fsdp_backward(t, record_loss(run, t, b), last));
    run->position = fsdp_loader_position(run->loader);
    *samples += (double)b->n_global;
    return FSDP_OK;
}

/* Micro-batches of the step that begins now: fewer at the end of an epoch. */
static int64_t micro_batches(const train_run *run)
{
    int64_t wanted = run->settings->gradient_accumulation_steps;
    if (run->settings->epochs == 0)
        return wanted;
    int64_t left = run->info.n_samples - run->position % run->info.n_samples;
    return min_i64(wanted, ceil_div(left, run->micro_samples));
}

enum { MAX_ROLLBACKS = 3 };

/* Other samples may get past what happened; the same thing again and again is not the samples' fault. */
static fsdp_status roll_back(train_run *run)
{
    run->n_rollbacks = run->step > run->furthest_failure ? 1 : run->n_rollbacks + 1;
    run->furthest_failure = max_i64(run->step, run->furthest_failure);
    if (run->n_rollbacks > MAX_ROLLBACKS)
        return error_set(FSDP_ERR_NUMERIC,
                         "step %lld: not finite again after %d rollbacks: lower --lr, raise --warmup or clip more",
                         (long long)run->step, MAX_ROLLBACKS);
    FSDP_TRY(run_rollback(run));
    return run_plan_length(run); /* the step went back, the data did not */
}

/* `scale`: the loss scale of the step. At 1 it is not halved any more. */
static fsdp_status guard(train_run *run, const fsdp_step_report *r, double scale)
{
    if (!r->skipped && isfinite(r->loss))
        return FSDP_OK;
    bool fp16 = run->settings->param_dtype == FSDP_F16;
    if (fp16 && isfinite(r->loss) && scale > 1)
        return FSDP_OK; /* the loss scale is finding its place */
    if (run->settings->nan_policy == FSDP_NAN_STOP)
        return error_set(FSDP_ERR_NUMERIC,
                         "step %lld: loss %g with gradient norm %g is not finite, nothing was changed by this step; "
                         "lower --lr, raise --warmup, or go on with --nan_policy skip",
                         (long long)run->step, r->loss, r->gradient_norm);
    if (run->settings->nan_policy == FSDP_NAN_ROLLBACK)
        return roll_back(run);
    run_say(run, FSDP_LINE_WARNING, "step %lld: loss %g with gradient norm %g: the step was skipped",
            (long long)run->step, r->loss, r->gradient_norm);
    return FSDP_OK;
}

static int stop_asked(const train_run *run)
{
    int stop = run->callbacks.stop_requested ? run->callbacks.stop_requested(run->callbacks.context) : 0;
    return stop < 0 ? -stop : stop;
}

static void obey(train_run *run, int stop)
{
    run->stopping = stop != 0;
    run->result.stop_reason = stop;
}

static fsdp_status run_step(train_run *run)
{
    int stop;
    double begun = clock_seconds(), samples = 0;
    int64_t n = micro_batches(run);
    run->previous_position = run->position;
    crash_note_step(run->step + 1);
    FSDP_TRY(report_before_step(run->report, run));
    HOOK(HOOK_PHASE, HOOK_BEGIN, "step", NULL, 0, 0);
    double lr = fsdp_lr_at(&run->lr, run->step + run->schedule_offset);
    fsdp_optimizer_set_lr(run->optimizer, (float)lr); /* before backward: updates may run ahead of the step */
    for (int64_t i = 0; i < n; i++)
        FSDP_TRY(run_micro_batch(run, i == 0, i + 1 == n, &samples));
    double scale = state_scalars_of(run->state).loss_scale;
    fsdp_step_report r;
    FSDP_TRY(fsdp_step(run->optimizer, &r));
    int64_t number = ++run->step;
    FSDP_TRY(guard(run, &r, scale)); /* may go back to an earlier step; this one keeps its number */
    double seconds = clock_seconds() - begun;
    run->samples += (int64_t)samples;
    run->tokens += (int64_t)r.count;
    run->result.loss = r.loss;
    report_step line = {.step = number,
                        .loss = r.loss,
                        .gradient_norm = r.gradient_norm,
                        .lr = r.lr == (double)(float)lr ? lr : r.lr, /* an optimizer may have a rate of its own */
                        .tokens = r.count,
                        .samples = samples,
                        .seconds = seconds,
                        .skipped = r.skipped,
                        .stop = stop_asked(run)};
    HOOK(HOOK_PHASE, HOOK_END, "step", NULL, 0, 0);
    FSDP_TRY(report_add(run->report, run, &line, &stop));
    obey(run, stop);
    return FSDP_OK;
}

/* All ranks stop when any rank was asked to. Every step tells; this is for what takes long between two steps. */
static fsdp_status ask_to_stop(train_run *run)
{
    int64_t stop = stop_asked(run);
    FSDP_TRY(comm_all_reduce_i64(comm_world(run->world->comm), "stop", run->step, FSDP_REDUCE_MAX, &stop, 1));
    obey(run, (int)stop);
    return FSDP_OK;
}

static bool validates_now(const train_run *run)
{
    int64_t every = run->settings->validation_freq;
    return run->validation && (every > 0 ? run->step % every == 0 : false);
}

/* What the model writes by itself now. */
static fsdp_status say_sample(train_run *run)
{
    char *text = NULL;
    if (run->settings->sample_tokens == 0)
        return FSDP_OK;
    FSDP_TRY(run_sample(run, run->settings->sample_prompt, run->settings->sample_tokens, &text));
    if (text)
        run_say(run, FSDP_LINE_INFO, "\nA sample of what the model writes:\n\n%s", text);
    free(text);
    return FSDP_OK;
}

static fsdp_status validate_now(train_run *run)
{
    double begun = clock_seconds();
    HOOK(HOOK_PHASE, HOOK_BEGIN, "validation", NULL, 0, 0);
    validation_means v;
    FSDP_TRY(run_validate(run, &v));
    run->result.validation_loss = v.loss;
    run->result.validation_accuracy = v.accuracy;
    HOOK(HOOK_PHASE, HOOK_END, "validation", NULL, 0, 0);
    FSDP_TRY(report_validation(run->report, run, run->result.validation_loss));
    report_spent(run->report, ACTIVITY_VALIDATING, begun);
    return FSDP_OK;
}

static fsdp_status checkpoint_now(train_run *run, bool at_end)
{
    double begun = clock_seconds();
    FSDP_TRY(run_checkpoint(run, at_end));
    report_spent(run->report, ACTIVITY_SAVING, begun);
    return FSDP_OK;
}

static fsdp_status finish_checkpoints(train_run *run)
{
    double begun = clock_seconds();
    FSDP_TRY(run_finish_checkpoints(run));
    report_spent(run->report, ACTIVITY_SAVING, begun);
    return FSDP_OK;
}

fsdp_status run_steps(train_run *run)
{
    bool fresh = false; /* the last validation is of the present weights */
    report_spent(run->report, ACTIVITY_STARTING, run->start);
    laps_begin();
    while (run->step < run->n_steps && !run->stopping) {
        int64_t before = run->step;
        FSDP_TRY(run_step(run));
        fresh = false;
        bool rolled_back = run->step <= before; /* what is due every N steps was done there already */
        if (!rolled_back && validates_now(run)) {
            FSDP_TRY(validate_now(run));
            fresh = true;
            if (run->settings->sample_at_validation && run->step < run->n_steps) /* the end has its own */
                FSDP_TRY(say_sample(run));
            FSDP_TRY(ask_to_stop(run));
        }
        FSDP_TRY(run_agree_still(run, run->stopping || run->step >= run->n_steps));
        FSDP_TRY(checkpoint_now(run, run->stopping));
        if (!rolled_back && !run->stopping)
            FSDP_TRY(run_keep_snapshot(run));
    }
    if (run->validation && !fresh && !run->stopping)
        FSDP_TRY(validate_now(run));
    if (!run->stopping)
        FSDP_TRY(checkpoint_now(run, true));
    return finish_checkpoints(run);
}

fsdp_status fsdp_train(const fsdp_settings *settings, const fsdp_train_callbacks *callbacks, fsdp_train_result *result)
{
    train_run run;
    SIZED_CHECK(fsdp_train_result, FSDP_TRAIN_RESULT_INIT, result);
    FSDP_TRY(settings_check_size(settings));
    FSDP_TRY(run_open(settings, callbacks, &run));
    run.result.loss = run.result.validation_loss = run.result.validation_accuracy = NAN;
    fsdp_status status = settings->dry_run ? run_dry(&run) : run_steps(&run);
    laps_end();
    if (status == FSDP_OK && !settings->dry_run)
        status = report_summary(run.report, &run);
    if (status == FSDP_OK && !settings->dry_run)
        run_say_sources(&run);
    if (status == FSDP_OK && !settings->dry_run && !run.stopping)
        status = say_sample(&run); /* after the memory of the run has been counted */
    run.result.steps = run.step;
    run.result.epochs = (int64_t)run_epochs(&run);
    run.result.tokens = run.tokens;
    run.result.samples = run.samples;
    run.result.seconds = clock_seconds() - run.start;
    run.result.stopped = run.stopping;
    sized_write(result, &run.result, sizeof run.result);
    if (status != FSDP_OK)
        fsdp_world_abort(run.world);
    if (!settings->dry_run)
        report_end(&run, status);
    run_close(&run);
    return status;
}
