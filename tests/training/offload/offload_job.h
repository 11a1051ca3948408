/* A small LLaMA in this process, one rank of a job, for tests that look into an offloaded model step by step. */
#ifndef TESTS_TRAINING_OFFLOAD_OFFLOAD_JOB_H
#define TESTS_TRAINING_OFFLOAD_OFFLOAD_JOB_H

#include <fsdp/fsdp.h>

#include "base/hash.h"
#include "shard/offload/offload.h"

enum { BATCH = 2, WIDTH = 10, VOCABULARY = 40 };

typedef struct training_job {
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
} training_job;

static inline fsdp_status open_job_with(const fsdp_config *given, const fsdp_optimizer_config *oc, training_job *j)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    fsdp_config config = *given;
    fsdp_module *net;
    c.vocabulary = VOCABULARY, c.hidden = 16, c.intermediate = 24, c.layers = 3, c.heads = 2, c.kv_heads = 1;
    c.head_dim = 8, c.positions = WIDTH;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    config.wrap = fsdp_wrap_by_type("llama_block");
    *j = (training_job){NULL, NULL, NULL};
    FSDP_TRY(fsdp_world_open(&wc, &j->world));
    FSDP_TRY(fsdp_llama_new(&c, &net));
    fsdp_status status = fsdp_shard(j->world, net, &config, &j->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    return fsdp_optimizer_new(j->model, oc, &j->optimizer);
}

static inline fsdp_status open_job(const fsdp_config *given, training_job *j)
{
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    oc.clip = 1, oc.weight_decay = 0.1f;
    return open_job_with(given, &oc, j);
}

static inline void close_job(training_job *j)
{
    fsdp_optimizer_free(j->optimizer);
    fsdp_model_free(j->model);
    fsdp_world_close(j->world);
}

static inline fsdp_status micro_batch_of(training_job *j, int step, bool last)
{
    int32_t ids[BATCH * WIDTH], labels[BATCH * WIDTH];
    int64_t shape[] = {BATCH, WIDTH};
    for (int i = 0; i < BATCH * WIDTH; i++) {
        ids[i] = (i * 7 + step * 5 + fsdp_world_rank(j->world)) % VOCABULARY;
        labels[i] = (i * 3 + step) % VOCABULARY;
    }
    fsdp_tape *t = fsdp_begin(j->model);
    fsdp_tensor *x = fsdp_input(t, FSDP_I32, 2, shape, ids), *y = fsdp_input(t, FSDP_I32, 2, shape, labels);
    return fsdp_backward(t, fsdp_llama_loss(fsdp_model_module(j->model), t, x, y), last);
}

static inline fsdp_status backward(training_job *j, int step)
{
    return micro_batch_of(j, step, true);
}

static inline fsdp_status steps(training_job *j, int first, int end)
{
    for (int step = first; step < end; step++) {
        FSDP_TRY(backward(j, step));
        FSDP_TRY(fsdp_step(j->optimizer, NULL));
    }
    return FSDP_OK;
}

static inline fsdp_status hash_of(training_job *j, uint64_t *out)
{
    float values[VOCABULARY * 24];
    *out = HASH_START;
    for (int i = 0; i < j->model->contents.n_parameters; i++) {
        const fsdp_parameter *p = j->model->contents.parameters[i];
        FSDP_TRY(fsdp_parameter_read(j->model, p->name, 0, p->numel, values));
        *out = hash_bytes(*out, values, (size_t)p->numel * sizeof *values);
    }
    return FSDP_OK;
}

#endif
