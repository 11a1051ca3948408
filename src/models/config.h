/* Model configurations as Hugging Face writes them: config.json to our structs and back. */
#ifndef MODELS_CONFIG_H
#define MODELS_CONFIG_H

#include <fsdp/lora.h>
#include <fsdp/models.h>

#include "base/json.h"

typedef enum model_type { MODEL_DECODER, MODEL_T5, MODEL_CNN, MODEL_MLP } model_type;

typedef struct model_config {
    model_type type;
    fsdp_decoder_config decoder;
    fsdp_t5_config t5;
    fsdp_cnn_config cnn;
    fsdp_mlp_config mlp;
    fsdp_lora_config lora; /* rank 0: no adapters */
} model_config;

/* All parts at their defaults. */
model_config model_config_default(model_type type);

/* `path` is a config.json or a folder that holds one. Missing, negative and inconsistent fields are named, and fields
 * that would change the numbers and are not implemented; unknown ones are named in a warning. */
fsdp_status model_config_read(const char *path, model_config *out);
/* The same, and the file's content, which the caller owns. */
fsdp_status model_config_open(const char *path, model_config *out, json_t **source);
fsdp_status model_config_parse(const char *name, const json_t *object, model_config *out);
/* What transformers reads (for cnn and mlp: what we read). The caller owns the result; NULL: out of memory. */
json_t *model_config_json(const model_config *config);
/* A copy of `source`, the file that the configuration came from, with what has changed since; all else stays as it is,
 * also max_position_embeddings. NULL for a source: model_config_json. The caller owns the result; NULL: out of memory.
 */
json_t *model_config_update(const json_t *source, const model_config *config);

/* What the constructors demand, each in its model's file. */
fsdp_status decoder_config_check(const fsdp_decoder_config *c);
fsdp_status t5_config_check(const fsdp_t5_config *c);
fsdp_status cnn_config_check(const fsdp_cnn_config *c);
fsdp_status mlp_config_check(const fsdp_mlp_config *c);
/* Texts will have at most `length` tokens: tables of rotary positions need not be longer. Learned positions are weights
 * and stay. */
void decoder_limit_positions(fsdp_decoder_config *c, int64_t length);
/* The layers that see all although there is a window, as the family has them where nothing else is said. */
void decoder_default_layers(fsdp_decoder_config *c);
/* Tables of positions are built whole, before anything else can refuse them. */
fsdp_status decoder_tables_check(const fsdp_decoder_config *c);

/* Bounds that real models stay far below, so that a number in a file cannot make us allocate without end: a module of
 * each layer, a rotation of each position, and all parameters together. */
enum { MAX_LAYERS = 1 << 14, MAX_WIDTH = 1 << 24, MAX_HEADS = 1 << 16, MAX_HEAD_DIM = 1 << 16 };
#define MAX_PARAMETERS 7e13 /* a quarter of a petabyte in fp32 */
#define MAX_TABLE_BYTES ((double)(1LL << 36))

typedef struct config_size {
    const char *name;
    int64_t value, most;
} config_size;

/* Another name of a field, which must agree where both are given. */
typedef struct config_alias {
    const char *alias, *field;
    int64_t value;
} config_alias;

fsdp_status config_check_aliases(const char *name, const json_t *object, const config_alias *aliases, size_t n);

/* Each from 1 to its bound; the first that is not is named. */
fsdp_status config_check_sizes(const config_size *sizes, size_t n);
fsdp_status config_check_parameters(double n_parameters);

fsdp_status model_create(const model_config *config, fsdp_module **out);

/* The end of every constructor: notes what `root` was built from and hands it out, or frees it where a part of it could
 * not be made. */
fsdp_status model_finish(fsdp_module *root, const model_config *config, fsdp_module **out);
/* What a module was built from; NULL: it is none of the library's models, or was added to. */
const model_config *model_config_of(const fsdp_module *root);

/* Tokens that a model reads and writes; 0: it knows nothing of text. */
int64_t model_vocabulary(const model_config *config);

const char *model_type_name(const model_config *config);  /* "llama" */
const char *model_block_type(const model_config *config); /* the repeated module, for wrap policies; NULL: none */

#endif
