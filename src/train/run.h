/* A training job: everything that is open while it runs. run.c opens and closes it, loop.c steps, validate.c measures,
 * checkpoints.c saves and resumes, report.c reports. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include <fsdp/data.h>
#include <fsdp/train.h>

#include "comm/world.h"
#include "plan/assemble.h"
#include "state/state.h"
#include "train/builtin_text.h"
#include "train/report.h"
#include "train/run_folder.h"

struct train_run {
    const fsdp_settings *settings; /* &used */
    fsdp_settings used;            /* as the user gave them, then with what followed from model, data and memory */
    char *init_from;               /* the path that --init_from names */
    const char *hub_model;         /* the name that it was, of the hub; NULL: it was a path */
    fsdp_train_callbacks callbacks;
    fsdp_train_result result;

    fsdp_world *world;
    device *described; /* --dry_run: the GPU that is planned for; NULL: the world's device is */
    int rank, n_ranks;
    fsdp_tokenizer *tokenizer;       /* NULL: none needed, or none that can be read */
    char no_tokenizer[512];          /* why not; "" otherwise */
    char **mix_names;                /* the sources of --dataset, without their weights */
    double *mix_weights;             /* 0: they have none */
    fsdp_dataset *data, *validation; /* validation NULL: none */
    fsdp_dataset_info info, validation_info;

    model_source source; /* where the model's configuration came from */
    model_config model_config;
    workload work; /* its steps in shapes, for plans */
    assembled_sharding sharding;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_lr_config lr;
    fsdp_loader *loader;
    report *report;

    run_folder folder;
    int folder_locks[2];  /* of the folder and of --checkpoint_dir; -1: none */
    char fingerprint[17]; /* of the data; "": a stream, which compares its files */
    int builtin_text;     /* the file that it is; -1: other data */
    char builtin_path[BUILTIN_TEXT_PATH];
    const char *builtin_items[1]; /* that path */
    json_t *lineage;              /* the run and the step that this one began from; NULL: from nothing */
    fsdp_state *state;            /* saves and resumes model, optimizer and position */
    double last_save;             /* clock_seconds of the last save, or of the start */
    int64_t last_saved_step;      /* of the last save that ended well or is under way */
    int64_t snapshot_step;        /* at which the newest snapshot was started, or this round */
    bool snapshot_soon;           /* after the next step: copies may have gone with a node, or the last one failed */
    bool snapshot_failed;         /* the last one */
    bool no_snapshots;            /* memory for more is short */
    bool snapshot_lost;           /* one was there, and could not be loaded */
    fsdp_status save_status;      /* how the last save ended, and with which message */
    char save_message[1024];

    int64_t micro_samples;     /* of a micro-batch, over all ranks */
    int64_t n_steps;           /* the value of `step` at which the run ends */
    int64_t steps_per_epoch;   /* with this world size */
    int64_t schedule_offset;   /* step + this is the position in the learning-rate schedule */
    int64_t step;              /* optimizer steps done, over the job's whole life */
    int64_t position;          /* position in the data: a global sample index */
    int64_t previous_position; /* before the last step */
    int64_t tokens, samples;   /* of this run, over all ranks */
    double start;
    bool stopping;
    bool measures;            /* nothing is trained: the validation data is all there is */
    int64_t furthest_failure; /* the last step whose numbers were not finite, and how often the run came back to it */
    int n_rollbacks;
    int agreed_slice; /* where the next comparison of replicas begins: a slice of the state, and an element of it */
    int64_t agreed_element;
    char misfit[512]; /* --dry_run: why the job would not start here; "" when it would */
};

fsdp_status run_open(const fsdp_settings *settings, const fsdp_train_callbacks *callbacks, train_run *run);
void run_close(train_run *run);

/* Decides when the run and its schedule end, from the present position. With --epochs that depends on the position in
 * the data: steps made at another world size had another number of samples. The schedule goes on where a run of this
 * world size would be at that position. */
fsdp_status run_plan_length(train_run *run);

/* Passes over the data so far; 0 while a stream's first has not ended. */
double run_epochs(const train_run *run);

/* One line through the callback, from rank 0 (warnings from every rank, with its number). */
void run_say(train_run *run, fsdp_line kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Which device on how many ranks plans are made for. */
plan_world run_plan_world(const train_run *run);

/* The model that --init_from or --model_config names: its path, its configuration, its architecture. */
fsdp_status run_find_model(train_run *run);
/* The vocabulary that the tokenizer and the data need; 0: neither has one. */
int64_t run_vocabulary(const train_run *run);

/* run_data.c. The tokenizer, the training data and the validation data; rank 0 reports bad records. */
fsdp_status run_open_data(train_run *run);
/* Lines of a summary: what came from which source, and what packing left empty. */
void run_say_sources(train_run *run);
/* Warnings of the library as lines of rank 0, while the run is being opened and its log files do not exist yet. */
void run_show_warnings(train_run *run, bool shown);

/* --download: models and tokenizers that the settings name and only the hub has. The ranks of a host wait for one of
 * them. */
fsdp_status run_download(train_run *run);

/* together.c. Work without collectives for which ranks wait for each other as long as it takes; `doing` says what it is
 * ("downloading"). `work` runs on a thread of its own and should end soon once *stop is true. */
typedef fsdp_status (*together_work)(train_run *run, const atomic_bool *stop);
fsdp_status run_together(train_run *run, const char *doing, together_work work);

/* start.c. What the run is about to do, in one block; whether the data is that of the checkpoint. */
fsdp_status run_say_start(train_run *run);
/* What files of other tools say that has no meaning here. */
void run_say_notes(train_run *run);
fsdp_status run_fingerprint(train_run *run);
void run_compare_fingerprint(train_run *run, const char *resumed); /* "checkpoint", "snapshot" */
void run_warn_vocabulary(train_run *run);

/* dry_run.c. The plan and the settings, instead of a run. */
fsdp_status run_dry(train_run *run);

/* loop.c */
fsdp_status run_steps(train_run *run);

/* validate.c. Means over the validation data (or its first validation_batches), the same numbers on all ranks. */
typedef struct validation_means {
    double loss, accuracy; /* accuracy: NaN where it is not counted */
    double count;          /* tokens or images that were predicted */
} validation_means;
fsdp_status run_validate(train_run *run, validation_means *out);
/* Sets how many samples packed validation data has, of those that validation reads. */
fsdp_status run_count_validation(train_run *run);

/* fp8_check.c. Makes a shadow step of the batch that begins a step, when one is due. */
fsdp_status run_fp8_check(train_run *run, const fsdp_batch *batch);

/* checkpoints.c */
fsdp_status run_resume(train_run *run);
/* Saves when the policy says so (`at_end`: the last one). */
fsdp_status run_checkpoint(train_run *run, bool at_end);
/* Starts a snapshot when one is due. */
fsdp_status run_keep_snapshot(train_run *run);
/* After a loss or gradient that is not finite: goes back to the last checkpoint, but not in the data, so that the
 * samples that caused it are left out. */
fsdp_status run_rollback(train_run *run);
fsdp_status run_finish_checkpoints(train_run *run); /* waits for the last, exports */

/* sample.c. A few hundred characters that the model writes by itself, on rank 0; NULL for models that do not write.
 * malloc'd. `prompt` is one, or "@FILE": each of its lines is one, and they are written side by side. */
fsdp_status run_sample(train_run *run, const char *prompt, int64_t n_tokens, char **text);

#endif
