/* Listeners and wrappers that delay and fill. */
#include "differential/support_shake.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "differential/support_case.h"
#include "shard/model.h"

enum { DELAYED_PERCENT = 5, LONGEST_MICROSECONDS = 300 };

struct shake {
    fsdp_model *m;
    _Atomic uint64_t draws; /* several threads draw */
    fsdp_status (*copy)(stream *s, void *to, const void *from, size_t bytes);
    fsdp_status (*event_record)(stream *s, event *e);
    fsdp_status (*stream_wait)(stream *s, event *e);
};

static shake *shaking; /* the device's table has no context */

static void delay(shake *s)
{
    uint64_t state = atomic_fetch_add(&s->draws, 0x9e3779b97f4a7c15u);
    if (!chance(&state, DELAYED_PERCENT))
        return;
    nanosleep(&(struct timespec){0, 1000L * draw(&state, LONGEST_MICROSECONDS)}, NULL);
}

static fsdp_status delayed_copy(stream *s, void *to, const void *from, size_t bytes)
{
    delay(shaking);
    fsdp_status status = shaking->copy(s, to, from, bytes);
    delay(shaking);
    return status;
}

static fsdp_status delayed_record(stream *s, event *e)
{
    delay(shaking);
    return shaking->event_record(s, e);
}

static fsdp_status delayed_wait(stream *s, event *e)
{
    fsdp_status status = shaking->stream_wait(s, e);
    delay(shaking);
    return status;
}

static unit *unit_named(const fsdp_model *m, const char *name)
{
    for (int i = 0; i < m->layout->n_units; i++) {
        if (strcmp(m->units[i].layout->name, name) == 0)
            return &m->units[i];
    }
    return NULL;
}

/* Behind what was enqueued so far, like any work of the engine. */
static void spoil(const shake *s, void *memory, int64_t numel, fsdp_dtype dtype)
{
    fill_args a = {.n = numel, .alpha = NAN, .out = {memory, dtype}};
    if (memory && s->m->dev->kernels->fill(s->m->compute, &a) != FSDP_OK)
        abort();
}

/* With one shard what is gathered is the shard itself. */
static void spoil_parameters(const shake *s, unit *u)
{
    for (int i = 0; u->segments[0].layout->n_shards > 1 && !u->layout->whole && i < u->n_segments; i++) {
        const layout_segment *l = u->segments[i].layout;
        for (int k = 0; k < l->n_slots; k++)
            spoil(s, l->slots[k].parameter->data, l->slots[k].parameter->numel, s->m->config.param_dtype);
    }
}

/* With one rank and fp32 gradients there is no buffer: kernels write the sum. */
static void spoil_gradients(const shake *s, unit *u)
{
    if (s->m->n_ranks > 1 || s->m->config.reduce_dtype != FSDP_F32)
        spoil(s, u->reduce_span.send.p, u->segments[0].layout->padded, u->reduce_span.send.dtype);
}

static void hear(void *context, const hook_event *e)
{
    shake *s = context;
    if (e->kind == HOOK_UNIT) {
        unit *u = unit_named(s->m, e->name);
        if (u && strcmp(e->detail, "SHARDED") == 0)
            spoil_parameters(s, u);
        if (u && strcmp(e->detail, "gradients SHARDED") == 0)
            spoil_gradients(s, u);
    }
    delay(s);
}

static const hook_kind heard[] = {HOOK_UNIT, HOOK_COLLECTIVE, HOOK_WAIT};

fsdp_status shake_begin(fsdp_model *m, uint64_t seed, shake **out)
{
    *out = NULL;
    if (seed == 0)
        return FSDP_OK;
    shake *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "shaking a model: out of memory");
    s->m = m;
    s->draws = seed;
    s->copy = m->dev->copy;
    s->event_record = m->dev->event_record;
    s->stream_wait = m->dev->stream_wait;
    shaking = s;
    m->dev->copy = delayed_copy;
    m->dev->event_record = delayed_record;
    m->dev->stream_wait = delayed_wait;
    *out = s;
    for (size_t i = 0; i < sizeof heard / sizeof *heard; i++)
        FSDP_TRY(hooks_add_kind(heard[i], hear, s));
    return FSDP_OK;
}

void shake_end(shake *s)
{
    if (!s)
        return;
    hooks_remove(hear, s);
    s->m->dev->copy = s->copy;
    s->m->dev->event_record = s->event_record;
    s->m->dev->stream_wait = s->stream_wait;
    shaking = NULL;
    free(s);
}

void shake_between(shake *s)
{
    if (s)
        spoil(s, s->m->slab.memory, (int64_t)(s->m->slab.bytes / sizeof(float)), FSDP_F32);
}
