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

typedef enum fsdp_rope_scaling { FSDP_ROPE_PLAIN, FSDP_ROPE_LINEAR, FSDP_ROPE_LLAMA3 } fsdp_rope_scaling;

typedef struct fsdp_llama_config {
    size_t size;
    int64_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim;
    int64_t positions; /* longest sequence */
    int64_t window;    /* how many tokens attention reaches back, 0: all. Fewer than positions is not implemented */
    double rope_base;
    fsdp_rope_scaling rope_scaling;
    double rope_factor, rope_low_factor, rope_high_factor, rope_original_positions;
    float norm_eps;
    float init_deviation;
    bool tied, attention_bias, mlp_bias;
} fsdp_llama_config;

#define FSDP_LLAMA_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_llama_config), .rope_base = 10000, .rope_factor = 1, .norm_eps = 1e-5f,                    \
        .init_deviation = 0.02f                                                                                        \
    }

typedef struct fsdp_t5_config {
    size_t size;
    int64_t vocabulary, hidden, intermediate, layers, decoder_layers, heads, head_dim;
    int64_t buckets, max_distance;
    int32_t pad_id, decoder_start_id;
    float norm_eps, dropout, init_factor;
    bool gated; /* gated-gelu (v1.1); else relu */
    bool tied, scale_decoder_outputs;
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

/* A LLaMA; the caller owns *out. Inconsistent sizes are refused by name. */
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
FSDP_API fsdp_tensor *fsdp_llama_logits(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids);
/* Cross-entropy of the logits against labels int32 (B, T): what follows each position, FSDP_IGNORE where nothing
 * counts. The logits never exist as a whole. */
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
