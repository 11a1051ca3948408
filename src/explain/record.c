/* One rank of the job that is told about: opens a world, trains two steps, and writes down what the hooks say. */
#include "explain/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/optim.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "comm/world.h"
#include "explain/rank.h"

/* Small enough for lines that a person reads, large enough that bytes differ from unit to unit. */
void record_subject(workload *w, fsdp_config *config, fsdp_strategy strategy, int n_ranks)
{
    *w = (workload){
        .model = model_config_default(MODEL_DECODER), .batch = 2, .width = 32, .moments = 2, .backend = "shm"};
    fsdp_decoder_config *c = &w->model.decoder;
    c->vocabulary = 256;
    c->hidden = 64;
    c->intermediate = 192;
    c->layers = 3;
    c->heads = c->kv_heads = 4;
    c->head_dim = 16;
    c->positions = 32;
    *config = (fsdp_config)FSDP_CONFIG_INIT;
    config->strategy = strategy;
    config->wrap = fsdp_wrap_by_type(model_block_type(&w->model));
    if (strategy == FSDP_HYBRID || strategy == FSDP_HYBRID_ZERO2)
        config->shard_group_size = n_ranks / 2;
}

static record_event *next_event(rank_record *r)
{
    int index = atomic_fetch_add(&r->n, 1);
    return index < RECORD_EVENTS ? &r->events[index] : NULL;
}

static void write_down(rank_record *r, record_kind kind, const char *name, const char *detail, int64_t bytes)
{
    record_event *e = next_event(r);
    if (!e)
        return;
    e->kind = kind;
    e->bytes = bytes;
    snprintf(e->name, sizeof e->name, "%s", name ? name : "");
    snprintf(e->detail, sizeof e->detail, "%s", detail ? detail : "");
}

static void on_event(void *context, const hook_event *e)
{
    rank_record *r = context;
    if (e->kind == HOOK_MEMORY)
        atomic_fetch_add(&r->memory, e->bytes);
    else if (e->kind == HOOK_OP && e->moment == HOOK_BEGIN)
        write_down(r, RECORD_OPERATION, e->name, e->detail, 0);
    else if (e->kind == HOOK_UNIT)
        write_down(r, RECORD_UNIT, e->name, e->detail, e->bytes);
    else if (e->kind == HOOK_COLLECTIVE && e->moment == HOOK_BEGIN)
        write_down(r, RECORD_COLLECTIVE, e->name, e->detail, e->bytes);
    else if (e->kind == HOOK_PHASE && e->moment == HOOK_BEGIN && strcmp(e->name, "optimizer") == 0)
        write_down(r, RECORD_OPTIMIZER, NULL, NULL, 0);
}

typedef struct small_job {
    workload work;
    fsdp_config config;
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
} small_job;

static fsdp_status open_job(small_job *j)
{
    fsdp_world_config world = FSDP_WORLD_CONFIG_INIT;
    fsdp_module *net;
    world.device = "cpu";
    world.backend = "shm";
    world.threads = 1;
    world.comm_timeout = 30;
    FSDP_TRY(fsdp_world_open(&world, &j->world));
    FSDP_TRY(model_create(&j->work.model, &net));
    fsdp_status status = fsdp_shard(j->world, net, &j->config, &j->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    return fsdp_optimizer_new(j->model, &adam, &j->optimizer);
}

/* Counting modulo a number that depends on rank and step: something that can be learned. */
static fsdp_status run_step(small_job *j, int step, double *loss)
{
    enum { MOST = 2 * 32 };
    int32_t ids[MOST], labels[MOST];
    int64_t shape[] = {j->work.batch, j->work.width}, n = j->work.batch * j->work.width;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)((i * (1 + fsdp_world_rank(j->world)) + step) % j->work.model.decoder.vocabulary);
        labels[i] = (int32_t)((ids[i] + 1) % j->work.model.decoder.vocabulary);
    }
    fsdp_tape *t = fsdp_begin(j->model);
    fsdp_loss l = fsdp_decoder_loss(fsdp_model_module(j->model), t, fsdp_input(t, FSDP_I32, 2, shape, ids),
                                    fsdp_input(t, FSDP_I32, 2, shape, labels));
    FSDP_TRY(fsdp_backward(t, l, true));
    fsdp_step_report report = {.loss = 0};
    FSDP_TRY(fsdp_step(j->optimizer, &report));
    *loss = report.loss;
    return FSDP_OK;
}

static fsdp_status run_steps(small_job *j, rank_record *r)
{
    FSDP_TRY(open_job(j));
    for (int step = 0; step < RECORD_STEPS; step++) {
        double loss = 0;
        write_down(r, RECORD_STEP, NULL, NULL, step);
        FSDP_TRY(run_step(j, step, &loss));
        record_event *e = next_event(r);
        if (e)
            *e = (record_event){.kind = RECORD_LOSS, .value = loss};
    }
    r->taken = atomic_load(&r->memory);
    return atomic_load(&r->n) <= RECORD_EVENTS
               ? FSDP_OK
               : error_set(FSDP_ERR_STATE, "explain: %d events, room for %d", atomic_load(&r->n), RECORD_EVENTS);
}

fsdp_status rank_run(fsdp_strategy strategy, int rank, int n_ranks, rank_record *r)
{
    small_job j = {.world = NULL};
    record_subject(&j.work, &j.config, strategy, n_ranks);
    FSDP_TRY(hooks_add(on_event, r));
    fsdp_status status = run_steps(&j, r);
    if (status != FSDP_OK)
        fsdp_world_abort(j.world);
    if (status == FSDP_OK) {
        memory_plan plan;
        plan_world world = {j.world->dev, n_ranks, n_ranks};
        status = workload_plan_rank(&j.work, &j.config, &world, rank, &plan);
        r->planned = plan.total + plan.host_scalars;
    }
    fsdp_optimizer_free(j.optimizer);
    fsdp_model_free(j.model);
    fsdp_world_close(j.world);
    hooks_remove(on_event, r);
    return status;
}
