/* Building a sharded model: groups, units, layout, memory, initial values; and its end. */
#include "shard/model.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/sized.h"
#include "device/gpu.h"
#include "shard/offload/offload.h"
#include "shard/build/codes.h"
#include "shard/build/policy.h"
#include "shard/build/resident.h"
#include "shard/build/wrap.h"

static bool set_checkpoint(void *context, fsdp_module *module, const char *path)
{
    (void)path;
    const fsdp_config *c = context;
    /* Only repeated blocks are worth a region; by type is how they are named. */
    if (c->wrap.kind == FSDP_WRAP_TYPE && c->wrap.type && module->parent)
        module->checkpoint = wrap_lists_type(c->wrap.type, module->module_class->type);
    return true;
}

static fsdp_status freeze(fsdp_model *m)
{
    for (int g = 0; g < m->config.n_freeze; g++) {
        int matched = 0;
        for (int i = 0; i < m->contents.n_parameters; i++) {
            if (fnmatch(m->config.freeze[g], m->contents.parameters[i]->name, 0) != 0)
                continue;
            m->contents.parameters[i]->trainable = false;
            matched++;
        }
        if (matched == 0)
            return error_set(FSDP_ERR_INPUT, "freeze: no parameter matches \"%s\"", m->config.freeze[g]);
    }
    m->config.freeze = NULL;
    m->config.n_freeze = 0;
    return FSDP_OK;
}

static bool matches_any(const char *name, const char *const *globs, int n)
{
    for (int i = 0; i < n; i++) {
        if (fnmatch(globs[i], name, 0) == 0)
            return true;
    }
    return false;
}

/* Forward changes persistent buffers (batch norm's statistics), in shadow steps too. */
static fsdp_status check_shadow_steps(const fsdp_model *m)
{
    for (int i = 0; i < m->contents.n_buffers; i++)
        if (m->contents.buffers[i]->persistent)
            return error_set(FSDP_ERR_INPUT,
                             "fp8_check: a shadow step's batch would count twice in %s: train this model without it",
                             m->contents.buffers[i]->name);
    return FSDP_OK;
}

/* Marks the weights whose linear layers compute in 8 bits, if their shapes allow it. */
static fsdp_status choose_fp8(fsdp_model *m)
{
    const fsdp_config *c = &m->config;
    const gpu_properties *gpu = m->dev->gpu;
    if (c->fp8 != FSDP_FP8_OFF && !device_has_fp8(m->dev))
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "fp8: %s (compute capability %d.%d) has no 8-bit products; they came with 8.9. Train in bf16",
                         gpu->name, gpu->compute_capability / 10, gpu->compute_capability % 10);
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        bool skips = matches_any(p->name, c->fp8_skip, c->n_fp8_skip);
        p->fp8 = skips || p->adapter || p->output || p->n_dims != 2 ? FSDP_FP8_OFF : c->fp8;
    }
    for (int k = 0; k < c->n_fp8_skip; k++) {
        bool matched = false;
        for (int i = 0; i < m->contents.n_parameters && !matched; i++)
            matched = matches_any(m->contents.parameters[i]->name, &c->fp8_skip[k], 1);
        if (!matched)
            return error_set(FSDP_ERR_INPUT, "fp8_skip: no parameter matches \"%s\"", c->fp8_skip[k]);
    }
    m->config.fp8_skip = NULL;
    m->config.n_fp8_skip = 0;
    return c->fp8 != FSDP_FP8_OFF && c->fp8_check ? check_shadow_steps(m) : FSDP_OK;
}

fsdp_status model_check_fp8(const fsdp_model *m, const fsdp_tape *recording)
{
    bool missing = m->config.fp8 != FSDP_FP8_OFF;
    for (int i = 0; i < m->contents.n_parameters; i++)
        missing &= !m->contents.parameters[i]->fp8_fell_back; /* a shadow step has decided */
    for (int i = 0; missing && i < recording->n_nodes; i++)
        missing = strncmp(recording->nodes[i]->op->name, "linear_fp8", strlen("linear_fp8")) != 0;
    if (!missing)
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "fp8: no linear layer here has 8-bit products; a layer's inputs and its outputs must be multiples of 16, "
        "fp8_skip must leave some, and GPT-2's weights, stored input-major, have none");
}

static fsdp_status lay_out(fsdp_model *m, const wrap_result *wrapped)
{
    layout_cut *cuts = calloc((size_t)wrapped->n_units, sizeof *cuts);
    if (!cuts)
        return error_set(FSDP_ERR_MEMORY, "laying out %d units: out of host memory", wrapped->n_units);
    for (int i = 0; i < wrapped->n_units; i++)
        cuts[i] = (layout_cut){m->shardings[i].n_shards, m->shardings[i].whole};
    fsdp_status status = layout_build(&m->contents, wrapped->n_units, (const char *const *)wrapped->names, cuts,
                                      m->shard_weights, &m->layout);
    free(cuts);
    return status;
}

/* Blocks of 8 bits are for what most of a frozen model is, the weights of linear layers; a group's blocks must be those
 * of its members. */
static bool fits_int8(const fsdp_model *m, const fsdp_parameter *p)
{
    for (p = p->group_head; p; p = p->group_next) {
        if (p->trainable || p->linear == LINEAR_NONE || p->output || p->n_dims != 2 || p->numel % LAYOUT_BLOCK != 0 ||
            m->policies[p->unit].ignored)
            return false;
    }
    return true;
}

static fsdp_status choose_int8(fsdp_model *m)
{
    int n = 0;
    for (int i = 0; i < m->contents.n_parameters && m->config.int8_frozen; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        p->int8 = fits_int8(m, p);
        n += p->int8;
    }
    if (m->config.int8_frozen && n == 0)
        return error_set(FSDP_ERR_INPUT, "int8_frozen: the model has no frozen weight of a linear layer whose elements "
                                         "are a multiple of 64; freeze layers, or train adapters beside them");
    return FSDP_OK;
}

fsdp_status model_make_layout(fsdp_model *m)
{
    wrap_result wrapped;
    FSDP_TRY(module_finish(m->module, &m->contents));
    if (m->contents.n_parameters == 0)
        return error_set(FSDP_ERR_INPUT, "the model has no parameters");
    for (int i = 0; i < m->contents.n_parameters; i++)
        m->contents.parameters[i]->decay |= m->config.decay_vectors;
    FSDP_TRY(freeze(m));
    FSDP_TRY(choose_fp8(m));
    if (m->config.checkpointing != FSDP_CHECKPOINT_NONE)
        module_walk(m->module, set_checkpoint, &m->config);
    FSDP_TRY(wrap_assign(m->module, &m->contents, &m->config.wrap, m->config.bucket_bytes, &wrapped));
    fsdp_status status = policy_apply(m, &wrapped);
    if (status == FSDP_OK)
        status = choose_int8(m);
    if (status == FSDP_OK) {
        codes_choose(m);
        status = lay_out(m, &wrapped);
    }
    wrap_result_free(&wrapped);
    return status;
}

/* Ranks that were started with different models, seeds or settings are told so before anything else happens. */
static fsdp_status agree(fsdp_model *m)
{
    int world = comm_world_size(m->world->comm);
    const fsdp_config *c = &m->config;
    uint64_t mine[2] = {hash_u64(layout_hash(m->layout), c->seed), HASH_START};
    const uint64_t settings[] = {c->strategy,
                                 c->param_dtype,
                                 c->reduce_dtype,
                                 (uint64_t)c->gather_buffers,
                                 c->forward_prefetch,
                                 c->backward_prefetch,
                                 c->checkpointing,
                                 c->recompute_cheap,
                                 c->sync_each_micro_batch,
                                 c->cast_inputs,
                                 c->fp8,
                                 c->gradient_dtype,
                                 c->fp8_check,
                                 c->fp8_weights};
    mine[1] = hash_bytes(mine[1], settings, sizeof settings);
    mine[1] = hash_bytes(mine[1], &c->gradient_divisor, sizeof c->gradient_divisor);
    mine[1] = policy_hash(m, mine[1]);
    for (int i = 0; i < m->contents.n_parameters; i++)
        mine[1] = hash_u64(mine[1], (uint64_t)m->contents.parameters[i]->fp8); /* what fp8_skip has left */
    uint64_t *all = calloc((size_t)world * 2, sizeof *all);
    size_t *bytes = calloc((size_t)world, sizeof *bytes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!all || !bytes)
        error_set(status, "comparing the ranks' models: out of host memory");
    else
        status =
            comm_exchange(comm_world(m->world->comm), "model agreement", mine, sizeof mine, sizeof mine, all, bytes);
    for (int r = 0; status == FSDP_OK && r < world; r++) {
        if (all[2 * r] != all[0])
            status = error_set(
                FSDP_ERR_PEER,
                "rank %d has another model, seed or wrap policy than rank 0: start all ranks with the same flags", r);
        else if (all[2 * r + 1] != all[1])
            status = error_set(
                FSDP_ERR_PEER,
                "rank %d has another strategy, precision or schedule than rank 0: start all ranks with the same flags",
                r);
    }
    free(all);
    free(bytes);
    return status;
}

static fsdp_status sum_statistics(void *context, stream *s, double *values, int64_t n)
{
    fsdp_model *m = context;
    comm_span piece = {.send = {values, FSDP_F64}, .recv = {values, FSDP_F64}, .count = n};
    comm_op op = {.label = "batch statistics", .step = m->step, .n_spans = 1, .spans = &piece, .stream = s};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_reduce(comm_world(m->world->comm), &op, &request));
    return comm_wait(&request, s);
}

/* Values of all ranks, for losses that pair samples across them. */
static fsdp_status gather_values(void *context, stream *s, buffer mine, buffer all, int64_t n)
{
    fsdp_model *m = context;
    comm_span piece = {.send = mine, .recv = all, .count = n};
    comm_op op = {.label = "all_gather of values", .step = m->step, .n_spans = 1, .spans = &piece, .stream = s};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_gather(comm_world(m->world->comm), &op, &request));
    return comm_wait_sent(&request, s);
}

static fsdp_status scatter_sums(void *context, stream *s, buffer all, buffer mine, int64_t n, bool add)
{
    fsdp_model *m = context;
    comm_span piece = {.send = all, .recv = mine, .count = n, .add = add};
    comm_op op = {.label = "reduce_scatter of values", .step = m->step, .n_spans = 1, .spans = &piece, .stream = s};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_reduce_scatter(comm_world(m->world->comm), &op, &request));
    return comm_wait_sent(&request, s);
}

static fsdp_status check_config(const fsdp_config *c)
{
    if (c->strategy < 0 || c->strategy >= FSDP_STRATEGY_COUNT)
        return error_set(FSDP_ERR_INPUT, "sharding strategy number %d is none", (int)c->strategy);
    if (c->param_dtype > FSDP_F16 || c->reduce_dtype > FSDP_F16 || c->buffer_dtype > FSDP_F16)
        return error_set(FSDP_ERR_INPUT, "param, reduce and buffer dtype must be fp32, bf16 or fp16");
    if (c->gradient_dtype != FSDP_F32 && c->gradient_dtype != FSDP_BF16)
        return error_set(FSDP_ERR_INPUT, "gradient dtype %s: gradient shards are fp32 or bf16",
                         fsdp_dtype_name(c->gradient_dtype));
    if (!(c->gradient_divisor >= 0) || !isfinite(c->gradient_divisor))
        return error_set(FSDP_ERR_INPUT, "gradient_divisor is %g; 0 (the count) or a positive number is expected",
                         c->gradient_divisor);
    if (c->gather_buffers < 1)
        return error_set(FSDP_ERR_INPUT, "gather_buffers is %d; at least one unit must be gathered at a time",
                         c->gather_buffers);
    if (c->fp8 < FSDP_FP8_OFF || c->fp8 > FSDP_FP8_E4M3)
        return error_set(FSDP_ERR_INPUT, "fp8 is %d; FSDP_FP8_OFF, FSDP_FP8_HYBRID or FSDP_FP8_E4M3 is expected",
                         (int)c->fp8);
    if (c->fp8_weights < FSDP_FP8_WEIGHTS_AUTO || c->fp8_weights > FSDP_FP8_WEIGHTS_EACH_STEP)
        return error_set(FSDP_ERR_INPUT,
                         "fp8_weights is %d; FSDP_FP8_WEIGHTS_AUTO, _EACH_USE or _EACH_STEP is expected",
                         (int)c->fp8_weights);
    return FSDP_OK;
}

fsdp_status fsdp_shard(fsdp_world *w, fsdp_module *net, const fsdp_config *config, fsdp_model **out)
{
    SIZED_READ(fsdp_config, FSDP_CONFIG_INIT, full, config);
    FSDP_TRY(check_config(&full));
    fsdp_model *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "sharding a model: out of host memory");
    m->world = w;
    m->dev = w->dev;
    m->dev->autotune_off = full.deterministic;
    m->dev->awaits_autotune = comm_rank(w->comm) > 0;
    m->compute = w->compute;
    m->config = full;
    m->module = net;
    m->gradient.shared = true;
    m->gather.shared = comm_fills_directly(w->comm);
    m->waiting.kind = MEMORY_HOST;
    m->gather.use = MEMORY_GATHERED;
    m->gradient.use = MEMORY_FULL_GRADIENTS;
    m->slab.use = m->waiting.use = MEMORY_ACTIVATIONS;
    m->first_sample = -1;
    m->counted_rows = -1;
    m->statistics = (statistics_group){sum_statistics, m, comm_world_size(w->comm)};
    m->peers = (peer_group){gather_values, scatter_sums, m, comm_world_size(w->comm)};

    fsdp_status status;
    m->rank = comm_rank(w->comm);
    m->n_ranks = comm_world_size(w->comm);
    m->ranks_per_node = w->job.local_world_size;
    unit_sharding usual;
    TRY_OR(fail, sharding_find(m, "", full.strategy, full.shard_group_size, &usual));
    if (full.shard_weights) {
        m->n_shard_weights = usual.n_shards;
        m->shard_weights = malloc((size_t)usual.n_shards * sizeof *m->shard_weights);
        if (!m->shard_weights) {
            status = error_set(FSDP_ERR_MEMORY, "sharding a model: out of host memory");
            goto fail;
        }
        memcpy(m->shard_weights, full.shard_weights, (size_t)usual.n_shards * sizeof *m->shard_weights);
    }
    TRY_OR(fail, model_make_layout(m));
    m->loss_scale = model_scales_loss(m) ? (full.loss_scale > 0 ? full.loss_scale : 65536) : 1;
    TRY_OR(fail, agree(m));
    TRY_OR(fail, sharding_open_groups(m));
    TRY_OR(fail, resident_allocate(m));
    if (offload_any(m))
        TRY_OR(fail, offload_create(m, &m->offload));
    TRY_OR(fail, model_initialize(m));
    TRY_OR(fail, tape_create(m->dev, &m->recording));
    TRY_OR(fail, stream_laps_new(m->dev, m->compute, &m->laps));
    *out = m;
    return FSDP_OK;
fail:
    m->module = NULL; /* the caller keeps it */
    fsdp_model_free(m);
    return status;
}

/* Nobody writes the model's memory any more, here or from here. Peers read what this rank gives until they have it; a
 * comm that failed drops it. */
static void end_collectives(fsdp_model *m)
{
    bool any = false;
    for (int i = 0; i < m->layout->n_units; i++) {
        unit *u = &m->units[i];
        comm_request *left = u->early ? &u->gather : u->gradients == GRADIENTS_REDUCING ? &u->reduce : NULL;
        any |= left && comm_wait_sent(left, m->compute) == FSDP_OK;
    }
    if (any)
        (void)m->dev->stream_synchronize(m->compute);
}

void fsdp_model_free(fsdp_model *m)
{
    if (!m)
        return;
    offload_free(m->offload);
    if (m->units)
        end_collectives(m);
    for (int i = 0; m->units && i < m->layout->n_units; i++) { /* a step that failed leaves collectives under way */
        comm_forget(&m->units[i].gather);
        comm_forget(&m->units[i].keep);
        comm_forget(&m->units[i].reduce);
        comm_forget(&m->units[i].replicate);
    }
    while (m->programs) {
        planned_program *next = m->programs->next;
        planned_program_free(m, m->programs);
        m->programs = next;
    }
    stream_laps_free(m->laps);
    tape_free(m->recording);
    if (m->transfers)
        m->dev->stream_free(m->transfers);
    model_release_arena(m, &m->waiting);
    model_release_arena(m, &m->slab);
    model_release_arena(m, &m->gradient);
    model_release_arena(m, &m->gather);
    resident_release(m);
    sharding_close_groups(m);
    policy_free(m);
    layout_free(m->layout);
    module_contents_free(&m->contents);
    free(m->shard_weights);
    free(m->base_name);
    fsdp_module_free(m->module);
    free(m);
}

fsdp_world *fsdp_model_world(const fsdp_model *m)
{
    return m->world;
}

fsdp_module *fsdp_model_module(fsdp_model *m)
{
    return m->module;
}

int64_t fsdp_model_parameters(const fsdp_model *m)
{
    return m->layout->parameters_numel;
}

int fsdp_model_units(const fsdp_model *m)
{
    return m->layout->n_units;
}

fsdp_status model_fetch(fsdp_model *m, void *host, const void *dev, size_t bytes)
{
    FSDP_TRY(m->dev->copy(m->compute, host, dev, bytes));
    return m->dev->stream_synchronize(m->compute);
}

fsdp_status model_put(fsdp_model *m, void *dev, const void *host, size_t bytes)
{
    FSDP_TRY(m->dev->copy(m->compute, dev, host, bytes));
    return m->dev->stream_synchronize(m->compute);
}
