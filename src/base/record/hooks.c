/* The list of listeners and the delivery of events to them, without a lock: there are two lists, of which one is heard.
 * Who changes it writes the other, has that one heard, and waits until nobody goes through the first; events that go
 * through the new list do not hold that up. */
#include "base/record/hooks.h"

#include <pthread.h>
#include <sched.h>
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

typedef struct registrations {
    registration list[MAX_LISTENERS];
    int n;
    atomic_int under_way; /* events that are being delivered to it */
} registrations;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of who changes it */
static registrations both[2];
static registrations *_Atomic heard = &both[0];

atomic_bool hooks_enabled;
atomic_uint hooks_kinds;

/* Under the lock. */
static registrations *copy_heard(void)
{
    const registrations *now = atomic_load(&heard);
    registrations *other = now == &both[0] ? &both[1] : &both[0];
    memcpy(other->list, now->list, sizeof now->list);
    other->n = now->n;
    return other;
}

static void have_heard(registrations *r)
{
    unsigned kinds = 0;
    for (int i = 0; i < r->n; i++)
        kinds |= r->list[i].kinds;
    registrations *before = atomic_exchange(&heard, r);
    atomic_store(&hooks_kinds, kinds);
    atomic_store(&hooks_enabled, r->n > 0);
    while (atomic_load(&before->under_way) > 0)
        sched_yield();
}

static fsdp_status add(hook_listener listener, void *context, unsigned kinds)
{
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&lock);
    registrations *r = copy_heard();
    if (r->n == MAX_LISTENERS) {
        status = error_set(FSDP_ERR_STATE, "%d listeners already hear events; remove one first", MAX_LISTENERS);
    } else {
        r->list[r->n++] = (registration){listener, context, kinds};
        have_heard(r);
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
    registrations *r = copy_heard();
    int kept = 0;
    for (int i = 0; i < r->n; i++)
        if (r->list[i].listener != listener || r->list[i].context != context)
            r->list[kept++] = r->list[i];
    r->n = kept;
    have_heard(r);
    pthread_mutex_unlock(&lock);
}

/* The list that is heard, which nobody writes until it is left. */
static registrations *enter_list(void)
{
    for (;;) {
        registrations *r = atomic_load(&heard);
        atomic_fetch_add(&r->under_way, 1);
        if (atomic_load(&heard) == r)
            return r;
        atomic_fetch_sub(&r->under_way, 1); /* it has just been replaced */
    }
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
    registrations *r = enter_list();
    for (int i = 0; i < r->n; i++)
        if (r->list[i].kinds >> kind & 1)
            r->list[i].listener(r->list[i].context, &event);
    atomic_fetch_sub(&r->under_way, 1);
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
