/* The thread, its queue, and who waits for whom. */
#include "shard/offload/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"

#define POLL_NANOSECONDS 20000 /* between two looks at units that are not ready */

struct unit_worker {
    const layout *layout;
    double timeout_seconds;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    unit_work work;
    int *order; /* units given and not done, in the order they came; (n_units) */
    int n_left;
    int running; /* one of them; -1: none */
    bool quit;
    fsdp_status status; /* of the thread; not FSDP_OK: it has ended */
    char message[1024];
};

static bool is_left(const unit_worker *w, int unit)
{
    for (int i = 0; i < w->n_left; i++) {
        if (unit < 0 || w->order[i] == unit)
            return true;
    }
    return false;
}

static bool remove_unit(unit_worker *w, int unit)
{
    for (int i = 0; i < w->n_left; i++) {
        if (w->order[i] != unit)
            continue;
        w->n_left--;
        memmove(&w->order[i], &w->order[i + 1], (size_t)(w->n_left - i) * sizeof *w->order);
        return true;
    }
    return false;
}

static void fail(unit_worker *w, fsdp_status status, const char *unit)
{
    char reason[sizeof w->message - 256];
    snprintf(reason, sizeof reason, "%s", fsdp_last_error());
    w->status = status;
    snprintf(w->message, sizeof w->message, "the optimizer step of unit %.128s in host memory failed: %s", unit,
             reason);
}

/* The first unit that is ready, or -1 when none came in time, none is left or the worker is to end. Called with the
 * lock held, which is released while it sleeps. */
static int next_ready(unit_worker *w)
{
    const struct timespec pause = {0, POLL_NANOSECONDS};
    double begun = clock_seconds();
    while (!w->quit && w->n_left > 0) {
        for (int i = 0; i < w->n_left; i++) {
            bool ready = true;
            fsdp_status status = w->work.ready ? w->work.ready(w->work.context, w->order[i], &ready) : FSDP_OK;
            if (status != FSDP_OK) {
                fail(w, status, w->layout->units[w->order[i]].name);
                return -1;
            }
            if (ready)
                return w->order[i];
        }
        pthread_mutex_unlock(&w->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&w->lock);
        if (w->n_left > 0 && clock_seconds() - begun > w->timeout_seconds) {
            error_set(FSDP_ERR_TIMEOUT, "its gradient has not come from the device after %.0f s", w->timeout_seconds);
            fail(w, FSDP_ERR_TIMEOUT, w->layout->units[w->order[0]].name);
            return -1;
        }
    }
    return -1;
}

static void *work_main(void *context)
{
    unit_worker *w = context;
    pthread_mutex_lock(&w->lock);
    while (!w->quit && w->status == FSDP_OK) {
        if (w->n_left == 0) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        int unit = w->running = next_ready(w);
        if (unit < 0)
            continue;
        pthread_mutex_unlock(&w->lock);
        fsdp_status status = w->work.run(w->work.context, unit);
        pthread_mutex_lock(&w->lock);
        w->running = -1;
        if (status != FSDP_OK)
            fail(w, status, w->layout->units[unit].name);
        else
            remove_unit(w, unit);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static fsdp_status start_thread(unit_worker *w)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    int error = pthread_create(&w->thread, NULL, work_main, w);
    if (error != 0)
        return error_set(FSDP_ERR_MEMORY, "starting the thread of the optimizer in host memory: %s", strerror(error));
    w->started = true;
    return FSDP_OK;
}

fsdp_status unit_worker_create(const layout *l, double timeout_seconds, unit_worker **out)
{
    unit_worker *w = calloc(1, sizeof *w);
    if (!w || !(w->order = calloc((size_t)l->n_units, sizeof *w->order))) {
        free(w);
        return error_set(FSDP_ERR_MEMORY, "offloading units: out of host memory");
    }
    w->layout = l;
    w->running = -1;
    w->timeout_seconds = timeout_seconds;
    fsdp_status status = start_thread(w);
    if (status != FSDP_OK) {
        unit_worker_free(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

void unit_worker_free(unit_worker *w)
{
    if (!w)
        return;
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->quit = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->order);
    free(w);
}

static struct timespec deadline(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* With the lock held. */
static fsdp_status wait_locked(unit_worker *w, int unit)
{
    struct timespec until = deadline(w->timeout_seconds);
    while (w->status == FSDP_OK && is_left(w, unit)) {
        if (pthread_cond_timedwait(&w->changed, &w->lock, &until) == ETIMEDOUT && is_left(w, unit))
            return error_set(FSDP_ERR_TIMEOUT, "the optimizer step of unit %s in host memory takes longer than %.0f s",
                             w->layout->units[unit < 0 ? w->order[0] : unit].name, w->timeout_seconds);
    }
    return w->status == FSDP_OK ? FSDP_OK : error_set(w->status, "%s", w->message);
}

fsdp_status unit_worker_give(unit_worker *w, const unit_work *work, const int *order, int n)
{
    pthread_mutex_lock(&w->lock);
    fsdp_status status = wait_locked(w, -1);
    if (status == FSDP_OK) {
        w->work = *work;
        memcpy(w->order, order, (size_t)n * sizeof *order);
        w->n_left = n;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

fsdp_status unit_worker_add(unit_worker *w, const unit_work *work, int unit)
{
    pthread_mutex_lock(&w->lock);
    fsdp_status status = wait_locked(w, unit);
    if (status == FSDP_OK) {
        w->work = *work;
        w->order[w->n_left++] = unit;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

bool unit_worker_withdraw(unit_worker *w, int unit)
{
    pthread_mutex_lock(&w->lock);
    bool taken = w->running != unit && remove_unit(w, unit);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return taken;
}

fsdp_status unit_worker_wait(unit_worker *w, int unit)
{
    pthread_mutex_lock(&w->lock);
    fsdp_status status = wait_locked(w, unit);
    pthread_mutex_unlock(&w->lock);
    return status;
}
