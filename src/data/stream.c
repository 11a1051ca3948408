/* A thread makes windows of tokens ahead of the reader, in a ring that holds the one being read and those that follow.
 * It goes through the files without a break; only a seek makes it begin again, at the nearest window whose beginning it
 * knows. Windows have the same content in every epoch. */
#include "data/stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/checked.h"
#include "base/condition.h"
#include "base/error.h"
#include "base/json.h"
#include "data/pack.h"
#include "data/sampler.h"
#include "data/token_build.h"
#include "tokenizer/text/text_buffer.h"

enum { AHEAD = 2, N_SLOTS = AHEAD + 2, ERROR_BYTES = 1024 };

typedef struct window_slot {
    int64_t window; /* -1: none */
    int64_t n;      /* samples */
    int32_t *ids;
    uint8_t *kinds; /* of the tokens */
} window_slot;

/* Where a window begins: `skip` tokens into the document, or part, at `place`. */
typedef struct window_start {
    int64_t window;
    document_place place;
    int64_t skip;
} window_start;

struct stream {
    const stream_set *set;
    source_list files; /* the set's, with waits that end when this stream does: other streams of the set go on */
    atomic_bool closing;
    rng_key key;
    bool shuffle;
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool started, stopping, interrupted;
    fsdp_status failed; /* of the thread, with its message */
    char error[ERROR_BYTES];
    int64_t wanted; /* window that is read */
    int64_t length; /* samples of an epoch; 0: not known yet */
    window_slot slots[N_SLOTS];
    window_start *starts; /* by window; the first is the beginning */
    size_t n_starts, starts_capacity;
    int64_t n_tokens, n_places; /* of all windows: tokens, and places for them */

    /* The thread's own. */
    int64_t filling; /* window */
    window_slot *slot;
    int64_t filled; /* tokens of it */
    int64_t skip;   /* tokens still to pass over */
    document_place place;
    int64_t in_piece; /* tokens since `place` */
    bool begins;      /* the next token begins a document */
    pack rows;        /* best fit: of the window */
    int32_t *chunk;   /* best fit: the document, or a part of it as long as a sample, until it ends */
    int64_t in_chunk;
    window_start chunk_start; /* where it begins */
    bool restart;             /* the reader went elsewhere */
};

static void wait_for_change(stream *s)
{
    condition_wait_a_second(&s->changed, &s->lock);
}

static int64_t n_windows(const stream *s)
{
    return ceil_div(s->length, s->set->window);
}

/* --- under the lock: which windows are wanted -------------------------------------------------------------------- */

static window_slot *slot_with(stream *s, int64_t window)
{
    for (int i = 0; i < N_SLOTS; i++)
        if (s->slots[i].window == window)
            return &s->slots[i];
    return NULL;
}

/* The window `ahead` of the one that is read, around the end once that is known. */
static int64_t window_ahead(const stream *s, int ahead)
{
    int64_t window = s->wanted + ahead;
    return s->length > 0 ? window % n_windows(s) : window;
}

/* The first window that is wanted and not there; -1: none. */
static int64_t next_missing(stream *s)
{
    for (int i = 0; i <= AHEAD; i++)
        if (slot_with(s, window_ahead(s, i)) == NULL)
            return window_ahead(s, i);
    return -1;
}

static window_slot *free_slot(stream *s)
{
    for (int i = 0; i < N_SLOTS; i++) {
        bool wanted = false;
        for (int k = 0; k <= AHEAD; k++)
            wanted = wanted || s->slots[i].window == window_ahead(s, k);
        if (!wanted)
            return &s->slots[i];
    }
    return NULL; /* there is one more slot than windows are wanted */
}

/* The last known beginning at or before `window`. */
static const window_start *start_before(const stream *s, int64_t window)
{
    size_t i = s->n_starts - 1;
    while (i > 0 && s->starts[i].window > window)
        i--;
    return &s->starts[i];
}

static fsdp_status note_start(stream *s, const window_start *start)
{
    if (start_before(s, start->window)->window == start->window)
        return FSDP_OK;
    if (s->n_starts == s->starts_capacity)
        FSDP_TRY(array_grow((void **)&s->starts, &s->starts_capacity, s->n_starts + 1, sizeof *s->starts));
    size_t i = s->n_starts++;
    for (; s->starts[i - 1].window > start->window; i--)
        s->starts[i] = s->starts[i - 1];
    s->starts[i] = *start;
    return FSDP_OK;
}

/* --- the thread -------------------------------------------------------------------------------------------------- */

static int stop_requested(void *context)
{
    stream *s = context;
    pthread_mutex_lock(&s->lock);
    bool stop = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

/* A slot for the next window, when it is wanted or lies on the way to one that is. */
static fsdp_status take_slot(stream *s)
{
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        int64_t missing = next_missing(s);
        s->restart = missing >= 0 && missing != s->filling &&
                     (missing < s->filling || start_before(s, missing)->window > s->filling);
        if (s->stopping || s->restart)
            status = error_set(FSDP_ERR_STATE, "the stream is read elsewhere");
        if (missing >= 0 || s->stopping)
            break;
        wait_for_change(s);
    }
    if (status == FSDP_OK) {
        s->slot = free_slot(s);
        s->slot->window = -1;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The window is made, of n samples; the next one, if there is one, begins at `next`. */
static fsdp_status publish(stream *s, int64_t n, window_start next)
{
    pthread_mutex_lock(&s->lock);
    next.window = s->filling + 1;
    s->slot->window = s->filling++;
    s->slot->n = n;
    s->n_tokens += s->filled < n * s->set->width ? s->filled : n * s->set->width;
    s->n_places += n * s->set->width;
    fsdp_status status = n == s->set->window ? note_start(s, &next) : FSDP_OK;
    s->slot = NULL;
    s->filled = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* --- best fit --- */

static fsdp_status begin_rows(stream *s)
{
    int64_t n = s->set->window * s->set->width;
    FSDP_TRY(take_slot(s));
    memset(s->slot->ids, 0, (size_t)n * sizeof *s->slot->ids);
    memset(s->slot->kinds, STREAM_PADDING, (size_t)n);
    pack_clear(&s->rows);
    return FSDP_OK;
}

static fsdp_status place_chunk(stream *s)
{
    int64_t begin, row;
    if (s->slot == NULL)
        FSDP_TRY(begin_rows(s));
    row = pack_add(&s->rows, s->in_chunk, &begin);
    if (row < 0) {
        FSDP_TRY(publish(s, s->set->window, s->chunk_start));
        FSDP_TRY(begin_rows(s));
        row = pack_add(&s->rows, s->in_chunk, &begin);
    }
    begin += row * s->set->width;
    memcpy(s->slot->ids + begin, s->chunk, (size_t)s->in_chunk * sizeof *s->chunk);
    memset(s->slot->kinds + begin, STREAM_GOES_ON, (size_t)s->in_chunk);
    s->slot->kinds[begin] = STREAM_BEGINS;
    s->filled += s->in_chunk;
    s->in_chunk = 0;
    return FSDP_OK;
}

static fsdp_status append_to_chunk(stream *s, const int32_t *ids, int64_t n)
{
    while (n > 0) {
        int64_t some = min_i64(n, s->skip > 0 ? s->skip : s->set->width - s->in_chunk);
        if (s->skip > 0) {
            s->skip -= some;
        } else {
            if (s->in_chunk == 0)
                s->chunk_start = (window_start){0, s->place, s->in_piece};
            memcpy(s->chunk + s->in_chunk, ids, (size_t)some * sizeof *ids);
            s->in_chunk += some;
        }
        s->in_piece += some;
        ids += some;
        n -= some;
        if (s->in_chunk == s->set->width)
            FSDP_TRY(place_chunk(s));
    }
    return FSDP_OK;
}

/* --- rows without gaps --- */

static fsdp_status append(void *context, const int32_t *ids, size_t n_ids)
{
    stream *s = context;
    if (s->set->packing == FSDP_PACK_BEST_FIT)
        return append_to_chunk(s, ids, (int64_t)n_ids);
    int64_t n = (int64_t)n_ids, whole = s->set->window * s->set->width;
    while (n > 0) {
        int64_t some = min_i64(n, s->skip);
        if (s->skip == 0) {
            if (s->slot == NULL)
                FSDP_TRY(take_slot(s));
            some = min_i64(n, whole - s->filled);
            memcpy(s->slot->ids + s->filled, ids, (size_t)some * sizeof *ids);
            memset(s->slot->kinds + s->filled, STREAM_GOES_ON, (size_t)some);
            s->slot->kinds[s->filled] = s->begins ? STREAM_BEGINS : STREAM_GOES_ON;
            s->filled += some;
        } else {
            s->skip -= some;
        }
        s->begins = false;
        s->in_piece += some;
        ids += some;
        n -= some;
        if (s->filled == whole)
            FSDP_TRY(publish(s, s->set->window, (window_start){0, s->place, s->in_piece}));
    }
    return FSDP_OK;
}

static fsdp_status end_document(void *context)
{
    stream *s = context;
    return s->in_chunk > 0 ? place_chunk(s) : FSDP_OK;
}

/* A file is looked at before its first document and after its last. */
static fsdp_status begin(void *context, const document_place *place)
{
    stream *s = context;
    if (place->file != s->place.file) {
        FSDP_TRY(stream_set_check(s->set, (size_t)s->place.file));
        FSDP_TRY(stream_set_check(s->set, (size_t)place->file));
    }
    s->place = *place;
    s->in_piece = 0;
    s->begins = !place->continues;
    return FSDP_OK;
}

static fsdp_status end_epoch(stream *s)
{
    bool best_fit = s->set->packing == FSDP_PACK_BEST_FIT;
    int64_t rest = best_fit ? (s->slot ? s->rows.n_rows : 0) : s->filled / s->set->width;
    int64_t length = s->filling * s->set->window + rest;
    FSDP_TRY(stream_set_check(s->set, (size_t)s->place.file));
    if (length == 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s%s: the data has %lld tokens, less than one context of %lld; give more data or a smaller "
                         "context width",
                         s->set->files.files[0].path, s->set->files.n_files > 1 ? " and others" : "",
                         (long long)s->filled, (long long)s->set->width);
    pthread_mutex_lock(&s->lock);
    bool changed = s->length > 0 && s->length != length;
    s->length = length;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (changed)
        return error_set(FSDP_ERR_INPUT, "%s%s: another length than in the epoch before: the data changed",
                         s->set->files.files[0].path, s->set->files.n_files > 1 ? " or another file" : "");
    return rest > 0 ? publish(s, rest, (window_start){0}) : FSDP_OK;
}

/* The documents of token files, from one on. */
static fsdp_status read_store(stream *s, int64_t index)
{
    int32_t ids[4096];
    for (; index < token_store_documents(s->set->store); index++) {
        int64_t part, first, n;
        FSDP_TRY(token_store_document(s->set->store, index, &part, &first, &n));
        FSDP_TRY(begin(s, &(document_place){.file = part, .record = index}));
        for (int64_t some; n > 0; first += some, n -= some) {
            if (stop_requested(s))
                return error_set(FSDP_ERR_STATE, "the stream was closed");
            some = min_i64(n, (int64_t)(sizeof ids / sizeof *ids));
            FSDP_TRY(token_store_read(s->set->store, first, some, ids));
            FSDP_TRY(append(s, ids, (size_t)some));
        }
        FSDP_TRY(end_document(s));
    }
    return FSDP_OK;
}

/* Makes windows from `start` on, until the end of the data or until the reader goes elsewhere. */
static fsdp_status make_windows(stream *s, const window_start *start)
{
    token_build_options options = {.field = s->set->field,
                                   .strict = s->set->strict,
                                   .n_threads = s->threads,
                                   .start = start->place,
                                   .stop_requested = stop_requested,
                                   .context = s};
    const token_sink sink = {s, append, end_document, begin};
    if (s->set->max_samples > 0)
        options.max_tokens = (s->set->max_samples - start->window * s->set->window) * s->set->width + start->skip;
    s->filling = start->window;
    s->skip = start->skip;
    s->slot = NULL;
    s->filled = s->in_piece = s->in_chunk = 0;
    s->restart = false;
    s->place = start->place;
    FSDP_TRY(stream_set_check(s->set, (size_t)start->place.file));
    fsdp_status status = s->set->store ? read_store(s, start->place.record)
                                       : token_build(&s->files, s->set->tokenizer, &options, &sink, NULL);
    return status == FSDP_OK ? end_epoch(s) : s->restart ? FSDP_OK : status;
}

static void *run(void *argument)
{
    stream *s = argument;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && s->failed == FSDP_OK) {
        int64_t missing = next_missing(s);
        if (missing < 0) {
            wait_for_change(s);
            continue;
        }
        window_start start = *start_before(s, missing);
        pthread_mutex_unlock(&s->lock);
        fsdp_status status = make_windows(s, &start);
        pthread_mutex_lock(&s->lock);
        s->failed = status;
        if (status != FSDP_OK)
            snprintf(s->error, sizeof s->error, "%s", fsdp_last_error());
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- the reader -------------------------------------------------------------------------------------------------- */

fsdp_status stream_open(const stream_set *set, uint64_t seed, bool shuffle, int threads, stream **out)
{
    stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    *s = (stream){.set = set, .files = set->files, .shuffle = shuffle, .threads = threads};
    s->files.stop = &s->closing;
    s->key = rng_key_fold_text(rng_key_make(seed), "windows");
    pthread_mutex_init(&s->lock, NULL);
    condition_init(&s->changed);
    bool whole = array_grow((void **)&s->starts, &s->starts_capacity, 64, sizeof *s->starts) == FSDP_OK;
    for (int i = 0; i < N_SLOTS; i++) {
        s->slots[i].window = -1;
        s->slots[i].ids = malloc((size_t)(set->window * set->width) * sizeof(int32_t));
        s->slots[i].kinds = malloc((size_t)(set->window * set->width));
        whole = whole && s->slots[i].ids != NULL && s->slots[i].kinds != NULL;
    }
    if (set->packing == FSDP_PACK_BEST_FIT) {
        s->chunk = malloc((size_t)set->width * sizeof *s->chunk);
        whole = whole && s->chunk != NULL && pack_make(set->width, set->window, &s->rows) == FSDP_OK;
    }
    if (!whole) {
        stream_close(s);
        return error_set(FSDP_ERR_MEMORY, "out of memory for windows of %lld tokens",
                         (long long)(set->window * set->width));
    }
    s->starts[s->n_starts++] = (window_start){0};
    *out = s;
    return FSDP_OK;
}

void stream_close(stream *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->closing, true);
    if (s->started)
        pthread_join(s->thread, NULL);
    for (int i = 0; i < N_SLOTS; i++) {
        free(s->slots[i].ids);
        free(s->slots[i].kinds);
    }
    pack_free(&s->rows);
    free(s->chunk);
    free(s->starts);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void stream_interrupt(stream *s, bool interrupted)
{
    pthread_mutex_lock(&s->lock);
    s->interrupted = interrupted;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

int64_t stream_length(stream *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t length = s->length;
    pthread_mutex_unlock(&s->lock);
    return length;
}

int64_t stream_moves(const stream *s)
{
    return source_list_moves(&s->files);
}

double stream_padding(stream *s)
{
    pthread_mutex_lock(&s->lock);
    double part = s->n_places > 0 ? 1 - (double)s->n_tokens / (double)s->n_places : 0;
    pthread_mutex_unlock(&s->lock);
    return part;
}

/* The first wish starts the thread, so that it begins where a resumed run goes on. */
static fsdp_status want(stream *s, int64_t window)
{
    if (s->wanted != window)
        pthread_cond_broadcast(&s->changed);
    s->wanted = window;
    if (s->started)
        return FSDP_OK;
    int rc = pthread_create(&s->thread, NULL, run, s);
    errno = rc;
    s->started = rc == 0;
    return rc == 0 ? FSDP_OK : error_set_errno(FSDP_ERR_MEMORY, "a thread for streaming data cannot start");
}

/* Under the lock: waits for the window of `position`. */
static fsdp_status await(stream *s, int64_t position, int64_t *epoch, int64_t *place, window_slot **slot)
{
    for (;;) {
        *epoch = s->length > 0 ? position / s->length : 0;
        *place = s->length > 0 ? position % s->length : position;
        int64_t window = *place / s->set->window;
        if (s->interrupted)
            return error_set(FSDP_ERR_STATE, "reading the stream was interrupted");
        FSDP_TRY(want(s, window));
        *slot = slot_with(s, window);
        if (*slot != NULL && *place < window * s->set->window + (*slot)->n)
            return FSDP_OK;
        if (s->failed != FSDP_OK)
            return error_set(s->failed, "%s", s->error);
        wait_for_change(s);
    }
}

fsdp_status stream_read(stream *s, int64_t position, int64_t *sample, int32_t *ids, const uint8_t **kinds)
{
    int64_t epoch = 0, place = 0;
    window_slot *slot = NULL;
    pthread_mutex_lock(&s->lock);
    fsdp_status status = await(s, position, &epoch, &place, &slot);
    pthread_mutex_unlock(&s->lock);
    FSDP_TRY(status);
    /* The window that is read stays where it is. */
    int64_t first = slot->window * s->set->window, inner = place - first;
    if (s->shuffle)
        inner = sampler_permute(rng_key_fold(rng_key_fold(s->key, (uint64_t)epoch), (uint64_t)slot->window), slot->n,
                                inner);
    memcpy(ids, slot->ids + inner * s->set->width, (size_t)s->set->width * sizeof *ids);
    *kinds = slot->kinds + inner * s->set->width;
    *sample = first + inner;
    return FSDP_OK;
}

/* --- checkpoints ------------------------------------------------------------------------------------------------- */

json_t *stream_describe(stream *s, int64_t position)
{
    pthread_mutex_lock(&s->lock);
    int64_t length = s->length, place = length > 0 ? position % length : position;
    window_start at = *start_before(s, place / s->set->window);
    pthread_mutex_unlock(&s->lock);
    json_t *out = stream_set_describe(s->set);
    json_t *start =
        json_pack("{s:I, s:I, s:I, s:I, s:b, s:I}", "window", (json_int_t)at.window, "file", (json_int_t)at.place.file,
                  "offset", (json_int_t)at.place.offset, "record", (json_int_t)at.place.record, "continues",
                  at.place.continues, "skip", (json_int_t)at.skip);
    bool whole = out != NULL && json_object_set_new(out, "start", start) == 0 &&
                 json_object_set_new(out, "length", json_integer(length)) == 0;
    if (whole)
        return out;
    json_decref(out);
    return NULL;
}

fsdp_status stream_restore(stream *s, const char *path, const json_t *described)
{
    window_start at = {0};
    int64_t length = 0;
    const json_t *start = json_object_get(described, "start");
    FSDP_TRY(stream_set_compare(s->set, path, described));
    FSDP_TRY(json_get_int(path, described, "length", &length));
    FSDP_TRY(json_get_int(path, start, "window", &at.window));
    FSDP_TRY(json_get_int(path, start, "file", &at.place.file));
    FSDP_TRY(json_get_int(path, start, "offset", &at.place.offset));
    FSDP_TRY(json_get_int(path, start, "record", &at.place.record));
    FSDP_TRY(json_opt_bool(path, start, "continues", &at.place.continues));
    FSDP_TRY(json_get_int(path, start, "skip", &at.skip));
    if (length < 0 || at.window < 0 || at.window > INT64_MAX / 4 / s->set->window || at.place.file < 0 ||
        (size_t)at.place.file >= s->set->files.n_files || at.place.offset < 0 || at.place.record < 0 || at.skip < 0)
        return error_set(FSDP_ERR_INPUT, "%s: its place in the data makes no sense", path);
    pthread_mutex_lock(&s->lock);
    s->length = length > 0 ? length : s->length;
    fsdp_status status = note_start(s, &at);
    pthread_mutex_unlock(&s->lock);
    return status;
}
