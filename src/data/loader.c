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

#include <fsdp/ops.h>
#include <fsdp/tensor.h>

#include "base/checked.h"
#include "base/condition.h"
#include "base/error.h"
#include "base/json.h"
#include "base/sized.h"
#include "data/mix.h"
#include "data/stream.h"

enum { ERROR_BYTES = 1024, MAX_THREADS = 64 };

typedef struct slot {
    fsdp_batch batch;
    int64_t *samples; /* (capacity) */
    void *data[FSDP_MAX_FIELDS];
    bool full;
    fsdp_status status;
    char error[ERROR_BYTES];
} slot;

/* Where samples come from: a stream, or a data set that is read by number. */
typedef struct feed {
    const fsdp_dataset *dataset;
    sampler sampler;
    stream *stream; /* NULL: none */
    fsdp_dataset_info info;
} feed;

struct fsdp_loader {
    const fsdp_dataset *dataset;
    fsdp_dataset_info info;
    fsdp_loader_config config;
    int rank, world_size;
    sampler sampler;
    feed feeds[MIX_MAX];
    int n_feeds;
    const mix *mix;    /* NULL: one feed */
    bool in_order;     /* some feed is a stream: one thread reads, and the streams' own make tokens */
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
    pthread_t threads[MAX_THREADS];
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

/* Documents and positions of a row, and labels that stay within a document. */
static void tell_documents(void *const *row, const uint8_t *kinds, int64_t width)
{
    const int32_t *ids = row[TEXT_IDS];
    int32_t *labels = row[TEXT_LABELS], *documents = row[TEXT_DOCUMENTS], *positions = row[TEXT_POSITIONS];
    int32_t number = 0, position = 0;
    for (int64_t i = 0; i < width; i++) {
        bool padding = kinds[i] == STREAM_PADDING, begins = kinds[i] == STREAM_BEGINS && i > 0;
        number += begins;
        position = begins || padding ? 0 : position;
        documents[i] = padding ? -1 : number;
        positions[i] = padding ? 0 : position++;
        labels[i] = !padding && i + 1 < width && kinds[i + 1] == STREAM_GOES_ON ? ids[i + 1] : FSDP_IGNORE;
    }
}

static fsdp_status read_sample(const fsdp_loader *l, int64_t position, int64_t *sample, void *const *row)
{
    int source = 0;
    const uint8_t *kinds;
    if (l->mix)
        mix_at(l->mix, position, &source, &position);
    const feed *f = &l->feeds[source];
    if (f->stream) {
        FSDP_TRY(stream_read(f->stream, position, sample, row[TEXT_IDS], &kinds));
        if (l->info.documents)
            tell_documents(row, kinds, l->info.width);
        else
            dataset_label_next(row[TEXT_IDS], l->info.width, row[TEXT_LABELS]);
    } else {
        *sample = sampler_at(&f->sampler, position);
        FSDP_TRY(fsdp_dataset_read(f->dataset, *sample, row));
    }
    *sample = *sample * l->n_feeds + source;
    return FSDP_OK;
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
    if (l->in_order)
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
            condition_wait_a_second(&l->emptied, &l->lock);
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
        c->position > INT64_MAX / 2 || c->batch > INT64_MAX / 4 || c->threads < 1 || c->threads > MAX_THREADS ||
        c->prefetch < 1 || !(c->timeout > 0))
        return error_set(
            FSDP_ERR_INPUT,
            "a loader for rank %d of %d at position %lld with a global batch of %lld, %d threads, %d batches ahead and "
            "a timeout of %g s makes no sense",
            l->rank, l->world_size, (long long)c->position, (long long)c->batch, c->threads, c->prefetch, c->timeout);
    if (l->info.stream && (c->stop_at_epoch || c->drop_last))
        return error_set(FSDP_ERR_INPUT,
                         "a stream or a mix has no known end: set stop_at_epoch = false and drop_last = false");
    if (c->drop_last && c->batch > l->info.n_samples)
        return error_set(FSDP_ERR_INPUT,
                         "a batch of %lld samples, of a data set of %lld, with drop_last: nothing would be left",
                         (long long)c->batch, (long long)l->info.n_samples);
    return FSDP_OK;
}

static void interrupt_streams(fsdp_loader *l, bool interrupted)
{
    for (int i = 0; i < l->n_feeds; i++)
        if (l->feeds[i].stream)
            stream_interrupt(l->feeds[i].stream, interrupted);
}

static fsdp_status start_threads(fsdp_loader *l)
{
    int wanted = l->in_order ? 1 : l->config.threads;
    interrupt_streams(l, false);
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
    interrupt_streams(l, true);
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
    return l->in_order ? FSDP_OK : start_threads(l); /* a stream's first batch is asked for when its place is known */
}

static fsdp_status open_feed(fsdp_loader *l, const fsdp_dataset *d, int index)
{
    const fsdp_loader_config *c = &l->config;
    uint64_t seed = c->seed + 0x9E3779B97F4A7C15ull * (uint64_t)index; /* mixed sources have orders of their own */
    const stream_set *set = dataset_stream_set(dataset_source_of(d));
    feed *f = &l->feeds[l->n_feeds++];
    *f = (feed){.dataset = d, .info = FSDP_DATASET_INFO_INIT};
    FSDP_TRY(fsdp_dataset_describe(d, &f->info));
    f->sampler = sampler_make(f->info.n_samples, seed, c->shuffle && !f->info.ordered);
    if (set == NULL)
        return FSDP_OK;
    l->in_order = true;
    return stream_open(set, seed, c->shuffle, c->threads, &f->stream);
}

static fsdp_status open_feeds(fsdp_loader *l)
{
    fsdp_dataset *const *parts;
    int n = dataset_mix_parts(dataset_source_of(l->dataset), &parts, &l->mix);
    if (n == 0)
        return open_feed(l, l->dataset, 0);
    for (int i = 0; i < n; i++)
        FSDP_TRY(open_feed(l, parts[i], i));
    return FSDP_OK;
}

fsdp_status loader_create(const fsdp_dataset *d, int rank, int world_size, const fsdp_loader_config *config,
                          fsdp_loader **out)
{
    SIZED_READ(fsdp_loader_config, FSDP_LOADER_CONFIG_INIT, full, config);
    fsdp_loader *l = calloc(1, sizeof *l);
    if (l == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    pthread_mutex_init(&l->lock, NULL);
    condition_init(&l->filled);
    condition_init(&l->emptied);
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
    if (status == FSDP_OK)
        status = open_feeds(l);
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
    for (int i = 0; i < l->n_feeds; i++)
        stream_close(l->feeds[i].stream);
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

static int64_t feed_length(const feed *f)
{
    int64_t length = f->stream ? stream_length(f->stream) : f->info.n_samples;
    return length > 0 ? length : FSDP_ENDLESS;
}

int64_t loader_epoch_samples(const fsdp_loader *l)
{
    return l->mix ? FSDP_ENDLESS : feed_length(&l->feeds[0]);
}

/* Samples of a feed that lie before `position`. */
static int64_t feed_position(const fsdp_loader *l, int index, int64_t position)
{
    return l->mix ? mix_count(l->mix, index, position) : position;
}

fsdp_status fsdp_loader_source(const fsdp_loader *l, int index, fsdp_source_use *use)
{
    SIZED_CHECK(fsdp_source_use, FSDP_SOURCE_USE_INIT, use);
    if (index < 0 || index >= l->n_feeds)
        return error_set(FSDP_ERR_INPUT, "the loader has %d sources; number %d was asked for", l->n_feeds, index);
    const feed *f = &l->feeds[index];
    int64_t length = feed_length(f);
    fsdp_source_use known = {.share = l->mix ? (double)l->mix->shares[index] / MIX_PERIOD : 1,
                             .samples = feed_position(l, index, l->position),
                             .length = length < FSDP_ENDLESS ? length : 0,
                             .padding = f->stream ? stream_padding(f->stream) : 0};
    sized_write(use, &known, sizeof known);
    return FSDP_OK;
}

/* --- checkpoints ------------------------------------------------------------------------------------------------- */

static json_t *describe_feed(const fsdp_loader *l, int i)
{
    const feed *f = &l->feeds[i];
    if (f->stream)
        return stream_describe(f->stream, feed_position(l, i, l->position));
    return json_pack("{s:I}", "samples", (json_int_t)f->info.n_samples);
}

fsdp_status loader_describe(const fsdp_loader *l, json_t **out)
{
    *out = NULL;
    if (!l->mix && !l->in_order)
        return FSDP_OK;
    json_t *sources = json_array(), *shares = json_array();
    bool whole = sources && shares;
    for (int i = 0; i < l->n_feeds && l->mix; i++) {
        whole = whole && json_array_append_new(sources, describe_feed(l, i)) == 0;
        whole = whole && json_array_append_new(shares, json_integer((json_int_t)l->mix->shares[i])) == 0;
    }
    if (whole && l->mix)
        *out = json_pack("{s:O, s:O}", "shares", shares, "sources", sources);
    else if (whole)
        *out = describe_feed(l, 0);
    json_decref(sources);
    json_decref(shares);
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "describing a stream: out of memory");
}

static fsdp_status restore_feed(feed *f, const char *path, const json_t *described)
{
    int64_t samples = 0;
    if (f->stream)
        return stream_restore(f->stream, path, described);
    FSDP_TRY(json_get_int(path, described, "samples", &samples));
    return samples == f->info.n_samples
               ? FSDP_OK
               : error_set(FSDP_ERR_INPUT,
                           "%s: a source had %lld samples when it was saved and has %lld now: give it the "
                           "same data",
                           path, (long long)samples, (long long)f->info.n_samples);
}

static fsdp_status restore_mix(fsdp_loader *l, const char *path, const json_t *described)
{
    const json_t *shares = json_object_get(described, "shares"), *sources = json_object_get(described, "sources");
    bool alike = json_array_size(shares) == (size_t)l->n_feeds && json_array_size(sources) == (size_t)l->n_feeds;
    for (int i = 0; i < l->n_feeds && alike; i++)
        alike = json_integer_value(json_array_get(shares, (size_t)i)) == l->mix->shares[i];
    if (!alike)
        return error_set(FSDP_ERR_INPUT, "%s: it was saved with other sources or weights: keep --dataset", path);
    for (int i = 0; i < l->n_feeds; i++)
        FSDP_TRY(restore_feed(&l->feeds[i], path, json_array_get(sources, (size_t)i)));
    return FSDP_OK;
}

fsdp_status loader_restore(fsdp_loader *l, const char *path, const json_t *described, int64_t position)
{
    bool streams = l->mix || l->in_order, mixed = json_object_get(described, "shares") != NULL;
    if (described && !streams)
        return error_set(
            FSDP_ERR_INPUT, "%s: it was saved by a run that %s its data, in another order than this one reads it: %s",
            path, mixed ? "mixed" : "streamed", mixed ? "give --dataset the same weights" : "add --stream on");
    if (!described && streams && position > 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s: it was saved by a run that did not stream its data, in another order than a stream has: "
                         "add --stream off",
                         path);
    stop_threads(l);
    if (described && (l->mix != NULL) != mixed)
        return error_set(FSDP_ERR_INPUT, "%s: it was saved with other sources or weights: keep --dataset", path);
    if (described)
        FSDP_TRY(mixed ? restore_mix(l, path, described) : restore_feed(&l->feeds[0], path, described));
    return fsdp_loader_seek(l, position);
}

void fsdp_loader_attach(fsdp_loader *l, fsdp_model *m)
{
    l->model = m;
}

/* Grows while a file that is waited for comes. */
static int64_t arriving(const fsdp_loader *l)
{
    int64_t moves = 0;
    for (int i = 0; i < l->n_feeds; i++)
        moves += l->feeds[i].stream ? stream_moves(l->feeds[i].stream) : 0;
    return moves;
}

/* Waits until the slot is full; false when the time is up. A file that is arriving, however slowly, has all time. */
static bool wait_until_full(fsdp_loader *l, const slot *s)
{
    bool moving = true;
    while (!s->full && moving) {
        struct timespec until = condition_after(l->config.timeout);
        int64_t before = arriving(l);
        int rc = 0;
        while (!s->full && rc != ETIMEDOUT)
            rc = pthread_cond_timedwait(&l->filled, &l->lock, &until);
        moving = arriving(l) != before;
    }
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
