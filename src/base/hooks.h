/* Events that lower layers report to listeners: operations, memory, collectives, units. Costs one predictable branch
 * when there is none. Listeners are added before work starts and removed after it ends, never in between. */
#ifndef BASE_HOOKS_H
#define BASE_HOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/crash.h"

typedef enum hook_kind {
    HOOK_OP,         /* an operation of a program: name "linear.forward" */
    HOOK_MEMORY,     /* memory taken (bytes > 0) or given back (bytes < 0) */
    HOOK_COLLECTIVE, /* name "all_gather", detail the unit */
    HOOK_UNIT,       /* a unit changed state: name the unit, detail the state */
    HOOK_PHASE,      /* "optimizer", "data", "checkpoint" */
    HOOK_WAIT,       /* the computing thread waits for a collective: name and detail as there */
} hook_kind;

typedef enum hook_moment { HOOK_BEGIN, HOOK_END, HOOK_INSTANT } hook_moment;

typedef struct hook_event {
    hook_kind kind;
    hook_moment moment;
    const char *name;   /* valid during the call only */
    const char *detail; /* may be NULL */
    int64_t bytes;
    int64_t time_ns; /* clock_nanoseconds() */
    int lane;        /* 0 compute, 1 communication, 2 copies */
} hook_event;

typedef void (*hook_listener)(void *context, const hook_event *event);

/* Up to 8 listeners. Called on the thread where the event happens; must be safe for that. */
fsdp_status hooks_add(hook_listener listener, void *context);
/* The same for one kind of event: work that reports other kinds may then run as a recorded graph, which reports none.
 */
fsdp_status hooks_add_kind(hook_kind kind, hook_listener listener, void *context);
void hooks_remove(hook_listener listener, void *context);

extern bool hooks_enabled;   /* read-only for everyone but hooks.c */
extern unsigned hooks_kinds; /* bit k: there is a listener for events of kind k; likewise */
void hooks_emit(hook_kind kind, hook_moment moment, const char *name, const char *detail, int64_t bytes, int lane);

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

#define HOOK(kind, moment, name, detail, bytes, lane)                                                                  \
    do {                                                                                                               \
        hooks_note(kind, moment, name, detail, lane);                                                                  \
        if (__builtin_expect(hooks_enabled, 0))                                                                        \
            hooks_emit(kind, moment, name, detail, bytes, lane);                                                       \
    } while (0)

#endif
