/* Every flag of `fsdp train` and `fsdp plan`, described once. Parsing, help, the man page, completion, the reference
 * page and the settings file of a run are all made from these rows; what flags imply for each other is settings.c's. */
#include "settings/settings_table.h"

#include <fsdp/dtype.h>
#include <fsdp/models.h>
#include <fsdp/settings.h>

#include "base/threads.h"

#define ROW(name_) .name = #name_, .group = GROUP, .offset = offsetof(fsdp_settings, name_)
#define COUNT(name_, default_, min_, max_, unit_, help_)                                                               \
    ROW(name_), .type = FSDP_FLAG_INT, .default_value = default_, .min = min_, .max = max_, .unit = unit_, .help = help_
#define INT(name_, default_, min_, unit_, help_) COUNT(name_, default_, min_, 1e15, unit_, help_)
#define FLOAT(name_, default_, min_, max_, unit_, help_)                                                               \
    ROW(name_), .type = FSDP_FLAG_FLOAT, .default_value = default_, .min = min_, .max = max_, .unit = unit_,           \
                .help = help_
#define BYTES(name_, default_, help_)                                                                                  \
    ROW(name_), .type = FSDP_FLAG_BYTES, .default_value = default_, .min = 0, .max = 9e18, .unit = "SIZE", .help = help_
#define TEXT(name_, default_, unit_, help_)                                                                            \
    ROW(name_), .type = FSDP_FLAG_TEXT, .default_value = default_, .unit = unit_, .help = help_
#define LIST(name_, unit_, help_) ROW(name_), .type = FSDP_FLAG_LIST, .unit = unit_, .help = help_
#define SWITCH(name_, default_, help_)                                                                                 \
    ROW(name_), .type = FSDP_FLAG_SWITCH, .default_value = default_, .bare = "true", .help = help_
#define CHOICE(name_, default_, choices_, help_)                                                                       \
    ROW(name_), .type = FSDP_FLAG_CHOICE, .default_value = default_, .choices = choices_, .help = help_

static const fsdp_choice presets[] = {
    {"none", FSDP_PRESET_NONE, NULL},
    {"tiny", FSDP_PRESET_TINY, NULL},
    {"cnn", FSDP_PRESET_CNN, NULL},
    {"t5-small", FSDP_PRESET_T5_SMALL, NULL},
    {"llama3_2_1b", FSDP_PRESET_LLAMA3_2_1B, NULL},
    {"llama3_2_3b", FSDP_PRESET_LLAMA3_2_3B, NULL},
    {"llama3_1_8b", FSDP_PRESET_LLAMA3_1_8B, NULL},
    {"llama2_7b", FSDP_PRESET_LLAMA2_7B, NULL},
    {"llama2_13b", FSDP_PRESET_LLAMA2_13B, NULL},
    {"llama3_1_70b", FSDP_PRESET_LLAMA3_1_70B, NULL},
    {"mistral_7b", FSDP_PRESET_MISTRAL_7B, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice model_types[] = {
    {"llama_v2", FSDP_MODEL_LLAMA_V2, "llama2"},
    {"llama_v3", FSDP_MODEL_LLAMA_V3, "llama3 llama"},
    {"mistral", FSDP_MODEL_MISTRAL, NULL},
    {"t5", FSDP_MODEL_T5, NULL},
    {"cnn", FSDP_MODEL_CNN, NULL},
    {"mlp", FSDP_MODEL_MLP, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice rope_scalings[] = {
    {"none", FSDP_ROPE_PLAIN, "default"},
    {"linear", FSDP_ROPE_LINEAR, NULL},
    {"llama3", FSDP_ROPE_LLAMA3, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice activations[] = {
    {"relu", FSDP_ACTIVATION_RELU, NULL},
    {"gated-gelu", FSDP_ACTIVATION_GATED_GELU, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice optimizers[] = {
    {"adamw", FSDP_ADAMW, NULL},
    {"adam", FSDP_ADAM, NULL},
    {"sgd", FSDP_SGD, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice lr_decay_styles[] = {
    {"constant", FSDP_DECAY_CONSTANT, NULL},
    {"linear", FSDP_DECAY_LINEAR, NULL},
    {"cosine", FSDP_DECAY_COSINE, NULL},
    {"exponential", FSDP_DECAY_EXPONENTIAL, NULL},
    {"plateau", FSDP_DECAY_PLATEAU, NULL},
    {"step", FSDP_DECAY_STEP, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice nan_policies[] = {
    {"stop", FSDP_NAN_STOP, NULL},
    {"skip", FSDP_NAN_SKIP, NULL},
    {"rollback", FSDP_NAN_ROLLBACK, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice dtypes[] = {
    {"fp32", FSDP_F32, "float32 f32 float torch.float32"},
    {"bf16", FSDP_BF16, "bfloat16 torch.bfloat16"},
    {"fp16", FSDP_F16, "float16 f16 half torch.float16"},
    {NULL, 0, NULL},
};

static const fsdp_choice strategies[] = {
    {"full", FSDP_FULL, "full_shard zero3"},
    {"shard_grad_op", FSDP_SHARD_GRAD_OP, "zero2"},
    {"shard_op", FSDP_SHARD_OP, "zero1"},
    {"no_shard", FSDP_NO_SHARD, "ddp zero0"},
    {"hybrid", FSDP_HYBRID, "hybrid_shard"},
    {"hybrid_zero2", FSDP_HYBRID_ZERO2, "_hybrid_shard_zero2 hybrid_shard_zero2"},
    {"auto", FSDP_STRATEGY_AUTO, NULL},
    {"recommended", FSDP_STRATEGY_RECOMMENDED, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice wrap_policies[] = {
    {"transformer", FSDP_POLICY_TRANSFORMER, "transformer_auto_wrap_policy"},
    {"size", FSDP_POLICY_SIZE, "size_based_auto_wrap_policy"},
    {"none", FSDP_POLICY_NONE, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice prefetches[] = {
    {"pre", FSDP_PREFETCH_PRE, "backward_pre"},
    {"post", FSDP_PREFETCH_POST, "backward_post"},
    {"none", FSDP_PREFETCH_NONE, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice checkpointings[] = {
    {"none", FSDP_CHECKPOINT_NONE, "0 false no off"},
    {"full", FSDP_CHECKPOINT_FULL, "1 true yes on"},
    {"selective", FSDP_CHECKPOINT_SELECTIVE, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice backends[] = {
    {"auto", FSDP_COMM_AUTO, NULL}, {"self", FSDP_COMM_SELF, NULL}, {"shm", FSDP_COMM_SHM, NULL},
    {"mpi", FSDP_COMM_MPI, NULL},   {"nccl", FSDP_COMM_NCCL, NULL}, {NULL, 0, NULL},
};

static const fsdp_choice checkpoint_kinds[] = {
    {"sharded", FSDP_CKPT_SHARDED, NULL},
    {"full", FSDP_CKPT_FULL, NULL},
    {"local", FSDP_CKPT_LOCAL, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice failure_policies[] = {
    {"continue", FSDP_FAILURE_CONTINUE, NULL},
    {"stop", FSDP_FAILURE_STOP, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice log_levels[] = {
    {"debug", FSDP_LOG_DEBUG, NULL},
    {"info", FSDP_LOG_INFO, NULL},
    {"warning", FSDP_LOG_WARNING, "warn"},
    {"error", FSDP_LOG_ERROR, NULL},
    {NULL, 0, NULL},
};

/* Kept by name: the world is opened with these words. */
static const fsdp_choice devices[] = {{"auto", 0, NULL}, {"cpu", 0, NULL},  {"cuda", 0, "gpu"}, {"h200", 0, NULL},
                                      {"h100", 0, NULL}, {"a100", 0, NULL}, {NULL, 0, NULL}};
static const fsdp_choice world_sizes[] = {{"auto", FSDP_WORLD_SIZE_AUTO, NULL}, {NULL, 0, NULL}};
static const fsdp_choice products[] = {
    {"auto", 0, NULL},   {"onednn", 0, NULL},   {"amx", 0, NULL},
    {"avx512", 0, NULL}, {"portable", 0, NULL}, {NULL, 0, NULL},
};

const fsdp_flag settings_table[] = {
#define GROUP "Run"
    {TEXT(config, NULL, "FILE", "settings from a file, JSON or \"key = value\" lines; the command line wins")},
    {CHOICE(preset, "none", presets, "shapes and recipe of a known model, under whatever else is given")},
    {SWITCH(dry_run, NULL, "print the plan and the settings as they would be used, and stop"), .only = "train"},
    {SWITCH(json, NULL, "print JSON instead of tables; for train with --dry_run"), .only = "plan train"},
    {TEXT(output_dir, "fsdp_run", "DIR", "folder for the files of the run: settings, metrics.jsonl, a log per rank")},
#undef GROUP

#define GROUP "Model"
    {CHOICE(model_type, "llama_v3", model_types, "architecture")},
    {TEXT(model_config, NULL, "FILE", "take the shape from a Hugging Face config.json or its folder")},
    {TEXT(init_from, NULL, "PATH", "weights to start from: a Hugging Face folder, a safetensors file or a checkpoint")},
    {INT(vocab_size, NULL, 0, "N", "rows of the embedding; by default the tokenizer's")},
    {INT(max_context_width, "2048", 1, "tokens", "length of a sample")},
    {INT(hidden_width, "768", 1, "N", "width of the residual stream, or of hidden layers")},
    {INT(num_layers, "12", 1, "N", "layers; for T5 those of the encoder")},
    {INT(num_decoder_layers, NULL, 0, "N", "decoder layers of T5; by default --num_layers")},
    {INT(num_heads, "12", 1, "N", "attention heads")},
    {INT(num_key_value_heads, NULL, 0, "N", "heads of keys and values; by default --num_heads")},
    {INT(head_dim, NULL, 0, "N", "width of a head; by default --hidden_width / --num_heads")},
    {INT(intermediate_size, "2048", 1, "N", "width of the feed-forward layer")},
    {FLOAT(rotary_emb_base, NULL, 0, 1e15, "X",
           "base of rotary positions; by default 500000 for llama_v3, else 10000")},
    {CHOICE(rope_scaling, "none", rope_scalings, "how rotary positions are stretched"), .aliases = "rope_type"},
    {FLOAT(rope_factor, "1", 1, 1e9, "X", "factor of --rope_scaling")},
    {FLOAT(rope_low_freq_factor, "1", 0, 1e9, "X", "llama3 scaling: below it wavelengths are stretched whole")},
    {FLOAT(rope_high_freq_factor, "4", 0, 1e9, "X", "llama3 scaling: above it wavelengths are left alone")},
    {INT(rope_original_context, "8192", 1, "tokens", "llama3 scaling: context of the original training")},
    {FLOAT(norm_eps, NULL, 0, 1, "X", "epsilon of the norms; by default 1e-6 for T5, else 1e-5"),
     .aliases = "rms_norm_eps layer_norm_eps layer_norm_epsilon"},
    {FLOAT(initializer_range, "0.02", 0, 1e3, "X", "standard deviation of initial weights; for T5 its factor")},
    {FLOAT(dropout, "0.1", 0, 0.999, "P", "dropout of T5"), .aliases = "dropout_rate"},
    {SWITCH(tie_word_embeddings, NULL, "one matrix for input embedding and output; by default on for T5")},
    {SWITCH(attention_bias, NULL, "biases in the attention projections")},
    {SWITCH(mlp_bias, NULL, "biases in the feed-forward layers")},
    {CHOICE(feed_forward, "relu", activations, "feed-forward layer of T5"), .aliases = "feed_forward_proj"},
    {INT(relative_attention_buckets, "32", 2, "N", "position buckets of T5"),
     .aliases = "relative_attention_num_buckets"},
    {INT(relative_attention_max_distance, "128", 2, "N", "distance from which T5's positions share a bucket")},
    {INT(image_channels, NULL, 0, "N", "channels of an image; by default the data set's, else 1")},
    {INT(image_height, NULL, 0, "N", "rows of an image; by default the data set's, else 28")},
    {INT(image_width, NULL, 0, "N", "columns of an image; by default the data set's, else 28")},
    {INT(num_classes, NULL, 0, "N", "classes of images; by default the data set's, else 10")},
    {INT(conv1_channels, "8", 1, "N", "CNN: channels of the first convolution")},
    {INT(conv2_channels, "16", 1, "N", "CNN: channels of the second convolution")},
    {INT(branch_channels, "4", 1, "N", "CNN: channels of the second branch")},
    {LIST(freeze, "GLOB,...", "parameters that do not train, by name")},
#undef GROUP

#define GROUP "Data"
    {LIST(dataset, "PATH,...", "files, globs, folders or a hub name: text, JSONL (also .gz, .zst), tokens, images"),
     .aliases = "training_dir train_dataset"},
    {TEXT(dataset_config_name, NULL, "NAME", "configuration of the data set, such as en for allenai/c4")},
    {TEXT(tokenizer, NULL, "PATH",
          "a tokenizer.json, its folder or a hub name; by default the model's, else every byte is a token")},
    {LIST(validation_dataset, "PATH,...",
          "data for validation; by default the data set's own, where --validation_freq asks")},
    {FLOAT(validation_split, NULL, 0, 0.999, "FRACTION", "part of the data set held back for validation")},
    {TEXT(source_field, "text", "NAME", "field of a record that holds the text, or the source of a pair")},
    {TEXT(target_field, "summary", "NAME", "field of a record that holds the target of a pair")},
    {TEXT(source_prefix, NULL, "TEXT", "put in front of every source, such as \"summarize: \"")},
    {INT(max_target_width, "128", 1, "tokens", "length of the target of a pair")},
    {INT(train_batch_size, "4", 1, "samples", "samples that one rank computes at a time")},
    {INT(val_batch_size, NULL, 0, "samples", "the same in validation; by default --train_batch_size")},
    {INT(max_samples, NULL, 0, "samples", "use only so many samples of the data set; by default all")},
    {COUNT(loader_threads, "1", 1, 64, "N", "threads that prepare samples")},
    {INT(prefetch_batches, "4", 1, "N", "batches that are prepared ahead")},
    {SWITCH(shuffle, "true", "another order of the samples in every epoch")},
    {SWITCH(strict_data, NULL, "stop at a bad record instead of passing over it")},
    {TEXT(log_samples, NULL, "FILE", "write which rank read which sample")},
#undef GROUP

#define GROUP "Optimisation"
    {INT(max_steps, NULL, 0, "steps", "optimizer steps; by default as many as --epochs make"),
     .aliases = "max_training_steps train_steps"},
    {INT(epochs, NULL, 0, "N", "passes over the data set; by default as many as --max_steps make, else 1")},
    {INT(gradient_accumulation_steps, "1", 1, "N", "micro-batches of an optimizer step")},
    {SWITCH(sync_each_micro_batch, "true", "reduce gradients after every micro-batch; off: once a step, more memory")},
    {CHOICE(optimizer, "adamw", optimizers, "update rule")},
    {FLOAT(lr, "3e-4", 0, 1e6, "X", "learning rate, at its highest"), .aliases = "learning_rate"},
    {FLOAT(min_lr, "0", 0, 1e6, "X", "learning rate at the end of the decay")},
    {CHOICE(lr_decay_style, "cosine", lr_decay_styles, "how the learning rate falls after the warmup")},
    {INT(lr_decay_iters, NULL, 0, "steps", "steps until the decay has ended; by default all")},
    {FLOAT(warmup, "0", 0, 1e15, "X", "steps of rising learning rate; below 1 a fraction of all steps"),
     .aliases = "warmup_steps"},
    {FLOAT(plateau, "0.4", 0, 1, "FRACTION", "plateau style: part of the steps at the highest learning rate")},
    {INT(lr_step_size, "1", 1, "N", "step style: epochs (with --epochs) or steps between two reductions")},
    {FLOAT(lr_gamma, "0.1", 0, 1, "X",
           "factor of a reduction: at every --lr_step_size, exponential style at every step")},
    {FLOAT(momentum, "0.9", 0, 0.999999, "X", "momentum of sgd")},
    {FLOAT(weight_decay, "0.1", 0, 1e3, "X", "weight decay of tensors with two or more dimensions")},
    {FLOAT(beta1, "0.9", 0, 0.9999999, "X", "decay of the first moment")},
    {FLOAT(beta2, "0.95", 0, 0.9999999, "X", "decay of the second moment")},
    {FLOAT(eps, "1e-8", 0, 1, "X", "epsilon of adam and adamw"), .aliases = "adam_epsilon"},
    {FLOAT(grad_clip, "1", 0, 1e15, "X", "highest global gradient norm; 0 does not clip"), .aliases = "max_grad_norm"},
    {CHOICE(nan_policy, "stop", nan_policies, "what to do when the loss or the gradient is not finite")},
    {INT(seed, "42", 0, "N", "seed of everything random")},
#undef GROUP

#define GROUP "Precision"
    {CHOICE(param_dtype, "fp32", dtypes, "what forward and backward compute in; master weights stay fp32")},
    {CHOICE(reduce_dtype, "fp32", dtypes, "what gradients are written and reduced in")},
    {CHOICE(buffer_dtype, "fp32", dtypes, "precision of buffers such as rotary tables")},
    {SWITCH(bf16, NULL, "short for --param_dtype bf16")},
    {SWITCH(fp16, NULL, "short for --param_dtype fp16, with loss scaling")},
    {FLOAT(loss_scale, NULL, 0, 1e30, "X", "first loss scale with fp16; by default 65536")},
#undef GROUP

#define GROUP "Sharding"
    {CHOICE(sharding_strategy, "auto", strategies,
            "what is sharded; auto takes the fastest that fits, recommended goes by the size of the model")},
    {INT(shard_group_size, NULL, 0, "ranks", "ranks of a group of hybrid strategies; by default those of a node"),
     .aliases = "sharding_group_size"},
    {LIST(shard_weights, "N,...", "relative sizes of the shards, one a rank; by default equal")},
    {CHOICE(wrap_policy, "transformer", wrap_policies, "which modules become units")},
    {LIST(wrap_types, "TYPE,...", "module types that become units; by default the blocks of the model")},
    {INT(min_num_params, "100000000", 1, "N", "size policy: least parameters of a unit")},
    {INT(bucket_mb, NULL, 0, "MiB", "neighbouring units are merged up to this size; by default not")},
    {SWITCH(forward_prefetch, "true", "gather the next unit while one computes forward")},
    {CHOICE(backward_prefetch, "pre", prefetches, "gather the next unit before or after the gradients of one")},
    {SWITCH(limit_all_gathers, "true", "never more gathered units at a time than --gather_buffers")},
    {INT(gather_buffers, "2", 1, "N", "units gathered at a time")},
    {CHOICE(activation_checkpointing, "none", checkpointings,
            "compute activations again in backward: of whole units, or all but attention"),
     .bare = "full"},
    {SWITCH(recompute_cheap, NULL, "compute norms and activation functions again in backward")},
    {SWITCH(offload_activations, NULL, "move checkpointed activations to host memory; implies checkpointing")},
    {SWITCH(cpu_offload, NULL, "keep master weights, gradients and optimizer state in host memory")},
    {LIST(cpu_offload_units, "GLOB,...", "offload only the units of these names")},
    {CHOICE(comm_backend, "auto", backends, "how ranks talk to each other")},
    {FLOAT(comm_timeout, "600", 0.001, 1e9, "seconds", "longest wait for another rank")},
    {SWITCH(comm_thread, NULL, "a thread of its own for communication even when cores are scarce")},
#undef GROUP

#define GROUP "Checkpoints"
    {TEXT(checkpoint_dir, NULL, "DIR", "folder of the checkpoints; by default checkpoints in --output_dir")},
    {INT(checkpoint_freq, NULL, 0, "steps", "save every so many steps; by default not")},
    {FLOAT(checkpoint_minutes, NULL, 0, 1e9, "minutes", "save every so many minutes; by default not")},
    {INT(checkpoint_epochs, NULL, 0, "epochs", "save every so many epochs; by default not")},
    {SWITCH(checkpoint_at_end, "true", "save when the run ends")},
    {CHOICE(checkpoint_kind, "sharded", checkpoint_kinds,
            "a file per rank, a Hugging Face folder, or raw local state")},
    {SWITCH(async_checkpoint, "true", "write in the background while training goes on")},
    {CHOICE(on_checkpoint_failure, "continue", failure_policies,
            "what to do when a checkpoint cannot be written; when the last one cannot, the exit code is 1")},
    {INT(keep_checkpoints, NULL, 0, "N", "keep so many of the newest; by default all")},
    {INT(keep_every, NULL, 0, "steps", "keep those whose step is a multiple, beside the newest")},
    {TEXT(resume_from_checkpoint, NULL, "DIR",
          "go on from this checkpoint, or from the newest complete one in this folder")},
    {TEXT(export_dir, NULL, "DIR", "write the trained model as a Hugging Face folder at the end")},
    {BYTES(export_part_size, "5GB", "size at which exported weights are split into parts")},
#undef GROUP

#define GROUP "Watching"
    {INT(logging_freq, "1", 1, "steps", "steps between two lines of progress")},
    {INT(validation_freq, NULL, 0, "steps", "steps between two validations; by default one at the end")},
    {INT(validation_batches, NULL, 0, "N", "batches of a validation on each rank; by default all")},
    {TEXT(metrics, NULL, "FILE", "also append a JSON line for every step to this file")},
    {TEXT(tensorboard_dir, NULL, "DIR", "write TensorBoard event files")},
    {TEXT(trace, NULL, "FILE", "write a trace of a few steps for Perfetto or chrome://tracing")},
    {INT(trace_first, "2", 0, "step", "first step of the trace")},
    {INT(trace_steps, "3", 1, "steps", "steps of the trace")},
    {SWITCH(memory_report, "true", "close with a table of memory per rank")},
    {INT(sample_tokens, NULL, 0, "tokens", "let a language model write so many tokens at the end")},
    {TEXT(sample_prompt, "/* ", "TEXT", "what it continues")},
    {CHOICE(log_level, "info", log_levels, "least level of lines that are shown")},
#undef GROUP

#define GROUP "Machine"
    {TEXT(device, "auto", "NAME", "what computes; auto takes cuda where there is one; a GPU's name is for plans only"),
     .choices = devices},
    {TEXT(products, "auto", "NAME", "how the CPU multiplies matrices"), .choices = products},
    {COUNT(threads, NULL, 0, THREADS_MOST, "N",
           "threads of a rank; by default OMP_NUM_THREADS, else its share of the cores")},
    {SWITCH(deterministic, NULL, "the same bits in every run on a GPU too, at a cost in time and memory")},
#undef GROUP

#define GROUP "Plan"
    {INT(world_size, NULL, 0, "ranks", "ranks to plan for, auto: the fewest that fit; by default the environment's"),
     .only = "plan", .choices = world_sizes},
    {INT(ranks_per_node, NULL, 0, "ranks", "ranks of a node; by default all of them"), .only = "plan"},
    {BYTES(fit, NULL, "name the fastest setting whose ranks take no more than this"), .only = "plan"},
#undef GROUP
    {.name = NULL},
};

_Static_assert(sizeof settings_table / sizeof *settings_table <= FSDP_FLAGS_MAX, "fsdp_flag_state is too small");
