/* Runs collectives in the order they were started: on the progress thread while the caller computes, or inside the
 * caller's wait. Keeps the failure that ended the comm. How data moves is left to the backends. */
#include "comm/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const char *subject(const comm_request *r)
{
    return r->op.unit ? r->op.unit : r->op.label;
}

static hook_call call_of(const comm_request *r)
{
    const comm_group *g = r->group;
    return (hook_call){.slot = g->slot, .serial = g->serial, .first = g->members[0], .sequence = r->sequence};
}

void engine_report_wait(const comm_request *r, hook_moment moment)
{
    hook_call call = call_of(r);
    HOOK_CALL(HOOK_WAIT, moment, comm_kind_name(r->kind), subject(r), 0, 0, &call);
}

/* The caller's thread has called it: for the ring alone. Listeners hear of a collective when it runs. */
static void keep_call(const comm_request *r)
{
    hook_call call = call_of(r);
    ring *kept = ring_own();
    if (kept)
        hooks_keep(kept, HOOK_COLLECTIVE, HOOK_INSTANT, comm_kind_name(r->kind), subject(r), request_received(r), 1,
                   &call);
}

static void report_run(const comm_request *r, hook_moment moment)
{
    hook_call call = call_of(r);
    int64_t bytes = moment == HOOK_END ? 0 : request_received(r);
    HOOK_CALL(HOOK_COLLECTIVE, moment, comm_kind_name(r->kind), subject(r), bytes, 1, &call);
}

/* Executor only. */
static void run_one(comm *c, comm_request *r)
{
    fsdp_status status = FSDP_ERR_PEER;
    if (!atomic_load(&c->failed)) {
        report_run(r, HOOK_BEGIN);
        status = r->group->size == 1 ? self_run(r) : c->backend->run(r);
        if (status == FSDP_OK) /* one that failed stays under way, for those who look for it */
            report_run(r, HOOK_END);
        if (status != FSDP_OK)
            engine_fail(c, status, engine_error_text(c));
        else
            atomic_fetch_add(&r->group->bytes_received, request_received(r));
    }
    atomic_fetch_add(&r->group->finished, 1);
    pthread_mutex_lock(&c->lock);
    atomic_store(&r->state, status == FSDP_OK ? REQUEST_DONE : REQUEST_FAILED);
    pthread_cond_broadcast(&c->progress);
    pthread_mutex_unlock(&c->lock);
}

/* Takes the oldest request off the queue; NULL when it is empty. Under the lock. */
static comm_request *take(comm *c)
{
    comm_request *r = c->head;
    if (r) {
        c->head = r->next;
        if (!c->head)
            c->tail = NULL;
        r->next = NULL;
    }
    return r;
}

static void *progress_main(void *argument)
{
    comm *c = argument;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->head && !atomic_load(&c->stop))
            pthread_cond_wait(&c->work, &c->lock);
        if (atomic_load(&c->stop))
            break;
        comm_request *r = take(c);
        pthread_mutex_unlock(&c->lock);
        run_one(c, r);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Without a thread: runs the oldest request here. */
static void advance(comm *c)
{
    pthread_mutex_lock(&c->lock);
    comm_request *r = take(c);
    pthread_mutex_unlock(&c->lock);
    if (r)
        run_one(c, r);
}

fsdp_status engine_open(comm *c, bool thread)
{
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->progress, NULL);
    if (!thread)
        return FSDP_OK;
    int error = pthread_create(&c->thread, NULL, progress_main, c);
    if (error)
        return error_set(FSDP_ERR_MEMORY, "cannot start the communication thread: %s", strerror(error));
    c->has_thread = true;
    return FSDP_OK;
}

void engine_close(comm *c)
{
    atomic_store(&c->stop, true);
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    for (comm_request *r = take(c); r; r = take(c))
        atomic_store(&r->state, REQUEST_FAILED);
}

void engine_free(comm *c)
{
    pthread_cond_destroy(&c->progress);
    pthread_cond_destroy(&c->work);
    pthread_mutex_destroy(&c->lock);
}

static bool is_full(const comm_group *g)
{
    return g->started - atomic_load(&g->finished) >= COMM_IN_FLIGHT;
}

/* Waits, under the rule of COMM_IN_FLIGHT, until the request's group may have one more collective under way. */
static void make_room(const comm_request *r)
{
    const comm_group *g = r->group;
    comm *c = g->comm;
    if (!is_full(g))
        return;
    engine_report_wait(r, HOOK_BEGIN);
    while (!c->has_thread && is_full(g))
        advance(c);
    pthread_mutex_lock(&c->lock);
    while (c->has_thread && is_full(g))
        pthread_cond_wait(&c->progress, &c->lock);
    pthread_mutex_unlock(&c->lock);
    engine_report_wait(r, HOOK_END);
}

/* Until the executor is done with it. Once the comm has failed, it only marks collectives as failed, so this ends soon.
 */
static void await_executor(comm_request *r)
{
    comm *c = r->group->comm;
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        while (atomic_load(&r->state) == REQUEST_PENDING)
            pthread_cond_wait(&c->progress, &c->lock);
        pthread_mutex_unlock(&c->lock);
    } else {
        while (atomic_load(&r->state) == REQUEST_PENDING)
            advance(c);
    }
}

static fsdp_status outcome(const comm_request *r)
{
    return atomic_load(&r->state) == REQUEST_FAILED ? engine_failure(r->group->comm) : FSDP_OK;
}

fsdp_status engine_start(comm_group *g, comm_kind kind, const comm_op *op, comm_request *r)
{
    comm *c = g->comm;
    if (atomic_load(&r->state) == REQUEST_PENDING)
        return error_set(FSDP_ERR_STATE,
                         "%s of %s was started with a request that is still under way; wait for it first",
                         comm_kind_name(kind),
                         op->unit    ? op->unit
                         : op->label ? op->label
                                     : "data");
    FSDP_TRY(request_validate(g, kind, op));
    if (atomic_load(&c->failed))
        return engine_failure(c);
    r->op = *op;
    r->kind = kind;
    r->group = g;
    make_room(r);
    if (atomic_load(&c->failed))
        return engine_failure(c);

    r->sequence = ++g->started;
    r->next = NULL;
    keep_call(r);
    if (g->size > 1 && c->backend->start) {
        fsdp_status status = c->backend->start(r);
        if (status != FSDP_OK) {
            atomic_fetch_add(&g->finished, 1);
            return engine_fail(c, status, engine_error_text(c));
        }
    }
    pthread_mutex_lock(&c->lock);
    atomic_store(&r->state, REQUEST_PENDING);
    if (c->tail)
        c->tail->next = r;
    else
        c->head = r;
    c->tail = r;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
    if (c->backend->enqueues || self_enqueues(r)) { /* nothing is waited for yet */
        await_executor(r);
        return outcome(r);
    }
    return FSDP_OK;
}

void engine_await(comm_request *r)
{
    if (atomic_load(&r->state) != REQUEST_PENDING)
        return;
    engine_report_wait(r, HOOK_BEGIN);
    await_executor(r);
    engine_report_wait(r, HOOK_END);
}
fsdp_status engine_wait(comm_request *r)
{
    engine_await(r);
    return outcome(r);
}

fsdp_status engine_drain(comm *c)
{
    for (comm_group *g = c->groups; g; g = g->next) {
        pthread_mutex_lock(&c->lock);
        while (c->has_thread && atomic_load(&g->finished) != g->started)
            pthread_cond_wait(&c->progress, &c->lock);
        pthread_mutex_unlock(&c->lock);
        while (!c->has_thread && c->head)
            advance(c);
    }
    return atomic_load(&c->failed) ? engine_failure(c) : FSDP_OK;
}

const char *engine_error_text(const comm *c)
{
    const char *text = fsdp_last_error();
    char front[32];
    int length = snprintf(front, sizeof front, "rank %d: ", c->rank);
    return strncmp(text, front, (size_t)length) == 0 ? text + length : text;
}

fsdp_status engine_fail(comm *c, fsdp_status status, const char *text)
{
    pthread_mutex_lock(&c->lock);
    bool first = !atomic_load(&c->failed);
    if (first) {
        c->failure = status;
        snprintf(c->failure_text, sizeof c->failure_text, "%s", text);
        atomic_store(&c->failed, true);
    }
    pthread_mutex_unlock(&c->lock);
    if (first && !atomic_load(&c->stop)) {
        ring_save_own(c->failure_text);
        c->backend->abort(c, c->failure_text);
    }
    return engine_failure(c);
}

fsdp_status engine_failure(comm *c)
{
    char text[sizeof c->failure_text];
    pthread_mutex_lock(&c->lock);
    fsdp_status status = c->failure;
    memcpy(text, c->failure_text, sizeof text);
    pthread_mutex_unlock(&c->lock);
    return error_set(status, "%s", text);
}
