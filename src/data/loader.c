/* Slots of the ring are filled by whichever thread takes the next number and are given out in order. Slot i holds batch
 * i modulo the ring; a thread fills batch i only when batch i - n_slots has been given back. */
#include "data/loader.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"

enum { ERROR_BYTES = 512, MOST_THREADS = 64 };

typedef struct slot {
    loader_batch batch;
    bool full;
    fsdp_status status;
    char error[ERROR_BYTES];
} slot;

struct loader {
    const dataset *dataset;
    dataset_info info;
    loader_config config;
    sampler sampler;
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    slot *slots;
    int64_t n_slots;
    int64_t next_fill;     /* number of the next batch to be filled */
    int64_t next_give;     /* ... to be given out; the one before it is with the caller */
    int64_t next_position; /* of batch next_fill */
    bool stopping;
    pthread_t threads[MOST_THREADS];
    int n_started;
};

/* --- memory of batches ------------------------------------------------------------------------------------------- */

static bool take(void **out, int64_t n, size_t bytes, bool *ok)
{
    *out = calloc((size_t)(n > 0 ? n : 1), bytes);
    *ok = *ok && *out != NULL;
    return *ok;
}

static fsdp_status allocate_batch(loader_batch *b, const dataset_info *info, int64_t rows)
{
    bool ok = true;
    int64_t labels = info->kind == DATASET_PAIRS ? info->target_width : info->width;
    b->max_rows = rows;
    take((void **)&b->samples, rows, sizeof *b->samples, &ok);
    if (info->kind == DATASET_IMAGES) {
        take((void **)&b->pixels, rows * info->channels * info->height * info->image_width, sizeof *b->pixels, &ok);
        take((void **)&b->classes, rows, sizeof *b->classes, &ok);
    } else {
        take((void **)&b->ids, rows * info->width, sizeof *b->ids, &ok);
        take((void **)&b->labels, rows * labels, sizeof *b->labels, &ok);
    }
    if (info->kind == DATASET_PAIRS) {
        take((void **)&b->mask, rows * info->width, sizeof *b->mask, &ok);
        take((void **)&b->decoder_ids, rows * labels, sizeof *b->decoder_ids, &ok);
    }
    return ok ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory: %lld samples of prefetched data", (long long)rows);
}

static void free_batch(loader_batch *b)
{
    free(b->samples);
    free(b->ids);
    free(b->labels);
    free(b->mask);
    free(b->decoder_ids);
    free(b->pixels);
    free(b->classes);
}

/* --- filling ----------------------------------------------------------------------------------------------------- */

static dataset_row row_of(const dataset_info *info, const loader_batch *b, int64_t r)
{
    dataset_row row = {0};
    int64_t labels = info->kind == DATASET_PAIRS ? info->target_width : info->width;
    if (info->kind == DATASET_IMAGES) {
        row.pixels = b->pixels + r * info->channels * info->height * info->image_width;
        row.image_class = b->classes + r;
        return row;
    }
    row.ids = b->ids + r * info->width;
    row.labels = b->labels + r * labels;
    if (info->kind == DATASET_PAIRS) {
        row.mask = b->mask + r * info->width;
        row.decoder_ids = b->decoder_ids + r * labels;
    }
    return row;
}

/* Rows that this batch does not use must count for nothing. */
static void clear_row(const dataset_info *info, const dataset_row *row)
{
    int64_t labels = info->kind == DATASET_PAIRS ? info->target_width : info->width;
    if (info->kind == DATASET_IMAGES) {
        memset(row->pixels, 0, (size_t)(info->channels * info->height * info->image_width) * sizeof *row->pixels);
        *row->image_class = DATASET_IGNORE;
        return;
    }
    memset(row->ids, 0, (size_t)info->width * sizeof *row->ids);
    for (int64_t i = 0; i < labels; i++)
        row->labels[i] = DATASET_IGNORE;
    if (info->kind == DATASET_PAIRS) {
        memset(row->mask, 0, (size_t)info->width * sizeof *row->mask);
        memset(row->decoder_ids, 0, (size_t)labels * sizeof *row->decoder_ids);
    }
}

static fsdp_status fill_batch(const loader *l, loader_batch *b)
{
    for (int64_t r = 0; r < b->max_rows; r++) {
        dataset_row row = row_of(&l->info, b, r);
        if (r >= b->n_rows) {
            clear_row(&l->info, &row);
            continue;
        }
        b->samples[r] = sampler_at(&l->sampler, b->first + r);
        FSDP_TRY(dataset_read(l->dataset, b->samples[r], &row));
    }
    return FSDP_OK;
}

/* Decides, under the lock, what the next batch is. False after the end. */
static bool plan_batch(loader *l, loader_batch *b)
{
    const loader_config *c = &l->config;
    int64_t n = sampler_batch(&l->sampler, l->next_position, c->global_batch, c->stop_at_epoch), offset;
    if (c->end > 0 && l->next_position + n > c->end)
        n = c->end - l->next_position;
    if (n <= 0)
        return false;
    b->position = l->next_position;
    b->n_global = n;
    b->epoch = sampler_epoch(&l->sampler, b->position);
    sampler_share(n, c->rank, c->world_size, &offset, &b->n_rows);
    b->first = b->position + offset;
    l->next_position += n;
    return true;
}

static void wait_a_second(pthread_cond_t *condition, pthread_mutex_t *lock)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_cond_timedwait(condition, lock, &until);
}

/* The batch with the caller is next_give - 1, so the slot of batch i is free once i - n_slots < next_give - 1. */
static bool slot_is_free(const loader *l)
{
    return l->next_fill - l->n_slots < l->next_give - 1 || l->next_fill < l->n_slots;
}

static void *fill_slots(void *argument)
{
    loader *l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->stopping) {
        if (!slot_is_free(l)) {
            wait_a_second(&l->emptied, &l->lock);
            continue;
        }
        slot *s = &l->slots[l->next_fill % l->n_slots];
        l->next_fill++;
        bool more = plan_batch(l, &s->batch);
        if (!more)
            s->batch.n_global = 0;
        pthread_mutex_unlock(&l->lock);
        s->status = more ? fill_batch(l, &s->batch) : FSDP_OK;
        if (s->status != FSDP_OK)
            snprintf(s->error, sizeof s->error, "%s", fsdp_last_error());
        pthread_mutex_lock(&l->lock);
        s->full = true;
        pthread_cond_broadcast(&l->filled);
        if (!more || s->status != FSDP_OK)
            break;
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* --- the caller's side ------------------------------------------------------------------------------------------- */

static fsdp_status check_config(const dataset_info *info, const loader_config *c)
{
    if (c->size != sizeof *c)
        return error_set(FSDP_ERR_INPUT, "loader_config has size %zu, not %zu: start from LOADER_CONFIG_INIT", c->size,
                         sizeof *c);
    if (info->n_samples <= 0)
        return error_set(FSDP_ERR_INPUT, "the data set is empty");
    if (c->world_size < 1 || c->rank < 0 || c->rank >= c->world_size || c->global_batch < 1 || c->position < 0 ||
        c->position > INT64_MAX / 2 || c->global_batch > INT64_MAX / 4 || c->n_threads < 1 ||
        c->n_threads > MOST_THREADS || c->n_prefetch < 1)
        return error_set(
            FSDP_ERR_INPUT,
            "a loader for rank %d of %d at position %lld with a global batch of %lld, %d threads and %d batches ahead "
            "makes no sense",
            c->rank, c->world_size, (long long)c->position, (long long)c->global_batch, c->n_threads, c->n_prefetch);
    return FSDP_OK;
}

static fsdp_status start(loader *l)
{
    const loader_config *c = &l->config;
    l->n_slots = c->n_prefetch + 1;
    l->slots = calloc((size_t)l->n_slots, sizeof *l->slots);
    if (l->slots == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < l->n_slots; i++)
        FSDP_TRY(allocate_batch(&l->slots[i].batch, &l->info, (c->global_batch + c->world_size - 1) / c->world_size));
    for (; l->n_started < c->n_threads; l->n_started++) {
        int rc = pthread_create(&l->threads[l->n_started], NULL, fill_slots, l);
        if (rc != 0) {
            errno = rc;
            return error_set_errno(FSDP_ERR_MEMORY, "a thread for loading data cannot start");
        }
    }
    return FSDP_OK;
}

fsdp_status loader_create(const dataset *d, const loader_config *config, loader **out)
{
    dataset_info info = dataset_describe(d);
    FSDP_TRY(check_config(&info, config));
    loader *l = calloc(1, sizeof *l);
    if (l == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    l->dataset = d;
    l->info = info;
    l->config = *config;
    l->next_position = config->position;
    l->sampler = sampler_make(info.n_samples, config->seed, config->shuffle && !info.ordered);
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->filled, &monotonic);
    pthread_cond_init(&l->emptied, &monotonic);
    pthread_condattr_destroy(&monotonic);
    fsdp_status status = start(l);
    if (status != FSDP_OK) {
        loader_free(l);
        return status;
    }
    *out = l;
    return FSDP_OK;
}

void loader_free(loader *l)
{
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_broadcast(&l->emptied);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_started; i++)
        pthread_join(l->threads[i], NULL);
    for (int64_t i = 0; l->slots != NULL && i < l->n_slots; i++)
        free_batch(&l->slots[i].batch);
    free(l->slots);
    pthread_cond_destroy(&l->emptied);
    pthread_cond_destroy(&l->filled);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* Waits until the slot is full; false when the time is up. */
static bool wait_until_full(loader *l, const slot *s)
{
    struct timespec until;
    double whole;
    clock_gettime(CLOCK_MONOTONIC, &until);
    double fraction = modf(l->config.timeout, &whole);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)(fraction * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    int rc = 0;
    while (!s->full && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&l->filled, &l->lock, &until);
    return s->full;
}

fsdp_status loader_next(loader *l, const loader_batch **out)
{
    fsdp_status status = FSDP_OK;
    *out = NULL;
    pthread_mutex_lock(&l->lock);
    if (l->next_give > 0) /* the batch that the caller had goes back */
        l->slots[(l->next_give - 1) % l->n_slots].full = false;
    slot *s = &l->slots[l->next_give % l->n_slots];
    l->next_give++;
    pthread_cond_broadcast(&l->emptied);
    if (!wait_until_full(l, s)) {
        status = error_set(FSDP_ERR_TIMEOUT, "no batch of data within %g s; the sources are too slow or hang",
                           l->config.timeout);
    } else if (s->status != FSDP_OK) {
        status = error_set(s->status, "%s", s->error);
    } else if (s->batch.n_global > 0) {
        *out = &s->batch;
    }
    if (*out == NULL)
        l->next_give--; /* the end stays the end, an error stays an error */
    pthread_mutex_unlock(&l->lock);
    return status;
}
