/* The run itself, and the forking of its ranks. */
#include "training/support_training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/record/hooks.h"
#include "base/rng.h"
#include "shard/plan/memory_plan.h"
#include "shard/model.h"
#include "shard/recording_device.h"
#include "training/support_ranks.h"

enum { LENGTH = 12, TARGET = 7, VOCABULARY = 61, IMAGE = 10 };

training training_default(training_model model, int ranks)
{
    training t = {.model = model, .ranks = ranks, .config = FSDP_CONFIG_INIT, .micro_batches = 2, .samples = 24};
    t.config.seed = 7;
    return t;
}

static fsdp_status make_bare(training *t, fsdp_module **out)
{
    if (t->model == TRAIN_LLAMA) {
        fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
        c.vocabulary = VOCABULARY, c.hidden = 24, c.intermediate = 40, c.layers = 3, c.heads = 4, c.kv_heads = 2,
        c.head_dim = 6;
        c.positions = LENGTH, c.tied = true;
        if (t->config.fp8 || t->sixteens) /* 8-bit products want multiples of 16 */
            c.hidden = 32, c.intermediate = 48, c.head_dim = 8;
        t->config.wrap = fsdp_wrap_by_type("llama_block");
        return fsdp_llama_new(&c, out);
    }
    if (t->model == TRAIN_T5) {
        fsdp_t5_config c = FSDP_T5_CONFIG_INIT;
        c.vocabulary = VOCABULARY, c.hidden = 24, c.intermediate = 40, c.layers = c.decoder_layers = 2, c.heads = 4,
        c.head_dim = 6;
        c.dropout = 0.1f, c.gated = true, c.tied = false, c.scale_decoder_outputs = false;
        t->config.wrap = fsdp_wrap_by_type("t5_block");
        return fsdp_t5_new(&c, out);
    }
    fsdp_cnn_config c = FSDP_CNN_CONFIG_INIT;
    c.height = c.width = IMAGE;
    t->config.wrap = fsdp_wrap_by_size(200);
    return fsdp_cnn_new(&c, out);
}

static fsdp_status make_net(training *t, fsdp_module **out)
{
    FSDP_TRY(make_bare(t, out));
    return t->lora ? fsdp_lora(*out, t->lora) : FSDP_OK;
}

/* Sample `index` of the fixed data, any part of it: a function of its index alone. */
static int32_t token(int64_t index, int64_t position)
{
    uint32_t word = rng_word(rng_key_make(99), (uint64_t)index, (uint64_t)position);
    return (int32_t)((word % 7 + (uint32_t)position * 3 + (uint32_t)index) % VOCABULARY);
}

typedef struct samples {
    int32_t ids[24 * LENGTH], labels[24 * LENGTH], mask[24 * LENGTH], decoder[24 * LENGTH];
    int32_t documents[24 * LENGTH], positions[24 * LENGTH];
    float images[24 * IMAGE * IMAGE];
} samples;

/* The last two tokens of a sample in four are padding. */
static void fill_documents(samples *s, int64_t index, int row)
{
    for (int k = 0, position = 0, number = 0; k < LENGTH; k++, position++) {
        int at = row * LENGTH + k;
        bool padding = index % 4 == 0 && k >= LENGTH - 2,
             begins = rng_word(rng_key_make(3), (uint64_t)index, (uint64_t)k) % 4 == 0;
        if (k > 0 && begins)
            position = 0, number++;
        s->documents[at] = padding ? -1 : number;
        s->positions[at] = padding ? 0 : position;
        if (k > 0 && (padding || begins))
            s->labels[at - 1] = FSDP_IGNORE;
        if (padding)
            s->labels[at] = FSDP_IGNORE;
    }
}

static void fill_samples(const training *t, samples *s, int64_t first, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t index = first + i;
        for (int k = 0; k < LENGTH; k++) {
            s->ids[i * LENGTH + k] = token(index, k);
            s->mask[i * LENGTH + k] = k < LENGTH - index % 4;
            bool counts = t->model == TRAIN_LLAMA ? (index + k) % 5 != 0 : k < TARGET - index % 3;
            int at = t->model == TRAIN_LLAMA ? i * LENGTH + k : i * TARGET + k;
            if (t->model == TRAIN_T5 && k >= TARGET)
                continue;
            s->labels[at] = counts ? token(index, k + 1) : FSDP_IGNORE;
            s->decoder[at] = k == 0 ? 0 : token(index, k);
        }
        if (t->packed)
            fill_documents(s, index, i);
        if (t->model != TRAIN_CNN)
            continue;
        s->labels[i] = (int32_t)(index % 10);
        for (int k = 0; k < IMAGE * IMAGE; k++)
            s->images[i * IMAGE * IMAGE + k] =
                rng_to_uniform(rng_word(rng_key_make(5), (uint64_t)index, (uint64_t)k)) + (float)(k % 10 == index % 10);
    }
}

static fsdp_loss record(const training *t, fsdp_module *net, fsdp_tape *tape, const samples *s, int64_t n)
{
    int64_t shape[] = {n, LENGTH}, target[] = {n, TARGET}, images[] = {n, 1, IMAGE, IMAGE};
    if (t->model == TRAIN_CNN)
        return fsdp_classifier_loss(
            net, tape, fsdp_cast(tape, fsdp_input(tape, FSDP_F32, 4, images, s->images), t->config.param_dtype),
            fsdp_input(tape, FSDP_I32, 1, &n, s->labels));
    fsdp_tensor *ids = fsdp_input(tape, FSDP_I32, 2, shape, s->ids);
    if (t->packed)
        return fsdp_decoder_loss_packed(net, tape, ids, fsdp_input(tape, FSDP_I32, 2, shape, s->labels),
                                        fsdp_input(tape, FSDP_I32, 2, shape, s->documents),
                                        fsdp_input(tape, FSDP_I32, 2, shape, s->positions));
    if (t->model == TRAIN_LLAMA)
        return fsdp_llama_loss(net, tape, ids, fsdp_input(tape, FSDP_I32, 2, shape, s->labels));
    return fsdp_t5_loss(net, tape, ids, fsdp_input(tape, FSDP_I32, 2, shape, s->mask),
                        fsdp_input(tape, FSDP_I32, 2, target, s->decoder),
                        fsdp_input(tape, FSDP_I32, 2, target, s->labels));
}

static fsdp_status hash_parameters(fsdp_model *m, uint64_t *out)
{
    *out = HASH_START;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        float *values = malloc((size_t)p->numel * sizeof *values);
        FSDP_TRY(fsdp_parameter_read(m, p->name, 0, p->numel, values));
        *out = hash_bytes(*out, values, (size_t)p->numel * sizeof *values);
        free(values);
    }
    for (int i = 0; i < m->contents.n_buffers; i++) {
        size_t bytes = (size_t)m->contents.buffers[i]->numel * sizeof(float);
        float *values = malloc(bytes);
        FSDP_TRY(model_fetch(m, values, m->contents.buffers[i]->data, bytes));
        *out = hash_bytes(*out, values, bytes);
        free(values);
    }
    return FSDP_OK;
}

typedef struct memory_meter {
    int64_t now, most;
} memory_meter;

static void count_memory(void *context, const hook_event *e)
{
    memory_meter *meter = context;
    if (e->kind != HOOK_MEMORY)
        return;
    meter->now += e->bytes;
    meter->most = meter->now > meter->most ? meter->now : meter->most;
}

static void listen(void *context, const hook_event *e)
{
    (void)context;
    (void)e;
}

typedef struct planned_batch {
    const training *t;
    samples s;
} planned_batch;

static fsdp_loss record_planned(void *context, fsdp_module *net, fsdp_tape *tape)
{
    const planned_batch *b = context;
    return record(b->t, net, tape, &b->s, b->t->samples / b->t->ranks);
}

static fsdp_status plan(training *t, fsdp_world *w, training_result *out)
{
    memory_plan p;
    fsdp_module *net;
    planned_batch *b = calloc(1, sizeof *b);
    b->t = t;
    memory_plan_request request = {.dev = w->dev,
                                   .n_ranks = t->ranks,
                                   .ranks_per_node = t->ranks,
                                   .rank = fsdp_world_rank(w),
                                   .backend = fsdp_world_backend(w),
                                   .comm_memory = t->comm_memory,
                                   .accumulation = t->reduce_accumulation,
                                   .moments = (t->optimizer == FSDP_ADAFACTOR ? 1 : 2) + (t->average > 0),
                                   .optimizer = t->optimizer,
                                   .half_moments = t->state_dtype == FSDP_BF16 ? 2 : 0,
                                   .micro_batches = t->micro_batches,
                                   .record = record_planned,
                                   .context = b};
    fsdp_status status = make_net(t, &net);
    if (status == FSDP_OK)
        status = memory_plan_make(net, &t->config, &request, &p);
    free(b);
    FSDP_TRY(status);
    out->planned_gathered = p.gathered_bytes;
    out->planned_reduced = p.reduced_bytes;
    out->planned_replica = p.replica_bytes;
    out->planned_update = p.update_bytes;
    out->planned_memory = (int64_t)(p.total + p.host);
    return FSDP_OK;
}

static int64_t received_in(const comm_group *g)
{
    return g ? comm_group_bytes(g) : 0;
}

static fsdp_status train_steps(const training *t, fsdp_model *m, fsdp_optimizer *o, int rank, training_result *out)
{
    fsdp_lr_config lr = FSDP_LR_CONFIG_INIT;
    samples *s = calloc(1, sizeof *s);
    int share = t->samples / t->ranks;
    lr.decay = FSDP_DECAY_COSINE, lr.lr = 0.01, lr.min_lr = 0.001, lr.warmup = 5, lr.total = TRAINING_STEPS;
    fsdp_status status = FSDP_OK;
    for (int step = 0; step < TRAINING_STEPS && status == FSDP_OK; step++) {
        for (int micro = 0; micro < t->micro_batches && status == FSDP_OK; micro++) {
            int64_t first = ((int64_t)step * t->micro_batches + micro) * t->samples + (int64_t)rank * share;
            fill_samples(t, s, first, share);
            fsdp_set_position(m, first);
            fsdp_tape *tape = fsdp_begin(m);
            status =
                fsdp_backward(tape, record(t, fsdp_model_module(m), tape, s, share), micro + 1 == t->micro_batches);
        }
        fsdp_step_report report;
        fsdp_optimizer_set_lr(o, (float)fsdp_lr_at(&lr, step));
        if (status == FSDP_OK)
            status = fsdp_step(o, &report);
        out->loss[step] = report.loss;
        out->norm[step] = report.gradient_norm;
        if (step == 0) { /* ranks agree on things in their first step */
            out->shard_bytes = -received_in(m->shardings[0].shard_group);
            out->replica_bytes = -received_in(m->shardings[0].replica_group);
        }
    }
    out->shard_bytes += received_in(m->shardings[0].shard_group);
    out->replica_bytes += received_in(m->shardings[0].replica_group);
    free(s);
    return status;
}

/* The average in the place of the weights, which come back as they were. */
static fsdp_status hash_average(fsdp_model *m, fsdp_optimizer *o, training_result *out)
{
    uint64_t again = 0;
    FSDP_TRY(fsdp_optimizer_swap_average(o));
    FSDP_TRY(hash_parameters(m, &out->average_hash));
    if (fsdp_step(o, NULL) == FSDP_OK)
        return error_set(FSDP_ERR_STATE, "a step was made with the average in the place of the weights");
    FSDP_TRY(fsdp_optimizer_swap_average(o));
    FSDP_TRY(hash_parameters(m, &again));
    return again == out->hash ? FSDP_OK : error_set(FSDP_ERR_STATE, "the weights did not come back");
}

static bool records(const training *t)
{
    return t->device && strcmp(t->device, "recording") == 0;
}

static fsdp_status open_world(const training *t, fsdp_world **out)
{
    fsdp_world_config c = FSDP_WORLD_CONFIG_INIT;
    c.device = t->device ? t->device : "cpu", c.threads = 1, c.comm_timeout = 30, c.backend = t->backend,
    c.comm_thread = t->comm_thread, c.comm_ctas = t->comm_ctas, c.comm_memory = t->comm_memory;
    c.reduce_accumulation = t->reduce_accumulation;
    if (!records(t))
        return fsdp_world_open(&c, out);
    FSDP_TRY(recording_world_open(&c, out));
    if (t->split_masters)
        recording_split_masters((*out)->dev);
    return FSDP_OK;
}

fsdp_status training_run_here(const training *given, training_result *out)
{
    training t = *given;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w = NULL;
    fsdp_module *net = NULL;
    fsdp_model *m = NULL;
    fsdp_optimizer *o = NULL;
    memory_meter meter = {0, 0};
    oc.weight_decay = 0.1f, oc.clip = 1, oc.beta2 = 0.95f;
    fsdp_status status;
    TRY_OR(done, hooks_add_kind(HOOK_MEMORY, count_memory, &meter)); /* all kinds would keep work from being recorded */
    if (t.plainly)
        TRY_OR(done, hooks_add_kind(HOOK_OP, listen, NULL));
    TRY_OR(done, open_world(&t, &w));
    TRY_OR(done, plan(&t, w, out));
    TRY_OR(done, make_net(&t, &net));
    TRY_OR(done, fsdp_shard(w, net, &t.config, &m));
    oc.kind = t.optimizer;
    oc.groups = t.groups;
    oc.n_groups = t.n_groups;
    oc.average = t.average;
    oc.state_dtype = t.state_dtype;
    TRY_OR(done, fsdp_optimizer_new(m, &oc, &o));
    TRY_OR(done, train_steps(&t, m, o, fsdp_world_rank(w), out));
    out->memory = meter.most;
    out->launches = records(&t) ? recording_device_of(w->dev)->launches : 0;
    TRY_OR(done, hash_parameters(m, &out->hash));
    if (t.average > 0)
        TRY_OR(done, hash_average(m, o, out));
done:
    if (status != FSDP_OK && w)
        fsdp_world_abort(w);
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    hooks_remove(count_memory, &meter);
    hooks_remove(listen, NULL);
    return status;
}

typedef struct forked {
    const training *t;
    training_result *results; /* shared, one a rank */
} forked;

static fsdp_status run_rank(int rank, void *context)
{
    const forked *f = context;
    if (f->t->device && !records(f->t))
        forked_rank_share_gpu(rank);
    return training_run_here(f->t, &f->results[rank]);
}

bool training_run_all(const training *t, training_result *all)
{
    size_t bytes = sizeof(training_result) * TRAINING_MAX_RANKS;
    training_result *results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED)
        return false;
    forked f = {t, results};
    bool good = ranks_run(t->ranks, run_rank, &f);
    for (int r = 1; r < t->ranks; r++)
        good &= results[r].hash == results[0].hash;
    memcpy(all, results, sizeof *all * (size_t)t->ranks);
    munmap(results, bytes);
    return good;
}

bool training_run(const training *t, training_result *out)
{
    training_result all[TRAINING_MAX_RANKS];
    bool good = training_run_all(t, all);
    *out = all[0];
    return good;
}
