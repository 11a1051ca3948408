/* Runs the program instruction by instruction on a noting device, with the schedule's events between them, and then the
 * close of the step. step/events.c, gradients.c and optimizer.c do the same on a real one. */
#include "shard/plan/script.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "device/noting.h"
#include "shard/model.h"
#include "shard/offload/offload.h"

/* Kinds of slots; each unit has one of every kind. */
enum { SLOT_GATHER, SLOT_REDUCE, SLOT_REPLICATE, SLOT_LAND, SLOT_REFRESH, SLOT_PRELOAD, SLOT_KINDS };

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
    int moments;
    int next;        /* event */
    bool more, last; /* of the micro-batch */
    bool offloads;
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
    return plan_script_add_work(((writing *)context)->out, work);
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

static fsdp_status add_collective(writing *w, script_collective kind, int which, int slot, int ranks, int stride,
                                  double bytes)
{
    return plan_script_add(w->out, (script_item){.kind = SCRIPT_COLLECTIVE,
                                                 .collective = kind,
                                                 .unit = which,
                                                 .slot = slot_of(which, slot),
                                                 .after = -1,
                                                 .ranks = ranks,
                                                 .stride = stride,
                                                 .bytes = bytes});
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
static fsdp_status exchange(writing *w, script_collective kind, double bytes)
{
    int slot = w->m->layout->n_units * SLOT_KINDS;
    FSDP_TRY(plan_script_add(w->out, (script_item){.kind = SCRIPT_COLLECTIVE,
                                                   .collective = kind,
                                                   .unit = -1,
                                                   .slot = slot,
                                                   .after = -1,
                                                   .ranks = w->m->n_ranks,
                                                   .stride = 1,
                                                   .bytes = bytes}));
    return add(w, SCRIPT_WAIT, -1, slot, -1, 0);
}

static fsdp_status sum_statistics(void *context, stream *s, double *values, int64_t n)
{
    (void)s, (void)values;
    return exchange(context, SCRIPT_ALL_REDUCE, 8 * (double)n);
}

static fsdp_status gather_values(void *context, stream *s, buffer mine, buffer all, int64_t n)
{
    writing *w = context;
    (void)s, (void)all;
    return exchange(w, SCRIPT_ALL_GATHER, (double)(n * w->m->n_ranks) * (double)fsdp_dtype_size(mine.dtype));
}

static fsdp_status scatter_sums(void *context, stream *s, buffer all, buffer mine, int64_t n, bool add_to)
{
    writing *w = context;
    (void)s, (void)mine, (void)add_to;
    return exchange(w, SCRIPT_REDUCE_SCATTER, (double)(n * w->m->n_ranks) * (double)fsdp_dtype_size(all.dtype));
}

/* ---- events of the schedule ---- */

static double full_bytes(const writing *w, int which, size_t element, bool trained_only)
{
    const layout_unit *u = &w->m->layout->units[which];
    double bytes = 0;
    for (int i = 0; i < u->n_segments; i++) {
        const layout_segment *s = &u->segments[i];
        bytes += s->trainable || !trained_only ? (double)layout_kept_bytes(s, s->padded, element) : 0;
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

static fsdp_status gather(writing *w, const schedule_event *e)
{
    const fsdp_model *m = w->m;
    bool kept = e->backward && w->s->units[e->unit].kept;
    if (moves_nothing(w, e->unit))
        return FSDP_OK;
    return add_collective(w, SCRIPT_ALL_GATHER, e->unit, SLOT_GATHER,
                          kept ? m->keep_groups[e->unit] : m->shardings[e->unit].n_shards, 1,
                          full_bytes(w, e->unit, m->param_bytes[e->unit], false));
}

/* Of a unit that a smaller group keeps, this rank's part is copied out of the full parameters. */
static fsdp_status release(writing *w, const schedule_event *e)
{
    if (!w->s->units[e->unit].kept || e->backward)
        return FSDP_OK;
    double part = full_bytes(w, e->unit, w->m->param_bytes[e->unit], false) / w->m->keep_groups[e->unit];
    kernel_work copy = kernel_work_of_copy(2 * part);
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

static fsdp_status land(writing *w, int which)
{
    double bytes = (double)own_numel(w, which) * sizeof(float);
    return add(w, SCRIPT_OUT, which, SLOT_LAND, w->gradients == GRADIENT_DIRECT ? -1 : SLOT_REDUCE, bytes);
}

static fsdp_status reduce(writing *w, const schedule_event *e)
{
    const fsdp_model *m = w->m;
    if (w->gradients != GRADIENT_DIRECT) {
        if (!reduces_now(w))
            return FSDP_OK;
        const unit_sharding *h = &m->shardings[e->unit];
        FSDP_TRY(add_collective(w, h->whole ? SCRIPT_ALL_REDUCE : SCRIPT_REDUCE_SCATTER, e->unit, SLOT_REDUCE,
                                h->n_shards, 1, full_bytes(w, e->unit, m->grad_bytes[e->unit], true)));
    }
    return m->offloaded[e->unit] ? land(w, e->unit) : FSDP_OK;
}

static fsdp_status reduced(writing *w, const schedule_event *e)
{
    if (w->gradients != GRADIENT_DIRECT && reduces_now(w))
        FSDP_TRY(add(w, SCRIPT_WAIT, e->unit, SLOT_REDUCE, -1, 0));
    bool leaves = w->m->offloaded[e->unit] && e->index < program_length(w->p);
    return leaves ? add(w, SCRIPT_WAIT, e->unit, SLOT_LAND, -1, 0) : FSDP_OK;
}

static fsdp_status preload(writing *w, const schedule_event *e)
{
    bool more = w->more && (w->gradients == GRADIENT_DIRECT || !model_holds_gradients(w->m));
    double bytes = (double)own_numel(w, e->unit) * sizeof(float);
    if (!more)
        return FSDP_OK;
    FSDP_TRY(add(w, SCRIPT_IN, e->unit, SLOT_PRELOAD, SLOT_LAND, bytes));
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

static fsdp_status sum_replicas(writing *w)
{
    const fsdp_model *m = w->m;
    for (int i = 0; i < m->layout->n_units; i++)
        if (model_has_replicas(m, i) && own_numel(w, i) > 0)
            FSDP_TRY(add_collective(w, SCRIPT_ALL_REDUCE, i, SLOT_REPLICATE, m->shardings[i].n_replicas,
                                    m->shardings[i].n_shards, (double)own_numel(w, i) * sizeof(float)));
    for (int i = 0; i < m->layout->n_units; i++)
        if (model_has_replicas(m, i) && own_numel(w, i) > 0)
            FSDP_TRY(add(w, SCRIPT_WAIT, i, SLOT_REPLICATE, -1, 0));
    return FSDP_OK;
}

static fsdp_status add_squares(writing *w)
{
    kernel_work work;
    for (int i = 0; i < w->m->layout->n_units; i++) {
        const layout_segment *s = &w->m->layout->units[i].segments[0];
        int64_t n = s->trainable ? model_counted(w->m, i, s).n : 0;
        if (n == 0)
            continue;
        kernel_work_of(KERNEL_norm_blocks, &(norm_blocks_args){.n = n, .x = {PRETENDED(0), FSDP_F32}}, &work);
        FSDP_TRY(hear(w, &work));
        kernel_work_of(KERNEL_sum_f64, &(sum_f64_args){.n = ceil_div(n, NORM_BLOCK)}, &work);
        FSDP_TRY(hear(w, &work));
    }
    return FSDP_OK;
}

static kernel_work update_of(const writing *w, int which, int64_t n)
{
    fsdp_dtype dtype = w->m->policies[which].param_dtype;
    bool halves = model_splits_masters(w->m, dtype) && !w->m->offloaded[which];
    optimizer_args a = {.kind = FSDP_ADAMW,
                        .n = n,
                        .parameter = halves ? NULL : PRETENDED(0),
                        .gradient = PRETENDED(1),
                        .moment1 = w->moments > 0 ? PRETENDED(2) : NULL,
                        .moment2 = w->moments > 1 ? PRETENDED(3) : NULL,
                        .average = w->moments > 2 ? PRETENDED(4) : NULL,
                        .copy = {dtype == FSDP_F32 ? NULL : PRETENDED(5), dtype},
                        .low = halves ? PRETENDED(6) : NULL};
    kernel_work work;
    kernel_work_of(KERNEL_optimizer, &a, &work);
    return work;
}

/* Elements with weight decay and those without are two calls. */
static fsdp_status update_unit(writing *w, int which)
{
    const fsdp_model *m = w->m;
    const layout_segment *s = &m->layout->units[which].segments[0];
    int64_t n = own_numel(w, which), first = model_part(m, which, s).first;
    int64_t decayed = min_i64(max_i64(s->decay_end - first, 0), n);
    const int64_t parts[] = {decayed, n - decayed};
    for (int i = 0; i < 2; i++) {
        kernel_work work = update_of(w, which, parts[i]);
        if (parts[i] > 0)
            FSDP_TRY(hear(w, &work));
    }
    return FSDP_OK;
}

/* In host memory, in the order in which forward needs the units; each copy then goes back. */
static fsdp_status update_in_host_memory(writing *w)
{
    for (int i = 0; i < w->s->n_events; i++) {
        const schedule_event *e = &w->s->events[i];
        if (e->action != ACTION_REFRESH || own_numel(w, e->unit) == 0)
            continue;
        kernel_work work = update_of(w, e->unit, own_numel(w, e->unit));
        double copy = (double)own_numel(w, e->unit) * (double)w->m->param_bytes[e->unit];
        FSDP_TRY(add(w, SCRIPT_UPDATE, e->unit, SLOT_REFRESH, SLOT_LAND, work.bytes));
        FSDP_TRY(add(w, SCRIPT_RETURN, e->unit, SLOT_REFRESH, SLOT_REFRESH, copy));
    }
    return FSDP_OK;
}

static fsdp_status write_close(writing *w)
{
    const fsdp_model *m = w->m;
    kernel_work clip;
    int first = w->out->n_items;
    kernel_work_of(KERNEL_clip, &(clip_args){.max_norm = 1}, &clip);
    FSDP_TRY(sum_replicas(w));
    FSDP_TRY(add_launch(w, w->out->alone, true));
    FSDP_TRY(add_squares(w));
    if (m->n_ranks > 1)
        FSDP_TRY(exchange(w, SCRIPT_ALL_REDUCE, 24));
    FSDP_TRY(hear(w, &clip));
    for (int i = 0; i < m->layout->n_units; i++)
        if (!m->offloaded[i])
            FSDP_TRY(update_unit(w, i));
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
    for (int i = 0; i < m->contents.n_parameters; i++)
        m->contents.parameters[i]->data = m->contents.parameters[i]->grad = PRETENDED(7);
    for (int i = 0; i < t->n_tensors; i++)
        if (t->tensors[i]->kind == TENSOR_INPUT || t->tensors[i]->kind == TENSOR_BUFFER)
            t->tensors[i]->pointer = PRETENDED(8);
    w->args = (program_run_args){.dev = noting_device_base(w->notes),
                                 .compute = noting_device_stream(w->notes),
                                 .slab = PRETENDED(9),
                                 .seed = PRETENDED(10),
                                 .scalars = PRETENDED(11),
                                 .statistics = &w->statistics,
                                 .peers = &w->peers,
                                 .deterministic = m->config.deterministic};
    w->statistics = (statistics_group){sum_statistics, w, m->n_ranks};
    w->peers = (peer_group){gather_values, scatter_sums, w, m->n_ranks};
}

fsdp_status plan_script_take(plan_script *out, fsdp_model *m, program *p, const schedule *s, int64_t micro_batches,
                             int moments)
{
    writing w = {.out = out, .m = m, .p = p, .s = s, .moments = moments};
    w.gradients = model_schedule_options(m).gradients;
    w.offloads = offload_any(m);
    out->alone = m->n_ranks == 1 && !w.offloads;
    out->n_units = m->layout->n_units;
    out->n_slots = m->layout->n_units * SLOT_KINDS + 1 + program_transfers(p);
    FSDP_TRY(noting_device_open(m->dev, hear, &w, &w.notes));
    pretend_memory(&w);
    fsdp_status status = write_micro_batches(&w, micro_batches);
    if (status == FSDP_OK)
        status = write_close(&w);
    noting_device_close(w.notes);
    if (status != FSDP_OK)
        plan_script_clear(out);
    return status;
}
