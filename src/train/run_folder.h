/* The folder of a run: which one it is, whose it is, and that nobody else trains in it. run_folder.c decides before
 * anything is opened; folder_claim.c takes it when everything else is open. */
#ifndef TRAIN_RUN_FOLDER_H
#define TRAIN_RUN_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct train_run train_run;

#define RUN_FILE "run.json"
#define RUN_FOLDERS "fsdp_runs" /* where folders without a name of the user's are made */

enum { RUN_ID_BYTES = 17 };

/* The same on all ranks: rank 0 looks and decides. */
typedef struct run_folder {
    char path[PATH_MAX];        /* --output_dir, or a name of its own */
    char checkpoints[PATH_MAX]; /* where this run saves */
    char resume[PATH_MAX];      /* where it resumes from: a checkpoint or a folder of them; "": it starts */
    char run[40];               /* its name, also in its checkpoints */
    bool known;                 /* `run` is the name of what lies in the folder already */
    bool named;                 /* by us: `latest` is to point at it */
    bool goes_on;               /* `resume` is this run's own: what lies in the folder is its past */
    bool went_back;       /* `resume` is one checkpoint of this run, named by the user: later ones may be given up */
    bool began_elsewhere; /* `resume` is another run's, although this one goes on: it has saved nothing yet */
    bool restarted;       /* the launcher started it again, and nobody said where to resume */
} run_folder;

/* Collective. FSDP_ERR_INPUT when the folder holds another run and nothing says what to do with it, and when what was
 * to be resumed cannot be this run's. */
fsdp_status run_folder_choose(train_run *run);

/* A run has left something here: steps in metrics.jsonl, or checkpoints. `what` gets a few words on it. */
bool run_folder_holds_run(const char *path, const char *checkpoints, char *what, size_t bytes);

/* The number that the first checkpoint of the folder's newest job got or gets; 0 when run.json does not say. */
int64_t run_folder_first_commit(const char *folder);

/* FSDP_ERR_INPUT when a job trains there now, with who it is. Takes nothing. */
fsdp_status run_folder_check_free(const char *folder);

/* Collective, when everything is open and the run knows where it begins. Locks the folder, removes the former run with
 * --overwrite, and writes run.json. */
fsdp_status run_folder_claim(train_run *run);
/* Notes in run.json how this session ended: "finished", "stopped" or "failed", and why. Rank 0, where it has claimed
 * the folder. What cannot be written is a warning. */
void run_folder_end(const train_run *run, const char *how, const char *reason);
/* Gives the lock up. */
void run_folder_leave(train_run *run);

#endif
