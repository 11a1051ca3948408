/* Loads a rank's slices: finds the pieces that overlap each, and copies, checking checksums in the same pass. Choosing
 * a checkpoint among several is resume.c's. */
#include "ckpt/load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "ckpt/directory.h"
#include "ckpt/load_from.h"
#include "ckpt/match.h"
#include "ckpt/save_task.h"

/* Read, and then hashed while still in the cache. */
enum { CHUNK_NUMEL = 128 << 10 };

enum { AHEAD = 4 }; /* pieces that the disk reads while others are copied */

/* A piece and the part of it that a slice wants. */
typedef struct overlap {
    const ckpt_slice *slice;
    const source_tensor *tensor;
    const source_piece *piece;
    int64_t begin, end; /* elements of the tensor */
} overlap;

typedef struct loader {
    const ckpt_state *state;
    bool verify;
    int n_overlaps;
    overlap *overlaps;
    bool any_remote; /* slices that are reached by the state's write */
    bool *corrupt;   /* set when a checksum does not hold */
} loader;

/* ---- What to copy ---- */

static fsdp_status add_overlaps(loader *l, const ckpt_slice *slice, const source_tensor *tensor, int *capacity)
{
    int64_t end = slice->first + slice->count, covered = 0;
    for (int i = 0; i < tensor->n_pieces; i++) {
        const source_piece *piece = &tensor->pieces[i];
        int64_t from = max_i64(slice->first, piece->first), to = min_i64(end, piece->first + piece->count);
        if (from >= to)
            continue;
        if (l->n_overlaps == *capacity) {
            *capacity = *capacity ? 2 * *capacity : 256;
            overlap *grown = realloc(l->overlaps, (size_t)*capacity * sizeof *grown);
            if (!grown)
                return error_set(FSDP_ERR_MEMORY, "out of memory for the plan of a load");
            l->overlaps = grown;
        }
        l->overlaps[l->n_overlaps++] = (overlap){slice, tensor, piece, from, to};
        covered += to - from;
    }
    if (covered == slice->count)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "%s %s: only %" PRId64 " of this rank's %" PRId64
                     " elements are in this local checkpoint: it was written by another layout",
                     ckpt_role_name(tensor->role), tensor->name, covered, slice->count);
}

static fsdp_status plan_overlaps(loader *l, const ckpt_match *match, int64_t *bytes)
{
    int capacity = 0;
    for (int i = 0; i < l->state->n_slices; i++) {
        const ckpt_slice *slice = &l->state->slices[i];
        const source_tensor *tensor = match->sources[slice->tensor];
        if (!tensor || slice->count == 0)
            continue;
        FSDP_TRY(add_overlaps(l, slice, tensor, &capacity));
        l->any_remote |= slice->data == NULL;
        *bytes += slice->count * (int64_t)sizeof(float);
    }
    return FSDP_OK;
}

/* ---- Copying ---- */

/* Elements [from, to) of the tensor into the slice, by the straightest way. */
static fsdp_status deliver(const loader *l, const overlap *o, int64_t from, int64_t to)
{
    const ckpt_slice *slice = o->slice;
    const safetensors_tensor *stored = o->piece->stored;
    int64_t first = from - slice->first, n = to - from, at = o->piece->at + from - o->piece->first;
    if (slice->data)
        return safetensors_read_f32(stored, at, n, slice->data + first);
    const uint8_t *data = stored->data + (size_t)at * sizeof(float);
    if (stored->dtype == FSDP_F32 && (uintptr_t)data % sizeof(float) == 0)
        return l->state->write(l->state->context, slice, first, n, (const float *)(const void *)data);
    float values[4096];
    for (int64_t done = 0; done < n; done += 4096) {
        int64_t now = min_i64(4096, n - done);
        FSDP_TRY(safetensors_read_f32(stored, at + done, now, values));
        FSDP_TRY(l->state->write(l->state->context, slice, first + done, now, values));
    }
    return FSDP_OK;
}

/* The wanted elements; `hash` (may be NULL) takes them on the way, while they are in the cache. */
static fsdp_status copy_wanted(const loader *l, const overlap *o, hash_stream *hash)
{
    const source_piece *piece = o->piece;
    size_t bytes;
    const uint8_t *mapped = source_piece_data(piece, &bytes);
    for (int64_t from = o->begin; from < o->end; from += CHUNK_NUMEL) {
        int64_t to = min_i64(o->end, from + CHUNK_NUMEL), byte = (from - piece->first) * (int64_t)sizeof(float);
        size_t chunk_bytes = (size_t)(to - from) * sizeof(float);
        float *place = o->slice->data ? o->slice->data + (from - o->slice->first) : NULL;
        if (piece->fd >= 0 && place)
            FSDP_TRY(source_piece_pread(piece, byte, chunk_bytes, place));
        else
            FSDP_TRY(deliver(l, o, from, to));
        if (hash)
            hash_stream_add(hash, piece->fd >= 0 && place ? (const uint8_t *)place : mapped + byte, chunk_bytes);
    }
    return FSDP_OK;
}

static fsdp_status copy_overlap(const loader *l, const overlap *o)
{
    const source_piece *piece = o->piece;
    size_t bytes;
    hash_stream hash;
    if (piece->fd < 0 || !o->slice->data)
        FSDP_TRY(source_piece_fetch(piece));
    if (!l->verify || !piece->has_checksum)
        return copy_wanted(l, o, NULL);
    /* The checksum is of the whole piece, so all of it is read, whatever part is wanted. */
    const uint8_t *data = source_piece_data(piece, &bytes);
    size_t begin = (size_t)(o->begin - piece->first) * sizeof(float),
           end = (size_t)(o->end - piece->first) * sizeof(float);
    hash_stream_start(&hash);
    hash_stream_add(&hash, data, begin);
    FSDP_TRY(copy_wanted(l, o, &hash));
    hash_stream_add(&hash, data + end, bytes - end);
    if (hash_stream_end(&hash) == piece->checksum)
        return FSDP_OK;
#pragma omp atomic write
    *l->corrupt = true;
    return source_checksum_error(o->tensor, piece);
}

/* Threads read at several places of a file at once, which the kernel's own readahead takes for random access: it is
 * told what comes. The first call starts AHEAD pieces, each later one the next. */
static void announce(const loader *l, int index)
{
    for (int i = index ? index + AHEAD : 0; i < l->n_overlaps && i <= index + AHEAD; i++)
        source_piece_announce(l->overlaps[i].piece);
}

static fsdp_status copy_all(const loader *l)
{
    if (l->any_remote) {
        for (int i = 0; i < l->n_overlaps; i++) {
            announce(l, i);
            FSDP_TRY(copy_overlap(l, &l->overlaps[i]));
        }
        return FSDP_OK;
    }
    save_outcome first = {0};
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < l->n_overlaps; i++) {
        fsdp_status failed;
        announce(l, i);
#pragma omp atomic read
        failed = first.status;
        fsdp_status status = failed == FSDP_OK ? copy_overlap(l, &l->overlaps[i]) : FSDP_OK;
        if (status != FSDP_OK) {
            /* The message is the worker's own; it is carried to the caller's thread. */
#pragma omp critical
            if (first.status == FSDP_OK)
                save_outcome_set(&first, status);
        }
    }
    return first.status == FSDP_OK ? FSDP_OK : error_set(first.status, "%s", first.message);
}

/* ---- One source ---- */

static fsdp_status check_local(const manifest *m, comm_group *world)
{
    int rank = world ? comm_group_rank(world) : 0, world_size = world ? comm_group_size(world) : 1;
    if (!m || m->kind != CKPT_LOCAL || (m->rank == rank && m->world_size == world_size))
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "a local checkpoint of rank %d of %d cannot be loaded by rank %d of %d; only sharded and full ones "
        "fit any world",
        m->rank, m->world_size, rank, world_size);
}

static void describe(const ckpt_source *source, comm_group *world, ckpt_load_result *result)
{
    const manifest *m = source_manifest(source);
    int rank = world ? comm_group_rank(world) : 0, world_size = world ? comm_group_size(world) : 1;
    snprintf(result->path, sizeof result->path, "%s", source_path(source));
    if (!m)
        return;
    result->step = m->step;
    result->world_size = m->world_size;
    result->extra = json_deep_copy(m->extra);
    if (m->world_size == world_size) {
        json_t *mine = json_array_get(m->ranks, m->kind == CKPT_LOCAL ? 0 : (size_t)rank);
        result->rank_extra = json_is_object(mine) ? json_deep_copy(mine) : NULL;
    }
}

fsdp_status load_from(const char *path, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                      bool *corrupt, ckpt_load_result *result)
{
    ckpt_source *source = NULL;
    ckpt_match match = {0};
    loader l = {.state = state, .verify = config->verify, .corrupt = corrupt};
    fsdp_status status;
    *result = (ckpt_load_result){.step = -1};
    *corrupt = false;
    TRY_OR(done, ckpt_state_check(state));
    status = source_open(path, &source);
    if (status != FSDP_OK) {
        *corrupt = status == FSDP_ERR_INPUT || status == FSDP_ERR_IO;
        goto done;
    }
    TRY_OR(done, check_local(source_manifest(source), world));
    TRY_OR(done, ckpt_match_make(source, config, state, &match));
    TRY_OR(done, plan_overlaps(&l, &match, &result->bytes));
    TRY_OR(done, copy_all(&l));
    result->absent = match.absent;
    describe(source, world, result);
done:
    free(l.overlaps);
    ckpt_match_free(&match);
    source_close(source);
    return status;
}

/* Kind local: "step-N" stands for this rank's own. */
static char *own_path(const char *path, comm_group *world)
{
    char *local;
    if (file_exists(path) || asprintf(&local, "%s.rank-%05d", path, world ? comm_group_rank(world) : 0) < 0)
        return strdup(path);
    if (file_exists(local))
        return local;
    free(local);
    return strdup(path);
}

fsdp_status ckpt_load(const char *path, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                      ckpt_load_result *result)
{
    bool corrupt;
    char *own = own_path(path, world);
    fsdp_status status = own ? load_from(own, config, state, world, &corrupt, result)
                             : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    free(own);
    status = ckpt_agree(world, "checkpoint load", status, fsdp_last_error());
    if (status != FSDP_OK)
        ckpt_load_result_free(result);
    return status;
}

void ckpt_load_result_free(ckpt_load_result *result)
{
    json_decref(result->extra);
    json_decref(result->rank_extra);
    result->extra = result->rank_extra = NULL;
}
