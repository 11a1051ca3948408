/* Begins and ends of collectives come from one thread at a time, the one that runs them. */
#include "bench/collective_times.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "bench/samples.h"

enum { MAX_ROWS = 256, MAX_SAMPLES = 512 };

typedef struct timed_collective {
    profile_collective what; /* bytes: received, until somebody asks */
    double samples[MAX_SAMPLES];
    int n, calls;
} timed_collective;

struct collective_times {
    timed_collective *rows; /* (MAX_ROWS) */
    int n_rows;
    int64_t begun_ns, received;
};

static int group_size(const hook_call *call)
{
    ring *r = ring_own();
    return r && call && call->slot < RING_GROUPS ? atomic_load(&r->groups[call->slot].size) : 0;
}

static timed_collective *find(collective_times *t, const profile_collective *what)
{
    for (int i = 0; i < t->n_rows; i++) {
        const profile_collective *at = &t->rows[i].what;
        if (at->which == what->which && at->ranks == what->ranks && at->bytes == what->bytes)
            return &t->rows[i];
    }
    if (t->n_rows == MAX_ROWS)
        return NULL;
    t->rows[t->n_rows].what = *what;
    return &t->rows[t->n_rows++];
}

static void on_end(collective_times *t, const hook_event *e)
{
    static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce"};
    double seconds = (double)(e->time_ns - t->begun_ns) * 1e-9;
    profile_collective what = {.ranks = group_size(e->call), .bytes = (double)t->received};
    for (int i = 0; i < 3; i++) {
        if (strcmp(e->name, names[i]) != 0 || what.ranks < 2)
            continue;
        what.which = (script_collective)i;
        timed_collective *row = find(t, &what);
        if (!row)
            continue;
        row->calls++;
        if (row->n < MAX_SAMPLES)
            row->samples[row->n++] = seconds;
    }
}

static void on_event(void *context, const hook_event *e)
{
    collective_times *t = context;
    if (e->moment == HOOK_BEGIN) {
        t->begun_ns = e->time_ns;
        t->received = e->bytes;
    } else if (t->begun_ns > 0) { /* else it began before we listened */
        on_end(t, e);
        t->begun_ns = 0;
    }
}

fsdp_status collective_times_start(collective_times **out)
{
    collective_times *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t || !(t->rows = calloc(MAX_ROWS, sizeof *t->rows))) {
        free(t);
        return error_set(FSDP_ERR_MEMORY, "timing collectives: out of host memory");
    }
    fsdp_status status = hooks_add_kind(HOOK_COLLECTIVE, on_event, t);
    if (status != FSDP_OK) {
        free(t->rows);
        free(t);
        return status;
    }
    *out = t;
    return FSDP_OK;
}

void collective_times_free(collective_times *t)
{
    if (!t)
        return;
    hooks_remove(on_event, t);
    free(t->rows);
    free(t);
}

int collective_times_rows(const collective_times *t)
{
    return t->n_rows;
}

double collective_times_calls(const collective_times *t, int index)
{
    return t->rows[index].calls;
}

profile_collective collective_times_row(collective_times *t, int index)
{
    timed_collective *row = &t->rows[index];
    profile_collective c = row->what;
    double trips = c.which == SCRIPT_ALL_REDUCE ? 2 : 1;
    c.bytes = c.bytes * c.ranks / (c.ranks - 1) / trips; /* of the whole buffer */
    c.seconds = row->n > 0 ? bench_median(row->samples, row->n) : 0;
    return c;
}
