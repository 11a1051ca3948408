/* Reads pieces in small chunks, straight to their destination where that is fp32 in host memory, and hashes each chunk
 * while it is in the cache. A worker has several pieces in hand at once, a chunk of each, because checksums are quick
 * side by side (base/hash.h) and slow one after the other; workers are OpenMP's threads.
 *
 * Files are read, not mapped: the page faults of a mapping cost more than the copy, and a failing disk is an error, not
 * a signal. Every lane goes through a stretch of neighbours in a file by a descriptor of its own: so the kernel sees
 * sequential readers, reads ahead for each, and caches in large blocks, of which copies are twice as quick. */
#include "ckpt/load/pieces.h"

#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "ckpt/load/base.h"

enum { N_LANES = HASH_ABREAST };
enum { CHUNK_BYTES = 128 << 10 };      /* all lanes' chunks fit the second-level cache */
enum { REMOTE_CHUNK_BYTES = 1 << 20 }; /* a call of the state's write per chunk: worth its price */

/* What is left of a lane's stretch of the order: [next, end). */
typedef struct stretch {
    int next, end;
} stretch;

/* A piece being read. */
typedef struct lane {
    stretch *own;
    piece_transfer *transfer; /* NULL: idle */
    int64_t at, end;          /* next byte of the piece, and where reading stops */
    hash_stream hash;
    uint8_t *bounce;      /* (chunk_bytes) what does not go straight to its place */
    const uint8_t *chunk; /* just read */
    size_t chunk_bytes;
    const char *path; /* of the open file, the source's; NULL: none */
    int fd;
} lane;

/* All workers' view of one run. */
typedef struct crew {
    const piece_config *config;
    int n_lanes; /* of a worker */
    size_t chunk_bytes;
    piece_transfer **order; /* by file and place in it */
    pthread_mutex_t lock;   /* of the stretches */
    stretch *stretches;     /* one for each lane of each worker */
    int n_stretches;
    atomic_int n_workers; /* so far */
    atomic_bool stopped;
} crew;

typedef struct worker {
    crew *crew;
    lane lanes[N_LANES];
    uint8_t *bounces; /* (n_lanes, chunk_bytes) */
    float *values;    /* (chunk_bytes / 2) converted elements, of two bytes at the least */
} worker;

/* ---- The list ---- */

fsdp_status piece_list_add(piece_list *list, const piece_transfer *transfer)
{
    if (list->n_transfers == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 256;
        piece_transfer *transfers = realloc(list->transfers, (size_t)capacity * sizeof *transfers);
        if (!transfers)
            return error_set(FSDP_ERR_MEMORY, "out of memory for a list of %d pieces", capacity);
        list->transfers = transfers;
        list->capacity = capacity;
    }
    list->transfers[list->n_transfers++] = *transfer;
    return FSDP_OK;
}

fsdp_status piece_list_add_all(piece_list *list, const ckpt_source *source)
{
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        for (int k = 0; k < tensor->n_pieces; k++)
            FSDP_TRY(piece_list_add(list, &(piece_transfer){.tensor = tensor, .piece = &tensor->pieces[k]}));
    }
    return FSDP_OK;
}

void piece_list_free(piece_list *list)
{
    for (int i = 0; i < list->n_transfers; i++)
        free(list->transfers[i].message);
    free(list->transfers);
    *list = (piece_list){0};
}

/* ---- A lane ---- */

static fsdp_status lane_open(lane *l, const char *path)
{
    if (l->path == path)
        return FSDP_OK;
    if (l->path)
        close(l->fd);
    l->path = NULL;
    FSDP_TRY(file_open_regular(path, FILE_ANY_SIZE, &l->fd, NULL));
    l->path = path;
    return FSDP_OK;
}

/* What does not lie in a row in its file is picked from the mapping. */
static fsdp_status lane_gather(const lane *l, uint8_t *out, size_t bytes)
{
    const source_piece *piece = l->transfer->piece;
    int64_t width = (int64_t)fsdp_dtype_size(piece->stored->dtype);
    safetensors_gather(piece->stored, piece->at + l->at / width, (int64_t)bytes / width, out);
    return FSDP_OK;
}

static fsdp_status lane_read(lane *l, uint8_t *out, size_t bytes)
{
    if (l->transfer->piece->stored->strides)
        return lane_gather(l, out, bytes);
    int64_t offset = source_piece_offset(l->transfer->piece) + l->at;
    while (bytes > 0) {
        ssize_t got = pread(l->fd, out, bytes, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot read %zu bytes at byte %" PRId64, l->path, bytes, offset);
        if (got == 0)
            return error_set(FSDP_ERR_INPUT, "%s: ends at byte %" PRId64 ": it was cut while being read", l->path,
                             offset);
        out += got;
        offset += got;
        bytes -= (size_t)got;
    }
    return FSDP_OK;
}

static bool is_checked(const worker *w, const piece_transfer *transfer)
{
    return w->crew->config->verify && transfer->piece->has_checksum;
}

/* The bytes of the piece that the slice wants. */
static void wanted_bytes(const piece_transfer *transfer, int64_t *begin, int64_t *end)
{
    int64_t width = (int64_t)fsdp_dtype_size(transfer->piece->stored->dtype);
    *begin = transfer->slice ? (transfer->begin - transfer->piece->first) * width : INT64_MAX;
    *end = transfer->slice ? (transfer->end - transfer->piece->first) * width : INT64_MAX;
}

static fsdp_status lane_start(const worker *w, lane *l, piece_transfer *transfer)
{
    const safetensors_tensor *stored = transfer->piece->stored;
    l->transfer = transfer;
    if (stored->dtype == FSDP_DTYPE_COUNT)
        return safetensors_read_f32(stored, 0, 0, NULL); /* says so */
    if (is_checked(w, transfer) || !transfer->slice) {   /* a checksum is of the whole piece, whatever part is wanted */
        l->at = 0;
        l->end = transfer->piece->count * (int64_t)fsdp_dtype_size(stored->dtype);
    } else {
        wanted_bytes(transfer, &l->at, &l->end);
    }
    hash_stream_start(&l->hash);
    fsdp_status status = lane_open(l, stored->path);
    transfer->damaged = status != FSDP_OK;
    return status;
}

/* Elements that are not fp32, or whose place is reached by a call. `raw` holds n of them as the file does. */
static fsdp_status deliver(worker *w, const piece_transfer *transfer, int64_t first, int64_t n, const uint8_t *raw)
{
    const ckpt_state *state = w->crew->config->state;
    const ckpt_slice *slice = transfer->slice;
    safetensors_tensor window = *transfer->piece->stored;
    window.data = raw;
    window.numel = n;
    window.strides = NULL;
    if (slice->data)
        return safetensors_read_f32(&window, 0, n, slice->data + first);
    FSDP_TRY(safetensors_read_f32(&window, 0, n, w->values));
    return state->write(state->context, slice, first, n, w->values);
}

static void add_digest(const worker *w, const ckpt_slice *slice, int64_t first, int64_t n)
{
    const piece_config *config = w->crew->config;
    const ckpt_tensor *tensor = &config->state->tensors[slice->tensor];
    if (!config->digest || !tensor->base || !slice->writes)
        return;
    const float *values = slice->data ? slice->data + first : w->values;
    atomic_fetch_add(config->digest, base_digest(tensor->name, slice->first + first, n, values));
}

/* Reads the next chunk, all of it wanted or none, and brings it to its place. */
static fsdp_status lane_step(worker *w, lane *l)
{
    piece_transfer *transfer = l->transfer;
    const ckpt_slice *slice = transfer->slice;
    size_t width = fsdp_dtype_size(transfer->piece->stored->dtype);
    int64_t begin, end;
    wanted_bytes(transfer, &begin, &end);
    bool wanted = l->at >= begin && l->at < end;
    int64_t stop = wanted ? end : l->at < begin ? min_i64(begin, l->end) : l->end;
    size_t bytes = (size_t)min_i64((int64_t)w->crew->chunk_bytes, stop - l->at);
    int64_t first = wanted ? transfer->begin - slice->first + (l->at - begin) / (int64_t)width : 0; /* of the slice */
    bool direct = wanted && slice->data && transfer->piece->stored->dtype == FSDP_F32;
    uint8_t *place = direct ? (uint8_t *)(slice->data + first) : l->bounce;
    fsdp_status status = lane_read(l, place, bytes);
    transfer->damaged = status != FSDP_OK;
    FSDP_TRY(status);
    if (wanted && !direct)
        FSDP_TRY(deliver(w, transfer, first, (int64_t)(bytes / width), place));
    if (wanted)
        add_digest(w, slice, first, (int64_t)(bytes / width));
    l->chunk = place;
    l->chunk_bytes = bytes;
    l->at += (int64_t)bytes;
    return FSDP_OK;
}

static void lane_end(worker *w, lane *l, fsdp_status status)
{
    piece_transfer *transfer = l->transfer;
    if (status == FSDP_OK && is_checked(w, transfer) && hash_stream_end(&l->hash) != transfer->piece->checksum) {
        status = source_checksum_error(transfer->tensor, transfer->piece);
        transfer->damaged = true;
    }
    transfer->status = status;
    l->transfer = NULL;
    if (status == FSDP_OK)
        return;
    transfer->message = strdup(fsdp_last_error()); /* the thread's own: it is carried to the caller's */
    if (!w->crew->config->to_the_end)
        atomic_store(&w->crew->stopped, true);
}

/* ---- A worker ---- */

/* A lane at its end takes half of what the busiest has left. */
static void take_over(crew *c, stretch *own)
{
    stretch *busiest = own;
    for (int i = 0; i < c->n_stretches; i++)
        if (c->stretches[i].end - c->stretches[i].next > busiest->end - busiest->next)
            busiest = &c->stretches[i];
    own->end = busiest->end;
    own->next = busiest->end - (busiest->end - busiest->next + 1) / 2;
    busiest->end = own->next;
}

/* NULL: nothing is left to do. */
static piece_transfer *next_transfer(crew *c, stretch *own)
{
    piece_transfer *transfer = NULL;
    pthread_mutex_lock(&c->lock);
    if (own->next == own->end)
        take_over(c, own);
    if (own->next < own->end && !atomic_load(&c->stopped))
        transfer = c->order[own->next++];
    pthread_mutex_unlock(&c->lock);
    return transfer;
}

static void take_transfer(worker *w, lane *l)
{
    piece_transfer *transfer;
    while (!l->transfer && (transfer = next_transfer(w->crew, l->own))) {
        fsdp_status status = lane_start(w, l, transfer);
        if (status != FSDP_OK)
            lane_end(w, l, status);
    }
}

/* One chunk of every lane. False when there is nothing left to do. */
static bool work_round(worker *w)
{
    hash_stream *streams[N_LANES];
    const void *chunks[N_LANES];
    size_t bytes[N_LANES];
    int n_hashed = 0;
    bool busy = false;
    for (int i = 0; i < w->crew->n_lanes; i++) {
        lane *l = &w->lanes[i];
        take_transfer(w, l);
        if (!l->transfer)
            continue;
        busy = true;
        fsdp_status status = lane_step(w, l);
        if (status != FSDP_OK) {
            lane_end(w, l, status);
        } else if (is_checked(w, l->transfer)) {
            streams[n_hashed] = &l->hash;
            chunks[n_hashed] = l->chunk;
            bytes[n_hashed++] = l->chunk_bytes;
        }
    }
    hash_streams_add(streams, chunks, bytes, n_hashed);
    for (int i = 0; i < w->crew->n_lanes; i++)
        if (w->lanes[i].transfer && w->lanes[i].at == w->lanes[i].end)
            lane_end(w, &w->lanes[i], FSDP_OK);
    return busy;
}

static fsdp_status work(crew *c)
{
    worker w = {.crew = c};
    w.bounces = malloc((size_t)c->n_lanes * c->chunk_bytes);
    w.values = malloc(c->chunk_bytes / 2 * sizeof *w.values);
    fsdp_status status = w.bounces && w.values ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory to read pieces");
    int index = atomic_fetch_add(&c->n_workers, 1);
    for (int i = 0; i < c->n_lanes && status == FSDP_OK; i++) {
        w.lanes[i].own = &c->stretches[index * c->n_lanes + i];
        w.lanes[i].bounce = w.bounces + (size_t)i * c->chunk_bytes;
    }
    while (status == FSDP_OK && work_round(&w))
        continue;
    for (int i = 0; i < c->n_lanes; i++)
        if (w.lanes[i].path)
            close(w.lanes[i].fd);
    free(w.values);
    free(w.bounces);
    return status;
}

/* ---- All of them ---- */

static fsdp_status first_failure(const piece_list *list)
{
    for (int i = 0; i < list->n_transfers; i++)
        if (list->transfers[i].status != FSDP_OK)
            return error_set(list->transfers[i].status, "%s",
                             list->transfers[i].message ? list->transfers[i].message : "out of memory for a message");
    return FSDP_OK;
}

static int by_place(const void *left, const void *right)
{
    const piece_transfer *a = *(piece_transfer *const *)left, *b = *(piece_transfer *const *)right;
    int paths = strcmp(a->piece->stored->path, b->piece->stored->path);
    int64_t a_offset = source_piece_offset(a->piece), b_offset = source_piece_offset(b->piece);
    return paths ? paths : a_offset < b_offset ? -1 : a_offset > b_offset;
}

/* Orders the transfers and gives every lane an even stretch of them. */
static fsdp_status crew_plan(crew *c, piece_list *list)
{
    int n = list->n_transfers;
    c->order = malloc(((size_t)n + 1) * sizeof *c->order);
    c->stretches = malloc((size_t)c->n_stretches * sizeof *c->stretches);
    if (!c->order || !c->stretches)
        return error_set(FSDP_ERR_MEMORY, "out of memory to read %d pieces", n);
    for (int i = 0; i < n; i++)
        c->order[i] = &list->transfers[i];
    qsort(c->order, (size_t)n, sizeof *c->order, by_place);
    for (int i = 0; i < c->n_stretches; i++)
        c->stretches[i] = (stretch){.next = (int)((int64_t)n * i / c->n_stretches),
                                    .end = (int)((int64_t)n * (i + 1) / c->n_stretches)};
    return FSDP_OK;
}

fsdp_status piece_list_run(piece_list *list, const piece_config *config)
{
    bool remote = false;
    for (int i = 0; i < list->n_transfers; i++)
        remote |= list->transfers[i].slice && !list->transfers[i].slice->data;
    /* The state's write is called by the caller's thread alone. */
    int n_workers = remote ? 1 : (int)max_i64(1, min_i64(list->n_transfers, omp_get_max_threads()));
    crew c = {.config = config,
              .n_lanes = (int)max_i64(1, min_i64(N_LANES, ceil_div(list->n_transfers, n_workers))),
              .chunk_bytes = remote ? REMOTE_CHUNK_BYTES : CHUNK_BYTES,
              .lock = PTHREAD_MUTEX_INITIALIZER};
    c.n_stretches = n_workers * c.n_lanes;
    fsdp_status status = crew_plan(&c, list);
    int n_working = 0; /* one that finds no memory leaves its share to the others */
    if (status == FSDP_OK) {
#pragma omp parallel num_threads(n_workers) reduction(+ : n_working)
        n_working += work(&c) == FSDP_OK;
        status = n_working > 0 ? first_failure(list)
                               : error_set(FSDP_ERR_MEMORY, "out of memory to read %d pieces", list->n_transfers);
    }
    free(c.stretches);
    free(c.order);
    return status;
}
