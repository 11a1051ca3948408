/* Reads lives of gathered units and gradients off the schedule's events, and those of values off the program. */
#include "shard/plan/picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "shard/model.h"

typedef struct taking {
    plan_picture *out;
    const fsdp_model *m;
    const program *p;
    const schedule *s;
    int capacity;
    int *at_work; /* (length + 1): the unit whose parameters were read last; -1: none yet */
} taking;

static fsdp_status add_life(taking *t, picture_life life)
{
    plan_picture *out = t->out;
    if (life.bytes == 0)
        return FSDP_OK;
    if (out->n_lives == t->capacity) {
        int wanted = t->capacity ? 2 * t->capacity : 256;
        picture_life *grown = realloc(out->lives, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "picturing a plan: out of host memory");
        out->lives = grown;
        t->capacity = wanted;
    }
    out->lives[out->n_lives++] = life;
    return FSDP_OK;
}

static fsdp_status take_units(taking *t)
{
    const fsdp_model *m = t->m;
    plan_picture *out = t->out;
    out->units = calloc((size_t)m->layout->n_units + 1, sizeof *out->units);
    for (int i = 0; out->units && i < m->layout->n_units; i++) {
        const layout_unit *u = &m->layout->units[i];
        picture_unit *to = &out->units[i];
        to->name = strdup(u->name);
        if (!to->name)
            break;
        out->n_units++;
        to->parameters = u->parameters_numel;
        to->bytes = (size_t)u->parameters_numel * sizeof(float);
        for (int k = 0; k < u->n_segments; k++) {
            const layout_segment *s = &u->segments[k];
            to->shard_bytes += (size_t)model_part(m, i, s).n * sizeof(float);
            for (int j = 0; s->trainable && j < s->n_slots; j++)
                to->trained += s->slots[j].parameter->numel;
        }
        to->gathered_bytes = schedule_blocks_bytes(u);
        if (m->residencies[i] == RESIDENT_KEPT)
            to->gathered_bytes += schedule_staying_bytes(u, m->param_bytes[i]);
        else
            to->gathered_bytes += schedule_gathered_bytes(u, m->param_bytes[i], t->s->units[i].coded);
        to->gradient_bytes = schedule_gradient_bytes(u, m->grad_bytes[i]);
        to->offloaded = m->offloaded && m->offloaded[i];
    }
    return out->n_units == m->layout->n_units ? FSDP_OK
                                              : error_set(FSDP_ERR_MEMORY, "picturing a plan: out of host memory");
}

/* The next event of the unit that does `action`, from event `from` on; NULL: there is none. */
static const schedule_event *next_event(const taking *t, int from, int which, schedule_action action)
{
    for (int i = from; i < t->s->n_events; i++) {
        if (t->s->events[i].unit == which && t->s->events[i].action == action)
            return &t->s->events[i];
    }
    return NULL;
}

static picture_life life_of(const taking *t, picture_class class, int which, size_t bytes, int first, int last)
{
    picture_life life = {.class = class, .unit = which, .bytes = bytes, .first = first, .last = last};
    snprintf(life.name, sizeof life.name, "%s", t->out->units[which].name);
    return life;
}

static fsdp_status take_gathered(taking *t)
{
    const fsdp_model *m = t->m;
    for (int i = 0; i < m->layout->n_units; i++) {
        if (m->residencies[i] == RESIDENT_KEPT && !model_has_all_at_hand(m, i))
            FSDP_TRY(add_life(t, life_of(t, PICTURE_GATHERED, i, t->out->units[i].gathered_bytes, 0, t->out->length)));
    }
    for (int i = 0; i < t->s->n_lives; i++) {
        const schedule_life *l = &t->s->lives[i];
        picture_life life = life_of(t, PICTURE_GATHERED, l->unit, l->bytes, l->first, l->last);
        life.backward = l->backward;
        FSDP_TRY(add_life(t, life));
    }
    return FSDP_OK;
}

static fsdp_status take_gradients(taking *t)
{
    const fsdp_model *m = t->m;
    schedule_options options = model_schedule_options(m);
    for (int i = 0; i < m->layout->n_units && t->s->reductions > 0; i++)
        if (schedule_holds(&options, i))
            FSDP_TRY(
                add_life(t, life_of(t, PICTURE_FULL_GRADIENTS, i, t->out->units[i].gradient_bytes, 0, t->out->length)));
    for (int i = 0; i < t->s->n_events; i++) {
        const schedule_event *e = &t->s->events[i];
        if (e->action != ACTION_GRADIENTS)
            continue;
        bool offloaded = t->out->units[e->unit].offloaded, direct = options.gradients == GRADIENT_DIRECT;
        const schedule_event *loaded = next_event(t, 0, e->unit, ACTION_PRELOAD);
        const schedule_event *end = next_event(t, i, e->unit, ACTION_REDUCED);
        int freed = end ? end->index : t->out->length, from = loaded ? loaded->index : e->index;
        bool elsewhere = schedule_holds(&options, e->unit) || (direct && !offloaded);
        size_t full = elsewhere ? 0 : t->out->units[e->unit].gradient_bytes;
        size_t landing =
            offloaded && !direct ? schedule_landing_bytes(&m->layout->units[e->unit], options.sum_bytes) : 0;
        FSDP_TRY(add_life(t, life_of(t, PICTURE_FULL_GRADIENTS, e->unit, full, direct ? from : e->index,
                                     offloaded ? freed : freed - 1)));
        FSDP_TRY(add_life(t, life_of(t, PICTURE_FULL_GRADIENTS, e->unit, landing, from, freed)));
    }
    return FSDP_OK;
}

static void find_units_at_work(taking *t)
{
    int now = -1;
    for (int i = 0; i <= t->out->length; i++) {
        const node *n = i < t->out->length ? program_at(t->p, i)->n : NULL;
        for (int k = 0; n && k < n->n_inputs; k++) {
            if (n->inputs[k] && n->inputs[k]->kind == TENSOR_PARAMETER)
                now = n->inputs[k]->parameter->unit;
        }
        t->at_work[i] = now;
    }
}

static fsdp_status take_values(taking *t)
{
    static const picture_class classes[] = {[VALUE_INPUT] = PICTURE_INPUTS,
                                            [VALUE_ACTIVATION] = PICTURE_ACTIVATIONS,
                                            [VALUE_RECOMPUTED] = PICTURE_RECOMPUTED,
                                            [VALUE_GRADIENT] = PICTURE_ACTIVATION_GRADIENTS,
                                            [VALUE_WORKSPACE] = PICTURE_WORKSPACE};
    program_value *values;
    int n;
    FSDP_TRY(program_values(t->p, &values, &n));
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        const program_value *v = &values[i];
        picture_life life = {.class = classes[v->role],
                             .unit = t->at_work[v->first],
                             .bytes = v->bytes,
                             .first = v->first,
                             .last = v->last};
        memcpy(life.name, v->name, sizeof life.name);
        status = add_life(t, life);
    }
    free(values);
    return status;
}

fsdp_status plan_picture_take(plan_picture *out, const fsdp_model *m, const program *p, const schedule *s)
{
    *out = (plan_picture){.length = program_length(p),
                          .forward_length = program_forward_length(p),
                          .gather_bytes = s->gather_bytes,
                          .gradient_bytes = s->gradient_bytes,
                          .slab_bytes = program_slab_bytes(p)};
    taking t = {.out = out, .m = m, .p = p, .s = s, .at_work = malloc(((size_t)out->length + 1) * sizeof *t.at_work)};
    fsdp_status status = t.at_work ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "picturing a plan: out of host memory");
    if (status == FSDP_OK) {
        find_units_at_work(&t);
        status = take_units(&t);
    }
    if (status == FSDP_OK)
        status = take_gathered(&t);
    if (status == FSDP_OK)
        status = take_gradients(&t);
    if (status == FSDP_OK)
        status = take_values(&t);
    free(t.at_work);
    if (status != FSDP_OK)
        plan_picture_clear(out);
    return status;
}

void plan_picture_clear(plan_picture *p)
{
    for (int i = 0; i < p->n_units; i++)
        free(p->units[i].name);
    free(p->units);
    free(p->lives);
    *p = (plan_picture){.length = 0};
}

fsdp_status plan_picture_series(const plan_picture *p, int64_t **out)
{
    int64_t *series = calloc(((size_t)p->length + 2) * PICTURE_CLASSES, sizeof *series);
    *out = series;
    if (!series)
        return error_set(FSDP_ERR_MEMORY, "picturing a plan: out of host memory");
    for (int i = 0; i < p->n_lives; i++) {
        const picture_life *l = &p->lives[i];
        series[l->first * PICTURE_CLASSES + (int)l->class] += (int64_t)l->bytes;
        series[(l->last + 1) * PICTURE_CLASSES + (int)l->class] -= (int64_t)l->bytes;
    }
    for (int i = PICTURE_CLASSES; i < (p->length + 1) * PICTURE_CLASSES; i++)
        series[i] += series[i - PICTURE_CLASSES];
    return FSDP_OK;
}
