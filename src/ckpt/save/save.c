/* Synchronous saves and exports, and the beginning and end that they share with asynchronous ones: agreement among the
 * ranks, the temporary directory, the check for free space. Writing is part.c's, the commit commit.c's. */
#include "ckpt/save/save.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/record/hooks.h"
#include "ckpt/save/directory.h"
#include "ckpt/save/export_place.h"
#include "ckpt/save/save_task.h"

void save_outcome_set(save_outcome *outcome, fsdp_status status)
{
    outcome->status = status;
    snprintf(outcome->message, sizeof outcome->message, "%s", status == FSDP_OK ? "" : fsdp_last_error());
}

/* ---- Agreement ---- */

typedef struct vote {
    int32_t status;
    char id[17];
    char message[SAVE_MESSAGE_BYTES];
} vote;

/* Every rank's votes; on a failure the first failed rank's becomes every rank's. `id`: rank 0's, may be NULL. */
static fsdp_status exchange_votes(comm_group *world, const char *label, const vote *mine, char *id)
{
    int n = comm_group_size(world);
    vote *votes = malloc((size_t)n * sizeof *votes);
    size_t *bytes = malloc((size_t)n * sizeof *bytes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (votes && bytes)
        status = comm_exchange(world, label, mine, sizeof *mine, sizeof *mine, votes, bytes);
    else
        error_set(status, "out of memory for the agreement on a checkpoint");
    if (status == FSDP_OK && id)
        memcpy(id, votes[0].id, sizeof votes[0].id);
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        if (votes[i].status == FSDP_OK)
            continue;
        status = (fsdp_status)votes[i].status;
        if (i == comm_group_rank(world) || strncmp(votes[i].message, "rank ", 5) == 0)
            error_set(status, "%s", votes[i].message);
        else
            error_set(status, "rank %d: %s", i, votes[i].message);
    }
    free(bytes);
    free(votes);
    return status;
}

fsdp_status ckpt_agree(comm_group *world, const char *label, fsdp_status status, const char *message)
{
    if (!world || comm_group_size(world) == 1) {
        if (status != FSDP_OK && message != fsdp_last_error())
            error_set(status, "%s", message);
        return status;
    }
    vote mine = {.status = status};
    snprintf(mine.message, sizeof mine.message, "%s", status == FSDP_OK ? "" : message);
    return exchange_votes(world, label, &mine, NULL);
}

/* ---- The task ---- */

static fsdp_status out_of_memory(void)
{
    return error_set(FSDP_ERR_MEMORY, "out of memory for a save");
}

static bool copy_text(const char *text, char **out)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

static bool copy_json(const json_t *value, json_t **out)
{
    *out = value ? json_deep_copy(value) : NULL;
    return !value || *out;
}

static bool copy_autotune(save_task *task, const ckpt_state *state)
{
    if (state->autotune_bytes == 0)
        return true;
    task->autotune = malloc(state->autotune_bytes);
    if (!task->autotune)
        return false;
    memcpy(task->autotune, state->autotune, state->autotune_bytes);
    task->autotune_bytes = state->autotune_bytes;
    return true;
}

/* "a/b/" and "a/b" are the same; the parent of an export is where its temporary directory goes. */
static fsdp_status name_places(save_task *task, const char *directory)
{
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/')
        length--;
    if (length == 0)
        return error_set(FSDP_ERR_INPUT, "a checkpoint needs a directory");
    /* Of an export that is there, the folder itself: a link to it stays a link. */
    char *plain =
        task->export_only && file_is_directory(directory) ? realpath(directory, NULL) : strndup(directory, length);
    if (!plain)
        return error_set_errno(FSDP_ERR_MEMORY, "%s: no path to save to", directory);
    if (!task->export_only) {
        task->root = plain;
        task->final = ckpt_directory_path(plain, task->step, task->kind == FSDP_CKPT_LOCAL ? task->rank : -1);
    } else {
        const char *slash = strrchr(plain, '/');
        task->final = plain;
        task->root = slash ? strndup(plain, slash == plain ? 1 : (size_t)(slash - plain)) : strdup(".");
    }
    return task->root && task->final ? FSDP_OK : out_of_memory();
}

static fsdp_status fill_task(save_task *task, const ckpt_save_config *config)
{
    const ckpt_state *state = task->state;
    if (config->size != sizeof *config || !config->directory || config->step < 0)
        return error_set(FSDP_ERR_STATE, "a save needs CKPT_SAVE_CONFIG_INIT, a directory and a step");
    FSDP_TRY(ckpt_state_check(state));
    task->step = config->step;
    task->max_file_bytes = config->max_file_bytes;
    task->tokenizer_in_checkpoint = config->tokenizer_in_checkpoint;
    task->keep = config->keep;
    task->keep_every = config->keep_every;
    task->part_timeout = config->part_timeout;
    task->committed = config->committed;
    task->context = config->context;
    if (!copy_text(config->run, &task->run) || !copy_text(config->strategy, &task->strategy) ||
        !copy_text(config->tokenizer, &task->tokenizer) || !copy_text(config->tokenizer_name, &task->tokenizer_name) ||
        !copy_json(config->model, &task->model) || !copy_json(state->extra, &task->extra) ||
        !copy_autotune(task, state))
        return out_of_memory();
    FSDP_TRY(name_places(task, config->directory));
    if (task->kind != FSDP_CKPT_FULL)
        return FSDP_OK;
    return full_layout_create(state, task->roles, task->dtype, task->max_file_bytes, &task->layout);
}

fsdp_status save_task_create(const ckpt_save_config *config, const ckpt_state *state, bool export_only,
                             fsdp_dtype dtype, int rank, int world_size, save_task **out)
{
    save_task *task = calloc(1, sizeof *task);
    if (!task)
        return out_of_memory();
    task->kind = export_only ? FSDP_CKPT_FULL : config->kind;
    task->export_only = export_only;
    task->dtype = dtype;
    task->roles = export_only ? CKPT_ROLES_MODEL : CKPT_ROLES_ALL;
    task->rank = rank;
    task->world_size = world_size;
    task->state = state;
    task->started = clock_seconds();
    fsdp_status status = fill_task(task, config);
    if (status != FSDP_OK) {
        save_task_free(task);
        return status;
    }
    *out = task;
    return FSDP_OK;
}

void save_task_free(save_task *task)
{
    if (!task)
        return;
    owner_release(task->owner);
    full_layout_free(task->layout);
    json_decref(task->model);
    json_decref(task->extra);
    free(task->autotune);
    free(task->run);
    free(task->strategy);
    free(task->tokenizer);
    free(task->tokenizer_name);
    free(task->temporary);
    free(task->final);
    free(task->root);
    free(task);
}

char *save_task_file(const save_task *task, int rank, const char *suffix)
{
    char name[64];
    snprintf(name, sizeof name, "rank-%05d%s", rank, suffix);
    return file_join(task->temporary, name);
}

/* ---- Begin ---- */

/* Room for the data, and a little for headers and manifest. A file system that does not tell is believed to have it. */
static fsdp_status check_space(const save_task *task)
{
    struct statvfs info;
    int64_t wanted = task->layout                    ? task->layout->bytes
                     : task->kind == FSDP_CKPT_LOCAL ? ckpt_state_bytes(task->state, true)
                                                     : ckpt_state_total_bytes(task->state, task->roles);
    wanted += wanted / 1000 + (64 << 10);
    if (statvfs(task->root, &info) != 0 || info.f_blocks == 0)
        return FSDP_OK;
    double available = (double)info.f_bavail * (double)info.f_frsize;
    if (available >= (double)wanted)
        return FSDP_OK;
    return error_set(FSDP_ERR_IO,
                     "%s: a checkpoint takes %.1f MiB, but only %.1f MiB are free there; free some space, keep fewer "
                     "checkpoints, or choose another directory",
                     task->root, (double)wanted / 1048576, available / 1048576);
}

static void choose_id(char *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t hash = hash_u64(HASH_START, (uint64_t)now.tv_sec);
    hash = hash_u64(hash_u64(hash, (uint64_t)now.tv_nsec), (uint64_t)getpid());
    snprintf(id, 17, "%016" PRIx64, hash);
}

static fsdp_status make_places(save_task *task)
{
    if (task->export_only) {
        FSDP_TRY(export_place_check(task->final));
        export_place_sweep(task->final);
    }
    FSDP_TRY(file_make_directories(task->root));
    FSDP_TRY(check_space(task));
    if (mkdir(task->temporary, 0777) != 0)
        return error_set_errno(errno == EACCES || errno == EROFS ? FSDP_ERR_INPUT : FSDP_ERR_IO,
                               "%s: cannot make this directory", task->temporary);
    FSDP_TRY(owner_take(task->temporary, &task->owner));
    return task->layout ? full_layout_make_files(task->layout, task->temporary) : FSDP_OK;
}

static fsdp_status name_temporary(save_task *task)
{
    if (asprintf(&task->temporary, "%s.tmp-%s", task->final, task->id) >= 0)
        return FSDP_OK;
    task->temporary = NULL;
    return out_of_memory();
}

static void remove_temporary(const save_task *task)
{
    if (task->temporary && save_task_commits(task) && !task->placed)
        (void)file_remove_tree(task->temporary);
}

static fsdp_status keep_failure(const save_task *task, fsdp_status status)
{
    save_outcome failure;
    save_outcome_set(&failure, status);
    remove_temporary(task);
    return error_set(status, "%s", failure.message);
}

fsdp_status save_task_begin(save_task *task, comm_group *world)
{
    fsdp_status status = FSDP_OK;
    vote mine = {0};
    /* Rank 0 makes the directory before the others hear of it, so no rank ever looks for it in vain. */
    if (task->rank == 0 || !world) {
        if (!task->id[0])
            choose_id(task->id);
        status = name_temporary(task);
        if (status == FSDP_OK && save_task_commits(task))
            status = make_places(task);
    }
    if (world && comm_group_size(world) > 1) {
        memcpy(mine.id, task->id, sizeof mine.id);
        mine.status = status;
        snprintf(mine.message, sizeof mine.message, "%s", status == FSDP_OK ? "" : fsdp_last_error());
        TRY_OR(fail, exchange_votes(world, BEGIN_LABEL, &mine, task->id));
        if (task->rank != 0)
            status = name_temporary(task);
        if (task->kind == FSDP_CKPT_LOCAL) {
            if (task->rank != 0 && status == FSDP_OK)
                status = make_places(task);
            status = ckpt_agree(world, "checkpoint directories", status, fsdp_last_error());
        }
    }
    if (status == FSDP_OK)
        return FSDP_OK;
fail:
    return keep_failure(task, status);
}

fsdp_status save_task_start(const ckpt_save_config *config, const ckpt_state *state, bool export_only, fsdp_dtype dtype,
                            comm_group *world, save_task **out)
{
    save_task *task = NULL;
    int rank = world ? comm_group_rank(world) : 0, world_size = world ? comm_group_size(world) : 1;
    fsdp_status status = save_task_create(config, state, export_only, dtype, rank, world_size, &task);
    if (status != FSDP_OK) /* the others wait for this rank in begin: they are told there */
        return ckpt_agree(world, BEGIN_LABEL, status, fsdp_last_error());
    status = save_task_begin(task, world);
    if (status != FSDP_OK) {
        save_task_free(task);
        return status;
    }
    *out = task;
    return FSDP_OK;
}

/* ---- End ---- */

fsdp_status save_task_end(save_task *task, fsdp_status status, ckpt_save_result *result)
{
    if (status != FSDP_OK)
        return keep_failure(task, status);
    if (task->kind == FSDP_CKPT_LOCAL) {
        ckpt_directory_forget(task->final, task->id);
        save_task_prune(task);
    }
    if (result) {
        result->bytes = task->bytes;
        result->seconds = clock_seconds() - task->started;
        result->save = strtoull(task->id, NULL, 16);
        snprintf(result->path, sizeof result->path, "%s", task->final);
    }
    return FSDP_OK;
}

static fsdp_status save_now(save_task *task, comm_group *world, ckpt_save_result *result)
{
    HOOK(HOOK_PHASE, HOOK_BEGIN, "checkpoint", NULL, 0, 0);
    save_task_write_part(task);
    fsdp_status status = ckpt_agree(world, PARTS_LABEL, task->part.status, task->part.message);
    if (status == FSDP_OK) {
        save_task_commit(task);
        status = ckpt_agree(world, COMMIT_LABEL, task->commit.status, task->commit.message);
    }
    status = save_task_end(task, status, result);
    HOOK(HOOK_PHASE, HOOK_END, "checkpoint", NULL, task->bytes, 0);
    save_task_free(task);
    return status;
}

fsdp_status ckpt_save(const ckpt_save_config *config, const ckpt_state *state, comm_group *world,
                      ckpt_save_result *result)
{
    save_task *task = NULL;
    if (result)
        *result = (ckpt_save_result){0};
    FSDP_TRY(save_task_start(config, state, false, FSDP_F32, world, &task));
    return save_now(task, world, result);
}

fsdp_status ckpt_export_check(const char *folder)
{
    return export_place_check(folder);
}

fsdp_status ckpt_export(const ckpt_save_config *config, const ckpt_state *state, fsdp_dtype dtype, comm_group *world)
{
    save_task *task = NULL;
    if (dtype != FSDP_F32 && dtype != FSDP_BF16 && dtype != FSDP_F16)
        return error_set(FSDP_ERR_INPUT, "a model is exported as fp32, bf16 or fp16, not as %s",
                         fsdp_dtype_name(dtype));
    FSDP_TRY(save_task_start(config, state, true, dtype, world, &task));
    return save_now(task, world, NULL);
}
