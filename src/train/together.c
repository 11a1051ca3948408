/* Work that one host may have done before and another needs an hour for: downloading a model, tokenizing text. It runs
 * on a thread, and the ranks exchange a word every second meanwhile, so that nobody's --comm_timeout runs while others
 * work, and when one cannot go on, all end and say why. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/host/threads.h"
#include "train/run.h"

static const double exchange_seconds = 1;
/* Rank 0, when it is done, says whom it waits for, and once more each time it has waited twice as long. */
static const double first_word_seconds = 5;

typedef enum work_state { WORKING, DONE, FAILED } work_state;

/* Plain data that travels between ranks. */
typedef struct work_word {
    int32_t state;
    char host[64], why[512];
} work_word;

typedef struct together {
    train_run *run;
    const char *doing;
    together_work work;
    int n_threads; /* of OpenMP, which counts them by thread */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    work_state state;
    fsdp_status status;
    char why[1024];
    atomic_bool stop;
} together;

static void *together_main(void *argument)
{
    together *t = argument;
    threads_set(t->n_threads, 1);
    fsdp_status status = t->work(t->run, &t->stop);
    pthread_mutex_lock(&t->lock);
    t->status = status;
    t->state = status == FSDP_OK ? DONE : FAILED;
    snprintf(t->why, sizeof t->why, "%s", status == FSDP_OK ? "" : fsdp_last_error());
    pthread_cond_signal(&t->ended);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Until the work has ended, or a second; how it stands then. */
static work_state await_work(together *t)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)exchange_seconds;
    pthread_mutex_lock(&t->lock);
    while (t->state == WORKING && pthread_cond_timedwait(&t->ended, &t->lock, &until) == 0)
        ;
    work_state state = t->state;
    pthread_mutex_unlock(&t->lock);
    return state;
}

static int first_in(const work_word *all, int n, work_state state)
{
    for (int i = 0; i < n; i++)
        if (all[i].state == (int32_t)state)
            return i;
    return -1;
}

static void name_waiting(const together *t, const work_word *all, double seconds)
{
    int first = first_in(all, t->run->n_ranks, WORKING), others = -1;
    char more[32] = "";
    for (int i = 0; i < t->run->n_ranks; i++)
        others += all[i].state == WORKING;
    if (others > 0)
        snprintf(more, sizeof more, " and %d more", others);
    run_say(t->run, FSDP_LINE_INFO, "Waiting for rank %d on %.63s%s, still %s after %.0f s", first, all[first].host,
            more, t->doing, seconds);
}

/* Exchanges words until all are done or one has failed: FSDP_ERR_PEER, with its reason. */
static fsdp_status exchange_words(together *t, work_word *all, size_t *bytes)
{
    const train_run *run = t->run;
    double begun = clock_seconds(), next_word = first_word_seconds;
    for (;;) {
        work_word mine = {.state = await_work(t)};
        gethostname(mine.host, sizeof mine.host - 1);
        if (mine.state == FAILED)
            snprintf(mine.why, sizeof mine.why, "%.500s", t->why);
        FSDP_TRY(comm_exchange(comm_world(run->world->comm), t->doing, &mine, sizeof mine, sizeof mine, all, bytes));
        int failed = first_in(all, run->n_ranks, FAILED);
        double seconds = clock_seconds() - begun;
        if (mine.state == FAILED)
            return FSDP_OK; /* its own message says more */
        if (failed >= 0)
            return error_set(FSDP_ERR_PEER, "rank %d on %.63s: %.500s", failed, all[failed].host, all[failed].why);
        if (first_in(all, run->n_ranks, WORKING) < 0)
            return FSDP_OK;
        if (run->rank == 0 && mine.state == DONE && seconds >= next_word) {
            name_waiting(t, all, seconds);
            next_word = 2 * seconds;
        }
    }
}

static fsdp_status work_together(together *t)
{
    pthread_t thread;
    work_word *all = calloc((size_t)t->run->n_ranks, sizeof *all);
    size_t *bytes = calloc((size_t)t->run->n_ranks, sizeof *bytes);
    fsdp_status status = all && bytes ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", t->doing);
    if (status == FSDP_OK && pthread_create(&thread, NULL, together_main, t) != 0)
        status = error_set(FSDP_ERR_MEMORY, "%s: no thread can be started", t->doing);
    if (status == FSDP_OK) {
        status = exchange_words(t, all, bytes);
        atomic_store(&t->stop, status != FSDP_OK);
        pthread_join(thread, NULL);
        if (status == FSDP_OK && t->status != FSDP_OK)
            status = error_set(t->status, "%s", t->why);
    }
    free(bytes);
    free(all);
    return status;
}

fsdp_status run_together(train_run *run, const char *doing, together_work work)
{
    together t = {.run = run, .doing = doing, .work = work, .n_threads = threads_count()};
    if (run->n_ranks == 1)
        return work(run, &t.stop);
    pthread_condattr_t steady;
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC); /* others wait for our word, whatever the clock is set to */
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.ended, &steady);
    pthread_condattr_destroy(&steady);
    fsdp_status status = work_together(&t);
    pthread_cond_destroy(&t.ended);
    pthread_mutex_destroy(&t.lock);
    return status;
}
