/* The observers of a run, opened as the settings ask and fed after every step. */
#include "train/report.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/report.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host/core_wait.h"
#include "base/log.h"
#include "base/record/ring.h"
#include "observe/attribution.h"
#include "observe/board.h"
#include "observe/memory.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/rank_log.h"
#include "observe/slow_rank.h"
#include "observe/snapshot.h"
#include "observe/step_times.h"
#include "observe/summary.h"
#include "observe/units.h"
#include "plan/workload.h"
#include "train/predicted.h"
#include "train/rank_facts.h"
#include "train/run.h"
#include "train/run_trace.h"
#include "train/serve.h"
#include "train/utilization.h"

struct report {
    metrics *files[2]; /* in the run's folder, and where --metrics says; rank 0 */
    board *board;
    progress progress;
    run_trace trace;
    fsdp_memory_meter *meter;
    double flops;      /* of one sample */
    double peak_flops; /* of all devices, a second; 0: not known */
    double first_loss, shown;
    predicted_step predicted;
    bool sought; /* that has been looked for */
    step_times times;
    double spent[N_ACTIVITIES]; /* seconds */
    char *metrics_path;
    metrics *validations; /* validation.jsonl */
    int samples;          /* file of --log_samples, -1: none */
    rank_log *log;
    run_snapshot *snapshot; /* for whoever shows the run while it trains */
    serve *serve;           /* --metrics_port, --dashboard */
    slow_watch *watch;
    core_wait *core_wait;
    rank_snapshot *ranks; /* (n_ranks) of the newest step */
    size_t *ranks_bytes;
    double *rank_seconds; /* (n_ranks * LAP_COUNT) of all steps so far */
};

fsdp_status report_meter(report **out)
{
    report *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(FSDP_ERR_MEMORY, "opening the report of a run: out of host memory");
    r->samples = -1;
    fsdp_status status = fsdp_memory_meter_start(&r->meter);
    if (status != FSDP_OK) {
        free(r);
        return status;
    }
    *out = r;
    return FSDP_OK;
}

static fsdp_status write_settings(const train_run *run, char **text)
{
    FSDP_TRY(fsdp_settings_json(run->settings, text));
    char *path = file_join(run->settings->output_dir, "settings.json");
    fsdp_status status = path ? file_write_atomic(path, *text, strlen(*text))
                              : error_set(FSDP_ERR_MEMORY, "writing settings: out of host memory");
    free(path);
    return status;
}

/* The folder that a file lies in; paths_check has looked whether it can be made. */
static fsdp_status make_parent(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (!slash || slash == path)
        return FSDP_OK;
    char *folder = strndup(path, (size_t)(slash - path));
    fsdp_status status =
        folder ? file_make_directories(folder) : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", path);
    free(folder);
    return status;
}

/* Steps after the one that the run goes on from are made again: each is there once. */
static fsdp_status open_metrics(const char *path, int64_t step, metrics **out)
{
    FSDP_TRY(metrics_cut(path, step));
    return metrics_open(path, out);
}

/* A shadow step has the number of the steps done before it, so that of `step` is made again, if this run makes any. */
static fsdp_status cut_checks(const fsdp_settings *s, int64_t step)
{
    char *path = file_join(s->output_dir, "fp8_check.jsonl");
    fsdp_status status = path ? metrics_cut(path, step - 1) : error_set(FSDP_ERR_MEMORY, "out of host memory");
    free(path);
    return status;
}

static fsdp_status open_files(report *r, const train_run *run)
{
    const fsdp_settings *s = run->settings;
    char *settings = NULL;
    FSDP_TRY(file_make_directories(s->output_dir));
    fsdp_status status = write_settings(run, &settings);
    r->metrics_path = file_join(s->output_dir, "metrics.jsonl");
    if (status == FSDP_OK && r->metrics_path)
        status = open_metrics(r->metrics_path, run->step, &r->files[0]);
    char *validations = file_join(s->output_dir, "validation.jsonl");
    if (status == FSDP_OK && validations && run->validation)
        status = open_metrics(validations, run->step, &r->validations);
    free(validations);
    if (status == FSDP_OK)
        status = cut_checks(s, run->step);
    if (status == FSDP_OK && s->metrics)
        status = run->folder.goes_on && run->step > 0 ? open_metrics(s->metrics, run->step, &r->files[1])
                                                      : metrics_open(s->metrics, &r->files[1]);
    if (status == FSDP_OK && s->tensorboard_dir)
        status = board_open(s->tensorboard_dir, settings, run->step, &r->board);
    free(settings);
    return status;
}

static void show_log(void *context, fsdp_log_level level, const char *line)
{
    run_say(context, level >= FSDP_LOG_WARNING ? FSDP_LINE_WARNING : FSDP_LINE_INFO, "%s", line);
}

/* Every rank its log file, and the file that says who read which sample. */
static fsdp_status open_log(report *r, train_run *run)
{
    const fsdp_settings *s = run->settings;
    rank_log_config c = {.folder = s->output_dir,
                         .rank = run->rank,
                         .world_size = run->n_ranks,
                         .least_shown = (fsdp_log_level)s->log_level,
                         .show = show_log,
                         .context = run};
    FSDP_TRY(rank_log_open(&c, &r->log));
    ring_set_folder(s->output_dir);
    if (!s->log_samples)
        return FSDP_OK;
    r->samples = open(s->log_samples, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return r->samples >= 0 ? FSDP_OK : error_set_errno(FSDP_ERR_INPUT, "--log_samples %s", s->log_samples);
}

void report_said(report *r, bool warning, const char *text)
{
    serve_say(r->serve, warning, text);
}

/* One write a line: lines of several ranks in one file stay whole. */
fsdp_status report_samples(report *r, train_run *run, const fsdp_batch *b)
{
    if (r->samples < 0)
        return FSDP_OK;
    size_t room = 64 + (size_t)b->counted * 21, used;
    char *line = malloc(room);
    if (!line)
        return error_set(FSDP_ERR_MEMORY, "--log_samples: out of host memory");
    used = (size_t)snprintf(line, room, "%lld %d", (long long)run->step + 1, run->rank);
    for (int64_t i = 0; i < b->counted; i++)
        used += (size_t)snprintf(line + used, room - used, " %lld", (long long)b->samples[i]);
    line[used++] = '\n';
    bool written = write(r->samples, line, used) == (ssize_t)used;
    free(line);
    return written ? FSDP_OK : error_set_errno(FSDP_ERR_IO, "--log_samples %s", run->settings->log_samples);
}

static fsdp_status open_ranks(report *r, int n)
{
    r->ranks = calloc((size_t)n, sizeof *r->ranks);
    r->ranks_bytes = calloc((size_t)n, sizeof *r->ranks_bytes);
    r->rank_seconds = calloc((size_t)n * LAP_COUNT, sizeof *r->rank_seconds);
    if (!r->ranks || !r->ranks_bytes || !r->rank_seconds)
        return error_set(FSDP_ERR_MEMORY, "opening the report of a run: out of host memory");
    FSDP_TRY(slow_watch_new(n, &r->watch));
    FSDP_TRY(core_wait_open(&r->core_wait));
    return snapshot_new(n, &r->snapshot);
}

fsdp_status report_open(train_run *run, report *r)
{
    r->progress = progress_begin(run->n_steps);
    r->flops = workload_flops(&run->work) / (double)max_i64(1, run->work.batch);
    r->first_loss = NAN;
    r->trace.after = run->step;
    if (r->flops > 0)
        FSDP_TRY(utilization_peak(run->world, run->sharding.config.param_dtype, &r->peak_flops));
    FSDP_TRY(make_parent(run->settings->log_samples));
    FSDP_TRY(make_parent(run->settings->trace));
    FSDP_TRY(open_log(r, run));
    FSDP_TRY(open_ranks(r, run->n_ranks));
    if (run->rank == 0)
        FSDP_TRY(open_files(r, run));
    return serve_open(run, r->snapshot, &r->serve);
}

void report_leave_device(report *r)
{
    if (r)
        run_trace_leave_device(&r->trace);
}

void report_close(report *r)
{
    if (!r)
        return;
    serve_close(r->serve);
    for (int i = 0; i < 2; i++)
        metrics_close(r->files[i]);
    metrics_close(r->validations);
    board_close(r->board);
    run_trace_close(&r->trace);
    rank_log_close(r->log);
    if (r->samples >= 0)
        close(r->samples);
    fsdp_memory_meter_free(r->meter);
    slow_watch_free(r->watch);
    core_wait_close(r->core_wait);
    snapshot_free(r->snapshot);
    free(r->ranks);
    free(r->ranks_bytes);
    free(r->rank_seconds);
    free(r->metrics_path);
    free(r);
}

fsdp_status report_before_step(report *r, train_run *run)
{
    return run_trace_follow(&r->trace, run, r->meter);
}

static void show_progress(report *r, train_run *run, const step_figures *f)
{
    char line[512];
    int64_t every = max_i64(1, run->settings->logging_freq);
    double now = clock_seconds();
    progress_add(&r->progress, f);
    if (run->callbacks.live) {
        if (now - r->shown < 0.2 && f->step != run->n_steps)
            return;
        progress_live(&r->progress, f, line, sizeof line);
    } else {
        if (f->step % every != 0 && f->step != run->n_steps)
            return;
        progress_line(&r->progress, f, line, sizeof line);
    }
    run_say(run, FSDP_LINE_PROGRESS, "%s", line);
    r->shown = now;
}

/* One small exchange a step serves two ends: where every rank's time went, and whether one of them wants to stop. */
static fsdp_status exchange_ranks(report *r, train_run *run, const report_step *step, attribution *times, int *stop)
{
    rank_snapshot mine = snapshot_of_rank(step->step);
    mine.stop = step->stop;
    mine.core_wait = (float)core_wait_take(r->core_wait);
    mine.memory_bytes = fsdp_memory_meter_bytes(r->meter);
    mine.memory_peak_bytes = fsdp_memory_meter_peak(r->meter);
    mine.host_peak_bytes = fsdp_memory_meter_host_peak(r->meter);
    memory_meter_uses(r->meter, mine.uses);
    FSDP_TRY(comm_exchange(comm_world(run->world->comm), "end of a step", &mine, sizeof mine, sizeof mine, r->ranks,
                           r->ranks_bytes));
    *stop = 0;
    for (int i = 0; i < run->n_ranks; i++) {
        *stop = r->ranks[i].stop > *stop ? r->ranks[i].stop : *stop;
        for (int k = 0; run->rank == 0 && k < LAP_COUNT; k++)
            r->rank_seconds[i * LAP_COUNT + k] += r->ranks[i].seconds[k];
    }
    *times = attribution_of(r->ranks, run->n_ranks);
    times->slow = slow_watch_add(r->watch, r->ranks);
    return FSDP_OK;
}

/* The run went back to an earlier step: what came after it is made again, and each step is there once. */
static fsdp_status rewind_files(report *r, int64_t step)
{
    metrics *const files[] = {r->files[0], r->files[1], r->validations};
    for (int i = 0; i < 3; i++)
        if (files[i])
            FSDP_TRY(metrics_rewind(files[i], step));
    serve_rewind(r->serve, step);
    return r->board ? board_rewind(r->board, step) : FSDP_OK;
}

static fsdp_status write_step(report *r, const step_figures *f)
{
    for (int i = 0; i < 2; i++)
        if (r->files[i])
            FSDP_TRY(metrics_step(r->files[i], f));
    return r->board ? board_step(r->board, f) : FSDP_OK;
}

fsdp_status report_add(report *r, train_run *run, const report_step *step, int *stop)
{
    attribution times;
    FSDP_TRY(exchange_ranks(r, run, step, &times, stop));
    double rate = step->seconds > 0 ? r->flops * step->samples / step->seconds : 0;
    if (r->peak_flops > 0 && rate > r->peak_flops)
        r->peak_flops = rate; /* what was measured at the start, beside other load, was not the peak */
    step_figures f = {.step = step->step,
                      .epoch = run_epochs(run),
                      .loss = step->loss,
                      .grad_norm = step->gradient_norm,
                      .lr = step->lr,
                      .samples = (int64_t)step->samples,
                      .tokens = run->tokenizer ? (int64_t)step->tokens : 0,
                      .seconds = step->seconds,
                      .flops = r->flops * step->samples,
                      .peak_flops = r->peak_flops,
                      .memory_bytes = fsdp_memory_meter_bytes(r->meter),
                      .memory_peak_bytes = fsdp_memory_meter_peak(r->meter),
                      .loss_scale =
                          run->settings->param_dtype == FSDP_F16 ? state_scalars_of(run->state).loss_scale : 0,
                      .validation_loss = NAN,
                      .predicted_seconds = r->predicted.seconds,
                      .predicted_exposed = r->predicted.exposed,
                      .times = &times};
    snapshot_put(r->snapshot, &f, r->ranks);
    serve_step(r->serve, run, &f, r->ranks);
    if (isnan(r->first_loss))
        r->first_loss = step->loss;
    step_times_add(&r->times, (step_time){f.seconds, f.samples, f.tokens});
    FSDP_TRY(step->step > run->step ? rewind_files(r, run->step) : write_step(r, &f));
    show_progress(r, run, &f);
    if (run->rank == 0 && !r->sought) /* the first line has none; no start waits for it */
        r->predicted = predicted_find(run);
    r->sought = true;
    return FSDP_OK;
}

fsdp_status report_validation(report *r, train_run *run, double loss)
{
    double accuracy = run->result.validation_accuracy;
    if (isnan(accuracy))
        run_say(run, FSDP_LINE_INFO, "step %lld: validation loss %.4f, perplexity %.2f", (long long)run->step, loss,
                exp(loss));
    else
        run_say(run, FSDP_LINE_INFO, "step %lld: validation loss %.4f, accuracy %.2f%%", (long long)run->step, loss,
                100 * accuracy);
    serve_validation(r->serve, run, loss);
    if (r->validations)
        FSDP_TRY(metrics_validation(r->validations, run->step, loss, accuracy));
    return r->board ? board_validation(r->board, run->step, loss, accuracy) : FSDP_OK;
}

/* Rows of all ranks on rank 0: memory as planned, as measured, and as the same step needs it unsharded. */
static fsdp_status memory_table(report *r, train_run *run, char **text)
{
    fsdp_config replicated = run->sharding.config;
    plan_world world = run_plan_world(run);
    workload work = run->work;
    memory_plan here, whole;
    replicated.strategy = FSDP_NO_SHARD;
    replicated.shard_weights = NULL;
    replicated.n_unit_strategies = 0;
    if (state_snapshot_bytes(run->state) == 0) /* no checkpoint has been due yet */
        work.snapshot = NULL;
    if (!state_has_snapshots(run->state))
        work.hot = NULL;
    FSDP_TRY(workload_plan_rank(&work, &run->sharding.config, &world, run->rank, &here));
    FSDP_TRY(workload_plan_rank(&work, &replicated, &world, run->rank, &whole));
    bool beside = world.dev->own_memory;
    int64_t host = (int64_t)here.host, whole_host = (int64_t)whole.host;
    memory_row mine = {.rank = run->rank,
                       .plan_bytes = (int64_t)here.total + (beside ? 0 : host),
                       .measured_bytes = fsdp_memory_meter_peak(r->meter),
                       .host_plan_bytes = beside ? host : 0,
                       .host_measured_bytes = fsdp_memory_meter_host_peak(r->meter),
                       .replicated_bytes = (int64_t)whole.total + (beside ? 0 : whole_host),
                       .process = process_memory_read()};
    memory_row *rows = calloc((size_t)run->n_ranks, sizeof *rows);
    size_t *bytes = calloc((size_t)run->n_ranks, sizeof *bytes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!rows || !bytes)
        error_set(status, "the memory report: out of host memory");
    else
        status =
            comm_exchange(comm_world(run->world->comm), "memory report", &mine, sizeof mine, sizeof mine, rows, bytes);
    if (status == FSDP_OK) {
        for (int i = 0; i < run->n_ranks; i++) {
            run->result.peak_bytes = max_i64(run->result.peak_bytes, rows[i].measured_bytes);
            run->result.planned_bytes = max_i64(run->result.planned_bytes, rows[i].plan_bytes);
        }
        status = rank_facts_write(run, &here, rows, r->ranks, r->rank_seconds);
    }
    if (status == FSDP_OK)
        status = memory_report(rows, run->n_ranks, text);
    free(rows);
    free(bytes);
    return status;
}

void report_spent(report *r, report_activity activity, double begun)
{
    r->spent[activity] += clock_seconds() - begun;
}

fsdp_status report_summary(report *r, train_run *run)
{
    char *memory = NULL, *table = NULL, model[128], strategy[128], count[UNITS_TEXT];
    const fsdp_settings *s = run->settings;
    FSDP_TRY(run_trace_end(&r->trace, run));
    FSDP_TRY(memory_table(r, run, &memory));
    snprintf(model, sizeof model, "%s, %s parameters in %d units", model_type_name(&run->model_config),
             units_count(count, (double)fsdp_model_parameters(run->model)), fsdp_model_units(run->model));
    snprintf(strategy, sizeof strategy, "%s over %d rank%s, %s", fsdp_strategy_name(run->sharding.config.strategy),
             run->n_ranks, run->n_ranks == 1 ? "" : "s", fsdp_world_description(run->world));
    char ended[PATH_MAX + 80], traces[PATH_MAX + 32];
    run_trace_describe(&r->trace, run, traces, sizeof traces);
    snprintf(ended, sizeof ended, "stopped as asked; to go on: --resume %s",
             run->settings->checkpoint_dir ? run->folder.checkpoints : run->folder.path);
    step_time median = step_times_median(&r->times);
    run_summary summary = {.model = model,
                           .strategy = strategy,
                           .ended = run->stopping ? ended : NULL,
                           .steps = run->step,
                           .samples = run->samples,
                           .tokens = run->tokenizer ? run->tokens : 0,
                           .epochs = run_epochs(run),
                           .seconds = clock_seconds() - run->start,
                           .step_seconds = r->times.seconds,
                           .starting_seconds = r->spent[ACTIVITY_STARTING],
                           .validating_seconds = r->spent[ACTIVITY_VALIDATING],
                           .saving_seconds = r->spent[ACTIVITY_SAVING],
                           .median_seconds = median.seconds,
                           .median_samples = median.samples,
                           .median_tokens = median.tokens,
                           .predicted_seconds = r->predicted.seconds,
                           .first_loss = r->first_loss,
                           .loss = run->result.loss,
                           .validation_loss = run->result.validation_loss,
                           .validation_accuracy = run->result.validation_accuracy,
                           .tflops = median.seconds > 0 ? r->flops * (double)median.samples / median.seconds / 1e12 : 0,
                           .peak_tflops = r->peak_flops / 1e12,
                           .peak_bytes = run->result.peak_bytes,
                           .output_dir = s->output_dir,
                           .checkpoint = run->result.checkpoint[0] ? run->result.checkpoint : NULL,
                           .metrics = r->metrics_path,
                           .tensorboard = s->tensorboard_dir,
                           .trace = traces[0] ? traces : NULL,
                           .export_dir = s->export_dir};
    fsdp_status status = summary_text(&summary, &table);
    if (status == FSDP_OK)
        run_say(run, FSDP_LINE_INFO, "\n%s", table);
    if (status == FSDP_OK && s->memory_report)
        run_say(run, FSDP_LINE_INFO, "\nMemory of each rank, and of the same step without sharding:\n%s", memory);
    free(table);
    free(memory);
    return status;
}

typedef struct run_end {
    const train_run *run;
    const char *how;
    char reason[1024];
} run_end;

static void *write_end(void *context)
{
    const run_end *end = context;
    const train_run *run = end->run;
    const char *folder = run->folder.path;
    char *text = NULL;
    fsdp_report_config config = FSDP_REPORT_CONFIG_INIT;
    config.folders = &folder;
    config.n_folders = 1;
    config.trace = run->report->trace.written ? run->settings->trace : NULL;
    run_folder_end(run, end->how, end->reason);
    if (fsdp_report(&config, &text) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "no report.html: %s", fsdp_last_error());
    free(text);
    return NULL;
}

/* Error messages belong to threads: on one of its own, what the page could not read does not hide why a run failed. */
void report_end(train_run *run, fsdp_status status)
{
    pthread_t thread;
    run_end end = {.run = run, .how = status != FSDP_OK ? "failed" : run->stopping ? "stopped" : "finished"};
    if (status != FSDP_OK)
        snprintf(end.reason, sizeof end.reason, "%s", fsdp_last_error());
    if (run->rank == 0 && pthread_create(&thread, NULL, write_end, &end) == 0)
        pthread_join(thread, NULL);
}
