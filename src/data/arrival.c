/* One thread at most fetches ahead. It is joined by whoever needs its file, or the next thread. */
#include "data/arrival.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"

struct arrival {
    hub_files *files;
    atomic_int n_users;
    pthread_mutex_t lock;
    pthread_t thread;
    bool running; /* the thread is to be joined */
    atomic_bool done;
    size_t ahead; /* its file */
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
    hub_files_stop(a->files, true);
    join(a);
    pthread_mutex_destroy(&a->lock);
    hub_files_close(a->files);
    free(a);
}

hub_files *arrival_files(arrival *a)
{
    return a->files;
}

void arrival_stop(arrival *a, bool stop)
{
    hub_files_stop(a->files, stop);
}

static void *fetch_ahead(void *context)
{
    arrival *a = context;
    (void)hub_files_fetch(a->files, a->ahead); /* whoever needs the file tries again, and says why it cannot come */
    atomic_store(&a->done, true);
    return NULL;
}

void arrival_expect(arrival *a, size_t index)
{
    if (file_exists(hub_files_at(a->files, index)->path))
        return;
    pthread_mutex_lock(&a->lock);
    if (!a->running || atomic_load(&a->done)) {
        join(a);
        a->ahead = index;
        atomic_store(&a->done, false);
        a->running = pthread_create(&a->thread, NULL, fetch_ahead, a) == 0;
    }
    pthread_mutex_unlock(&a->lock);
}

fsdp_status arrival_await(arrival *a, size_t index)
{
    pthread_mutex_lock(&a->lock);
    if (a->running && a->ahead == index)
        join(a);
    pthread_mutex_unlock(&a->lock);
    return hub_files_fetch(a->files, index);
}
