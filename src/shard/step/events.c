/* The schedule's events, carried out between the instructions of a program. schedule.c planned when each happens;
 * unit.c decides what a unit may do, and offload.c does the rest for offloaded units. */
#include "shard/step/events.h"

#include "base/record/hooks.h"
#include "shard/offload/offload.h"

static unit_places gathered(const event_run *r, const schedule_event *e)
{
    const schedule_unit *u = &r->planned->schedule->units[e->unit];
    return (unit_places){r->m->gather.memory + (e->backward ? u->backward_offset : u->forward_offset),
                         r->m->gather.memory + u->blocks_offset[e->backward]};
}

static uint8_t *kept_part(const event_run *r, const schedule_event *e)
{
    return r->m->gather.memory + r->planned->schedule->units[e->unit].kept_offset;
}

static fsdp_status gather(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    unit *u = &m->units[e->unit];
    bool coded = r->planned->schedule->units[e->unit].coded;
    if (model_has_all_at_hand(m, e->unit))
        return u->parameters == PARAMETERS_FULL ? FSDP_OK : unit_move_parameters(u, PARAMETERS_GATHERING);
    if (u->early) { /* the step before has started it */
        u->early = false;
        return FSDP_OK;
    }
    if (m->residencies[e->unit] == RESIDENT_KEPT) {
        if (!u->stale && u->parameters == PARAMETERS_FULL && u->coded == coded)
            return FSDP_OK;
        if (u->parameters == PARAMETERS_FULL)
            FSDP_TRY(unit_release(u));
    }
    if (e->backward && r->planned->schedule->units[e->unit].kept)
        return unit_gather_kept(u, m->shardings[e->unit].keep_group, kept_part(r, e), gathered(r, e), m->step,
                                m->compute);
    return unit_gather(u, m->shardings[e->unit].shard_group, gathered(r, e), coded, m->step, m->compute);
}

/* Of a unit that a smaller group keeps, the parts are made from the full parameters of forward, and are free again when
 * every rank has them for backward. */
static fsdp_status release(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    unit *u = &m->units[e->unit];
    if (r->planned->schedule->units[e->unit].kept) {
        if (e->backward)
            FSDP_TRY(comm_wait_sent(&u->keep, m->compute));
        else
            FSDP_TRY(
                unit_keep(u, m->shardings[e->unit].keep_group, gathered(r, e), kept_part(r, e), m->dev, m->compute));
    }
    return unit_release(u);
}

static fsdp_status await(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    unit *u = &m->units[e->unit];
    if (u->parameters == PARAMETERS_FULL)
        return FSDP_OK; /* kept from an earlier step */
    u->stale = false;
    if (!model_has_all_at_hand(m, e->unit))
        return unit_await(u, u->segments[0].dtype, gathered(r, e).memory, m->compute);
    FSDP_TRY(unit_move_parameters(u, PARAMETERS_FULL));
    unit_point_at_copy(u, u->segments[0].dtype);
    return FSDP_OK;
}

static fsdp_status widen(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    bool own = model_has_all_at_hand(m, e->unit) || m->residencies[e->unit] == RESIDENT_ALIAS;
    return unit_widen(&m->units[e->unit], own ? NULL : gathered(r, e).blocks,
                      m->gather.memory + r->planned->schedule->units[e->unit].wide_offset[e->backward], m->dev,
                      m->compute);
}

static fsdp_status clear_gradients(fsdp_model *m, int index, uint8_t *base)
{
    return m->dev->zero(m->compute, base, (size_t)m->units[index].segments[0].layout->padded * m->grad_bytes[index]);
}

/* Elements of the full gradient that no kernel writes: gaps between parameters, parameters that this program does not
 * use. They must be zero, for the norm and for the sums. */
static fsdp_status clear_unwritten(event_run *r, int index, uint8_t *base)
{
    const layout_segment *s = r->m->units[index].segments[0].layout;
    size_t element = r->m->grad_bytes[index];
    if (r->batch.nothing)
        return clear_gradients(r->m, index, base);
    int n;
    const parameter_use *uses = program_parameter_uses(r->planned->program, &n);
    int64_t clear_from = 0;
    for (int k = 0; k <= s->n_slots; k++) {
        bool end = k == s->n_slots, written = end;
        for (int i = 0; i < n && !written; i++)
            written = uses[i].parameter == s->slots[k].parameter && uses[i].grad_first >= 0;
        if (!written)
            continue;
        int64_t until = end ? s->padded : s->slots[k].offset;
        if (until > clear_from)
            FSDP_TRY(r->m->dev->zero(r->m->compute, base + (size_t)clear_from * element,
                                     (size_t)(until - clear_from) * element));
        clear_from = end ? s->padded : s->slots[k].offset + s->slots[k].parameter->numel;
    }
    return FSDP_OK;
}

static fsdp_status take_gradients(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    unit *u = &m->units[e->unit];
    bool alone = r->gradients == GRADIENT_DIRECT, direct = alone && !m->offloaded[e->unit];
    uint8_t *memory = direct ? NULL : m->gradient.memory + r->planned->schedule->units[e->unit].gradient_offset;
    bool first = u->gradients == GRADIENTS_NONE; /* of this step's micro-batches to use the unit */
    FSDP_TRY(unit_take_gradients(u, m->policies[e->unit].reduce_dtype, memory));
    if (r->batch.more && alone)
        return direct ? FSDP_OK : offload_preloaded(m, e->unit);
    if (r->batch.more && model_holds_gradients(m)) /* the program adds, to whatever is there */
        return first ? clear_gradients(m, e->unit, memory) : FSDP_OK;
    return clear_unwritten(r, e->unit, direct ? (uint8_t *)u->segments[0].gradient : memory);
}

static bool reduces_now(const event_run *r)
{
    return !model_holds_gradients(r->m) || r->batch.last;
}

/* Whether a reduction adds to what earlier micro-batches summed. */
static bool reduces_more(const event_run *r)
{
    return !model_holds_gradients(r->m) && r->batch.more;
}

/* Where this rank's part of the sum goes. */
static void *sum_of(const event_run *r, int index)
{
    const fsdp_model *m = r->m;
    if (!m->offloaded[index])
        return m->units[index].segments[0].gradient;
    return m->gradient.memory + r->planned->schedule->units[index].landing_offset;
}

static fsdp_status preload(event_run *r, const schedule_event *e)
{
    bool more = r->gradients == GRADIENT_DIRECT ? r->batch.more : reduces_more(r);
    return more ? offload_preload(r->m, e->unit, sum_of(r, e->unit)) : FSDP_OK;
}

static fsdp_status reduce(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    unit *u = &m->units[e->unit];
    bool offloaded = m->offloaded[e->unit], more = reduces_more(r);
    void *sum = sum_of(r, e->unit);
    if (r->gradients == GRADIENT_DIRECT) {
        FSDP_TRY(unit_move_gradients(u, GRADIENTS_REDUCING));
    } else if (reduces_now(r)) {
        if (offloaded && more)
            FSDP_TRY(offload_preloaded(m, e->unit));
        FSDP_TRY(unit_reduce(u, m->shardings[e->unit].shard_group, m->policies[e->unit].reduce_dtype,
                             m->gradient.memory + r->planned->schedule->units[e->unit].gradient_offset, sum, more,
                             m->step, m->compute));
    } else {
        return FSDP_OK;
    }
    return offloaded ? offload_land(m, e->unit, sum, r->batch.last) : FSDP_OK;
}

/* The last reductions of a step are waited for where its norm needs them. */
static bool is_left_under_way(const event_run *r, const schedule_event *e)
{
    return r->batch.last && e->index == program_length(r->planned->program) && !r->m->offloaded[e->unit] &&
           !model_has_replicas(r->m, e->unit);
}

/* A gradient that leaves at the end of a program may take until the next one begins. */
static fsdp_status reduced(event_run *r, const schedule_event *e)
{
    fsdp_model *m = r->m;
    unit *u = &m->units[e->unit];
    if (r->gradients == GRADIENT_DIRECT)
        FSDP_TRY(unit_move_gradients(u, GRADIENTS_SHARDED));
    else if (reduces_now(r) && !is_left_under_way(r, e))
        FSDP_TRY(unit_reduced(u, m->compute));
    if (r->batch.last && model_has_replicas(m, e->unit) && !m->offloaded[e->unit] && u->segments[0].gradient)
        FSDP_TRY(unit_replicate(u, m->shardings[e->unit].replica_group, u->segments[0].gradient, m->step, m->compute));
    return m->offloaded[e->unit] && e->index < program_length(r->planned->program) ? offload_landed(m, e->unit)
                                                                                   : FSDP_OK;
}

fsdp_status events_turn(fsdp_model *m, planned_program *p, bool more)
{
    static const char backward[] = "backward";
    if (!p->phase || p->phase == backward)
        return FSDP_OK;
    if (m->dev->is_recording && m->dev->is_recording(m->compute))
        return inner_mark_record(m->dev, m->compute, &p->turns[more]);
    HOOK(HOOK_PHASE, HOOK_END, p->phase, NULL, 0, 0);
    p->phase = backward;
    HOOK(HOOK_PHASE, HOOK_BEGIN, p->phase, NULL, 0, 0);
    return FSDP_OK;
}

fsdp_status events_before(void *context, int index)
{
    event_run *r = context;
    if (index >= r->planned->turn && !r->turned) {
        r->turned = true; /* once: a recording would have the moment after every instruction */
        FSDP_TRY(events_turn(r->m, r->planned, r->batch.more));
    }
    const schedule *s = r->planned->schedule;
    for (; r->next < s->n_events && s->events[r->next].index <= index; r->next++) {
        const schedule_event *e = &s->events[r->next];
        fsdp_status status = FSDP_OK;
        switch (e->action) {
        case ACTION_GATHER:
            status = gather(r, e);
            break;
        case ACTION_AWAIT:
            status = await(r, e);
            break;
        case ACTION_WIDEN:
            status = widen(r, e);
            break;
        case ACTION_RELEASE:
            status = release(r, e);
            break;
        case ACTION_REFRESH:
            status = offload_refresh(r->m, e->unit);
            break;
        case ACTION_PRELOAD:
            status = preload(r, e);
            break;
        case ACTION_GRADIENTS:
            status = take_gradients(r, e);
            break;
        case ACTION_REDUCE:
            status = reduce(r, e);
            break;
        case ACTION_REDUCED:
            status = reduced(r, e);
            break;
        case ACTION_COUNT:
            break;
        }
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status events_clear_untrained(fsdp_model *m, const schedule *s)
{
    for (int i = 0; i < m->layout->n_units && m->micro == 0; i++) {
        unit_segment *segment = &m->units[i].segments[0];
        if (s->units[i].trained || !segment->gradient)
            continue;
        if (m->offloaded[i])
            FSDP_TRY(offload_clear(m, i));
        else
            FSDP_TRY(m->dev->zero(m->compute, segment->gradient,
                                  (size_t)segment->numel * fsdp_dtype_size(segment->gradient_dtype)));
    }
    return FSDP_OK;
}
