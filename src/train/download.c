/* Brings the models and tokenizers of the hub here before they are opened. Data comes when it is opened, or while it is
 * read (src/data/arrival.c).
 *
 * One host may have everything in its cache, and another take an hour. So the download runs on a thread, and the ranks
 * exchange a word every second meanwhile: nobody's --comm_timeout runs while others fetch, and when one cannot go on,
 * all end and say why. A download that stands still ends by itself. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "format/hub/hub_fetch.h"
#include "train/run.h"

static const double exchange_seconds = 1;
/* Those who are done say whom they wait for, and once more each time they have waited twice as long. */
static const double first_word_seconds = 5;

typedef enum download_state { FETCHING, FETCHED, FAILED } download_state;

/* Plain data that travels between ranks. */
typedef struct download_word {
    int32_t state;
    char host[64], why[512];
} download_word;

typedef struct download {
    const fsdp_settings *settings;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    download_state state;
    fsdp_status status;
    char why[1024];
    atomic_bool stop;
} download;

static fsdp_status fetch_one(fsdp_fetch_kind kind, const char *name, const atomic_bool *stop)
{
    fsdp_fetch_config config = FSDP_FETCH_CONFIG_INIT;
    config.kind = kind;
    config.name = name;
    config.prefer_local = true;
    return name != NULL ? hub_fetch(&config, NULL, stop) : FSDP_OK;
}

static fsdp_status fetch_all(const fsdp_settings *s, const atomic_bool *stop)
{
    FSDP_TRY(fetch_one(FSDP_FETCH_MODEL, s->init_from, stop));
    FSDP_TRY(fetch_one(FSDP_FETCH_MODEL, s->base, stop));
    return fetch_one(FSDP_FETCH_TOKENIZER, s->tokenizer, stop);
}

static void *download_main(void *argument)
{
    download *d = argument;
    fsdp_status status = fetch_all(d->settings, &d->stop);
    pthread_mutex_lock(&d->lock);
    d->status = status;
    d->state = status == FSDP_OK ? FETCHED : FAILED;
    snprintf(d->why, sizeof d->why, "%s", status == FSDP_OK ? "" : fsdp_last_error());
    pthread_cond_signal(&d->ended);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* Until the download has ended, or a second; how it stands then. */
static download_state await_download(download *d)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)exchange_seconds;
    pthread_mutex_lock(&d->lock);
    while (d->state == FETCHING && pthread_cond_timedwait(&d->ended, &d->lock, &until) == 0)
        ;
    download_state state = d->state;
    pthread_mutex_unlock(&d->lock);
    return state;
}

static int first_in(const download_word *all, int n, download_state state)
{
    for (int i = 0; i < n; i++)
        if (all[i].state == (int32_t)state)
            return i;
    return -1;
}

static void name_waiting(const download_word *all, int n, double seconds)
{
    int first = first_in(all, n, FETCHING), others = -1;
    for (int i = 0; i < n; i++)
        others += all[i].state == FETCHING;
    if (others > 0)
        log_write(FSDP_LOG_INFO, "rank %d on %.63s and %d more still download; waiting for %.0f s", first,
                  all[first].host, others, seconds);
    else
        log_write(FSDP_LOG_INFO, "rank %d on %.63s still downloads; waiting for %.0f s", first, all[first].host,
                  seconds);
}

/* Exchanges words until all have what they need or one has failed: FSDP_ERR_PEER, with its reason. */
static fsdp_status exchange_words(const train_run *run, download *d, download_word *all, size_t *bytes)
{
    double begun = clock_seconds(), next_word = first_word_seconds;
    for (;;) {
        download_word mine = {.state = await_download(d)};
        gethostname(mine.host, sizeof mine.host - 1);
        if (mine.state == FAILED)
            snprintf(mine.why, sizeof mine.why, "%.500s", d->why);
        FSDP_TRY(comm_exchange(comm_world(run->world->comm), "downloads", &mine, sizeof mine, sizeof mine, all, bytes));
        int failed = first_in(all, run->n_ranks, FAILED);
        double seconds = clock_seconds() - begun;
        if (mine.state == FAILED)
            return FSDP_OK; /* its own message says more */
        if (failed >= 0)
            return error_set(FSDP_ERR_PEER, "rank %d on %.63s: %.500s", failed, all[failed].host, all[failed].why);
        if (first_in(all, run->n_ranks, FETCHING) < 0)
            return FSDP_OK;
        if (mine.state == FETCHED && seconds >= next_word) {
            name_waiting(all, run->n_ranks, seconds);
            next_word = 2 * seconds;
        }
    }
}

static fsdp_status download_together(const train_run *run, download *d)
{
    pthread_t thread;
    download_word *all = calloc((size_t)run->n_ranks, sizeof *all);
    size_t *bytes = calloc((size_t)run->n_ranks, sizeof *bytes);
    fsdp_status status = all && bytes ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "downloading: out of host memory");
    if (status == FSDP_OK && pthread_create(&thread, NULL, download_main, d) != 0)
        status = error_set(FSDP_ERR_MEMORY, "downloading: no thread can be started");
    if (status == FSDP_OK) {
        status = exchange_words(run, d, all, bytes);
        atomic_store(&d->stop, status != FSDP_OK);
        pthread_join(thread, NULL);
        if (status == FSDP_OK && d->status != FSDP_OK)
            status = error_set(d->status, "%s", d->why);
    }
    free(bytes);
    free(all);
    return status;
}

fsdp_status run_download(train_run *run)
{
    download d = {.settings = run->settings};
    if (!run->settings->download)
        return FSDP_OK;
    run_show_downloads(run);
    fsdp_status status;
    if (run->n_ranks == 1) {
        status = fetch_all(run->settings, NULL);
    } else {
        pthread_mutex_init(&d.lock, NULL);
        pthread_cond_init(&d.ended, NULL);
        status = download_together(run, &d);
        pthread_cond_destroy(&d.ended);
        pthread_mutex_destroy(&d.lock);
    }
    run_show_warnings(run, false);
    return status;
}
