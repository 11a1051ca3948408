/* The UCX backend's coming and going: finds the hosts, joins the ranks of this one through shared memory and all
 * through UCX, and leaves. Failures are passed on over the meeting, by the watchdog. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "comm/ucx/backend.h"

enum { MIN_SCRATCH = 64 << 10, DEFAULT_SCRATCH = 4 << 20 };

static size_t scratch_bytes(const comm_config *config)
{
    size_t asked = config->staging_bytes ? config->staging_bytes : DEFAULT_SCRATCH;
    return round_up(asked > MIN_SCRATCH ? asked : MIN_SCRATCH, SHM_PAGE);
}

static size_t ucx_overhead(const comm_config *config)
{
    return shm_overhead(config) + scratch_bytes(config);
}

/* ---- opening ---- */

/* Ranks that share memory are on one host. Where all do, as when UCX was asked for on one machine, the ranks of a
 * launcher count as a host of their own, and with one launcher every rank: there would be nothing for UCX to do
 * otherwise. */
static uint64_t host_key(const comm *c)
{
    const job *j = &c->config.job;
    return c->n_nodes > 1 ? meeting_host_id() : j->n_nodes > 1 ? (uint64_t)j->node : (uint64_t)c->rank;
}

/* Also which ranks are near: near[rank]. */
static fsdp_status find_hosts(comm *c, bool *near)
{
    ucx_world *w = ucx_world_of(c);
    uint64_t mine = host_key(c), *keys = calloc((size_t)c->world_size, sizeof *keys);
    if (!keys)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    fsdp_status status = meeting_gather_equal(c->meeting, "hosts of UCX", &mine, sizeof mine, keys);
    for (int rank = 0; status == FSDP_OK && rank < c->world_size; rank++) {
        int first = 0;
        while (keys[first] != keys[rank])
            first++;
        w->hosts[rank] = first; /* any numbers below the size of the world will do */
        near[rank] = keys[rank] == mine;
    }
    free(keys);
    return status;
}

static void heard_failure(void *context, fsdp_status status, const char *text)
{
    comm *c = context;
    atomic_store(&ucx_world_of(c)->told, true);
    engine_fail(c, status, text);
}

static const char *last_place(void *context, int rank, char *text, size_t bytes)
{
    ucx_world *w = ucx_world_of(context);
    pthread_mutex_lock(&w->lock);
    signature_place(&w->places[rank], text, bytes);
    pthread_mutex_unlock(&w->lock);
    return text;
}

static fsdp_status allocate_lists(comm *c)
{
    ucx_world *w = ucx_world_of(c);
    size_t n = (size_t)c->world_size;
    w->hosts = calloc(n, sizeof *w->hosts);
    w->peers = calloc(n, sizeof *w->peers);
    w->lost = calloc(n, sizeof *w->lost);
    w->places = calloc(n, sizeof *w->places);
    w->inbox = calloc(n, sizeof *w->inbox);
    w->parts = calloc(n, sizeof *w->parts);
    w->stretches = calloc(n, sizeof *w->stretches);
    w->sources = calloc(n, sizeof *w->sources);
    w->awaited = calloc(n, sizeof *w->awaited);
    w->scratch_bytes = scratch_bytes(&c->config);
    w->scratch = malloc(w->scratch_bytes);
    if (!w->hosts || !w->peers || !w->lost || !w->places || !w->inbox || !w->parts || !w->stretches || !w->sources ||
        !w->awaited || !w->scratch)
        return error_set(FSDP_ERR_MEMORY, "no memory for messages of %d ranks", c->world_size);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, (int64_t)w->scratch_bytes, 1);
    w->reported = true;
    return FSDP_OK;
}

/* A failure from here on ends the comm: the watchdog's thread looks at it only when comm_open has set it up. */
static fsdp_status start_watchdog(comm *c)
{
    watchdog_config config = {.meeting = c->meeting,
                              .rank = c->rank,
                              .world_size = c->world_size,
                              .timeout_seconds = c->config.timeout_seconds,
                              .fail = heard_failure,
                              .place = last_place,
                              .context = c};
    FSDP_TRY(meeting_barrier(c->meeting, "UCX is open"));
    return watchdog_open(&config, &ucx_world_of(c)->watchdog);
}

static fsdp_status ucx_open(comm *c)
{
    ucx_world *w = calloc(1, sizeof *w);
    bool *near = calloc((size_t)c->world_size, sizeof *near);
    fsdp_status status = FSDP_ERR_MEMORY;
    c->state = w;
    if (w) {
        pthread_mutex_init(&w->lock, NULL);
        w->event = -1;
    }
    if (!w || !near)
        error_set(status, "no memory to meet %d ranks", c->world_size);
    else
        status = allocate_lists(c);
    if (status == FSDP_OK)
        status = find_hosts(c, near);
    if (status == FSDP_OK)
        status = shm_join(c, near);
    free(near);
    FSDP_TRY(status);
    FSDP_TRY(ucx_messages_open(c));
    return start_watchdog(c);
}

/* ---- the end ---- */

static void ucx_abort(comm *c, const char *message)
{
    ucx_world *w = ucx_world_of(c);
    if (!w || atomic_load(&w->told)) /* every rank has heard it */
        return;
    shm_abort(c, message);
    bool own = w->shared.shares && shm_control_of(&w->shared)->abort_rank == c->rank;
    if (w->watchdog && own) /* otherwise whoever failed first on this host tells the others */
        watchdog_fail(w->watchdog, FSDP_ERR_PEER, message);
}

static void ucx_close(comm *c)
{
    ucx_world *w = ucx_world_of(c);
    if (!w)
        return;
    watchdog_close(w->watchdog);
    ucx_messages_close(c);
    shm_leave(c);
    if (w->reported)
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, -(int64_t)w->scratch_bytes, 1);
    free(w->scratch);
    free(w->awaited);
    free(w->sources);
    free(w->stretches);
    free(w->parts);
    free(w->inbox);
    free(w->places);
    free(w->lost);
    free(w->peers);
    free(w->hosts);
    pthread_mutex_destroy(&w->lock);
    free(w);
    c->state = NULL;
}

/* The world's is the first, when the queue that a failure goes to is there. */
static fsdp_status open_group(comm_group *g)
{
    FSDP_TRY(ucx_group_open(g));
    if (g->slot != 0)
        return FSDP_OK;
    fsdp_status status = watchdog_begin(ucx_world_of(g->comm)->watchdog);
    if (status != FSDP_OK)
        ucx_group_close(g);
    return status;
}

const comm_backend comm_ucx_backend = {
    .name = "ucx",
    .works = true,
    .meets = true,
    .keeps_meeting = true,
    .page = SHM_PAGE,
    .overhead = ucx_overhead,
    .open = ucx_open,
    .close = ucx_close,
    .group_open = open_group,
    .group_close = ucx_group_close,
    .run = ucx_run_collective,
    .is_sent = ucx_is_sent,
    .wait_sent = ucx_wait_sent,
    .allocate = shm_allocate,
    .release = shm_release,
    .abort = ucx_abort,
    .check = shm_check,
};
