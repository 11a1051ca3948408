/* A model under measurement: opened as a workload or the settings say, stepped on random tokens, closed. Who steps it,
 * and what is measured, is step.c's and profile.c's. */
#include "bench/stepping.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "bench/workload.h"
#include "plan/fit.h"
#include "settings/settings_table.h"

/* A workload has a shape of its own; what would be skipped is refused. */
static fsdp_status check_shape(const fsdp_settings *s, const char *name)
{
    for (const fsdp_flag *flag = fsdp_settings_flags(); flag->name; flag++)
        if (strcmp(flag->group, "Model") == 0 && fsdp_settings_given(s, flag->name))
            return error_set(FSDP_ERR_INPUT, "--%s: the workload %s has a shape of its own; leave one of them out",
                             flag->name, name);
    return FSDP_OK;
}

static fsdp_status choose_workload(stepping *b, const fsdp_settings *s, const char *name)
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

workload stepping_workload(const stepping *b, const fsdp_settings *s)
{
    fsdp_dataset_info data = {.width = b->width};
    workload w = assemble_workload(s, &b->model, &data, NULL, fsdp_world_size(b->world));
    w.batch = b->batch;
    w.backend = fsdp_world_backend(b->world);
    w.snapshot = NULL; /* nothing is saved */
    return w;
}

/* What is measured is what a workload says, not what its size recommends; the rest is as in training. */
static fsdp_status choose_sharding(stepping *b, const fsdp_settings *s, bool named)
{
    fsdp_checkpointing checkpointing = b->sharding.config.checkpointing;
    int64_t n_parameters;
    FSDP_TRY(assemble_count(&b->model, &n_parameters));
    FSDP_TRY(assemble_sharding(s, &b->model, n_parameters, fsdp_world_size(b->world), &b->sharding));
    workload work = stepping_workload(b, s);
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

fsdp_status stepping_open(stepping *b, const fsdp_settings *s, const fsdp_bench_config *c)
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
    b->state_dtype = optimizer.state_dtype;
    size_t n = (size_t)(b->batch * b->width);
    b->ids = malloc(n * sizeof *b->ids);
    b->labels = malloc(n * sizeof *b->labels);
    return b->ids && b->labels ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
}

static fsdp_status run_micro_batch(stepping *b, uint64_t index, bool last)
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

fsdp_status stepping_run(stepping *b, int step, double *loss)
{
    int64_t n = b->micro_batches;
    for (int64_t i = 0; i < n; i++)
        FSDP_TRY(run_micro_batch(b, (uint64_t)(step * n + i), i + 1 == n));
    fsdp_step_report r = {.loss = NAN};
    FSDP_TRY(fsdp_step(b->optimizer, &r));
    *loss = r.loss;
    return FSDP_OK;
}

void stepping_close_model(stepping *b)
{
    fsdp_optimizer_free(b->optimizer);
    fsdp_model_free(b->sharded);
    b->optimizer = NULL;
    b->sharded = NULL;
}

void stepping_close(stepping *b)
{
    free(b->ids);
    free(b->labels);
    stepping_close_model(b);
    fsdp_world_close(b->world);
    overlap_meter_free(b->overlap);
    fsdp_memory_meter_free(b->meter);
    free(b);
}
