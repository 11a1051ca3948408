/* Finds the newest checkpoint, by commit, that all ranks can load, and loads it. Ranks agree on the order in which they
 * try; a candidate that turns out damaged on any rank is skipped by all. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/save/directory.h"
#include "ckpt/load/load.h"
#include "ckpt/load/load_from.h"
#include "ckpt/save/save_task.h"

enum { MAX_CANDIDATES = 256 }; /* newest ones; more committed checkpoints than this are not all damaged */

typedef struct candidate {
    int64_t step, commit;
    uint64_t save;
    char suffix[40]; /* ".old-<id>" of one that was being replaced; else "" */
} candidate;

typedef struct candidates {
    int32_t n_shared, n_local;
    int32_t n_damaged;                /* committed once, not whole now */
    int32_t misfit_rank, misfit_size; /* of the newest local one that another number of ranks wrote */
    int64_t misfit_step;              /* -1: there is none */
    int64_t misfit_commit;
    candidate shared[MAX_CANDIDATES + 1]; /* rank 0's view counts */
    candidate local[MAX_CANDIDATES + 1];  /* this rank's own */
} candidates;

_Static_assert(sizeof(candidates) <= COMM_EXCHANGE_BYTES, "candidates travel in one exchange");

static void warn(const ckpt_entry *entry, int rank)
{
    if (rank == 0 || entry->rank == rank)
        log_write(FSDP_LOG_WARNING, "checkpoint %s is %s and was skipped: %s", entry->path,
                  ckpt_condition_name(entry->condition), entry->reason);
}

static bool is_newer(int64_t commit, int64_t step, int64_t than_commit, int64_t than_step)
{
    return commit != than_commit ? commit > than_commit : step > than_step;
}

/* A damaged one does not say whose it is. */
static bool is_left_out(const ckpt_load_config *config, const ckpt_entry *entry)
{
    bool own = entry->condition != CKPT_COMPLETE || (config->run && strcmp(entry->run, config->run) == 0);
    return config->above != CKPT_ANY_STEP && (entry->step <= config->above || !own);
}

/* What this rank sees. Files are looked at here; checksums when loading. */
static fsdp_status find_own(const char *directory, const ckpt_load_config *config, int rank, int n_ranks,
                            candidates *out)
{
    ckpt_listing listing;
    out->misfit_step = -1;
    FSDP_TRY(ckpt_directory_list(directory, &listing));
    ckpt_listing_by_commit(&listing, config->run);
    for (int i = 0; i < listing.n_entries; i++) {
        const ckpt_entry *entry = &listing.entries[i];
        bool shared = entry->rank < 0 && rank == 0, local = entry->rank == rank;
        if ((!shared && !local) || is_left_out(config, entry))
            continue;
        if (entry->condition != CKPT_COMPLETE) {
            warn(entry, rank);
            out->n_damaged += entry->condition == CKPT_CORRUPT;
        } else if (local && entry->world_size != n_ranks) {
            if (out->misfit_step < 0) { /* the newest comes first */
                out->misfit_step = entry->step;
                out->misfit_commit = entry->commit;
                out->misfit_rank = rank;
                out->misfit_size = entry->world_size;
            }
        } else if (shared ? out->n_shared < MAX_CANDIDATES : out->n_local < MAX_CANDIDATES) {
            candidate *c = shared ? &out->shared[out->n_shared++] : &out->local[out->n_local++];
            const char *suffix = strstr(entry->name, ".old-");
            c->step = entry->step;
            c->commit = entry->commit;
            c->save = entry->save;
            snprintf(c->suffix, sizeof c->suffix, "%s", suffix ? suffix : "");
        }
    }
    ckpt_listing_free(&listing);
    return FSDP_OK;
}

/* NULL: not there. A step that ranks have of different saves is not one checkpoint. */
static const candidate *find_local(const candidates *c, const candidate *wanted)
{
    for (int i = 0; i < c->n_local; i++)
        if (c->local[i].step == wanted->step && c->local[i].save == wanted->save)
            return &c->local[i];
    return NULL;
}

/* Everybody ends with rank 0's shared ones, the local ones that all have, under its own names, the sum of the damaged,
 * and the newest misfit. */
static fsdp_status join_views(comm_group *world, candidates *mine)
{
    int n = world ? comm_group_size(world) : 1;
    if (n == 1)
        return FSDP_OK;
    candidates *all = malloc((size_t)n * sizeof *all);
    size_t *bytes = malloc((size_t)n * sizeof *bytes);
    fsdp_status status = all && bytes
                             ? comm_exchange(world, "checkpoints found", mine, sizeof *mine, sizeof *mine, all, bytes)
                             : error_set(FSDP_ERR_MEMORY, "out of memory for the search of a checkpoint");
    if (status == FSDP_OK) {
        const candidates *own = &all[comm_group_rank(world)];
        *mine = all[0];
        int n_common = 0;
        for (int i = 0; i < all[0].n_local; i++) {
            bool common = true;
            for (int rank = 1; rank < n; rank++)
                common &= find_local(&all[rank], &all[0].local[i]) != NULL;
            if (!common)
                continue;
            mine->local[n_common] = *find_local(own, &all[0].local[i]);
            mine->local[n_common++].commit = all[0].local[i].commit; /* each rank counts its own: rank 0's decides */
        }
        mine->n_local = n_common;
        for (int rank = 1; rank < n; rank++) {
            mine->n_damaged += all[rank].n_damaged;
            if (all[rank].misfit_step >= 0 &&
                is_newer(all[rank].misfit_commit, all[rank].misfit_step, mine->misfit_commit, mine->misfit_step)) {
                mine->misfit_step = all[rank].misfit_step;
                mine->misfit_commit = all[rank].misfit_commit;
                mine->misfit_rank = all[rank].misfit_rank;
                mine->misfit_size = all[rank].misfit_size;
            }
        }
    }
    free(bytes);
    free(all);
    return status;
}

/* The next newest of both lists; NULL when none is left. malloc'd. */
static char *next_path(const char *directory, const candidates *c, int rank, int *shared, int *local)
{
    char *path = NULL;
    const candidate *a = &c->local[*local], *b = &c->shared[*shared];
    bool own = *local < c->n_local && (*shared == c->n_shared || is_newer(a->commit, a->step, b->commit, b->step));
    if (!own && *shared == c->n_shared)
        return NULL;
    const candidate *next = own ? &c->local[(*local)++] : &c->shared[(*shared)++];
    char *plain = ckpt_directory_path(directory, next->step, own ? rank : -1);
    if (plain && asprintf(&path, "%s%s", plain, next->suffix) < 0)
        path = NULL;
    free(plain);
    return path;
}

/* Loads on all ranks. *corrupt is then the same everywhere. */
static fsdp_status try_path(const char *path, const ckpt_load_config *config, const ckpt_state *state,
                            comm_group *world, bool *corrupt, ckpt_load_result *result)
{
    fsdp_status status = load_from(path, config, state, world, corrupt, result);
    save_outcome own;
    save_outcome_set(&own, status);
    int64_t counts[2] = {status != FSDP_OK && !*corrupt, *corrupt};
    if (world && comm_group_size(world) > 1)
        FSDP_TRY(comm_all_reduce_i64(world, "checkpoint tried", 0, FSDP_REDUCE_SUM, counts, 2));
    /* A misfit on any rank is no damage: no older checkpoint would fit better. */
    *corrupt = counts[0] == 0 && counts[1] > 0;
    return ckpt_agree(world, "checkpoint load", own.status, own.message);
}

static fsdp_status try_all(const char *directory, const ckpt_load_config *config, const ckpt_state *state,
                           comm_group *world, candidates *c, ckpt_load_result *result)
{
    int rank = world ? comm_group_rank(world) : 0, shared = 0, local = 0;
    char *path, last[600] = "";
    while ((path = next_path(directory, c, rank, &shared, &local))) {
        bool corrupt = false;
        fsdp_status status = try_path(path, config, state, world, &corrupt, result);
        if (status == FSDP_OK && rank == 0)
            log_write(FSDP_LOG_INFO, "resuming from %s (step %" PRId64 ", written by %d rank%s)", path, result->step,
                      result->world_size, result->world_size == 1 ? "" : "s");
        if (status == FSDP_OK || !corrupt) {
            free(path);
            return status;
        }
        ckpt_load_result_free(result);
        if (rank == 0)
            log_write(FSDP_LOG_WARNING, "checkpoint %s is corrupt and was skipped: %s", path, fsdp_last_error());
        snprintf(last, sizeof last, "%s", fsdp_last_error());
        c->n_damaged++;
        free(path);
    }
    *result = (ckpt_load_result){.step = -1};
    if (config->above != CKPT_ANY_STEP)
        return FSDP_OK;
    if (c->n_damaged == 0) {
        if (rank == 0)
            log_write(FSDP_LOG_INFO, "no checkpoint in %s: starting from scratch", directory);
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT,
                     "%s: all %d checkpoints there are damaged%s%s; to start over, choose another directory", directory,
                     c->n_damaged, *last ? "; the last one tried: " : "", last);
}

/* The newest checkpoint is what is asked for: where only another number of ranks can load it, neither an older one nor
 * a start from scratch is. */
static fsdp_status check_newest_fits(const char *directory, int n_ranks, const candidates *c)
{
    const candidate *a = &c->shared[0], *b = &c->local[0];
    if (c->misfit_step < 0 || (c->n_shared > 0 && !is_newer(c->misfit_commit, c->misfit_step, a->commit, a->step)) ||
        (c->n_local > 0 && !is_newer(c->misfit_commit, c->misfit_step, b->commit, b->step)))
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "%s: step %" PRId64 " is a local checkpoint of rank %d of %d, and cannot be loaded by a world of "
                     "%d; only sharded and full ones fit any world. Resume with %d rank%s, or choose another directory",
                     directory, c->misfit_step, c->misfit_rank, c->misfit_size, n_ranks, c->misfit_size,
                     c->misfit_size == 1 ? "" : "s");
}

static bool is_checkpoint(const char *path)
{
    char *manifest_path = file_join(path, MANIFEST_NAME);
    bool there = manifest_path && file_exists(manifest_path);
    free(manifest_path);
    return there;
}

fsdp_status ckpt_resume(const char *directory, const ckpt_load_config *config, const ckpt_state *state,
                        comm_group *world, ckpt_load_result *result)
{
    *result = (ckpt_load_result){.step = -1};
    int64_t direct = is_checkpoint(directory);
    if (world && comm_group_size(world) > 1)
        FSDP_TRY(comm_all_reduce_i64(world, "checkpoint path", 0, FSDP_REDUCE_MIN, &direct, 1));
    if (direct) {
        FSDP_TRY(ckpt_load(directory, config, state, world, result));
        log_write(FSDP_LOG_INFO, "resuming from %s (step %" PRId64 ")", directory, result->step);
        return FSDP_OK;
    }
    candidates *c = calloc(1, sizeof *c);
    int n_ranks = world ? comm_group_size(world) : 1;
    fsdp_status status = c ? find_own(directory, config, world ? comm_group_rank(world) : 0, n_ranks, c)
                           : error_set(FSDP_ERR_MEMORY, "%s: out of memory for the search", directory);
    status = ckpt_agree(world, "checkpoint search", status, fsdp_last_error());
    if (status == FSDP_OK)
        status = join_views(world, c);
    if (status == FSDP_OK && config->above == CKPT_ANY_STEP)
        status = check_newest_fits(directory, n_ranks, c);
    if (status == FSDP_OK)
        status = try_all(directory, config, state, world, c, result);
    free(c);
    return status;
}
