/* A run with the inputs of checkpointed blocks in host memory beside the same run without: small LLaMA and T5 models,
 * several micro-batches a step, an evaluation after each. */
#ifndef TESTS_TRAINING_OFFLOAD_RUN_H
#define TESTS_TRAINING_OFFLOAD_RUN_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "shard/plan/memory_plan.h"
#include "shard/model.h"

enum { SAMPLES = 3, WIDTH = 31, TARGET = 29, VOCABULARY = 61, HIDDEN = 32, LAYERS = 8, STEPS = 3, MICRO = 2 };

/* What the input of a block takes. */
static inline size_t value_bytes(int64_t width, fsdp_dtype dtype)
{
    return round_up((size_t)(SAMPLES * width * HIDDEN) * fsdp_dtype_size(dtype), 256);
}

static inline fsdp_status make_net(bool t5, fsdp_module **out)
{
    if (!t5) {
        fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
        c.vocabulary = VOCABULARY, c.hidden = HIDDEN, c.intermediate = 48, c.layers = LAYERS, c.heads = 4;
        c.kv_heads = 2, c.head_dim = 8, c.positions = WIDTH;
        return fsdp_llama_new(&c, out);
    }
    fsdp_t5_config c = FSDP_T5_CONFIG_INIT;
    c.vocabulary = VOCABULARY, c.hidden = HIDDEN, c.intermediate = 48, c.layers = c.decoder_layers = LAYERS;
    c.heads = 4, c.head_dim = 8, c.dropout = 0.1f, c.gated = true;
    return fsdp_t5_new(&c, out);
}

typedef struct batch {
    int32_t ids[SAMPLES * WIDTH], mask[SAMPLES * WIDTH], decoder[SAMPLES * TARGET], labels[SAMPLES * WIDTH];
} batch;

static inline void fill(batch *b, int number)
{
    for (int i = 0; i < SAMPLES * WIDTH; i++) {
        b->ids[i] = (i * 7 + number * 5) % VOCABULARY;
        b->mask[i] = i % WIDTH < WIDTH - i / WIDTH;
        b->labels[i] = i % 9 ? (i * 11 + number) % VOCABULARY : FSDP_IGNORE;
    }
    for (int i = 0; i < SAMPLES * TARGET; i++)
        b->decoder[i] = (i * 3 + number) % VOCABULARY;
}

typedef struct recording {
    bool t5;
    const batch *data;
} recording;

static inline fsdp_loss record(void *context, fsdp_module *net, fsdp_tape *t)
{
    const recording *r = context;
    int64_t shape[] = {SAMPLES, WIDTH}, target[] = {SAMPLES, TARGET};
    fsdp_tensor *ids = fsdp_input(t, FSDP_I32, 2, shape, r->data->ids);
    if (!r->t5)
        return fsdp_llama_loss(net, t, ids, fsdp_input(t, FSDP_I32, 2, shape, r->data->labels));
    return fsdp_t5_loss(net, t, ids, fsdp_input(t, FSDP_I32, 2, shape, r->data->mask),
                        fsdp_input(t, FSDP_I32, 2, target, r->data->decoder),
                        fsdp_input(t, FSDP_I32, 2, target, r->data->labels));
}

typedef struct outcome {
    uint64_t hash; /* of losses, norms, evaluations and parameters */
    size_t slab, host;
} outcome;

static inline fsdp_status evaluate(fsdp_model *m, recording *r, uint64_t *hash)
{
    float value;
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *loss = fsdp_output(t, record(r, fsdp_model_module(m), t).sum);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(loss, &value, 1));
    *hash = hash_bytes(*hash, &value, sizeof value);
    return FSDP_OK;
}

static inline fsdp_status hash_parameters(fsdp_model *m, uint64_t *hash)
{
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        float *values = malloc((size_t)p->numel * sizeof *values);
        fsdp_status status = values ? fsdp_parameter_read(m, p->name, 0, p->numel, values) : FSDP_ERR_MEMORY;
        if (status == FSDP_OK)
            *hash = hash_bytes(*hash, values, (size_t)p->numel * sizeof *values);
        free(values);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static inline fsdp_status train_steps(fsdp_model *m, fsdp_optimizer *o, recording *r, batch *data, outcome *out)
{
    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < MICRO; micro++) {
            fill(data, step * MICRO + micro);
            fsdp_tape *t = fsdp_begin(m);
            FSDP_TRY(fsdp_backward(t, record(r, fsdp_model_module(m), t), micro + 1 == MICRO));
        }
        fsdp_step_report report;
        FSDP_TRY(fsdp_step(o, &report));
        const double numbers[] = {report.loss, report.gradient_norm};
        out->hash = hash_bytes(out->hash, numbers, sizeof numbers);
        FSDP_TRY(evaluate(m, r, &out->hash));
    }
    out->slab = m->slab.bytes;
    out->host = m->waiting.bytes;
    return hash_parameters(m, &out->hash);
}

static inline outcome train(const char *dev, bool t5, const fsdp_config *config, memory_plan *plan)
{
    batch data;
    recording r = {t5, &data};
    outcome out = {.hash = HASH_START};
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    wc.device = dev, wc.threads = 1;
    assert_int_equal(fsdp_world_open(&wc, &w), FSDP_OK);
    memory_plan_request request = {
        .dev = w->dev, .n_ranks = 1, .ranks_per_node = 1, .moments = 2, .record = record, .context = &r};
    fill(&data, 0);
    assert_int_equal(make_net(t5, &net), FSDP_OK);
    assert_int_equal(memory_plan_make(net, config, &request, plan), FSDP_OK);
    assert_int_equal(make_net(t5, &net), FSDP_OK);
    assert_int_equal(fsdp_shard(w, net, config, &m), FSDP_OK);
    assert_int_equal(fsdp_optimizer_new(m, &oc, &o), FSDP_OK);
    if (train_steps(m, o, &r, &data, &out) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return out;
}

/* LLaMA: the inputs of all blocks but the last two leave. T5: those of all encoder blocks, and of all decoder blocks
 * but the last two; the encoder's output, which every decoder block reads, stays. */
static inline void assert_same_bits_in_less_memory(const char *dev, bool t5, fsdp_config c)
{
    size_t value = value_bytes(WIDTH, c.param_dtype), target = value_bytes(TARGET, c.param_dtype);
    size_t away = t5 ? LAYERS * value + (LAYERS - 2) * target : (LAYERS - 2) * value;
    memory_plan kept_plan, away_plan;
    c.wrap = fsdp_wrap_by_type(t5 ? "t5_block" : "llama_block");
    c.offload_activations = false;
    outcome kept = train(dev, t5, &c, &kept_plan);
    c.offload_activations = true;
    outcome moved = train(dev, t5, &c, &away_plan);
    assert_true(moved.hash == kept.hash);
    assert_int_equal(kept.host, 0);
    assert_int_equal(moved.host, away);
    /* At a time one is used and one is on its way. */
    assert_true(moved.slab + away - 2 * value <= kept.slab);
    assert_int_equal(kept_plan.host_activations, 0);
    assert_int_equal(away_plan.host_activations, moved.host);
    assert_int_equal(away_plan.host, kept_plan.host + moved.host);
    assert_int_equal(kept_plan.activations + kept_plan.workspace, kept.slab);
    assert_int_equal(away_plan.activations + away_plan.workspace, moved.slab);
}

#endif
