/* Model configurations as Hugging Face writes them: config.json to our structs and back. */
#ifndef MODELS_CONFIG_H
#define MODELS_CONFIG_H

#include <fsdp/models.h>

#include "base/json.h"

typedef enum model_type { MODEL_LLAMA, MODEL_T5, MODEL_CNN, MODEL_MLP } model_type;

typedef struct model_config {
    model_type type;
    fsdp_llama_config llama; /* also mistral */
    fsdp_t5_config t5;
    fsdp_cnn_config cnn;
    fsdp_mlp_config mlp;
} model_config;

/* All parts at their defaults. */
model_config model_config_default(model_type type);

/* `path` is a config.json or a folder that holds one. Missing, negative and inconsistent fields are named. */
fsdp_status model_config_read(const char *path, model_config *out);
fsdp_status model_config_parse(const char *name, const json_t *object, model_config *out);
/* What transformers reads (for cnn and mlp: what we read). The caller owns the result; NULL: out of memory. */
json_t *model_config_json(const model_config *config);

/* What the constructors demand, each in its model's file. */
fsdp_status llama_config_check(const fsdp_llama_config *c);
fsdp_status t5_config_check(const fsdp_t5_config *c);
fsdp_status cnn_config_check(const fsdp_cnn_config *c);

fsdp_status model_create(const model_config *config, fsdp_module **out);

const char *model_type_name(model_type type);  /* "llama" */
const char *model_block_type(model_type type); /* the repeated module, for wrap policies; NULL: none */

#endif
