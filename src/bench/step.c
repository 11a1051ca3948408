/* Whole training steps on random tokens: forward, backward, clipping, AdamW, timed one by one. What a step consists of
 * is heard by parts.c; what it is compared with is measured by peak.c. */
#include <fsdp/bench.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/sized.h"
#include "observe/memory.h"
#include "observe/overlap.h"
#include "plan/workload.h"
#include "shard/sharded.h"
#include "plan/assemble.h"
#include "settings/settings_table.h"
#include "bench/parts.h"
#include "bench/workload.h"
#include "plan/fit.h"
#include "comm/emulate/emulate.h"
#include "comm/world.h"
#include "device/peak.h"

enum { MAX_PART_STEPS = 5 };

typedef struct bench {
    fsdp_world *world;
    model_config model;
    assembled_sharding sharding;
    fsdp_model *sharded;
    fsdp_optimizer *optimizer;
    fsdp_memory_meter *meter;
    overlap_meter *overlap;
    int64_t batch, width, micro_batches;
    int32_t *ids, *labels;
} bench;

/* A workload has a shape of its own; what would be skipped is refused. */
static fsdp_status check_shape(const fsdp_settings *s, const char *name)
{
    for (const fsdp_flag *flag = fsdp_settings_flags(); flag->name; flag++)
        if (strcmp(flag->group, "Model") == 0 && fsdp_settings_given(s, flag->name))
            return error_set(FSDP_ERR_INPUT, "--%s: the workload %s has a shape of its own; leave one of them out",
                             flag->name, name);
    return FSDP_OK;
}

static fsdp_status choose_workload(bench *b, const fsdp_settings *s, const char *name)
{
    FSDP_TRY(assemble_model(s, 0, NULL, &b->model));
    b->batch = s->train_batch_size;
    b->width = s->max_context_width;
    b->micro_batches = s->gradient_accumulation_steps;
    if (!name)
        return b->model.type == MODEL_DECODER
                   ? FSDP_OK
                   : error_set(FSDP_ERR_INPUT, "bench step: only llama models have random data");
    const bench_workload *w;
    FSDP_TRY(bench_workload_find(name, &w));
    FSDP_TRY(check_shape(s, name));
    b->model = bench_workload_model(w);
    if (!fsdp_settings_given(s, "train_batch_size"))
        b->batch = w->batch;
    b->width = w->width;
    b->sharding.config.checkpointing = w->checkpointing;
    return FSDP_OK;
}

static workload workload_of(const bench *b, const fsdp_settings *s)
{
    fsdp_dataset_info data = {.width = b->width};
    workload w = assemble_workload(s, &b->model, &data, NULL, fsdp_world_size(b->world));
    w.batch = b->batch;
    w.backend = fsdp_world_backend(b->world);
    w.snapshot = NULL; /* nothing is saved */
    return w;
}

/* What is measured is what a workload says, not what its size recommends; the rest is as in training. */
static fsdp_status choose_sharding(bench *b, const fsdp_settings *s, bool named)
{
    fsdp_checkpointing checkpointing = b->sharding.config.checkpointing;
    int64_t n_parameters;
    FSDP_TRY(assemble_count(&b->model, &n_parameters));
    FSDP_TRY(assemble_sharding(s, &b->model, n_parameters, fsdp_world_size(b->world), &b->sharding));
    workload work = workload_of(b, s);
    fit_request request = {.settings = s,
                           .work = &work,
                           .world = {b->world->dev, fsdp_world_size(b->world), b->world->job.local_world_size},
                           .free = assemble_freedom(s, b->world->dev),
                           .n_parameters = n_parameters};
    if (named && !fsdp_settings_given(s, "activation_checkpointing"))
        b->sharding.config.checkpointing = checkpointing;
    if (named) {
        b->sharding.config.offload_activations = s->offload_activations;
        request.free.checkpointing = request.free.offload_activations = false;
    }
    FSDP_TRY(fit_limit(b->world->dev, b->world->job.local_world_size, comm_world(b->world->comm), &request.limit));
    return fit_sharding(&request, &b->sharding);
}

/* The world that the settings name, or one that is emulated. */
static fsdp_status open_world(const fsdp_settings *s, const char *links, fsdp_world **out)
{
    fsdp_world_config world;
    char backend[128];
    assemble_world(s, &world);
    if (!links)
        return fsdp_world_open(&world, out);
    if (fsdp_settings_given(s, "comm_backend"))
        return error_set(FSDP_ERR_INPUT, "--emulate is a backend of its own; leave --comm_backend out");
    snprintf(backend, sizeof backend, "emulate:%s", links);
    world.backend = backend;
    return fsdp_world_open(&world, out);
}

static fsdp_status open_bench(bench *b, const fsdp_settings *s, const fsdp_bench_config *c)
{
    const char *workload_name = c->workload;
    fsdp_module *net;
    FSDP_TRY(choose_workload(b, s, workload_name));
    FSDP_TRY(fsdp_memory_meter_start(&b->meter));
    FSDP_TRY(overlap_meter_start(&b->overlap));
    FSDP_TRY(open_world(s, c->emulate, &b->world));
    FSDP_TRY(choose_sharding(b, s, workload_name != NULL));
    FSDP_TRY(model_create(&b->model, &net));
    fsdp_status status = fsdp_shard(b->world, net, &b->sharding.config, &b->sharded);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    void *groups = NULL;
    fsdp_optimizer_config optimizer = assemble_optimizer(s);
    status = assemble_groups(s, &optimizer, &groups);
    if (status == FSDP_OK)
        status = fsdp_optimizer_new(b->sharded, &optimizer, &b->optimizer);
    free(groups);
    FSDP_TRY(status);
    size_t n = (size_t)(b->batch * b->width);
    b->ids = malloc(n * sizeof *b->ids);
    b->labels = malloc(n * sizeof *b->labels);
    return b->ids && b->labels ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
}

static fsdp_status run_micro_batch(bench *b, uint64_t index, bool last)
{
    fsdp_model *m = b->sharded;
    int64_t shape[] = {b->batch, b->width}, n = b->batch * b->width;
    rng_key key = rng_key_make(1234 + (uint64_t)fsdp_world_rank(b->world));
    for (int64_t i = 0; i < n; i++)
        b->ids[i] = (int32_t)(rng_word(key, index, (uint64_t)i) % (uint32_t)b->model.decoder.vocabulary);
    for (int64_t i = 0; i < n; i++)
        b->labels[i] = b->ids[i + 1 < n ? i + 1 : 0];
    fsdp_tape *t = fsdp_begin(m);
    fsdp_loss l = fsdp_llama_loss(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, b->ids),
                                  fsdp_input(t, FSDP_I32, 2, shape, b->labels));
    return fsdp_backward(t, l, last);
}

static fsdp_status run_one(bench *b, int step, double *loss)
{
    int64_t n = b->micro_batches;
    for (int64_t i = 0; i < n; i++)
        FSDP_TRY(run_micro_batch(b, (uint64_t)(step * n + i), i + 1 == n));
    fsdp_step_report r = {.loss = NAN};
    FSDP_TRY(fsdp_step(b->optimizer, &r));
    *loss = r.loss;
    return FSDP_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The same steps with collectives that take no time: what they are shorter by is exposed. */
static fsdp_status measure_exposed(bench *b, const fsdp_bench_config *c, double *times, fsdp_bench_result *out)
{
    double loss;
    out->communication_ms = emulate_take_seconds(b->world->comm) * 1e3 / c->steps;
    emulate_without_links(b->world->comm, true);
    for (int i = 0; i < c->steps; i++) {
        double begun = clock_seconds();
        FSDP_TRY(run_one(b, c->warmup + i, &loss));
        times[i] = clock_seconds() - begun;
    }
    emulate_without_links(b->world->comm, false);
    qsort(times, (size_t)c->steps, sizeof *times, ascending);
    out->exposed_ms = fmax(0, out->milliseconds - times[c->steps / 2] * 1e3);
    return FSDP_OK;
}

static fsdp_status measure(bench *b, const fsdp_bench_config *c, double start, fsdp_bench_result *out)
{
    double *times = calloc((size_t)c->steps, sizeof *times), loss = 0;
    fsdp_status status = times ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    for (int i = 0; i < c->warmup + c->steps && status == FSDP_OK; i++) {
        double begun = clock_seconds();
        if (i == c->warmup)
            (void)overlap_meter_take(b->overlap);
        if (i == c->warmup && c->emulate)
            (void)emulate_take_seconds(b->world->comm);
        status = run_one(b, i, &loss);
        if (i == 0)
            out->first_step_seconds = clock_seconds() - start;
        if (i < 3)
            out->first_losses[i] = loss;
        if (i >= c->warmup)
            times[i - c->warmup] = clock_seconds() - begun;
    }
    if (status == FSDP_OK) {
        qsort(times, (size_t)c->steps, sizeof *times, ascending);
        out->milliseconds = times[c->steps / 2] * 1e3;
        out->fastest = times[0] * 1e3;
        overlap_times overlap = overlap_meter_take(b->overlap);
        if (!comm_enqueues(b->world->comm)) {
            out->communication_ms = (double)overlap.communication_ns / 1e6 / c->steps;
            out->exposed_ms = (double)overlap.exposed_ns / 1e6 / c->steps;
        }
        if (c->emulate)
            status = measure_exposed(b, c, times, out);
    }
    free(times);
    return status;
}

/* Steps of their own, so that the figures above are of steps without a listener. */
static fsdp_status break_down(bench *b, const fsdp_bench_config *c, fsdp_bench_result *out)
{
    bench_parts *parts = NULL;
    int steps = c->steps < MAX_PART_STEPS ? c->steps : MAX_PART_STEPS;
    double loss;
    FSDP_TRY(bench_parts_start(b->world->dev, b->world->compute, &parts));
    fsdp_status status = FSDP_OK;
    double start = clock_seconds();
    for (int i = 0; i < steps && status == FSDP_OK; i++)
        status = run_one(b, c->warmup + c->steps + i, &loss);
    if (status == FSDP_OK)
        status = offload_settle(b->sharded); /* listeners change only between steps */
    bench_parts_end(parts, steps, clock_seconds() - start, out);
    return status;
}

static void close_model(bench *b)
{
    fsdp_optimizer_free(b->optimizer);
    fsdp_model_free(b->sharded);
    b->optimizer = NULL;
    b->sharded = NULL;
}

static void close_bench(bench *b)
{
    free(b->ids);
    free(b->labels);
    close_model(b);
    fsdp_world_close(b->world);
    overlap_meter_free(b->overlap);
    fsdp_memory_meter_free(b->meter);
    free(b);
}

static void compute_figures(const bench *b, fsdp_bench_result *r)
{
    workload w = {.model = b->model, .batch = b->batch, .width = b->width};
    double seconds = r->milliseconds / 1e3;
    r->parameters = fsdp_model_parameters(b->sharded);
    r->world_size = fsdp_world_size(b->world);
    r->batch = b->batch;
    r->width = b->width;
    r->micro_batches = b->micro_batches;
    r->tokens_per_second = (double)(b->batch * b->width * b->micro_batches * r->world_size) / seconds;
    r->tflops = workload_flops(&w) * (double)b->micro_batches / seconds / 1e12;
    r->memory_bytes = fsdp_memory_meter_peak(b->meter);
}

/* AdamW reads parameter, gradient and two moments and writes all but the gradient, and a low-precision copy. */
static void offload_results(const bench *b, fsdp_bench_result *r)
{
    offload_figures f = offload_figures_of(b->sharded);
    double n = (double)f.updates, low = b->sharding.config.param_dtype == FSDP_F32 ? 0 : 2;
    if (f.updates == 0)
        return;
    r->host_update_ms = f.span_seconds * 1e3 / n;
    r->host_wait_ms = f.wait_seconds * 1e3 / n;
    r->host_gigabytes = (double)f.parameters * (28 + low) * n / f.update_seconds * 1e-9;
}

/* After the step, when its memory is free again and the device as warm as it was. */
static void measure_rates(const bench *b, fsdp_dtype dtype, fsdp_bench_rates *r)
{
    device *d = b->world->dev;
    snprintf(r->device, sizeof r->device, "%s", d->description);
    r->dtype = fsdp_dtype_name(dtype);
    r->peak_tflops = peak_tflops(d, dtype);
    if (peak_measure_products(d, b->world->compute, dtype, &r->matrix_tflops) != FSDP_OK)
        r->matrix_tflops = 0; /* the step counts; this is only what it is compared with */
}

static fsdp_status run_bench(const fsdp_settings *settings, const fsdp_bench_config *config, fsdp_bench_result *result)
{
    double start = clock_seconds();
    if (config->steps < 1 || config->warmup < 0)
        return error_set(FSDP_ERR_INPUT, "bench: %d steps after %d of warmup", config->steps, config->warmup);
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    fsdp_status status = open_bench(b, settings, config);
    if (status == FSDP_OK)
        status = measure(b, config, start, result);
    if (status == FSDP_OK) {
        compute_figures(b, result);
        status = offload_settle(b->sharded);
        offload_results(b, result);
    }
    if (status == FSDP_OK && config->breakdown)
        status = break_down(b, config, result);
    if (status == FSDP_OK) {
        close_model(b);
        measure_rates(b, (fsdp_dtype)settings->param_dtype, &result->rates);
    } else if (b->world) {
        fsdp_world_abort(b->world);
    }
    close_bench(b);
    return status;
}

fsdp_status fsdp_bench_step(const fsdp_settings *settings, const fsdp_bench_config *config, fsdp_bench_result *result)
{
    fsdp_bench_result done = FSDP_BENCH_RESULT_INIT;
    SIZED_READ(fsdp_bench_config, FSDP_BENCH_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_bench_result, FSDP_BENCH_RESULT_INIT, result);
    FSDP_TRY(settings_check_size(settings));
    fsdp_status status = run_bench(settings, &full, &done);
    sized_write(result, &done, sizeof done);
    return status;
}
