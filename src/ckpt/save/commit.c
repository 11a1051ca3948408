/* The commit: waits until every rank's part is there, joins the lists into the manifest, and makes the directory appear
 * under its name. Runs on rank 0 (kind local: on every rank for itself), possibly on the background thread, so it talks
 * to no one: parts announce themselves by files. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/save/directory.h"
#include "ckpt/save/export_place.h"
#include "ckpt/save/folder_files.h"
#include "ckpt/save/part.h"
#include "ckpt/save/save_task.h"

static fsdp_status out_of_memory(const save_task *task)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while committing", task->temporary);
}

/* ---- Waiting for parts ---- */

static int first_rank(const save_task *task)
{
    return task->kind == FSDP_CKPT_LOCAL ? task->rank : 0;
}

static int end_rank(const save_task *task)
{
    return task->kind == FSDP_CKPT_LOCAL ? task->rank + 1 : task->world_size;
}

static fsdp_status report_failure(const char *path, int rank)
{
    char *text = NULL;
    size_t bytes;
    fsdp_status status = FSDP_ERR_PEER;
    if (file_read(path, &text, &bytes) == FSDP_OK)
        status = error_set(FSDP_ERR_PEER, "rank %d could not save its part: %s", rank, text);
    free(text);
    return status;
}

/* Sets *there; fails when the rank said that its part will not come. */
static fsdp_status look_for_part(const save_task *task, int rank, bool *there)
{
    char *part = save_task_file(task, rank, PART_SUFFIX), *failed = save_task_file(task, rank, FAILED_SUFFIX);
    fsdp_status status = part && failed ? FSDP_OK : out_of_memory(task);
    if (status == FSDP_OK) {
        *there = file_exists(part);
        if (!*there && file_exists(failed))
            status = report_failure(failed, rank);
    }
    free(part);
    free(failed);
    return status;
}

static fsdp_status wait_for_parts(save_task *task)
{
    double deadline = clock_seconds() + task->part_timeout;
    long pause_ns = 500000;
    for (int rank = first_rank(task); rank < end_rank(task);) {
        bool there = false;
        FSDP_TRY(look_for_part(task, rank, &there));
        if (there) {
            rank++;
            continue;
        }
        if (atomic_load(&task->cancelled))
            return error_set(FSDP_ERR_PEER, "%s: the save was given up: a rank could not write its part",
                             task->temporary);
        if (clock_seconds() > deadline)
            return error_set(FSDP_ERR_TIMEOUT, "%s: the part of rank %d did not come within %g s", task->temporary,
                             rank, task->part_timeout);
        owner_renew(task->owner);
        struct timespec pause = {.tv_nsec = pause_ns};
        nanosleep(&pause, NULL);
        if (pause_ns < 100000000)
            pause_ns *= 2;
    }
    return FSDP_OK;
}

/* ---- Joining them ---- */

static fsdp_status read_parts(const save_task *task, arena *memory, part_list *parts)
{
    for (int rank = first_rank(task); rank < end_rank(task); rank++) {
        char *path = save_task_file(task, rank, PART_SUFFIX);
        if (!path)
            return out_of_memory(task);
        fsdp_status status = part_list_read(path, memory, &parts[rank - first_rank(task)]);
        free(path);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* Full: all parts list the same files. Otherwise each part brings one. */
static fsdp_status join_files(const save_task *task, manifest *m, const part_list *parts, int n_parts)
{
    size_t capacity = 1;
    for (int i = 0; i < n_parts; i++)
        capacity += (size_t)parts[i].n_files;
    m->files = arena_alloc(m->memory, capacity * sizeof *m->files);
    if (!m->files)
        return out_of_memory(task);
    for (int i = 0; i < (task->layout ? 1 : n_parts); i++)
        for (int k = 0; k < parts[i].n_files; k++)
            m->files[m->n_files++] = parts[i].files[k];
    return FSDP_OK;
}

static fsdp_status declare_tensors(const save_task *task, manifest *m, int *n_pieces)
{
    const ckpt_state *state = task->state;
    m->tensors = arena_alloc(m->memory, ((size_t)state->n_tensors + 1) * sizeof *m->tensors);
    if (!m->tensors)
        return out_of_memory(task);
    for (int i = 0; i < state->n_tensors; i++) {
        const ckpt_tensor *tensor = &state->tensors[i];
        manifest_tensor *entry = &m->tensors[i];
        *entry = (manifest_tensor){
            .name = tensor->name, .role = tensor->role, .n_dims = tensor->n_dims, .numel = ckpt_tensor_numel(tensor)};
        memcpy(entry->shape, tensor->shape, sizeof entry->shape);
        entry->pieces = arena_alloc(m->memory, ((size_t)n_pieces[i] + 1) * sizeof *entry->pieces);
        if (!entry->pieces)
            return out_of_memory(task);
    }
    m->n_tensors = state->n_tensors;
    return FSDP_OK;
}

static fsdp_status join_pieces(const save_task *task, manifest *m, const part_list *parts, int n_parts)
{
    int *n_pieces = calloc((size_t)task->state->n_tensors + 1, sizeof *n_pieces);
    if (!n_pieces)
        return out_of_memory(task);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < n_parts && status == FSDP_OK; i++)
        for (int k = 0; k < parts[i].n_pieces && status == FSDP_OK; k++) {
            const part_piece *piece = &parts[i].pieces[k];
            if (piece->tensor < 0 || piece->tensor >= task->state->n_tensors || piece->file < 0 ||
                piece->file >= parts[i].n_files)
                status = error_set(FSDP_ERR_IO, "%s: the list of pieces of rank %d is damaged", task->temporary, i);
            else
                n_pieces[piece->tensor]++;
        }
    if (status == FSDP_OK)
        status = declare_tensors(task, m, n_pieces);
    for (int i = 0, file_base = 0; i < n_parts && status == FSDP_OK; i++) {
        for (int k = 0; k < parts[i].n_pieces; k++) {
            const part_piece *piece = &parts[i].pieces[k];
            manifest_tensor *tensor = &m->tensors[piece->tensor];
            tensor->pieces[tensor->n_pieces++] = (manifest_piece){.file = file_base + piece->file,
                                                                  .first = piece->first,
                                                                  .count = piece->count,
                                                                  .checksum = piece->checksum};
        }
        file_base += task->layout ? 0 : parts[i].n_files;
    }
    free(n_pieces);
    return status;
}

/* Tensors that this save leaves out (an export has no optimizer) are not part of what it describes. */
static void drop_unsaved(const save_task *task, manifest *m)
{
    int kept = 0;
    for (int i = 0; i < m->n_tensors; i++)
        if (task->roles & CKPT_ROLE_BIT(m->tensors[i].role))
            m->tensors[kept++] = m->tensors[i];
    m->n_tensors = kept;
}

static fsdp_status fill_manifest(const save_task *task, manifest *m, part_list *parts, int n_parts)
{
    char created[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    m->kind = task->kind;
    m->step = task->step;
    m->save = strtoull(task->id, NULL, 16);
    m->world_size = task->world_size;
    m->rank = task->kind == FSDP_CKPT_LOCAL ? task->rank : -1;
    m->run = task->run ? task->run : "";
    if (!task->export_only)
        FSDP_TRY(ckpt_directory_next_commit(task->root, &m->commit));
    m->strategy = task->strategy ? task->strategy : "";
    m->tokenizer = task->tokenizer_name ? task->tokenizer_name : task->tokenizer ? task->tokenizer : "";
    m->created = arena_strdup(m->memory, created);
    m->autotune = task->autotune;
    m->autotune_bytes = task->autotune_bytes;
    m->extra = task->extra ? json_incref(task->extra) : json_object();
    if (!m->created || !m->extra)
        return out_of_memory(task);
    FSDP_TRY(join_files(task, m, parts, n_parts));
    FSDP_TRY(join_pieces(task, m, parts, n_parts));
    drop_unsaved(task, m);
    return manifest_check_pieces(task->temporary, FSDP_ERR_STATE, m);
}

/* ---- Making it appear ---- */

static fsdp_status remove_lists(const save_task *task)
{
    for (int rank = first_rank(task); rank < end_rank(task); rank++) {
        char *path = save_task_file(task, rank, PART_SUFFIX);
        if (!path)
            return out_of_memory(task);
        int failed = unlink(path);
        free(path);
        if (failed)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot remove the list of rank %d", task->temporary, rank);
    }
    return FSDP_OK;
}

static int64_t parameters_numel(const ckpt_state *state)
{
    return ckpt_state_total_bytes(state, CKPT_ROLE_BIT(CKPT_PARAMETER)) / (int64_t)sizeof(float);
}

static fsdp_status write_beside(const save_task *task, manifest *m)
{
    /* A sharded checkpoint keeps the model's configuration and tokenizer for a later export: nothing is taken from
     * elsewhere then, because a manifest that says where may be anyone's. */
    if (task->model || task->layout)
        FSDP_TRY(folder_write_config(task->temporary, task->model, task->layout ? task->layout->dtype : FSDP_F32,
                                     parameters_numel(task->state)));
    if (task->layout)
        FSDP_TRY(full_layout_write_index(task->layout, task->state, task->temporary));
    if (task->kind != FSDP_CKPT_LOCAL)
        FSDP_TRY(folder_copy_tokenizer(task->tokenizer, task->tokenizer_in_checkpoint, task->temporary));
    FSDP_TRY(remove_lists(task));
    if (task->export_only)
        return export_place_mark(task->temporary);
    FSDP_TRY(folder_list_beside(task->temporary, m));
    return manifest_write(task->temporary, m);
}

static fsdp_status commit(save_task *task, manifest *m, part_list *parts)
{
    int n_parts = end_rank(task) - first_rank(task);
    FSDP_TRY(wait_for_parts(task));
    FSDP_TRY(read_parts(task, m->memory, parts));
    FSDP_TRY(fill_manifest(task, m, parts, n_parts));
    FSDP_TRY(write_beside(task, m));
    FSDP_TRY(file_sync_directory(task->temporary));
    if (task->export_only) { /* in whose place nothing may lie that is not listed */
        owner_remove(task->temporary);
        return export_place_take(task->temporary, task->final, task->id, &task->placed);
    }
    FSDP_TRY(ckpt_directory_replace(task->temporary, task->final, task->id, task->kind == FSDP_CKPT_LOCAL));
    /* Until here the file kept others from removing the directory; a name of a committed one does that now. */
    owner_remove(task->final);
    return FSDP_OK;
}

/* What cannot be removed is no reason to call the save failed. */
void save_task_prune(const save_task *task)
{
    if (task->export_only)
        return;
    bool local = task->kind == FSDP_CKPT_LOCAL;
    int rank = local ? task->rank : -1;
    fsdp_status status =
        ckpt_directory_prune(task->root, task->keep, task->keep_every, rank, NULL, task->final, false, NULL);
    if (status == FSDP_OK && local)
        status = ckpt_directory_prune_departed(task->root, task->keep, task->keep_every, rank, task->world_size);
    if (status != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "checkpoint %s is saved, but older ones could not be removed: %s", task->final,
                  fsdp_last_error());
}

fsdp_status save_task_commit(save_task *task)
{
    fsdp_status status = FSDP_OK;
    manifest *m = NULL;
    int n_parts = end_rank(task) - first_rank(task);
    if (!save_task_commits(task))
        return FSDP_OK;
    part_list *parts = calloc((size_t)n_parts + 1, sizeof *parts);
    if (parts)
        status = manifest_create(&m);
    else
        status = out_of_memory(task);
    if (status == FSDP_OK)
        status = commit(task, m, parts);
    if (status == FSDP_OK && task->committed)
        status = task->committed(task->context, task->final, task->id);
    save_outcome_set(&task->commit, status);
    free(parts);
    manifest_free(m);
    if (status == FSDP_OK && task->kind != FSDP_CKPT_LOCAL)
        save_task_prune(task);
    return status;
}
