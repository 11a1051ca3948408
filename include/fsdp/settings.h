/* Everything that can be set about a training job: the fields behind the flags of `fsdp train` and `fsdp plan`, one
 * field for one flag, of the same name. What each means stands once, in the table that fills them
 * (fsdp_settings_flags; docs/flags.md is made from it).
 *
 *     fsdp_settings settings;
 *     FSDP_TRY(fsdp_settings_init(&settings));
 *     FSDP_TRY(fsdp_settings_set(&settings, "preset", "tiny"));
 *     FSDP_TRY(fsdp_settings_check(&settings));
 *     ...
 *     fsdp_settings_free(&settings);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_SETTINGS_H
#define FSDP_SETTINGS_H

#include <fsdp/flags.h>
#include <fsdp/log.h>
#include <fsdp/optim.h>
#include <fsdp/shard.h>
#include <fsdp/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_preset {
    FSDP_PRESET_NONE,
    FSDP_PRESET_TINY,
    FSDP_PRESET_CNN,
    FSDP_PRESET_T5_SMALL,
    FSDP_PRESET_LLAMA3_2_1B,
    FSDP_PRESET_LLAMA3_2_3B,
    FSDP_PRESET_LLAMA3_1_8B,
    FSDP_PRESET_LLAMA2_7B,
    FSDP_PRESET_LLAMA2_13B,
    FSDP_PRESET_LLAMA3_1_70B,
    FSDP_PRESET_MISTRAL_7B,
    FSDP_PRESET_QWEN2_5_1_5B,
    FSDP_PRESET_QWEN3_0_6B,
    FSDP_PRESET_QWEN3_8B,
    FSDP_PRESET_GEMMA3_1B,
    FSDP_PRESET_GPT2_124M,
    FSDP_PRESET_PHI3_MINI,
    FSDP_PRESET_COUNT
} fsdp_preset;

typedef enum fsdp_model_type {
    FSDP_MODEL_LLAMA_V2,
    FSDP_MODEL_LLAMA_V3,
    FSDP_MODEL_MISTRAL,
    FSDP_MODEL_T5,
    FSDP_MODEL_CNN,
    FSDP_MODEL_MLP,
    FSDP_MODEL_QWEN2,
    FSDP_MODEL_QWEN3,
    FSDP_MODEL_GEMMA3,
    FSDP_MODEL_GPT2,
    FSDP_MODEL_PHI3
} fsdp_model_type;

typedef enum fsdp_activation { FSDP_ACTIVATION_RELU, FSDP_ACTIVATION_GATED_GELU } fsdp_activation;

typedef enum fsdp_nan_policy { FSDP_NAN_STOP, FSDP_NAN_SKIP, FSDP_NAN_ROLLBACK } fsdp_nan_policy;
typedef enum fsdp_stream_choice { FSDP_STREAM_AUTO, FSDP_STREAM_ON, FSDP_STREAM_OFF } fsdp_stream_choice;
typedef enum fsdp_failure_policy { FSDP_FAILURE_CONTINUE, FSDP_FAILURE_STOP } fsdp_failure_policy;

typedef enum fsdp_comm_backend {
    FSDP_COMM_AUTO,
    FSDP_COMM_SELF,
    FSDP_COMM_SHM,
    FSDP_COMM_MPI,
    FSDP_COMM_NCCL,
    FSDP_COMM_UCX
} fsdp_comm_backend;

/* Values of sharding_strategy beyond those of fsdp_strategy. */
enum {
    FSDP_STRATEGY_AUTO = -1,       /* the fastest setting whose plan fits in memory */
    FSDP_STRATEGY_RECOMMENDED = -2 /* by model size, checked against the plan */
};

/* A value of world_size beyond numbers of ranks. */
enum { FSDP_PORT_AUTO = -1 };       /* any that is free */
enum { FSDP_WORLD_SIZE_AUTO = -1 }; /* the fewest ranks that fit */
enum { FSDP_RESIDENT_AUTO = -1 };   /* as much as fits */

/* Texts are NULL when not set and belong to the settings. A number that its comment calls optional is 0 when not set.
 */
typedef struct fsdp_settings {
    size_t size;
    fsdp_flag_state state;

    /* Model */
    int preset;               /* fsdp_preset */
    int model_type;           /* fsdp_model_type */
    const char *model_config; /* a Hugging Face config.json, or the folder that has one */
    int64_t vocab_size;       /* optional: the tokenizer's */
    int64_t max_context_width;
    int64_t hidden_width, num_layers, num_decoder_layers /* optional: num_layers */;
    int64_t num_heads, num_key_value_heads /* optional: num_heads */, head_dim /* optional: hidden_width / num_heads */;
    int64_t sliding_window; /* 0: none */
    int64_t intermediate_size;
    double rotary_emb_base;
    int rope_scaling; /* fsdp_rope_scaling */
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_context;
    double norm_eps, initializer_range, dropout;
    bool tie_word_embeddings, attention_bias, mlp_bias;
    int feed_forward; /* T5: fsdp_activation */
    int64_t relative_attention_buckets, relative_attention_max_distance;
    int64_t image_channels, image_height, image_width, num_classes; /* optional: the data set's */
    int64_t conv1_channels, conv2_channels, branch_channels;
    const char *init_from; /* weights: a Hugging Face folder, a safetensors file, a checkpoint */
    fsdp_text_list freeze; /* globs over parameter names */
    int64_t lora_rank;     /* 0: no adapters */
    double lora_alpha, lora_dropout;
    fsdp_text_list lora_targets;
    bool lora_rslora;
    const char *adapter; /* a folder of peft's: adapters to go on with */
    const char *base;    /* of a checkpoint with adapters alone: where their base is now */

    /* Data */
    fsdp_text_list dataset;
    const char *dataset_config_name;
    fsdp_text_list validation_dataset;
    double validation_split; /* part of the training data held back; 0: none */
    const char *tokenizer;   /* NULL: bytes */
    const char *source_field, *target_field, *source_prefix;
    int64_t max_target_width;
    int64_t train_batch_size, val_batch_size; /* samples per rank and micro-batch; val is optional: as train */
    int64_t max_samples;                      /* optional */
    int64_t loader_threads, prefetch_batches;
    bool shuffle, strict_data;
    bool chat;                 /* records are conversations; also found out */
    const char *chat_template; /* NULL: the tokenizer's */
    int stream;                /* fsdp_stream_choice */
    int packing;               /* fsdp_packing of <fsdp/data.h> */
    bool download;
    const char *log_samples;

    /* Optimisation */
    int64_t max_steps; /* optional: set by epochs */
    int64_t epochs;    /* optional: set by max_steps; with both, the one reached first ends the run */
    int64_t gradient_accumulation_steps;
    bool sync_each_micro_batch;
    int optimizer; /* fsdp_optimizer_kind */
    double lr, min_lr;
    int lr_decay_style;     /* fsdp_decay */
    int64_t lr_decay_iters; /* optional: all steps */
    double warmup;          /* see fsdp_settings_warmup_steps */
    double plateau;
    int64_t lr_step_size;
    double lr_gamma;
    double momentum, muon_momentum, adafactor_decay, adafactor_clip;
    bool adafactor_scale, adafactor_relative_step;
    double weight_decay, beta1, beta2, eps;
    double ema;                                    /* decay of the average of the weights; 0: none */
    fsdp_text_list lr_groups, weight_decay_groups; /* "GLOB=X" over parameter names */
    double grad_clip;                              /* 0: off */
    int optimizer_state;                           /* fsdp_dtype of the moments: fp32 or bf16 */
    int nan_policy;                                /* fsdp_nan_policy */
    int64_t seed;

    /* Precision */
    int param_dtype, reduce_dtype, buffer_dtype; /* fsdp_dtype; after --bf16 and --fp16 are applied */
    int reduce_accumulation;                     /* fsdp_reduce_accumulation */
    bool bf16, fp16;
    int fp8; /* fsdp_fp8 */
    fsdp_text_list fp8_skip;
    int64_t fp8_check;    /* steps between two shadow steps; 0: none */
    double fp8_max_error; /* at which a layer falls back */
    int gradient_dtype;   /* fsdp_dtype of the gradients that the optimizer reads: fp32 or bf16 */
    double loss_scale;    /* optional: 65536 */

    /* Sharding */
    int sharding_strategy; /* fsdp_strategy, or one of the two above */
    int64_t shard_group_size;
    fsdp_text_list unit_strategies; /* GLOB=STRATEGY each */
    fsdp_text_list shard_weights;   /* whole numbers, one per rank */
    int wrap_policy;                /* fsdp_wrap_kind, not FSDP_WRAP_FUNCTION */
    fsdp_text_list wrap_types;      /* module types for the transformer policy; empty: the model's blocks */
    int64_t min_num_params;
    int64_t bucket_mb;
    bool forward_prefetch;
    int backward_prefetch; /* fsdp_prefetch */
    bool limit_all_gathers;
    int64_t gather_buffers;
    int activation_checkpointing; /* fsdp_checkpointing; after --offload_activations is applied */
    bool recompute_cheap;
    bool offload_activations, cpu_offload;
    fsdp_text_list cpu_offload_units;
    bool cpu_offload_split, cpu_offload_ahead;
    int64_t cpu_offload_resident; /* percent, or FSDP_RESIDENT_AUTO */
    int comm_backend;             /* fsdp_comm_backend */
    double comm_timeout;
    bool comm_thread;
    int64_t comm_ctas; /* 0: by the GPU */
    int comm_memory;   /* fsdp_comm_memory */

    /* Checkpoints */
    const char *checkpoint_dir; /* NULL: "checkpoints" in output_dir */
    int64_t checkpoint_freq;    /* optional */
    double checkpoint_minutes;  /* optional */
    int64_t checkpoint_epochs;  /* optional */
    int checkpoint_kind;        /* fsdp_checkpoint_kind */
    bool checkpoint_base;       /* the frozen base beside adapters is stored, too */
    int64_t snapshot_freq;      /* optional */
    bool checkpoint_at_end, async_checkpoint;
    int on_checkpoint_failure;            /* fsdp_failure_policy */
    int64_t keep_checkpoints, keep_every; /* optional: all; none beyond the newest */
    const char *resume_from_checkpoint;   /* a path, or "auto" */
    const char *export_dir;
    const char *export_adapter;
    int64_t export_part_size; /* bytes */

    /* Watching */
    const char *output_dir; /* NULL: a new folder with a name of its own */
    int64_t logging_freq, validation_freq /* optional: at the end */, validation_batches /* optional: all */;
    const char *metrics;
    const char *tensorboard_dir;
    int64_t metrics_port; /* 0: no endpoint */
    const char *metrics_address;
    int64_t dashboard;             /* port of the live page; 0: none */
    const char *dashboard_address; /* NULL: metrics_address with metrics_port, else the loopback */
    const char *trace;
    int64_t trace_first, trace_steps;
    int log_level; /* fsdp_log_level */
    bool memory_report;
    int64_t sample_tokens; /* optional */
    const char *sample_prompt;
    bool sample_at_validation;

    /* Machine */
    const char *device, *products;
    int64_t threads; /* optional */
    bool deterministic;

    /* The run itself */
    const char *config;
    const char *deepspeed, *accelerate; /* files of other tools */
    bool dry_run;
    bool overwrite; /* the run that output_dir holds is replaced */

    /* `fsdp plan` only */
    int64_t world_size; /* optional: the environment's */
    int64_t ranks_per_node;
    int64_t fit; /* bytes; optional */
    bool json;
    bool units;
    const char *timeline, *against, *svg; /* optional */

    fsdp_text_list notes; /* what files of other tools say that has no meaning here, a line each */
    bool predict;
    fsdp_text_list predict_scaling; /* world sizes; none: no curve */
    fsdp_text_list predict_links;   /* GB/s of a rank within a node, and out of it; none: the profile's */

    /* Predictions, before and after a run */
    const char *profile; /* optional */

    int lora_base;   /* how the frozen base is kept: 0: in param_dtype, 1: in 8 bits */
    int fp8_weights; /* fsdp_fp8_weights */
} fsdp_settings;

/* Defaults. Ended by fsdp_settings_free. Copying the struct copies references to its texts, not the texts. */
FSDP_API fsdp_status fsdp_settings_init(fsdp_settings *settings);
FSDP_API void fsdp_settings_free(fsdp_settings *settings); /* legal on zeroed settings */

/* Reads the arguments that follow the name of the command ("train", "plan", "bench"). --config fills in what they leave
 * open, --deepspeed or --accelerate what both leave open, and --preset the rest; then fsdp_settings_check is called. */
FSDP_API fsdp_status fsdp_settings_parse(fsdp_settings *settings, const char *command, int argc, char *const *argv);
/* Sets one setting by the name of its flag, as if the user had given it. Call fsdp_settings_check when all are set. */
FSDP_API fsdp_status fsdp_settings_set(fsdp_settings *settings, const char *name, const char *value);
/* Fills in the preset, and what flags imply for each other, where the user set nothing. Refuses contradictions by name.
 */
FSDP_API fsdp_status fsdp_settings_check(fsdp_settings *settings);

/* Whether the flag was given by the user (not by a preset or a default). `name` must exist. */
FSDP_API bool fsdp_settings_given(const fsdp_settings *settings, const char *name);
/* The table of all settings, for help and completion; ends with a row without a name. */
FSDP_API const fsdp_flag *fsdp_settings_flags(void);
/* The settings as used, as JSON that --config can read; malloc'd. */
FSDP_API fsdp_status fsdp_settings_json(const fsdp_settings *settings, char **text);

/* Warmup steps in a run of n_steps: the setting itself if it is 1 or more, otherwise that fraction of the steps. */
FSDP_API int64_t fsdp_settings_warmup_steps(const fsdp_settings *settings, int64_t n_steps);

static inline bool fsdp_model_is_llama(int model_type)
{
    return model_type == FSDP_MODEL_LLAMA_V2 || model_type == FSDP_MODEL_LLAMA_V3 || model_type == FSDP_MODEL_MISTRAL;
}

/* One of the families that continue a text. */
static inline bool fsdp_model_is_decoder(int model_type)
{
    return fsdp_model_is_llama(model_type) || model_type >= FSDP_MODEL_QWEN2;
}

#ifdef __cplusplus
}
#endif
#endif
