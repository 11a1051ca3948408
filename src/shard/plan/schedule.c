/* Planning of gathers and reductions around the instructions of a program. */
#include "shard/plan/schedule.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/lifetime.h"

/* Instructions that need a unit: value read in forward and in backward, gradient written. -1: none. */
typedef struct unit_use {
    int forward_first, forward_last, backward_first, backward_last, grad_first, grad_last;
} unit_use;

/* One stay of full parameters in memory. */
typedef struct stay {
    int unit;
    bool backward;           /* begins in backward */
    int gather, first, last; /* gather starts before `gather`, instructions first..last read it */
} stay;

/* Where the offset of something goes once it is known. */
typedef struct place {
    size_t *to, *also; /* also: NULL, or a second place */
} place;

/* A unit has two stays at most, each of parameters and of blocks, is kept once and widened twice. */
enum { MOST_LIVES = 7 };

typedef struct planning {
    const program *p;
    const layout *l;
    const schedule_options *o;
    schedule *s;
    unit_use *uses;
    stay *stays;
    int n_stays;
    int events_capacity;
    lifetime *items; /* the schedule's lives, */
    place *places;   /* and where the offset of each is wanted */
} planning;

size_t schedule_codes_bytes(const layout_segment *s)
{
    return round_up((size_t)s->padded, 256);
}

static size_t segment_bytes(const layout_segment *s, size_t element_bytes, bool coded)
{
    int64_t valued = coded ? s->padded - s->coded_end : s->padded;
    return (coded && s->coded_end > 0 ? schedule_codes_bytes(s) : 0) + round_up((size_t)valued * element_bytes, 256);
}

size_t schedule_moved_bytes(const layout_segment *s, int64_t first, int64_t n, size_t element_bytes, bool coded)
{
    if (!coded || s->coded_end == 0)
        return layout_kept_bytes(s, n, element_bytes);
    int64_t valued = max_i64(0, first + n - max_i64(first, s->coded_end));
    return (size_t)n + (size_t)valued * element_bytes;
}

size_t schedule_segment_offset(const layout_unit *u, int segment, size_t element_bytes, bool coded)
{
    size_t offset = 0;
    for (int i = 0; i < segment; i++)
        offset += segment_bytes(&u->segments[i], element_bytes, coded);
    return offset;
}

size_t schedule_kept_offset(const layout_unit *u, int segment, size_t element_bytes, int size)
{
    size_t offset = 0;
    for (int i = 0; i < segment; i++) {
        int64_t most = 0;
        for (int r = 0; r < size; r++)
            most = max_i64(most, layout_kept_numel(&u->segments[i], size, r));
        offset += round_up(layout_kept_bytes(&u->segments[i], most, element_bytes), 256);
    }
    return offset;
}

size_t schedule_gathered_bytes(const layout_unit *u, size_t element_bytes, bool coded)
{
    return schedule_segment_offset(u, u->n_segments - (layout_int8_segment(u) != NULL), element_bytes, coded);
}

size_t schedule_staying_bytes(const layout_unit *u, size_t element_bytes)
{
    size_t values = schedule_gathered_bytes(u, element_bytes, false);
    size_t codes = schedule_gathered_bytes(u, element_bytes, true);
    return codes > values ? codes : values; /* with padding and few codes they may be more */
}

size_t schedule_gradient_bytes(const layout_unit *u, size_t element_bytes)
{
    return u->segments[0].trainable ? segment_bytes(&u->segments[0], element_bytes, false) : 0;
}

size_t schedule_blocks_bytes(const layout_unit *u)
{
    const layout_segment *s = layout_int8_segment(u);
    return s ? round_up(layout_kept_bytes(s, s->padded, 0), 256) : 0;
}

size_t schedule_wide_bytes(const layout_unit *u, size_t element_bytes)
{
    const layout_segment *s = layout_int8_segment(u);
    return s ? round_up((size_t)s->padded * element_bytes, 256) : 0;
}

static parameter_residency residency_of(const planning *g, int unit)
{
    return g->o->residencies ? g->o->residencies[unit] : g->o->parameters;
}

static size_t element_bytes(const planning *g, int unit)
{
    return g->o->unit_param_bytes ? g->o->unit_param_bytes[unit] : g->o->param_bytes;
}

static size_t gathered_bytes(const planning *g, int unit)
{
    const layout_unit *u = &g->l->units[unit];
    bool stays = residency_of(g, unit) == RESIDENT_KEPT;
    return stays ? schedule_staying_bytes(u, element_bytes(g, unit))
                 : schedule_gathered_bytes(u, element_bytes(g, unit), g->s->units[unit].coded);
}

static size_t gradient_bytes(const planning *g, int unit)
{
    size_t element = g->o->unit_grad_bytes ? g->o->unit_grad_bytes[unit] : g->o->grad_bytes;
    return schedule_gradient_bytes(&g->l->units[unit], element);
}

static void widen(int *first, int *last, int use_first, int use_last)
{
    if (use_first >= 0 && (*first < 0 || use_first < *first))
        *first = use_first;
    if (use_last > *last)
        *last = use_last;
}

static void collect_uses(planning *g)
{
    int n;
    const parameter_use *uses = program_parameter_uses(g->p, &n);
    for (int i = 0; i < g->l->n_units; i++)
        g->uses[i] = (unit_use){-1, -1, -1, -1, -1, -1};
    for (int i = 0; i < n; i++) {
        unit_use *u = &g->uses[uses[i].parameter->unit];
        widen(&u->forward_first, &u->forward_last, uses[i].forward_first, uses[i].forward_last);
        widen(&u->backward_first, &u->backward_last, uses[i].backward_first, uses[i].backward_last);
        widen(&u->grad_first, &u->grad_last, uses[i].grad_first, uses[i].grad_last);
    }
}

static bool has_codes(const layout_unit *u)
{
    bool coded = false;
    for (int i = 0; i < u->n_segments; i++)
        coded |= u->segments[i].coded_end > 0;
    return coded;
}

/* One reader that wants the values of a weight, and the unit is gathered as values. */
static void choose_coded(planning *g)
{
    for (int i = 0; i < g->l->n_units; i++)
        g->s->units[i].coded = !g->o->alias && residency_of(g, i) != RESIDENT_ALIAS && has_codes(&g->l->units[i]);
    for (int i = 0; i < program_length(g->p); i++) {
        const node *n = program_at(g->p, i)->n;
        for (int k = 0; n && k < n->n_inputs; k++) {
            const fsdp_parameter *p = n->inputs[k] ? n->inputs[k]->parameter : NULL;
            if (p && p->coded && !(n->op->reads_codes && n->op->reads_codes(n, k)))
                g->s->units[p->unit].coded = false;
        }
    }
}

static fsdp_status add_event(planning *g, int index, schedule_action action, int unit, bool backward)
{
    schedule *s = g->s;
    if (s->n_events == g->events_capacity) {
        int wanted = g->events_capacity ? g->events_capacity * 2 : 128;
        schedule_event *grown = realloc(s->events, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "scheduling %d units: out of host memory", g->l->n_units);
        s->events = grown;
        g->events_capacity = wanted;
    }
    s->events[s->n_events++] = (schedule_event){index, action, unit, backward};
    return FSDP_OK;
}

static int by_first_use(const void *a, const void *b)
{
    const stay *x = a, *y = b;
    return x->first != y->first ? x->first - y->first : x->unit - y->unit;
}

/* In forward and in backward, and gathered for each where nothing speaks against it. */
static bool used_twice(const planning *g, int unit)
{
    const unit_use *u = &g->uses[unit];
    return u->forward_last >= 0 && u->backward_first >= 0 && residency_of(g, unit) == RESIDENT_GATHERED;
}

/* Units at the turn from forward to backward are not released: the one whose forward reaches furthest, and as many
 * before it as prefetch would gather there for backward anyway. Keeping them takes no more memory than that. */
static bool stays_over_turn(const planning *g, int unit)
{
    bool prefetch = g->o->backward_prefetch != FSDP_PREFETCH_NONE;
    int further = 0, most = prefetch ? g->o->gather_buffers : 1;
    for (int i = 0; i < g->l->n_units; i++)
        further += used_twice(g, i) && g->uses[i].forward_last > g->uses[unit].forward_last;
    return used_twice(g, unit) && further < (most > 1 ? most : 1);
}

/* One stay for a unit held over the turn, else one for forward and one for backward; none for what is always there. */
static void plan_stays(planning *g)
{
    for (int i = 0; i < g->l->n_units; i++) {
        const unit_use *u = &g->uses[i];
        if (residency_of(g, i) == RESIDENT_ALIAS)
            continue;
        bool forward = u->forward_first >= 0, backward = u->backward_first >= 0;
        bool whole = residency_of(g, i) != RESIDENT_GATHERED || stays_over_turn(g, i);
        if (forward && backward && whole)
            g->stays[g->n_stays++] = (stay){i, false, 0, u->forward_first, u->backward_last};
        else {
            if (forward)
                g->stays[g->n_stays++] = (stay){i, false, 0, u->forward_first, u->forward_last};
            if (backward)
                g->stays[g->n_stays++] = (stay){i, true, 0, u->backward_first, u->backward_last};
        }
    }
    qsort(g->stays, (size_t)g->n_stays, sizeof *g->stays, by_first_use);
}

/* A unit that computes for too short a time to hide a collective of the other: a norm between a layer and the head. It
 * is no place of its own where places are counted. */
static bool is_small_beside(const planning *g, int unit, int other)
{
    enum { SMALL = 16 };
    return g->l->units[unit].parameters_numel < g->l->units[other].parameters_numel / SMALL;
}

/* The unit that begins its backward `ahead` places before the stay's first use; -1 when there is none. */
static int unit_before(const planning *g, const stay *s, int ahead)
{
    int unit = -1;
    for (int k = 0, first = s->first; k < ahead; k++, first = g->uses[unit].backward_first) {
        unit = -1;
        for (int i = 0; i < g->l->n_units; i++) {
            int at = g->uses[i].backward_first;
            if (at >= 0 && at < first && (unit < 0 || at > g->uses[unit].backward_first) &&
                !is_small_beside(g, i, s->unit))
                unit = i;
        }
        if (unit < 0)
            return -1;
    }
    return unit;
}

/* When the stay `ahead` places before stay number i begins; the program's start when there is none. */
static int stay_before(const planning *g, int i, int ahead)
{
    int before = i;
    while (before > 0 && ahead > 0)
        ahead -= !is_small_beside(g, g->stays[--before].unit, g->stays[i].unit);
    return ahead > 0 ? 0 : g->stays[before].first;
}

/* When the first unit begins that names this stay's unit in its list; -1: none does before the stay's first use. */
static int listed_start(const planning *g, const stay *s, bool in_backward)
{
    const bool *lists = g->o->prefetches[in_backward];
    int n = g->l->n_units, start = -1;
    for (int i = 0; lists && i < n; i++) {
        int begins = in_backward ? g->uses[i].backward_first : g->uses[i].forward_first;
        if (lists[(size_t)i * (size_t)n + (size_t)s->unit] && begins >= 0 && begins < s->first &&
            (start < 0 || begins < start))
            start = begins;
    }
    return start;
}

/* A gather starts when the unit `ahead` places before it begins to compute (pre), or ends (post). */
static void plan_gather_starts(planning *g)
{
    int turn = program_forward_length(g->p), ahead = g->o->gather_buffers - 1;
    for (int i = 0; i < g->n_stays; i++) {
        stay *s = &g->stays[i];
        bool in_backward = s->first >= turn;
        bool prefetch = in_backward ? g->o->backward_prefetch != FSDP_PREFETCH_NONE : g->o->forward_prefetch;
        s->gather = listed_start(g, s, in_backward);
        if (s->gather >= 0)
            continue;
        s->gather = s->first;
        if (!prefetch || ahead < 1)
            continue;
        int before = in_backward ? unit_before(g, s, ahead) : -1;
        const unit_use *u = before < 0 ? NULL : &g->uses[before];
        bool post = g->o->backward_prefetch == FSDP_PREFETCH_POST;
        if (!in_backward)
            s->gather = stay_before(g, i, ahead);
        else if (!u && !post) /* the first of backward, a head for instance, follows forward's last */
            s->gather = (int)max_i64(stay_before(g, i, ahead), g->uses[s->unit].forward_last + 1);
        else
            s->gather = !u     ? turn
                        : post ? (int)min_i64(s->first, u->backward_last + 1)
                               : (int)max_i64(turn, u->backward_first);
    }
}

/* Copies that stay lie in front, the same place in all programs. Returns what they take. */
static size_t place_kept(planning *g)
{
    size_t bytes = 0;
    for (int i = 0; i < g->l->n_units && !g->o->alias; i++) {
        schedule_unit *u = &g->s->units[i];
        if (residency_of(g, i) != RESIDENT_KEPT)
            continue;
        u->forward_offset = u->backward_offset = bytes;
        bytes += gathered_bytes(g, i);
        u->blocks_offset[0] = u->blocks_offset[1] = bytes;
        bytes += schedule_blocks_bytes(&g->l->units[i]);
    }
    return bytes;
}

static void add_life(planning *g, schedule_life life, size_t *to, size_t *also)
{
    int at = g->s->n_lives;
    if (life.bytes == 0)
        return;
    g->items[at] = (lifetime){life.bytes, life.first, life.last, 0};
    g->places[at] = (place){to, also};
    g->s->lives[g->s->n_lives++] = life;
}

static fsdp_status add_gather_events(planning *g, const stay *s)
{
    FSDP_TRY(add_event(g, s->gather, ACTION_GATHER, s->unit, s->backward));
    FSDP_TRY(add_event(g, s->first, ACTION_AWAIT, s->unit, s->backward));
    if (residency_of(g, s->unit) == RESIDENT_KEPT)
        return FSDP_OK;
    return add_event(g, s->last + 1, ACTION_RELEASE, s->unit, s->backward);
}

/* What a smaller group keeps, from the end of the forward stay, out of which it is copied, to that of the backward
 * stay, when every rank has read it. */
static void plan_kept(planning *g)
{
    for (int i = 0; i < g->n_stays && g->o->keep_groups; i++) {
        const stay *s = &g->stays[i];
        int size = g->o->keep_groups[s->unit];
        if (!s->backward || size == 0 || g->uses[s->unit].forward_last < 0)
            continue;
        const layout_unit *u = &g->l->units[s->unit];
        size_t bytes = schedule_kept_offset(u, u->n_segments, element_bytes(g, s->unit), size);
        add_life(g, (schedule_life){s->unit, false, bytes, g->uses[s->unit].forward_last, s->last},
                 &g->s->units[s->unit].kept_offset, NULL);
        g->s->units[s->unit].kept = true;
    }
}

/* What blocks became stays for forward and for backward, whatever is gathered when: it is the larger of the two. Of the
 * unit at the turn it stays for both, unless that unit is released in between. */
static bool is_wide_over_turn(const planning *g, int unit)
{
    const unit_use *u = &g->uses[unit];
    bool last = u->forward_last >= 0 && u->backward_first >= 0 &&
                (residency_of(g, unit) != RESIDENT_GATHERED || stays_over_turn(g, unit));
    for (int i = 0; i < g->l->n_units && last; i++)
        last = !layout_int8_segment(&g->l->units[i]) || g->uses[i].backward_first < 0 ||
               g->uses[i].forward_last <= u->forward_last;
    return last;
}

/* The last instruction of the stay before which blocks are read: by WIDEN, or by whoever keeps a part of them. */
static int blocks_last(const planning *g, const stay *s)
{
    const unit_use *u = &g->uses[s->unit];
    if (!s->backward && g->o->keep_groups && g->o->keep_groups[s->unit] > 0)
        return s->last;
    bool again = !s->backward && s->last >= u->backward_first && u->backward_first >= 0;
    return again && !is_wide_over_turn(g, s->unit) ? u->backward_first : s->first;
}

static fsdp_status plan_widened(planning *g)
{
    for (int i = 0; i < g->l->n_units; i++) {
        const unit_use *u = &g->uses[i];
        size_t bytes = schedule_wide_bytes(&g->l->units[i], element_bytes(g, i)), *to = g->s->units[i].wide_offset;
        bool over_turn = is_wide_over_turn(g, i);
        if (bytes == 0)
            continue;
        if (u->forward_first >= 0) {
            int last = over_turn ? u->backward_last : u->forward_last;
            add_life(g, (schedule_life){i, false, bytes, u->forward_first, last}, &to[0], &to[1]);
            FSDP_TRY(add_event(g, u->forward_first, ACTION_WIDEN, i, false));
        }
        if (u->backward_first >= 0 && !over_turn) {
            add_life(g, (schedule_life){i, true, bytes, u->backward_first, u->backward_last}, &to[1], NULL);
            FSDP_TRY(add_event(g, u->backward_first, ACTION_WIDEN, i, true));
        }
    }
    return FSDP_OK;
}

static fsdp_status plan_gathered(planning *g)
{
    plan_stays(g);
    plan_gather_starts(g);
    for (int i = 0; i < g->n_stays; i++) {
        const stay *s = &g->stays[i];
        schedule_unit *u = &g->s->units[s->unit];
        bool own = g->o->alias || residency_of(g, s->unit) == RESIDENT_KEPT;
        g->s->gathers++;
        if (!own) { /* of two stays the later one comes later in the list */
            schedule_life full = {s->unit, s->backward, gathered_bytes(g, s->unit), s->gather, s->last}, blocks = full;
            blocks.bytes = schedule_blocks_bytes(&g->l->units[s->unit]);
            blocks.last = blocks_last(g, s);
            add_life(g, full, s->backward ? &u->backward_offset : &u->forward_offset, &u->backward_offset);
            add_life(g, blocks, &u->blocks_offset[s->backward], &u->blocks_offset[1]);
        }
        FSDP_TRY(add_gather_events(g, s));
    }
    plan_kept(g);
    return FSDP_OK;
}

static fsdp_status plan_parameters(planning *g)
{
    for (int i = 0; i < g->l->n_units; i++)
        g->s->units[i].used = g->uses[i].forward_first >= 0 || g->uses[i].backward_first >= 0;
    size_t kept = place_kept(g);
    FSDP_TRY(plan_gathered(g));
    FSDP_TRY(plan_widened(g));
    FSDP_TRY(lifetime_pack(g->items, g->s->n_lives, &g->s->gather_bytes));
    g->s->gather_bytes += kept;
    for (int i = 0; i < g->s->n_lives; i++) {
        *g->places[i].to = kept + g->items[i].offset;
        if (g->places[i].also)
            *g->places[i].also = kept + g->items[i].offset;
    }
    return FSDP_OK;
}

static bool is_offloaded(const planning *g, int unit)
{
    return g->o->offloaded && g->o->offloaded[unit];
}

/* What the host's optimizer writes must have come before it is gathered, or, where nothing is moved, used. */
static fsdp_status plan_refreshes(planning *g)
{
    for (int i = 0; i < g->l->n_units; i++) {
        const unit_use *u = &g->uses[i];
        int first = u->forward_first >= 0 ? u->forward_first : u->backward_first;
        if (!is_offloaded(g, i) || first < 0)
            continue;
        for (int k = 0; k < g->n_stays && !g->o->alias; k++) {
            if (g->stays[k].unit == i)
                first = (int)min_i64(first, g->stays[k].gather);
        }
        FSDP_TRY(add_event(g, first, ACTION_REFRESH, i, false));
    }
    return FSDP_OK;
}

static int by_last_gradient(const void *a, const void *b)
{
    const stay *x = a, *y = b;
    return x->last != y->last ? x->last - y->last : x->unit - y->unit;
}

/* An offloaded gradient's sum so far starts back while the unit before it computes. */
static int preload_index(const planning *g, int i)
{
    int before = i > 0 ? g->stays[i - 1].first : program_forward_length(g->p);
    return (int)min_i64(before, g->stays[i].first);
}

static fsdp_status add_gradient_events(planning *g, int i, int freed)
{
    const stay *s = &g->stays[i];
    if (is_offloaded(g, s->unit))
        FSDP_TRY(add_event(g, preload_index(g, i), ACTION_PRELOAD, s->unit, true));
    FSDP_TRY(add_event(g, s->first, ACTION_GRADIENTS, s->unit, true));
    FSDP_TRY(add_event(g, s->last + 1, ACTION_REDUCE, s->unit, true));
    return add_event(g, freed, ACTION_REDUCED, s->unit, true);
}

size_t schedule_landing_bytes(const layout_unit *u, size_t element)
{
    const layout_segment *s = &u->segments[0];
    int64_t numel = u->whole ? s->padded : 0;
    for (int r = 0; r < s->n_shards && !u->whole; r++)
        numel = max_i64(numel, layout_shard_numel(s, r));
    return round_up((size_t)numel * element, 256);
}

bool schedule_holds(const schedule_options *o, int unit)
{
    return o->gradients == GRADIENT_HELD || (o->gradients == GRADIENT_BUFFERED && o->held && o->held[unit]);
}

/* The first instruction from `index` on that computes. Copies of values to host memory and back depend on a rank's
 * batch, and what shares memory must not: arenas grow with all ranks. */
static int computing_from(const planning *g, int index)
{
    while (index < program_length(g->p) && !program_at(g->p, index)->n)
        index++;
    return index;
}

/* Of unit number i in order of its last gradient: what its full gradient and its landing take, and for how long. */
static void plan_gradient_memory(const planning *g, int i, int freed, lifetime *full, lifetime *landing)
{
    const stay *s = &g->stays[i];
    bool offloaded = is_offloaded(g, s->unit), direct = g->o->gradients == GRADIENT_DIRECT;
    int from = offloaded ? preload_index(g, i) : s->first;
    /* What is free again before an instruction may be taken before the same one; offloaded units are copied on. */
    int copied = computing_from(g, freed), last = offloaded ? copied : freed - 1;
    *full = (lifetime){gradient_bytes(g, s->unit), direct ? from : s->first, last, 0};
    size_t landed = schedule_landing_bytes(&g->l->units[s->unit], g->o->sum_bytes);
    *landing = (lifetime){offloaded && !direct ? landed : 0, from, copied, 0};
    if (schedule_holds(g->o, s->unit) || (direct && !offloaded))
        full->bytes = 0; /* a place of its own, or none */
}

/* Held gradients outlive programs: each has its place, the same in all of them, whether they train the unit or not. */
static size_t place_held(planning *g)
{
    size_t bytes = 0;
    for (int i = 0; i < g->l->n_units; i++) {
        if (!schedule_holds(g->o, i))
            continue;
        g->s->units[i].gradient_offset = bytes;
        bytes += gradient_bytes(g, i);
    }
    return bytes;
}

/* When the reduction of unit number i in order of its last gradient is waited for: when that of the next unit has
 * started, so that two are on their way; `beyond`: and small ones between them. */
static int reduced_index(const planning *g, int i, int n, bool beyond)
{
    int next = i + 1;
    while (beyond && next < n && is_small_beside(g, g->stays[next].unit, g->stays[i].unit))
        next++;
    return next < n ? g->stays[next].last + 1 : program_length(g->p);
}

/* A buffered gradient lives until its reduction has been waited for. Places of full gradients, then of landings. */
static fsdp_status pack_gradients(const planning *g, int n, bool beyond, lifetime *items, size_t *bytes)
{
    for (int i = 0; i < n; i++)
        plan_gradient_memory(g, i, reduced_index(g, i, n, beyond), &items[i], &items[n + i]);
    return lifetime_pack(items, 2 * n, bytes);
}

/* What hides a reduction beyond small units must cost no memory but theirs: a head, a norm and a layer take as much as
 * a layer and an embedding, which follow each other at the end, and the norm. */
static fsdp_status choose_places(const planning *g, int n, lifetime *items, bool *beyond, size_t *bytes)
{
    enum { LITTLE = 64 };
    size_t least;
    FSDP_TRY(pack_gradients(g, n, false, items, &least));
    FSDP_TRY(pack_gradients(g, n, true, items, bytes));
    *beyond = *bytes <= least + least / LITTLE;
    return *beyond ? FSDP_OK : pack_gradients(g, n, false, items, bytes);
}

static fsdp_status plan_gradients(planning *g)
{
    int n = 0;
    for (int i = 0; i < g->l->n_units; i++) {
        g->s->units[i].trained = g->uses[i].grad_first >= 0;
        if (g->s->units[i].trained)
            g->stays[n++] = (stay){i, true, 0, g->uses[i].grad_first, g->uses[i].grad_last};
    }
    qsort(g->stays, (size_t)n, sizeof *g->stays, by_last_gradient);
    lifetime *items = calloc((size_t)n * 2 + 1, sizeof *items);
    if (!items)
        return error_set(FSDP_ERR_MEMORY, "scheduling %d units: out of host memory", g->l->n_units);
    bool beyond = false;
    fsdp_status status = choose_places(g, n, items, &beyond, &g->s->gradient_bytes);
    for (int i = 0; i < n && status == FSDP_OK; i++)
        status = add_gradient_events(g, i, reduced_index(g, i, n, beyond));
    g->s->reductions = n;
    size_t held = n > 0 ? place_held(g) : 0;
    g->s->gradient_bytes += held;
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        schedule_unit *u = &g->s->units[g->stays[i].unit];
        if (!schedule_holds(g->o, g->stays[i].unit))
            u->gradient_offset = held + items[i].offset;
        u->landing_offset = held + (g->o->gradients == GRADIENT_DIRECT ? items[i].offset : items[n + i].offset);
    }
    free(items);
    return status;
}

static bool is_before(const schedule_event *a, const schedule_event *b)
{
    return a->index != b->index ? a->index < b->index : a->action < b->action;
}

/* Events of one kind before one instruction keep the order in which they were planned: units that are needed first are
 * gathered first. */
static void sort_events(schedule *s)
{
    for (int i = 1; i < s->n_events; i++) {
        schedule_event e = s->events[i];
        int at = i;
        for (; at > 0 && is_before(&e, &s->events[at - 1]); at--)
            s->events[at] = s->events[at - 1];
        s->events[at] = e;
    }
}

fsdp_status schedule_build(const program *p, const layout *l, const schedule_options *options, schedule **out)
{
    planning g = {.p = p, .l = l, .o = options, .s = calloc(1, sizeof *g.s)};
    g.uses = calloc((size_t)l->n_units, sizeof *g.uses);
    g.stays = calloc((size_t)l->n_units * 2, sizeof *g.stays);
    g.items = calloc((size_t)l->n_units * MOST_LIVES, sizeof *g.items);
    g.places = calloc((size_t)l->n_units * MOST_LIVES, sizeof *g.places);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (g.s) {
        g.s->units = calloc((size_t)l->n_units, sizeof *g.s->units);
        g.s->lives = calloc((size_t)l->n_units * MOST_LIVES, sizeof *g.s->lives);
    }
    if (!g.s || !g.s->units || !g.s->lives || !g.uses || !g.stays || !g.items || !g.places) {
        error_set(status, "scheduling %d units: out of host memory", l->n_units);
        goto done;
    }
    collect_uses(&g);
    choose_coded(&g);
    TRY_OR(done, plan_parameters(&g));
    TRY_OR(done, plan_refreshes(&g));
    TRY_OR(done, plan_gradients(&g));
    sort_events(g.s);
    *out = g.s;
    g.s = NULL;
done:
    schedule_free(g.s);
    free(g.uses);
    free(g.stays);
    free(g.items);
    free(g.places);
    return status;
}

void schedule_free(schedule *s)
{
    if (!s)
        return;
    free(s->events);
    free(s->units);
    free(s->lives);
    free(s);
}
