/* Writes the series from three tables: of the run, of a rank, of a rank's GPU. */
#include "observe/serve/exposition.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "observe/attribution.h"
#include "observe/serve/nvml.h"

#define ABSENT (-DBL_MAX) /* a value without a sample */

/* What adds up, per rank. */
typedef struct rank_totals {
    double laps[LAP_COUNT];
    double waited_for, core_wait;
} rank_totals;

typedef struct run_totals {
    double steps, samples, tokens, flops, seconds, not_finite;
    double last_step; /* seconds since 1970 */
} run_totals;

struct exposition {
    pthread_mutex_t lock; /* of what exposition_add writes */
    run_totals totals;
    slow_rank slow;
    exposed_events events;
    rank_totals *sums; /* (n_ranks) */

    run_snapshot *snapshot;
    exposed_rank *ranks;
    int n_ranks, node;
    int64_t n_steps;
    int restarts;
    char *run, *strategy, *device;

    /* The server's thread alone: */
    nvml *gpus;
    rank_snapshot *newest; /* (n_ranks) */
    rank_totals *shown;    /* (n_ranks), a copy of sums */
};

/* A family of series: one value for each thing that the table is about. */
typedef struct family {
    const char *name, *type, *help;
    size_t offset; /* of a double */
} family;

typedef struct run_values {
    double ranks, step, steps_planned, epoch, loss, validation_loss, grad_norm, lr, loss_scale, step_seconds;
    double steps, samples, tokens, flops, seconds, not_finite, peak_flops, utilization;
    double last_step, checkpoint_time, checkpoint_step, checkpoint_fails, restarts;
} run_values;

#define OF_RUN(field) offsetof(run_values, field)
static const family of_run[] = {
    {"fsdp_ranks", "gauge", "Ranks of the job.", OF_RUN(ranks)},
    {"fsdp_step", "gauge", "Optimizer steps done over the job's whole life.", OF_RUN(step)},
    {"fsdp_planned_steps", "gauge", "The step at which the run ends.", OF_RUN(steps_planned)},
    {"fsdp_epoch", "gauge", "Passes over the data so far.", OF_RUN(epoch)},
    {"fsdp_loss", "gauge", "Mean loss of the newest step.", OF_RUN(loss)},
    {"fsdp_validation_loss", "gauge", "Loss of the newest validation.", OF_RUN(validation_loss)},
    {"fsdp_gradient_norm", "gauge", "Norm of the newest gradient before clipping.", OF_RUN(grad_norm)},
    {"fsdp_learning_rate", "gauge", "Learning rate of the newest step.", OF_RUN(lr)},
    {"fsdp_loss_scale", "gauge", "Loss scale of fp16; absent in other types.", OF_RUN(loss_scale)},
    {"fsdp_step_seconds", "gauge", "Seconds that the newest step took; 0 before the first.", OF_RUN(step_seconds)},
    {"fsdp_steps_total", "counter", "Steps since this process started.", OF_RUN(steps)},
    {"fsdp_samples_total", "counter", "Samples trained on since this process started, all ranks.", OF_RUN(samples)},
    {"fsdp_tokens_total", "counter", "Tokens trained on since this process started, all ranks.", OF_RUN(tokens)},
    {"fsdp_flops_total", "counter", "Model operations since this process started, all ranks.", OF_RUN(flops)},
    {"fsdp_step_seconds_total", "counter", "Seconds spent in steps since this process started.", OF_RUN(seconds)},
    {"fsdp_not_finite_steps_total", "counter", "Steps whose loss or gradient was NaN or infinite.", OF_RUN(not_finite)},
    {"fsdp_peak_flops", "gauge", "Operations a second that all devices could do; absent if not known.",
     OF_RUN(peak_flops)},
    {"fsdp_utilization_ratio", "gauge", "Share of fsdp_peak_flops that the newest step reached; absent if not known.",
     OF_RUN(utilization)},
    {"fsdp_last_step_timestamp_seconds", "gauge",
     "When the newest step ended, in seconds since 1970; the start before the first.", OF_RUN(last_step)},
    {"fsdp_checkpoint_timestamp_seconds", "gauge",
     "When the newest checkpoint not known to have failed was begun, in seconds since 1970; the start if there is "
     "none.",
     OF_RUN(checkpoint_time)},
    {"fsdp_checkpoint_step", "gauge", "Step of that checkpoint; 0 if there is none.", OF_RUN(checkpoint_step)},
    {"fsdp_checkpoint_failures_total", "counter", "Checkpoints that could not be written.", OF_RUN(checkpoint_fails)},
    {"fsdp_restarts", "gauge", "How often the launcher has started the job again.", OF_RUN(restarts)},
};

typedef struct rank_values {
    double memory, memory_peak, host_peak, limit, waited_for, core_wait, slow, collectives, events;
} rank_values;

#define OF_RANK(field) offsetof(rank_values, field)
static const family of_rank[] = {
    {"fsdp_memory_bytes", "gauge", "Memory that the library has taken on the rank's device.", OF_RANK(memory)},
    {"fsdp_memory_peak_bytes", "gauge", "The most that it has taken there.", OF_RANK(memory_peak)},
    {"fsdp_host_memory_peak_bytes", "gauge", "The most host memory that it has taken beside a GPU's.",
     OF_RANK(host_peak)},
    {"fsdp_memory_limit_bytes", "gauge",
     "The GPU's memory; on CPUs the rank's share of what the host had free at the start. Absent if not known.",
     OF_RANK(limit)},
    {"fsdp_waited_for_total", "counter", "Steps in which the others waited for this rank.", OF_RANK(waited_for)},
    {"fsdp_core_wait_seconds_total", "counter",
     "Seconds that the rank's threads that compute were ready and had no core. Absent if the system does not count.",
     OF_RANK(core_wait)},
    {"fsdp_slow_rank_seconds", "gauge",
     "Seconds by which this rank has slowed every step down for several steps; 0: it is not slow.", OF_RANK(slow)},
    {"fsdp_collectives_total", "counter", "Collectives over the whole world that the rank has called.",
     OF_RANK(collectives)},
    {"fsdp_events_total", "counter", "Events that the rank has noted: phases, collectives, waits.", OF_RANK(events)},
};

#define OF_GPU(field) offsetof(gpu_state, field)
static const family of_gpu[] = {
    {"fsdp_gpu_utilization_ratio", "gauge", "Share of the time in which a kernel ran on the GPU.", OF_GPU(utilization)},
    {"fsdp_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is in use, by anyone.", OF_GPU(memory_used)},
    {"fsdp_gpu_memory_total_bytes", "gauge", "Memory of the GPU.", OF_GPU(memory_total)},
    {"fsdp_gpu_temperature_celsius", "gauge", "Temperature of the GPU.", OF_GPU(celsius)},
    {"fsdp_gpu_power_watts", "gauge", "Power that the GPU draws.", OF_GPU(watts)},
    {"fsdp_gpu_power_limit_watts", "gauge", "Power that the GPU may draw.", OF_GPU(watts_limit)},
    {"fsdp_gpu_sm_clock_hertz", "gauge", "Clock of the GPU's multiprocessors.", OF_GPU(sm_hertz)},
    {"fsdp_gpu_memory_clock_hertz", "gauge", "Clock of the GPU's memory.", OF_GPU(memory_hertz)},
};
#define N(table) (sizeof(table) / sizeof *(table))

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

fsdp_status exposition_new(const exposition_config *c, exposition **out)
{
    size_t n = (size_t)c->n_ranks;
    exposition *e = *out = calloc(1, sizeof *e);
    if (!e)
        return error_set(FSDP_ERR_MEMORY, "the metrics of %d ranks: out of host memory", c->n_ranks);
    pthread_mutex_init(&e->lock, NULL);
    e->snapshot = c->snapshot;
    e->n_ranks = c->n_ranks;
    e->node = c->node;
    e->n_steps = c->steps;
    e->restarts = c->restarts;
    e->slow.rank = -1;
    e->totals.last_step = now();
    e->events = c->events;
    e->ranks = calloc(n, sizeof *e->ranks);
    e->sums = calloc(n, sizeof *e->sums);
    e->shown = calloc(n, sizeof *e->shown);
    e->newest = calloc(n, sizeof *e->newest);
    e->run = strdup(c->run);
    e->strategy = strdup(c->strategy);
    e->device = strdup(c->device);
    if (!e->ranks || !e->sums || !e->shown || !e->newest || !e->run || !e->strategy || !e->device) {
        exposition_free(e);
        *out = NULL;
        return error_set(FSDP_ERR_MEMORY, "the metrics of %d ranks: out of host memory", c->n_ranks);
    }
    memcpy(e->ranks, c->ranks, n * sizeof *e->ranks);
    bool gpu = false;
    for (int i = 0; i < e->n_ranks; i++)
        gpu |= e->ranks[i].node == e->node && e->ranks[i].pci_bus_id[0];
    e->gpus = gpu ? nvml_open() : NULL;
    return FSDP_OK;
}

void exposition_free(exposition *e)
{
    if (!e)
        return;
    nvml_close(e->gpus);
    pthread_mutex_destroy(&e->lock);
    free(e->ranks);
    free(e->sums);
    free(e->shown);
    free(e->newest);
    free(e->run);
    free(e->strategy);
    free(e->device);
    free(e);
}

void exposition_add(exposition *e, const step_figures *f, const rank_snapshot *ranks, const exposed_events *events)
{
    bool finite = isfinite(f->loss) && !isinf(f->grad_norm);
    pthread_mutex_lock(&e->lock);
    e->totals.steps += 1;
    e->totals.samples += (double)f->samples;
    e->totals.tokens += (double)f->tokens;
    e->totals.flops += f->flops;
    e->totals.seconds += f->seconds;
    e->totals.not_finite += finite ? 0 : 1;
    e->totals.last_step = now();
    e->slow = f->times->slow;
    e->events = *events;
    e->sums[f->times->waited_for].waited_for += e->n_ranks > 1;
    for (int i = 0; i < e->n_ranks; i++) {
        for (int l = 0; l < LAP_COUNT; l++)
            e->sums[i].laps[l] += (double)ranks[i].seconds[l];
        e->sums[i].core_wait += fmax(0, ranks[i].core_wait);
    }
    pthread_mutex_unlock(&e->lock);
}

static void put_value(FILE *to, double value)
{
    if (isnan(value))
        fputs(" NaN\n", to);
    else if (isinf(value))
        fputs(value > 0 ? " +Inf\n" : " -Inf\n", to);
    else
        fprintf(to, " %.17g\n", value);
}

static void put_label(FILE *to, const char *name, const char *value)
{
    fprintf(to, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n') {
            fputs("\\n", to);
            continue;
        }
        if (*value == '"' || *value == '\\')
            putc('\\', to);
        putc(*value, to);
    }
    putc('"', to);
}

static void put_head(FILE *to, const char *name, const char *type, const char *help)
{
    fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static double value_at(const void *values, size_t offset)
{
    double value;
    memcpy(&value, (const char *)values + offset, sizeof value);
    return value;
}

static void put_run(FILE *to, const exposition *e, const step_figures *f, bool stepped, const run_totals *t,
                    const exposed_events *events)
{
    double rate = f->seconds > 0 ? f->flops / f->seconds : 0;
    run_values v = {.ranks = e->n_ranks,
                    .step = (double)f->step,
                    .steps_planned = e->n_steps > 0 ? (double)e->n_steps : ABSENT,
                    .epoch = f->epoch,
                    .loss = stepped ? f->loss : ABSENT,
                    .validation_loss = isnan(events->validation_loss) ? ABSENT : events->validation_loss,
                    .grad_norm = stepped ? f->grad_norm : ABSENT,
                    .lr = stepped ? f->lr : ABSENT,
                    .loss_scale = f->loss_scale > 0 ? f->loss_scale : ABSENT,
                    .step_seconds = f->seconds,
                    .steps = t->steps,
                    .samples = t->samples,
                    .tokens = t->tokens,
                    .flops = t->flops,
                    .seconds = t->seconds,
                    .not_finite = t->not_finite,
                    .peak_flops = f->peak_flops > 0 ? f->peak_flops : ABSENT,
                    .utilization = f->peak_flops > 0 ? rate / f->peak_flops : ABSENT,
                    .last_step = t->last_step,
                    .checkpoint_time = events->checkpoint_time,
                    .checkpoint_step = (double)events->checkpoint_step,
                    .checkpoint_fails = (double)events->checkpoint_fails,
                    .restarts = e->restarts};
    put_head(to, "fsdp_run_info", "gauge", "The run: its name, its strategy, its devices. Always 1.");
    put_label(to, "fsdp_run_info{run", e->run);
    put_label(to, ",strategy", e->strategy);
    put_label(to, ",device", e->device);
    fputs("} 1\n", to);
    for (size_t i = 0; i < N(of_run); i++) {
        double value = value_at(&v, of_run[i].offset);
        if (value == ABSENT)
            continue;
        put_head(to, of_run[i].name, of_run[i].type, of_run[i].help);
        fputs(of_run[i].name, to);
        put_value(to, value);
    }
}

static rank_values values_of(const exposition *e, int rank, const slow_rank *slow)
{
    const rank_snapshot *s = &e->newest[rank];
    int64_t limit = e->ranks[rank].memory_limit_bytes;
    return (rank_values){.memory = (double)s->memory_bytes,
                         .memory_peak = (double)s->memory_peak_bytes,
                         .host_peak = (double)s->host_peak_bytes,
                         .limit = limit > 0 ? (double)limit : ABSENT,
                         .waited_for = e->shown[rank].waited_for,
                         .core_wait = s->core_wait >= 0 ? e->shown[rank].core_wait : ABSENT,
                         .slow = slow->rank == rank ? slow->seconds : 0,
                         .collectives = s->sequence,
                         .events = (double)s->n_events};
}

/* A series for each rank of this node. */
static void put_ranks(FILE *to, const exposition *e, const slow_rank *slow)
{
    for (size_t i = 0; i < N(of_rank); i++) {
        put_head(to, of_rank[i].name, of_rank[i].type, of_rank[i].help);
        for (int r = 0; r < e->n_ranks; r++) {
            rank_values v = values_of(e, r, slow);
            double value = value_at(&v, of_rank[i].offset);
            if (e->ranks[r].node != e->node || value == ABSENT)
                continue;
            fprintf(to, "%s{rank=\"%d\"", of_rank[i].name, r);
            if (of_rank[i].offset == OF_RANK(slow) && value > 0)
                put_label(to, ",phase", lap_name(slow->phase));
            putc('}', to);
            put_value(to, value);
        }
    }
}

static void put_laps(FILE *to, const exposition *e)
{
    static const char newest[] = "fsdp_lap_seconds", total[] = "fsdp_lap_seconds_total";
    for (int sums = 0; sums < 2; sums++) {
        const char *name = sums ? total : newest;
        put_head(to, name, sums ? "counter" : "gauge",
                 sums ? "Seconds of the training thread since this process started; kind=\"wait\" is exposed "
                        "communication."
                      : "Seconds of the training thread from the step before to the newest; kind=\"wait\" is exposed "
                        "communication.");
        for (int r = 0; r < e->n_ranks; r++) {
            for (int l = 0; e->ranks[r].node == e->node && l < LAP_COUNT; l++) {
                fprintf(to, "%s{rank=\"%d\",lap=\"%s\",kind=\"%s\"}", name, r, lap_name((lap)l),
                        l >= LAP_ALL_GATHER ? "wait" : "work");
                put_value(to, sums ? e->shown[r].laps[l] : (double)e->newest[r].seconds[l]);
            }
        }
    }
}

static void put_uses(FILE *to, const exposition *e)
{
    static const char name[] = "fsdp_memory_use_bytes";
    put_head(to, name, "gauge", "What fsdp_memory_bytes is for.");
    for (int r = 0; r < e->n_ranks; r++)
        for (int i = 0; e->ranks[r].node == e->node && i < MEMORY_USES; i++) {
            if (e->newest[r].uses[i] <= 0)
                continue;
            fprintf(to, "%s{rank=\"%d\"", name, r);
            put_label(to, ",use", memory_use_names[i]);
            putc('}', to);
            put_value(to, (double)e->newest[r].uses[i]);
        }
}

static void put_gpus(FILE *to, const exposition *e)
{
    gpu_state *states = e->gpus ? calloc((size_t)e->n_ranks, sizeof *states) : NULL;
    if (!states)
        return;
    for (int r = 0; r < e->n_ranks; r++) {
        if (e->ranks[r].node == e->node)
            states[r] = nvml_read(e->gpus, e->ranks[r].pci_bus_id);
    }
    for (size_t i = 0; i < N(of_gpu); i++) {
        put_head(to, of_gpu[i].name, of_gpu[i].type, of_gpu[i].help);
        for (int r = 0; r < e->n_ranks; r++) {
            double value = value_at(&states[r], of_gpu[i].offset);
            if (e->ranks[r].node != e->node || isnan(value))
                continue;
            fprintf(to, "%s{rank=\"%d\",gpu=\"%s\"}", of_gpu[i].name, r, e->ranks[r].pci_bus_id);
            put_value(to, value);
        }
    }
    free(states);
}

char *exposition_text(exposition *e, size_t *bytes)
{
    char *text = NULL;
    step_figures f;
    FILE *to = open_memstream(&text, bytes);
    if (!to)
        return NULL;
    bool stepped = snapshot_read(e->snapshot, &f, e->newest);
    pthread_mutex_lock(&e->lock);
    run_totals totals = e->totals;
    slow_rank slow = e->slow;
    exposed_events events = e->events;
    memcpy(e->shown, e->sums, (size_t)e->n_ranks * sizeof *e->sums);
    pthread_mutex_unlock(&e->lock);
    if (e->ranks[0].node == e->node)
        put_run(to, e, &f, stepped, &totals, &events);
    put_ranks(to, e, &slow);
    put_laps(to, e);
    put_uses(to, e);
    put_gpus(to, e);
    bool whole = ferror(to) == 0;
    whole &= fclose(to) == 0;
    if (whole)
        return text;
    free(text);
    return NULL;
}
#undef N
