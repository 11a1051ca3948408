/* The MPI backend's coming and going, its messages and its waits: timeouts, and failures passed on as messages of their
 * own. What is sent to whom is left to collectives.c. */
#include "comm/mpi/backend.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"

enum { MESSAGE_BYTES = 1 << 30, BUSY_TRIES = 2000, YIELDING_TRIES = 20000 };
enum { MIN_SCRATCH = 64 << 10, DEFAULT_SCRATCH = 4 << 20 };

/* How long a failed rank stays for its peers to hear of it: mpirun ends every rank as soon as one has gone. */
static const double farewell_seconds = 1.0;

static fsdp_status mpi_error(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return error_set(FSDP_ERR_PEER, "MPI could not %s: %s", what, text);
}

/* ---- opening ---- */

/* Ranks that share memory are a node; nodes are numbered by their first rank. */
static fsdp_status find_nodes(comm *c)
{
    MPI_Comm node;
    int first = c->rank, *firsts = malloc((size_t)c->world_size * sizeof *firsts);
    if (!firsts)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", c->world_size);
    int code = MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &node);
    if (code == MPI_SUCCESS) {
        MPI_Comm_rank(node, &c->local_rank);
        MPI_Comm_size(node, &c->local_world_size);
        MPI_Bcast(&first, 1, MPI_INT, 0, node);
        MPI_Comm_free(&node);
        code = MPI_Allgather(&first, 1, MPI_INT, firsts, 1, MPI_INT, MPI_COMM_WORLD);
    }
    c->node = c->n_nodes = 0;
    for (int rank = 0; code == MPI_SUCCESS && rank < c->world_size; rank++) {
        c->n_nodes += firsts[rank] == rank;
        c->node += firsts[rank] == rank && rank < first;
    }
    free(firsts);
    return code == MPI_SUCCESS ? FSDP_OK : mpi_error("find the ranks of this host", code);
}

static fsdp_status initialize(mpi_world *w)
{
    int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized)
        return error_set(FSDP_ERR_STATE, "MPI was finalized already; it can be used once in a process");
    if (!initialized) {
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        if (code != MPI_SUCCESS)
            return mpi_error("start", code);
        w->initialized_here = true;
    }
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED)
        return error_set(FSDP_ERR_UNSUPPORTED, "this MPI was started without MPI_THREAD_SERIALIZED, which is needed");
    return FSDP_OK;
}

static size_t mpi_overhead(const comm_config *config)
{
    size_t asked = config->staging_bytes ? config->staging_bytes : DEFAULT_SCRATCH;
    return round_up(asked > MIN_SCRATCH ? asked : MIN_SCRATCH, 4096);
}

static fsdp_status mpi_open(comm *c)
{
    mpi_world *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "no memory to start MPI");
    c->state = w;
    pthread_mutex_init(&w->lock, NULL);
    w->abort_rank = -1;
    FSDP_TRY(initialize(w));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &c->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &c->world_size);
    FSDP_TRY(find_nodes(c));
    if (MPI_Comm_dup(MPI_COMM_WORLD, &w->messages) != MPI_SUCCESS ||
        MPI_Comm_dup(MPI_COMM_WORLD, &w->aborts) != MPI_SUCCESS)
        return error_set(FSDP_ERR_PEER, "MPI could not copy its communicator");
    w->opened = true;
    w->scratch_bytes = mpi_overhead(&c->config);
    size_t n = (size_t)c->world_size;
    w->scratch = malloc(w->scratch_bytes);
    w->places = calloc(n, sizeof *w->places);
    w->inbox = calloc(n, sizeof *w->inbox);
    w->sources = calloc(n, sizeof *w->sources);
    w->stretches = calloc(n, sizeof *w->stretches);
    if (!w->scratch || !w->places || !w->inbox || !w->sources || !w->stretches)
        return error_set(FSDP_ERR_MEMORY, "no memory for messages of %d ranks", c->world_size);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, (int64_t)w->scratch_bytes, 1);
    w->reported = true;
    return FSDP_OK;
}

/* ---- failures ---- */

/* Looks for a message from a rank that failed. Under the lock. */
static bool hear_abort(comm *c)
{
    mpi_world *w = mpi_world_of(c);
    int there = 0;
    MPI_Status status;
    if (w->abort_rank >= 0)
        return true;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, w->aborts, &there, &status) != MPI_SUCCESS || !there)
        return false;
    MPI_Recv(w->abort_text, sizeof w->abort_text, MPI_CHAR, status.MPI_SOURCE, 0, w->aborts, MPI_STATUS_IGNORE);
    w->abort_text[sizeof w->abort_text - 1] = 0;
    w->abort_rank = status.MPI_SOURCE;
    return true;
}

/* Small messages leave at once; they are not waited for. The buffer outlives them: it belongs to the comm. */
static void mpi_abort(comm *c, const char *message)
{
    mpi_world *w = mpi_world_of(c);
    if (!w || !w->opened)
        return;
    pthread_mutex_lock(&w->lock);
    if (!hear_abort(c)) { /* a rank that only passes on a known failure stays silent */
        w->abort_rank = c->rank;
        snprintf(w->abort_text, sizeof w->abort_text, "%s", message);
        for (int rank = 0; rank < c->world_size; rank++) {
            MPI_Request ignored;
            if (rank != c->rank &&
                MPI_Isend(w->abort_text, sizeof w->abort_text, MPI_CHAR, rank, 0, w->aborts, &ignored) == MPI_SUCCESS)
                MPI_Request_free(&ignored);
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static fsdp_status mpi_check(comm *c)
{
    mpi_world *w = mpi_world_of(c);
    pthread_mutex_lock(&w->lock);
    bool aborted = hear_abort(c);
    pthread_mutex_unlock(&w->lock);
    if (!aborted)
        return FSDP_OK;
    return error_set(FSDP_ERR_PEER, "stopped because rank %d failed: %s", w->abort_rank, w->abort_text);
}

static void pause_briefly(void)
{
    struct timespec pause = {.tv_nsec = 100000};
    nanosleep(&pause, NULL);
}

/* A failed rank says that it goes, and stays until every rank has said so or the time is over. */
static void say_farewell(comm *c)
{
    mpi_world *w = mpi_world_of(c);
    double deadline = clock_seconds() + farewell_seconds;
    static const char word = 0;
    int heard = 1;
    for (int rank = 0; rank < c->world_size; rank++) {
        MPI_Request ignored;
        if (rank != c->rank && MPI_Isend(&word, 1, MPI_CHAR, rank, 1, w->aborts, &ignored) == MPI_SUCCESS)
            MPI_Request_free(&ignored);
    }
    while (heard < c->world_size && clock_seconds() < deadline) {
        int there = 0;
        MPI_Status status;
        char got;
        if (MPI_Iprobe(MPI_ANY_SOURCE, 1, w->aborts, &there, &status) != MPI_SUCCESS)
            return;
        if (there && ++heard)
            MPI_Recv(&got, 1, MPI_CHAR, status.MPI_SOURCE, 1, w->aborts, MPI_STATUS_IGNORE);
        else
            pause_briefly();
    }
}

/* After a failure messages may be under way that never end: then MPI is left as it is, for mpirun to clean up. */
static void mpi_close(comm *c)
{
    mpi_world *w = mpi_world_of(c);
    if (!w)
        return;
    host_release_all(c);
    bool failed = atomic_load(&c->failed);
    if (failed && w->opened)
        say_farewell(c);
    if (!failed && w->opened) {
        MPI_Comm_free(&w->aborts);
        MPI_Comm_free(&w->messages);
    }
    if (!failed && w->initialized_here)
        MPI_Finalize();
    free(w->stretches);
    free(w->sources);
    free(w->receives);
    free(w->peers);
    free(w->requests);
    free(w->inbox);
    free(w->places);
    if (w->reported)
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, -(int64_t)w->scratch_bytes, 1);
    free(w->scratch);
    pthread_mutex_destroy(&w->lock);
    free(w);
    c->state = NULL;
}

static fsdp_status mpi_group_open(comm_group *g)
{
    (void)g; /* messages carry the group's number in their tags; there is nothing to make */
    return FSDP_OK;
}

static void mpi_group_close(comm_group *g)
{
    (void)g;
}

/* ---- messages ---- */

static fsdp_status reserve_request(mpi_world *w)
{
    if (w->n_requests < w->capacity)
        return FSDP_OK;
    int capacity = w->capacity ? 2 * w->capacity : 64;
    MPI_Request *requests = realloc(w->requests, (size_t)capacity * sizeof *requests);
    if (requests)
        w->requests = requests;
    int *peers = realloc(w->peers, (size_t)capacity * sizeof *peers);
    if (peers)
        w->peers = peers;
    bool *receives = realloc(w->receives, (size_t)capacity * sizeof *receives);
    if (receives)
        w->receives = receives;
    if (!requests || !peers || !receives)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d messages", capacity);
    w->capacity = capacity;
    return FSDP_OK;
}

static fsdp_status post(comm_request *r, enum mpi_phase phase, int rank, char *data, size_t bytes, bool sends)
{
    mpi_world *w = mpi_world_of(r->group->comm);
    int tag = r->group->slot * MPI_PHASES + (int)phase, peer = r->group->members[rank];
    for (size_t at = 0; at < bytes; at += MESSAGE_BYTES) {
        int n = bytes - at < MESSAGE_BYTES ? (int)(bytes - at) : MESSAGE_BYTES;
        FSDP_TRY(reserve_request(w));
        MPI_Request *request = &w->requests[w->n_requests];
        pthread_mutex_lock(&w->lock);
        int code = sends ? MPI_Isend(data + at, n, MPI_BYTE, peer, tag, w->messages, request)
                         : MPI_Irecv(data + at, n, MPI_BYTE, peer, tag, w->messages, request);
        pthread_mutex_unlock(&w->lock);
        if (code != MPI_SUCCESS)
            return mpi_error(sends ? "send" : "receive", code);
        w->receives[w->n_requests] = !sends;
        w->peers[w->n_requests++] = peer;
    }
    return FSDP_OK;
}

fsdp_status mpi_post_send(comm_request *r, enum mpi_phase phase, int rank, const void *data, size_t bytes)
{
    return post(r, phase, rank, (char *)data, bytes, true);
}

fsdp_status mpi_post_receive(comm_request *r, enum mpi_phase phase, int rank, void *data, size_t bytes)
{
    return post(r, phase, rank, data, bytes, false);
}

static fsdp_status timed_out(comm *c, const char *what)
{
    mpi_world *w = mpi_world_of(c);
    int late = -1;
    char place[256];
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_requests && late < 0; i++) {
        int done = 0;
        if (w->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(w->requests[i], &done, MPI_STATUS_IGNORE);
        if (w->requests[i] != MPI_REQUEST_NULL && !done)
            late = w->peers[i];
    }
    pthread_mutex_unlock(&w->lock);
    if (late < 0)
        return error_set(FSDP_ERR_TIMEOUT, "%s timed out after %g s", what, c->config.timeout_seconds);
    return error_set(FSDP_ERR_TIMEOUT, "%s timed out after %g s: rank %d %s", what, c->config.timeout_seconds, late,
                     signature_place(&w->places[late], place, sizeof place));
}

/* After a failure nothing more should be written into the caller's buffers. */
static void give_up_receives(mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_requests; i++)
        if (w->receives[i] && w->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&w->requests[i]);
            MPI_Request_free(&w->requests[i]);
        }
    w->n_requests = 0;
    pthread_mutex_unlock(&w->lock);
}

/* MPI moves messages only inside its calls, so a waiter keeps asking; ever more slowly, for ranks may share cores. */
static void back_off(int tries)
{
    if (tries > YIELDING_TRIES)
        pause_briefly();
    else if (tries > BUSY_TRIES)
        sched_yield();
}

/* Reasons to give up other than the messages themselves. */
static fsdp_status examine(comm *c, const signature *s, double deadline)
{
    mpi_world *w = mpi_world_of(c);
    char what[256];
    signature_text(s, what, sizeof what);
    pthread_mutex_lock(&w->lock);
    bool aborted = hear_abort(c);
    pthread_mutex_unlock(&w->lock);
    if (atomic_load(&c->failed))
        return engine_failure(c);
    if (aborted)
        return error_set(FSDP_ERR_PEER, "%s stopped because rank %d failed: %s", what, w->abort_rank, w->abort_text);
    if (atomic_load(&c->stop))
        return error_set(FSDP_ERR_STATE, "%s was dropped: this rank closed its connection", what);
    return clock_seconds() > deadline ? timed_out(c, what) : FSDP_OK;
}

fsdp_status mpi_wait_posted(comm_request *r, const signature *s)
{
    comm *c = r->group->comm;
    mpi_world *w = mpi_world_of(c);
    double deadline = clock_seconds() + c->config.timeout_seconds;
    fsdp_status status = FSDP_OK;
    for (int tries = 0, done = 0; status == FSDP_OK; tries++) {
        pthread_mutex_lock(&w->lock);
        int code = MPI_Testall(w->n_requests, w->requests, &done, MPI_STATUSES_IGNORE);
        pthread_mutex_unlock(&w->lock);
        if (code != MPI_SUCCESS) {
            status = mpi_error("move messages", code);
        } else if (done) {
            w->n_requests = 0;
            return FSDP_OK;
        }
        if (tries % 64 == 63)
            status = examine(c, s, deadline);
        back_off(tries);
    }
    give_up_receives(w);
    return status;
}

const comm_backend comm_mpi_backend = {
    .name = "mpi",
    .overhead = mpi_overhead,
    .open = mpi_open,
    .close = mpi_close,
    .group_open = mpi_group_open,
    .group_close = mpi_group_close,
    .run = mpi_run,
    .allocate = host_allocate,
    .release = host_release,
    .abort = mpi_abort,
    .check = mpi_check,
};
