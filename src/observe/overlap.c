/* Adds up what lies between the begins and ends of collectives and of waits. Each kind comes from one thread at a time:
 * the one that runs collectives, the one that computes. */
#include "observe/overlap.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/record/hooks.h"

typedef struct lap {
    _Atomic int64_t begun, total;
} lap;

struct overlap_meter {
    lap collectives, waits;
};

static void on_event(void *context, const hook_event *e)
{
    overlap_meter *m = context;
    lap *l = e->kind == HOOK_WAIT ? &m->waits : &m->collectives;
    if (e->moment == HOOK_BEGIN) {
        atomic_store(&l->begun, e->time_ns);
        return;
    }
    int64_t begun = atomic_exchange(&l->begun, 0);
    if (begun) /* else it began before we listened */
        atomic_fetch_add(&l->total, e->time_ns - begun);
}

fsdp_status overlap_meter_start(overlap_meter **out)
{
    *out = NULL;
    overlap_meter *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "out of memory for an overlap meter");
    fsdp_status status = hooks_add_kind(HOOK_COLLECTIVE, on_event, m);
    if (status == FSDP_OK)
        status = hooks_add_kind(HOOK_WAIT, on_event, m);
    if (status != FSDP_OK) {
        overlap_meter_free(m);
        return status;
    }
    *out = m;
    return FSDP_OK;
}

void overlap_meter_free(overlap_meter *m)
{
    if (m)
        hooks_remove(on_event, m);
    free(m);
}

overlap_times overlap_meter_take(overlap_meter *m)
{
    return (overlap_times){.communication_ns = atomic_exchange(&m->collectives.total, 0),
                           .exposed_ns = atomic_exchange(&m->waits.total, 0)};
}
