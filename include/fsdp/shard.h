/* Fully sharded models: a module tree cut into units whose parameters, gradients and optimizer state are spread over
 * ranks, gathered when needed and released after use.
 *
 *     fsdp_config sharding = FSDP_CONFIG_INIT;
 *     sharding.wrap = fsdp_wrap_by_type("block");           // every module of this type is a unit
 *     FSDP_TRY(fsdp_shard(world, net, &sharding, &model));  // the model has the net now
 *     FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
 *     for (int step = 0; step < steps; step++) {
 *         fsdp_tape *t = fsdp_begin(model);
 *         fsdp_tensor *x = fsdp_input(t, FSDP_F32, 2, size, batch);
 *         fsdp_loss loss = fsdp_mse(t, fsdp_call(net, t, x), fsdp_input(t, FSDP_F32, 2, size, wanted));
 *         FSDP_TRY(fsdp_backward(t, loss, true));
 *         FSDP_TRY(fsdp_step(optimizer, &report));
 *     }
 *     fsdp_optimizer_free(optimizer);
 *     fsdp_model_free(model); */
#ifndef FSDP_SHARD_H
#define FSDP_SHARD_H

#include <fsdp/module.h>
#include <fsdp/world.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_strategy {
    FSDP_FULL,          /* parameters, gradients and optimizer state sharded (ZeRO-3) */
    FSDP_SHARD_GRAD_OP, /* parameters kept from forward to the end of backward (ZeRO-2) */
    FSDP_SHARD_OP,      /* parameters replicated, optimizer state sharded (ZeRO-1) */
    FSDP_NO_SHARD,      /* everything replicated (DDP) */
    FSDP_HYBRID,        /* full within a group of ranks, replicated across groups */
    FSDP_HYBRID_ZERO2,  /* shard_grad_op within a group */
    FSDP_STRATEGY_COUNT
} fsdp_strategy;

/* "full", "shard_grad_op", ... */
FSDP_API const char *fsdp_strategy_name(fsdp_strategy s);
/* Also accepts FULL_SHARD, zero3, SHARD_GRAD_OP, zero2, zero1, NO_SHARD, ddp, zero0, HYBRID_SHARD, _HYBRID_SHARD_ZERO2.
 */
FSDP_API fsdp_status fsdp_strategy_parse(const char *name, fsdp_strategy *out);

typedef enum fsdp_wrap_kind { FSDP_WRAP_TYPE, FSDP_WRAP_SIZE, FSDP_WRAP_FUNCTION, FSDP_WRAP_NONE } fsdp_wrap_kind;

/* Which modules become units. */
typedef struct fsdp_wrap {
    fsdp_wrap_kind kind;
    const char *type;       /* TYPE: module types, separated by commas */
    int64_t min_parameters; /* SIZE: a module whose parameters, less those of units inside it, are at least this many */
    bool (*is_unit)(const fsdp_module *m, void *context); /* FUNCTION */
    void *context;
} fsdp_wrap;

static inline fsdp_wrap fsdp_wrap_by_type(const char *type)
{
    fsdp_wrap w = {FSDP_WRAP_TYPE, type, 0, 0, 0};
    return w;
}

static inline fsdp_wrap fsdp_wrap_by_size(int64_t min_parameters)
{
    fsdp_wrap w = {FSDP_WRAP_SIZE, 0, min_parameters, 0, 0};
    return w;
}

typedef enum fsdp_prefetch { FSDP_PREFETCH_PRE, FSDP_PREFETCH_POST, FSDP_PREFETCH_NONE } fsdp_prefetch;
typedef enum fsdp_checkpointing {
    FSDP_CHECKPOINT_NONE,
    FSDP_CHECKPOINT_FULL,
    FSDP_CHECKPOINT_SELECTIVE
} fsdp_checkpointing;

/* When the full parameters of a unit are given up. */
typedef enum fsdp_reshard_when {
    FSDP_RESHARD_AFTER_FORWARD,  /* gathered for forward and again for backward: what FSDP_FULL does */
    FSDP_RESHARD_AFTER_BACKWARD, /* gathered once a micro-batch: what FSDP_SHARD_GRAD_OP does */
    FSDP_RESHARD_NEVER           /* gathered once an optimizer step: what FSDP_SHARD_OP does; of FSDP_NO_SHARD too */
} fsdp_reshard_when;

/* What one unit does; a policy callback gets it with the model's settings in it and changes what it wants. */
typedef struct fsdp_unit_policy {
    size_t size;
    fsdp_dtype param_dtype; /* differs between units: set cast_inputs, so that tensors follow */
    fsdp_reshard_when reshard;
    /* With FSDP_RESHARD_AFTER_FORWARD: each list of this many neighbouring ranks keeps the parameters among itself from
     * forward to backward, which then gathers them from there: less to send over slow links, for 1/size of the unit in
     * memory. It divides the number of shards. 0: shards are all that is kept. */
    int reshard_group_size;
    fsdp_checkpointing checkpointing; /* of the unit's module */
    bool cpu_offload;
    bool frozen; /* none of its parameters is trained; false leaves what fsdp_config.freeze says */
    /* Names of units, separated by commas, that are gathered when this one begins its forward or backward, instead of
     * gather_buffers places ahead. NULL: none. The strings must last until fsdp_shard returns. */
    const char *forward_prefetch, *backward_prefetch;
    fsdp_dtype reduce_dtype; /* of the unit's full gradients and their reduction */
    /* Its parameters are the program's: whole on every rank, never gathered, reduced, offloaded or trained.
     * fsdp_parameter_write sets those of the rank that calls it, fsdp_parameter_read reads them, and both are then not
     * collective; ranks may differ. Checkpoints have rank 0's (of kind local each rank's). */
    bool ignored;
    /* Of this unit; the model's is only the default. FSDP_NO_SHARD: every rank has all of it and its gradients are
     * summed over all ranks; FSDP_HYBRID: sharded within groups and replicated across them. A `reshard` that is left as
     * it was follows. Checkpoints do not depend on it. */
    fsdp_strategy strategy;
    int shard_group_size; /* hybrid strategies: ranks per group; 0: the ranks of a node */
} fsdp_unit_policy;

typedef struct fsdp_config {
    size_t size;
    fsdp_strategy strategy; /* of every unit that unit_strategies or policy give no other */
    fsdp_wrap wrap;
    fsdp_dtype param_dtype;  /* precision of forward and backward */
    fsdp_dtype reduce_dtype; /* of full gradients and their reduction */
    fsdp_dtype buffer_dtype; /* precision of buffers such as rotary tables */
    uint64_t seed;
    int shard_group_size;      /* hybrid: ranks per group; 0: the ranks of a node */
    const char *const *freeze; /* globs over parameter names: these are not trained */
    int n_freeze;
    const int *shard_weights; /* relative sizes of the shards that `strategy` makes, one each; NULL: equal */
    int64_t bucket_bytes;     /* merge neighbouring units up to this size; 0: off */
    int gather_buffers;       /* units gathered at a time, in use or ahead of it; at least 1 */
    bool forward_prefetch;    /* gather ahead in forward; its first units while the optimizer still updates others */
    fsdp_prefetch backward_prefetch;
    fsdp_checkpointing checkpointing; /* of the modules that are units by the wrap policy */
    bool recompute_cheap;             /* recompute norms and activations in backward instead of keeping them */
    bool offload_activations;         /* inputs of checkpointed modules wait for backward in host memory */
    bool sync_each_micro_batch; /* reduce gradients after every micro-batch; false keeps full gradients until the last,
                                   unless this rank is alone */
    bool decay_vectors;         /* weight decay applies to vectors (norms, biases) too, not only to matrices */
    bool deterministic;
    float loss_scale; /* fp16: first loss scale; 0: 65536. Halved where a step overflows, not below 1 */
    bool cpu_offload; /* masters, moments and gradient shards in host memory, where the optimizer then runs */
    /* Globs over unit names: only these are offloaded; none: all units. A glob that matches no unit is an error, also
     * with cpu_offload off. */
    const char *const *cpu_offload_units;
    int n_cpu_offload_units;
    /* Floating tensors that a unit's module (or the root) is called with are cast to the unit's param_dtype. */
    bool cast_inputs;
    /* What the summed gradients of all ranks and micro-batches are divided by; 0: the count of the losses, which gives
     * the gradient of the mean. */
    double gradient_divisor;
    /* Called for every unit while the model is made, in the order of fsdp_model_unit_name, with the unit's module (of
     * units merged by bucket_bytes the first one) and name. Must do the same on every rank, which is checked. NULL:
     * all units are alike. */
    void (*policy)(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context);
    void *policy_context;
    /* Linear layers (fsdp_linear, not fsdp_linear_input_major) whose inputs and outputs are multiples of 16 compute
     * their products in 8 bits. Everything else stays in param_dtype: embeddings, heads
     * (fsdp_linear_cross_entropy, and the logits of the library's models), norms, attention. A step in which no layer can is refused. GPUs have such products
     * from compute capability 8.9 on; CPUs compute the same values, slowly. */
    fsdp_fp8 fp8;
    const char *const *fp8_skip; /* globs over parameter names: these layers stay in param_dtype */
    int n_fp8_skip;
    /* Of the gradient shards that the optimizer reads: FSDP_F32, or FSDP_BF16, which halves them where nothing is added
     * to them: reduce_dtype is FSDP_BF16 for every unit, and a step has one micro-batch (a second one is refused). */
    fsdp_dtype gradient_dtype;
    /* Shadow steps will be made (fsdp_fp8_check): memory for what they measure is set apart. A model with buffers that
     * forward changes (batch norm's) is refused: they would count a shadow step's batch twice. */
    bool fp8_check;
    /* "GLOB=STRATEGY" each: units whose names match have this strategy instead, by the first that matches. `policy` can
     * still change it. A glob that matches no unit is an error. */
    const char *const *unit_strategies;
    int n_unit_strategies;
    bool
        cpu_offload_split; /* the device updates a part of offloaded units, through its memory; the bits are the same */
    /* With cpu_offload: units are updated from the moment their gradient has come, before its norm over all units is
     * known, as if nothing were to be clipped, and undone where something is. The bits are the same; host memory for
     * old values is up to a third of what all masters and moments take. Set the rate of a step (fsdp_optimizer_set_lr)
     * before its last micro-batch: updates that were made with another are undone. */
    bool cpu_offload_ahead;
    /* Frozen weights of linear layers, except output heads, are kept and gathered in 8 bits: blocks of 64 with a scale.
     * They become param_dtype before they are used. There must be such weights. */
    bool int8_frozen;
    /* With cpu_offload: the first of the units that would be offloaded stay on the device, as many as have together at
     * most this percentage of their trained parameters. They are the ones to keep: forward needs them first and their
     * gradients come last, so nothing hides their update. The bits are the same. */
    int cpu_offload_resident;
    fsdp_fp8_weights fp8_weights; /* when 8-bit products' weights are rounded */
} fsdp_config;

#define FSDP_CONFIG_INIT                                                                                               \
    {                                                                                                                  \
        .size = sizeof(fsdp_config), .strategy = FSDP_FULL, .wrap = {.kind = FSDP_WRAP_NONE}, .gather_buffers = 2,     \
        .forward_prefetch = true, .sync_each_micro_batch = true                                                        \
    }

typedef struct fsdp_model fsdp_model;

/* Cuts `net` into units and gives every parameter its initial value, shard by shard. Takes `net` on success.
 * Collective: every rank calls it with the same net and configuration, which is checked. */
FSDP_API fsdp_status fsdp_shard(fsdp_world *w, fsdp_module *net, const fsdp_config *config, fsdp_model **out);
FSDP_API void fsdp_model_free(fsdp_model *m); /* NULL is legal */

/* The world it was sharded over. */
FSDP_API fsdp_world *fsdp_model_world(const fsdp_model *m);
/* The module tree that was sharded, to call in forward; the model keeps it. */
FSDP_API fsdp_module *fsdp_model_module(fsdp_model *m);
/* Number of elements of all parameters, over all ranks. */
FSDP_API int64_t fsdp_model_parameters(const fsdp_model *m);
/* Number of units. */
FSDP_API int fsdp_model_units(const fsdp_model *m);
/* The module's path, or "root" for what no other unit has; NULL when there are not so many. The model's. */
FSDP_API const char *fsdp_model_unit_name(const fsdp_model *m, int index);

/* Tells the model which samples the next micro-batches hold on this rank: the index of the first among all samples.
 * Dropout depends on the seed, the micro-batch and that index, so the same samples get the same masks on any number of
 * ranks. Without this call (or after -1), ranks are taken to hold equal shares of a batch in rank order, as if each had
 * called it with rank * n for batches of n samples per rank. Call it if shares differ. */
FSDP_API void fsdp_set_position(fsdp_model *m, int64_t first_sample);
/* Says how many rows of the micro-batches that follow are data, the first ones; those after them only pad this rank's
 * batch to the size of the others', and batch norm leaves them out. -1, as at first: all are data. fsdp_loader_attach
 * (fsdp/data.h) makes both calls for every batch. */
FSDP_API void fsdp_set_counted_rows(fsdp_model *m, int64_t n_rows);

/* A micro-batch: begin, record forward and loss, run. */
FSDP_API fsdp_tape *fsdp_begin(fsdp_model *m);
/* Computes loss and gradients of what was recorded. Gradients add up over micro-batches until fsdp_step. `last` is true
 * for the micro-batch after which the optimizer steps. Micro-batches may use different units; a recording may be
 * evaluated or trained again, also with another of its losses. */
FSDP_API fsdp_status fsdp_backward(fsdp_tape *t, fsdp_loss loss, bool last);
/* For a rank that has run out of data: takes part in the step with gradients of zero, as in the last step that had
 * data. FSDP_ERR_STATE before the first. */
FSDP_API fsdp_status fsdp_backward_nothing(fsdp_model *m, bool last);

/* What 8 bits cost a layer, over all ranks: products made in param_dtype, and in 8 bits from the same operands. */
typedef struct fsdp_fp8_layer {
    const char *name;      /* of its weight, or the first of those that lie together; the model's */
    double output_error;   /* of y: the norm of the difference over the norm of what param_dtype gives */
    double gradient_error; /* of the weight's gradient; 0: it is frozen */
    double flushed[3];     /* parts of x, of the weight and of y's gradient that are not 0 and became 0, */
    double saturated[3];   /* or that are beyond the largest number of 8 bits */
    bool falls_back;       /* out of bounds: from now on its products are in param_dtype */
} fsdp_fp8_layer;

typedef struct fsdp_fp8_bounds {
    size_t size;
    double error; /* of output_error and gradient_error; what is not finite is out of bounds, too, unless the product
                     is not finite in param_dtype either: such a batch says nothing of 8 bits */
    double saturated; /* of each of the three */
} fsdp_fp8_bounds;

#define FSDP_FP8_BOUNDS_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(fsdp_fp8_bounds), .error = 0.15, .saturated = 0.001                                             \
    }

/* Begins a shadow step, between two steps of training: record the batch of the step to come as for fsdp_backward. */
FSDP_API fsdp_tape *fsdp_begin_shadow(fsdp_model *m);
/* Runs what was recorded since fsdp_begin_shadow, forward and backward in param_dtype, changes neither weights nor
 * gradients, and tells `visit` (may be NULL) of every layer that has 8-bit products. Those out of bounds fall back, on
 * all ranks alike; a state remembers them. Collective. */
FSDP_API fsdp_status fsdp_fp8_check(fsdp_tape *t, fsdp_loss loss, const fsdp_fp8_bounds *bounds,
                                    void (*visit)(void *context, const fsdp_fp8_layer *layer), void *context);

/* Without gradients: begin, record, run, fsdp_read what was marked fsdp_output. */
FSDP_API fsdp_tape *fsdp_begin_evaluation(fsdp_model *m);
/* Runs what was recorded since fsdp_begin_evaluation. Collective wherever units are gathered. */
FSDP_API fsdp_status fsdp_evaluate(fsdp_tape *t);

/* ---- Gradients, between the last micro-batch of a step and fsdp_step: own clipping, norms per layer ----
 *
 * The gradients of the loss as the optimizer would apply them: over all ranks and micro-batches, divided by the count,
 * (or gradient_divisor), without the loss scale, before clipping. The first of these calls in a step closes it to
 * further micro-batches. Parameters that no micro-batch used have gradients of zero; frozen ones have none. All are
 * collective: every rank calls them in the same order with the same arguments. */

/* Elements first .. first+n-1 of the gradient of a parameter, in fp32, on every rank. */
FSDP_API fsdp_status fsdp_gradient_read(fsdp_model *m, const char *name, int64_t first, int64_t n, float *out);
/* Norm of the gradients of all parameters whose names match `pattern`, a glob: "*" is everything, "layers.3.*" one
 * layer. The same bits with every strategy. */
FSDP_API fsdp_status fsdp_gradient_norm(fsdp_model *m, const char *pattern, double *norm);
/* Multiplies these gradients by `factor`. The norm that fsdp_step clips by and reports follows. */
FSDP_API fsdp_status fsdp_gradient_scale(fsdp_model *m, const char *pattern, float factor);

/* Parameters by name, whatever the strategy: fetches elements first .. first+n-1 in fp32. Collective. */
FSDP_API fsdp_status fsdp_parameter_read(fsdp_model *m, const char *name, int64_t first, int64_t n, float *out);
/* The other way: elements first .. first+n-1 take these values, the same on all ranks, also in a frozen parameter. The
 * optimizer's moments stay. Collective. */
FSDP_API fsdp_status fsdp_parameter_write(fsdp_model *m, const char *name, int64_t first, int64_t n,
                                          const float *values);

/* Summons full parameters, whatever the strategy: every rank gets each of them once, in the order of the tree, in fp32
 * in host memory that is `use`'s to read until it returns. Takes as much host memory as the largest parameter. If `use`
 * fails it is not called again; its status is returned after the last parameter, so that other ranks go on. Collective.
 */
typedef fsdp_status (*fsdp_summoned)(void *context, const char *name, int n_dims, const int64_t *shape,
                                     const float *values);
FSDP_API fsdp_status fsdp_summon(fsdp_model *m, fsdp_summoned use, void *context);

/* ---- The full parameters of one unit, for a program's own computations, between steps ----
 *
 *     fsdp_unsharded *block;
 *     int64_t n;
 *     fsdp_unshard(model, "layers.3", &block);
 *     float *w = fsdp_unsharded_values(block, "layers.3.up.weight", &n);
 *     for (int64_t i = 0; i < n; i++)
 *         w[i] = fminf(fmaxf(w[i], -1), 1);
 *     fsdp_reshard(block, true);
 */
typedef struct fsdp_unsharded fsdp_unsharded;

/* Every rank gets all parameters of the unit of that name as they are now, whatever the strategy: in fp32, in host
 * memory that belongs to *out. Collective. */
FSDP_API fsdp_status fsdp_unshard(fsdp_model *m, const char *unit, fsdp_unsharded **out);
/* The values of one of its parameters, to read and to write; numel may be NULL. NULL when the unit has no such
 * parameter. */
FSDP_API float *fsdp_unsharded_values(const fsdp_unsharded *u, const char *name, int64_t *numel);
/* Names of its parameters, in the order of the tree; NULL when there are not so many. */
FSDP_API const char *fsdp_unsharded_name(const fsdp_unsharded *u, int index);
/* Ends it, also on failure; before the model is freed; NULL is legal. With `write` the values become the model's: each
 * rank keeps its part, and ranks whose values differ are told so before anything changes. Then it is collective.
 * Moments of the optimizer stay as they are. */
FSDP_API fsdp_status fsdp_reshard(fsdp_unsharded *u, bool write);

#ifdef __cplusplus
}
#endif
#endif
