/* The net as modules, the program as calls of the public API. */
#include "differential/support_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "base/file.h"
#include "differential/support_shake.h"
#include "support/draw.h"

/* ---- The net ---- */

typedef struct block {
    fsdp_module base;
    const test_case *c;
    int index;
    fsdp_module *norm, *up, *down;
} block;

typedef struct net {
    fsdp_module base;
    fsdp_module *embed, *blocks[MAX_BLOCKS], *norm, *head, *second;
} net;

static fsdp_tensor *act(fsdp_tape *t, block_kind kind, fsdp_tensor *x)
{
    switch (kind) {
    case BLOCK_GELU:
        return fsdp_gelu(t, x);
    case BLOCK_SILU:
        return fsdp_silu(t, x);
    case BLOCK_RELU:
        return fsdp_relu(t, x);
    default:
        return fsdp_swiglu(t, x);
    }
}

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    block *b = (block *)self;
    fsdp_tensor *h = fsdp_keep(t, fsdp_call(b->up, t, fsdp_call(b->norm, t, x)));
    h = fsdp_dropout(t, act(t, b->c->kinds[b->index], h), b->c->dropout);
    if (b->c->bias || b->index % 2)
        return fsdp_add(t, x, fsdp_call(b->down, t, h));
    return fsdp_linear_add(t, h, fsdp_use(t, fsdp_module_weight(b->down)), NULL, x);
}

static const fsdp_module_class block_class = {.type = "block", .forward = block_forward};
static const fsdp_module_class net_class = {.type = "net"};

static fsdp_module *block_new(const test_case *c, int index)
{
    block *b = fsdp_module_new(&block_class, sizeof *b);
    if (!b)
        return NULL;
    b->c = c;
    b->index = index;
    int up = c->kinds[index] == BLOCK_SWIGLU ? 2 * c->inner : c->inner;
    b->norm = fsdp_module_add(b, "norm",
                              c->layernorm ? fsdp_layernorm_new(c->hidden, 1e-5f) : fsdp_rmsnorm_new(c->hidden, 1e-5f));
    b->up = fsdp_module_add(b, "up", fsdp_linear_new(c->hidden, up, c->bias));
    b->down = fsdp_module_add(b, "down", fsdp_linear_new(c->inner, c->hidden, c->bias));
    return &b->base;
}

static fsdp_status net_new(const test_case *c, fsdp_module **out)
{
    net *n = fsdp_module_new(&net_class, sizeof *n);
    if (!n)
        return FSDP_ERR_MEMORY;
    fsdp_module *blocks = fsdp_sequential_new();
    n->embed = fsdp_module_add(n, "embed", fsdp_embedding_new(c->vocabulary, c->hidden));
    for (int i = 0; i < c->n_blocks; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        n->blocks[i] = fsdp_module_add(blocks, name, block_new(c, i));
    }
    fsdp_module_add(n, "blocks", blocks);
    n->norm = fsdp_module_add(n, "norm", fsdp_rmsnorm_new(c->hidden, 1e-5f));
    if (!c->tied)
        n->head = fsdp_module_add(n, "head", fsdp_linear_new(c->hidden, c->vocabulary, false));
    n->second = fsdp_module_add(n, "second", fsdp_linear_new(c->hidden, TARGETS, true));
    *out = &n->base;
    return fsdp_module_check(*out);
}

typedef struct recorded {
    fsdp_tensor *logits; /* NULL when the loss is computed without them */
    fsdp_loss losses[2];
} recorded;

static recorded record(const test_case *c, fsdp_model *m, fsdp_tape *t, const recording *r, int rank,
                       const case_data *d)
{
    const net *n = (const net *)fsdp_model_module(m);
    int64_t shape[] = {r->samples[rank], r->tokens[rank], c->hidden}, target[] = {shape[0], shape[1], TARGETS};
    recorded out = {.logits = NULL};
    fsdp_tensor *labels = fsdp_input(t, FSDP_I32, 2, shape, d->labels);
    fsdp_tensor *x = fsdp_call(n->embed, t, fsdp_input(t, FSDP_I32, 2, shape, d->ids));
    if (c->features)
        x = fsdp_add(t, x, fsdp_cast(t, fsdp_input(t, FSDP_F32, 3, shape, d->features), c->param_dtype));
    x = fsdp_dropout(t, x, c->dropout);
    for (int i = 0; i < c->n_blocks; i++) {
        if (r->blocks >> i & 1)
            x = fsdp_call(n->blocks[i], t, x);
    }
    x = fsdp_call(n->norm, t, x);
    fsdp_tensor *head = fsdp_use(t, fsdp_module_weight(c->tied ? n->embed : n->head));
    if (c->fused_loss) {
        out.losses[0] = fsdp_linear_cross_entropy(t, x, head, labels, IGNORED);
    } else {
        out.logits = fsdp_linear(t, x, head, NULL);
        out.losses[0] = fsdp_cross_entropy(t, out.logits, labels, IGNORED);
    }
    out.losses[1] =
        fsdp_mse(t, fsdp_cast(t, fsdp_call(n->second, t, x), FSDP_F32), fsdp_input(t, FSDP_F32, 3, target, d->targets));
    return out;
}

/* ---- Variants ---- */

variant variant_plain(void)
{
    return (variant){.strategy = FSDP_FULL,
                     .forward_prefetch = true,
                     .gather_buffers = 2,
                     .resumes = -1,
                     .fp8_weights = FSDP_FP8_WEIGHTS_EACH_USE};
}

variant variant_draw(const test_case *c, uint64_t *s)
{
    variant v = {.strategy = (fsdp_strategy)draw(s, 4),
                 .forward_prefetch = chance(s, 60),
                 .backward_prefetch = (fsdp_prefetch)draw(s, 3),
                 .gather_buffers = 1 + draw(s, 3),
                 .checkpointing = chance(s, 40) ? FSDP_CHECKPOINT_NONE : (fsdp_checkpointing)(1 + draw(s, 2)),
                 .recompute_cheap = chance(s, 30),
                 .offload_activations = c->hidden == MAX_HIDDEN && chance(s, 70),
                 .offload = chance(s, 35) ? 1 + draw(s, 2) : 0};
    if (v.offload_activations)
        v.checkpointing = FSDP_CHECKPOINT_FULL;
    v.policies = chance(s, 40) ? 1 + draw_mixed(s) % 1000000 : 0;
    v.split = chance(s, 60);
    v.ahead = chance(s, 50);
    v.resident = chance(s, 50) ? draw(s, 101) : 0;
    v.fp8_weights = c->fp8 && chance(s, 85) ? FSDP_FP8_WEIGHTS_EACH_STEP : FSDP_FP8_WEIGHTS_AUTO;
    v.rate_first = chance(s, 70);
    v.peeks = chance(s, 25) ? (peek)draw(s, PEEK_KINDS) : PEEK_NONE;
    v.resumes = chance(s, 15) ? draw(s, c->n_steps) : -1;
    /* A rank without data repeats what its own model did before. */
    v.how = case_has_idle_ranks(c) ? RESUME_SAME : (resume_how)draw(s, 3);
    v.full_save = chance(s, 30);
    v.resumed_as = draw_mixed(s);
    return v;
}

void variant_print(const variant *v, char *text, size_t bytes)
{
    static const char *const prefetch[] = {"pre", "post", "none"},
                             *const offload[] = {"", ", offload", ", offload of block 0"},
                             *const checkpointing[] = {"", ", checkpointing", ", selective checkpointing"};
    static const char *const peeks[] = {"", ", parameters read", ", evaluated", ", unsharded", ", written as they are"};
    static const char *const again[] = {"another model", "the same model", "the same model a step later"};
    int n =
        snprintf(text, bytes, "%s%s, backward prefetch %s, %d gather buffers%s%s%s%s, %d %% stay%s%s%s%s%s%s%s",
                 fsdp_strategy_name(v->strategy), v->forward_prefetch ? ", forward prefetch" : "",
                 prefetch[v->backward_prefetch], v->gather_buffers, checkpointing[v->checkpointing],
                 v->recompute_cheap ? ", cheap operations again" : "",
                 v->offload_activations ? ", activations in host memory" : "", offload[v->offload], v->resident,
                 v->split ? ", split" : "", v->ahead ? ", ahead" : "", v->policies ? ", a policy for each unit" : "",
                 v->fp8_weights == FSDP_FP8_WEIGHTS_EACH_STEP ? ", weights rounded once a step" : "",
                 v->shaken ? ", shaken" : "", v->rate_first ? "" : ", rates set last", peeks[v->peeks]);
    if (v->resumes >= 0 && (size_t)n < bytes)
        snprintf(text + n, bytes - (size_t)n, ", saved%s behind step %d and resumed in %s",
                 v->full_save ? " as a full checkpoint" : "", v->resumes, again[v->how]);
}

bool variant_keeps_bits(const test_case *c, const variant *v)
{
    /* Replicas cut a norm as equal shards would. */
    return v->strategy < FSDP_HYBRID && !(c->weighted && v->strategy == FSDP_NO_SHARD);
}

/* ---- The program ---- */

typedef struct engine {
    const test_case *c;
    fsdp_world *w;
    int rank;
    fsdp_model *m;
    fsdp_optimizer *o;
    fsdp_state *state;
    char folder[64]; /* of its own */
    shake *shake;
    outcome *out;
    case_data data, seen;
    bool rate_first;
    peek peeks;
    int checked_step;
} engine;

typedef struct policy_draws {
    const variant *v;
    const test_case *c;
} policy_draws;

/* Replicas cut a norm as equal shards would, so where shards are weighted they are left out; weights of hybrid groups
 * are too few for other strategies. */
static fsdp_strategy draw_strategy(const policy_draws *draws, fsdp_strategy given, uint64_t *s)
{
    bool grouped = given >= FSDP_HYBRID;
    if (!chance(s, 50) || (grouped && draws->c->weighted))
        return given;
    return (fsdp_strategy)draw(s, draws->c->weighted ? FSDP_NO_SHARD : FSDP_HYBRID);
}

/* What a unit does follows from its name. */
static void draw_policy(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    const policy_draws *draws = context;
    const variant *v = draws->v;
    uint64_t s = v->policies;
    for (const char *at = name; *at; at++)
        s = s * 1099511628211u + (unsigned char)*at;
    p->strategy = draw_strategy(draws, p->strategy, &s);
    bool gathers_twice = p->strategy == FSDP_FULL || p->strategy == FSDP_HYBRID;
    int shards = p->strategy < FSDP_HYBRID ? draws->c->ranks : p->shard_group_size;
    if (gathers_twice && chance(&s, 30))
        p->reshard_group_size = shards == 4 && chance(&s, 60) ? 2 : 1;
    else if (p->strategy != FSDP_NO_SHARD && chance(&s, 60))
        p->reshard = (fsdp_reshard_when)draw(&s, 3);
    if (m->parent && chance(&s, 50))
        p->checkpointing = (fsdp_checkpointing)draw(&s, 3);
    if (chance(&s, 30) && !case_stays_on_device(draws->c))
        p->cpu_offload = !p->cpu_offload;
}

static fsdp_status open_model(engine *e, const variant *v)
{
    static const int weights[][MAX_RANKS] = {{3, 1, 2, 1}, {1000, 1, 1, 1}}; /* or some ranks have nothing */
    static const char *const first_block[] = {"*0*"};
    static const fsdp_optimizer_group groups[] = {{"*.up.*", 0.5f, -1}, {"embed.*", 0, 0}, {"*norm.weight", -1, 0.2f}};
    const test_case *c = e->c;
    policy_draws draws = {v, c};
    fsdp_module *tree = NULL;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    config.strategy = v->strategy;
    config.shard_group_size = v->shard_group_size;
    if (case_wraps[c->wrap][0])
        config.wrap = fsdp_wrap_by_type(case_wraps[c->wrap]);
    config.param_dtype = c->param_dtype;
    config.reduce_dtype = c->reduce_dtype;
    config.seed = c->seed;
    config.freeze = &case_freezing[c->frozen];
    config.n_freeze = case_freezing[c->frozen][0] != '\0';
    config.shard_weights = c->weighted ? weights[c->seed / CASE_CLASSES % 2] : NULL;
    config.bucket_bytes = c->bucket_bytes;
    config.fp8 = c->fp8 ? FSDP_FP8_HYBRID : FSDP_FP8_OFF;
    config.fp8_weights = v->fp8_weights;
    config.gather_buffers = v->gather_buffers;
    config.forward_prefetch = v->forward_prefetch;
    config.backward_prefetch = v->backward_prefetch;
    config.checkpointing = v->checkpointing;
    config.recompute_cheap = v->recompute_cheap;
    config.offload_activations = v->offload_activations;
    config.sync_each_micro_batch = c->sync;
    config.decay_vectors = c->decay_vectors;
    config.loss_scale = c->loss_scale;
    config.gradient_dtype = c->gradient_dtype;
    config.fp8_check = c->fp8;
    config.policy = v->policies ? draw_policy : NULL;
    config.policy_context = &draws;
    if (!case_stays_on_device(c)) {
        config.cpu_offload = v->offload > 0;
        config.cpu_offload_ahead = v->ahead;
        config.cpu_offload_split = v->split;
        config.cpu_offload_resident = v->resident;
    }
    /* Where units are blocks and not merged; elsewhere all are offloaded. */
    bool named = strcmp(case_wraps[c->wrap], "block") == 0 && c->bucket_bytes == 0;
    config.cpu_offload_units = first_block;
    config.n_cpu_offload_units = v->offload == 2 && named;
    oc.kind = c->optimizer;
    oc.beta2 = 0.95f;
    oc.eps = 1e-2f;
    oc.weight_decay = c->weight_decay;
    oc.momentum = c->momentum;
    oc.clip = c->clip;
    oc.state_dtype = c->state_dtype;
    oc.average = c->average;
    oc.groups = groups;
    oc.n_groups = c->grouped ? 3 : 0;
    FSDP_TRY(net_new(c, &tree));
    FSDP_TRY(fsdp_shard(e->w, tree, &config, &e->m));
    FSDP_TRY(fsdp_optimizer_new(e->m, &oc, &e->o));
    fsdp_state_config sc = FSDP_STATE_CONFIG_INIT;
    sc.model = e->m;
    sc.optimizer = e->o;
    sc.directory = v->resumes >= 0 ? e->folder : NULL;
    sc.kind = v->full_save ? FSDP_CKPT_FULL : FSDP_CKPT_SHARDED;
    sc.keep = 1;
    return fsdp_state_open(&sc, &e->state);
}

static void close_model(engine *e)
{
    fsdp_state_close(e->state);
    fsdp_optimizer_free(e->o); /* waits for what still runs */
    shake_end(e->shake);
    fsdp_model_free(e->m);
    e->state = NULL;
    e->o = NULL;
    e->shake = NULL;
    e->m = NULL;
}

static fsdp_status list_parameter(engine *e, int index, entry_kind kind, int step)
{
    case_parameter list[MAX_PARAMETERS];
    case_parameters(e->c, list);
    const case_parameter *p = &list[index];
    float *values = malloc((size_t)p->numel * sizeof *values);
    if (!values)
        return error_set(FSDP_ERR_MEMORY, "reading a parameter: out of memory");
    fsdp_status status = fsdp_parameter_read(e->m, p->name, 0, p->numel, values);
    for (int64_t k = 0; k < p->numel && status == FSDP_OK; k++)
        outcome_add(e->out, (entry){kind, step, index, k, (double)values[k]});
    free(values);
    return status;
}

/* By way of full parameters of its unit. */
static fsdp_status halve_in_unit(engine *e, const case_parameter *p)
{
    for (int i = 0; i < fsdp_model_units(e->m); i++) {
        fsdp_unsharded *u;
        FSDP_TRY(fsdp_unshard(e->m, fsdp_model_unit_name(e->m, i), &u));
        float *values = fsdp_unsharded_values(u, p->name, NULL);
        for (int64_t k = 0; values && k < p->numel; k++)
            values[k] /= 2;
        FSDP_TRY(fsdp_reshard(u, values != NULL));
    }
    return FSDP_OK;
}

static fsdp_status halve_parameter(engine *e, int index, bool whole)
{
    case_parameter list[MAX_PARAMETERS];
    case_parameters(e->c, list);
    const case_parameter *p = &list[index];
    if (whole)
        return halve_in_unit(e, p);
    float *values = malloc((size_t)p->numel * sizeof *values);
    if (!values)
        return error_set(FSDP_ERR_MEMORY, "halving a parameter: out of memory");
    fsdp_status status = fsdp_parameter_read(e->m, p->name, 0, p->numel, values);
    for (int64_t k = 0; k < p->numel; k++)
        values[k] /= 2;
    if (status == FSDP_OK)
        status = fsdp_parameter_write(e->m, p->name, 0, p->numel, values);
    free(values);
    return status;
}

static fsdp_status list_parameters(engine *e, entry_kind kind, int step)
{
    case_parameter list[MAX_PARAMETERS];
    for (int i = 0, n = case_parameters(e->c, list); i < n; i++)
        FSDP_TRY(list_parameter(e, i, kind, step));
    return FSDP_OK;
}

static fsdp_status list_values(engine *e, fsdp_tensor *x, int step, int micro, int64_t *at)
{
    float values[MAX_ROWS * MAX_HIDDEN];
    int64_t n = fsdp_tensor_numel(x);
    FSDP_TRY(fsdp_read(x, values, n));
    for (int64_t i = 0; i < n; i++)
        outcome_add(e->out, (entry){ENTRY_SEEN, step, micro, (*at)++, (double)values[i]});
    return FSDP_OK;
}

/* Without gradients: the losses, and the logits where there are any. */
static fsdp_status look_at(engine *e, look how, const recording *r, int step, int micro)
{
    int64_t at = 0;
    case_fill(e->c, r, e->rank, &e->seen);
    shake_between(e->shake);
    fsdp_tape *t = how == LOOK_TRAINING ? fsdp_begin(e->m) : fsdp_begin_evaluation(e->m);
    recorded now = record(e->c, e->m, t, r, e->rank, &e->seen);
    for (int i = 0; i < 2; i++)
        fsdp_output(t, now.losses[i].sum);
    if (now.logits && how == LOOK_EVALUATION)
        fsdp_output(t, now.logits);
    FSDP_TRY(fsdp_evaluate(t));
    for (int i = 0; i < 2; i++)
        FSDP_TRY(list_values(e, now.losses[i].sum, step, micro, &at));
    return now.logits && how == LOOK_EVALUATION ? list_values(e, now.logits, step, micro, &at) : FSDP_OK;
}

static fsdp_status micro_step(engine *e, const case_micro *m, bool last)
{
    shake_between(e->shake);
    if (m->nothing[e->rank])
        return fsdp_backward_nothing(e->m, last);
    case_fill(e->c, &m->work, e->rank, &e->data);
    fsdp_tape *t = fsdp_begin(e->m);
    recorded now = record(e->c, e->m, t, &m->work, e->rank, &e->data);
    if (m->before == LOOK_TRAINING) { /* recorded as it was looked at, so that it is found again */
        for (int i = 0; i < 2; i++)
            fsdp_output(t, now.losses[i].sum);
    }
    return fsdp_backward(t, now.losses[m->loss], last);
}

static fsdp_status refuse_second_step(engine *e)
{
    fsdp_step_report r;
    fsdp_status status = fsdp_step(e->o, &r);
    return status == FSDP_ERR_STATE ? FSDP_OK
                                    : error_set(FSDP_ERR_STATE, "a second step without a backward was not refused");
}

static void take_layer(void *context, const fsdp_fp8_layer *l)
{
    engine *e = context;
    const double numbers[] = {l->output_error, l->gradient_error, l->flushed[0],   l->flushed[1], l->flushed[2],
                              l->saturated[0], l->saturated[1],   l->saturated[2], l->falls_back};
    for (int i = 0; i < 9; i++)
        outcome_add(e->out, (entry){ENTRY_CHECK, e->checked_step, -1, i, numbers[i]});
}

static fsdp_status shadow_step(engine *e, int index)
{
    const case_step *s = &e->c->steps[index];
    const case_micro *m = &s->micro[0];
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT;
    bounds.error = (double)s->checks;
    e->checked_step = index;
    case_fill(e->c, &m->work, e->rank, &e->data);
    fsdp_tape *t = fsdp_begin_shadow(e->m);
    recorded now = record(e->c, e->m, t, &m->work, e->rank, &e->data);
    return fsdp_fp8_check(t, now.losses[m->loss], &bounds, take_layer, e);
}

static fsdp_status scale_gradients(engine *e, int index)
{
    double norm;
    FSDP_TRY(fsdp_gradient_norm(e->m, "*", &norm));
    outcome_add(e->out, (entry){ENTRY_GRADIENT, index, -1, 0, norm});
    return fsdp_gradient_scale(e->m, CASE_SCALED, e->c->steps[index].scales);
}

static fsdp_status look_behind(engine *e, int index)
{
    const case_step *s = &e->c->steps[index];
    if (s->averaged)
        FSDP_TRY(fsdp_optimizer_swap_average(e->o));
    FSDP_TRY(look_at(e, s->after, &s->seen, index, -1));
    return s->averaged ? fsdp_optimizer_swap_average(e->o) : FSDP_OK;
}

/* What it sees is compared elsewhere. */
static fsdp_status look_between(engine *e, int index)
{
    int known = e->out->n;
    fsdp_unsharded *u;
    if (e->peeks == PEEK_READ)
        FSDP_TRY(list_parameters(e, ENTRY_READ, index));
    if (e->peeks == PEEK_EVALUATE)
        FSDP_TRY(look_at(e, LOOK_EVALUATION, &e->c->steps[index].seen, index, -1));
    for (int i = 0; e->peeks >= PEEK_UNSHARD && i < fsdp_model_units(e->m); i++) {
        FSDP_TRY(fsdp_unshard(e->m, fsdp_model_unit_name(e->m, i), &u));
        FSDP_TRY(fsdp_reshard(u, e->peeks == PEEK_WRITE)); /* what it was */
    }
    e->out->n = known;
    return FSDP_OK;
}

static fsdp_status run_step(engine *e, int index)
{
    const case_step *s = &e->c->steps[index];
    if (s->checks > 0)
        FSDP_TRY(shadow_step(e, index));
    if (e->rate_first)
        fsdp_optimizer_set_lr(e->o, s->lr);
    for (int k = 0; k < s->n_micro; k++) {
        if (s->micro[k].before != LOOK_NONE)
            FSDP_TRY(look_at(e, s->micro[k].before, &s->micro[k].seen, index, k));
        FSDP_TRY(micro_step(e, &s->micro[k], k + 1 == s->n_micro));
    }
    fsdp_step_report r;
    fsdp_optimizer_set_lr(e->o, s->lr);
    FSDP_TRY(look_between(e, index));
    if (s->scales != 0)
        FSDP_TRY(scale_gradients(e, index));
    FSDP_TRY(fsdp_step(e->o, &r));
    const double numbers[] = {r.loss, r.gradient_norm, r.count, r.skipped};
    for (int k = 0; k < 4; k++)
        outcome_add(e->out, (entry){(entry_kind)(ENTRY_LOSS + k), index, -1, 0, numbers[k]});
    if (s->stepped_twice)
        FSDP_TRY(refuse_second_step(e));
    if (s->reads >= 0)
        FSDP_TRY(list_parameter(e, s->reads, ENTRY_READ, index));
    if (s->halves >= 0)
        FSDP_TRY(halve_parameter(e, s->halves, s->whole));
    return s->after != LOOK_NONE ? look_behind(e, index) : FSDP_OK;
}

static variant resumed_variant(const test_case *c, const variant *v)
{
    uint64_t s = v->resumed_as;
    variant other = variant_draw(c, &s);
    if (v->strategy >= FSDP_HYBRID || !variant_keeps_bits(c, &other)) {
        other.strategy = v->strategy;
        other.shard_group_size = v->shard_group_size;
    }
    other.shaken = v->shaken;
    other.resumes = v->resumes;
    return other;
}

static fsdp_status save_and_resume(engine *e, const variant *v, int step)
{
    int64_t loaded = -1;
    int known = e->out->n;
    if (v->how == RESUME_LATER && step + 1 < e->c->n_steps) {
        FSDP_TRY(fsdp_save_async(e->state, step));
        FSDP_TRY(run_step(e, step + 1));
        e->out->n = known;
        FSDP_TRY(fsdp_save_wait(e->state));
    } else {
        FSDP_TRY(fsdp_save(e->state, step));
    }
    if (v->how == RESUME_ANOTHER) {
        variant other = resumed_variant(e->c, v);
        close_model(e);
        FSDP_TRY(open_model(e, &other));
        FSDP_TRY(shake_begin(e->m, other.shaken, &e->shake));
    }
    FSDP_TRY(fsdp_resume(e->state, &loaded));
    return loaded == step ? FSDP_OK
                          : error_set(FSDP_ERR_STATE, "step %lld was resumed, not %d", (long long)loaded, step);
}

fsdp_status engine_run(fsdp_world *w, const test_case *c, const variant *v, const char *folder, outcome *out)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(FSDP_ERR_MEMORY, "running a case: out of memory");
    e->c = c;
    e->w = w;
    e->rank = fsdp_world_rank(w);
    e->out = out;
    snprintf(e->folder, sizeof e->folder, "%s/%llx", folder, (unsigned long long)v->resumed_as);
    e->rate_first = v->rate_first;
    e->peeks = v->peeks;
    outcome_clear(out);
    fsdp_status status;
    TRY_OR(done, open_model(e, v));
    TRY_OR(done, shake_begin(e->m, v->shaken, &e->shake));
    TRY_OR(done, list_parameters(e, ENTRY_FIRST, 0));
    for (int i = 0; i < c->n_steps; i++) {
        TRY_OR(done, run_step(e, i));
        if (i == v->resumes)
            TRY_OR(done, save_and_resume(e, v, i));
    }
    TRY_OR(done, list_parameters(e, ENTRY_READ, c->n_steps));
done:
    close_model(e);
    if (v->resumes >= 0 && e->rank == 0 && status == FSDP_OK)
        status = file_remove_tree(e->folder);
    free(e);
    return status;
}
