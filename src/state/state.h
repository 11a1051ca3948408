/* The state seen from inside the library: what the command needs beyond <fsdp/state.h>. */
#ifndef STATE_STATE_H
#define STATE_STATE_H

#include <fsdp/state.h>

#include "base/host/job.h"
#include "base/json.h"
#include "ckpt/format/state.h"

/* What the saves that follow say about the model and the job. All borrowed, until the next call of this. */
typedef struct state_notes {
    const fsdp_loader *loader;  /* whose data is described; NULL: none */
    const json_t *model;        /* config.json; NULL: none */
    const json_t *flags;        /* for people; NULL: none */
    const char *tokenizer;      /* folder to copy tokenizer files from; NULL: none */
    const char *tokenizer_name; /* what the manifest says of it; NULL: its path */
    const char *run;            /* which run it is; NULL: not known */
    int64_t step_samples;       /* of a step, over all ranks; 0: not known */
    const char *fingerprint;    /* of the data; NULL or "": none */
    const json_t *lineage;      /* where it comes from, for people and for the next session; NULL: none */
} state_notes;
void state_describe(fsdp_state *s, const state_notes *notes);

/* As fsdp_resume, from any path; *found tells whether there was a checkpoint. A save under way is waited for. Those of
 * `run` (NULL: any) come first. */
fsdp_status state_resume_from(fsdp_state *s, const char *path, const char *run, bool *found, int64_t *step);
/* Only those of `run` above `step`; what is damaged is skipped, even if nothing is left. */
fsdp_status state_resume_above(fsdp_state *s, const char *path, const char *run, bool *found, int64_t *step);
/* What the checkpoint that was loaded last holds beside tensors; NULL: none was. Lives until the next load. */
const json_t *state_loaded_extra(const fsdp_state *s);

/* The run and the number of ranks that wrote it; "" and 0: none was loaded, or it does not say. */
const char *state_loaded_run(const fsdp_state *s);
int state_loaded_ranks(const fsdp_state *s);

/* A background save that is started and not yet waited for. */
bool state_is_saving(const fsdp_state *s);
/* Host memory that background saves take, from the first one on. */
size_t state_snapshot_bytes(const fsdp_state *s);
bool state_has_snapshots(const fsdp_state *s); /* one was kept in memory */

/* Snapshots in memory that outlives the ranks (ckpt/hot/hot.h). Open: FSDP_ERR_INPUT when no launcher holds memory for
 * them. Check: the same when too little of it is left for more. All but the two that ask are collective. */
fsdp_status state_open_snapshots(fsdp_state *s, const job *j);
fsdp_status state_check_snapshots(fsdp_state *s);
int64_t state_newest_snapshot(const fsdp_state *s, const char **run); /* its step, and whose it is; -1: there is none */
bool state_is_snapshotting(const fsdp_state *s);
/* Starts one in the background, after the end of the one before, whose failure is returned: training can go on. */
fsdp_status state_snapshot(fsdp_state *s, int64_t step);
fsdp_status state_finish_snapshot(fsdp_state *s);
fsdp_status state_resume_snapshot(fsdp_state *s, bool *found, int64_t *step);

/* The update of offloaded units that may still run is over: tensors can be read. */
fsdp_status state_settle(fsdp_state *s);
/* All tensors, and this rank's slices of them. */
const ckpt_state *state_tensors(const fsdp_state *s);

/* Scalars that every rank keeps for itself and that must be the same on all. */
typedef struct state_scalars {
    int64_t optimizer_steps, good_steps, micro_batches;
    double loss_scale, expected_count, lr;
} state_scalars;
state_scalars state_scalars_of(const fsdp_state *s);

/* Ranks with the same number hold the same slices of the units that several ranks hold; -1: this rank alone has its. */
int state_replica(const fsdp_state *s);
bool state_is_replicated(const fsdp_state *s, const ckpt_slice *slice); /* of such a unit */
/* Some units are updated in host memory, while the next step runs. */
bool state_is_offloaded(const fsdp_state *s);

#endif
