/* Directories of checkpoints: names, what state each is in, and which to keep.
 *
 *     step-00000020              complete, of all ranks
 *     step-00000020.rank-00003   complete, kind local, of rank 3
 *     *.tmp-<id>                 being written, or left by a save that did not finish
 *     *.old-<id>                 replaced by one of the same step, about to be removed; still complete
 *     *.gone-<id>                being removed */
#ifndef CKPT_SAVE_DIRECTORY_H
#define CKPT_SAVE_DIRECTORY_H

#include "ckpt/format/manifest.h"

typedef enum ckpt_condition {
    CKPT_COMPLETE,   /* committed; its files are there with their sizes (checksums are another matter) */
    CKPT_INCOMPLETE, /* a save that did not finish */
    CKPT_CORRUPT,    /* committed once, damaged since */
} ckpt_condition;

const char *ckpt_condition_name(ckpt_condition condition);

typedef struct ckpt_entry {
    char *path;
    const char *name; /* the last part of path */
    int64_t step;
    int rank;                 /* kind local: whose; else -1 */
    uint64_t save;            /* which save it is of; 0 until ckpt_entry_check, and when not known */
    int64_t commit;           /* its place among the commits of the directory; likewise */
    char run[40];             /* that wrote it; "" likewise */
    int world_size;           /* ranks that wrote it; likewise */
    bool temporary;           /* being written or removed */
    bool unfinished;          /* of these: a save, under way or abandoned */
    ckpt_condition condition; /* as far as the name tells; ckpt_entry_check looks inside */
    char reason[512];         /* why it is not complete */
} ckpt_entry;

typedef struct ckpt_listing {
    int n_entries;
    ckpt_entry *entries; /* highest step first; of one step, the proper name before replaced ones */
} ckpt_listing;

/* A directory that does not exist lists nothing. Names that are not ours are left out. */
fsdp_status ckpt_directory_list(const char *directory, ckpt_listing *out);
void ckpt_listing_free(ckpt_listing *listing); /* legal on a zeroed one */

/* Reads marker and manifest, and sets condition and reason. */
void ckpt_entry_check(ckpt_entry *entry);

/* Checks all entries and puts the newest commit first: a run that went back to an earlier step has its newest below
 * its highest. Clocks do not count. Those of earlier versions, which did not count commits, come last, by step. Those
 * of `run` (NULL: of none) come before all others, and their commits count from MANIFEST_MAX_COUNT on. */
void ckpt_listing_by_commit(ckpt_listing *listing, const char *run);

/* The number of the next commit in the directory. */
fsdp_status ckpt_directory_next_commit(const char *directory, int64_t *out);

/* "<directory>/step-00000020[.rank-00003]"; malloc'd, NULL when out of memory. */
char *ckpt_directory_path(const char *directory, int64_t step, int rank);

/* The last part of the path is the name of a committed checkpoint. */
bool ckpt_directory_is_name(const char *path);

/* Puts the directory `temporary` at `final`; what was there is there until then, and removed after. Syncs the parent.
 * `keep_old`: it is left at "<final>.old-<id>", until ckpt_directory_forget: kind local, whose other ranks may yet
 * fail. */
fsdp_status ckpt_directory_replace(const char *temporary, const char *final, const char *id, bool keep_old);
void ckpt_directory_forget(const char *final, const char *id);

/* What prune does, or with dry_run would do. */
typedef struct ckpt_prune_result {
    int n_kept, n_removed;
    char **removed; /* paths */
} ckpt_prune_result;

/* Removes all but the `keep` newest complete checkpoints (0: keeps all) and those whose step is a multiple of
 * `keep_every` (0: none more), and what unfinished saves left whose owner is gone (owner.h). `written` (a path, may be
 * NULL) was written just now: it stays. What other runs than `run` wrote (NULL: than that of `written`, or, without
 * either, than any) is neither counted nor removed. Without any complete
 * checkpoint nothing is removed. `rank`: those of kind local of this rank (-1: those of all ranks). A checkpoint is
 * renamed before it is taken apart, so none is ever found half removed under its name. result may be NULL. */
fsdp_status ckpt_directory_prune(const char *directory, int keep, int64_t keep_every, int rank, const char *run,
                                 const char *written, bool dry_run, ckpt_prune_result *result);
/* Kind local, after the prune of `rank`: parts of ranks that a job of `world_size` ranks does not have, of which this
 * rank takes every world_size-th. They go where this rank has a checkpoint of the same step from another save, or keeps
 * none as old; others may be part of a checkpoint that is whole. */
fsdp_status ckpt_directory_prune_departed(const char *directory, int keep, int64_t keep_every, int rank,
                                          int world_size);
void ckpt_prune_result_free(ckpt_prune_result *result); /* legal on a zeroed one */

#endif
