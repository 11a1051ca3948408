/* Messages between hosts: UCX's context, worker and endpoints, and waits that end: with the messages, at the timeout,
 * when a peer is gone or anybody failed. What is sent to whom is left to the collectives. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/ucx/backend.h"

enum { SPINNING_TRIES = 200, BUSY_TRIES = 4, SLICE_MILLISECONDS = 50 };

/* A rank on another host may wait for one there that is late; that one should time out first, and name it. Of a broken
 * connection the watchdog may know the reason. */
static const double most_grace_seconds = 3.0;
/* For messages that were completed here to leave this process, and for requests that were given up. */
static const double leave_seconds = 2.0;

static fsdp_status ucx_error(const char *what, ucs_status_t status)
{
    return error_set(FSDP_ERR_PEER, "UCX could not %s (code %d); UCX_LOG_LEVEL=info says more", what, (int)status);
}

/* ---- opening ---- */

static fsdp_status open_context(ucx_world *w, int world_size)
{
    ucp_config_t *config;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
                           .estimated_num_eps = (size_t)world_size};
    ucs_status_t status = w->api.ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return ucx_error("read its configuration", status);
    (void)w->api.ucp_config_modify(config, "KEEPALIVE_INTERVAL", "2s"); /* peers over shared memory; 20 s otherwise */
    status = w->api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &w->context);
    w->api.ucp_config_release(config);
    return status == UCS_OK ? FSDP_OK : ucx_error("start", status);
}

static fsdp_status open_worker(ucx_world *w)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = w->api.ucp_worker_create(w->context, &params, &w->worker);
    if (status != UCS_OK) {
        w->worker = NULL;
        return ucx_error("open its devices", status);
    }
    status = w->api.ucp_worker_get_efd(w->worker, &w->event);
    return status == UCS_OK ? FSDP_OK : ucx_error("make a descriptor to wait on", status);
}

fsdp_status ucx_messages_open(comm *c)
{
    ucx_world *w = ucx_world_of(c);
    ucp_address_t *address;
    size_t bytes;
    FSDP_TRY(ucx_open_library(&w->api));
    FSDP_TRY(open_context(w, c->world_size));
    FSDP_TRY(open_worker(w));
    ucs_status_t status = w->api.ucp_worker_get_address(w->worker, &address, &bytes);
    if (status != UCS_OK)
        return ucx_error("tell its address", status);
    fsdp_status gathered = meeting_gather(c->meeting, "UCX's addresses", address, bytes, &w->addresses);
    w->api.ucp_worker_release_address(w->worker, address);
    return gathered;
}

static bool is_done(ucx_world *w, ucx_message *m, ucs_status_t *status)
{
    *status = m->request ? w->api.ucp_request_check_status(m->request) : UCS_OK;
    if (*status == UCS_INPROGRESS)
        return false;
    if (m->request)
        w->api.ucp_request_free(m->request);
    m->request = NULL;
    return true;
}

/* Endpoints close at once. Requests that remain end with them. */
static void close_endpoints(ucx_world *w, int world_size)
{
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    double deadline = clock_seconds() + leave_seconds;
    for (int rank = 0; w->peers && rank < world_size; rank++) {
        if (!w->peers[rank])
            continue;
        ucs_status_ptr_t request = w->api.ucp_ep_close_nbx(w->peers[rank], &force);
        w->peers[rank] = NULL;
        if (!UCS_PTR_IS_PTR(request))
            continue;
        while (w->api.ucp_request_check_status(request) == UCS_INPROGRESS && clock_seconds() < deadline)
            w->api.ucp_worker_progress(w->worker);
        w->api.ucp_request_free(request);
    }
}

/* ---- posting ---- */

static void peer_is_lost(void *lost, ucp_ep_h peer, ucs_status_t status)
{
    (void)peer, (void)status;
    *(bool *)lost = true;
}

/* The endpoint of a rank from which messages only come is made too: a lost peer is known by it. */
static fsdp_status connect_to(comm *c, int peer)
{
    ucx_world *w = ucx_world_of(c);
    if (w->peers[peer])
        return FSDP_OK;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)(w->addresses.data + w->addresses.offsets[peer]),
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {.cb = peer_is_lost, .arg = &w->lost[peer]}};
    ucs_status_t status = w->api.ucp_ep_create(w->worker, &params, &w->peers[peer]);
    if (status == UCS_OK)
        return FSDP_OK;
    w->peers[peer] = NULL;
    return error_set(FSDP_ERR_PEER,
                     "UCX found no way from here to rank %d (code %d): see that the hosts share a network, and that "
                     "UCX_TLS and UCX_NET_DEVICES, if set, allow it",
                     peer, (int)status);
}

static fsdp_status reserve_message(ucx_world *w)
{
    if (w->n_messages < w->room)
        return FSDP_OK;
    int room = w->room ? 2 * w->room : 256;
    ucx_message *messages = realloc(w->messages, (size_t)room * sizeof *messages);
    if (!messages)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d messages", room);
    w->messages = messages;
    w->room = room;
    return FSDP_OK;
}

/* One that fails at once is reported by the wait that follows. */
static fsdp_status note(ucx_world *w, ucs_status_ptr_t request, int peer, bool receives)
{
    bool failed = UCS_PTR_IS_ERR(request);
    w->messages[w->n_messages++] =
        (ucx_message){.request = failed ? NULL : request, .peer = peer, .receives = receives, .failed = failed};
    return FSDP_OK;
}

/* Messages with one tag arrive in the order sent. */
static uint64_t make_tag(const comm_request *r, enum ucx_phase phase, int part, int source)
{
    return (uint64_t)source << 40 | (uint64_t)r->group->slot << 32 | (uint64_t)phase << 28 | (uint64_t)part;
}

static const ucp_request_param_t host_memory = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                                .memory_type = UCS_MEMORY_TYPE_HOST};

fsdp_status ucx_post_send(comm_request *r, enum ucx_phase phase, int rank, int part, const void *data, size_t bytes)
{
    comm *c = r->group->comm;
    ucx_world *w = ucx_world_of(c);
    int peer = r->group->members[rank];
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(reserve_message(w));
    FSDP_TRY(connect_to(c, peer));
    return note(w,
                w->api.ucp_tag_send_nbx(w->peers[peer], data, bytes, make_tag(r, phase, part, c->rank), &host_memory),
                peer, false);
}

fsdp_status ucx_post_receive(comm_request *r, enum ucx_phase phase, int rank, int part, void *data, size_t bytes)
{
    comm *c = r->group->comm;
    ucx_world *w = ucx_world_of(c);
    int peer = r->group->members[rank];
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(reserve_message(w));
    FSDP_TRY(connect_to(c, peer));
    return note(
        w, w->api.ucp_tag_recv_nbx(w->worker, data, bytes, make_tag(r, phase, part, peer), UINT64_MAX, &host_memory),
        peer, true);
}

int ucx_posted(const comm *c)
{
    return ucx_world_of(c)->n_messages;
}

/* ---- waiting ---- */

/* After a failure nothing more should be written into the caller's buffers, or read from them. */
static void give_up(comm *c)
{
    ucx_world *w = ucx_world_of(c);
    double deadline = clock_seconds() + leave_seconds;
    ucs_status_t status;
    for (int i = 0; i < w->n_messages; i++)
        if (w->messages[i].receives && w->messages[i].request)
            w->api.ucp_request_cancel(w->worker, w->messages[i].request);
    close_endpoints(w, c->world_size);
    for (int i = 0; i < w->n_messages; i++)
        while (!is_done(w, &w->messages[i], &status) && clock_seconds() < deadline)
            w->api.ucp_worker_progress(w->worker);
    w->n_messages = 0;
}

static const char *place_of(ucx_world *w, int rank, char *text, size_t bytes)
{
    pthread_mutex_lock(&w->lock);
    signature_place(&w->places[rank], text, bytes);
    pthread_mutex_unlock(&w->lock);
    return text;
}

static double grace_seconds(const comm *c)
{
    double quarter = c->config.timeout_seconds / 4;
    return quarter < most_grace_seconds ? quarter : most_grace_seconds;
}

static fsdp_status peer_gone(comm *c, const char *what, int peer, double *since)
{
    char place[256];
    double now = clock_seconds();
    if (*since == 0)
        *since = now;
    if (now - *since < grace_seconds(c))
        return FSDP_OK;
    return error_set(FSDP_ERR_PEER, "%s failed: rank %d has ended or left the job: its connection broke; it %s", what,
                     peer, place_of(ucx_world_of(c), peer, place, sizeof place));
}

typedef struct wait_state {
    const signature *what;
    double deadline, broken_since;
} wait_state;

/* Reasons to give up other than the messages themselves; message `late` is not done. */
static fsdp_status examine(comm *c, wait_state *wait, const ucx_message *late)
{
    ucx_world *w = ucx_world_of(c);
    char what[256], text[1024], place[256];
    signature_text(wait->what, what, sizeof what);
    if (atomic_load(&c->failed))
        return engine_failure(c);
    fsdp_status status = shm_check(c);
    if (status != FSDP_OK) {
        snprintf(text, sizeof text, "%s", engine_error_text(c));
        return error_set(status, "%s %s%s", what, strncmp(text, "stopped", 7) == 0 ? "" : "failed: ", text);
    }
    if (atomic_load(&c->stop))
        return error_set(FSDP_ERR_STATE, "%s was dropped: this rank closed its connection", what);
    if (late->peer >= 0 && (late->failed || w->lost[late->peer]))
        FSDP_TRY(peer_gone(c, what, late->peer, &wait->broken_since));
    if (clock_seconds() < wait->deadline + grace_seconds(c))
        return FSDP_OK;
    if (late->peer < 0)
        return error_set(FSDP_ERR_TIMEOUT, "%s timed out after %g s: the network takes nothing", what,
                         c->config.timeout_seconds);
    return error_set(FSDP_ERR_TIMEOUT, "%s timed out after %g s: rank %d %s", what, c->config.timeout_seconds,
                     late->peer, place_of(w, late->peer, place, sizeof place));
}

/* The first message of these that is not done; NULL: all are. */
static const ucx_message *find_late(ucx_world *w, int first, int end)
{
    ucs_status_t status;
    for (int i = first; i < end; i++) {
        ucx_message *m = &w->messages[i];
        bool done = is_done(w, m, &status);
        m->failed |= done && status != UCS_OK;
        if (!done || (m->failed && m->peer >= 0)) /* a flush that failed concerns peers that are gone */
            return m;
    }
    return NULL;
}

static void sleep_a_slice(comm *c, int peer)
{
    ucx_world *w = ucx_world_of(c);
    shm_rank *me = shm_rank_of(&w->shared, c->rank);
    struct pollfd p = {.fd = w->event, .events = POLLIN};
    if (w->api.ucp_worker_arm(w->worker) != UCS_OK)
        return; /* something came */
    atomic_store(&me->waiting_for, peer + 1);
    poll(&p, 1, SLICE_MILLISECONDS);
    atomic_store(&me->waiting_for, 0);
}

fsdp_status ucx_wait_messages(comm_request *r, const signature *s, int first, int end)
{
    comm *c = r->group->comm;
    ucx_world *w = ucx_world_of(c);
    wait_state wait = {.what = s, .deadline = clock_seconds() + c->config.timeout_seconds};
    double look = 0;
    int idle = 0;
    fsdp_status status = FSDP_OK;
    while (status == FSDP_OK) {
        bool moved = w->api.ucp_worker_progress(w->worker) != 0;
        const ucx_message *late = find_late(w, first, end);
        if (!late)
            return FSDP_OK;
        idle = moved ? 0 : idle + 1;
        if (idle < (w->shared.spin ? SPINNING_TRIES : BUSY_TRIES))
            continue;
        if (clock_seconds() >= look) {
            status = examine(c, &wait, late);
            look = clock_seconds() + SLICE_MILLISECONDS * 1e-3;
        }
        if (status == FSDP_OK)
            sleep_a_slice(c, late->peer);
    }
    give_up(c);
    return status;
}

/* A message that is done here may still lie in this process, where nobody moves it on until the next collective. */
fsdp_status ucx_wait_posted(comm_request *r, const signature *s)
{
    ucx_world *w = ucx_world_of(r->group->comm);
    if (w->n_messages == 0)
        return FSDP_OK;
    FSDP_TRY(ucx_wait_messages(r, s, 0, w->n_messages));
    w->n_messages = 0;
    FSDP_TRY(note(w, w->api.ucp_worker_flush_nbx(w->worker, &(ucp_request_param_t){0}), -1, false));
    FSDP_TRY(ucx_wait_messages(r, s, 0, 1));
    w->n_messages = 0;
    return FSDP_OK;
}

/* ---- closing ---- */

void ucx_messages_close(comm *c)
{
    ucx_world *w = ucx_world_of(c);
    if (w->worker)
        give_up(c);
    if (w->worker)
        w->api.ucp_worker_destroy(w->worker);
    if (w->context)
        w->api.ucp_cleanup(w->context);
    client_parts_free(&w->addresses);
    free(w->messages);
}
