/* Loading: a rank asks for its slices by name and gets them from whatever the checkpoint's files are cut into. */
#ifndef CKPT_LOAD_LOAD_H
#define CKPT_LOAD_LOAD_H

#include "ckpt/save/save.h"
#include "ckpt/format/state.h"

struct ckpt_source;
struct source_tensor;

/* How a source fits a state: how many tensors, and the names of those that do not. */
typedef struct ckpt_fit {
    int64_t loaded, missing, unexpected, mismatched;
    char text[1800]; /* "" when all fit */
} ckpt_fit;

#define CKPT_ANY_STEP (-1)

typedef struct ckpt_load_config {
    size_t size;
    unsigned roles;             /* which of the state's tensors to load (CKPT_ROLES_ALL, CKPT_ROLES_MODEL) */
    unsigned optional;          /* roles that the checkpoint may lack altogether: then result->absent names them */
    bool verify;                /* check the checksum of every piece that is read */
    const char *const *ignored; /* patterns (fnmatch) of names in the source that the model need not have */
    int n_ignored;
    const char *const *names; /* (n_tensors of the state): what the source calls each; NULL: the same names */
    bool average;             /* where the source has an average of the weights, it takes their place */
    bool partial;             /* what does not fit is left out instead of refused */
    /* Asked for each tensor that would be left over, unless it is ignored: sets *fine when nothing is lost. NULL: none
     * is fine. */
    fsdp_status (*leaves)(void *context, const struct ckpt_source *source, const struct source_tensor *tensor,
                          bool *fine);
    void *context;
    const char *run; /* ckpt_resume takes the newest of this run, and another's only if it has none; NULL: of any */
    int64_t above;   /* ckpt_resume takes only steps above this, of `run` alone, or none; CKPT_ANY_STEP: any */
    /* Of a checkpoint of adapters that refers to its base: */
    bool with_base;         /* that is loaded, too, */
    const char *base;       /* from here; NULL: from where it was */
    const uint64_t *digest; /* else: of the base that the state has already; NULL: it has none */
    ckpt_fit *fit;          /* filled also when names are refused; may be NULL */
} ckpt_load_config;

#define CKPT_LOAD_CONFIG_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(ckpt_load_config), .roles = CKPT_ROLES_ALL, .verify = true, .above = CKPT_ANY_STEP              \
    }

typedef struct ckpt_load_result {
    json_t *extra;  /* as saved; NULL for a plain model folder */
    void *autotune; /* as saved; NULL when there are none */
    size_t autotune_bytes;
    int64_t step;    /* -1 for a plain model folder, or when resume found nothing */
    int world_size;  /* that wrote it */
    char run[40];    /* that wrote it; "": not known */
    unsigned absent; /* optional roles that were not there */
    int64_t bytes;   /* read into this rank's slices */
    bool has_base;   /* values of the base were among them, */
    uint64_t digest; /* and this is the digest of those that this rank writes: over all ranks they add up */
    char path[1024]; /* what was loaded; "" when resume found nothing */
} ckpt_load_result;

void ckpt_load_result_free(ckpt_load_result *result); /* what it points to; legal on a zeroed one */

/* `path` is a checkpoint directory (".../step-00000020"), a Hugging Face folder, or a .safetensors file; the last two
 * give roles parameter and buffer only, rounded to fp32 from whatever they hold. Names that are missing, that nobody
 * asked for, and shapes that differ are listed, all of them, in one error (each also as a log line); then nothing was
 * written into the state. Collective when world is not NULL: the same status on all ranks. */
fsdp_status ckpt_load(const char *path, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                      ckpt_load_result *result);

/* The newest complete checkpoint under `directory` (or `directory` itself, when it is one) whose checksums hold.
 * Incomplete and corrupt ones are skipped with a warning each. A missing directory, or one without any committed
 * checkpoint, is FSDP_OK with result->step -1; one where every committed checkpoint is corrupt is an error, because
 * starting over would be no resume. Kind local: the newest step that all ranks have. What was chosen is logged.
 * Collective when world is not NULL. */
fsdp_status ckpt_resume(const char *directory, const ckpt_load_config *config, const ckpt_state *state,
                        comm_group *world, ckpt_load_result *result);

#endif
