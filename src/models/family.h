/* What sets the families of decoders apart, one row of traits each. decoder.c builds any of them from its row; what
 * their config.json says is config.c's and config_fields.c's. */
#ifndef MODELS_FAMILY_H
#define MODELS_FAMILY_H

#include <fsdp/models.h>

typedef enum norm_kind {
    NORM_RMS,
    NORM_RMS_PLUS_ONE, /* multiplies by 1 + weight */
    NORM_LAYER         /* with mean and bias */
} norm_kind;

/* Where biases are, whatever the configuration says. */
typedef enum bias_places { BIAS_AS_CONFIGURED, BIAS_QKV, BIAS_ALL } bias_places;

/* Names of modules, those of a layer within it. A projection that the files keep fused has one name instead of several.
 */
typedef struct family_names {
    const char *embedding, *positions, *layers, *norm; /* positions: learned ones; NULL: rotary */
    const char *qkv[3], *out, *up[2], *down;           /* up: gate and up, or up alone without a gate */
    const char *norm_1, *norm_2;                       /* before attention, before the feed-forward */
    const char *post_1, *post_2;                       /* of what they give, before it is added; NULL: none */
    const char *q_norm, *k_norm;                       /* of each head; NULL: none */
} family_names;

typedef struct family_traits {
    const char *model_type, *architecture; /* of config.json */
    fsdp_module_class block;               /* its type is what wrap policies call a layer */
    family_names names;
    norm_kind norm;
    bias_places biases;
    bool ungated;                 /* the feed-forward has no gate */
    bool input_major;             /* weights of a layer are stored (inputs, outputs) */
    bool scaled_embedding;        /* embeddings are multiplied by the root of their width */
    bool scaled_residuals;        /* initial values of what is added to the stream shrink with the depth */
    fsdp_decoder_config defaults; /* what a field that config.json leaves out is; 0: required or derived */
} family_traits;

const family_traits *family_of(fsdp_family family);

/* decoder.c: a layer of any family. In: hidden states (B, T, C); where positions are rotary, cosine and sine; where
 * rows hold several documents, their starts and (rotary) the positions. Out: hidden states. */
void decoder_block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                           int n_out);

#endif
