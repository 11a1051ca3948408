/* Keeps a running job's figures under a lock and makes JSON of a copy, so that the thread that trains waits for a copy
 * at most, never for text. */
#include "report/live/live_run.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "observe/attribution.h"
#include "observe/serve/nvml.h"
#include "report/history.h"
#include "report/live/log_tail.h"
#include "report/live/step_recorder.h"
#include "report/report_data.h"

enum { MOST_VALIDATIONS = HISTORY_POINTS };
/* Seconds between two looks at what changes slowly (folder, logs, GPUs, a step's timeline), and after which a client
 * is told something in any case, so that both sides notice when the other is gone. */
static const double slow_seconds = 2, silence_seconds = 5;
/* A step's share in moving averages: the last ten or so decide. */
static const double smoothing = 0.1;

/* What the thread that trains writes, and the server's thread copies. */
typedef struct live_state {
    history steps;
    loss_watch losses;
    step_figures figures; /* the newest */
    exposed_events events;
    slow_rank slow;
    int waited_for;
    lap waited_phase;
    double step_seconds; /* moving average */
    double last_step;    /* seconds since 1970 */
    int64_t n_validations, validation_edition;
    validation_row *validations; /* (MOST_VALIDATIONS) */
    rank_snapshot *ranks;        /* (n_ranks) of the newest step */
    float *seconds;              /* (n_ranks * LAP_COUNT) moving averages */
} live_state;

struct live_run {
    pthread_mutex_t lock;
    live_state now; /* under the lock */
    int n_ranks, node, restarts;
    int64_t steps;
    exposed_rank *ranks;
    int64_t *planned;
    char *folder, *checkpoints, *model, *strategy, *device, *id;
    step_recorder *recorder;
    log_tail *log;

    /* The server's thread alone: */
    live_state shown;
    nvml *gpus;
    double looked; /* clock_seconds of the last look at what changes slowly; 0: never */
    int64_t looks; /* so far */
    json_t *documents, *timeline, *lines, *gpu_list; /* as they were then */
};

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Opening ---- */

static fsdp_status state_open(live_state *s, int n_ranks)
{
    FSDP_TRY(history_open(&s->steps));
    s->validations = calloc(MOST_VALIDATIONS, sizeof *s->validations);
    s->ranks = calloc((size_t)n_ranks, sizeof *s->ranks);
    s->seconds = calloc((size_t)n_ranks * LAP_COUNT, sizeof *s->seconds);
    s->slow.rank = -1;
    return s->validations && s->ranks && s->seconds
               ? FSDP_OK
               : error_set(FSDP_ERR_MEMORY, "--dashboard: out of host memory for %d ranks", n_ranks);
}

static void state_close(live_state *s)
{
    history_close(&s->steps);
    free(s->validations);
    free(s->ranks);
    free(s->seconds);
}

static void add_validation(live_state *s, const validation_row *row)
{
    if (s->n_validations == MOST_VALIDATIONS) {
        for (int64_t i = 0; i < MOST_VALIDATIONS / 2; i++)
            s->validations[i] = s->validations[2 * i];
        s->n_validations = MOST_VALIDATIONS / 2;
    }
    s->validations[s->n_validations++] = *row;
    s->validation_edition++;
}

/* Steps and validations that metrics.jsonl and validation.jsonl have. What cannot be read is missing from the curves,
 * no more. */
static void read_past(const char *folder, live_state *s)
{
    run_files files = {0};
    if (run_files_read(folder, &files) == FSDP_OK) {
        for (int64_t i = 0; i < files.n_rows; i++) {
            history_add(&s->steps, &files.rows[i]);
            loss_watch_add(&s->losses, files.rows[i].step, files.rows[i].figures[FIGURE_LOSS]);
        }
        for (int64_t i = 0; i < files.n_validations; i++)
            add_validation(s, &files.validations[i]);
    }
    run_files_clear(&files);
}

static fsdp_status copy_config(live_run *l, const live_config *c)
{
    size_t n = (size_t)c->n_ranks, planned = n * MEMORY_USES;
    l->n_ranks = c->n_ranks;
    l->node = c->node;
    l->restarts = c->restarts;
    l->steps = c->steps;
    l->ranks = calloc(n, sizeof *l->ranks);
    l->planned = calloc(planned, sizeof *l->planned);
    l->folder = strdup(c->folder);
    l->checkpoints = strdup(c->checkpoints);
    l->model = strdup(c->model);
    l->strategy = strdup(c->strategy);
    l->device = strdup(c->device);
    l->id = strdup(c->id ? c->id : "");
    l->log = log_tail_new(c->folder, c->n_ranks);
    if (!l->ranks || !l->planned || !l->folder || !l->checkpoints || !l->model || !l->strategy || !l->device ||
        !l->id || !l->log)
        return error_set(FSDP_ERR_MEMORY, "--dashboard: out of host memory");
    memcpy(l->ranks, c->ranks, n * sizeof *l->ranks);
    memcpy(l->planned, c->planned, planned * sizeof *l->planned);
    return FSDP_OK;
}

static fsdp_status fill(live_run *l, const live_config *c)
{
    FSDP_TRY(copy_config(l, c));
    FSDP_TRY(state_open(&l->now, c->n_ranks));
    FSDP_TRY(state_open(&l->shown, c->n_ranks));
    l->now.figures.step = c->step;
    l->now.figures.loss = l->now.figures.grad_norm = NAN;
    l->now.events = c->events;
    l->now.last_step = now_seconds();
    if (c->step > 0)
        read_past(l->folder, &l->now);
    l->gpus = nvml_open();
    return step_recorder_open(&l->recorder);
}

fsdp_status live_run_open(const live_config *c, live_run **out)
{
    *out = NULL;
    live_run *l = calloc(1, sizeof *l);
    if (!l)
        return error_set(FSDP_ERR_MEMORY, "--dashboard: out of host memory");
    pthread_mutex_init(&l->lock, NULL);
    fsdp_status status = fill(l, c);
    if (status != FSDP_OK) {
        live_run_close(l);
        return status;
    }
    *out = l;
    return FSDP_OK;
}

void live_run_close(live_run *l)
{
    if (!l)
        return;
    step_recorder_close(l->recorder);
    nvml_close(l->gpus);
    log_tail_free(l->log);
    state_close(&l->now);
    state_close(&l->shown);
    json_decref(l->documents);
    json_decref(l->timeline);
    json_decref(l->lines);
    json_decref(l->gpu_list);
    free(l->ranks);
    free(l->planned);
    free(l->folder);
    free(l->checkpoints);
    free(l->model);
    free(l->strategy);
    free(l->device);
    free(l->id);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- On the thread that trains ---- */

/* As metrics.jsonl has them. */
static metrics_row row_of(const step_figures *f)
{
    double rate = f->flops > 0 && f->seconds > 0 ? f->flops / f->seconds : NAN;
    metrics_row row = {.step = f->step, .slow_rank = f->times->slow.rank, .slow_phase = f->times->slow.phase};
    row.exposed = (float)f->times->exposed.mean;
    for (int k = 0; k < LAP_COUNT; k++)
        row.laps[k] = (float)f->times->laps[k].mean;
    row.figures[FIGURE_LOSS] = f->loss;
    row.figures[FIGURE_GRAD_NORM] = f->grad_norm;
    row.figures[FIGURE_LR] = f->lr;
    row.figures[FIGURE_SECONDS] = f->seconds;
    row.figures[FIGURE_TOKENS_PER_S] = f->seconds > 0 ? (double)f->tokens / f->seconds : 0;
    row.figures[FIGURE_UTILIZATION] = f->peak_flops > 0 ? rate / f->peak_flops : NAN;
    row.figures[FIGURE_TFLOPS] = rate * 1e-12;
    row.figures[FIGURE_MEMORY] = (double)f->memory_bytes;
    row.figures[FIGURE_MEMORY_PEAK] = (double)f->memory_peak_bytes;
    row.figures[FIGURE_PREDICTED] = f->predicted_seconds > 0 ? f->predicted_seconds : NAN;
    row.figures[FIGURE_PREDICTED_EXPOSED] = f->predicted_seconds > 0 ? f->predicted_exposed : NAN;
    return row;
}

static void average(double *mean, double value, bool first)
{
    *mean = first || !isfinite(*mean) ? value : (1 - smoothing) * *mean + smoothing * value;
}

void live_run_step(live_run *l, const step_figures *f, const rank_snapshot *ranks, const exposed_events *events)
{
    metrics_row row = row_of(f);
    pthread_mutex_lock(&l->lock);
    live_state *s = &l->now;
    bool first = s->ranks[0].step == 0;
    history_add(&s->steps, &row);
    loss_watch_add(&s->losses, f->step, f->loss);
    average(&s->step_seconds, f->seconds, first);
    s->figures = *f;
    s->figures.times = NULL; /* the caller's */
    s->events = *events;
    s->slow = f->times->slow;
    s->waited_for = f->times->waited_for;
    s->waited_phase = f->times->waited_phase;
    s->last_step = now_seconds();
    memcpy(s->ranks, ranks, (size_t)l->n_ranks * sizeof *ranks);
    for (int r = 0; r < l->n_ranks; r++)
        for (int k = 0; k < LAP_COUNT; k++) {
            float *mean = &s->seconds[r * LAP_COUNT + k];
            *mean = first ? ranks[r].seconds[k] : *mean + (float)smoothing * (ranks[r].seconds[k] - *mean);
        }
    pthread_mutex_unlock(&l->lock);
}

/* Only the server's thread waits meanwhile. */
void live_run_rewind(live_run *l, int64_t step)
{
    pthread_mutex_lock(&l->lock);
    live_state *s = &l->now;
    history_clear(&s->steps);
    s->losses = (loss_watch){0};
    s->n_validations = 0;
    s->validation_edition++;
    read_past(l->folder, s);
    s->figures.step = step;
    pthread_mutex_unlock(&l->lock);
}

void live_run_validation(live_run *l, int64_t step, double loss, double accuracy)
{
    pthread_mutex_lock(&l->lock);
    add_validation(&l->now, &(validation_row){.step = step, .loss = loss, .accuracy = accuracy});
    pthread_mutex_unlock(&l->lock);
}

void live_run_say(live_run *l, bool warning, const char *text)
{
    log_tail_say(l->log, warning, text);
}

/* ---- On the server's thread ---- */

static void copy_state(live_run *l)
{
    live_state *to = &l->shown;
    pthread_mutex_lock(&l->lock);
    live_state kept = *to;
    history_copy(&kept.steps, &l->now.steps);
    if (kept.validation_edition != l->now.validation_edition)
        memcpy(kept.validations, l->now.validations, (size_t)l->now.n_validations * sizeof *kept.validations);
    memcpy(kept.ranks, l->now.ranks, (size_t)l->n_ranks * sizeof *kept.ranks);
    memcpy(kept.seconds, l->now.seconds, (size_t)l->n_ranks * LAP_COUNT * sizeof *kept.seconds);
    *to = l->now;
    to->steps = kept.steps;
    to->validations = kept.validations;
    to->ranks = kept.ranks;
    to->seconds = kept.seconds;
    pthread_mutex_unlock(&l->lock);
}

static void replace(json_t **old, json_t *new)
{
    json_decref(*old);
    *old = new;
}

static json_t *gpus_json(const live_run *l)
{
    json_t *list = json_array();
    for (int r = 0; l->gpus && r < l->n_ranks; r++) {
        if (l->ranks[r].node != l->node || !l->ranks[r].pci_bus_id[0])
            continue;
        gpu_state g = nvml_read(l->gpus, l->ranks[r].pci_bus_id);
        json_array_append_new(list, json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "rank", r, "bus",
                                              l->ranks[r].pci_bus_id, "utilization", history_number(g.utilization),
                                              "memory_used", history_number(g.memory_used), "memory_total",
                                              history_number(g.memory_total), "celsius", history_number(g.celsius),
                                              "watts", history_number(g.watts), "watts_limit",
                                              history_number(g.watts_limit), "sm_hertz", history_number(g.sm_hertz),
                                              "memory_hertz", history_number(g.memory_hertz)));
    }
    return list;
}

static void look(live_run *l)
{
    run_files files = {0};
    double now = clock_seconds();
    if (l->looked > 0 && now - l->looked < slow_seconds)
        return;
    l->looked = now;
    l->looks++;
    json_t *documents = json_object();
    if (run_files_read_documents(l->folder, l->checkpoints, &files) == FSDP_OK)
        report_documents(documents, &files);
    run_files_clear(&files);
    replace(&l->documents, documents);
    replace(&l->lines, log_tail_json(l->log));
    replace(&l->gpu_list, gpus_json(l));
    json_t *timeline = step_recorder_take(l->recorder);
    if (timeline)
        replace(&l->timeline, timeline);
    step_recorder_ask(l->recorder);
}

static json_t *uses_json(const int64_t uses[MEMORY_USES], int64_t *sum)
{
    json_t *list = json_array();
    *sum = 0;
    for (int i = 0; i < MEMORY_USES; i++) {
        *sum += uses[i];
        if (uses[i] > 0)
            json_array_append_new(list, json_pack("[s, I]", memory_use_names[i], (json_int_t)uses[i]));
    }
    return list;
}

/* Ranks as a report has them: memory as planned and taken, and the seconds of a step by lap. */
static json_t *ranks_json(const live_run *l)
{
    const live_state *s = &l->shown;
    json_t *list = json_array();
    for (int r = 0; r < l->n_ranks; r++) {
        int64_t planned, now;
        json_t *seconds = json_array(), *classes = uses_json(l->planned + (size_t)r * MEMORY_USES, &planned),
               *taken = uses_json(s->ranks[r].uses, &now);
        for (int k = 0; k < LAP_COUNT; k++)
            json_array_append_new(seconds,
                                  json_pack("[s, f]", lap_name((lap)k), (double)s->seconds[r * LAP_COUNT + k]));
        json_array_append_new(list,
                              json_pack("{s:i, s:I, s:I, s:o, s:o, s:o}", "rank", r, "planned", (json_int_t)planned,
                                        "measured", (json_int_t)s->ranks[r].memory_peak_bytes, "classes", classes,
                                        "taken", taken, "seconds", seconds));
    }
    return list;
}

/* Where every rank is: [step, collectives, the last one, bytes now, limit, node]. */
static json_t *places_json(const live_run *l)
{
    json_t *list = json_array();
    for (int r = 0; r < l->n_ranks; r++) {
        const rank_snapshot *s = &l->shown.ranks[r];
        json_array_append_new(list, json_pack("[I, I, o, I, I, i]", (json_int_t)s->step, (json_int_t)s->sequence,
                                              shown_text(s->collective), (json_int_t)s->memory_bytes,
                                              (json_int_t)l->ranks[r].memory_limit_bytes, (int)l->ranks[r].node));
    }
    return list;
}

static json_t *rank_and_phase(int rank, lap phase, double seconds)
{
    return rank < 0 ? json_null()
                    : json_pack("{s:i, s:s, s:f}", "rank", rank, "phase", lap_name(phase), "seconds", seconds);
}

static json_t *live_json(const live_run *l, bool last)
{
    const live_state *s = &l->shown;
    int64_t left = l->steps - s->figures.step;
    double now = now_seconds(); /* ages, not times: the reader's clock may differ, and seconds since 1970 are long */
    bool endless = l->steps == INT64_MAX, trained = s->ranks[0].step > 0;
    json_t *all =
        json_pack("{s:I, s:o, s:o, s:f, s:f, s:i, s:i, s:s, s:s, s:s, s:b}", "step", (json_int_t)s->figures.step,
                  "steps", endless ? json_null() : json_integer(l->steps), "left",
                  endless || !trained ? json_null() : history_number(s->step_seconds * (double)(left > 0 ? left : 0)),
                  "epoch", s->figures.epoch, "step_age", now - s->last_step, "n_ranks", l->n_ranks, "restarts",
                  l->restarts, "model", l->model, "strategy", l->strategy, "device", l->device, "ended", last);
    json_object_set_new(all, "checkpoint",
                        json_pack("{s:I, s:f, s:I}", "step", (json_int_t)s->events.checkpoint_step, "age",
                                  now - s->events.checkpoint_time, "failures", (json_int_t)s->events.checkpoint_fails));
    json_object_set_new(all, "slow", rank_and_phase(s->slow.rank, s->slow.phase, s->slow.seconds));
    json_object_set_new(all, "waited_for",
                        rank_and_phase(l->n_ranks > 1 && trained ? s->waited_for : -1, s->waited_phase, 0));
    json_object_set_new(all, "places", places_json(l));
    json_object_set_new(all, "id", json_string(l->id));
    json_object_set_new(all, "newest", history_newest(&s->steps)); /* curves are thinned: their end may be older */
    return all;
}

/* What changes with every step, and, `slowly`, what does not. */
static json_t *run_json(const live_run *l, bool slowly)
{
    const live_state *s = &l->shown;
    json_t *run = slowly ? json_copy(l->documents) : json_object();
    json_object_set_new(run, "steps", json_integer(s->steps.n_steps));
    json_object_set_new(run, "spikes", report_spikes(&s->losses.found));
    json_object_set_new(run, "ranks", ranks_json(l));
    if (!slowly)
        return run;
    json_object_set_new(run, "times", history_times(&s->steps));
    json_object_set_new(run, "validation", report_validations(s->validations, s->n_validations));
    json_object_set(run, "timeline", l->timeline ? l->timeline : json_null());
    return run;
}

static void add_slow(json_t *live, const live_run *l)
{
    json_object_set(live, "log", l->lines);
    json_object_set(live, "gpus", l->gpu_list);
}

/* With `before` and `after` around it. Takes `all`. */
static char *text_of(json_t *all, const char *before, const char *after, size_t *bytes)
{
    char *text = NULL;
    FILE *out = all ? open_memstream(&text, bytes) : NULL;
    bool whole = out != NULL;
    if (out) {
        fputs(before, out);
        whole = json_dumpf(all, out, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9)) == 0;
        fputs(after, out);
        whole = !ferror(out) && whole;
        whole = fclose(out) == 0 && whole;
    }
    json_decref(all);
    if (whole)
        return text;
    free(text);
    return NULL;
}

char *live_run_document(live_run *l, bool lately, size_t *bytes)
{
    enum { LATELY = 200 };
    copy_state(l);
    look(l);
    json_t *run = run_json(l, true), *live = live_json(l, false);
    json_t *curves = history_curves(&l->shown.steps, lately ? l->shown.figures.step - LATELY : -1);
    history_end(&l->shown.steps, curves);
    json_object_set_new(run, "curves", curves);
    if (lately) {
        json_object_del(run, "settings");
        json_object_del(run, "timeline");
    }
    add_slow(live, l);
    return text_of(json_pack("{s:[o], s:o}", "runs", run, "live", live), "", "\n", bytes);
}

/* The cursor: edition of the steps plus 1, last step told, looks told, when (milliseconds of clock_seconds). */
char *live_run_message(live_run *l, int64_t cursor[LIVE_CURSOR], bool last, size_t *bytes)
{
    double now = clock_seconds();
    copy_state(l);
    look(l);
    const live_state *s = &l->shown;
    bool whole = cursor[0] != s->steps.edition + 1, slowly = whole || cursor[2] != l->looks;
    bool silent = now * 1e3 - (double)cursor[3] < silence_seconds * 1e3;
    if (!whole && !slowly && !last && silent && cursor[1] == s->figures.step)
        return NULL;
    json_t *live = live_json(l, last);
    json_t *run = run_json(l, slowly);
    if (slowly)
        add_slow(live, l);
    if (!whole) { /* these never change */
        json_object_del(run, "settings");
        json_object_del(run, "reproduce");
    }
    json_t *all = json_pack("{s:b, s:o, s:o, s:o}", "whole", whole, "run", run, "curves",
                            history_curves(&s->steps, whole ? -1 : cursor[1]), "live", live);
    cursor[0] = s->steps.edition + 1;
    cursor[1] = s->figures.step;
    cursor[2] = l->looks;
    cursor[3] = (int64_t)(now * 1e3);
    return text_of(all, "data: ", "\n\n", bytes);
}
