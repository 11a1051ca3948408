/* Planning without allocating: layout, program and schedule of a model that never comes into being. */
#include "shard/plan/memory_plan.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "shard/build/codes.h"
#include "shard/build/policy.h"
#include "shard/build/resident.h"
#include "shard/offload/ahead.h"
#include "shard/offload/split.h"
#include "shard/step/adafactor.h"
#include "shard/step/muon.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static fsdp_status describe_groups(fsdp_model *m, const memory_plan_request *r)
{
    unit_sharding usual;
    m->n_ranks = r->n_ranks;
    m->ranks_per_node = r->ranks_per_node;
    m->rank = r->rank == MEMORY_PLAN_LARGEST ? 0 : r->rank;
    FSDP_TRY(sharding_find(m, "", m->config.strategy, m->config.shard_group_size, &usual));
    m->n_shard_weights = usual.n_shards;
    return FSDP_OK;
}

static comm_config describe_link(const memory_plan_request *r)
{
    comm_config link = COMM_CONFIG_INIT;
    link.backend = r->backend;
    link.job = job_single();
    link.job.world_size = r->n_ranks;
    link.job.local_world_size = r->ranks_per_node < r->n_ranks ? r->ranks_per_node : r->n_ranks;
    link.device = r->dev;
    link.memory = r->comm_memory;
    link.accumulation = r->accumulation;
    return link;
}

/* What sums of trained units' gradients take in the groups that units of so many shards share. */
static size_t plan_group_staging(const fsdp_model *m, const comm_config *link, int n_shards, bool add)
{
    size_t sums = 0, replicated = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        const layout_segment *s = &m->layout->units[i].segments[0];
        const unit_sharding *h = &m->shardings[i];
        if (h->n_shards != n_shards || !s->trainable)
            continue;
        fsdp_dtype grad = m->policies[i].reduce_dtype, sum = m->config.gradient_dtype;
        int64_t mine = model_part(m, i, s).n;
        comm_kind kind = h->whole ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER;
        sums = larger(sums, comm_staging_bytes(link, kind, h->n_shards, mine, grad, sum, add));
        replicated =
            larger(replicated, comm_staging_bytes(link, COMM_ALL_REDUCE, h->n_replicas, mine, sum, sum, false));
    }
    return sums + replicated;
}

/* Of every group. The world's also has what ranks tell each other, at the latest after their first step
 * (step/autotune.c). */
static size_t plan_staging(const fsdp_model *m, const comm_config *link, int64_t micro_batches)
{
    bool add = micro_batches > 1 && !model_holds_gradients(m);
    size_t bytes = 0, world = comm_exchange_staging_bytes(link, m->n_ranks);
    for (int i = 0; i < m->layout->n_units; i++) {
        int first = 0, n_shards = m->shardings[i].n_shards;
        while (m->shardings[first].n_shards != n_shards)
            first++;
        size_t sums = first == i ? plan_group_staging(m, link, n_shards, add) : 0;
        if (n_shards == m->n_ranks)
            world = larger(world, sums);
        else
            bytes += sums;
    }
    return bytes + world;
}

/* What the backend takes for itself, and what it rounds up where memory comes from it. */
static size_t plan_communication(const comm_config *link, const memory_plan *p)
{
    size_t bytes = comm_overhead(link);
    for (int i = 0; i < p->n_allocations; i++) {
        const planned_allocation *a = &p->allocations[i];
        bytes += a->shared ? comm_allocated_bytes(link, a->bytes) - a->bytes : 0;
    }
    return bytes;
}

static size_t largest_workspace(const program *p)
{
    size_t most = 0;
    for (int i = 0; i < program_length(p); i++) {
        const instruction *step = program_at(p, i);
        if (step->workspace && step->workspace->bytes > most)
            most = step->workspace->bytes;
    }
    return most;
}

/* Of a segment, with the optimizer's state. */
static int64_t part_bytes(const fsdp_model *m, const memory_plan_request *r, int index, const layout_segment *s)
{
    element_range part = model_part(m, index, s);
    int64_t numel = 0;
    for (int i = 0; i < s->n_slots; i++) {
        int64_t from, n, at;
        layout_overlap(&s->slots[i], part.first, part.first + part.n, &from, &n, &at);
        const fsdp_parameter *p = s->slots[i].parameter;
        bool less = r->optimizer != FSDP_SGD && !update_has_second(r->optimizer, p);
        numel += n * (s->trainable ? 1 + r->moments - less : 1);
    }
    return numel * (int64_t)sizeof(float);
}

/* What this rank writes into a checkpoint: with replicas the first of them, of whole units and buffers rank 0; `all`:
 * what it holds. */
static int64_t checkpoint_bytes(const fsdp_model *m, const memory_plan_request *r, bool all)
{
    bool first = m->rank == 0 || r->rank == MEMORY_PLAN_LARGEST;
    int64_t bytes = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        bool writes = model_has_whole(m, i) ? first : m->shardings[i].replica_rank == 0;
        if (!writes && !all)
            continue;
        for (int k = 0; k < m->layout->units[i].n_segments; k++) {
            const layout_segment *s = &m->layout->units[i].segments[k];
            bytes += part_bytes(m, r, i, s);
        }
    }
    if (r->optimizer == FSDP_ADAFACTOR && (first || all))
        bytes += adafactor_make_plan(m).saved_bytes;
    for (int i = 0; i < m->contents.n_buffers && (first || all); i++)
        bytes += m->contents.buffers[i]->persistent ? m->contents.buffers[i]->numel * (int64_t)sizeof(float) : 0;
    return bytes;
}

static void count_residents(const fsdp_model *m, const memory_plan_request *r, memory_plan *out)
{
    resident_sizes z = resident_measure(m);
    out->parameters = z.master;
    out->copies = z.copy;
    out->gradients = z.gradient;
    size_t halves = (size_t)r->half_moments, wholes = (size_t)r->moments - halves;
    out->optimizer = z.whole * wholes + z.half * halves;
    out->host_state = z.host + z.host_whole * wholes + z.host_half * halves;
    out->host_scalars = MODEL_HOST_SCALARS * sizeof(model_scalars);
    out->host_snapshot = r->snapshot ? r->snapshot(checkpoint_bytes(m, r, r->snapshot_of_all)) : 0;
    if (r->hot) {
        int64_t bytes = checkpoint_bytes(m, r, true);
        out->host_hot = r->hot(bytes);
        out->host_held = (size_t)bytes * (r->n_ranks > r->ranks_per_node ? 4 : 2);
    }
    /* Parameter and moments in and out, gradient in, low-precision copy out. */
    size_t numel = z.host_whole / sizeof(float);
    out->host_update_bytes =
        numel * (8 + fsdp_dtype_size(m->config.gradient_dtype) + 8 * wholes + 4 * halves) + z.host_low;
    for (int i = 0; i < m->contents.n_buffers; i++)
        out->buffers += round_up((size_t)m->contents.buffers[i]->numel * sizeof(float), 256);
    out->buffers += resident_norm_bytes(m) + sizeof(model_scalars) + resident_figures_bytes(m) + codes_scales_bytes(m);
    out->n_units = m->layout->n_units;
    for (int i = 0; i < m->layout->n_units; i++) {
        const layout_unit *u = &m->layout->units[i];
        size_t bytes = schedule_gathered_bytes(u, m->param_bytes[i], false) + schedule_wide_bytes(u, m->param_bytes[i]);
        out->largest_unit = bytes > out->largest_unit ? bytes : out->largest_unit;
    }
}

/* What second moments of all elements of a unit would take beyond those that there are. */
static size_t second_unneeded(const fsdp_model *m, int index, fsdp_optimizer_kind kind)
{
    const layout_segment *s = &m->layout->units[index].segments[0];
    element_range part = model_part(m, index, s);
    int64_t n = 0;
    for (int i = 0; i < s->n_slots; i++) {
        int64_t at, extent;
        layout_extent(s, i, part.first, part.first + part.n, &at, &extent);
        n += update_has_second(kind, s->slots[i].parameter) ? 0 : extent;
    }
    return round_up((size_t)part.n * sizeof(float), 256) - round_up((size_t)(part.n - n) * sizeof(float), 256);
}

/* By which ranks differ. A script is of the rank with most elements, as work follows them. */
static size_t held_bytes(const fsdp_model *m, const memory_plan_request *r)
{
    resident_sizes z = resident_measure(m);
    if (r->script)
        return z.master;
    size_t halves = (size_t)r->half_moments, wholes = (size_t)r->moments - halves;
    size_t bytes = z.master + z.copy + z.gradient + z.whole * wholes + z.half * halves;
    for (int i = 0; i < m->layout->n_units && !update_is_local(r->optimizer); i++)
        bytes -= m->layout->units[i].segments[0].trainable ? second_unneeded(m, i, r->optimizer) : 0;
    return bytes;
}

static void become_rank(fsdp_model *m, int rank)
{
    m->rank = rank;
    for (int i = 0; i < m->layout->n_units; i++) {
        m->shardings[i].shard_rank = rank % m->shardings[i].n_shards;
        m->shardings[i].replica_rank = rank / m->shardings[i].n_shards;
    }
}

/* Shards without weights are equal, but not what an optimizer keeps of them. */
static void become_largest(fsdp_model *m, const memory_plan_request *r)
{
    size_t most = held_bytes(m, r);
    int largest = m->rank;
    if (!m->shard_weights && update_is_local(r->optimizer))
        return;
    for (int rank = 1; rank < m->n_ranks; rank++) {
        become_rank(m, rank);
        size_t bytes = held_bytes(m, r);
        largest = bytes > most ? rank : largest;
        most = larger(most, bytes);
    }
    become_rank(m, largest);
}

/* What Muon and Adafactor take besides moments, and leave out of them; what parts of offloaded units pass through. */
static fsdp_status count_update(const fsdp_model *m, const memory_plan_request *r, memory_plan *out)
{
    out->update_bytes = 2 * (m->n_ranks - 1) * (int64_t)codes_agreed_bytes(m) / m->n_ranks;
    if (update_is_local(r->optimizer)) {
        out->host_ahead = ahead_bytes(m, r->moments, r->half_moments);
        out->host_state += out->host_ahead;
        out->optimizer_workspace = split_bytes(m, r->moments, r->half_moments);
        out->optimizer += out->optimizer_workspace;
        return FSDP_OK;
    }
    for (int i = 0; i < m->layout->n_units; i++)
        out->optimizer -= m->layout->units[i].segments[0].trainable ? second_unneeded(m, i, r->optimizer) : 0;
    if (r->optimizer == FSDP_MUON) {
        muon_plan p;
        FSDP_TRY(muon_make_plan(m, &p));
        out->optimizer_workspace = p.workspace;
        out->update_bytes += p.gathered_bytes;
    } else {
        adafactor_plan p = adafactor_make_plan(m);
        out->optimizer_workspace = p.bytes;
        out->update_bytes += p.reduced_bytes;
    }
    out->optimizer += out->optimizer_workspace;
    return FSDP_OK;
}

/* What one rank receives, as comm counts it: of every gathered unit all but its own shard; of every reduction its shard
 * from all others; for a sum that all ranks get, both of these for an n-th part. */
static void count_traffic(const fsdp_model *m, const comm_config *link, const schedule *s, memory_plan *out)
{
    int64_t sum = (int64_t)fsdp_dtype_size(m->config.gradient_dtype);
    for (int i = 0; i < s->n_events; i++) {
        int which = s->events[i].unit;
        const layout_unit *u = &m->layout->units[which];
        const unit_sharding *h = &m->shardings[which];
        int64_t grad = (int64_t)m->grad_bytes[which], n = h->n_shards, replicas = h->n_replicas;
        /* A smaller group that kept the unit has a larger part of it on each rank. */
        int keepers = s->events[i].backward && s->units[which].kept ? m->keep_groups[which] : 0;
        int64_t mine = model_part(m, which, &u->segments[0]).n;
        bool gathers = s->events[i].action == ACTION_GATHER && m->residencies[which] != RESIDENT_ALIAS;
        for (int k = 0; gathers && k < u->n_segments; k++) {
            const layout_segment *segment = &u->segments[k];
            int64_t own = keepers ? layout_kept_numel(segment, keepers, h->shard_rank % keepers)
                                  : layout_shard_numel(segment, h->shard_rank);
            int64_t first =
                keepers ? layout_kept_first(segment, keepers, h->shard_rank % keepers) : segment->cuts[h->shard_rank];
            bool coded = s->units[which].coded;
            out->gathered_bytes +=
                (int64_t)(schedule_moved_bytes(segment, 0, segment->padded, m->param_bytes[which], coded) -
                          schedule_moved_bytes(segment, first, own, m->param_bytes[which], coded));
        }
        if (s->events[i].action != ACTION_REDUCE)
            continue;
        int64_t back = comm_sums_directly(link, m->policies[which].reduce_dtype) ? sum : grad;
        out->reduced_bytes += h->whole ? (n - 1) * mine * (grad + back) / n : (n - 1) * mine * grad;
        out->replica_bytes += 2 * (replicas - 1) * mine * sum / replicas;
    }
}

/* Compiled and scheduled, as the engine would do it with the same recording. */
typedef struct planned_step {
    program *program;
    schedule *schedule;
} planned_step;

static void free_step(planned_step *s)
{
    schedule_free(s->schedule);
    program_free(s->program);
}

static fsdp_status plan_step(fsdp_model *m, const memory_plan_request *r, bool training, bool shadow, planned_step *out)
{
    program_options options = model_program_options(m, training);
    schedule_options when = model_schedule_options(m);
    fsdp_tape *t;
    *out = (planned_step){NULL, NULL};
    FSDP_TRY(tape_create(r->dev, &t));
    tape_reset(t, training);
    t->owner = m;
    t->peers = m->n_ranks;
    t->shadow = shadow;
    t->recompute_cheap = m->config.recompute_cheap;
    t->selective = m->config.checkpointing == FSDP_CHECKPOINT_SELECTIVE;
    fsdp_loss loss = (training ? r->record : r->evaluate)(r->context, m->module, t);
    fsdp_status status = fsdp_tape_status(t);
    if (status == FSDP_OK && training && !shadow)
        status = model_check_fp8(m, t);
    if (status == FSDP_OK)
        status = program_compile(t, training ? loss.sum : NULL, &options, &out->program);
    if (status != FSDP_OK) {
        tape_free(t);
        return status;
    }
    status = schedule_build(out->program, m->layout, &when, &out->schedule);
    if (status != FSDP_OK)
        free_step(out);
    return status;
}

static fsdp_status plan_training(fsdp_model *m, const memory_plan_request *r, memory_plan *out)
{
    planned_step s;
    comm_config link = describe_link(r);
    FSDP_TRY(plan_step(m, r, true, false, &s));
    out->workspace = largest_workspace(s.program);
    out->activations = program_slab_bytes(s.program) - out->workspace;
    out->host_activations = program_host_bytes(s.program);
    out->gather = s.schedule->gather_bytes;
    out->full_gradients = s.schedule->gradient_bytes;
    count_traffic(m, &link, s.schedule, out);
    fsdp_status status = r->picture ? plan_picture_take(r->picture, m, s.program, s.schedule) : FSDP_OK;
    if (status == FSDP_OK && r->script)
        status = plan_script_take(r->script, m, s.program, s.schedule, &link, max_i64(r->micro_batches, 1),
                                  (script_optimizer){r->optimizer, r->moments, r->half_moments});
    free_step(&s);
    return status;
}

static size_t beyond(size_t bytes, size_t room)
{
    return bytes > room ? bytes - room : 0;
}

/* The engine's arenas are as large as the largest program wants them, each for itself. */
typedef struct arena_growth {
    size_t gather, gradients, slab;
} arena_growth;

static size_t growth_bytes(const arena_growth *g)
{
    return g->gather + g->gradients + g->slab;
}

static void grow(const planned_step *s, const memory_plan *p, arena_growth *growth)
{
    growth->gather = larger(growth->gather, beyond(s->schedule->gather_bytes, p->gather));
    growth->gradients = larger(growth->gradients, beyond(s->schedule->gradient_bytes, p->full_gradients));
    growth->slab = larger(growth->slab, beyond(program_slab_bytes(s->program), p->activations + p->workspace));
}

static fsdp_status plan_validation(fsdp_model *m, const memory_plan_request *r, memory_plan *out, arena_growth *growth)
{
    planned_step s;
    if (!r->evaluate)
        return FSDP_OK;
    FSDP_TRY(plan_step(m, r, false, false, &s));
    grow(&s, out, growth);
    out->validation = growth_bytes(growth);
    free_step(&s);
    return FSDP_OK;
}

static fsdp_status plan_shadow(fsdp_model *m, const memory_plan_request *r, memory_plan *out, arena_growth *growth)
{
    planned_step s;
    if (resident_figures_bytes(m) == 0)
        return FSDP_OK;
    FSDP_TRY(plan_step(m, r, true, true, &s));
    grow(&s, out, growth);
    out->shadow = growth_bytes(growth) - out->validation;
    free_step(&s);
    return FSDP_OK;
}

static void add_allocation(memory_plan *p, const char *what, size_t bytes, bool shared)
{
    if (bytes > 0)
        p->allocations[p->n_allocations++] = (planned_allocation){what, bytes, shared};
}

static void list_allocations(const fsdp_model *m, const comm_config *link, const arena_growth *growth, memory_plan *p)
{
    resident_sizes z = resident_measure(m);
    add_allocation(p, "what peers gather", z.shared, true);
    add_allocation(p, "masters and accumulators", z.master + z.copy - z.shared + z.gradient, false);
    add_allocation(p, "masters and accumulators in host memory", z.host, false);
    size_t scales = codes_scales_bytes(m);
    add_allocation(p, "buffers",
                   p->buffers - resident_norm_bytes(m) - sizeof(model_scalars) - resident_figures_bytes(m) - scales,
                   false);
    add_allocation(p, "scales of weights in 8 bits", scales, false);
    add_allocation(p, "figures of layers in 8 bits", resident_figures_bytes(m), false);
    add_allocation(p, "norm", resident_norm_bytes(m), false);
    add_allocation(p, "numbers", sizeof(model_scalars), false);
    add_allocation(p, "numbers in host memory", p->host_scalars, false);
    add_allocation(p, "moments", p->optimizer - p->optimizer_workspace, false);
    add_allocation(p, "the update", p->optimizer_workspace, false);
    add_allocation(p, "moments in host memory", p->host_state - p->host_ahead - z.host, false);
    add_allocation(p, "old values in host memory", p->host_ahead, false);
    add_allocation(p, "gathered units", p->gather + growth->gather, comm_will_fill_directly(link));
    add_allocation(p, "full gradients", p->full_gradients + growth->gradients, true);
    add_allocation(p, "activations in host memory", p->host_activations, false);
    add_allocation(p, "activations", p->activations + p->workspace + growth->slab, false);
    add_allocation(p, "snapshot in host memory", p->host_snapshot, false);
    add_allocation(p, "hot snapshot in host memory", p->host_hot, false);
}

fsdp_status memory_plan_make(fsdp_module *net, const fsdp_config *config, const memory_plan_request *r,
                             memory_plan *out)
{
    *out = (memory_plan){.parameters = 0};
    fsdp_model *m = calloc(1, sizeof *m);
    if (!m) {
        fsdp_module_free(net);
        return error_set(FSDP_ERR_MEMORY, "planning a model: out of host memory");
    }
    m->dev = r->dev;
    m->config = *config;
    m->module = net;
    m->shard_weights = (int *)(uintptr_t)config->shard_weights; /* borrowed: only read here */
    fsdp_status status = describe_groups(m, r);
    if (status == FSDP_OK)
        status = model_make_layout(m);
    if (status == FSDP_OK && r->rank == MEMORY_PLAN_LARGEST)
        become_largest(m, r);
    if (status == FSDP_OK)
        status = offload_check_optimizer(m, r->optimizer);
    if (status == FSDP_OK) {
        count_residents(m, r, out);
        status = count_update(m, r, out);
    }
    if (status == FSDP_OK) {
        status = plan_training(m, r, out);
    }
    arena_growth growth = {0, 0, 0};
    if (status == FSDP_OK)
        status = plan_validation(m, r, out, &growth);
    if (status == FSDP_OK)
        status = plan_shadow(m, r, out, &growth);
    if (status == FSDP_OK) {
        comm_config link = describe_link(r);
        list_allocations(m, &link, &growth, out);
        size_t staging = plan_staging(m, &link, r->micro_batches);
        out->communication = plan_communication(&link, out) + staging;
        add_allocation(out, "communication", comm_overhead(&link), true);
        add_allocation(out, "values on their way", staging, false);
        out->libraries = comm_library_bytes(&link, sharding_groups(m));
    }
    out->total = out->parameters + out->copies + out->gradients + out->optimizer + out->gather + out->full_gradients +
                 out->activations + out->workspace + out->buffers + out->communication + out->validation + out->shadow;
    out->host = out->host_state + out->host_activations + out->host_snapshot + out->host_hot + out->host_scalars;
    layout_free(m->layout);
    policy_free(m);
    module_contents_free(&m->contents);
    fsdp_module_free(net);
    free(m);
    return status;
}
