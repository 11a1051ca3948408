/* Puts the records of the ranks together. Their lines of events must be the same: FSDP is one program on every rank. */
#include "explain/tale.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

/* One rank's record while it is read: its next event, and how many collectives of each unit have been told. */
typedef struct reader {
    const rank_record *record;
    int at;
    int told[2][TALE_UNITS]; /* gathers, reductions */
} reader;

typedef struct teller {
    tale *t;
    reader readers[FSDP_EXPLAIN_RANKS];
    scene now;   /* the state after the last scene */
    int at_work; /* the unit that was made whole, or got room for its gradient, last; -1: none */
} teller;

static int unit_named(const tale *t, const char *name)
{
    for (int i = 0; i < t->n_units; i++)
        if (strcmp(t->units[i].name, name) == 0)
            return i;
    return -1;
}

/* Collectives run on threads of their own: they are looked up when their unit's state says that one began. */
static const record_event *next_in_line(reader *r)
{
    int n = (int)min_i64(atomic_load(&r->record->n), RECORD_EVENTS);
    while (r->at < n && r->record->events[r->at].kind == RECORD_COLLECTIVE)
        r->at++;
    return r->at < n ? &r->record->events[r->at++] : NULL;
}

/* The k-th collective of that kind of the unit; NULL: there is none. */
static const record_event *collective_of(const rank_record *r, const char *name, const char *subject, int k)
{
    int n = (int)min_i64(atomic_load(&r->n), RECORD_EVENTS);
    for (int i = 0; i < n; i++) {
        const record_event *e = &r->events[i];
        if (e->kind == RECORD_COLLECTIVE && strcmp(e->name, name) == 0 && strcmp(e->detail, subject) == 0 && k-- == 0)
            return e;
    }
    return NULL;
}

static fsdp_status add_scene(teller *w, scene_kind kind, int which)
{
    tale *t = w->t;
    if (t->n_scenes == t->capacity) {
        int wanted = t->capacity ? 2 * t->capacity : 128;
        scene *grown = realloc(t->scenes, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "explain: out of host memory");
        t->scenes = grown;
        t->capacity = wanted;
    }
    w->now.kind = kind;
    w->now.unit = which;
    t->scenes[t->n_scenes++] = w->now;
    memset(w->now.bytes, 0, sizeof w->now.bytes);
    w->now.operations = 0;
    return FSDP_OK;
}

/* Operations that follow each other are one scene, told when something else happens. */
static fsdp_status end_compute(teller *w)
{
    return w->now.operations > 0 ? add_scene(w, SCENE_COMPUTE, w->at_work) : FSDP_OK;
}

static fsdp_status tell_gather(teller *w, int which, const record_event *const *events)
{
    tale_unit *u = &w->t->units[which];
    w->now.parameters[which] = 'G';
    if (events[0]->bytes == 0)
        return FSDP_OK; /* what is resident is whole */
    for (int r = 0; r < w->t->n_ranks; r++) {
        reader *from = &w->readers[r];
        const record_event *e = collective_of(from->record, "all_gather", u->name, from->told[0][which]++);
        if (!e)
            return error_set(FSDP_ERR_STATE, "explain: rank %d gathered %s without a collective", r, u->name);
        w->now.bytes[r] = e->bytes;
        w->now.gathered[r] += events[r]->bytes;
        u->shard_bytes[r] = events[r]->bytes - e->bytes;
    }
    return add_scene(w, SCENE_GATHER, which);
}

/* A copy that stays is released only to be gathered into again at once: that is one scene, the gather. */
static fsdp_status tell_release(teller *w, int which, const record_event *const *events)
{
    bool stays = w->t->strategy == FSDP_SHARD_OP;
    w->now.parameters[which] = 'S';
    for (int r = 0; r < w->t->n_ranks; r++) {
        w->now.bytes[r] = events[r]->bytes;
        w->now.gathered[r] -= events[r]->bytes;
    }
    if (events[0]->bytes && !stays)
        return add_scene(w, SCENE_RELEASE, which);
    memset(w->now.bytes, 0, sizeof w->now.bytes);
    return FSDP_OK;
}

static fsdp_status tell_reduce(teller *w, int which)
{
    const tale_unit *u = &w->t->units[which];
    bool scatters = collective_of(w->readers[0].record, "reduce_scatter", u->name, 0) != NULL;
    w->now.sums[which] = 'R';
    w->now.all_reduce = !scatters;
    for (int r = 0; r < w->t->n_ranks; r++) {
        reader *from = &w->readers[r];
        const record_event *e =
            collective_of(from->record, scatters ? "reduce_scatter" : "all_reduce", u->name, from->told[1][which]++);
        if (!e)
            return error_set(FSDP_ERR_STATE, "explain: rank %d reduced %s without a collective", r, u->name);
        w->now.bytes[r] = e->bytes;
    }
    return add_scene(w, SCENE_REDUCE, which);
}

static fsdp_status tell_gradients(teller *w, int which, const record_event *const *events, bool taken)
{
    w->now.sums[which] = taken ? 'F' : 'S';
    for (int r = 0; r < w->t->n_ranks; r++) {
        w->now.bytes[r] = events[r]->bytes;
        w->now.gradients[r] += taken ? events[r]->bytes : -events[r]->bytes;
    }
    return add_scene(w, taken ? SCENE_GRADIENTS : SCENE_REDUCED, which);
}

static fsdp_status tell_unit(teller *w, int which, const record_event *const *events)
{
    const char *state = events[0]->detail;
    if (strcmp(state, "GATHERING") == 0)
        return tell_gather(w, which, events);
    if (strcmp(state, "FULL") == 0)
        w->now.parameters[which] = 'F';
    if (strcmp(state, "SHARDED") == 0)
        return tell_release(w, which, events);
    if (strcmp(state, "gradients FULL") == 0)
        return tell_gradients(w, which, events, true);
    if (strcmp(state, "gradients REDUCING") == 0)
        return tell_reduce(w, which);
    if (strcmp(state, "gradients SHARDED") == 0)
        return tell_gradients(w, which, events, false);
    if (strcmp(state, "gradients NONE") == 0)
        w->now.sums[which] = 'N';
    return FSDP_OK;
}

/* The first sign of backward: an operation of it, or room for a gradient. */
static fsdp_status turn(teller *w, const record_event *e)
{
    bool computes = e->kind == RECORD_OPERATION && strcmp(e->detail, "forward") != 0;
    if (w->now.backward || (!computes && strcmp(e->detail, "gradients FULL") != 0))
        return FSDP_OK;
    FSDP_TRY(end_compute(w));
    w->now.backward = true;
    return add_scene(w, SCENE_BACKWARD, -1);
}

static fsdp_status tell_state(teller *w, const record_event *const *events)
{
    const record_event *e = events[0];
    int which = unit_named(w->t, e->name);
    if (which < 0)
        return error_set(FSDP_ERR_STATE, "explain: the plan has no unit %s", e->name);
    if (strcmp(e->detail, "FULL") == 0 || strcmp(e->detail, "gradients FULL") == 0)
        w->at_work = which;
    else if (strcmp(e->detail, "SHARDED") == 0 && w->at_work == which)
        w->at_work = -1;
    return tell_unit(w, which, events);
}

/* Groups that hold the same shards sum them before the update; every step moves the same. */
static void count_replicas(teller *w)
{
    for (int r = 0; r < w->t->n_ranks && w->t->group < w->t->n_ranks; r++) {
        const rank_record *from = w->readers[r].record;
        for (int i = 0; i < atomic_load(&from->n); i++) {
            const record_event *e = &from->events[i];
            if (e->kind == RECORD_COLLECTIVE && strcmp(e->name, "all_reduce") == 0 && unit_named(w->t, e->detail) >= 0)
                w->now.bytes[r] += e->bytes;
        }
        w->now.bytes[r] /= RECORD_STEPS;
    }
}

static fsdp_status tell(teller *w, const record_event *const *events)
{
    const record_event *e = events[0];
    FSDP_TRY(turn(w, e));
    if (e->kind == RECORD_OPERATION) {
        w->now.operations++;
        return FSDP_OK;
    }
    FSDP_TRY(end_compute(w));
    if (e->kind == RECORD_UNIT)
        return tell_state(w, events);
    if (e->kind == RECORD_STEP) {
        w->now.step = (int)e->bytes + 1;
        w->now.backward = false;
        w->at_work = -1;
        return add_scene(w, SCENE_STEP, -1);
    }
    w->now.loss = e->value;
    if (e->kind == RECORD_OPTIMIZER)
        count_replicas(w);
    return add_scene(w, e->kind == RECORD_OPTIMIZER ? SCENE_OPTIMIZER : SCENE_LOSS, -1);
}

static bool same(const record_event *a, const record_event *b)
{
    return a && b && a->kind == b->kind && strcmp(a->name, b->name) == 0 && strcmp(a->detail, b->detail) == 0;
}

static fsdp_status tell_all(teller *w)
{
    const record_event *events[FSDP_EXPLAIN_RANKS];
    while ((events[0] = next_in_line(&w->readers[0]))) {
        for (int r = 1; r < w->t->n_ranks; r++) {
            events[r] = next_in_line(&w->readers[r]);
            if (!same(events[0], events[r]))
                return error_set(FSDP_ERR_STATE, "explain: after %d events rank %d does something else than rank 0",
                                 w->readers[0].at, r);
        }
        FSDP_TRY(tell(w, events));
    }
    return FSDP_OK;
}

static fsdp_status plan_units(tale *t, const fsdp_config *config, device *dev)
{
    plan_picture picture;
    plan_world world = {dev, t->n_ranks, t->n_ranks};
    for (int r = 0; r < t->n_ranks; r++)
        FSDP_TRY(workload_plan_rank(&t->work, config, &world, r, &t->plans[r]));
    FSDP_TRY(workload_picture(&t->work, config, &world, &t->plans[0], &picture));
    FSDP_TRY(workload_plan_rank(&t->work, config, &world, 0, &t->plans[0]));
    for (int i = 0; i < picture.n_units && i < TALE_UNITS; i++) {
        const picture_unit *from = &picture.units[i];
        tale_unit *u = &t->units[t->n_units++];
        snprintf(u->name, sizeof u->name, "%s", from->name);
        u->parameters = from->parameters;
        u->gathered_bytes = from->gathered_bytes;
        u->gradient_bytes = from->gradient_bytes;
        t->n_parameters += from->parameters;
        for (int r = 0; r < t->n_ranks; r++)
            u->shard_bytes[r] = (int64_t)from->shard_bytes;
    }
    bool all = picture.n_units <= TALE_UNITS;
    plan_picture_clear(&picture);
    return all ? FSDP_OK : error_set(FSDP_ERR_STATE, "explain: more than %d units", TALE_UNITS);
}

fsdp_status tale_make(tale *t, fsdp_strategy strategy, const rank_record *records, int n_ranks, device *dev)
{
    fsdp_config config;
    *t = (tale){.strategy = strategy, .n_ranks = n_ranks};
    record_subject(&t->work, &config, strategy, n_ranks);
    t->group = config.shard_group_size ? config.shard_group_size : n_ranks;
    FSDP_TRY(plan_units(t, &config, dev));
    teller w = {.t = t, .at_work = -1};
    memset(w.now.parameters, 'S', (size_t)t->n_units);
    memset(w.now.sums, 'N', (size_t)t->n_units);
    for (int r = 0; r < n_ranks; r++) {
        w.readers[r].record = &records[r];
        t->taken[r] = records[r].taken;
        t->planned[r] = (int64_t)records[r].planned;
    }
    fsdp_status status = tell_all(&w);
    if (status != FSDP_OK)
        tale_clear(t);
    return status;
}

void tale_clear(tale *t)
{
    free(t->scenes);
    t->scenes = NULL;
    t->n_scenes = 0;
}

int64_t tale_state_bytes(const tale *t, int rank)
{
    const memory_plan *p = &t->plans[rank];
    return (int64_t)(p->parameters + p->copies + p->gradients + p->optimizer);
}

int64_t tale_held(const tale *t, const scene *s, int rank)
{
    return tale_state_bytes(t, rank) + s->gathered[rank] + s->gradients[rank];
}

int64_t tale_peak(const tale *t)
{
    int64_t peak = 0;
    for (int i = 0; i < t->n_scenes; i++)
        peak = max_i64(peak, tale_held(t, &t->scenes[i], 0));
    return peak;
}

/* Of the last step: the first gathers what later ones may find. */
int64_t tale_received(const tale *t, scene_kind kind, int rank)
{
    int64_t bytes = 0;
    for (int i = 0; i < t->n_scenes; i++)
        if (t->scenes[i].kind == kind && t->scenes[i].step == RECORD_STEPS)
            bytes += t->scenes[i].bytes[rank];
    return bytes;
}
