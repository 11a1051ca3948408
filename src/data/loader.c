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

#include <fsdp/tensor.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/sized.h"
#include "data/stream.h"

enum { ERROR_BYTES = 1024, MOST_THREADS = 64 };

typedef struct slot {
    fsdp_batch batch;
    int64_t *samples; /* (capacity) */
    void *data[FSDP_MAX_FIELDS];
    bool full;
    fsdp_status status;
    char error[ERROR_BYTES];
} slot;

struct fsdp_loader {
    const fsdp_dataset *dataset;
    fsdp_dataset_info info;
    fsdp_loader_config config;
    int rank, world_size;
    sampler sampler;
    stream *stream;    /* NULL: samples are read by their number */
    fsdp_model *model; /* is told which samples come; NULL: nobody */
    int64_t capacity;  /* rows of the fullest batch of a rank */
    int64_t position;  /* after what has been given out */
    bool epoch_ended;  /* with the last batch, and the caller has not been told */
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

static fsdp_status allocate_slot(const fsdp_loader *l, slot *s)
{
    bool whole = (s->samples = calloc((size_t)l->capacity, sizeof *s->samples)) != NULL;
    for (int i = 0; i < l->info.n_fields; i++)
        whole = (s->data[i] = calloc((size_t)l->capacity, field_bytes(&l->info.fields[i]))) != NULL && whole;
    s->batch.samples = s->samples;
    s->batch.n_fields = l->info.n_fields;
    s->batch.fields = l->info.fields;
    s->batch.data = s->data;
    return whole ? FSDP_OK
                 : error_set(FSDP_ERR_MEMORY, "out of memory: %lld samples of prefetched data", (long long)l->capacity);
}

static void free_slot(slot *s)
{
    free(s->samples);
    for (int i = 0; i < FSDP_MAX_FIELDS; i++)
        free(s->data[i]);
}

/* --- filling ----------------------------------------------------------------------------------------------------- */

static void *row_at(const fsdp_field *f, void *data, int64_t row)
{
    return (uint8_t *)data + (size_t)row * field_bytes(f);
}

/* Rows that this batch does not use must count for nothing. */
static void pad_row(const fsdp_field *f, void *row)
{
    int64_t n = field_numel(f);
    if (f->padding == 0)
        memset(row, 0, field_bytes(f));
    for (int64_t i = 0; i < n && f->padding != 0; i++) {
        if (f->dtype == FSDP_F32)
            ((float *)row)[i] = (float)f->padding;
        else if (f->dtype == FSDP_F64)
            ((double *)row)[i] = f->padding;
        else if (f->dtype == FSDP_I32)
            ((int32_t *)row)[i] = (int32_t)f->padding;
        else if (f->dtype == FSDP_I64)
            ((int64_t *)row)[i] = (int64_t)f->padding;
        else
            ((uint8_t *)row)[i] = (uint8_t)f->padding;
    }
}

static fsdp_status read_sample(const fsdp_loader *l, int64_t position, int64_t *sample, void *const *row)
{
    if (l->stream) {
        FSDP_TRY(stream_read(l->stream, position, sample, row[TEXT_IDS]));
        dataset_label_next(row[TEXT_IDS], l->info.width, row[TEXT_LABELS]);
        return FSDP_OK;
    }
    *sample = sampler_at(&l->sampler, position);
    return fsdp_dataset_read(l->dataset, *sample, row);
}

static fsdp_status fill_slot(const fsdp_loader *l, slot *s)
{
    for (int64_t r = 0; r < l->capacity; r++) {
        void *row[FSDP_MAX_FIELDS];
        for (int i = 0; i < l->info.n_fields; i++) {
            row[i] = row_at(&l->info.fields[i], s->data[i], r);
            if (r >= s->batch.counted)
                pad_row(&l->info.fields[i], row[i]);
        }
        if (r >= s->batch.counted)
            continue;
        FSDP_TRY(read_sample(l, s->batch.first_sample + r, &s->samples[r], row));
    }
    if (l->stream)
        s->batch.epoch = s->batch.position / loader_epoch_samples(l);
    return FSDP_OK;
}

/* What is left of an epoch at `position` and makes no batch is passed over where the user wants that. */
static int64_t after_tail(const fsdp_loader *l, int64_t position)
{
    int64_t left = sampler_batch(&l->sampler, position, l->config.batch, true);
    return l->config.drop_last && left < l->config.batch ? position + left : position;
}

/* Decides, under the lock, what the next batch is. False after the end. */
static bool plan_batch(fsdp_loader *l, fsdp_batch *b)
{
    const fsdp_loader_config *c = &l->config;
    int64_t offset;
    l->next_position = after_tail(l, l->next_position);
    int64_t n = sampler_batch(&l->sampler, l->next_position, c->batch, c->stop_at_epoch);
    if (c->end > 0 && l->next_position + n > c->end)
        n = c->end - l->next_position;
    if (n <= 0)
        return false;
    b->position = l->next_position;
    b->n_global = n;
    b->epoch = sampler_epoch(&l->sampler, b->position);
    fsdp_sampler_share(n, l->rank, l->world_size, &offset, &b->counted);
    b->first_sample = b->position + offset;
    b->n = c->same_rows ? l->capacity : ceil_div(n, l->world_size);
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
static bool slot_is_free(const fsdp_loader *l)
{
    return l->next_fill - l->n_slots < l->next_give - 1 || l->next_fill < l->n_slots;
}

static void *fill_slots(void *argument)
{
    fsdp_loader *l = argument;
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
        s->status = more ? fill_slot(l, s) : FSDP_OK;
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

static fsdp_status check_config(const fsdp_loader *l)
{
    const fsdp_loader_config *c = &l->config;
    if (l->info.n_samples <= 0)
        return error_set(FSDP_ERR_INPUT, "the data set is empty");
    if (l->world_size < 1 || l->rank < 0 || l->rank >= l->world_size || c->batch < 1 || c->position < 0 ||
        c->position > INT64_MAX / 2 || c->batch > INT64_MAX / 4 || c->threads < 1 || c->threads > MOST_THREADS ||
        c->prefetch < 1 || !(c->timeout > 0))
        return error_set(
            FSDP_ERR_INPUT,
            "a loader for rank %d of %d at position %lld with a global batch of %lld, %d threads, %d batches ahead and "
            "a timeout of %g s makes no sense",
            l->rank, l->world_size, (long long)c->position, (long long)c->batch, c->threads, c->prefetch, c->timeout);
    if (l->info.stream && (c->stop_at_epoch || c->drop_last))
        return error_set(FSDP_ERR_INPUT, "a stream has no known end: set stop_at_epoch = false and drop_last = false");
    if (c->drop_last && c->batch > l->info.n_samples)
        return error_set(FSDP_ERR_INPUT,
                         "a batch of %lld samples, of a data set of %lld, with drop_last: nothing would be left",
                         (long long)c->batch, (long long)l->info.n_samples);
    return FSDP_OK;
}

static fsdp_status start_threads(fsdp_loader *l)
{
    int wanted = l->stream ? 1 : l->config.threads; /* a stream is read in order; its own threads make the tokens */
    if (l->stream)
        stream_interrupt(l->stream, false);
    for (; l->n_started < wanted; l->n_started++) {
        int rc = pthread_create(&l->threads[l->n_started], NULL, fill_slots, l);
        if (rc != 0) {
            errno = rc;
            return error_set_errno(FSDP_ERR_MEMORY, "a thread for loading data cannot start");
        }
    }
    return FSDP_OK;
}

static void stop_threads(fsdp_loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_cond_broadcast(&l->emptied);
    pthread_mutex_unlock(&l->lock);
    if (l->stream)
        stream_interrupt(l->stream, true);
    for (int i = 0; i < l->n_started; i++)
        pthread_join(l->threads[i], NULL);
    l->n_started = 0;
    l->stopping = false;
}

static fsdp_status start(fsdp_loader *l)
{
    l->n_slots = l->config.prefetch + 1;
    l->capacity = ceil_div(l->config.batch, l->world_size);
    l->slots = calloc((size_t)l->n_slots, sizeof *l->slots);
    if (l->slots == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    for (int64_t i = 0; i < l->n_slots; i++)
        FSDP_TRY(allocate_slot(l, &l->slots[i]));
    return l->stream ? FSDP_OK : start_threads(l); /* a stream's first batch is asked for when its place is known */
}

fsdp_status loader_create(const fsdp_dataset *d, int rank, int world_size, const fsdp_loader_config *config,
                          fsdp_loader **out)
{
    SIZED_READ(fsdp_loader_config, FSDP_LOADER_CONFIG_INIT, full, config);
    fsdp_loader *l = calloc(1, sizeof *l);
    if (l == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->filled, &monotonic);
    pthread_cond_init(&l->emptied, &monotonic);
    pthread_condattr_destroy(&monotonic);
    l->dataset = d;
    l->rank = rank;
    l->world_size = world_size;
    l->info = (fsdp_dataset_info)FSDP_DATASET_INFO_INIT;
    fsdp_status status = fsdp_dataset_describe(d, &l->info);
    l->config = full;
    l->position = l->next_position = l->config.position;
    l->sampler = sampler_make(l->info.n_samples, l->config.seed, l->config.shuffle && !l->info.ordered);
    if (status == FSDP_OK)
        status = check_config(l);
    const stream_set *set = dataset_stream_set(dataset_source_of(d));
    if (status == FSDP_OK && set != NULL)
        status = stream_open(set, full.seed, full.shuffle, full.threads, &l->stream);
    if (status == FSDP_OK)
        status = start(l);
    if (status != FSDP_OK) {
        fsdp_loader_free(l);
        return status;
    }
    *out = l;
    return FSDP_OK;
}

fsdp_status fsdp_loader_new(fsdp_world *w, fsdp_dataset *d, const fsdp_loader_config *config, fsdp_loader **out)
{
    *out = NULL;
    return loader_create(d, fsdp_world_rank(w), fsdp_world_size(w), config, out);
}

void fsdp_loader_free(fsdp_loader *l)
{
    if (l == NULL)
        return;
    stop_threads(l);
    for (int64_t i = 0; l->slots != NULL && i < l->n_slots; i++)
        free_slot(&l->slots[i]);
    free(l->slots);
    stream_close(l->stream);
    pthread_cond_destroy(&l->emptied);
    pthread_cond_destroy(&l->filled);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int64_t fsdp_loader_position(const fsdp_loader *l)
{
    return l->position;
}

fsdp_status fsdp_loader_seek(fsdp_loader *l, int64_t position)
{
    if (position < 0 || position > INT64_MAX / 2)
        return error_set(FSDP_ERR_INPUT, "a loader cannot go to position %lld", (long long)position);
    stop_threads(l);
    for (int64_t i = 0; i < l->n_slots; i++) {
        l->slots[i].full = false;
        l->slots[i].status = FSDP_OK;
    }
    l->next_fill = l->next_give = 0;
    l->position = l->next_position = position;
    l->epoch_ended = false;
    return start_threads(l);
}

int64_t loader_epoch_samples(const fsdp_loader *l)
{
    int64_t length = l->stream ? stream_length(l->stream) : 0;
    return length > 0 ? length : l->info.n_samples;
}

fsdp_status loader_describe(const fsdp_loader *l, json_t **out)
{
    *out = l->stream ? stream_describe(l->stream, l->position) : NULL;
    return *out || !l->stream ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "describing a stream: out of memory");
}

fsdp_status loader_restore(fsdp_loader *l, const char *path, const json_t *described, int64_t position)
{
    if (described && !l->stream)
        return error_set(FSDP_ERR_INPUT,
                         "%s: it was saved by a run that streamed its data, in another order than this one reads it: "
                         "add --stream on",
                         path);
    if (!described && l->stream && position > 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s: it was saved by a run that did not stream its data, in another order than a stream has: "
                         "add --stream off",
                         path);
    stop_threads(l);
    if (described)
        FSDP_TRY(stream_restore(l->stream, path, described));
    return fsdp_loader_seek(l, position);
}

void fsdp_loader_attach(fsdp_loader *l, fsdp_model *m)
{
    l->model = m;
}

/* Waits until the slot is full; false when the time is up. */
static bool wait_until_full(fsdp_loader *l, const slot *s)
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

static fsdp_status take_next(fsdp_loader *l, fsdp_batch **out)
{
    fsdp_status status = FSDP_OK;
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

fsdp_status fsdp_loader_next(fsdp_loader *l, fsdp_batch **out)
{
    *out = NULL;
    if (l->epoch_ended) {
        l->epoch_ended = false;
        return FSDP_OK;
    }
    if (l->n_started == 0)
        FSDP_TRY(start_threads(l));
    FSDP_TRY(take_next(l, out));
    fsdp_batch *b = *out;
    if (b == NULL)
        return FSDP_OK;
    l->position = after_tail(l, b->position + b->n_global);
    l->epoch_ended = l->config.stop_at_epoch && sampler_epoch(&l->sampler, l->position) != b->epoch;
    if (l->model) {
        fsdp_set_position(l->model, b->first_sample);
        fsdp_set_counted_rows(l->model, b->counted);
    }
    return FSDP_OK;
}

/* --- batches ----------------------------------------------------------------------------------------------------- */

static int find_field(const fsdp_batch *b, const char *name)
{
    int i = 0;
    while (i < b->n_fields && strcmp(b->fields[i].name, name) != 0)
        i++;
    return i < b->n_fields ? i : -1;
}

void *fsdp_batch_field(const fsdp_batch *b, const char *name)
{
    int i = find_field(b, name);
    return i >= 0 ? b->data[i] : NULL;
}

fsdp_tensor *fsdp_batch_input(fsdp_tape *t, const fsdp_batch *b, const char *name)
{
    int i = find_field(b, name);
    if (i < 0)
        return fsdp_tape_fail(
            t, error_set(FSDP_ERR_INPUT, "the data has no field %s; its first one is %s", name, b->fields[0].name));
    const fsdp_field *f = &b->fields[i];
    int64_t shape[FSDP_MAX_DIMS] = {b->n};
    memcpy(shape + 1, f->shape, (size_t)f->n_dims * sizeof *shape);
    return fsdp_input(t, f->dtype, 1 + f->n_dims, shape, b->data[i]);
}
