/* Runs the program instruction by instruction on a noting device, with the schedule's events between them, as
 * step/events.c carries them out on a real one; and then the close of the step, which is the optimizer's own code. */
#include "shard/plan/script.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "device/noting.h"
#include "shard/build/codes.h"
#include "shard/build/resident.h"
#include "shard/offload/ahead.h"
#include "shard/offload/split.h"
#include "shard/step/early.h"
#include "shard/step/optimizer.h"

/* Kinds of slots; each unit has one of every kind. */
enum {
    SLOT_GATHER,
    SLOT_REDUCE,
    SLOT_REPLICATE,
    SLOT_LAND,
    SLOT_REFRESH,
    SLOT_PRELOAD,
    SLOT_DIRECTIONS, /* Muon's, */
    SLOT_RESULTS,    /* and what becomes of them */
    SLOT_KINDS
};

/* Addresses that stand for memory: aligned, apart from each other, never read. */
#define PRETENDED(n) ((void *)(uintptr_t)(((uintptr_t)(n) + 1) << 40))

typedef struct writing {
    plan_script *out;
    fsdp_model *m;
    program *p;
    const schedule *s;
    noting_device *notes;
    program_run_args args;
    gradient_residency gradients;
    statistics_group statistics;
    peer_group peers;
    script_optimizer optimizer;
    const comm_config *link;
    int next;        /* event */
    bool more, last; /* of the micro-batch */
    bool offloads;
    bool deaf;          /* what is noted now happens once, not in every step */
    int64_t ahead_room; /* elements that may still be updated before the norm is known */
} writing;

void plan_script_clear(plan_script *s)
{
    free(s->works);
    free(s->items);
    *s = (plan_script){.n_works = 0};
}

fsdp_status plan_script_add(plan_script *s, script_item item)
{
    if (s->n_items == s->items_capacity) {
        int wanted = s->items_capacity ? 2 * s->items_capacity : 1024;
        script_item *grown = realloc(s->items, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "writing down a step: out of host memory");
        s->items = grown;
        s->items_capacity = wanted;
    }
    s->items[s->n_items++] = item;
    return FSDP_OK;
}

static fsdp_status find_work(plan_script *s, const kernel_work *work, int *at)
{
    for (*at = s->n_works - 1; *at >= 0; (*at)--) {
        const kernel_work *w = &s->works[*at];
        if (kernel_work_same(w, work) && w->bytes == work->bytes && w->flops == work->flops)
            return FSDP_OK;
    }
    if (s->n_works == s->works_capacity) {
        int wanted = s->works_capacity ? 2 * s->works_capacity : 64;
        kernel_work *grown = realloc(s->works, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "writing down a step: out of host memory");
        s->works = grown;
        s->works_capacity = wanted;
    }
    *at = s->n_works;
    s->works[s->n_works++] = *work;
    return FSDP_OK;
}

fsdp_status plan_script_add_work(plan_script *s, const kernel_work *work)
{
    script_item item = {.kind = SCRIPT_WORK, .slot = -1, .after = -1, .unit = -1};
    FSDP_TRY(find_work(s, work, &item.work));
    return plan_script_add(s, item);
}

static fsdp_status hear(void *context, const kernel_work *work)
{
    writing *w = context;
    return w->deaf ? FSDP_OK : plan_script_add_work(w->out, work);
}

static int slot_of(int which, int kind)
{
    return which * SLOT_KINDS + kind;
}

static fsdp_status add(writing *w, script_kind kind, int which, int slot, int after, double bytes)
{
    return plan_script_add(w->out, (script_item){.kind = kind,
                                                 .unit = which,
                                                 .slot = which < 0 || slot < 0 ? slot : slot_of(which, slot),
                                                 .after = which < 0 || after < 0 ? after : slot_of(which, after),
                                                 .bytes = bytes});
}

/* Bytes: of the whole buffer, and those that this rank receives. */
typedef struct moved_bytes {
    double all, received;
} moved_bytes;

static fsdp_status add_collective(writing *w, script_collective kind, int which, int slot, int ranks, int stride,
                                  moved_bytes bytes)
{
    return plan_script_add(w->out, (script_item){.kind = SCRIPT_COLLECTIVE,
                                                 .collective = kind,
                                                 .unit = which,
                                                 .slot = slot_of(which, slot),
                                                 .after = -1,
                                                 .ranks = ranks,
                                                 .stride = stride,
                                                 .bytes = bytes.all,
                                                 .received = bytes.received});
}

/* A sum of n elements that all ranks of a group get: as many bytes as two ways round a ring, or, where `back` is not
 * `element`, one way in each type. */
static moved_bytes summed_bytes(int64_t n, size_t element, size_t back, int ranks)
{
    return (moved_bytes){(double)n * (double)element, (double)((ranks - 1) * n * (int64_t)(element + back) / ranks)};
}

/* The collective that was added last sums `numel` elements here, whose values its ranks send to each other. */
static fsdp_status sum_directly(writing *w, int64_t numel, fsdp_dtype from, bool add)
{
    script_item *item = &w->out->items[w->out->n_items - 1];
    sum_parts_args a = {.n = numel,
                        .n_parts = item->ranks,
                        .mine = {PRETENDED(0), from},
                        .out = {PRETENDED(1), w->m->config.gradient_dtype},
                        .add = add};
    kernel_work work;
    if (item->ranks < 2 || !comm_sums_directly(w->link, from))
        return FSDP_OK;
    kernel_work_of(KERNEL_sum_parts, &a, &work);
    item->direct = true;
    return find_work(w->out, &work, &item->work);
}

static fsdp_status add_launch(writing *w, bool recorded, bool backward)
{
    return plan_script_add(w->out, (script_item){.kind = SCRIPT_LAUNCH,
                                                 .graph = recorded && w->m->dev->own_memory,
                                                 .backward = backward,
                                                 .slot = -1,
                                                 .after = -1,
                                                 .unit = -1});
}

/* ---- what operations exchange with other ranks ---- */

/* A slot of its own, behind those of the units: it is waited for at once. */
static fsdp_status exchange(writing *w, script_collective kind, moved_bytes bytes)
{
    int slot = w->m->layout->n_units * SLOT_KINDS;
    FSDP_TRY(plan_script_add(w->out, (script_item){.kind = SCRIPT_COLLECTIVE,
                                                   .collective = kind,
                                                   .unit = -1,
                                                   .slot = slot,
                                                   .after = -1,
                                                   .ranks = w->m->n_ranks,
                                                   .stride = 1,
                                                   .bytes = bytes.all,
                                                   .received = bytes.received}));
    return add(w, SCRIPT_WAIT, -1, slot, -1, 0);
}

static fsdp_status sum_over_ranks(void *context, int64_t n, size_t element)
{
    writing *w = context;
    return exchange(w, SCRIPT_ALL_REDUCE, summed_bytes(n, element, element, w->m->n_ranks));
}

static fsdp_status sum_statistics(void *context, stream *s, double *values, int64_t n)
{
    (void)s;
    return sum_over_ranks(context, n, sizeof *values);
}

static fsdp_status gather_values(void *context, stream *s, buffer mine, buffer all, int64_t n)
{
    writing *w = context;
    double part = (double)n * (double)fsdp_dtype_size(mine.dtype);
    (void)s, (void)all;
    return exchange(w, SCRIPT_ALL_GATHER, (moved_bytes){part * w->m->n_ranks, part * (w->m->n_ranks - 1)});
}

static fsdp_status scatter_sums(void *context, stream *s, buffer all, buffer mine, int64_t n, bool add_to)
{
    writing *w = context;
    double part = (double)n * (double)fsdp_dtype_size(all.dtype);
    (void)s, (void)mine, (void)add_to;
    return exchange(w, SCRIPT_REDUCE_SCATTER, (moved_bytes){part * w->m->n_ranks, part * (w->m->n_ranks - 1)});
}

/* ---- events of the schedule ---- */

/* Of the unit's gathered parameters; `keepers`: from so many ranks that have kept it among themselves, 0: from all. */
static moved_bytes gathered_bytes(const writing *w, int which, int keepers)
{
    const layout_unit *u = &w->m->layout->units[which];
    int rank = w->m->shardings[which].shard_rank;
    bool coded = w->s->units[which].coded;
    moved_bytes bytes = {0, 0};
    for (int i = 0; i < u->n_segments; i++) {
        const layout_segment *s = &u->segments[i];
        int64_t own = keepers ? layout_kept_numel(s, keepers, rank % keepers) : layout_shard_numel(s, rank);
        int64_t first = keepers ? layout_kept_first(s, keepers, rank % keepers) : s->cuts[rank];
        bytes.all += (double)schedule_moved_bytes(s, 0, s->padded, w->m->param_bytes[which], coded);
        bytes.received += (double)(schedule_moved_bytes(s, 0, s->padded, w->m->param_bytes[which], coded) -
                                   schedule_moved_bytes(s, first, own, w->m->param_bytes[which], coded));
    }
    return bytes;
}

/* Elements of the unit's trained segment that this rank updates; 0: none. */
static int64_t own_numel(const writing *w, int which)
{
    const layout_segment *s = &w->m->layout->units[which].segments[0];
    return s->trainable ? model_part(w->m, which, s).n : 0;
}

/* A copy that stays is gathered once after each optimizer step. */
static bool moves_nothing(const writing *w, int which)
{
    return model_has_all_at_hand(w->m, which) || w->m->residencies[which] == RESIDENT_ALIAS ||
           (w->m->residencies[which] == RESIDENT_KEPT && w->more);
}

static fsdp_status start_gather(writing *w, const schedule_event *e)
{
    const fsdp_model *m = w->m;
    int keepers = e->backward && w->s->units[e->unit].kept ? m->keep_groups[e->unit] : 0;
    return add_collective(w, SCRIPT_ALL_GATHER, e->unit, SLOT_GATHER,
                          keepers ? keepers : m->shardings[e->unit].n_shards, 1, gathered_bytes(w, e->unit, keepers));
}

/* The first gathers of a step were started at the close of the one before. */
static fsdp_status gather(writing *w, const schedule_event *e)
{
    bool early = !w->more && !e->backward && early_has(w->m, w->s, e->unit);
    return early || moves_nothing(w, e->unit) ? FSDP_OK : start_gather(w, e);
}

/* Of a unit that a smaller group keeps, this rank's part is copied out of the full parameters. */
static fsdp_status release(writing *w, const schedule_event *e)
{
    if (!w->s->units[e->unit].kept || e->backward)
        return FSDP_OK;
    moved_bytes bytes = gathered_bytes(w, e->unit, w->m->keep_groups[e->unit]);
    kernel_work copy = kernel_work_of_copy(2 * (bytes.all - bytes.received));
    return hear(w, &copy);
}

static fsdp_status widen(writing *w, const schedule_event *e)
{
    const layout_segment *s = layout_int8_segment(&w->m->layout->units[e->unit]);
    int8_args a = {.n = s->padded, .values = {PRETENDED(0), w->m->policies[e->unit].param_dtype}};
    kernel_work work;
    kernel_work_of(KERNEL_widen, &a, &work);
    return hear(w, &work);
}

static bool reduces_now(const writing *w)
{
    return !model_holds_gradients(w->m) || w->last;
}

static double sum_bytes(const writing *w, int which)
{
    return (double)own_numel(w, which) * (double)fsdp_dtype_size(w->m->config.gradient_dtype);
}

static fsdp_status replicate(writing *w, int which)
{
    const unit_sharding *h = &w->m->shardings[which];
    fsdp_dtype dtype = w->m->config.gradient_dtype;
    size_t element = fsdp_dtype_size(dtype);
    FSDP_TRY(add_collective(w, SCRIPT_ALL_REDUCE, which, SLOT_REPLICATE, h->n_replicas, h->n_shards,
                            summed_bytes(own_numel(w, which), element, element, h->n_replicas)));
    return sum_directly(w, own_numel(w, which) / h->n_replicas, dtype, false);
}

/* Read and written by the update of a unit in host memory: masters and state, gradients, the copy; `twice`: old values
 * are kept. */
static double update_bytes(const writing *w, int which, bool twice)
{
    const script_optimizer *o = &w->optimizer;
    fsdp_dtype dtype = w->m->policies[which].param_dtype;
    size_t state = sizeof(float) * (size_t)(1 + o->numbers - o->halves) + sizeof(uint16_t) * (size_t)o->halves;
    size_t element = (twice ? 3 : 2) * state + fsdp_dtype_size(w->m->config.gradient_dtype);
    element += dtype == FSDP_F32 ? 0 : fsdp_dtype_size(dtype);
    return (double)own_numel(w, which) * (double)element;
}

/* Where there is room for its old values, the update of a unit whose gradient has come need not wait for the norm. */
static fsdp_status update_ahead(writing *w, int which)
{
    int64_t n = ahead_numel(own_numel(w, which));
    if (n == 0 || n > w->ahead_room)
        return FSDP_OK;
    w->ahead_room -= n;
    FSDP_TRY(add(w, SCRIPT_UPDATE, which, SLOT_REFRESH, SLOT_LAND, update_bytes(w, which, true)));
    w->out->items[w->out->n_items - 1].ahead = true;
    return FSDP_OK;
}

/* In the last micro-batch replicas are summed and squares taken before the gradient leaves. */
static fsdp_status land(writing *w, int which)
{
    fsdp_model *m = w->m;
    bool replicated = w->last && model_has_replicas(m, which);
    int after = replicated ? SLOT_REPLICATE : w->gradients == GRADIENT_DIRECT ? -1 : SLOT_REDUCE;
    if (replicated) {
        FSDP_TRY(replicate(w, which));
        FSDP_TRY(add(w, SCRIPT_WAIT, which, SLOT_REPLICATE, -1, 0));
    }
    if (w->last)
        FSDP_TRY(model_squares(m, which, PRETENDED(0), PRETENDED(1), false, m->compute));
    FSDP_TRY(add(w, SCRIPT_OUT, which, SLOT_LAND, after, sum_bytes(w, which)));
    return w->last ? update_ahead(w, which) : FSDP_OK;
}

static moved_bytes reduced_bytes(const writing *w, int which)
{
    const layout_segment *s = &w->m->layout->units[which].segments[0];
    const unit_sharding *h = &w->m->shardings[which];
    size_t element = w->m->grad_bytes[which];
    bool direct = comm_sums_directly(w->link, w->m->policies[which].reduce_dtype);
    if (h->whole)
        return summed_bytes(s->padded, element, direct ? fsdp_dtype_size(w->m->config.gradient_dtype) : element,
                            h->n_shards);
    double own = (double)own_numel(w, which) * (double)element;
    return (moved_bytes){(double)s->padded * (double)element, own * (h->n_shards - 1)};
}

/* Where a rank is a group of its own, its device converts or adds. */
static fsdp_status reduce_alone(writing *w, int which)
{
    const fsdp_model *m = w->m;
    bool adds = w->more && !model_holds_gradients(m);
    axpby_args a = {.n = own_numel(w, which),
                    .a = {PRETENDED(0), m->policies[which].reduce_dtype},
                    .b = {adds ? PRETENDED(1) : NULL, m->config.gradient_dtype},
                    .out = {PRETENDED(1), m->config.gradient_dtype}};
    return m->dev->kernels->axpby(m->compute, &a);
}

static fsdp_status reduce_together(writing *w, int which)
{
    const unit_sharding *h = &w->m->shardings[which];
    FSDP_TRY(add_collective(w, h->whole ? SCRIPT_ALL_REDUCE : SCRIPT_REDUCE_SCATTER, which, SLOT_REDUCE, h->n_shards, 1,
                            reduced_bytes(w, which)));
    return sum_directly(w, own_numel(w, which) / (h->whole ? h->n_shards : 1), w->m->policies[which].reduce_dtype,
                        w->more && !model_holds_gradients(w->m));
}

static fsdp_status reduce(writing *w, const schedule_event *e)
{
    const fsdp_model *m = w->m;
    if (w->gradients != GRADIENT_DIRECT) {
        if (!reduces_now(w))
            return FSDP_OK;
        bool alone = m->shardings[e->unit].n_shards == 1 && m->dev->own_memory;
        FSDP_TRY(alone ? reduce_alone(w, e->unit) : reduce_together(w, e->unit));
    }
    return m->offloaded[e->unit] ? land(w, e->unit) : FSDP_OK;
}

static fsdp_status reduced(writing *w, const schedule_event *e)
{
    const fsdp_model *m = w->m;
    bool replicas = model_has_replicas(m, e->unit), offloaded = m->offloaded[e->unit];
    if (w->last && e->index == program_length(w->p) && !replicas && !offloaded && w->gradients != GRADIENT_DIRECT)
        m->units[e->unit].gradients = GRADIENTS_REDUCING; /* until the norm needs it */
    else if (w->gradients != GRADIENT_DIRECT && reduces_now(w))
        FSDP_TRY(add(w, SCRIPT_WAIT, e->unit, SLOT_REDUCE, -1, 0));
    if (w->last && replicas && !offloaded && own_numel(w, e->unit) > 0)
        FSDP_TRY(replicate(w, e->unit));
    bool leaves = offloaded && e->index < program_length(w->p);
    return leaves ? add(w, SCRIPT_WAIT, e->unit, SLOT_LAND, -1, 0) : FSDP_OK;
}

static fsdp_status preload(writing *w, const schedule_event *e)
{
    bool more = w->more && (w->gradients == GRADIENT_DIRECT || !model_holds_gradients(w->m));
    if (!more)
        return FSDP_OK;
    FSDP_TRY(add(w, SCRIPT_IN, e->unit, SLOT_PRELOAD, SLOT_LAND, sum_bytes(w, e->unit)));
    return add(w, SCRIPT_WAIT, e->unit, SLOT_PRELOAD, -1, 0);
}

static fsdp_status carry_out(writing *w, const schedule_event *e)
{
    switch (e->action) {
    case ACTION_GATHER:
        return gather(w, e);
    case ACTION_AWAIT:
        return moves_nothing(w, e->unit) ? FSDP_OK : add(w, SCRIPT_WAIT, e->unit, SLOT_GATHER, -1, 0);
    case ACTION_WIDEN:
        return widen(w, e);
    case ACTION_RELEASE:
        return release(w, e);
    case ACTION_REFRESH:
        return w->more ? FSDP_OK : add(w, SCRIPT_WAIT, e->unit, SLOT_REFRESH, -1, 0);
    case ACTION_PRELOAD:
        return preload(w, e);
    case ACTION_REDUCE:
        return reduce(w, e);
    case ACTION_REDUCED:
        return reduced(w, e);
    case ACTION_GRADIENTS:
    case ACTION_COUNT:
        break;
    }
    return FSDP_OK;
}

static fsdp_status events_until(writing *w, int index)
{
    for (; w->next < w->s->n_events && w->s->events[w->next].index <= index; w->next++)
        FSDP_TRY(carry_out(w, &w->s->events[w->next]));
    return FSDP_OK;
}

/* ---- instructions ---- */

static fsdp_status transfer_item(writing *w, const instruction *step)
{
    static const script_kind kinds[] = {[PHASE_STORE] = SCRIPT_OUT,
                                        [PHASE_STORED] = SCRIPT_WAIT,
                                        [PHASE_FETCH] = SCRIPT_IN,
                                        [PHASE_FETCHED] = SCRIPT_WAIT};
    int first = w->m->layout->n_units * SLOT_KINDS + 1;
    return add(w, kinds[step->phase], -1, first + program_transfer_index(w->p, step), -1,
               (double)step->moved->from->bytes);
}

static fsdp_status run_one(writing *w, int index)
{
    const instruction *step = program_at(w->p, index);
    return step->n ? program_run_range(w->p, &w->args, index, index + 1) : transfer_item(w, step);
}

static fsdp_status run_stretches(writing *w, const stretches *cut, int turn)
{
    for (int i = 0; i < cut->n; i++) {
        const stretch *one = &cut->list[i];
        FSDP_TRY(events_until(w, one->first));
        if (!w->out->alone || i == 0)
            FSDP_TRY(add_launch(w, w->out->alone || one->recordable, one->first >= turn));
        else if (one->first == turn)
            FSDP_TRY(add_launch(w, true, true));
        for (int k = one->first; k < one->end; k++)
            FSDP_TRY(run_one(w, k));
    }
    return events_until(w, program_length(w->p));
}

static fsdp_status run_micro_batch(writing *w, const stretches *cut, bool more, bool last)
{
    int turn = program_forward_length(w->p);
    w->next = 0;
    w->more = more;
    w->last = last;
    w->args.accumulate_parameters = more && (w->gradients == GRADIENT_DIRECT || model_holds_gradients(w->m));
    for (int i = 0; w->offloads && i < w->m->layout->n_units; i++)
        if (w->m->offloaded[i])
            FSDP_TRY(add(w, SCRIPT_WAIT, i, SLOT_LAND, -1, 0));
    FSDP_TRY(run_stretches(w, cut, turn));
    kernel_work total;
    kernel_work_of(KERNEL_loss_total, &(loss_total_args){.add = more}, &total);
    return hear(w, &total);
}

static fsdp_status end_section(writing *w, int first, int64_t times)
{
    w->out->sections[w->out->n_sections++] = (script_section){first, w->out->n_items, times};
    return FSDP_OK;
}

static fsdp_status write_micro_batches(writing *w, int64_t n)
{
    stretches cut;
    int first = 0;
    FSDP_TRY(stretches_cut(w->p, w->s, program_forward_length(w->p), &cut));
    fsdp_status status = run_micro_batch(w, &cut, false, n == 1);
    if (status == FSDP_OK)
        status = end_section(w, 0, 1);
    if (status == FSDP_OK && n > 2) {
        first = w->out->n_items;
        status = run_micro_batch(w, &cut, true, false);
        if (status == FSDP_OK)
            status = end_section(w, first, n - 2);
    }
    if (status == FSDP_OK && n > 1) {
        first = w->out->n_items;
        status = run_micro_batch(w, &cut, true, true);
        if (status == FSDP_OK)
            status = end_section(w, first, 1);
    }
    stretches_free(w->m->dev, &cut);
    return status;
}

/* ---- the close of a step ---- */

static fsdp_status gather_for_all(void *context, int which, bool results, int64_t n, int64_t received, size_t element)
{
    writing *w = context;
    return add_collective(w, SCRIPT_ALL_GATHER, which, results ? SLOT_RESULTS : SLOT_DIRECTIONS,
                          w->m->shardings[which].n_shards, 1,
                          (moved_bytes){(double)n * (double)element, (double)received * (double)element});
}

static fsdp_status await_gather(void *context, int which, bool results)
{
    return add(context, SCRIPT_WAIT, which, results ? SLOT_RESULTS : SLOT_DIRECTIONS, -1, 0);
}

static fsdp_status gather_early(void *context, int which)
{
    return start_gather(context, &(schedule_event){.action = ACTION_GATHER, .unit = which});
}

static fsdp_status await_reduction(void *context, int which)
{
    return add(context, SCRIPT_WAIT, which, SLOT_REDUCE, -1, 0);
}

/* One that has the same state, and so the same kernels. */
static fsdp_optimizer_config describe_optimizer(const script_optimizer *o)
{
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.kind = o->kind;
    c.weight_decay = 0.1f; /* as most jobs have it: what decays and what does not are updated apart */
    c.momentum = o->numbers > 0 ? 0.9f : 0;
    c.average = o->numbers > update_kept(&c) ? 0.9f : 0;
    c.state_dtype = o->halves > 0 ? FSDP_BF16 : FSDP_F32;
    return c;
}

/* The optimizer's own code, on the noting device. */
static fsdp_status close_step(writing *w)
{
    fsdp_optimizer *o;
    fsdp_optimizer_config config = describe_optimizer(&w->optimizer);
    w->deaf = true;
    fsdp_status status = fsdp_optimizer_new(w->m, &config, &o);
    w->deaf = false;
    FSDP_TRY(status);
    status = optimizer_close_step(o);
    w->deaf = true;
    fsdp_optimizer_free(o);
    w->deaf = false;
    return status;
}

/* In host memory, in the order in which forward needs the units; each copy then goes back. */
static fsdp_status update_in_host_memory(writing *w)
{
    for (int i = 0; i < w->s->n_events; i++) {
        const schedule_event *e = &w->s->events[i];
        if (e->action != ACTION_REFRESH || own_numel(w, e->unit) == 0)
            continue;
        double copy = (double)own_numel(w, e->unit) * (double)w->m->param_bytes[e->unit];
        FSDP_TRY(add(w, SCRIPT_UPDATE, e->unit, SLOT_REFRESH, SLOT_LAND, update_bytes(w, e->unit, false)));
        FSDP_TRY(add(w, SCRIPT_RETURN, e->unit, SLOT_REFRESH, SLOT_REFRESH, copy));
    }
    return FSDP_OK;
}

static fsdp_status write_close(writing *w)
{
    fsdp_model *m = w->m;
    int first = w->out->n_items;
    for (int i = 0; i < m->layout->n_units; i++) {
        if (m->units[i].gradients != GRADIENTS_REDUCING)
            m->units[i].gradients = GRADIENTS_SHARDED;
        m->units[i].replicating = true;
        if (model_has_replicas(m, i) && !m->offloaded[i] && own_numel(w, i) > 0)
            FSDP_TRY(add(w, SCRIPT_WAIT, i, SLOT_REPLICATE, -1, 0));
    }
    m->micro = 1;
    FSDP_TRY(add_launch(w, w->out->alone, true));
    FSDP_TRY(close_step(w));
    FSDP_TRY(add(w, SCRIPT_SYNC, -1, -1, -1, 0));
    FSDP_TRY(update_in_host_memory(w));
    return end_section(w, first, 1);
}

/* ---- all of it ---- */

/* Kernels see whether an operand is there by its pointer. */
static void pretend_memory(writing *w)
{
    fsdp_model *m = w->m;
    const fsdp_tape *t = program_tape(w->p);
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        bool codes = p->coded && (model_has_all_at_hand(m, p->unit) || w->s->units[p->unit].coded);
        p->data = p->grad = PRETENDED(7);
        p->codes = codes ? PRETENDED(7) : NULL;
    }
    for (int i = 0; i < t->n_tensors; i++)
        if (t->tensors[i]->kind == TENSOR_INPUT || t->tensors[i]->kind == TENSOR_BUFFER)
            t->tensors[i]->pointer = PRETENDED(8);
    w->args = (program_run_args){.dev = m->dev,
                                 .compute = m->compute,
                                 .slab = PRETENDED(9),
                                 .seed = PRETENDED(10),
                                 .scalars = PRETENDED(11),
                                 .statistics = &w->statistics,
                                 .peers = &w->peers,
                                 .deterministic = m->config.deterministic};
    w->statistics = (statistics_group){sum_statistics, w, m->n_ranks};
    w->peers = (peer_group){gather_values, scatter_sums, w, m->n_ranks};
    m->scalars = PRETENDED(12);
    m->norm_blocks = PRETENDED(13);
    m->unit_squares = PRETENDED(14);
    m->shared = PRETENDED(15);
    m->resident = PRETENDED(16);
    m->host = PRETENDED(17);
    m->scales = codes_scales_bytes(m) > 0 ? PRETENDED(18) : NULL;
    codes_give_scales(m);
}

static fsdp_status write_step(writing *w, int64_t micro_batches)
{
    FSDP_TRY(resident_place_units(w->m));
    FSDP_TRY(write_micro_batches(w, micro_batches));
    return write_close(w);
}

fsdp_status plan_script_take(plan_script *out, fsdp_model *m, program *p, const schedule *s, const comm_config *link,
                             int64_t micro_batches, script_optimizer optimizer)
{
    fsdp_model pretended = *m; /* the same, on a device that only notes */
    writing w = {.out = out, .m = &pretended, .p = p, .s = s, .optimizer = optimizer, .link = link};
    const step_carrier carrier = {sum_over_ranks, gather_for_all, await_gather, gather_early, await_reduction, &w};
    planned_program trained = {.program = p, .schedule = (schedule *)(uintptr_t)s};
    w.gradients = model_schedule_options(m).gradients;
    w.offloads = offload_any(m);
    w.ahead_room = m->config.cpu_offload_ahead ? ahead_room(m) : 0;
    out->alone = m->n_ranks == 1 && !w.offloads;
    out->shares_updates = split_wanted(m);
    out->n_units = m->layout->n_units;
    out->n_slots = m->layout->n_units * SLOT_KINDS + 1 + program_transfers(p);
    FSDP_TRY(noting_device_open(m->dev, hear, &w, &w.notes));
    pretended.carrier = &carrier;
    pretended.last_training = &trained;
    pretended.dev = noting_device_base(w.notes);
    pretended.compute = noting_device_stream(w.notes);
    pretend_memory(&w);
    fsdp_status status = write_step(&w, micro_batches);
    resident_forget_units(&pretended);
    noting_device_close(w.notes);
    if (status != FSDP_OK)
        plan_script_clear(out);
    return status;
}
