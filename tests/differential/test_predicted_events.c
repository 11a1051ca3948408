/* The step that a prediction is made of, against one that ran: random models, strategies and optimizers. The script has
 * the run's collectives with their units and bytes and its copies to and from host memory, in the same order, and calls
 * the same kernels on the same shapes as often; the plan's bytes are those that were received. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "differential/support_case.h"
#include "optim/update.h"
#include "plan/workload.h"
#include "shard/model.h"
#include "support/forked_ranks.h"

enum { STEPS = 3, EVENTS = 4096, WORKS = 1 << 14, TOKENS = 64 }; /* of the last step */

/* ---- A case ---- */

typedef struct training_job {
    uint64_t seed;
    workload work;
    fsdp_config config;
    fsdp_optimizer_config optimizer;
    int64_t micro_batches;
} training_job;

static void draw_model(workload *w, uint64_t *s)
{
    *w = (workload){.model = model_config_default(MODEL_DECODER), .batch = 1 + draw(s, 2), .width = 8};
    fsdp_decoder_config *c = &w->model.decoder;
    c->vocabulary = 40 + draw(s, 30), c->hidden = 16 + 8 * draw(s, 3), c->intermediate = 24 + 8 * draw(s, 4);
    c->layers = 1 + draw(s, 4), c->heads = 4, c->kv_heads = chance(s, 50) ? 2 : 4;
    c->head_dim = 4, c->positions = 16, c->tied = chance(s, 40);
    if (chance(s, 30)) {
        w->model.lora = (fsdp_lora_config)FSDP_LORA_CONFIG_INIT;
        w->model.lora.rank = 2 + draw(s, 3);
        strcpy(w->model.lora.targets, chance(s, 50) ? "all-linear" : "q_proj,v_proj");
    }
}

static void draw_optimizer(training_job *j, uint64_t *s)
{
    static const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_ADAMW, FSDP_SGD, FSDP_MUON, FSDP_ADAFACTOR};
    fsdp_optimizer_config *o = &j->optimizer;
    *o = (fsdp_optimizer_config)FSDP_OPTIMIZER_CONFIG_INIT;
    o->kind = kinds[draw(s, 5)];
    o->momentum = chance(s, 50) ? 0.9f : 0;
    o->average = chance(s, 20) && o->kind != FSDP_SGD ? 0.9f : 0;
    o->weight_decay = 0.1f;
    if (o->kind == FSDP_ADAMW && chance(s, 40))
        o->state_dtype = FSDP_BF16;
    if (o->kind == FSDP_ADAMW && j->micro_batches == 1 && chance(s, 40))
        j->config.gradient_dtype = j->config.reduce_dtype = FSDP_BF16; /* one would round the other */
    j->work.optimizer = o->kind;
    j->work.moments = update_kept(o);
    j->work.half_moments = update_halves(o);
}

static void draw_config(training_job *j, int ranks, uint64_t *s)
{
    fsdp_config *c = &j->config;
    *c = (fsdp_config)FSDP_CONFIG_INIT;
    c->strategy = (fsdp_strategy)draw(s, ranks == 4 ? FSDP_STRATEGY_COUNT : FSDP_HYBRID);
    c->shard_group_size = c->strategy >= FSDP_HYBRID ? 2 : 0;
    c->wrap = chance(s, 60) ? fsdp_wrap_by_type("llama_block") : fsdp_wrap_by_size(1500);
    c->param_dtype = chance(s, 50) ? FSDP_BF16 : FSDP_F32;
    c->reduce_dtype = c->param_dtype == FSDP_BF16 && chance(s, 30) ? FSDP_BF16 : FSDP_F32;
    c->checkpointing = (fsdp_checkpointing)draw(s, 3);
    c->recompute_cheap = chance(s, 30);
    c->gather_buffers = 1 + draw(s, 3);
    c->forward_prefetch = chance(s, 60);
    c->backward_prefetch = (fsdp_prefetch)draw(s, 3);
    c->sync_each_micro_batch = chance(s, 50);
    c->int8_frozen = j->work.model.lora.rank > 0 && chance(s, 40);
}

/* Layers in 8 bits, with draws of their own: other jobs stay what they were. */
static void draw_fp8(training_job *j)
{
    uint64_t s = j->seed * 0x9e3779b97f4a7c15u + 3;
    fsdp_decoder_config *c = &j->work.model.decoder;
    if (!chance(&s, 30))
        return;
    c->hidden = chance(&s, 50) ? 16 : 32;
    c->intermediate = chance(&s, 50) ? 32 : 48;
    j->config.fp8 = FSDP_FP8_HYBRID;
    j->config.fp8_weights = (fsdp_fp8_weights)draw(&s, 3);
}

static training_job draw_job(uint64_t seed, int ranks)
{
    uint64_t s = seed * 0x2545f4914f6cdd1du + 7;
    training_job j = {.seed = seed, .micro_batches = 1 + draw(&s, 4)};
    draw_model(&j.work, &s);
    j.work.micro_batches = j.micro_batches;
    draw_config(&j, ranks, &s);
    draw_optimizer(&j, &s);
    bool stays = j.optimizer.kind == FSDP_MUON || j.optimizer.kind == FSDP_ADAFACTOR;
    j.config.cpu_offload = !stays && chance(&s, 40);
    j.config.cpu_offload_split = chance(&s, 40);
    j.config.cpu_offload_ahead = chance(&s, 40);
    draw_fp8(&j);
    return j;
}

/* ---- What happens, as lines ---- */

typedef struct happening {
    char text[96];
} happening;

typedef struct happenings {
    happening list[EVENTS];
    int n;
} happenings;

static void add(happenings *h, const char *name, const char *subject, double bytes)
{
    if (h->n < EVENTS)
        snprintf(h->list[h->n++].text, sizeof h->list[0].text, "%s %.40s %.0f", name, subject, bytes);
}

static void expect_item(happenings *h, const script_item *item, const fsdp_model *m)
{
    static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce"};
    const char *subject = item->unit < 0 ? "-" : m->layout->units[item->unit].name;
    if (item->kind == SCRIPT_COLLECTIVE)
        add(h, names[item->collective], subject, item->received);
    else if (item->kind == SCRIPT_OUT && item->unit >= 0)
        add(h, "GRADIENT TO HOST", subject, 0);
    else if (item->kind == SCRIPT_IN && item->unit >= 0)
        add(h, "SUM TO DEVICE", subject, 0);
}

/* ---- What happened ---- */

typedef struct listening {
    happenings heard;
    uint64_t read; /* events of the ring */
    const fsdp_model *m;
    int64_t received; /* of units, and in the update */
    bool active;
    pthread_t owner;
    kernel_work works[WORKS];
    int n_works;
} listening;

static listening *ear;

static bool is_unit(const fsdp_model *m, const char *name)
{
    for (int i = 0; i < m->layout->n_units; i++)
        if (strcmp(m->layout->units[i].name, name) == 0)
            return true;
    return false;
}

/* Calls of collectives that the ring has kept since. */
static void read_ring(listening *l)
{
    ring *r = ring_own();
    for (uint64_t end = atomic_load(&r->next); l->read < end; l->read++) {
        ring_event e;
        uint64_t words[RING_WORDS];
        for (int i = 0; i < RING_WORDS; i++)
            words[i] = atomic_load(&r->events[l->read % RING_EVENTS][i]);
        memcpy(&e, words, sizeof e);
        if (!l->active || e.kind != HOOK_COLLECTIVE || e.moment != HOOK_INSTANT)
            continue;
        bool of_unit = is_unit(l->m, e.subject);
        l->received += strcmp(e.subject, "gradient norm and loss") == 0 ? 0 : e.bytes; /* a plan leaves it out */
        add(&l->heard, e.name, of_unit ? e.subject : "-", (double)e.bytes);
    }
}

static void hear_unit(void *context, const hook_event *e)
{
    listening *l = context;
    if (!l->active || e->lane != 2)
        return;
    read_ring(l); /* what was called before comes first */
    add(&l->heard, e->detail, e->name, 0);
}

static const kernel_table *real;

#define HEARD(entry, args)                                                                                             \
    static fsdp_status hear_##entry(stream *s, const args *a)                                                          \
    {                                                                                                                  \
        if (ear->active && pthread_equal(ear->owner, pthread_self()) && ear->n_works < WORKS)                          \
            kernel_work_of(KERNEL_##entry, a, &ear->works[ear->n_works++]);                                            \
        return real->entry(s, a);                                                                                      \
    }
KERNELS(HEARD, HEARD)
#define REPLACE(entry, args) table.entry = hear_##entry;

static void hear_kernels(device *d)
{
    static kernel_table table;
    real = d->kernels;
    table = *real;
    KERNELS(REPLACE, REPLACE)
    d->kernels = &table;
}

/* ---- The run ---- */

static fsdp_status run_micro_batch(fsdp_model *m, const training_job *j, int64_t index)
{
    int32_t ids[TOKENS], labels[TOKENS];
    const workload *w = &j->work;
    int64_t shape[] = {w->batch, w->width};
    for (int i = 0; i < TOKENS; i++)
        ids[i] = labels[i] = i % (int)w->model.decoder.vocabulary;
    fsdp_tape *t = fsdp_begin(m);
    fsdp_loss loss = fsdp_decoder_loss(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, ids),
                                       fsdp_input(t, FSDP_I32, 2, shape, labels));
    return fsdp_backward(t, loss, index + 1 == j->micro_batches);
}

static fsdp_status run_steps(fsdp_model *m, fsdp_optimizer *o, const training_job *j, listening *l)
{
    for (int step = 0; step < STEPS; step++) {
        read_ring(l);
        l->active = step + 1 == STEPS;
        for (int64_t i = 0; i < j->micro_batches; i++)
            FSDP_TRY(run_micro_batch(m, j, i));
        FSDP_TRY(fsdp_step(o, NULL));
    }
    read_ring(l);
    l->active = false;
    return FSDP_OK;
}

static fsdp_status run_job(fsdp_world *w, const training_job *j, fsdp_model **m, listening *l)
{
    fsdp_module *net;
    fsdp_optimizer *o = NULL;
    FSDP_TRY(model_create(&j->work.model, &net));
    FSDP_TRY(fsdp_shard(w, net, &j->config, m));
    FSDP_TRY(fsdp_optimizer_new(*m, &j->optimizer, &o));
    l->m = *m;
    l->owner = pthread_self();
    fsdp_status status = hooks_add_kind(HOOK_UNIT, hear_unit, l);
    if (status == FSDP_OK)
        status = run_steps(*m, o, j, l);
    fsdp_optimizer_free(o);
    hooks_remove(hear_unit, l);
    return status;
}

/* ---- Comparing ---- */

static fsdp_status differ(const training_job *j, const char *what, const char *predicted, const char *happened)
{
    const fsdp_config *c = &j->config;
    return error_set(FSDP_ERR_STATE,
                     "seed %llu: %s: predicted \"%s\", happened \"%s\" (%s, %lld micro-batches, sync %d, checkpointing "
                     "%d, offload %d, ahead %d, optimizer %d, params %s, reduction %s, gradients %s, lora %d, int8 %d)",
                     (unsigned long long)j->seed, what, predicted, happened, fsdp_strategy_name(c->strategy),
                     (long long)j->micro_batches, c->sync_each_micro_batch, c->checkpointing, c->cpu_offload,
                     c->cpu_offload_ahead, j->optimizer.kind, fsdp_dtype_name(c->param_dtype),
                     fsdp_dtype_name(c->reduce_dtype), fsdp_dtype_name(c->gradient_dtype), (int)j->work.model.lora.rank,
                     c->int8_frozen);
}

static fsdp_status compare_order(const training_job *j, const plan_script *s, const listening *l)
{
    happenings *wanted = calloc(1, sizeof *wanted);
    fsdp_status status = FSDP_OK;
    for (int k = 0; k < s->n_sections; k++)
        for (int64_t n = 0; n < s->sections[k].times; n++)
            for (int i = s->sections[k].first; i < s->sections[k].end; i++)
                expect_item(wanted, &s->items[i], l->m);
    for (int i = 0; (i < wanted->n || i < l->heard.n) && status == FSDP_OK; i++) {
        const char *a = i < wanted->n ? wanted->list[i].text : "nothing",
                   *b = i < l->heard.n ? l->heard.list[i].text : "nothing";
        char place[32];
        snprintf(place, sizeof place, "event %d", i);
        if (strcmp(a, b) != 0)
            status = differ(j, place, a, b);
    }
    free(wanted);
    return status;
}

static int64_t times_in(const plan_script *s, const kernel_work *w)
{
    int64_t n = 0;
    for (int k = 0; k < s->n_sections; k++)
        for (int i = s->sections[k].first; i < s->sections[k].end; i++)
            if (s->items[i].kind == SCRIPT_WORK && kernel_work_same(&s->works[s->items[i].work], w))
                n += s->sections[k].times;
    return n;
}

static int64_t times_heard(const listening *l, const kernel_work *w)
{
    int64_t n = 0;
    for (int i = 0; i < l->n_works; i++)
        n += kernel_work_same(&l->works[i], w);
    return n;
}

static fsdp_status compare_work(const training_job *j, const plan_script *s, const listening *l, const kernel_work *w)
{
    char what[96], a[32], b[32];
    int64_t predicted = times_in(s, w), happened = times_heard(l, w);
    if (predicted == happened || w->kernel == KERNEL_COPY)
        return FSDP_OK;
    snprintf(what, sizeof what, "%s %s variant %u of %lld x %lld x %lld", kernel_name(w->kernel),
             fsdp_dtype_name(w->dtype), w->variant, (long long)w->shape[0], (long long)w->shape[1],
             (long long)w->shape[2]);
    snprintf(a, sizeof a, "%lld times", (long long)predicted);
    snprintf(b, sizeof b, "%lld times", (long long)happened);
    return differ(j, what, a, b);
}

static fsdp_status compare_kernels(const training_job *j, const plan_script *s, const listening *l)
{
    for (int i = 0; i < s->n_works; i++)
        FSDP_TRY(compare_work(j, s, l, &s->works[i]));
    for (int i = 0; i < l->n_works; i++)
        FSDP_TRY(compare_work(j, s, l, &l->works[i]));
    return FSDP_OK;
}

static fsdp_status compare_bytes(const training_job *j, const memory_plan *p, const listening *l)
{
    char a[32], b[32];
    int64_t planned = p->gathered_bytes + p->reduced_bytes + p->replica_bytes + p->update_bytes;
    if (j->micro_batches > 1 || planned == l->received) /* a plan counts those of one */
        return FSDP_OK;
    snprintf(a, sizeof a, "%lld", (long long)planned);
    snprintf(b, sizeof b, "%lld", (long long)l->received);
    return differ(j, "bytes received", a, b);
}

static fsdp_status compare(fsdp_world *w, const training_job *j, const listening *l)
{
    plan_world world = {w->dev, fsdp_world_size(w), w->job.local_world_size};
    memory_plan plan;
    plan_script s;
    FSDP_TRY(workload_script(&j->work, &j->config, &world, &plan, &s));
    fsdp_status status = compare_order(j, &s, l);
    if (status == FSDP_OK)
        status = compare_kernels(j, &s, l);
    if (status == FSDP_OK)
        status = compare_bytes(j, &plan, l);
    plan_script_clear(&s);
    return status;
}

static int cases = 40;
static uint64_t first_seed = 1;

static fsdp_status run_cases(int rank, void *context)
{
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    fsdp_world *w;
    config.device = "cpu";
    config.threads = 1;
    (void)context;
    FSDP_TRY(fsdp_world_open(&config, &w));
    ear = calloc(1, sizeof *ear);
    hear_kernels(w->dev);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < cases && status == FSDP_OK; i++) {
        training_job j = draw_job(first_seed + (uint64_t)i, fsdp_world_size(w));
        fsdp_model *m = NULL;
        uint64_t read = ear->read;
        *ear = (listening){.read = read};
        status = run_job(w, &j, &m, ear);
        if (status == FSDP_OK && rank == 0) /* a plan is of the rank that holds most, the first of equals */
            status = compare(w, &j, ear);
        fsdp_model_free(m);
    }
    if (status != FSDP_OK)
        fsdp_world_abort(w);
    w->dev->kernels = real;
    fsdp_world_close(w);
    free(ear);
    return status;
}

static void one_rank_does_what_was_predicted(void **state)
{
    (void)state;
    assert_true(forked_ranks_run(1, run_cases, NULL));
}

static void two_ranks_do_what_was_predicted(void **state)
{
    (void)state;
    assert_true(forked_ranks_run(2, run_cases, NULL));
}

static void four_ranks_do_what_was_predicted(void **state)
{
    (void)state;
    assert_true(forked_ranks_run(4, run_cases, NULL));
}

/* `test_predicted_events SEED CASES` looks further. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_does_what_was_predicted),
        cmocka_unit_test(two_ranks_do_what_was_predicted),
        cmocka_unit_test(four_ranks_do_what_was_predicted),
    };
    if (argc > 2) {
        first_seed = strtoull(argv[1], NULL, 10);
        cases = atoi(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
