/* Loads a rank's slices: finds the pieces that overlap each, and copies, checking checksums in the same pass. Choosing a
 * checkpoint among several is resume.c's. */
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

/* Hashed, and then copied while still in the cache. */
enum { CHUNK_NUMEL = 64 << 10 };

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
    bool any_remote;   /* slices that are reached by the state's write */
    bool *corrupt;     /* set when a checksum does not hold */
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

static fsdp_status copy_overlap(const loader *l, const overlap *o)
{
    bool verify = l->verify && o->piece->has_checksum;
    hash_stream hash;
    if (!verify) {
        FSDP_TRY(source_piece_fetch(o->piece));
        return deliver(l, o, o->begin, o->end);
    }
    /* The checksum is of the whole piece, so all of it is read, whatever part is wanted. */
    size_t bytes;
    FSDP_TRY(source_piece_fetch(o->piece));
    const uint8_t *data = source_piece_data(o->piece, &bytes);
    hash_stream_start(&hash);
    for (int64_t done = 0; done < o->piece->count; done += CHUNK_NUMEL) {
        int64_t n = min_i64(CHUNK_NUMEL, o->piece->count - done);
        int64_t from = max_i64(o->begin, o->piece->first + done), to = min_i64(o->end, o->piece->first + done + n);
        hash_stream_add(&hash, data + (size_t)done * sizeof(float), (size_t)n * sizeof(float));
        if (from < to)
            FSDP_TRY(deliver(l, o, from, to));
    }
    if (hash_stream_end(&hash) == o->piece->checksum)
        return FSDP_OK;
#pragma omp atomic write
    *l->corrupt = true;
    return source_checksum_error(o->tensor, o->piece);
}

static fsdp_status copy_all(const loader *l)
{
    if (l->any_remote) {
        for (int i = 0; i < l->n_overlaps; i++)
            FSDP_TRY(copy_overlap(l, &l->overlaps[i]));
        return FSDP_OK;
    }
    save_outcome first = {0};
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < l->n_overlaps; i++) {
        fsdp_status failed;
#pragma omp atomic read
        failed = first.status;
        fsdp_status status = failed == FSDP_OK ? copy_overlap(l, &l->overlaps[i]) : FSDP_OK;
        if (status != FSDP_OK) {
            /* The message is the worker's own; it is carried to the caller's thread. */
#pragma omp critical(ckpt_load_failure)
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
    return error_set(FSDP_ERR_INPUT,
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
