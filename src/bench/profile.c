/* A profile for predictions: the kernels of whole steps timed where they run, what surrounds them, and the collectives
 * of the job's ranks. Rows of a profile that is there already stay, so that several workloads make one profile. */
#include <fsdp/bench.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "bench/collective_times.h"
#include "bench/kernel_times.h"
#include "bench/stepping.h"
#include "bench/samples.h"
#include "plan/predict/predict.h"
#include "settings/settings_table.h"
#include "shard/sharded.h"

enum { WARMUP = 3, LEAST_STEPS = 3, MOST_STEPS = 64, TINY_KERNELS = 256, TINY_ROUNDS = 5 };
static const double measured_seconds = 6;

typedef struct profiling {
    stepping *b;
    char *path;
    kernel_profile profile;
    double plain[MOST_STEPS];      /* seconds of steps in which no kernel is timed, */
    double waits[MOST_STEPS];      /* for collectives, in these, */
    double working[MOST_STEPS];    /* and what is left of them */
    double outside[MOST_STEPS];    /* of a step in which kernels are timed, the part without them */
    double busy[MOST_STEPS];       /* the rest of it */
    double calls;                  /* kernels of a step */
    double kernels;                /* seconds of all of them */
    collective_times *collectives; /* of the first steps; NULL: one rank, or a device whose collectives are its own */
} profiling;

/* As many as there is time for, the same on all ranks; at least LEAST_STEPS and no more than *steps. */
static fsdp_status choose_steps(profiling *p, double seconds, int *steps)
{
    FSDP_TRY(comm_all_reduce_f64(comm_world(p->b->world->comm), "time of a step", 0, FSDP_REDUCE_MAX, &seconds, 1));
    int most = *steps < MOST_STEPS ? *steps : MOST_STEPS, wanted = (int)fmin(most, measured_seconds / seconds);
    *steps = wanted > LEAST_STEPS ? wanted : most < LEAST_STEPS ? most : LEAST_STEPS;
    return FSDP_OK;
}

static bool times_collectives(const profiling *p)
{
    return fsdp_world_size(p->b->world) > 1 && !p->b->world->dev->own_memory;
}

static fsdp_status run_plainly(profiling *p, int *steps)
{
    double loss, seconds = 0;
    for (int i = 0; i < WARMUP + *steps; i++) {
        if (i == WARMUP && times_collectives(p))
            FSDP_TRY(collective_times_start(&p->collectives));
        (void)overlap_meter_take(p->b->overlap);
        double start = clock_seconds();
        FSDP_TRY(stepping_run(p->b, i, &loss));
        seconds = clock_seconds() - start;
        double waits = (double)overlap_meter_take(p->b->overlap).exposed_ns * 1e-9;
        if (i + 1 == WARMUP)
            FSDP_TRY(choose_steps(p, seconds, steps));
        if (i < WARMUP)
            continue;
        p->plain[i - WARMUP] = seconds;
        p->working[i - WARMUP] = seconds - waits;
        p->waits[i - WARMUP] = waits;
    }
    return FSDP_OK;
}

static fsdp_status take_rows(profiling *p, kernel_times *times)
{
    for (int i = 0; i < kernel_times_rows(times); i++) {
        kernel_work work;
        double seconds = kernel_times_row(times, i, &work);
        if (seconds > 0)
            FSDP_TRY(profile_add(&p->profile, &work, seconds));
    }
    return FSDP_OK;
}

/* The first of these steps prepares what only steps without graphs need. */
static fsdp_status run_timed(profiling *p, int steps)
{
    kernel_times *times;
    double loss, busy;
    FSDP_TRY(offload_settle(p->b->sharded)); /* listeners change only between steps */
    fsdp_status status = stepping_run(p->b, WARMUP + steps, &loss);
    if (status == FSDP_OK)
        status = kernel_times_start(p->b->world->dev, &times);
    FSDP_TRY(status);
    for (int i = 0; i < steps && status == FSDP_OK; i++) {
        double start = clock_seconds();
        status = stepping_run(p->b, WARMUP + steps + 1 + i, &loss);
        double wall = clock_seconds() - start;
        if (status == FSDP_OK)
            status = kernel_times_collect(times, &busy);
        p->outside[i] = fmax(0, wall - busy);
        p->busy[i] = busy;
    }
    if (status == FSDP_OK)
        status = offload_settle(p->b->sharded);
    kernel_times_stop(times);
    p->calls = (double)kernel_times_calls(times) / steps;
    p->kernels = kernel_times_seconds(times) / steps;
    if (status == FSDP_OK)
        status = take_rows(p, times);
    kernel_times_free(times);
    return status;
}

/* ---- launches ---- */

static fsdp_status launch_tiny(device *d, stream *s, float *x)
{
    fill_args a = {.n = 1, .alpha = 1, .out = {x, FSDP_F32}};
    for (int i = 0; i < TINY_KERNELS; i++)
        FSDP_TRY(d->kernels->fill(s, &a));
    return FSDP_OK;
}

/* Seconds of a kernel that does nothing: as events see it, as one of a graph; and of the host for either. */
static fsdp_status time_tiny(device *d, stream *s, float *x, graph *g, profile_launch *out)
{
    double timed = INFINITY, in_graph = INFINITY, host = INFINITY, host_graph = INFINITY, busy;
    for (int round = 0; round < TINY_ROUNDS; round++) {
        kernel_times *times;
        kernel_work work;
        FSDP_TRY(d->stream_synchronize(s));
        double start = clock_seconds();
        FSDP_TRY(launch_tiny(d, s, x));
        host = fmin(host, (clock_seconds() - start) / TINY_KERNELS);
        FSDP_TRY(d->stream_synchronize(s));
        start = clock_seconds();
        FSDP_TRY(d->graph_launch(s, g));
        host_graph = fmin(host_graph, clock_seconds() - start);
        FSDP_TRY(d->stream_synchronize(s));
        in_graph = fmin(in_graph, (clock_seconds() - start) / TINY_KERNELS);
        FSDP_TRY(kernel_times_start(d, &times));
        FSDP_TRY(d->graph_launch(s, g)); /* something to do until all of them are enqueued */
        fsdp_status status = launch_tiny(d, s, x);
        if (status == FSDP_OK)
            status = d->stream_synchronize(s);
        if (status == FSDP_OK)
            status = kernel_times_collect(times, &busy);
        if (status == FSDP_OK)
            timed = fmin(timed, kernel_times_row(times, 0, &work));
        kernel_times_free(times);
        FSDP_TRY(status);
    }
    out->gap = in_graph - timed;
    out->graph = host_graph;
    out->kernel = host;
    out->collective = 4 * host;
    return FSDP_OK;
}

static fsdp_status measure_launches(device *d, stream *s, profile_launch *out)
{
    graph *g = NULL;
    void *x;
    if (!d->graph_begin)
        return FSDP_OK;
    FSDP_TRY(d->allocate(d, MEMORY_DEVICE, 256, &x));
    fsdp_status status = d->graph_begin(s);
    if (status == FSDP_OK) {
        status = launch_tiny(d, s, x);
        fsdp_status ended = d->graph_end(s, &g);
        status = status == FSDP_OK ? ended : status;
    }
    if (status == FSDP_OK)
        status = time_tiny(d, s, x, g, out);
    if (g)
        d->graph_free(g);
    d->release(d, MEMORY_DEVICE, x, 256);
    return status;
}

/* What the host does besides. Where kernels run in its own thread, that is what a step takes beyond them and its waits
 * when no kernel is timed, and each kernel has its share; elsewhere what lies before the first kernel and after the
 * last, of the workload that has the least to prepare. */
static void take_overhead(profiling *p, int steps)
{
    double working = bench_median(p->working, steps), busy = bench_median(p->busy, steps);
    double known = p->profile.launch.step, outside = bench_median(p->outside, steps);
    if (p->profile.streams)
        p->profile.launch.step = known > 0 ? fmin(known, outside) : outside;
    else
        p->profile.launch.kernel = p->calls > 0 ? fmax(0, working - busy) / p->calls : 0;
}

/* Of a rank whose steps wait for nobody. */
static fsdp_status calibrate(profiling *p, int steps)
{
    const fsdp_config *c = &p->b->sharding.config;
    bool alone = fsdp_world_size(p->b->world) == 1 && !c->cpu_offload && !c->offload_activations;
    profile_step step = {bench_median(p->plain, steps), p->kernels, p->calls};
    if (!p->profile.streams)
        return FSDP_OK;
    if (alone)
        FSDP_TRY(profile_add_step(&p->profile, &step));
    profile_calibrate(&p->profile, p->profile.launch.gap);
    return FSDP_OK;
}

/* ---- host memory ---- */

static fsdp_status measure_host_copy(device *d, stream *s, double *rate)
{
    const size_t bytes = (size_t)256 << 20;
    void *host = NULL, *device_memory = NULL;
    double best = INFINITY;
    if (!d->own_memory)
        return FSDP_OK;
    fsdp_status status = d->allocate(d, MEMORY_HOST, bytes, &host);
    if (status == FSDP_OK)
        status = d->allocate(d, MEMORY_DEVICE, bytes, &device_memory);
    for (int i = 0; i < TINY_ROUNDS && status == FSDP_OK; i++) {
        double start = clock_seconds();
        status = d->copy(s, host, device_memory, bytes);
        if (status == FSDP_OK)
            status = d->stream_synchronize(s);
        best = fmin(best, clock_seconds() - start);
    }
    d->release(d, MEMORY_DEVICE, device_memory, bytes);
    d->release(d, MEMORY_HOST, host, bytes);
    if (status == FSDP_OK)
        *rate = (double)bytes / best;
    return status;
}

static void take_host_update(profiling *p)
{
    offload_figures f = offload_figures_of(p->b->sharded);
    double *rate = p->b->sharding.config.cpu_offload_split ? &p->profile.host_shared : &p->profile.host_update;
    if (f.updates > 0 && f.update_seconds > 0)
        *rate = (double)f.parameters * stepping_update_bytes(p->b) * (double)f.updates / f.update_seconds;
}

/* ---- collectives ---- */

static void forget_alone(kernel_profile *p, const profile_collective *like)
{
    int n = 0;
    for (int i = 0; i < p->n_collectives; i++) {
        const profile_collective *c = &p->collectives[i];
        if (c->which != like->which || c->ranks != like->ranks || !c->alone)
            p->collectives[n++] = *c;
    }
    p->n_collectives = n;
}

/* Of one step with the medians of its collectives. */
static double usual_seconds(profiling *p, int steps)
{
    double sum = 0;
    for (int i = 0; i < collective_times_rows(p->collectives); i++)
        sum += collective_times_row(p->collectives, i).seconds * collective_times_calls(p->collectives, i);
    return sum / steps;
}

/* What a rank waits is not only what its collectives take while they run: peers have to be done with its memory, too.
 * Where collectives run while somebody waits, all that a step usually waits is theirs. */
static fsdp_status take_collectives(profiling *p, int steps)
{
    double usual = usual_seconds(p, steps), waits = bench_median(p->waits, steps);
    double factor = !p->profile.overlaps && usual > 0 && waits > 0 ? waits / usual : 1;
    for (int i = 0; i < collective_times_rows(p->collectives); i++) {
        profile_collective c = collective_times_row(p->collectives, i);
        c.seconds *= factor;
        forget_alone(&p->profile, &c);
        if (c.seconds > 0 && c.bytes > 0)
            FSDP_TRY(profile_add_collective(&p->profile, &c));
    }
    collective_times_free(p->collectives);
    p->collectives = NULL;
    return FSDP_OK;
}

static bool is_known(const kernel_profile *p, int which, int ranks)
{
    for (int i = 0; i < p->n_collectives; i++)
        if ((int)p->collectives[i].which == which && p->collectives[i].ranks == ranks && !p->collectives[i].alone)
            return true;
    return false;
}

/* Whether the steps have left a kind unknown, to any rank: they measure together. */
static fsdp_status wants_collectives(const profiling *p, bool *wanted)
{
    const fsdp_world *w = p->b->world;
    double unknown = 0;
    *wanted = false;
    if (comm_world_size(w->comm) == 1)
        return FSDP_OK;
    for (int k = 0; k < 3; k++)
        unknown += !is_known(&p->profile, k, comm_world_size(w->comm));
    FSDP_TRY(comm_all_reduce_f64(comm_world(w->comm), "unknown collectives", 0, FSDP_REDUCE_MAX, &unknown, 1));
    *wanted = unknown > 0;
    return FSDP_OK;
}

/* By themselves: kinds that the step has none of. */
static fsdp_status measure_collectives(const fsdp_settings *s, profiling *p)
{
    static const int64_t sizes[] = {256, 65536, (int64_t)1 << 20, (int64_t)8 << 20, (int64_t)64 << 20};
    static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce"};
    fsdp_bench_config config = FSDP_BENCH_CONFIG_INIT;
    fsdp_bench_collectives found = FSDP_BENCH_COLLECTIVES_INIT;
    config.sizes = sizes;
    config.n_sizes = sizeof sizes / sizeof *sizes;
    FSDP_TRY(fsdp_bench_comm(s, &config, &found));
    for (int i = 0; i < found.n; i++)
        for (int k = 0; k < 3; k++)
            if (strcmp(found.rows[i].name, names[k]) == 0 && !is_known(&p->profile, k, found.world_size))
                FSDP_TRY(profile_add_collective(&p->profile,
                                                &(profile_collective){.which = (script_collective)k,
                                                                      .ranks = found.world_size,
                                                                      .bytes = (double)found.rows[i].bytes,
                                                                      .seconds = found.rows[i].milliseconds * 1e-3,
                                                                      .alone = true}));
    return FSDP_OK;
}

/* ---- all of it ---- */

/* "auto": where runs on this device look for it. */
static fsdp_status choose_path(profiling *p, const char *given)
{
    const fsdp_world *w = p->b->world;
    bool automatic = strcmp(given, "auto") == 0;
    p->path = automatic ? profile_default_path(w->dev->description, w->job.local_world_size) : strdup(given);
    if (!p->path)
        return error_set(FSDP_ERR_INPUT, "--profile auto: set FSDP_CACHE_DIR or HOME, or name a file");
    char *slash = automatic ? strrchr(p->path, '/') : NULL;
    if (!slash)
        return FSDP_OK;
    *slash = 0;
    fsdp_status status = file_make_directories(p->path);
    *slash = '/';
    return status;
}

static fsdp_status open_profile(profiling *p, const char *path)
{
    const fsdp_world *w = p->b->world;
    if (file_exists(path)) {
        FSDP_TRY(profile_open(path, &p->profile));
        if (strcmp(p->profile.device, w->dev->description) != 0 || p->profile.ranks != w->job.local_world_size)
            return error_set(FSDP_ERR_INPUT,
                             "%s is the profile of %s with %d ranks, not of %s with %d; give another file", path,
                             p->profile.device, p->profile.ranks, w->dev->description, w->job.local_world_size);
        return FSDP_OK;
    }
    p->profile = (kernel_profile){.busy = 1, .compute = 1, .memory = 1, .host_copy = 50e9, .host_update = 100e9};
    p->profile.links = (profile_links){.inside = 10e9, .outside = 1e9, .hop_inside = 1e-6, .hop_outside = 20e-6};
    if (w->dev->own_memory) /* what the library's profiles say; one rank alone cannot measure it */
        p->profile.links = (profile_links){360e9, 45e9, 1.5e-6, 6e-6, 12e-6};
    snprintf(p->profile.device, sizeof p->profile.device, "%s", w->dev->description);
    p->profile.ranks = w->job.local_world_size;
    p->profile.threads = w->dev->threads > 0 ? w->dev->threads : 1;
    p->profile.streams = w->dev->own_memory;
    p->profile.overlaps = w->dev->own_memory || comm_has_progress_thread(w->comm);
    p->profile.slowdown = w->dev->own_memory ? 0.1 : 0;
    return FSDP_OK;
}

static fsdp_status measure(profiling *p, const char *path, int steps, double *milliseconds)
{
    fsdp_world *w = p->b->world;
    FSDP_TRY(open_profile(p, path));
    FSDP_TRY(run_plainly(p, &steps));
    if (p->collectives)
        FSDP_TRY(take_collectives(p, steps));
    FSDP_TRY(run_timed(p, steps));
    FSDP_TRY(measure_launches(w->dev, w->compute, &p->profile.launch));
    take_overhead(p, steps);
    FSDP_TRY(calibrate(p, steps));
    FSDP_TRY(measure_host_copy(w->dev, w->compute, &p->profile.host_copy));
    take_host_update(p);
    *milliseconds = bench_median(p->plain, steps) * 1e3;
    return FSDP_OK;
}

static fsdp_status predict(profiling *p, const fsdp_settings *s, fsdp_bench_profiled *out)
{
    workload work = stepping_workload(p->b, s);
    prediction_request request = {
        .work = &work,
        .config = &p->b->sharding.config,
        .world = {p->b->world->dev, fsdp_world_size(p->b->world), p->b->world->job.local_world_size},
        .profile = &p->profile};
    prediction found;
    FSDP_TRY(prediction_make(&request, &found));
    out->predicted_milliseconds = found.step.seconds * 1e3;
    out->kernels = p->profile.n_rows;
    return FSDP_OK;
}

static fsdp_status run_profile(const fsdp_settings *s, const fsdp_bench_config *c, fsdp_bench_profiled *out)
{
    profiling *p = calloc(1, sizeof *p);
    if (!p || !(p->b = calloc(1, sizeof *p->b))) {
        free(p);
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    }
    bool wanted = false;
    fsdp_status status = stepping_open(p->b, s, c);
    if (status == FSDP_OK)
        status = choose_path(p, c->profile);
    if (status == FSDP_OK)
        status = measure(p, p->path, c->steps, &out->milliseconds);
    int rank = p->b->world ? fsdp_world_rank(p->b->world) : 0, ranks = p->b->world ? fsdp_world_size(p->b->world) : 1;
    if (status == FSDP_OK && ranks == 1)
        status = predict(p, s, out);
    if (status == FSDP_OK)
        status = wants_collectives(p, &wanted);
    if (status != FSDP_OK && p->b->world)
        fsdp_world_abort(p->b->world);
    stepping_close(p->b);
    if (status == FSDP_OK && wanted)
        status = measure_collectives(s, p);
    if (status == FSDP_OK && rank == 0)
        status = profile_write(&p->profile, p->path);
    out->kernels = p->profile.n_rows;
    collective_times_free(p->collectives);
    profile_clear(&p->profile);
    free(p->path);
    free(p);
    return status;
}

fsdp_status fsdp_bench_profile(const fsdp_settings *settings, const fsdp_bench_config *config,
                               fsdp_bench_profiled *result)
{
    fsdp_bench_profiled done = FSDP_BENCH_PROFILED_INIT;
    SIZED_READ(fsdp_bench_config, FSDP_BENCH_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_bench_profiled, FSDP_BENCH_PROFILED_INIT, result);
    FSDP_TRY(settings_check_size(settings));
    if (!full.profile || full.steps < 1)
        return error_set(FSDP_ERR_INPUT, "bench: a profile needs a file to go to, and at least one step");
    fsdp_status status = run_profile(settings, &full, &done);
    sized_write(result, &done, sizeof done);
    return status;
}
