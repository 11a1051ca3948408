/* The models that come with the library. Each is single-device code: a module tree with Hugging Face's parameter names,
 * built from a configuration, and functions that record its logits and its loss.
 *
 *     fsdp_llama_config shape = FSDP_LLAMA_CONFIG_INIT;
 *     fsdp_module *net;
 *     shape.vocabulary = 256, shape.hidden = 64, shape.intermediate = 192, shape.layers = 2;
 *     shape.heads = shape.kv_heads = 4, shape.head_dim = 16, shape.positions = 128;
 *     FSDP_TRY(fsdp_llama_new(&shape, &net));
 *     FSDP_TRY(fsdp_shard(world, net, &sharding, &model));
 *     ...
 *     fsdp_tape *t = fsdp_begin(model);
 *     fsdp_loss loss = fsdp_llama_loss(net, t, fsdp_input(t, FSDP_I32, 2, size, ids),
 *                                      fsdp_input(t, FSDP_I32, 2, size, labels)); */
#ifndef FSDP_MODELS_H
#define FSDP_MODELS_H

#include <fsdp/module.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_rope_scaling {
    FSDP_ROPE_PLAIN,
    FSDP_ROPE_LINEAR,
    FSDP_ROPE_LLAMA3,
    FSDP_ROPE_DYNAMIC,
    FSDP_ROPE_YARN
} fsdp_rope_scaling;

/* Whose decoder it is: how its blocks are built and what its weights are called. */
typedef enum fsdp_family {
    FSDP_FAMILY_LLAMA,
    FSDP_FAMILY_MISTRAL,
    FSDP_FAMILY_QWEN2, /* also Qwen2.5 */
    FSDP_FAMILY_QWEN3,
    FSDP_FAMILY_GEMMA3, /* the text model */
    FSDP_FAMILY_GPT2,
    FSDP_FAMILY_PHI3,
    FSDP_FAMILY_COUNT
} fsdp_family;

typedef enum fsdp_feed_forward_function {
    FSDP_FUNCTION_SILU,
    FSDP_FUNCTION_GELU_TANH, /* "gelu_new", "gelu_pytorch_tanh" */
    FSDP_FUNCTION_GELU,      /* with erf; without a gate only */
    FSDP_FUNCTION_RELU       /* without a gate only */
} fsdp_feed_forward_function;

/* A decoder of one of the families. Zeroes are LLaMA's. */
typedef struct fsdp_decoder_config {
    size_t size;
    int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim;
    int64_t positions; /* longest sequence */
    int64_t window;    /* how many tokens attention sees, the present one included; 0: all before it */
    double rope_base;
    fsdp_rope_scaling rope_scaling;
    double rope_factor, rope_low_factor, rope_high_factor, rope_original_positions;
    float norm_eps;
    float init_deviation;
    bool tied, attention_bias, mlp_bias;

    fsdp_family family;
    fsdp_feed_forward_function function;
    uint64_t full_layers[16]; /* bit i % 64 of number i / 64: layer i sees all, whatever the window is */
    double rope_local_base;   /* of layers with a window, without scaling; 0: as the others */
    double rope_attention_factor, rope_beta_fast, rope_beta_slow; /* YaRN; 0: what its paper suggests */
    bool rope_exact;                                              /* YaRN: bounds are not rounded to whole pairs */
    bool scale_by_layer;                                          /* scores of layer i are divided by i + 1 as well */
    float query_scalar; /* scores are divided by its root; 0: by that of head_dim */
    float embedding_dropout, residual_dropout, attention_dropout;
    int64_t padding_id; /* its row of the embedding takes no gradient; -1: none */
} fsdp_decoder_config;

#define FSDP_DECODER_CONFIG_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(fsdp_decoder_config), .rope_base = 10000, .rope_factor = 1, .norm_eps = 1e-5f,                  \
        .init_deviation = 0.02f, .padding_id = -1                                                                      \
    }

/* The first family's names for them. */
typedef fsdp_decoder_config fsdp_llama_config;
#define FSDP_LLAMA_CONFIG_INIT FSDP_DECODER_CONFIG_INIT

typedef enum fsdp_t5_family {
    FSDP_T5, /* also flan */
    FSDP_MT5,
    FSDP_UMT5 /* every layer has position biases of its own */
} fsdp_t5_family;

typedef struct fsdp_t5_config {
    size_t size;
    int64_t vocabulary, hidden, intermediate, layers, decoder_layers, heads, head_dim;
    int64_t buckets, max_distance;
    int32_t pad_id, decoder_start_id;
    float norm_eps, dropout, init_factor;
    bool gated; /* gated-gelu (v1.1); else relu */
    bool tied, scale_decoder_outputs;
    fsdp_t5_family family;
} fsdp_t5_config;

#define FSDP_T5_CONFIG_INIT                                                                                            \
    {                                                                                                                  \
        .size = sizeof(fsdp_t5_config), .buckets = 32, .max_distance = 128, .norm_eps = 1e-6f, .dropout = 0.1f,        \
        .init_factor = 1, .tied = true, .scale_decoder_outputs = true                                                  \
    }

/* Two branches over images, summed: conv-norm-relu-pool-conv-relu-pool-linear-relu-linear beside conv-relu-pool-linear.
 */
typedef struct fsdp_cnn_config {
    size_t size;
    int64_t channels, height, width, classes;
    int64_t first, second, branch, hidden; /* channels of the convolutions, width of the hidden layer */
} fsdp_cnn_config;

#define FSDP_CNN_CONFIG_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(fsdp_cnn_config), .channels = 1, .height = 28, .width = 28, .classes = 10, .first = 8,          \
        .second = 16, .branch = 4, .hidden = 32                                                                        \
    }

typedef struct fsdp_mlp_config {
    size_t size;
    int64_t inputs, hidden, layers, outputs; /* layers: hidden ones */
} fsdp_mlp_config;

#define FSDP_MLP_CONFIG_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(fsdp_mlp_config), .inputs = 784, .hidden = 128, .layers = 2, .outputs = 10                      \
    }

/* A decoder of config->family; the caller owns *out. Inconsistent sizes are refused by name. */
FSDP_API fsdp_status fsdp_decoder_new(const fsdp_decoder_config *config, fsdp_module **out);
/* fsdp_decoder_new. */
FSDP_API fsdp_status fsdp_llama_new(const fsdp_llama_config *config, fsdp_module **out);
/* A T5 encoder and decoder; the caller owns *out. */
FSDP_API fsdp_status fsdp_t5_new(const fsdp_t5_config *config, fsdp_module **out);
/* The convolutional network of fsdp_cnn_config; the caller owns *out. */
FSDP_API fsdp_status fsdp_cnn_new(const fsdp_cnn_config *config, fsdp_module **out);
/* Linear layers with ReLU between them; the caller owns *out. */
FSDP_API fsdp_status fsdp_mlp_new(const fsdp_mlp_config *config, fsdp_module **out);

/* The model that a config.json describes (`path` is that file or its folder; model_type llama, mistral, t5, cnn or
 * mlp), with initial values: fsdp_weights_load reads trained ones. The caller owns *out. Fields that would change what
 * is computed and are not implemented are refused by name. */
FSDP_API fsdp_status fsdp_model_from_config(const char *path, fsdp_module **out);

/* ids int32 (B, T) -> (B, T, vocabulary) */
FSDP_API fsdp_tensor *fsdp_decoder_logits(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids);
/* Cross-entropy of the logits against labels int32 (B, T): what follows each position, FSDP_IGNORE where nothing
 * counts. The logits never exist as a whole. */
FSDP_API fsdp_loss fsdp_decoder_loss(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels);
/* The same for rows that hold several documents, as best-fit packing makes them: documents and positions int32 (B, T),
 * both inputs. Attention stays within a document (fsdp_document_starts says what a document is), and positions, which
 * begin again with each, lie below the model's: no document has an influence on another's logits. */
FSDP_API fsdp_tensor *fsdp_decoder_logits_packed(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *documents,
                                                 fsdp_tensor *positions);
/* Their cross-entropy. Labels should not cross documents either: FSDP_IGNORE at the last token of each. */
FSDP_API fsdp_loss fsdp_decoder_loss_packed(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels,
                                            fsdp_tensor *documents, fsdp_tensor *positions);
/* fsdp_decoder_logits. */
FSDP_API fsdp_tensor *fsdp_llama_logits(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids);
/* fsdp_decoder_loss. */
FSDP_API fsdp_loss fsdp_llama_loss(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels);

/* ids, mask int32 (B, S); decoder_ids int32 (B, T) -> (B, T, vocabulary). mask may be NULL. */
FSDP_API fsdp_tensor *fsdp_t5_logits(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *mask,
                                     fsdp_tensor *decoder_ids);
/* Cross-entropy of the decoder's logits against labels int32 (B, T), FSDP_IGNORE where nothing counts. The logits never
 * exist as a whole. */
FSDP_API fsdp_loss fsdp_t5_loss(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *mask,
                                fsdp_tensor *decoder_ids, fsdp_tensor *labels);

/* images (N, C, H, W), for the MLP (N, inputs); classes int32 (N). fsdp_call gives the logits. */
FSDP_API fsdp_loss fsdp_classifier_loss(fsdp_module *m, fsdp_tape *t, fsdp_tensor *images, fsdp_tensor *classes);

#ifdef __cplusplus
}
#endif
#endif
