/* State: saving, resuming and loading a model with everything that belongs to its training.
 *
 *     fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
 *     config.model = model;
 *     config.optimizer = optimizer;
 *     config.directory = "run";
 *     fsdp_state_open(&config, &state);
 *     fsdp_state_integer(state, "epoch", &epoch);
 *     fsdp_resume(state, &step);                      // the newest complete one in "run"; 0 when there is none
 *     for (; step < steps; step++) {
 *         ...
 *         if (step % 100 == 99)
 *             fsdp_save_async(state, step + 1);
 *     }
 *     fsdp_save(state, step);
 *     fsdp_state_close(state);
 *
 * A checkpoint holds parameters, persistent buffers, the optimizer's moments, learning rate and number of steps, the
 * loss scale, the position in the random streams, the data's position and the caller's own values. It appears under its
 * name ("run/step-00000100") complete or not at all. docs/checkpoint-format.md describes the files.
 *
 * Functions marked collective are called by every rank, with the same arguments, and return the same status on all. */
#ifndef FSDP_STATE_H
#define FSDP_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/kinds.h>
#include <fsdp/optim.h>
#include <fsdp/shard.h>
#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_state fsdp_state;
typedef struct fsdp_loader fsdp_loader; /* of <fsdp/data.h> */

/* The position in the data, for a program that reads its data itself: a number that only it understands, such as the
 * index of the next sample. */
typedef struct fsdp_data_position {
    int64_t (*get)(void *context);                       /* the number to save; NULL: none is saved */
    fsdp_status (*set)(void *context, int64_t position); /* go there: called while a checkpoint is loaded */
    void *context;
} fsdp_data_position;

typedef struct fsdp_state_config {
    size_t size;
    fsdp_model *model;
    fsdp_optimizer *optimizer; /* of that model; NULL: checkpoints have no optimizer state, and none is loaded */
    fsdp_loader *loader;       /* its position is saved and restored; NULL: `position` below, or none */
    const char *directory;     /* of checkpoints, created if missing; NULL: only fsdp_save_as, fsdp_load, fsdp_export */
    fsdp_checkpoint_kind kind;
    int keep;                    /* newest complete checkpoints to keep after a save; 0: all */
    int64_t keep_every;          /* also keep those whose step is a multiple of this; 0: none */
    fsdp_data_position position; /* instead of a loader */
    const char *model_json; /* text of the model's config.json, for full checkpoints and exports; NULL: written for the
                               library's models (fsdp/models.h); others are "fsdp-custom" there */
    const char *tokenizer;  /* folder with tokenizer files, copied into full checkpoints and exports; NULL: none */
    int64_t max_file_bytes; /* full checkpoints and exports: split a larger model into several files with an index */
    /* Of a model of which adapters alone are trained, and whose other weights fsdp_weights_load gave it: checkpoints
     * refer to those weights by this name instead of holding them ("": by the path that they came from), but for kind
     * full. Resuming from one needs a model with the same weights, by their digest. NULL: checkpoints hold everything.
     */
    const char *base;
} fsdp_state_config;

#define FSDP_STATE_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_state_config), .kind = FSDP_CKPT_SHARDED, .max_file_bytes = 5000000000                     \
    }

/* Borrows model, optimizer, loader and the position's context until close; texts are copied. Collective. */
FSDP_API fsdp_status fsdp_state_open(const fsdp_state_config *config, fsdp_state **out);
/* Waits for this rank's part of a save under way. Call fsdp_save_wait first to learn how it ended. Call this before the
 * optimizer and the model are freed; NULL is legal. */
FSDP_API void fsdp_state_close(fsdp_state *s);

/* ---- Values of one's own ----
 *
 * Each is saved from, and loaded into, the caller's memory, which is borrowed until close. Values are the same on all
 * ranks: rank 0's are saved (kind local: each rank's). A checkpoint that lacks a registered value is refused, so
 * register what older checkpoints may lack after resuming; values that are not registered are named in a warning. Not
 * collective. */

/* A number by this name, at most once. */
FSDP_API fsdp_status fsdp_state_number(fsdp_state *s, const char *name, double *value);
/* A whole number, likewise. */
FSDP_API fsdp_status fsdp_state_integer(fsdp_state *s, const char *name, int64_t *value);
/* Any bytes, at most 4 MiB; a checkpoint must have as many. */
FSDP_API fsdp_status fsdp_state_blob(fsdp_state *s, const char *name, void *data, size_t bytes);

/* ---- Saving; all collective ----
 *
 * `step` names the checkpoint and is what resuming returns. A save that fails leaves earlier checkpoints as they are.
 * Whatever these and the functions below are asked for, they do, also after a background save has failed; that failure
 * is then what the call returns, and its message says that the call's own work is done. */

/* Returns when the checkpoint is complete. */
FSDP_API fsdp_status fsdp_save(fsdp_state *s, int64_t step);
/* Returns when everything is copied to host memory, which the first call allocates; a thread writes it. Waits first for
 * a save that is still under way. A failure is returned by the next call on `s`. */
FSDP_API fsdp_status fsdp_save_async(fsdp_state *s, int64_t step);
/* Waits for the save under way and returns how it ended; FSDP_OK at once when there is none. */
FSDP_API fsdp_status fsdp_save_wait(fsdp_state *s);
/* Writes one checkpoint of any kind to another directory, and removes none there. Returns when it is complete. */
FSDP_API fsdp_status fsdp_save_as(fsdp_state *s, const char *directory, fsdp_checkpoint_kind kind, int64_t step);
/* Writes the model alone, in fp32, to `folder`: model.safetensors (or its parts), with config.json (see model_json) and
 * the tokenizer if the configuration has one. Tensors have the model's names, which are Hugging Face's for the
 * library's models. An earlier export there is replaced, any other folder that is not empty is refused. */
FSDP_API fsdp_status fsdp_export(fsdp_state *s, const char *folder);

/* The checkpoint that was saved or loaded last, as a path; "" when none was. The state owns it; valid until the next
 * call. */
FSDP_API const char *fsdp_state_path(const fsdp_state *s);

/* ---- Loading; all collective ----
 *
 * After a failure the model's values may be a mixture: load another checkpoint, or end. */

/* Loads the newest complete checkpoint of the directory, whatever number of ranks and strategy wrote it (one of kind
 * local that another number of ranks wrote is refused); damaged ones are skipped with a warning. *step is its step, and
 * 0 when there is none: then nothing is changed. */
FSDP_API fsdp_status fsdp_resume(fsdp_state *s, int64_t *step);
/* Loads that checkpoint, or the newest complete one of a directory; it is an error if there is none. step may be NULL.
 */
FSDP_API fsdp_status fsdp_load(fsdp_state *s, const char *checkpoint, int64_t *step);

/* ---- Weights by names ---- */

/* For a parameter or buffer that has another name in the file. One '*' on each side stands for any text, the
 * same on both: {"blocks.*.up.weight", "model.layers.*.mlp.up_proj.weight"}. */
typedef struct fsdp_weight_name {
    const char *model, *file;
} fsdp_weight_name;

typedef struct fsdp_weights_config {
    size_t size;
    bool strict; /* names that are missing, left over or of another shape are an error, and nothing is loaded */
    const fsdp_weight_name *names; /* the first that fits counts; other names are the same on both sides */
    int n_names;
    bool average;     /* where a checkpoint has an average of the weights (--ema), that is loaded instead of them */
    const char *base; /* of a checkpoint that holds adapters alone: where their base is now; NULL: where it was */
} fsdp_weights_config;

#define FSDP_WEIGHTS_CONFIG_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(fsdp_weights_config), .strict = true                                                            \
    }

typedef struct fsdp_load_report {
    size_t size;
    int64_t loaded;     /* parameters and persistent buffers that got a value */
    int64_t missing;    /* that the file lacks: they keep theirs */
    int64_t unexpected; /* that the model lacks */
    int64_t mismatched; /* of another shape: the model keeps its value */
    char text[2048];    /* their names, as far as they fit; "" when all fit */
} fsdp_load_report;

#define FSDP_LOAD_REPORT_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(fsdp_load_report)                                                                               \
    }

/* Loads the model's values from a .safetensors file, a Hugging Face folder, a checkpoint or the newest of a directory
 * of checkpoints; each rank reads its own share. config NULL: strict, with the model's own names. `report` may be NULL;
 * it is also filled when names are refused. An output head or embedding that repeats the shared embedding's values is
 * not counted as left over. Collective. */
FSDP_API fsdp_status fsdp_weights_load(fsdp_model *m, const char *path, const fsdp_weights_config *config,
                                       fsdp_load_report *report);

#ifdef __cplusplus
}
#endif
#endif
