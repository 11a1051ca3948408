/* The presets, as lists of flags. Shapes are those that the models were published with (their config.json); context
 * widths are the usual training lengths, not the longest that the positions allow. */
#include "settings/presets.h"

/* A byte-level LLaMA of 4.9 million parameters that learns the text of a source tree in a minute on two cores. */
static const preset_setting tiny[] = {
    {"model_type", "llama_v3"},
    {"vocab_size", "256"},
    {"hidden_width", "192"},
    {"num_layers", "5"},
    {"num_heads", "6"},
    {"intermediate_size", "512"},
    {"max_context_width", "128"},
    {"train_batch_size", "8"},
    {"dataset", "README.md,CONTRIBUTING.md,docs,include,src/base,src/comm,src/nn,src/models,src/optim,src/shard,src/"
                "tensor,src/train"},
    {"max_steps", "200"},
    {"lr", "3e-3"},
    {"min_lr", "3e-4"},
    {"warmup", "20"},
    {"beta2", "0.95"},
    {"grad_clip", "1"},
    {"logging_freq", "20"},
    {"sample_tokens", "400"},
    {"sample_prompt", "/* The "},
    {NULL, NULL},
};

/* The two-branch network for small images, with the recipe of the well-known example. */
static const preset_setting cnn[] = {
    {"model_type", "cnn"},
    {"hidden_width", "32"},
    {"train_batch_size", "64"},
    {"epochs", "3"},
    {"optimizer", "adam"},
    {"lr", "1e-2"},
    {"weight_decay", "1e-4"},
    {"beta2", "0.999"},
    {"lr_decay_style", "step"},
    {"lr_step_size", "1"},
    {"lr_gamma", "0.5"},
    {"grad_clip", "0.1"},
    {"wrap_policy", "size"},
    {"min_num_params", "512"},
    {"checkpoint_epochs", "1"},
    {"logging_freq", "10"},
    {NULL, NULL},
};

static const preset_setting t5_small[] = {
    {"model_type", "t5"},
    {"vocab_size", "32128"},
    {"hidden_width", "512"},
    {"num_layers", "6"},
    {"num_decoder_layers", "6"},
    {"num_heads", "8"},
    {"head_dim", "64"},
    {"intermediate_size", "2048"},
    {"relative_attention_buckets", "32"},
    {"relative_attention_max_distance", "128"},
    {"feed_forward", "relu"},
    {"dropout", "0.1"},
    {"norm_eps", "1e-6"},
    {"initializer_range", "1"},
    {"tie_word_embeddings", "true"},
    {"max_context_width", "512"},
    {"max_target_width", "150"},
    {"source_prefix", "summarize: "},
    {NULL, NULL},
};

#define LLAMA3(hidden, layers, heads, head, ffn, tied, factor)                                                         \
    {                                                                                                                  \
        {"model_type", "llama_v3"}, {"vocab_size", "128256"}, {"hidden_width", hidden}, {"num_layers", layers},        \
            {"num_heads", heads}, {"num_key_value_heads", "8"}, {"head_dim", head}, {"intermediate_size", ffn},        \
            {"tie_word_embeddings", tied}, {"rotary_emb_base", "500000"}, {"rope_scaling", "llama3"},                  \
            {"rope_factor", factor}, {"rope_low_freq_factor", "1"}, {"rope_high_freq_factor", "4"},                    \
            {"rope_original_context", "8192"}, {"norm_eps", "1e-5"}, {"max_context_width", "8192"},                    \
            {"train_batch_size", "1"}, {"bf16", "true"}, {NULL, NULL},                                                 \
    }

static const preset_setting llama3_2_1b[] = LLAMA3("2048", "16", "32", "64", "8192", "true", "32");
static const preset_setting llama3_2_3b[] = LLAMA3("3072", "28", "24", "128", "8192", "true", "32");
static const preset_setting llama3_1_8b[] = LLAMA3("4096", "32", "32", "128", "14336", "false", "8");
static const preset_setting llama3_1_70b[] = LLAMA3("8192", "80", "64", "128", "28672", "false", "8");

#define LLAMA2(type, hidden, layers, heads, kv_heads, ffn)                                                             \
    {                                                                                                                  \
        {"model_type", type}, {"vocab_size", "32000"}, {"hidden_width", hidden}, {"num_layers", layers},               \
            {"num_heads", heads}, {"num_key_value_heads", kv_heads}, {"head_dim", "128"}, {"intermediate_size", ffn},  \
            {"tie_word_embeddings", "false"}, {"rotary_emb_base", "10000"}, {"norm_eps", "1e-5"},                      \
            {"max_context_width", "4096"}, {"train_batch_size", "1"}, {"bf16", "true"}, {NULL, NULL},                  \
    }

static const preset_setting llama2_7b[] = LLAMA2("llama_v2", "4096", "32", "32", "32", "11008");
static const preset_setting llama2_13b[] = LLAMA2("llama_v2", "5120", "40", "40", "40", "13824");
/* 4096 tokens are its attention window, inside which the window changes nothing. */
static const preset_setting mistral_7b[] = LLAMA2("mistral", "4096", "32", "32", "8", "14336");

/* Of any family of decoders; flags that only some have stand beside. */
#define DECODER(type, vocabulary, hidden, layers, heads, kv_heads, head, ffn, tied, context, ...)                      \
    {                                                                                                                  \
        {"model_type", type}, {"vocab_size", vocabulary}, {"hidden_width", hidden}, {"num_layers", layers},            \
            {"num_heads", heads}, {"num_key_value_heads", kv_heads}, {"head_dim", head}, {"intermediate_size", ffn},   \
            {"tie_word_embeddings", tied}, {"max_context_width", context}, {"train_batch_size", "1"},                  \
            {"bf16", "true"}, __VA_ARGS__, {NULL, NULL},                                                               \
    }
#define ROTARY(base, eps)                                                                                              \
    {"rotary_emb_base", base},                                                                                         \
    {                                                                                                                  \
        "norm_eps", eps                                                                                                \
    }

static const preset_setting qwen2_5_1_5b[] =
    DECODER("qwen2", "151936", "1536", "28", "12", "2", "128", "8960", "true", "4096", ROTARY("1000000", "1e-6"));
static const preset_setting qwen3_0_6b[] =
    DECODER("qwen3", "151936", "1024", "28", "16", "8", "128", "3072", "true", "4096", ROTARY("1000000", "1e-6"));
static const preset_setting qwen3_8b[] =
    DECODER("qwen3", "151936", "4096", "36", "32", "8", "128", "12288", "false", "4096", ROTARY("1000000", "1e-6"));
static const preset_setting gemma3_1b[] = DECODER("gemma3", "262144", "1152", "26", "4", "1", "256", "6912", "true",
                                                  "4096", ROTARY("1000000", "1e-6"), {"sliding_window", "512"});
static const preset_setting gpt2_124m[] =
    DECODER("gpt2", "50257", "768", "12", "12", "12", "64", "3072", "true", "1024", {"norm_eps", "1e-5"});
static const preset_setting phi3_mini[] = DECODER("phi3", "32064", "3072", "32", "32", "32", "96", "8192", "false",
                                                  "4096", ROTARY("10000", "1e-5"), {"sliding_window", "2047"});

static const preset_setting none[] = {{NULL, NULL}};

static const preset_setting *const presets[FSDP_PRESET_COUNT] = {
    [FSDP_PRESET_NONE] = none,
    [FSDP_PRESET_TINY] = tiny,
    [FSDP_PRESET_CNN] = cnn,
    [FSDP_PRESET_T5_SMALL] = t5_small,
    [FSDP_PRESET_LLAMA3_2_1B] = llama3_2_1b,
    [FSDP_PRESET_LLAMA3_2_3B] = llama3_2_3b,
    [FSDP_PRESET_LLAMA3_1_8B] = llama3_1_8b,
    [FSDP_PRESET_LLAMA2_7B] = llama2_7b,
    [FSDP_PRESET_LLAMA2_13B] = llama2_13b,
    [FSDP_PRESET_LLAMA3_1_70B] = llama3_1_70b,
    [FSDP_PRESET_MISTRAL_7B] = mistral_7b,
    [FSDP_PRESET_QWEN2_5_1_5B] = qwen2_5_1_5b,
    [FSDP_PRESET_QWEN3_0_6B] = qwen3_0_6b,
    [FSDP_PRESET_QWEN3_8B] = qwen3_8b,
    [FSDP_PRESET_GEMMA3_1B] = gemma3_1b,
    [FSDP_PRESET_GPT2_124M] = gpt2_124m,
    [FSDP_PRESET_PHI3_MINI] = phi3_mini,
};

const preset_setting *preset_settings(fsdp_preset preset)
{
    return presets[preset];
}
