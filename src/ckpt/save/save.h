/* Saving: every rank writes its slices, rank 0 commits. A checkpoint appears under its name complete, or not at all.
 *
 * Protocol, the same for synchronous and asynchronous saves:
 *   1. start (collective): free space is checked, rank 0 makes the temporary directory, all ranks learn its name;
 *      asynchronous saves copy their slices to host memory here, and this is all that training waits for.
 *   2. each rank, without talking to others (on a background thread when asynchronous): writes its file, syncs it, and
 *      as the last thing puts its list of pieces there (rank-N.part.json), which says "this rank is done".
 *   3. rank 0, in the same place: waits for all lists, joins them into the manifest, checks that the pieces tile every
 *      tensor, writes the commit marker, syncs, renames the directory, syncs its parent; then old ones are removed.
 *   4. wait (collective): all ranks learn how it ended. After a failure the temporary directory is removed and what was
 *      committed before is untouched. */
#ifndef CKPT_SAVE_SAVE_H
#define CKPT_SAVE_SAVE_H

#include "ckpt/format/state.h"
#include "comm/comm.h"

typedef struct ckpt_save_config {
    size_t size;
    const char *directory; /* made where absent; checkpoints are "step-00000020" in it */
    fsdp_checkpoint_kind kind;
    int64_t step;
    const char *run;              /* whose it is: retention removes only what the same run wrote; may be NULL */
    const char *strategy;         /* recorded, not interpreted; may be NULL */
    const json_t *model;          /* config.json of the model; may be NULL */
    const char *tokenizer;        /* folder whose tokenizer files belong to the model and are copied; may be NULL */
    bool tokenizer_in_checkpoint; /* that folder is a checkpoint: links in it are not followed */
    const char *tokenizer_name;   /* what the manifest says of it, for people; NULL: its path */
    int64_t max_file_bytes;       /* full: parts of the model are at most this large where one tensor allows it */
    int keep;                     /* after the commit, newest complete ones to keep; 0: all */
    int64_t keep_every;           /* and those whose step is a multiple of this; 0: none */
    double part_timeout;          /* seconds that rank 0 waits for the others' parts */
    /* Called where the checkpoint was committed, on the thread that did it; its failure is the save's. May be NULL. */
    fsdp_status (*committed)(void *context, const char *path, const char *id);
    void *context;
} ckpt_save_config;

#define CKPT_SAVE_CONFIG_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(ckpt_save_config), .max_file_bytes = 5000000000, .part_timeout = 1800                           \
    }

typedef struct ckpt_save_result {
    int64_t bytes;           /* written by this rank */
    double seconds;          /* from start to commit, on this rank */
    double snapshot_seconds; /* how long start held the caller */
    char path[1024];         /* of the checkpoint */
    uint64_t save;           /* as its manifest says */
} ckpt_save_result;

/* Synchronous; collective over `world`. `result` may be NULL. The same status on all ranks. */
fsdp_status ckpt_save(const ckpt_save_config *config, const ckpt_state *state, comm_group *world,
                      ckpt_save_result *result);

/* The model alone as a Hugging Face folder (config.json, model.safetensors or its indexed parts, tokenizer files) at
 * exactly config->directory. A folder that is not empty is refused, unless it holds an earlier export and is marked as
 * one: then that export's files are replaced, and others stay. Values are rounded to `dtype`. Collective;
 * step, kind and retention are not used. */
fsdp_status ckpt_export(const ckpt_save_config *config, const ckpt_state *state, fsdp_dtype dtype, comm_group *world);

/* FSDP_OK when an export could go there; lets a caller find out before training. */
fsdp_status ckpt_export_check(const char *folder);

/* ---- Asynchronous ---- */

typedef struct ckpt_saver ckpt_saver;

/* Takes host memory for the snapshot now (the slices' bytes, resident from here on), so that saves allocate none.
 * `state` gives the sizes; its tensors, slices and context are borrowed until free. `local`: for kind local. */
fsdp_status ckpt_saver_create(const ckpt_state *state, bool local, ckpt_saver **out);
void ckpt_saver_free(ckpt_saver *s); /* joins the background thread first, as far as this rank goes; NULL is legal */

/* Collective. A save still under way is waited for first; its failure is logged and does not hinder this one (call wait
 * first to learn of it). `state` must have the slices that create saw (their data may lie elsewhere); extra is copied.
 * When start returns, training may change what the slices hold. */
fsdp_status ckpt_saver_start(ckpt_saver *s, const ckpt_save_config *config, const ckpt_state *state, comm_group *world);

/* Host memory that the snapshot takes; and what it would take for a rank that writes `bytes`. */
size_t ckpt_saver_bytes(const ckpt_saver *s);
size_t ckpt_saver_room(int64_t bytes);

/* True while a save is started and not yet waited for. */
bool ckpt_saver_active(const ckpt_saver *s);
/* True when ckpt_saver_wait would not wait for this rank's disk. Never blocks, and calls no other rank. */
bool ckpt_saver_done(const ckpt_saver *s);

/* Collective: the end of the save on all ranks, the same status everywhere. Without one under way it is FSDP_OK at once
 * (result->path is then ""). */
fsdp_status ckpt_saver_wait(ckpt_saver *s, comm_group *world, ckpt_save_result *result);

#endif
