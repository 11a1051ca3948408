/* The watchdog beside NCCL and UCX: every rank reports what it calls and rank 0 compares (ledger.h), so that all ranks
 * learn of a failure within moments: a lost process, another order of calls, a rank that does not come. A report costs
 * the calling thread a copy of a few hundred bytes; a thread of its own sends it over the meeting's connections. */
#ifndef COMM_WATCH_WATCHDOG_H
#define COMM_WATCH_WATCHDOG_H

#include "comm/signature.h"

enum { WATCHDOG_TICK_MILLISECONDS = 20, WATCHDOG_TEXT_BYTES = 1000 };

struct meeting;
typedef struct watchdog watchdog;

typedef struct watchdog_config {
    struct meeting *meeting; /* borrowed; nobody else listens there while the watchdog is open */
    int rank, world_size;
    double timeout_seconds; /* of every collective that lacks a rank */
    /* A peer failed, or the ranks do not agree; called once, on the watchdog's thread. */
    void (*fail)(void *context, fsdp_status status, const char *text);
    /* Where a rank was last, as signature_place, for users who know it without watchdog_call; optional. */
    const char *(*place)(void *context, int rank, char *text, size_t bytes);
    /* Called every WATCHDOG_TICK_MILLISECONDS on the watchdog's thread, for other work; optional. */
    void (*tick)(void *context);
    void *context;
} watchdog_config;

fsdp_status watchdog_open(const watchdog_config *config, watchdog **out); /* the caller owns *out */
void watchdog_round(watchdog *r, int milliseconds); /* one round of the thread's work, for callers without the thread */
fsdp_status watchdog_begin(watchdog *r);            /* starts the thread: `fail` and `tick` may be called from now on */
void watchdog_end(watchdog *r);                     /* ends it; not from it */
void watchdog_close(watchdog *r);                   /* sends what it still has; NULL is legal */

/* A group that this rank is in, before its first call. `serial` is the same on all its ranks and never used again. */
fsdp_status watchdog_group(watchdog *r, int serial, const int *members, int n);

/* This rank makes its next call in the group (0, 1, ...). Never waits. */
fsdp_status watchdog_call(watchdog *r, int serial, int first_member, uint32_t sequence, const signature *what);
/* This rank, which has made `sequence` calls there, frees the group. */
fsdp_status watchdog_free_group(watchdog *r, int serial, int first_member, uint32_t sequence);

/* This rank failed: tells all others. Any thread. */
void watchdog_fail(watchdog *r, fsdp_status status, const char *text);

#endif
