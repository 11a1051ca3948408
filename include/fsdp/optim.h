/* Optimizers and learning-rate schedules.
 *
 *     fsdp_lr_config schedule = FSDP_LR_CONFIG_INIT;
 *     schedule.decay = FSDP_DECAY_COSINE, schedule.lr = 3e-4, schedule.warmup = 100, schedule.total = steps;
 *     FSDP_TRY(fsdp_lr_check(&schedule));
 *     for (int64_t step = 0; step < steps; step++) {
 *         ...                                    // forward and backward, see fsdp/shard.h
 *         fsdp_optimizer_set_lr(optimizer, (float)fsdp_lr_at(&schedule, step));
 *         FSDP_TRY(fsdp_step(optimizer, &report));
 *     } */
#ifndef FSDP_OPTIM_H
#define FSDP_OPTIM_H

#include <stdbool.h>

#include <fsdp/kinds.h>
#include <fsdp/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of the parameters that a pattern matches. Of several groups, the first that matches and sets an option
 * decides that option; parameters that none matches have the optimizer's own. */
typedef struct fsdp_optimizer_group {
    const char *pattern; /* of names, as in a shell: "*norm.weight", "model.layers.[0-3].*" */
    float lr_factor;     /* on the rate of each step; negative: not set */
    float weight_decay;  /* whatever their dimensions; negative: not set */
} fsdp_optimizer_group;

#define FSDP_OPTIMIZER_GROUP_INIT                                                                                      \
    {                                                                                                                  \
        .lr_factor = -1, .weight_decay = -1                                                                            \
    }

typedef struct fsdp_optimizer_config {
    size_t size;
    fsdp_optimizer_kind kind;
    float lr, beta1, beta2, eps;
    float weight_decay; /* of parameters with two or more dimensions; ADAM and SGD add it to the gradient */
    float momentum;     /* SGD */
    float clip;         /* maximum norm of the whole gradient; 0: no clipping */
    float average;      /* decay of an average of the weights that is kept beside them, 0.999 for instance; 0: none */
    const fsdp_optimizer_group *groups; /* read by fsdp_optimizer_new, not kept */
    int n_groups;
    float muon_momentum;    /* MUON: of its matrices; the other parameters have the options of ADAMW */
    fsdp_dtype state_dtype; /* of the moments: FSDP_F32, or FSDP_BF16, rounded at random so that small changes add up */
    /* ADAFACTOR. Weight decay is decoupled, as ADAMW's. */
    float adafactor_decay;        /* the decay of second moments in step t is 1 - t^-this */
    float adafactor_clip;         /* largest root mean square of a parameter's update, before the rate */
    bool adafactor_scale;         /* the rate is times the root mean square of the parameter, 1e-3 at least */
    bool adafactor_relative_step; /* the rate of step t is min(0.01, 1 / sqrt(t)), whatever lr says */
} fsdp_optimizer_config;

#define FSDP_OPTIMIZER_CONFIG_INIT                                                                                     \
    {                                                                                                                  \
        .size = sizeof(fsdp_optimizer_config), .kind = FSDP_ADAMW, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f,        \
        .eps = 1e-8f, .muon_momentum = 0.95f, .adafactor_decay = 0.8f, .adafactor_clip = 1.0f, .adafactor_scale = true \
    }

typedef struct fsdp_optimizer fsdp_optimizer;

/* Borrows the model. Every rank keeps the state of its own shard. */
FSDP_API fsdp_status fsdp_optimizer_new(fsdp_model *m, const fsdp_optimizer_config *config, fsdp_optimizer **out);
FSDP_API void fsdp_optimizer_free(fsdp_optimizer *o); /* before the model; NULL is legal */
/* The learning rate from the next step on. */
FSDP_API void fsdp_optimizer_set_lr(fsdp_optimizer *o, float lr);

/* The trained weights and their average change places: to validate with the average, or to export it; the next call
 * brings every bit back. Steps and saves want the weights in theirs. FSDP_ERR_STATE without an average. Collective. */
FSDP_API fsdp_status fsdp_optimizer_swap_average(fsdp_optimizer *o);

typedef struct fsdp_step_report {
    double loss;          /* mean over all ranks and micro-batches */
    double gradient_norm; /* before clipping */
    double count;         /* what the loss was divided by: tokens, samples */
    bool skipped;         /* the gradient was not finite: nothing was changed, by any rank */
    double lr;            /* what the step took: fsdp_optimizer_set_lr's, or the one of adafactor_relative_step */
    double reserved[7];   /* 0: room for what later versions add */
} fsdp_step_report;

/* Gradients are reduced, clipped and applied; the next micro-batch begins a new sum. report may be NULL. Collective. */
FSDP_API fsdp_status fsdp_step(fsdp_optimizer *o, fsdp_step_report *report);

typedef enum fsdp_decay {
    FSDP_DECAY_CONSTANT,
    FSDP_DECAY_LINEAR,
    FSDP_DECAY_COSINE,
    FSDP_DECAY_EXPONENTIAL,
    FSDP_DECAY_STEP,
    FSDP_DECAY_PLATEAU
} fsdp_decay;

typedef struct fsdp_lr_config {
    size_t size;
    fsdp_decay decay;
    double lr, min_lr;
    int64_t warmup; /* steps of linear rise: lr * (i + 1) / warmup */
    int64_t total;  /* linear, cosine: the step at which min_lr is reached */
    double gamma;   /* exponential: factor a step; step: factor every step_size */
    int64_t step_size;
    double hold; /* plateau: part of the steps that keep lr after warmup, before it falls linearly to min_lr */
} fsdp_lr_config;

#define FSDP_LR_CONFIG_INIT                                                                                            \
    {                                                                                                                  \
        .size = sizeof(fsdp_lr_config), .decay = FSDP_DECAY_CONSTANT, .gamma = 0.1, .step_size = 1                     \
    }

/* The rate of step i, counted from 0: a function of the step alone, so a resumed run needs nothing else. */
FSDP_API double fsdp_lr_at(const fsdp_lr_config *config, int64_t step);
/* Whether the schedule makes sense: FSDP_ERR_INPUT, naming the field, where it does not. */
FSDP_API fsdp_status fsdp_lr_check(const fsdp_lr_config *config);

#ifdef __cplusplus
}
#endif
#endif
