/* Whole training steps on random tokens: forward, backward, clipping, AdamW, timed one by one. What a step consists of
 * is heard by parts.c; what it is compared with is measured by peak.c. */
#include <fsdp/bench.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "plan/predict/predict.h"
#include "shard/sharded.h"
#include "settings/settings_table.h"
#include "bench/parts.h"
#include "bench/stepping.h"
#include "bench/samples.h"
#include "bench/waits.h"
#include "comm/emulate/emulate.h"
#include "comm/emulate/links.h"
#include "device/peak.h"

enum { MAX_PART_STEPS = 5, MAX_WAIT_STEPS = 3 };

/* Steps in turns with collectives that take no time, two of each kind: the median of what the second of the first kind
 * took longer is exposed. Turns, because a GPU's clocks drift by more than that. */
static fsdp_status measure_exposed(stepping *b, const fsdp_bench_config *c, double *times, fsdp_bench_result *out)
{
    double loss, took[2];
    out->communication_ms = emulate_take_seconds(b->world->comm) * 1e3 / c->steps;
    for (int i = 0; i < c->steps; i++) {
        for (int without = 0; without < 2; without++) {
            emulate_without_links(b->world->comm, without);
            FSDP_TRY(stepping_run(b, c->warmup + i, &loss)); /* its first gathers began in a step of the other kind */
            double begun = clock_seconds();
            FSDP_TRY(stepping_run(b, c->warmup + i, &loss));
            took[without] = clock_seconds() - begun;
        }
        times[i] = took[0] - took[1];
    }
    emulate_without_links(b->world->comm, false);
    out->exposed_ms = fmax(0, bench_median(times, c->steps) * 1e3);
    return FSDP_OK;
}

static fsdp_status measure(stepping *b, const fsdp_bench_config *c, double start, fsdp_bench_result *out)
{
    double *times = calloc((size_t)c->steps, sizeof *times), loss = 0;
    fsdp_status status = times ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    for (int i = 0; i < c->warmup + c->steps && status == FSDP_OK; i++) {
        double begun = clock_seconds();
        if (i == c->warmup)
            (void)overlap_meter_take(b->overlap);
        if (i == c->warmup && c->emulate)
            (void)emulate_take_seconds(b->world->comm);
        status = stepping_run(b, i, &loss);
        if (i == 0)
            out->first_step_seconds = clock_seconds() - start;
        if (i < 3)
            out->first_losses[i] = loss;
        if (i >= c->warmup)
            times[i - c->warmup] = clock_seconds() - begun;
    }
    if (status == FSDP_OK) {
        out->milliseconds = bench_median(times, c->steps) * 1e3;
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
static fsdp_status break_down(stepping *b, const fsdp_bench_config *c, fsdp_bench_result *out)
{
    bench_parts *parts = NULL;
    int steps = c->steps < MAX_PART_STEPS ? c->steps : MAX_PART_STEPS;
    double loss;
    FSDP_TRY(bench_parts_start(b->world->dev, b->world->compute, &parts));
    fsdp_status status = FSDP_OK;
    double start = clock_seconds();
    for (int i = 0; i < steps && status == FSDP_OK; i++)
        status = stepping_run(b, c->warmup + c->steps + i, &loss);
    if (status == FSDP_OK)
        status = offload_settle(b->sharded); /* listeners change only between steps */
    bench_parts_end(parts, steps, clock_seconds() - start, out);
    return status;
}

/* The same for waits: what times them takes time itself. */
static fsdp_status measure_waits(stepping *b, const fsdp_bench_config *c, fsdp_bench_result *out)
{
    bench_waits *waits = NULL;
    int steps = c->steps < MAX_WAIT_STEPS ? c->steps : MAX_WAIT_STEPS;
    double loss;
    if (fsdp_world_size(b->world) == 1)
        return FSDP_OK;
    FSDP_TRY(offload_settle(b->sharded));
    FSDP_TRY(
        stepping_run(b, c->warmup + c->steps, &loss)); /* those before may have had collectives that took no time */
    FSDP_TRY(offload_settle(b->sharded));
    FSDP_TRY(bench_waits_start(b->world->dev, b->world->compute, &waits));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < steps && status == FSDP_OK; i++)
        status = stepping_run(b, c->warmup + c->steps + i, &loss);
    if (status == FSDP_OK)
        status = offload_settle(b->sharded);
    fsdp_status ended = bench_waits_end(waits, status == FSDP_OK ? steps : 0, out);
    return status == FSDP_OK ? ended : status;
}

static void compute_figures(const stepping *b, fsdp_bench_result *r)
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

static void offload_results(const stepping *b, fsdp_bench_result *r)
{
    offload_figures f = offload_figures_of(b->sharded);
    double n = (double)f.updates;
    if (f.updates == 0)
        return;
    r->host_update_ms = f.span_seconds * 1e3 / n;
    r->host_wait_ms = f.wait_seconds * 1e3 / n;
    r->host_gigabytes = (double)f.parameters * stepping_update_bytes(b) * n / f.update_seconds * 1e-9;
}

/* After the step, when its memory is free again and the device as warm as it was. */
static void measure_rates(const stepping *b, fsdp_dtype dtype, fsdp_bench_rates *r)
{
    device *d = b->world->dev;
    snprintf(r->device, sizeof r->device, "%s", d->description);
    r->dtype = fsdp_dtype_name(dtype);
    r->peak_tflops = peak_tflops(d, dtype);
    if (peak_measure_products(d, b->world->compute, dtype, &r->matrix_tflops) != FSDP_OK)
        r->matrix_tflops = 0; /* the step counts; this is only what it is compared with */
}

/* Of an emulated world, in the place of the profile's. */
static fsdp_status take_links(const char *emulated, kernel_profile *profile, plan_world *world)
{
    links l;
    if (!emulated)
        return FSDP_OK;
    FSDP_TRY(links_parse(emulated, &l));
    world->ranks_per_node = l.per_host;
    profile->links.inside = l.within;
    profile->links.outside = l.n_hosts > 1 ? l.between : profile->links.outside;
    profile->n_collectives = 0; /* of other links */
    return FSDP_OK;
}

/* From the profile that the settings name. */
static fsdp_status predict(const stepping *b, const fsdp_settings *s, const fsdp_bench_config *c, fsdp_bench_result *r)
{
    kernel_profile profile;
    prediction found;
    if (!s->profile)
        return FSDP_OK;
    workload work = stepping_workload(b, s);
    prediction_request request = {.work = &work,
                                  .config = &b->sharding.config,
                                  .world = {b->world->dev, fsdp_world_size(b->world), b->world->job.local_world_size},
                                  .profile = &profile};
    FSDP_TRY(profile_open(s->profile, &profile));
    fsdp_status status = take_links(c->emulate, &profile, &request.world);
    if (status == FSDP_OK)
        status = prediction_make(&request, &found);
    profile_clear(&profile);
    if (status != FSDP_OK)
        return status;
    r->predicted_milliseconds = found.step.seconds * 1e3;
    r->predicted_exposed_ms = found.step.exposed * 1e3;
    return FSDP_OK;
}

static fsdp_status run_bench(const fsdp_settings *settings, const fsdp_bench_config *config, fsdp_bench_result *result)
{
    double start = clock_seconds();
    if (config->steps < 1 || config->warmup < 0)
        return error_set(FSDP_ERR_INPUT, "bench: %d steps after %d of warmup", config->steps, config->warmup);
    stepping *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    fsdp_status status = stepping_open(b, settings, config);
    if (status == FSDP_OK)
        status = measure(b, config, start, result);
    if (status == FSDP_OK) {
        compute_figures(b, result);
        status = predict(b, settings, config, result);
    }
    if (status == FSDP_OK) {
        status = offload_settle(b->sharded);
        offload_results(b, result);
    }
    if (status == FSDP_OK)
        status = measure_waits(b, config, result);
    if (status == FSDP_OK && config->breakdown)
        status = break_down(b, config, result);
    if (status == FSDP_OK) {
        stepping_close_model(b);
        measure_rates(b, (fsdp_dtype)settings->param_dtype, &result->rates);
    } else if (b->world) {
        fsdp_world_abort(b->world);
    }
    stepping_close(b);
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
