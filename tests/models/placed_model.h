/* A model whose parameters have memory, groups packed as their products want them, run directly by a program: what the
 * sharding layer does, at its simplest. */
#ifndef TESTS_MODELS_PLACED_MODEL_H
#define TESTS_MODELS_PLACED_MODEL_H

#include "models/config.h"
#include "nn/module.h"
#include "tensor/rig.h"

typedef struct placed_model {
    fsdp_module *module;
    module_contents contents;
    float *values, *gradients; /* of all parameters */
    int64_t numel;
} placed_model;

/* Members of a group lie behind one another. */
static inline void place_parameters(placed_model *m)
{
    int64_t at = 0;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        for (fsdp_parameter *member = p->group_head == p ? p : NULL; member; member = member->group_next) {
            member->data = m->values + at;
            member->grad = m->gradients + at;
            parameter_initial_values(member, 17, 0, member->numel, member->data);
            at += member->numel;
        }
    }
    assert_int_equal(at, m->numel);
}

static inline void place_model(placed_model *m, const model_config *config)
{
    *m = (placed_model){.numel = 0};
    assert_ok(model_create(config, &m->module));
    assert_ok(module_finish(m->module, &m->contents));
    for (int i = 0; i < m->contents.n_parameters; i++)
        m->numel += m->contents.parameters[i]->numel;
    m->values = rig_memory((size_t)m->numel * sizeof(float));
    m->gradients = rig_memory((size_t)m->numel * sizeof(float));
    place_parameters(m);
    for (int i = 0; i < m->contents.n_buffers; i++) {
        fsdp_buffer *b = m->contents.buffers[i];
        b->data = rig_memory((size_t)b->numel * sizeof(float));
        memcpy(b->data, b->initial, (size_t)b->numel * sizeof(float));
    }
}

static inline void free_placed(placed_model *m)
{
    for (int i = 0; i < m->contents.n_buffers; i++)
        free(m->contents.buffers[i]->data);
    free(m->values);
    free(m->gradients);
    module_contents_free(&m->contents);
    fsdp_module_free(m->module);
}

/* Sizes small enough for tests, odd where the architecture allows it. */
static inline model_config small_llama(void)
{
    model_config c = model_config_default(MODEL_DECODER);
    c.decoder.vocabulary = 65;
    c.decoder.hidden = 24;
    c.decoder.intermediate = 33;
    c.decoder.layers = 3;
    c.decoder.heads = 4;
    c.decoder.kv_heads = 2;
    c.decoder.head_dim = 6;
    c.decoder.positions = 40;
    c.decoder.init_deviation = 0.3f;
    return c;
}

static inline model_config small_t5(void)
{
    model_config c = model_config_default(MODEL_T5);
    c.t5.vocabulary = 65;
    c.t5.hidden = 24;
    c.t5.intermediate = 33;
    c.t5.layers = 2;
    c.t5.decoder_layers = 3;
    c.t5.heads = 3;
    c.t5.head_dim = 5;
    c.t5.buckets = 8;
    c.t5.max_distance = 20;
    return c;
}

static inline model_config small_cnn(void)
{
    model_config c = model_config_default(MODEL_CNN);
    c.cnn.height = 13;
    c.cnn.width = 11;
    c.cnn.first = 5;
    c.cnn.second = 7;
    c.cnn.branch = 3;
    c.cnn.hidden = 9;
    return c;
}

/* A batch for any of the models: 3 samples of 17 tokens (T5: 11 into 17), or 3 images. */
typedef struct small_batch {
    int32_t ids[3 * 17], labels[3 * 17], mask[3 * 11], decoder_ids[3 * 17], classes[3];
    float images[3 * 13 * 11];
} small_batch;

static inline void fill_batch(small_batch *b)
{
    for (int i = 0; i < 3 * 17; i++) {
        b->ids[i] = i * 7 % 65;
        b->decoder_ids[i] = i * 5 % 65;
        b->labels[i] = i % 6 == 5 ? FSDP_IGNORE : i * 11 % 65;
    }
    for (int i = 0; i < 3 * 11; i++)
        b->mask[i] = i % 11 < 8;
    for (int i = 0; i < 3; i++)
        b->classes[i] = 3 * i;
    rng_fill_normal(rng_key_make(12), 0, 3 * 13 * 11, 0, 1, b->images);
}

static inline fsdp_loss record_small_loss(fsdp_module *m, model_type type, fsdp_tape *t, const small_batch *b)
{
    if (type == MODEL_DECODER)
        return fsdp_llama_loss(m, t, fsdp_input(t, FSDP_I32, DIMS(3, 17), b->ids),
                               fsdp_input(t, FSDP_I32, DIMS(3, 17), b->labels));
    if (type == MODEL_T5)
        return fsdp_t5_loss(
            m, t, fsdp_input(t, FSDP_I32, DIMS(3, 11), b->ids), fsdp_input(t, FSDP_I32, DIMS(3, 11), b->mask),
            fsdp_input(t, FSDP_I32, DIMS(3, 17), b->decoder_ids), fsdp_input(t, FSDP_I32, DIMS(3, 17), b->labels));
    return fsdp_classifier_loss(m, t, fsdp_input(t, FSDP_F32, DIMS(3, 1, 13, 11), b->images),
                                fsdp_input(t, FSDP_I32, DIMS(3), b->classes));
}

#endif
