/* The list of listeners and the delivery of events to them. It changes only while no work runs (see the header), so
 * delivery reads it without a lock; the lock keeps two threads from adding at the same time. */
#include "base/record/hooks.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/laps.h"

enum { MAX_LISTENERS = 16 };

typedef struct registration {
    hook_listener listener;
    void *context;
    unsigned kinds; /* a bit each */
} registration;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static registration listeners[MAX_LISTENERS];
static int n_listeners;

bool hooks_enabled;
unsigned hooks_kinds;

static void count_listeners(void)
{
    hooks_enabled = n_listeners > 0;
    hooks_kinds = 0;
    for (int i = 0; i < n_listeners; i++)
        hooks_kinds |= listeners[i].kinds;
}

static fsdp_status add(hook_listener listener, void *context, unsigned kinds)
{
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&lock);
    if (n_listeners == MAX_LISTENERS) {
        status = error_set(FSDP_ERR_STATE, "%d listeners already hear events; remove one first", MAX_LISTENERS);
    } else {
        listeners[n_listeners++] = (registration){listener, context, kinds};
        count_listeners();
    }
    pthread_mutex_unlock(&lock);
    return status;
}

fsdp_status hooks_add(hook_listener listener, void *context)
{
    return add(listener, context, ~0u);
}

fsdp_status hooks_add_kind(hook_kind kind, hook_listener listener, void *context)
{
    return add(listener, context, 1u << kind);
}

void hooks_remove(hook_listener listener, void *context)
{
    pthread_mutex_lock(&lock);
    int kept = 0;
    for (int i = 0; i < n_listeners; i++)
        if (listeners[i].listener != listener || listeners[i].context != context)
            listeners[kept++] = listeners[i];
    n_listeners = kept;
    count_listeners();
    pthread_mutex_unlock(&lock);
}

void hooks_emit(hook_kind kind, hook_moment moment, const char *name, const char *detail, int64_t bytes, int lane,
                const hook_call *call)
{
    hook_event event = {.kind = kind,
                        .moment = moment,
                        .name = name,
                        .detail = detail,
                        .bytes = bytes,
                        .time_ns = clock_nanoseconds(),
                        .lane = lane,
                        .call = call};
    for (int i = 0; i < n_listeners; i++)
        if (listeners[i].kinds >> kind & 1)
            listeners[i].listener(listeners[i].context, &event);
}

static void copy_name(char *to, size_t room, const char *name)
{
    if (name)
        memcpy(to, name, strnlen(name, room - 1));
}

/* How far the rank is in the group; each count is written by one thread at a time. */
static void count_call(ring *r, hook_kind kind, hook_moment moment, const hook_call *call)
{
    ring_group *g = &r->groups[call->slot];
    if (kind != HOOK_COLLECTIVE || call->slot >= RING_GROUPS)
        return;
    _Atomic uint32_t *count = moment == HOOK_INSTANT ? &g->called : moment == HOOK_BEGIN ? &g->begun : &g->ended;
    atomic_store_explicit(count, call->sequence, memory_order_relaxed);
}

void hooks_keep(ring *r, hook_kind kind, hook_moment moment, const char *name, const char *detail, int64_t bytes,
                int lane, const hook_call *call)
{
    ring_event e = {.time_ns = clock_nanoseconds(),
                    .bytes = bytes,
                    .step = atomic_load_explicit(&r->step, memory_order_relaxed),
                    .kind = (uint8_t)kind,
                    .moment = (uint8_t)moment,
                    .lane = (uint8_t)lane};
    if (kind != HOOK_COLLECTIVE && lane == 0)
        laps_hear(kind == HOOK_WAIT, moment == HOOK_BEGIN, name, e.time_ns);
    if (call) {
        e.serial = call->serial;
        e.first = call->first;
        e.sequence = call->sequence;
        count_call(r, kind, moment, call);
    }
    copy_name(e.name, sizeof e.name, name);
    copy_name(e.subject, sizeof e.subject, detail);
    ring_write(r, &e);
}
