/* One thread at most fetches ahead. It is joined by whoever needs its file, or the next thread. */
#include "data/arrival.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/condition.h"
#include "base/error.h"
#include "base/file.h"

struct arrival {
    hub_files *files;
    atomic_int n_users;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool running, done; /* the thread is to be joined; that will not take long */
    size_t ahead;       /* its file */
    atomic_bool ending;
};

fsdp_status arrival_open(const char *name, const char *config, arrival **out)
{
    hub_files *files = NULL;
    *out = NULL;
    FSDP_TRY(hub_files_open(name, config, &files));
    if (files == NULL)
        return FSDP_OK;
    arrival *a = calloc(1, sizeof *a);
    if (a == NULL) {
        hub_files_close(files);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    }
    a->files = files;
    atomic_init(&a->n_users, 1);
    pthread_mutex_init(&a->lock, NULL);
    condition_init(&a->changed);
    *out = a;
    return FSDP_OK;
}

arrival *arrival_share(arrival *a)
{
    if (a != NULL)
        atomic_fetch_add(&a->n_users, 1);
    return a;
}

/* Under the lock. */
static void join(arrival *a)
{
    if (a->running)
        pthread_join(a->thread, NULL);
    a->running = false;
}

void arrival_release(arrival *a)
{
    if (a == NULL || atomic_fetch_sub(&a->n_users, 1) > 1)
        return;
    atomic_store(&a->ending, true);
    join(a);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    hub_files_close(a->files);
    free(a);
}

hub_files *arrival_files(arrival *a)
{
    return a->files;
}

int64_t arrival_moves(const arrival *a)
{
    return hub_files_moves(a->files);
}

static void *fetch_ahead(void *context)
{
    arrival *a = context;
    /* Whoever needs the file tries again, and says why it cannot come. */
    (void)hub_files_fetch(a->files, a->ahead, &a->ending);
    pthread_mutex_lock(&a->lock);
    a->done = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

void arrival_expect(arrival *a, size_t index)
{
    if (file_exists(hub_files_at(a->files, index)->path))
        return;
    pthread_mutex_lock(&a->lock);
    if (!a->running || a->done) {
        join(a);
        a->ahead = index;
        a->done = false;
        a->running = pthread_create(&a->thread, NULL, fetch_ahead, a) == 0;
    }
    pthread_mutex_unlock(&a->lock);
}

static bool is_stopped(const atomic_bool *stop)
{
    return stop != NULL && atomic_load(stop);
}

fsdp_status arrival_await(arrival *a, size_t index, const atomic_bool *stop)
{
    pthread_mutex_lock(&a->lock);
    while (a->running && !a->done && a->ahead == index && !is_stopped(stop))
        condition_wait_a_second(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    if (is_stopped(stop))
        return error_set(FSDP_ERR_STATE, "%s: nobody waits for it any more", hub_files_at(a->files, index)->path);
    return hub_files_fetch(a->files, index, stop);
}
