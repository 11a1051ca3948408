/* The table of families. Defaults are transformers'. */
#include "models/family.h"

#define LLAMA_NAMES                                                                                                    \
    .embedding = "model.embed_tokens", .layers = "model.layers", .norm = "model.norm", .out = "self_attn.o_proj",      \
    .down = "mlp.down_proj", .norm_1 = "input_layernorm"
#define LLAMA_PARTS                                                                                                    \
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, .up = {"mlp.gate_proj", "mlp.up_proj"}
#define NORM_2 .norm_2 = "post_attention_layernorm"
#define BLOCK(name)                                                                                                    \
    {                                                                                                                  \
        .type = name, .forward_list = decoder_block_forward                                                            \
    }
#define HEAD_NORMS .q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"

static const family_traits families[FSDP_FAMILY_COUNT] = {
    [FSDP_FAMILY_LLAMA] = {.model_type = "llama",
                           .architecture = "LlamaForCausalLM",
                           .block = BLOCK("llama_block"),
                           .names = {LLAMA_NAMES, LLAMA_PARTS, NORM_2},
                           .defaults = {.positions = 2048, .norm_eps = 1e-6f, .rope_base = 10000}},

    [FSDP_FAMILY_MISTRAL] =
        {.model_type = "mistral",
         .architecture = "MistralForCausalLM",
         .block = BLOCK("llama_block"),
         .names = {LLAMA_NAMES, LLAMA_PARTS, NORM_2},
         .defaults = {.positions = 131072, .kv_heads = 8, .window = 4096, .norm_eps = 1e-6f, .rope_base = 10000}},

    [FSDP_FAMILY_QWEN2] =
        {.model_type = "qwen2",
         .architecture = "Qwen2ForCausalLM",
         .block = BLOCK("qwen2_block"),
         .names = {LLAMA_NAMES, LLAMA_PARTS, NORM_2},
         .biases = BIAS_QKV,
         .defaults = {.positions = 32768, .kv_heads = 32, .window = 4096, .norm_eps = 1e-6f, .rope_base = 10000}},

    [FSDP_FAMILY_QWEN3] = {.model_type = "qwen3",
                           .architecture = "Qwen3ForCausalLM",
                           .block = BLOCK("qwen3_block"),
                           .names = {LLAMA_NAMES, LLAMA_PARTS, NORM_2, HEAD_NORMS},
                           .defaults = {.positions = 32768,
                                        .kv_heads = 32,
                                        .head_dim = 128,
                                        .window = 4096,
                                        .norm_eps = 1e-6f,
                                        .rope_base = 10000}},

    [FSDP_FAMILY_GEMMA3] = {.model_type = "gemma3_text",
                            .architecture = "Gemma3ForCausalLM",
                            .block = BLOCK("gemma3_block"),
                            .names = {LLAMA_NAMES, LLAMA_PARTS, HEAD_NORMS, .post_1 = "post_attention_layernorm",
                                      .norm_2 = "pre_feedforward_layernorm", .post_2 = "post_feedforward_layernorm"},
                            .norm = NORM_RMS_PLUS_ONE,
                            .scaled_embedding = true,
                            .defaults = {.positions = 131072,
                                         .kv_heads = 4,
                                         .head_dim = 256,
                                         .query_scalar = 256,
                                         .window = 4096,
                                         .norm_eps = 1e-6f,
                                         .rope_base = 1000000,
                                         .rope_local_base = 10000,
                                         .function = FSDP_FUNCTION_GELU_TANH,
                                         .tied = true}},

    [FSDP_FAMILY_GPT2] = {.model_type = "gpt2",
                          .architecture = "GPT2LMHeadModel",
                          .block = BLOCK("gpt2_block"),
                          .names = {.embedding = "transformer.wte",
                                    .positions = "transformer.wpe",
                                    .layers = "transformer.h",
                                    .norm = "transformer.ln_f",
                                    .qkv = {"attn.c_attn"},
                                    .out = "attn.c_proj",
                                    .up = {"mlp.c_fc"},
                                    .down = "mlp.c_proj",
                                    .norm_1 = "ln_1",
                                    .norm_2 = "ln_2"},
                          .norm = NORM_LAYER,
                          .biases = BIAS_ALL,
                          .ungated = true,
                          .input_major = true,
                          .scaled_residuals = true,
                          .defaults = {.positions = 1024,
                                       .norm_eps = 1e-5f,
                                       .function = FSDP_FUNCTION_GELU_TANH,
                                       .tied = true,
                                       .embedding_dropout = 0.1f,
                                       .residual_dropout = 0.1f,
                                       .attention_dropout = 0.1f}},

    [FSDP_FAMILY_PHI3] = {.model_type = "phi3",
                          .architecture = "Phi3ForCausalLM",
                          .block = BLOCK("phi3_block"),
                          .names = {LLAMA_NAMES, NORM_2, .qkv = {"self_attn.qkv_proj"}, .up = {"mlp.gate_up_proj"}},
                          .defaults = {.positions = 4096, .norm_eps = 1e-5f, .rope_base = 10000}},
};

const family_traits *family_of(fsdp_family family)
{
    return (unsigned)family < FSDP_FAMILY_COUNT ? &families[family] : &families[FSDP_FAMILY_LLAMA];
}
