/* Loads a rank's slices: finds the pieces that overlap each and has them read (pieces.c). Choosing a checkpoint among
 * several is resume.c's. */
#include "ckpt/load/load.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/directory.h"
#include "ckpt/load/base.h"
#include "ckpt/load/load_from.h"
#include "ckpt/load/match.h"
#include "ckpt/load/pieces.h"
#include "ckpt/save/save_task.h"

/* ---- What to read ---- */

static fsdp_status add_transfers(piece_list *list, const ckpt_slice *slice, const source_tensor *tensor)
{
    int64_t end = slice->first + slice->count, covered = 0;
    for (int i = 0; i < tensor->n_pieces; i++) {
        const source_piece *piece = &tensor->pieces[i];
        int64_t from = max_i64(slice->first, piece->first), to = min_i64(end, piece->first + piece->count);
        if (from >= to)
            continue;
        FSDP_TRY(piece_list_add(
            list, &(piece_transfer){.tensor = tensor, .piece = piece, .slice = slice, .begin = from, .end = to}));
        covered += to - from;
    }
    if (covered == slice->count)
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "%s %s: only %" PRId64 " of this rank's %" PRId64
        " elements are in this local checkpoint: it was written with other strategies or ranks. Resume with those, "
        "or save and resume with kind sharded or full",
        ckpt_role_name(tensor->role), tensor->name, covered, slice->count);
}

static fsdp_status plan_transfers(const ckpt_state *state, const ckpt_match *match, piece_list *list, int64_t *bytes)
{
    for (int i = 0; i < state->n_slices; i++) {
        const ckpt_slice *slice = &state->slices[i];
        const source_tensor *tensor = match->sources[slice->tensor];
        if (!tensor || slice->count == 0)
            continue;
        FSDP_TRY(add_transfers(list, slice, tensor));
        *bytes += slice->count * (int64_t)sizeof(float);
    }
    return FSDP_OK;
}

static bool any_damaged(const piece_list *list)
{
    for (int i = 0; i < list->n_transfers; i++)
        if (list->transfers[i].damaged)
            return true;
    return false;
}

/* ---- One source ---- */

static fsdp_status check_local(const manifest *m, comm_group *world)
{
    int rank = world ? comm_group_rank(world) : 0, world_size = world ? comm_group_size(world) : 1;
    if (!m || m->kind != FSDP_CKPT_LOCAL || (m->rank == rank && m->world_size == world_size))
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "a local checkpoint of rank %d of %d cannot be loaded by rank %d of %d; only sharded and full ones "
        "fit any world",
        m->rank, m->world_size, rank, world_size);
}

/* Adapters mean nothing beside another base. */
static fsdp_status settle_base(ckpt_source *source, const ckpt_load_config *config)
{
    base_reference reference;
    if (!base_refers(source, &reference))
        return FSDP_OK;
    if (config->with_base)
        return base_join(source, config->base);
    if (config->digest && *config->digest == reference.digest)
        return FSDP_OK;
    if (config->digest)
        return base_is_another(source_path(source), &reference, *config->digest);
    return error_set(FSDP_ERR_INPUT,
                     "%s holds adapters alone; load the base that they were trained beside first (--init_from %s)",
                     source_path(source), reference.name);
}

static bool has_base(const ckpt_state *state, const ckpt_match *match)
{
    for (int i = 0; i < state->n_tensors; i++)
        if (state->tensors[i].base && match->sources[i])
            return true;
    return false;
}

static fsdp_status describe(const ckpt_source *source, ckpt_load_result *result)
{
    const manifest *m = source_manifest(source);
    snprintf(result->path, sizeof result->path, "%s", source_path(source));
    if (!m)
        return FSDP_OK;
    result->step = m->step;
    result->world_size = m->world_size;
    snprintf(result->run, sizeof result->run, "%s", m->run);
    result->extra = json_deep_copy(m->extra);
    if (m->autotune_bytes == 0)
        return FSDP_OK;
    result->autotune = malloc(m->autotune_bytes);
    if (!result->autotune)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for its autotuned kernels", source_path(source));
    memcpy(result->autotune, m->autotune, m->autotune_bytes);
    result->autotune_bytes = m->autotune_bytes;
    return FSDP_OK;
}

fsdp_status load_from(const char *path, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                      bool *corrupt, ckpt_load_result *result)
{
    ckpt_source *source = NULL;
    ckpt_match match = {0};
    piece_list list = {0};
    atomic_uint_fast64_t digest = 0;
    piece_config how = {.state = state, .verify = config->verify, .digest = &digest};
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
    TRY_OR(done, settle_base(source, config));
    if (config->average && source_has_role(source, CKPT_AVERAGE))
        TRY_OR(done, source_take_average(source));
    TRY_OR(done, ckpt_match_make(source, config, state, &match));
    TRY_OR(done, plan_transfers(state, &match, &list, &result->bytes));
    status = piece_list_run(&list, &how);
    *corrupt = any_damaged(&list);
    if (status != FSDP_OK)
        goto done;
    result->absent = match.absent;
    result->has_base = has_base(state, &match);
    result->digest = atomic_load(&digest);
    status = describe(source, result);
done:
    if (status != FSDP_OK)
        ckpt_load_result_free(result);
    piece_list_free(&list);
    ckpt_match_free(&match);
    source_close(source);
    return status;
}

/* ---- Parts ---- */

typedef struct part_source {
    ckpt_source *source;
    ckpt_match match;
} part_source;

/* From `at` on, whoever has that element gives all that follows it in his piece. */
static fsdp_status add_from_parts(piece_list *list, const ckpt_slice *slice, const part_source *parts, int n)
{
    int64_t at = slice->first, end = slice->first + slice->count;
    while (at < end) {
        int64_t before = at;
        for (int p = 0; p < n && at == before; p++) {
            const source_tensor *tensor = parts[p].match.sources[slice->tensor];
            for (int i = 0; tensor && i < tensor->n_pieces && at == before; i++) {
                const source_piece *piece = &tensor->pieces[i];
                if (at < piece->first || at >= piece->first + piece->count)
                    continue;
                int64_t to = min_i64(end, piece->first + piece->count);
                piece_transfer t = {.tensor = tensor, .piece = piece, .slice = slice, .begin = at, .end = to};
                FSDP_TRY(piece_list_add(list, &t));
                at = to;
            }
        }
        if (at == before)
            return error_set(FSDP_ERR_INPUT, "element %" PRId64 " of a tensor is in none of the %d parts", at, n);
    }
    return FSDP_OK;
}

static fsdp_status plan_parts(const ckpt_state *state, const part_source *parts, int n, piece_list *list,
                              int64_t *bytes)
{
    for (int i = 0; i < state->n_slices; i++) {
        const ckpt_slice *slice = &state->slices[i];
        if (slice->count == 0 || !parts[0].match.sources[slice->tensor])
            continue;
        FSDP_TRY(add_from_parts(list, slice, parts, n));
        *bytes += slice->count * (int64_t)sizeof(float);
    }
    return FSDP_OK;
}

fsdp_status load_from_parts(char *const *paths, int n, const ckpt_load_config *config, const ckpt_state *state,
                            bool *corrupt, ckpt_load_result *result)
{
    part_source *parts = calloc((size_t)n, sizeof *parts);
    piece_list list = {0};
    atomic_uint_fast64_t digest = 0;
    piece_config how = {.state = state, .verify = config->verify, .digest = &digest};
    fsdp_status status = parts ? ckpt_state_check(state) : error_set(FSDP_ERR_MEMORY, "no memory for %d parts", n);
    *result = (ckpt_load_result){.step = -1};
    *corrupt = status == FSDP_OK;
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        status = source_open(paths[i], &parts[i].source);
        if (status == FSDP_OK)
            status = settle_base(parts[i].source, config);
        if (status == FSDP_OK)
            status = ckpt_match_make(parts[i].source, config, state, &parts[i].match);
    }
    if (status == FSDP_OK)
        status = plan_parts(state, parts, n, &list, &result->bytes);
    if (status == FSDP_OK) {
        status = piece_list_run(&list, &how);
        *corrupt = any_damaged(&list);
    }
    if (status == FSDP_OK) {
        result->absent = parts[0].match.absent;
        result->has_base = has_base(state, &parts[0].match);
        result->digest = atomic_load(&digest);
        status = describe(parts[0].source, result);
    }
    if (status != FSDP_OK)
        ckpt_load_result_free(result);
    piece_list_free(&list);
    for (int i = 0; parts && i < n; i++) {
        ckpt_match_free(&parts[i].match);
        source_close(parts[i].source);
    }
    free(parts);
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
    free(result->autotune);
    result->extra = NULL;
    result->autotune = NULL;
}
