/* Every flag of `fsdp train` and `fsdp plan`, described once. Parsing, help, the man page, completion, the reference
 * page and the settings file of a run are all made from these rows; what flags imply for each other is settings.c's. */
#include "settings/settings_table.h"

#include <fsdp/data.h>
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
    {"qwen2_5_1_5b", FSDP_PRESET_QWEN2_5_1_5B, NULL},
    {"qwen3_0_6b", FSDP_PRESET_QWEN3_0_6B, NULL},
    {"qwen3_8b", FSDP_PRESET_QWEN3_8B, NULL},
    {"gemma3_1b", FSDP_PRESET_GEMMA3_1B, NULL},
    {"gpt2_124m", FSDP_PRESET_GPT2_124M, NULL},
    {"phi3_mini", FSDP_PRESET_PHI3_MINI, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice model_types[] = {
    {"llama_v2", FSDP_MODEL_LLAMA_V2, "llama2"},
    {"llama_v3", FSDP_MODEL_LLAMA_V3, "llama3 llama"},
    {"mistral", FSDP_MODEL_MISTRAL, NULL},
    {"t5", FSDP_MODEL_T5, NULL},
    {"cnn", FSDP_MODEL_CNN, NULL},
    {"mlp", FSDP_MODEL_MLP, NULL},
    {"qwen2", FSDP_MODEL_QWEN2, "qwen2_5"},
    {"qwen3", FSDP_MODEL_QWEN3, NULL},
    {"gemma3", FSDP_MODEL_GEMMA3, "gemma3_text"},
    {"gpt2", FSDP_MODEL_GPT2, NULL},
    {"phi3", FSDP_MODEL_PHI3, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice rope_scalings[] = {
    {"none", FSDP_ROPE_PLAIN, "default"}, {"linear", FSDP_ROPE_LINEAR, NULL}, {"llama3", FSDP_ROPE_LLAMA3, NULL},
    {"dynamic", FSDP_ROPE_DYNAMIC, NULL}, {"yarn", FSDP_ROPE_YARN, NULL},     {NULL, 0, NULL},
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

static const fsdp_choice streams[] = {
    {"auto", FSDP_STREAM_AUTO, NULL},
    {"on", FSDP_STREAM_ON, "true yes 1"},
    {"off", FSDP_STREAM_OFF, "false no 0"},
    {NULL, 0, NULL},
};

static const fsdp_choice packings[] = {
    {"row", FSDP_PACK_ROW, NULL},
    {"best_fit", FSDP_PACK_BEST_FIT, "best-fit bfd"},
    {NULL, 0, NULL},
};

static const fsdp_choice dtypes[] = {
    {"fp32", FSDP_F32, "float32 f32 float torch.float32"},
    {"bf16", FSDP_BF16, "bfloat16 torch.bfloat16"},
    {"fp16", FSDP_F16, "float16 f16 half torch.float16"},
    {NULL, 0, NULL},
};

static const fsdp_choice fp8_recipes[] = {
    {"off", FSDP_FP8_OFF, "0 false no none"},
    {"hybrid", FSDP_FP8_HYBRID, "1 true yes on tensorwise"},
    {"e4m3", FSDP_FP8_E4M3, NULL},
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
    {"transformer", FSDP_WRAP_TYPE, "transformer_auto_wrap_policy"},
    {"size", FSDP_WRAP_SIZE, "size_based_auto_wrap_policy"},
    {"none", FSDP_WRAP_NONE, NULL},
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
    {"auto", FSDP_COMM_AUTO, NULL},
    {"self", FSDP_COMM_SELF, NULL},
    {"shm", FSDP_COMM_SHM, NULL},
    {"mpi", FSDP_COMM_MPI, NULL},
    {"ucx", FSDP_COMM_UCX, NULL},
    {"nccl", FSDP_COMM_NCCL, NULL},
    {NULL, 0, NULL},
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
    {TEXT(config, NULL, "FILE",
          "read settings from a file of JSON or \"key = value\" lines; the command line overrides it")},
    {CHOICE(preset, "none", presets, "a known model's shape and recipe; other flags override it")},
    {SWITCH(dry_run, NULL, "print the plan and the settings that would be used, then stop"), .only = "train"},
    {SWITCH(json, NULL, "print JSON instead of tables; for train only with --dry_run"), .only = "plan train"},
    {TEXT(output_dir, NULL, "DIR",
          "folder for the run's files: settings, metrics.jsonl, checkpoints, a log per rank (default: a new one in "
          "fsdp_runs, which fsdp_runs/latest points at)")},
    {SWITCH(overwrite, NULL, "replace the run that --output_dir holds, once everything is ready to train"),
     .only = "train"},
#undef GROUP

#define GROUP "Model"
    {CHOICE(model_type, "llama_v3", model_types, "architecture")},
    {TEXT(model_config, NULL, "FILE", "take the shape from a Hugging Face config.json or its folder")},
    {TEXT(init_from, NULL, "PATH",
          "weights to start from: a Hugging Face folder, a safetensors or PyTorch file, or a checkpoint")},
    {INT(vocab_size, NULL, 0, "N", "rows of the embedding (default: the tokenizer's)")},
    {INT(max_context_width, "2048", 1, "tokens", "length of a sample")},
    {INT(hidden_width, "768", 1, "N", "width of the residual stream, or of hidden layers")},
    {INT(num_layers, "12", 1, "N", "layers; for T5, encoder layers")},
    {INT(num_decoder_layers, NULL, 0, "N", "T5: decoder layers (default: --num_layers)")},
    {INT(num_heads, "12", 1, "N", "attention heads")},
    {INT(num_key_value_heads, NULL, 0, "N", "key and value heads (default: --num_heads)")},
    {INT(head_dim, NULL, 0, "N", "width of a head (default: --hidden_width / --num_heads)")},
    {INT(sliding_window, NULL, 0, "tokens", "how many tokens attention sees; 0: all (Gemma: of five in six layers)")},
    {INT(intermediate_size, "2048", 1, "N", "width of the feed-forward layer")},
    {FLOAT(rotary_emb_base, NULL, 0, 1e15, "X",
           "base of rotary positions (default: 500000 for llama_v3, 1000000 for Qwen and Gemma, otherwise 10000)")},
    {CHOICE(rope_scaling, "none", rope_scalings, "how rotary positions are stretched"), .aliases = "rope_type"},
    {FLOAT(rope_factor, "1", 1, 1e9, "X", "factor of --rope_scaling")},
    {FLOAT(rope_low_freq_factor, "1", 0, 1e9, "X",
           "llama3 scaling: lower frequencies are stretched by the whole factor")},
    {FLOAT(rope_high_freq_factor, "4", 0, 1e9, "X", "llama3 scaling: higher frequencies are left alone")},
    {INT(rope_original_context, "8192", 1, "tokens",
         "llama3, dynamic and yarn scaling: context length of the original training")},
    {FLOAT(norm_eps, NULL, 0, 1, "X", "epsilon of the norms (default: 1e-6 for T5, Qwen and Gemma, otherwise 1e-5)"),
     .aliases = "rms_norm_eps layer_norm_eps layer_norm_epsilon"},
    {FLOAT(initializer_range, "0.02", 0, 1e3, "X",
           "standard deviation of initial weights; for T5, its initialization factor")},
    {FLOAT(dropout, "0.1", 0, 0.999, "P", "T5, GPT-2: dropout (GPT-2's default: none, or as its config.json says)"),
     .aliases = "dropout_rate"},
    {SWITCH(tie_word_embeddings, NULL,
            "use one matrix for the input embedding and the output (default: on for T5, GPT-2 and Gemma)")},
    {SWITCH(attention_bias, NULL, "add biases to the attention projections")},
    {SWITCH(mlp_bias, NULL, "add biases to the feed-forward layers")},
    {CHOICE(feed_forward, "relu", activations, "T5: feed-forward layer"), .aliases = "feed_forward_proj"},
    {INT(relative_attention_buckets, "32", 2, "N", "T5: position buckets"),
     .aliases = "relative_attention_num_buckets"},
    {INT(relative_attention_max_distance, "128", 2, "N", "T5: distance beyond which positions share a bucket")},
    {INT(image_channels, NULL, 0, "N", "channels of an image (default: the data set's, otherwise 1)")},
    {INT(image_height, NULL, 0, "N", "height of an image (default: the data set's, otherwise 28)")},
    {INT(image_width, NULL, 0, "N", "width of an image (default: the data set's, otherwise 28)")},
    {INT(num_classes, NULL, 0, "N", "image classes (default: the data set's, otherwise 10)")},
    {INT(conv1_channels, "8", 1, "N", "CNN: channels of the first convolution")},
    {INT(conv2_channels, "16", 1, "N", "CNN: channels of the second convolution")},
    {INT(branch_channels, "4", 1, "N", "CNN: channels of the second branch")},
    {LIST(freeze, "GLOB,...", "parameters that are not trained, by name")},
    {COUNT(lora_rank, NULL, 0, 65536, "N",
           "train adapters of this rank beside linear layers (LoRA) and nothing else (default: train the model)")},
    {FLOAT(lora_alpha, "8", -1e9, 1e9, "X", "LoRA: scale of the adapters, times the rank")},
    {LIST(
        lora_targets, "NAME,...",
        "LoRA: layers by the end of their names or patterns of it; all-linear: all but the head (default: queries and "
        "values)")},
    {FLOAT(lora_dropout, "0", 0, 0.999, "P", "LoRA: dropout of what goes into the adapters")},
    {SWITCH(lora_rslora, NULL, "LoRA: divide by the root of the rank instead of the rank"), .aliases = "use_rslora"},
    {TEXT(adapter, NULL, "DIR", "LoRA: go on with the adapter in this folder, in peft's format")},
#undef GROUP

#define GROUP "Data"
    {LIST(dataset, "PATH[=WEIGHT],...",
          "files, globs, folders or a hub name: text, JSONL (also .gz, .zst), Parquet, Arrow, tokens, images; with "
          "weights, sources that are mixed"),
     .aliases = "training_dir train_dataset"},
    {TEXT(dataset_config_name, NULL, "NAME", "configuration of the data set, for example en for allenai/c4")},
    {TEXT(tokenizer, NULL, "PATH",
          "a tokenizer.json, its folder or a hub name (default: the model's, otherwise every byte is a token)")},
    {LIST(validation_dataset, "PATH,...",
          "validation data (default: the data set's own, if --validation_freq is set)")},
    {FLOAT(validation_split, NULL, 0, 0.999, "FRACTION", "fraction of the data set held back for validation")},
    {TEXT(source_field, "text", "NAME", "record field that holds the text, or the source of a pair")},
    {TEXT(target_field, "summary", "NAME", "record field that holds the target of a pair")},
    {SWITCH(chat, NULL,
            "records are conversations (messages) or a prompt and a response; the loss is on responses (default: if "
            "the first has messages and no text)")},
    {TEXT(chat_template, NULL, "FILE", "render conversations with this template (default: the tokenizer's)")},
    {TEXT(source_prefix, NULL, "TEXT", "text put before every source, for example \"summarize: \"")},
    {INT(max_target_width, "128", 1, "tokens", "maximum length of the target of a pair")},
    {INT(train_batch_size, "4", 1, "samples", "samples per rank and micro-batch")},
    {INT(val_batch_size, NULL, 0, "samples", "samples per rank and validation batch (default: --train_batch_size)")},
    {INT(max_samples, NULL, 0, "samples", "use only the first N samples of the data set (default: all)")},
    {COUNT(loader_threads, "1", 1, 64, "N", "threads that prepare samples")},
    {INT(prefetch_batches, "4", 1, "N", "batches prepared ahead")},
    {SWITCH(shuffle, "true", "shuffle the samples anew in every epoch")},
    {CHOICE(
        packing, "row", packings,
        "row: documents follow each other, are cut where a sample is full, and attention sees all of a sample; "
        "best_fit: "
        "they stay whole and are padded, attention stays inside a document, positions begin again with each, and no "
        "label crosses documents (streams; decoders)")},
    {CHOICE(stream, "auto", streams,
            "tokenize text while training, shuffled in windows of half a million tokens; auto: from 1 GiB on, "
            "with --max_steps"),
     .bare = "on"},
    {SWITCH(
        download, NULL,
        "fetch models, tokenizers and data sets with hub names into the Hugging Face cache; HF_ENDPOINT and HF_TOKEN "
        "as there")},
    {SWITCH(strict_data, NULL, "stop at a bad record instead of skipping it")},
    {TEXT(log_samples, NULL, "FILE", "write to FILE which rank read which sample")},
#undef GROUP

#define GROUP "Optimisation"
    {INT(max_steps, NULL, 0, "steps", "optimizer steps (default: set by --epochs)"),
     .aliases = "max_training_steps train_steps"},
    {INT(epochs, NULL, 0, "N", "passes over the data set (default: set by --max_steps, otherwise 1)")},
    {INT(gradient_accumulation_steps, "1", 1, "N", "micro-batches per optimizer step")},
    {SWITCH(sync_each_micro_batch, "true",
            "reduce gradients after every micro-batch; off: once per step, with more memory")},
    {CHOICE(optimizer, "adamw", optimizers, "update rule")},
    {FLOAT(lr, "3e-4", 0, 1e6, "X", "peak learning rate"), .aliases = "learning_rate"},
    {FLOAT(min_lr, "0", 0, 1e6, "X", "learning rate at the end of the decay")},
    {CHOICE(lr_decay_style, "cosine", lr_decay_styles, "how the learning rate falls after warmup")},
    {INT(lr_decay_iters, NULL, 0, "steps", "step at which the decay ends (default: the last)")},
    {FLOAT(warmup, "0", 0, 1e15, "X", "warmup steps; a value below 1 is a fraction of all steps"),
     .aliases = "warmup_steps"},
    {FLOAT(plateau, "0.4", 0, 1, "FRACTION", "plateau style: fraction of the steps at the peak learning rate")},
    {INT(lr_step_size, "1", 1, "N", "step style: epochs (with --epochs) or steps between reductions")},
    {FLOAT(lr_gamma, "0.1", 0, 1, "X",
           "factor of a reduction; step style: every --lr_step_size, exponential style: every step")},
    {FLOAT(momentum, "0.9", 0, 0.999999, "X", "sgd: momentum")},
    {FLOAT(weight_decay, "0.1", 0, 1e3, "X", "weight decay, of tensors with two or more dimensions")},
    {LIST(lr_groups, "GLOB=X,...", "learning rate of the parameters with these names, as a factor on --lr")},
    {LIST(weight_decay_groups, "GLOB=X,...",
          "weight decay of the parameters with these names, instead of --weight_decay")},
    {FLOAT(beta1, "0.9", 0, 0.9999999, "X", "adam, adamw: decay of the first moment")},
    {FLOAT(beta2, "0.95", 0, 0.9999999, "X", "adam, adamw: decay of the second moment")},
    {FLOAT(eps, "1e-8", 0, 1, "X", "adam, adamw: epsilon"), .aliases = "adam_epsilon"},
    {FLOAT(ema, "0", 0, 0.9999999, "DECAY",
           "keep an average of the weights with this decay (0.999, for instance) and validate with it; 0: none")},
    {FLOAT(grad_clip, "1", 0, 1e15, "X", "clip gradients to this global norm; 0: no clipping"),
     .aliases = "max_grad_norm"},
    {CHOICE(nan_policy, "stop", nan_policies, "what to do when the loss or a gradient is not finite")},
    {INT(seed, "42", 0, "N", "random seed, of initial values, shuffling and dropout")},
#undef GROUP

#define GROUP "Precision"
    {CHOICE(param_dtype, "fp32", dtypes,
            "precision of forward and backward; master weights of what is trained stay fp32")},
    {CHOICE(reduce_dtype, "fp32", dtypes, "precision in which gradients are stored and reduced")},
    {CHOICE(buffer_dtype, "fp32", dtypes, "precision of buffers such as rotary tables")},
    {SWITCH(bf16, NULL, "same as --param_dtype bf16")},
    {SWITCH(fp16, NULL, "same as --param_dtype fp16; uses loss scaling")},
    {CHOICE(fp8, "off", fp8_recipes,
            "8-bit products in linear layers (E4M3), with gradients in E5M2 (hybrid) or E4M3; the head stays as it is"),
     .bare = "hybrid"},
    {LIST(fp8_skip, "GLOB,...", "parameters whose layers stay in --param_dtype, for example 'model.layers.0.*'")},
    {FLOAT(loss_scale, NULL, 0, 1e30, "X", "fp16: initial loss scale (default: 65536)")},
#undef GROUP

#define GROUP "Sharding"
    {CHOICE(sharding_strategy, "auto", strategies,
            "what is sharded; auto: the fastest that fits in memory; recommended: by model size")},
    {INT(shard_group_size, NULL, 0, "ranks", "hybrid strategies: ranks per shard group (default: the ranks of a node)"),
     .aliases = "sharding_group_size"},
    {LIST(shard_weights, "N,...", "relative sizes of the shards, one per rank (default: equal)")},
    {CHOICE(wrap_policy, "transformer", wrap_policies, "which modules become units")},
    {LIST(wrap_types, "TYPE,...", "module types that become units (default: the model's blocks)")},
    {INT(min_num_params, "100000000", 1, "N", "size policy: minimum parameters per unit")},
    {INT(bucket_mb, NULL, 0, "MiB", "merge neighbouring units up to this size (default: off)")},
    {SWITCH(forward_prefetch, "true", "in forward, gather the next unit while one computes")},
    {CHOICE(backward_prefetch, "pre", prefetches,
            "in backward, gather the next unit before (pre) or after (post) one computes its gradients")},
    {SWITCH(limit_all_gathers, "true", "hold at most --gather_buffers gathered units at a time")},
    {INT(gather_buffers, "2", 1, "N", "gathered units at a time")},
    {CHOICE(activation_checkpointing, "none", checkpointings,
            "recompute activations in backward: of whole units (full), or all but attention (selective)"),
     .bare = "full"},
    {SWITCH(recompute_cheap, NULL, "recompute norms and activation functions in backward")},
    {SWITCH(offload_activations, NULL, "move checkpointed activations to host memory; implies checkpointing")},
    {SWITCH(cpu_offload, NULL, "keep master weights, gradients and optimizer state in host memory")},
    {LIST(cpu_offload_units, "GLOB,...", "offload only units with these names")},
    {CHOICE(comm_backend, "auto", backends, "how ranks communicate")},
    {FLOAT(comm_timeout, "600", 0.001, 1e9, "seconds", "maximum wait for another rank")},
    {SWITCH(comm_thread, NULL, "use a communication thread even if no core is free for it")},
#undef GROUP

#define GROUP "Checkpoints"
    {TEXT(checkpoint_dir, NULL, "DIR", "folder for checkpoints (default: checkpoints in --output_dir)")},
    {INT(checkpoint_freq, NULL, 0, "steps", "save every N steps (default: off)")},
    {FLOAT(checkpoint_minutes, NULL, 0, 1e9, "minutes", "save every N minutes (default: off)")},
    {INT(checkpoint_epochs, NULL, 0, "epochs", "save every N epochs (default: off)")},
    {SWITCH(checkpoint_at_end, "true", "save when the run ends")},
    {CHOICE(checkpoint_kind, "sharded", checkpoint_kinds,
            "a file per rank, a Hugging Face folder, or each rank's state on its own disk")},
    {SWITCH(async_checkpoint, "true", "write checkpoints in the background while training continues")},
    {CHOICE(on_checkpoint_failure, "continue", failure_policies,
            "what to do when a checkpoint cannot be written; if the last one fails, the exit code is 1")},
    {INT(keep_checkpoints, NULL, 0, "N", "keep the N newest checkpoints (default: all)")},
    {INT(keep_every, NULL, 0, "steps", "also keep checkpoints whose step is a multiple of N")},
    {TEXT(resume_from_checkpoint, NULL, "PATH",
          "resume a run's folder, a folder of checkpoints (the newest complete one) or a checkpoint; auto: this run's "
          "own newest one, or start if there is none"),
     .aliases = "resume"},
    {TEXT(export_dir, NULL, "DIR", "write the trained model as a Hugging Face folder at the end, adapters merged")},
    {TEXT(export_adapter, NULL, "DIR", "LoRA: write the adapter in peft's format at the end")},
    {BYTES(export_part_size, "5GB", "split exported weights into files of at most this size")},
#undef GROUP

#define GROUP "Watching"
    {INT(logging_freq, "1", 1, "steps", "steps between progress lines")},
    {INT(validation_freq, NULL, 0, "steps", "steps between validations (default: one at the end)")},
    {INT(validation_batches, NULL, 0, "N", "batches per rank in a validation (default: all)")},
    {TEXT(metrics, NULL, "FILE", "also append a JSON line per step to this file")},
    {TEXT(tensorboard_dir, NULL, "DIR", "write TensorBoard event files")},
    {TEXT(trace, NULL, "FILE",
          "write a trace of a few steps on all ranks, for Perfetto, chrome://tracing and `fsdp trace summary`")},
    {INT(trace_first, "2", 0, "step", "first step to trace")},
    {INT(trace_steps, "3", 1, "steps", "steps to trace")},
    {SWITCH(memory_report, "true", "end with a table of memory per rank")},
    {INT(sample_tokens, NULL, 0, "tokens", "at the end, let a language model generate N tokens")},
    {TEXT(sample_prompt, "/* ", "TEXT", "prompt for --sample_tokens")},
    {SWITCH(sample_at_validation, "false", "generate a sample after each validation during the run, too")},
    {CHOICE(log_level, "info", log_levels, "minimum level of log lines shown")},
#undef GROUP

#define GROUP "Machine"
    {TEXT(device, "auto", "NAME", "device; auto: cuda if there is one; the name of a GPU is for plans only"),
     .choices = devices},
    {TEXT(products, "auto", "NAME", "how the CPU multiplies matrices"), .choices = products},
    {COUNT(threads, NULL, 0, THREADS_MAX, "N",
           "threads per rank (default: OMP_NUM_THREADS, otherwise its share of the cores)")},
    {SWITCH(deterministic, NULL, "get the same bits in every run on a GPU too, at a cost in time and memory")},
#undef GROUP

#define GROUP "Plan"
    {INT(world_size, NULL, 0, "ranks", "ranks to plan for; auto: the fewest that fit (default: from the environment)"),
     .only = "plan", .choices = world_sizes},
    {INT(ranks_per_node, NULL, 0, "ranks", "ranks per node (default: all ranks)"), .only = "plan"},
    {BYTES(fit, NULL, "find the fastest setting that needs at most this much memory per rank"), .only = "plan"},
    {SWITCH(units, NULL, "list the units: parameters, bytes, when they are gathered and released"), .only = "plan"},
    {TEXT(timeline, NULL, "FILE.html", "write a page that draws the memory of one step, and why it does not fit"),
     .only = "plan"},
    {TEXT(svg, NULL, "FILE.svg", "draw the memory of one step as a picture by itself"), .only = "plan"},
    {TEXT(against, NULL, "FLAGS",
          "with --timeline or --svg: draw the plan with these flags added over the first, in quotes"),
     .only = "plan"},
#undef GROUP
    {.name = NULL},
};

_Static_assert(sizeof settings_table / sizeof *settings_table <= FSDP_FLAGS_MAX, "fsdp_flag_state is too small");
