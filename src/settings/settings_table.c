/* Every flag of `fsdp train` and `fsdp plan`, described once. Parsing, help, the man page, completion, the reference
 * page and the settings file of a run are all made from these rows; what flags imply for each other is settings.c's. */
#include "settings/settings_table.h"

#include <fsdp/data.h>
#include <fsdp/dtype.h>
#include <fsdp/models.h>
#include <fsdp/settings.h>

#include "base/host/threads.h"

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
    {"adamw", FSDP_ADAMW, NULL}, {"adam", FSDP_ADAM, NULL},           {"sgd", FSDP_SGD, NULL},
    {"muon", FSDP_MUON, NULL},   {"adafactor", FSDP_ADAFACTOR, NULL}, {NULL, 0, NULL},
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

static const fsdp_choice lora_bases[] = {{"param_dtype", 0, NULL}, {"int8", 1, NULL}, {NULL, 0, NULL}};

static const fsdp_choice state_dtypes[] = {
    {"fp32", FSDP_F32, "float32 f32 float torch.float32"},
    {"bf16", FSDP_BF16, "bfloat16 torch.bfloat16"},
    {NULL, 0, NULL},
};

static const fsdp_choice fp8_recipes[] = {
    {"off", FSDP_FP8_OFF, "0 false no none"},
    {"hybrid", FSDP_FP8_HYBRID, "1 true yes on tensorwise"},
    {"e4m3", FSDP_FP8_E4M3, NULL},
    {NULL, 0, NULL},
};

static const fsdp_choice fp8_weights[] = {
    {"auto", FSDP_FP8_WEIGHTS_AUTO, NULL},
    {"use", FSDP_FP8_WEIGHTS_EACH_USE, NULL},
    {"step", FSDP_FP8_WEIGHTS_EACH_STEP, NULL},
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

static const fsdp_choice comm_memories[] = {{"plain", FSDP_COMM_MEMORY_PLAIN, NULL},
                                            {"symmetric", FSDP_COMM_MEMORY_SYMMETRIC, NULL},
                                            {"copy_engine", FSDP_COMM_MEMORY_COPY_ENGINE, NULL},
                                            {NULL, 0, NULL}};

static const fsdp_choice accumulations[] = {
    {"fp32", FSDP_ACCUMULATE_FP32, NULL}, {"library", FSDP_ACCUMULATE_LIBRARY, NULL}, {NULL, 0, NULL}};

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
static const fsdp_choice ports[] = {{"auto", FSDP_PORT_AUTO, NULL}, {NULL, 0, NULL}};
static const fsdp_choice page_ports[] = {{"auto", FSDP_PORT_AUTO, "true"}, {"off", 0, "false"}, {NULL, 0, NULL}};
static const fsdp_choice residents[] = {{"auto", FSDP_RESIDENT_AUTO, NULL}, {NULL, 0, NULL}};
static const fsdp_choice world_sizes[] = {{"auto", FSDP_WORLD_SIZE_AUTO, NULL}, {NULL, 0, NULL}};
static const fsdp_choice products[] = {
    {"auto", 0, NULL},   {"onednn", 0, NULL},   {"amx", 0, NULL},
    {"avx512", 0, NULL}, {"portable", 0, NULL}, {NULL, 0, NULL},
};

const fsdp_flag settings_table[] = {
#define GROUP "Run"
    {TEXT(config, NULL, "FILE",
          "read settings from a JSON file or \"key = value\" lines; the command line overrides it")},
    {TEXT(deepspeed, NULL, "FILE", "read a DeepSpeed ds_config.json as settings; flags and --config override it"),
     .only = "train plan bench"},
    {TEXT(accelerate, NULL, "FILE", "read an accelerate YAML file as settings; flags and --config override it"),
     .only = "train plan bench"},
    {CHOICE(preset, "none", presets, "a known model's shape and recipe; other flags override it")},
    {SWITCH(dry_run, NULL, "print the plan and all settings, then stop"), .only = "train"},
    {SWITCH(json, NULL, "print JSON instead of tables (train: only with --dry_run)"), .only = "plan train"},
    {TEXT(output_dir, NULL, "DIR",
          "folder for settings, metrics.jsonl, checkpoints and one log per rank (default: a new folder in fsdp_runs; "
          "fsdp_runs/latest points at it)")},
    {SWITCH(overwrite, NULL, "replace the run in --output_dir; nothing is deleted until training can start"),
     .only = "train"},
#undef GROUP

#define GROUP "Model"
    {CHOICE(model_type, "llama_v3", model_types, "architecture")},
    {TEXT(model_config, NULL, "FILE", "read the model shape from a Hugging Face config.json or its folder")},
    {TEXT(init_from, NULL, "PATH",
          "initial weights: a Hugging Face folder, a safetensors or PyTorch file, or a checkpoint")},
    {INT(vocab_size, NULL, 0, "N", "vocabulary size (default: the tokenizer's)")},
    {INT(max_context_width, "2048", 1, "tokens", "tokens per sample")},
    {INT(hidden_width, "768", 1, "N", "model width (MLP: width of the hidden layers)")},
    {INT(num_layers, "12", 1, "N", "number of layers (T5: encoder layers)")},
    {INT(num_decoder_layers, NULL, 0, "N", "T5: decoder layers (default: --num_layers)")},
    {INT(num_heads, "12", 1, "N", "number of attention heads")},
    {INT(num_key_value_heads, NULL, 0, "N", "number of key and value heads (default: --num_heads)")},
    {INT(head_dim, NULL, 0, "N", "width of a head (default: --hidden_width / --num_heads)")},
    {INT(sliding_window, NULL, 0, "tokens",
         "attention window; 0: no limit (Gemma: applies to five of every six layers)")},
    {INT(intermediate_size, "2048", 1, "N", "width of the feed-forward layer")},
    {FLOAT(rotary_emb_base, NULL, 0, 1e15, "X",
           "RoPE base (default: 500000 for llama_v3, 1000000 for Qwen and Gemma, otherwise 10000)")},
    {CHOICE(rope_scaling, "none", rope_scalings, "RoPE scaling for longer contexts"), .aliases = "rope_type"},
    {FLOAT(rope_factor, "1", 1, 1e9, "X", "scaling factor of --rope_scaling")},
    {FLOAT(rope_low_freq_factor, "1", 0, 1e9, "X", "llama3 scaling: lower frequencies are scaled by the full factor")},
    {FLOAT(rope_high_freq_factor, "4", 0, 1e9, "X", "llama3 scaling: higher frequencies are not scaled")},
    {INT(rope_original_context, "8192", 1, "tokens",
         "llama3, dynamic, yarn scaling: context length the model was trained with")},
    {FLOAT(norm_eps, NULL, 0, 1, "X",
           "epsilon of normalization layers (default: 1e-6 for T5, Qwen and Gemma, otherwise 1e-5)"),
     .aliases = "rms_norm_eps layer_norm_eps layer_norm_epsilon"},
    {FLOAT(initializer_range, "0.02", 0, 1e3, "X",
           "standard deviation of initial weights (T5: initialization factor)")},
    {FLOAT(dropout, "0.1", 0, 0.999, "P", "T5, GPT-2: dropout (GPT-2 default: from its config.json, otherwise none)"),
     .aliases = "dropout_rate"},
    {SWITCH(tie_word_embeddings, NULL,
            "share one matrix between input embedding and output head (default: on for T5, GPT-2 and Gemma)")},
    {SWITCH(attention_bias, NULL, "add biases to the attention projections")},
    {SWITCH(mlp_bias, NULL, "add biases to the feed-forward layers")},
    {CHOICE(feed_forward, "relu", activations, "T5: type of feed-forward layer"), .aliases = "feed_forward_proj"},
    {INT(relative_attention_buckets, "32", 2, "N", "T5: number of position buckets"),
     .aliases = "relative_attention_num_buckets"},
    {INT(relative_attention_max_distance, "128", 2, "N", "T5: positions farther apart share one bucket")},
    {INT(image_channels, NULL, 0, "N", "image channels (default: from the data set, otherwise 1)")},
    {INT(image_height, NULL, 0, "N", "image height (default: from the data set, otherwise 28)")},
    {INT(image_width, NULL, 0, "N", "image width (default: from the data set, otherwise 28)")},
    {INT(num_classes, NULL, 0, "N", "number of classes (default: from the data set, otherwise 10)")},
    {INT(conv1_channels, "8", 1, "N", "CNN: output channels of the first convolution")},
    {INT(conv2_channels, "16", 1, "N", "CNN: output channels of the second convolution")},
    {INT(branch_channels, "4", 1, "N", "CNN: output channels of the second branch")},
    {LIST(freeze, "GLOB,...", "do not train parameters whose names match")},
    {COUNT(lora_rank, NULL, 0, 65536, "N",
           "train only LoRA adapters of this rank (default: off, train the whole model)")},
    {FLOAT(lora_alpha, "8", -1e9, 1e9, "X", "LoRA: alpha; adapters are scaled by alpha / rank")},
    {LIST(lora_targets, "NAME,...",
          "LoRA: layers to adapt, by the end of their names (globs allowed); all-linear: all but the output head "
          "(default: query and value projections)")},
    {FLOAT(lora_dropout, "0", 0, 0.999, "P", "LoRA: dropout on the adapters' input")},
    {CHOICE(lora_base, "param_dtype", lora_bases,
            "LoRA: how the frozen linear layers are kept; int8: as 8-bit blocks of 64, widened before use")},
    {SWITCH(lora_rslora, NULL, "LoRA: scale by alpha / sqrt(rank) instead"), .aliases = "use_rslora"},
    {TEXT(base, NULL, "PATH",
          "LoRA: the base model of the checkpoint that --init_from names (default: where training had it)")},
    {TEXT(adapter, NULL, "DIR", "LoRA: start from the adapter in this folder (peft's format)")},
#undef GROUP

#define GROUP "Data"
    {LIST(dataset, "PATH[=WEIGHT],...",
          "files, globs, folders or a hub name: text, JSONL (also .gz, .zst), Parquet, Arrow, token files, images; "
          "weights mix several sources"),
     .aliases = "training_dir train_dataset"},
    {TEXT(dataset_config_name, NULL, "NAME", "data set configuration, such as en for allenai/c4")},
    {TEXT(tokenizer, NULL, "PATH",
          "a tokenizer.json, its folder or a hub name (default: the model's, otherwise one token per byte)")},
    {LIST(validation_dataset, "PATH,...", "validation data (default: the data set's own, if it has some)")},
    {FLOAT(validation_split, NULL, 0, 0.999, "FRACTION", "hold back this fraction of the data set for validation")},
    {TEXT(source_field, "text", "NAME", "field with the text, or with the source of a pair")},
    {TEXT(target_field, "summary", "NAME", "field with the target of a pair")},
    {SWITCH(chat, NULL,
            "records are conversations (messages) or prompt and response; only responses count in the loss (default: "
            "on if the first record has messages and no text)")},
    {TEXT(chat_template, NULL, "FILE", "render conversations with this template (default: the tokenizer's)")},
    {TEXT(source_prefix, NULL, "TEXT", "text to put before every source, such as \"summarize: \"")},
    {INT(max_target_width, "128", 1, "tokens", "maximum target length of a pair")},
    {INT(train_batch_size, "4", 1, "samples", "samples per micro-batch on each rank")},
    {INT(val_batch_size, NULL, 0, "samples",
         "samples per validation batch on each rank (default: --train_batch_size)")},
    {INT(max_samples, NULL, 0, "samples", "use only the first N samples of the data set (default: all)")},
    {COUNT(loader_threads, "1", 1, 64, "N", "threads that prepare samples")},
    {INT(prefetch_batches, "4", 1, "N", "batches to prepare ahead")},
    {SWITCH(shuffle, "true", "reshuffle the samples every epoch")},
    {CHOICE(packing, "row", packings,
            "how documents fill samples. row: back to back, cut where a sample is full, with attention across "
            "documents; best_fit: kept whole and padded, with attention, positions and labels separate for each "
            "document (streamed text, decoder models)")},
    {CHOICE(stream, "auto", streams,
            "tokenize text while training, shuffling within windows of half a million tokens; auto: on from 1 GiB of "
            "text, if --max_steps is set"),
     .bare = "on"},
    {SWITCH(download, NULL,
            "download models, tokenizers and data sets given by hub name into the Hugging Face cache (uses HF_ENDPOINT "
            "and HF_TOKEN); streamed text comes file by file, while training")},
    {SWITCH(strict_data, NULL, "stop at a bad record instead of skipping it")},
    {TEXT(log_samples, NULL, "FILE", "log which rank read which sample to FILE")},
#undef GROUP

#define GROUP "Optimisation"
    {INT(max_steps, NULL, 0, "steps", "number of optimizer steps (default: follows from --epochs)"),
     .aliases = "max_training_steps train_steps"},
    {INT(epochs, NULL, 0, "N", "number of passes over the data set (default: follows from --max_steps, otherwise 1)")},
    {INT(gradient_accumulation_steps, "1", 1, "N", "micro-batches per optimizer step")},
    {SWITCH(sync_each_micro_batch, "true",
            "reduce gradients after every micro-batch; off: once per step, which needs more memory")},
    {CHOICE(optimizer, "adamw", optimizers, "optimizer")},
    {FLOAT(lr, "3e-4", 0, 1e6, "X", "peak learning rate"), .aliases = "learning_rate"},
    {FLOAT(min_lr, "0", 0, 1e6, "X", "learning rate at the end of the decay")},
    {CHOICE(lr_decay_style, "cosine", lr_decay_styles, "learning rate schedule after warmup")},
    {INT(lr_decay_iters, NULL, 0, "steps", "step at which the decay ends (default: the last step)")},
    {FLOAT(warmup, "0", 0, 1e15, "X", "warmup steps; below 1: a fraction of all steps"), .aliases = "warmup_steps"},
    {FLOAT(plateau, "0.4", 0, 1, "FRACTION", "plateau schedule: fraction of steps at the peak learning rate")},
    {INT(lr_step_size, "1", 1, "N", "step schedule: epochs (with --epochs) or steps between reductions")},
    {FLOAT(lr_gamma, "0.1", 0, 1, "X",
           "factor per reduction (step schedule: every --lr_step_size; exponential: every step)")},
    {FLOAT(momentum, "0.9", 0, 0.999999, "X", "sgd: momentum")},
    {FLOAT(muon_momentum, "0.95", 0, 0.999999, "X", "muon: momentum of its matrices; all else is adamw's")},
    {FLOAT(adafactor_decay, "0.8", 1e-3, 1, "X", "adafactor: in step t second moments decay by 1 - t^-X")},
    {FLOAT(adafactor_clip, "1", 1e-6, 1e6, "X", "adafactor: largest root mean square of a parameter's update")},
    {SWITCH(adafactor_scale, "true", "adafactor: multiply the learning rate by each parameter's root mean square")},
    {SWITCH(adafactor_relative_step, NULL, "adafactor: use min(0.01, 1/sqrt(step)) as learning rate instead of --lr")},
    {FLOAT(weight_decay, "0.1", 0, 1e3, "X", "weight decay; applies to tensors with two or more dimensions")},
    {LIST(lr_groups, "GLOB=X,...", "multiply --lr by X for parameters whose names match")},
    {LIST(weight_decay_groups, "GLOB=X,...", "use weight decay X for parameters whose names match")},
    {FLOAT(beta1, "0.9", 0, 0.9999999, "X", "adam, adamw: decay of the first moment")},
    {FLOAT(beta2, "0.95", 0, 0.9999999, "X", "adam, adamw: decay of the second moment")},
    {FLOAT(eps, "1e-8", 0, 1, "X", "adam, adamw: epsilon"), .aliases = "adam_epsilon"},
    {FLOAT(ema, "0", 0, 0.9999999, "DECAY",
           "keep a moving average of the weights with this decay (such as 0.999) and validate with it; 0: off")},
    {FLOAT(grad_clip, "1", 0, 1e15, "X", "clip gradients to this global norm; 0: off"), .aliases = "max_grad_norm"},
    {CHOICE(nan_policy, "stop", nan_policies, "what to do when the loss or a gradient is not finite")},
    {INT(seed, "42", 0, "N", "random seed for initial weights, shuffling and dropout")},
#undef GROUP

#define GROUP "Precision"
    {CHOICE(param_dtype, "fp32", dtypes,
            "precision of forward and backward; master weights of trained parameters stay fp32")},
    {CHOICE(reduce_dtype, "fp32", dtypes, "precision of stored and reduced gradients")},
    {CHOICE(reduce_accumulation, "fp32", accumulations,
            "how GPUs add up bf16 and fp16 gradients; fp32: in fp32, rounded once, as CPUs do; library: left to NCCL, "
            "which may round every partial sum")},
    {CHOICE(buffer_dtype, "fp32", dtypes, "precision of buffers such as rotary tables")},
    {SWITCH(bf16, NULL, "same as --param_dtype bf16")},
    {SWITCH(fp16, NULL, "same as --param_dtype fp16; uses loss scaling")},
    {CHOICE(fp8, "off", fp8_recipes,
            "8-bit matrix products in linear layers (E4M3); gradients in E5M2 (hybrid) or E4M3. The output head is not "
            "affected"),
     .bare = "hybrid"},
    {LIST(fp8_skip, "GLOB,...",
          "layers that stay in --param_dtype, by the names of their parameters, such as 'model.layers.0.*'")},
    {CHOICE(fp8_weights, "auto", fp8_weights,
            "--fp8: when weights are rounded. use: at each use; step: once a step, which takes a byte for each weight "
            "that a rank holds; auto: once a step for sharded units, which are then gathered in 8 bits, and for all "
            "units if a step has several micro-batches and it fits. Results are the same")},
    {INT(fp8_check, NULL, 0, "steps",
         "every N steps, compare each layer's 8-bit products with those in --param_dtype on the same batch; layers out "
         "of bounds leave 8 bits (default: off)")},
    {FLOAT(fp8_max_error, "0.15", 0, 1e6, "X",
           "--fp8_check: largest relative error of a layer's output and of its weight gradient")},
    {CHOICE(optimizer_state, "fp32", state_dtypes,
            "precision of the optimizer's moments; bf16 (stochastically rounded) saves 4 bytes per parameter")},
    {CHOICE(gradient_dtype, "fp32", state_dtypes,
            "precision of the gradients that the optimizer reads; bf16 saves 2 bytes per parameter, implies "
            "--reduce_dtype bf16 and takes one micro-batch per step")},
    {FLOAT(loss_scale, NULL, 0, 1e30, "X", "fp16: initial loss scale (default: 65536)")},
#undef GROUP

#define GROUP "Sharding"
    {CHOICE(sharding_strategy, "auto", strategies,
            "what to shard; auto: the fastest that fits in memory; recommended: by model size")},
    {INT(shard_group_size, NULL, 0, "ranks", "hybrid strategies: ranks per shard group (default: ranks per node)"),
     .aliases = "sharding_group_size"},
    {LIST(unit_strategies, "GLOB=STRATEGY,...",
          "another strategy for units whose names match; the first that matches decides")},
    {LIST(shard_weights, "N,...", "relative sizes of the shards, one per rank (default: equal)")},
    {CHOICE(wrap_policy, "transformer", wrap_policies, "which modules become units")},
    {LIST(wrap_types, "TYPE,...", "module types that become units (default: the model's blocks)")},
    {INT(min_num_params, "100000000", 1, "N", "size policy: minimum parameters per unit")},
    {INT(bucket_mb, NULL, 0, "MiB", "merge neighbouring units up to this size (default: off)")},
    {SWITCH(forward_prefetch, "true",
            "forward: gather the next unit while the current one computes, and the first units during the previous "
            "optimizer step")},
    {CHOICE(backward_prefetch, "pre", prefetches,
            "backward: gather the next unit before (pre) or after (post) the current one computes its gradients")},
    {SWITCH(limit_all_gathers, "true", "hold at most --gather_buffers gathered units at a time")},
    {INT(gather_buffers, "2", 1, "N", "how many gathered units --limit_all_gathers allows")},
    {CHOICE(activation_checkpointing, "none", checkpointings,
            "recompute activations in backward; full: whole units; selective: all but attention"),
     .bare = "full"},
    {SWITCH(recompute_cheap, NULL, "recompute norms and activation functions in backward")},
    {SWITCH(offload_activations, NULL, "move checkpointed activations to host memory; implies checkpointing")},
    {SWITCH(cpu_offload, NULL, "keep master weights, gradients and optimizer state in host memory")},
    {LIST(cpu_offload_units, "GLOB,...", "offload only units whose names match")},
    {SWITCH(cpu_offload_split, NULL, "the GPU updates a part of the offloaded units, streamed through its memory")},
    {SWITCH(cpu_offload_ahead, NULL,
            "update offloaded units before the gradient norm is known; undone if it clips; takes more host memory")},
    {COUNT(cpu_offload_resident, NULL, 0, 100, "PERCENT",
           "keep the first units on the device, up to this share of the parameters to be offloaded; auto: as many as "
           "fit (the default if fsdp itself chooses to offload)"),
     .choices = residents},
    {CHOICE(comm_backend, "auto", backends, "how ranks communicate")},
    {FLOAT(comm_timeout, "600", 0.001, 1e9, "seconds",
           "longest wait for another rank before the job fails (default: NCCL_TIMEOUT, otherwise 600)")},
    {SWITCH(comm_thread, NULL, "use a communication thread even if no core is free for it")},
    {COUNT(comm_ctas, NULL, 0, 64, "N",
           "most multiprocessors that an NCCL collective takes (default: 16 on Hopper, otherwise NCCL decides)")},
    {CHOICE(comm_memory, "plain", comm_memories,
            "memory of NCCL's collectives; symmetric: NCCL's own, which needs fewer multiprocessors; copy_engine: the "
            "same, and gathers need none (NCCL 2.28)")},
#undef GROUP

#define GROUP "Checkpoints"
    {TEXT(checkpoint_dir, NULL, "DIR", "folder for checkpoints (default: checkpoints in --output_dir)")},
    {INT(checkpoint_freq, NULL, 0, "steps", "save every N steps (default: off)")},
    {FLOAT(checkpoint_minutes, NULL, 0, 1e9, "minutes", "save every N minutes (default: off)")},
    {INT(checkpoint_epochs, NULL, 0, "epochs", "save every N epochs (default: off)")},
    {INT(snapshot_freq, NULL, 0, "steps",
         "keep the state in memory that `fsdp run` holds, so that a restart loses at most N steps (default: off)")},
    {SWITCH(checkpoint_at_end, "true", "save when the run ends")},
    {CHOICE(checkpoint_kind, "sharded", checkpoint_kinds,
            "sharded: one file per rank; full: a Hugging Face folder; local: each rank's state on its own disk")},
    {SWITCH(
        checkpoint_base, NULL,
        "LoRA: store the frozen base in checkpoints, too (default: they refer to --init_from; full ones store it)")},
    {SWITCH(async_checkpoint, "true", "write checkpoints in the background while training continues")},
    {CHOICE(on_checkpoint_failure, "continue", failure_policies,
            "what to do when a checkpoint cannot be written; if the last one fails, the exit code is always 1")},
    {INT(keep_checkpoints, NULL, 0, "N", "keep the N newest checkpoints (default: all)")},
    {INT(keep_every, NULL, 0, "steps", "also keep checkpoints whose step is a multiple of N")},
    {TEXT(resume_from_checkpoint, NULL, "PATH",
          "resume from a run's folder, a folder of checkpoints (the newest complete one) or one checkpoint; auto: "
          "resume this run if it has a checkpoint, otherwise start"),
     .aliases = "resume"},
    {TEXT(export_dir, NULL, "DIR", "at the end, write the model as a Hugging Face folder (LoRA: adapters merged)")},
    {TEXT(export_adapter, NULL, "DIR", "LoRA: at the end, write the adapter in peft's format")},
    {BYTES(export_part_size, "5GB", "split exported weights into files of at most this size")},
#undef GROUP

#define GROUP "Watching"
    {INT(logging_freq, "1", 1, "steps", "print progress every N steps")},
    {INT(validation_freq, NULL, 0, "steps", "validate every N steps (default: once, at the end)")},
    {INT(validation_batches, NULL, 0, "N", "batches per validation on each rank (default: all)")},
    {TEXT(metrics, NULL, "FILE", "also append a JSON line per step to this file")},
    {TEXT(tensorboard_dir, NULL, "DIR", "write TensorBoard event files")},
    {COUNT(metrics_port, NULL, 0, 65535, "PORT",
           "let Prometheus scrape the run on each node at http://ADDRESS:PORT/metrics; auto: any free port (default: "
           "off)"),
     .choices = ports},
    {TEXT(metrics_address, "127.0.0.1", "ADDRESS",
          "where --metrics_port listens; 0.0.0.0: everywhere, for everyone who can reach it")},
    {COUNT(dashboard, NULL, 0, 65535, "PORT",
           "show the run on a live page (and to `fsdp top`) at http://127.0.0.1:PORT/; alone or auto: any free port, "
           "which the run prints (default: off)"),
     .choices = page_ports, .bare = "auto"},
    {TEXT(dashboard_address, NULL, "ADDRESS",
          "where --dashboard listens; beyond this host, the page wants a token: FSDP_DASHBOARD_TOKEN, or one that the "
          "run prints (default: this host only)")},
    {TEXT(trace, NULL, "FILE",
          "trace a few steps on all ranks, for Perfetto, chrome://tracing and `fsdp trace summary`")},
    {INT(trace_first, "2", 0, "step", "first step to trace")},
    {INT(trace_steps, "3", 1, "steps", "number of steps to trace")},
    {SWITCH(memory_report, "true", "print memory per rank at the end")},
    {INT(sample_tokens, NULL, 0, "tokens", "generate N tokens at the end (language models)")},
    {TEXT(sample_prompt, "/* ", "TEXT|@FILE",
          "prompt for --sample_tokens; @FILE: a prompt per line, written side by side")},
    {SWITCH(sample_at_validation, NULL, "also generate a sample after each validation")},
    {CHOICE(log_level, "info", log_levels, "lowest level of log lines to show")},
#undef GROUP

#define GROUP "Machine"
    {TEXT(device, "auto", "NAME", "device; auto: cuda if available; GPU names are for plans only"), .choices = devices},
    {TEXT(products, "auto", "NAME", "CPU library or instructions for matrix products"), .choices = products},
    {COUNT(threads, NULL, 0, THREADS_MAX, "N",
           "threads per rank (default: OMP_NUM_THREADS, otherwise an equal share of the cores)")},
    {TEXT(profile, NULL, "FILE",
          "kernel times to predict steps with: a file of fsdp bench kernel --profile, or h200, h100, a100")},
    {SWITCH(deterministic, NULL, "bitwise reproducible results on GPUs too, at some cost in time and memory")},
#undef GROUP

#define GROUP "Plan"
    {COUNT(world_size, NULL, 0, PLAN_MAX_RANKS, "ranks",
           "number of ranks; auto: the fewest that fit (default: from the environment)"),
     .only = "plan", .choices = world_sizes},
    {INT(ranks_per_node, NULL, 0, "ranks", "ranks per node (default: all ranks)"), .only = "plan"},
    {BYTES(fit, NULL, "find the fastest setting that fits in this much memory per rank"), .only = "plan"},
    {SWITCH(units, NULL, "list units: parameters, bytes, when each is gathered and released"), .only = "plan"},
    {TEXT(timeline, NULL, "FILE.html", "write a page that shows memory over one step, and what does not fit"),
     .only = "plan"},
    {TEXT(svg, NULL, "FILE.svg", "write a picture of memory over one step"), .only = "plan"},
    {SWITCH(predict, NULL, "estimate step time, exposed communication and utilization from a profile of kernel times"),
     .only = "plan"},
    {LIST(predict_scaling, "RANKS", "with --predict: the same for these world sizes; auto: up to 16384 ranks"),
     .only = "plan"},
    {LIST(predict_links, "GB/s", "with --predict: bandwidth of a rank within its node, and out of it"), .only = "plan"},
    {TEXT(against, NULL, "FLAGS", "with --timeline or --svg: compare with the plan that these flags (in quotes) give"),
     .only = "plan"},
#undef GROUP
    {.name = NULL},
};

_Static_assert(sizeof settings_table / sizeof *settings_table <= FSDP_FLAGS_MAX, "fsdp_flag_state is too small");
