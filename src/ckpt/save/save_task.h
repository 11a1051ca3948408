/* One save under way: what start fixed, what the writing thread finds out. Private to save.c, saver.c, part.c, commit.c
 * and convert.c. */
#ifndef CKPT_SAVE_SAVE_TASK_H
#define CKPT_SAVE_SAVE_TASK_H

#include <stdatomic.h>

#include "ckpt/format/full_layout.h"
#include "ckpt/format/manifest.h"
#include "ckpt/save/owner.h"
#include "ckpt/save/save.h"

enum { SAVE_MESSAGE_BYTES = 1024 };

typedef struct save_outcome {
    fsdp_status status;
    char message[SAVE_MESSAGE_BYTES];
} save_outcome;

typedef struct save_task {
    fsdp_checkpoint_kind kind;
    bool export_only; /* the model alone, as a folder without manifest; kind is then FSDP_CKPT_FULL */
    fsdp_dtype dtype; /* of the model in full files */
    unsigned roles;   /* what is saved */
    int64_t step;
    int rank, world_size;
    char *run, *strategy, *tokenizer, *tokenizer_name; /* may be NULL */
    bool tokenizer_in_checkpoint;
    json_t *model, *extra;
    void *autotune; /* NULL: none */
    size_t autotune_bytes;
    int64_t max_file_bytes;
    int keep;
    int64_t keep_every;
    double part_timeout;
    fsdp_status (*committed)(void *context, const char *path, const char *id);
    void *context;

    char *root;      /* the directory that the checkpoint is a child of */
    char *final;     /* path of the checkpoint */
    char *temporary; /* path while it is written; NULL until begun */
    bool placed;     /* an export is at `final`: what has the temporary name now is not this save's */
    char id[17];     /* of this save: names the temporary directory */

    save_owner *owner; /* of the temporary directory, where save_task_commits; NULL for exports, which nobody prunes */

    const ckpt_state *state; /* borrowed */
    const float *snapshot;   /* the slices that are saved, one after another; NULL: where the state has them */
    full_layout *layout;     /* kind full */

    atomic_bool cancelled; /* another rank failed: do not wait for its part */
    save_outcome part, commit;
    int64_t bytes; /* written by this rank */
    double started;
} save_task;

/* This rank writes the manifest and renames: rank 0, or with kind local every rank for itself. */
static inline bool save_task_commits(const save_task *task)
{
    return task->kind == FSDP_CKPT_LOCAL || task->rank == 0;
}

static inline bool save_task_takes(const save_task *task, const ckpt_slice *slice)
{
    return slice->count > 0 && (slice->writes || task->kind == FSDP_CKPT_LOCAL) &&
           (task->roles & CKPT_ROLE_BIT(task->state->tensors[slice->tensor].role));
}

/* Copies what it needs from config and state; the state itself is borrowed until save_task_free. */
fsdp_status save_task_create(const ckpt_save_config *config, const ckpt_state *state, bool export_only,
                             fsdp_dtype dtype, int rank, int world_size, save_task **out);
void save_task_free(save_task *task); /* NULL is legal */

/* Step 1 of save.h. Without a world (NULL) the task is this process's alone, whatever its rank: convert.c's way to
 * write the parts of several ranks in turn; `id`, when set before, is then the save's. */
fsdp_status save_task_begin(save_task *task, comm_group *world);

/* Create and begin, with all ranks told when either fails on one. */
fsdp_status save_task_start(const ckpt_save_config *config, const ckpt_state *state, bool export_only, fsdp_dtype dtype,
                            comm_group *world, save_task **out);

/* Step 2: this rank's part. The outcome goes to task->part, and its status is returned. (part.c) */
fsdp_status save_task_write_part(save_task *task);

/* Step 3, where save_task_commits; elsewhere nothing. The outcome goes to task->commit. (commit.c) */
fsdp_status save_task_commit(save_task *task);

/* Removes what retention no longer wants, after a commit. Kind local is not committed before every rank has its own:
 * a rank that removed the step before any earlier could leave none that all have. (commit.c) */
void save_task_prune(const save_task *task);

/* What all ranks agreed on: fills the result, or removes what was written. Returns `status`. */
fsdp_status save_task_end(save_task *task, fsdp_status status, ckpt_save_result *result);

void save_outcome_set(save_outcome *outcome, fsdp_status status); /* with this thread's message */

/* All ranks get the status and message of the first rank that failed. `world` may be NULL. */
fsdp_status ckpt_agree(comm_group *world, const char *label, fsdp_status status, const char *message);

#define BEGIN_LABEL "checkpoint begin"
#define PARTS_LABEL "checkpoint parts"
#define COMMIT_LABEL "checkpoint commit"

/* ---- Names of files in a checkpoint under way ---- */
char *save_task_file(const save_task *task, int rank,
                     const char *suffix); /* ".../rank-00003<suffix>"; malloc'd or NULL */
#define PART_SUFFIX ".part.json"
#define FAILED_SUFFIX ".failed"
#define SHARD_SUFFIX ".safetensors"

#endif
