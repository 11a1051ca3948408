/* Collectives of fp32 over the job's ranks, on the memory that a step uses for them: shards and gradients where peers
 * reach them. A round begins together and ends with the slowest rank; the best round counts, and beside it stands what
 * the ranks' memory gives when all of them copy as much. */
#include <fsdp/bench.h>

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "comm/world.h"
#include "plan/assemble.h"
#include "settings/settings_table.h"

enum { MIN_ROUNDS = 5, MAX_ROUNDS = 60, BLOCK = 64 };
static const double measured_seconds = 0.5;
static const int64_t usual_sizes[] = {(int64_t)1 << 20, (int64_t)16 << 20, (int64_t)128 << 20};

typedef struct comm_bench {
    fsdp_world *world;
    comm_group *group;
    int64_t part;        /* elements of a rank */
    float *shared;       /* (n * part) */
    float *shard, *full; /* (part), (n * part) */
} comm_bench;

static fsdp_status all_gather(comm_bench *b, comm_op *op, comm_request *r)
{
    comm_span span = {.send = {b->shard, FSDP_F32}, .recv = {b->full, FSDP_F32}, .count = b->part};
    op->spans = &span;
    FSDP_TRY(comm_all_gather(b->group, op, r));
    return comm_wait_sent(r, NULL);
}

static fsdp_status reduce_scatter(comm_bench *b, comm_op *op, comm_request *r)
{
    comm_span span = {.send = {b->shared, FSDP_F32}, .recv = {b->shard, FSDP_F32}, .count = b->part};
    op->spans = &span;
    FSDP_TRY(comm_reduce_scatter(b->group, op, r));
    return comm_wait_sent(r, NULL);
}

static fsdp_status all_reduce(comm_bench *b, comm_op *op, comm_request *r)
{
    int64_t n = b->part * comm_group_size(b->group);
    comm_span span = {.send = {b->shared, FSDP_F32}, .recv = {b->shared, FSDP_F32}, .count = n};
    op->spans = &span;
    FSDP_TRY(comm_all_reduce(b->group, op, r));
    return comm_wait_sent(r, NULL);
}

static fsdp_status copy(comm_bench *b, comm_op *op, comm_request *r)
{
    (void)op, (void)r;
    device *d = b->world->dev;
    axpby_args a = {
        .n = b->part * comm_group_size(b->group), .alpha = 1, .a = {b->shared, FSDP_F32}, .out = {b->full, FSDP_F32}};
    FSDP_TRY(d->kernels->axpby(b->world->compute, &a));
    return d->stream_synchronize(b->world->compute);
}

typedef fsdp_status (*collective)(comm_bench *b, comm_op *op, comm_request *r);

static const struct {
    const char *name;
    collective run;
    double trips; /* of (n-1)/n of the buffer */
} collectives[] = {{"all_gather", all_gather, 1}, {"reduce_scatter", reduce_scatter, 1}, {"all_reduce", all_reduce, 2}};

/* Seconds of the best round. All ranks see the same times, so all make the same number of rounds. */
static fsdp_status time_rounds(comm_bench *b, collective run, double *best)
{
    double total = 0;
    *best = INFINITY;
    for (int round = 0; round < MAX_ROUNDS && (round < MIN_ROUNDS || total < measured_seconds); round++) {
        comm_op op = {.unit = "bench", .step = round, .n_spans = 1, .stream = b->world->compute};
        comm_request r = COMM_REQUEST_INIT;
        FSDP_TRY(comm_barrier(b->group, "start of a round", round));
        double start = clock_seconds();
        FSDP_TRY(run(b, &op, &r));
        double seconds = clock_seconds() - start;
        FSDP_TRY(comm_all_reduce_f64(b->group, "time of a round", round, FSDP_REDUCE_MAX, &seconds, 1));
        if (round > 0) /* the first connects */
            *best = fmin(*best, seconds);
        total += seconds;
    }
    return FSDP_OK;
}

static fsdp_status time_size(comm_bench *b, fsdp_bench_collectives *result)
{
    int n = comm_group_size(b->group);
    double bytes = (double)(b->part * n) * sizeof(float), seconds, copying;
    FSDP_TRY(time_rounds(b, copy, &copying));
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives && result->n < FSDP_BENCH_ROWS; i++) {
        FSDP_TRY(time_rounds(b, collectives[i].run, &seconds));
        result->rows[result->n++] =
            (fsdp_bench_collective){.name = collectives[i].name,
                                    .bytes = (int64_t)bytes,
                                    .milliseconds = seconds * 1e3,
                                    .bus_gigabytes = collectives[i].trips * (n - 1) / n * bytes / seconds / 1e9,
                                    .copy_gigabytes = bytes / copying / 1e9};
    }
    return FSDP_OK;
}

/* Shards and gradients lie where peers reach them, gathered parameters where that is of use. */
static fsdp_status run_size(comm_bench *b, int64_t bytes, fsdp_bench_collectives *result)
{
    device *d = b->world->dev;
    comm *c = b->world->comm;
    int n = comm_group_size(b->group);
    b->part = (bytes / (int64_t)sizeof(float) / n + BLOCK - 1) / BLOCK * BLOCK;
    size_t part_bytes = (size_t)b->part * sizeof(float), full_bytes = part_bytes * (size_t)n;
    void *shared, *full = NULL;
    bool direct = comm_fills_directly(c);
    FSDP_TRY(comm_allocate(c, full_bytes + part_bytes, &shared));
    fsdp_status status =
        direct ? comm_allocate(c, full_bytes, &full) : d->allocate(d, MEMORY_DEVICE, full_bytes, &full);
    b->shared = shared;
    b->shard = b->shared + b->part * n;
    b->full = full;
    if (status == FSDP_OK)
        status = d->zero(b->world->compute, shared, full_bytes + part_bytes);
    if (status == FSDP_OK)
        status = d->zero(b->world->compute, full, full_bytes);
    if (status == FSDP_OK)
        status = time_size(b, result);
    if (direct)
        comm_release(c, full);
    else
        d->release(d, MEMORY_DEVICE, full, full ? full_bytes : 0);
    comm_release(c, shared);
    return status;
}

static fsdp_status run_bench(const fsdp_settings *settings, const fsdp_bench_config *config,
                             fsdp_bench_collectives *result)
{
    fsdp_world_config world_config;
    comm_bench b = {.world = NULL};
    const int64_t *sizes = config->n_sizes ? config->sizes : usual_sizes;
    int n = config->n_sizes ? config->n_sizes : (int)(sizeof usual_sizes / sizeof *usual_sizes);
    for (int i = 0; i < n; i++)
        if (sizes[i] < 1)
            return error_set(FSDP_ERR_INPUT, "bench comm: a size of %lld bytes", (long long)sizes[i]);
    assemble_world(settings, &world_config);
    FSDP_TRY(fsdp_world_open(&world_config, &b.world));
    b.group = comm_world(b.world->comm);
    snprintf(result->device, sizeof result->device, "%s", b.world->dev->description);
    result->backend = comm_backend_name(b.world->comm);
    result->world_size = comm_world_size(b.world->comm);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < n && status == FSDP_OK; i++)
        status = run_size(&b, sizes[i], result);
    if (status != FSDP_OK)
        fsdp_world_abort(b.world);
    fsdp_world_close(b.world);
    return status;
}

fsdp_status fsdp_bench_comm(const fsdp_settings *settings, const fsdp_bench_config *config,
                            fsdp_bench_collectives *result)
{
    fsdp_bench_collectives done = FSDP_BENCH_COLLECTIVES_INIT;
    SIZED_READ(fsdp_bench_config, FSDP_BENCH_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_bench_collectives, FSDP_BENCH_COLLECTIVES_INIT, result);
    FSDP_TRY(settings_check_size(settings));
    fsdp_status status = run_bench(settings, &full, &done);
    sized_write(result, &done, sizeof done);
    return status;
}
