/* Events that lower layers report to listeners: operations, memory, collectives, units. Costs one predictable branch
 * when there is none. Listeners may come and go while threads report: one that was removed is not called any more when
 * hooks_remove returns. No listener adds or removes any. Phases, collectives and waits are few: they are always kept,
 * in the rank's ring (ring.h), and their times added up (laps.h).
 */
#ifndef BASE_RECORD_HOOKS_H
#define BASE_RECORD_HOOKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/record/crash.h"
#include "base/record/ring.h"

typedef enum hook_kind {
    HOOK_OP,         /* an operation of a program: name "linear.forward" */
    HOOK_MEMORY,     /* memory taken (bytes > 0) or given back (bytes < 0) */
    HOOK_COLLECTIVE, /* name "all_gather", detail the unit; its call alone (an instant) is kept and not heard */
    HOOK_UNIT,       /* a unit changed state: name the unit, detail the state, bytes of the full buffer it concerns */
    HOOK_PHASE,      /* "step", "data", "forward", "backward", "optimizer", "validation", "checkpoint" */
    HOOK_WAIT,       /* the computing thread waits for a collective: name and detail as there */
    HOOK_MEMORY_USE, /* what for memory was taken or given back that HOOK_MEMORY told of (memory_use.h) */
} hook_kind;

typedef enum hook_moment { HOOK_BEGIN, HOOK_END, HOOK_INSTANT } hook_moment;

/* Which collective: its group, by slot, and by the split that made it and its first member; its number there. Of an
 * operation: where in the model. */
typedef struct hook_call {
    int slot, serial, first;
    uint32_t sequence; /* from 1; 0: an operation */
    const char *where; /* "model.layers.0.mlp.up_proj [8, 64, 256]"; may be NULL */
} hook_call;

typedef struct hook_event {
    hook_kind kind;
    hook_moment moment;
    const char *name;   /* valid during the call only */
    const char *detail; /* may be NULL */
    int64_t bytes;
    int64_t time_ns;       /* clock_nanoseconds() */
    int lane;              /* 0 compute, 1 communication, 2 copies */
    const hook_call *call; /* of collectives, waits and operations; NULL: none */
} hook_event;

typedef void (*hook_listener)(void *context, const hook_event *event);

/* Up to 16 listeners. Called on the thread where the event happens; must be safe for that. */
fsdp_status hooks_add(hook_listener listener, void *context);
/* The same for one kind of event: work that reports other kinds may then run as a recorded graph, which reports none.
 */
fsdp_status hooks_add_kind(hook_kind kind, hook_listener listener, void *context);
void hooks_remove(hook_listener listener, void *context);

extern atomic_bool hooks_enabled; /* read-only for everyone but hooks.c */
extern atomic_uint hooks_kinds;   /* bit k: there is a listener for events of kind k; likewise */
void hooks_emit(hook_kind kind, hook_moment moment, const char *name, const char *detail, int64_t bytes, int lane,
                const hook_call *call);
/* Into the ring and the laps. */
void hooks_keep(ring *r, hook_kind kind, hook_moment moment, const char *name, const char *detail, int64_t bytes,
                int lane, const hook_call *call);

static inline bool hooks_kept(hook_kind kind)
{
    return kind == HOOK_PHASE || kind == HOOK_WAIT || kind == HOOK_COLLECTIVE;
}

/* What a crash report needs, with or without listeners. Names of operations and phases are literals. */
static inline void hooks_note(hook_kind kind, hook_moment moment, const char *name, const char *detail, int lane)
{
    if (kind == HOOK_OP && moment == HOOK_BEGIN)
        crash_note_operation(name, detail);
    if (kind == HOOK_PHASE && lane == 0)
        crash_note_phase(moment == HOOK_BEGIN ? name : NULL);
    if (kind == HOOK_UNIT)
        crash_note_unit(name);
    if (kind == HOOK_WAIT)
        crash_note_wait(moment == HOOK_BEGIN ? name : NULL, detail);
}

#define HOOK_CALL(kind, moment, name, detail, bytes, lane, call)                                                       \
    do {                                                                                                               \
        hooks_note(kind, moment, name, detail, lane);                                                                  \
        ring *hook_ring = hooks_kept(kind) ? ring_own() : NULL;                                                        \
        if (hook_ring)                                                                                                 \
            hooks_keep(hook_ring, kind, moment, name, detail, bytes, lane, call);                                      \
        if (__builtin_expect(atomic_load_explicit(&hooks_enabled, memory_order_relaxed), 0))                           \
            hooks_emit(kind, moment, name, detail, bytes, lane, call);                                                 \
    } while (0)

#define HOOK(kind, moment, name, detail, bytes, lane) HOOK_CALL(kind, moment, name, detail, bytes, lane, NULL)

#endif
