/* A thread that works through units in the background, in the order they were given, and tells when each is done. Its
 * caller says what the work is; this has the queue, the waiting and the failures. */
#ifndef SHARD_OFFLOAD_WORKER_H
#define SHARD_OFFLOAD_WORKER_H

#include <fsdp/status.h>

#include "shard/build/layout.h"

typedef struct unit_worker unit_worker;

typedef struct unit_work {
    /* Whether `run` may be called now; units that are not ready are skipped and asked again later. Never blocks. */
    fsdp_status (*ready)(void *context, int unit, bool *ready);
    fsdp_status (*run)(void *context, int unit);
    void *context; /* borrowed until the work is done */
} unit_work;

/* Borrows the layout (for names). `timeout_seconds` bounds every wait. */
fsdp_status unit_worker_create(const layout *l, double timeout_seconds, unit_worker **out);
/* Ends after the unit in hand; what was given and not begun is dropped. NULL is legal. */
void unit_worker_free(unit_worker *w);

/* Hands over units (n indices, copied). Waits for what was given before. */
fsdp_status unit_worker_give(unit_worker *w, const unit_work *work, const int *order, int n);

/* Hands over one unit more, behind those that are left, with the same work as they have. */
fsdp_status unit_worker_add(unit_worker *w, const unit_work *work, int unit);
/* Takes a unit back. False: it was begun, is done, or was not given. */
bool unit_worker_withdraw(unit_worker *w, int unit);

/* Returns when the unit (unit < 0: every unit) is done, or was not given; with the failure of the thread, which ends
 * all further work, or FSDP_ERR_TIMEOUT. Both name the unit. */
fsdp_status unit_worker_wait(unit_worker *w, int unit);

#endif
