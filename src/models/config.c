/* Reading and writing of config.json. Every field of an architecture is checked here or by the model's constructor, so
 * a wrong file is refused with its name and the field, before anything is built. */
#include "models/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

static const struct {
    const char *name, *block;
} types[] = {[MODEL_LLAMA] = {"llama", "llama_block"},
             [MODEL_T5] = {"t5", "t5_block"},
             [MODEL_CNN] = {"cnn", NULL},
             [MODEL_MLP] = {"mlp", NULL}};

const char *model_type_name(model_type type)
{
    return types[type].name;
}

const char *model_block_type(model_type type)
{
    return types[type].block;
}

model_config model_config_default(model_type type)
{
    return (model_config){.type = type,
                          .llama = FSDP_LLAMA_CONFIG_INIT,
                          .t5 = FSDP_T5_CONFIG_INIT,
                          .cnn = FSDP_CNN_CONFIG_INIT,
                          .mlp = FSDP_MLP_CONFIG_INIT};
}

/* A positive whole number. */
static fsdp_status get_size(const char *name, const json_t *o, const char *key, int64_t *out)
{
    FSDP_TRY(json_get_int(name, o, key, out));
    if (*out < 1 || *out > (int64_t)1 << 31)
        return error_set(FSDP_ERR_INPUT, "%s: %s is %lld; it must be positive and below 2^31", name, key,
                         (long long)*out);
    return FSDP_OK;
}

static fsdp_status opt_size(const char *name, const json_t *o, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(o, key);
    return value && !json_is_null(value) ? get_size(name, o, key, out) : FSDP_OK;
}

static fsdp_status opt_float(const char *name, const json_t *o, const char *key, float *out)
{
    double value = *out;
    FSDP_TRY(json_opt_number(name, o, key, &value));
    if (!isfinite(value))
        return error_set(FSDP_ERR_INPUT, "%s: %s is not a finite number", name, key);
    *out = (float)value;
    return FSDP_OK;
}

/* "rope_parameters" of today's files, "rope_scaling" beside "rope_theta" of older ones. */
static fsdp_status parse_rope(const char *name, const json_t *o, fsdp_llama_config *c)
{
    const json_t *rope = json_object_get(o, "rope_parameters");
    const char *kind = "default";
    FSDP_TRY(json_opt_number(name, o, "rope_theta", &c->rope_base));
    if (!rope || json_is_null(rope))
        rope = json_object_get(o, "rope_scaling");
    if (!rope || json_is_null(rope))
        return FSDP_OK;
    if (!json_is_object(rope))
        return error_set(FSDP_ERR_INPUT, "%s: rope_parameters must be an object", name);
    FSDP_TRY(json_opt_number(name, rope, "rope_theta", &c->rope_base));
    FSDP_TRY(json_opt_string(name, rope, "type", &kind));
    FSDP_TRY(json_opt_string(name, rope, "rope_type", &kind));
    FSDP_TRY(json_opt_number(name, rope, "factor", &c->rope_factor));
    if (strcmp(kind, "default") == 0)
        return FSDP_OK;
    if (strcmp(kind, "linear") == 0) {
        c->rope_scaling = FSDP_ROPE_LINEAR;
        return FSDP_OK;
    }
    if (strcmp(kind, "llama3") != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: rope_type \"%s\"; default, linear and llama3 are known", name,
                         kind);
    c->rope_scaling = FSDP_ROPE_LLAMA3;
    FSDP_TRY(json_get_number(name, rope, "factor", &c->rope_factor));
    FSDP_TRY(json_get_number(name, rope, "low_freq_factor", &c->rope_low_factor));
    FSDP_TRY(json_get_number(name, rope, "high_freq_factor", &c->rope_high_factor));
    return json_get_number(name, rope, "original_max_position_embeddings", &c->rope_original_positions);
}

static fsdp_status parse_llama(const char *name, const json_t *o, fsdp_llama_config *c)
{
    const char *activation = "silu";
    FSDP_TRY(get_size(name, o, "vocab_size", &c->vocabulary));
    FSDP_TRY(get_size(name, o, "hidden_size", &c->hidden));
    FSDP_TRY(get_size(name, o, "intermediate_size", &c->intermediate));
    FSDP_TRY(get_size(name, o, "num_hidden_layers", &c->layers));
    FSDP_TRY(get_size(name, o, "num_attention_heads", &c->heads));
    c->kv_heads = c->heads;
    FSDP_TRY(opt_size(name, o, "num_key_value_heads", &c->kv_heads));
    if (!json_is_integer(json_object_get(o, "head_dim")) && c->hidden % c->heads != 0)
        return error_set(
            FSDP_ERR_INPUT,
            "%s: hidden_size (%lld) is not a multiple of num_attention_heads (%lld) and head_dim is not given", name,
            (long long)c->hidden, (long long)c->heads);
    c->head_dim = c->hidden / c->heads;
    FSDP_TRY(opt_size(name, o, "head_dim", &c->head_dim));
    c->positions = 2048;
    FSDP_TRY(opt_size(name, o, "max_position_embeddings", &c->positions));
    FSDP_TRY(opt_float(name, o, "rms_norm_eps", &c->norm_eps));
    FSDP_TRY(opt_float(name, o, "initializer_range", &c->init_deviation));
    FSDP_TRY(json_opt_bool(name, o, "tie_word_embeddings", &c->tied));
    FSDP_TRY(json_opt_bool(name, o, "attention_bias", &c->attention_bias));
    FSDP_TRY(json_opt_bool(name, o, "mlp_bias", &c->mlp_bias));
    FSDP_TRY(json_opt_string(name, o, "hidden_act", &activation));
    if (strcmp(activation, "silu") != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: hidden_act \"%s\"; LLaMA uses silu", name, activation);
    return parse_rope(name, o, c);
}

static fsdp_status parse_t5(const char *name, const json_t *o, fsdp_t5_config *c)
{
    int64_t pad = 0, start = 0;
    const char *feed_forward = "relu";
    FSDP_TRY(get_size(name, o, "vocab_size", &c->vocabulary));
    FSDP_TRY(get_size(name, o, "d_model", &c->hidden));
    FSDP_TRY(get_size(name, o, "d_ff", &c->intermediate));
    FSDP_TRY(get_size(name, o, "d_kv", &c->head_dim));
    FSDP_TRY(get_size(name, o, "num_heads", &c->heads));
    FSDP_TRY(get_size(name, o, "num_layers", &c->layers));
    c->decoder_layers = c->layers;
    FSDP_TRY(opt_size(name, o, "num_decoder_layers", &c->decoder_layers));
    FSDP_TRY(opt_size(name, o, "relative_attention_num_buckets", &c->buckets));
    FSDP_TRY(opt_size(name, o, "relative_attention_max_distance", &c->max_distance));
    FSDP_TRY(opt_float(name, o, "layer_norm_epsilon", &c->norm_eps));
    FSDP_TRY(opt_float(name, o, "dropout_rate", &c->dropout));
    FSDP_TRY(opt_float(name, o, "initializer_factor", &c->init_factor));
    FSDP_TRY(json_opt_bool(name, o, "tie_word_embeddings", &c->tied));
    c->scale_decoder_outputs = c->tied;
    FSDP_TRY(json_opt_bool(name, o, "scale_decoder_outputs", &c->scale_decoder_outputs));
    FSDP_TRY(json_opt_int(name, o, "pad_token_id", &pad));
    FSDP_TRY(json_opt_int(name, o, "decoder_start_token_id", &start));
    if (pad < 0 || pad >= c->vocabulary || start < 0 || start >= c->vocabulary)
        return error_set(FSDP_ERR_INPUT,
                         "%s: pad_token_id (%lld) and decoder_start_token_id (%lld) must lie in the vocabulary", name,
                         (long long)pad, (long long)start);
    c->pad_id = (int32_t)pad;
    c->decoder_start_id = (int32_t)start;
    FSDP_TRY(json_opt_string(name, o, "feed_forward_proj", &feed_forward));
    c->gated = strcmp(feed_forward, "gated-gelu") == 0;
    if (!c->gated && strcmp(feed_forward, "relu") != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: feed_forward_proj \"%s\"; relu and gated-gelu are known", name,
                         feed_forward);
    return FSDP_OK;
}

typedef struct named_size {
    const char *key;
    int64_t *value;
} named_size;

static fsdp_status parse_sizes(const char *name, const json_t *o, const named_size *sizes, int n)
{
    for (int i = 0; i < n; i++)
        FSDP_TRY(opt_size(name, o, sizes[i].key, sizes[i].value));
    return FSDP_OK;
}

static int cnn_sizes(fsdp_cnn_config *c, named_size *out)
{
    const named_size list[] = {{"channels", &c->channels}, {"height", &c->height}, {"width", &c->width},
                               {"classes", &c->classes},   {"first", &c->first},   {"second", &c->second},
                               {"branch", &c->branch},     {"hidden", &c->hidden}};
    memcpy(out, list, sizeof list);
    return 8;
}

static int mlp_sizes(fsdp_mlp_config *c, named_size *out)
{
    const named_size list[] = {
        {"inputs", &c->inputs}, {"hidden", &c->hidden}, {"layers", &c->layers}, {"outputs", &c->outputs}};
    memcpy(out, list, sizeof list);
    return 4;
}

static fsdp_status parse_type(const char *name, const json_t *o, model_type *out)
{
    const char *type;
    FSDP_TRY(json_get_string(name, o, "model_type", &type));
    if (strcmp(type, "mistral") == 0)
        type = "llama";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(type, types[i].name) == 0) {
            *out = (model_type)i;
            return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: model_type \"%s\"; llama, mistral, t5, cnn and mlp are known", name,
                     type);
}

static fsdp_status parse_fields(const char *name, const json_t *o, model_config *out)
{
    named_size sizes[8];
    switch (out->type) {
    case MODEL_LLAMA:
        return parse_llama(name, o, &out->llama);
    case MODEL_T5:
        return parse_t5(name, o, &out->t5);
    case MODEL_CNN:
        return parse_sizes(name, o, sizes, cnn_sizes(&out->cnn, sizes));
    case MODEL_MLP:
        return parse_sizes(name, o, sizes, mlp_sizes(&out->mlp, sizes));
    }
    return FSDP_OK;
}

/* Fields that are fine by themselves but not together. */
static fsdp_status check_together(const model_config *c)
{
    switch (c->type) {
    case MODEL_LLAMA:
        return llama_config_check(&c->llama);
    case MODEL_T5:
        return t5_config_check(&c->t5);
    case MODEL_CNN:
        return cnn_config_check(&c->cnn);
    case MODEL_MLP:
        break; /* any sizes go together */
    }
    return FSDP_OK;
}

fsdp_status model_config_parse(const char *name, const json_t *o, model_config *out)
{
    model_type type = MODEL_LLAMA;
    if (!json_is_object(o))
        return error_set(FSDP_ERR_INPUT, "%s: a JSON object is wanted", name);
    FSDP_TRY(parse_type(name, o, &type));
    *out = model_config_default(type);
    FSDP_TRY(parse_fields(name, o, out));
    fsdp_status status = check_together(out);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s: ", name);
}

fsdp_status model_config_read(const char *path, model_config *out)
{
    char *joined = file_is_directory(path) ? file_join(path, "config.json") : strdup(path);
    json_t *object = NULL;
    if (!joined)
        return error_set(FSDP_ERR_MEMORY, "reading %s: out of host memory", path);
    fsdp_status status = json_read_file(joined, &object);
    if (status == FSDP_OK)
        status = model_config_parse(joined, object, out);
    json_decref(object);
    free(joined);
    return status;
}

static json_t *rope_json(const fsdp_llama_config *c)
{
    if (c->rope_scaling == FSDP_ROPE_PLAIN)
        return json_pack("{s:f, s:s}", "rope_theta", c->rope_base, "rope_type", "default");
    if (c->rope_scaling == FSDP_ROPE_LINEAR)
        return json_pack("{s:f, s:s, s:f}", "rope_theta", c->rope_base, "rope_type", "linear", "factor",
                         c->rope_factor);
    return json_pack("{s:f, s:s, s:f, s:f, s:f, s:I}", "rope_theta", c->rope_base, "rope_type", "llama3", "factor",
                     c->rope_factor, "low_freq_factor", c->rope_low_factor, "high_freq_factor", c->rope_high_factor,
                     "original_max_position_embeddings", (json_int_t)c->rope_original_positions);
}

static json_t *llama_json(const fsdp_llama_config *c)
{
    json_t *o =
        json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "architectures", "LlamaForCausalLM",
                  "model_type", "llama", "vocab_size", (json_int_t)c->vocabulary, "hidden_size", (json_int_t)c->hidden,
                  "intermediate_size", (json_int_t)c->intermediate, "num_hidden_layers", (json_int_t)c->layers,
                  "num_attention_heads", (json_int_t)c->heads, "num_key_value_heads", (json_int_t)c->kv_heads,
                  "head_dim", (json_int_t)c->head_dim, "max_position_embeddings", (json_int_t)c->positions);
    json_t *rest =
        json_pack("{s:f, s:f, s:s, s:b, s:b, s:b, s:f, s:s, s:o}", "rms_norm_eps", (double)c->norm_eps,
                  "initializer_range", (double)c->init_deviation, "hidden_act", "silu", "tie_word_embeddings", c->tied,
                  "attention_bias", c->attention_bias, "mlp_bias", c->mlp_bias, "rope_theta", c->rope_base, "dtype",
                  "float32", "rope_parameters", rope_json(c));
    if (o && rest)
        json_object_update(o, rest);
    json_decref(rest);
    return o;
}

static json_t *t5_json(const fsdp_t5_config *c)
{
    json_t *o = json_pack(
        "{s:[s], s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "architectures", "T5ForConditionalGeneration",
        "model_type", "t5", "is_encoder_decoder", 1, "vocab_size", (json_int_t)c->vocabulary, "d_model",
        (json_int_t)c->hidden, "d_ff", (json_int_t)c->intermediate, "d_kv", (json_int_t)c->head_dim, "num_heads",
        (json_int_t)c->heads, "num_layers", (json_int_t)c->layers, "num_decoder_layers", (json_int_t)c->decoder_layers);
    json_t *rest = json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:b, s:b, s:i, s:i, s:i, s:s, s:s}", "relative_attention_num_buckets",
        (json_int_t)c->buckets, "relative_attention_max_distance", (json_int_t)c->max_distance, "layer_norm_epsilon",
        (double)c->norm_eps, "dropout_rate", (double)c->dropout, "initializer_factor", (double)c->init_factor,
        "tie_word_embeddings", c->tied, "scale_decoder_outputs", c->scale_decoder_outputs, "pad_token_id",
        (int)c->pad_id, "decoder_start_token_id", (int)c->decoder_start_id, "eos_token_id", 1, "feed_forward_proj",
        c->gated ? "gated-gelu" : "relu", "dtype", "float32");
    if (o && rest)
        json_object_update(o, rest);
    json_decref(rest);
    return o;
}

json_t *model_config_json(const model_config *config)
{
    named_size sizes[8];
    model_config copy = *config;
    if (config->type == MODEL_LLAMA)
        return llama_json(&config->llama);
    if (config->type == MODEL_T5)
        return t5_json(&config->t5);
    int n = config->type == MODEL_CNN ? cnn_sizes(&copy.cnn, sizes) : mlp_sizes(&copy.mlp, sizes);
    json_t *o = json_pack("{s:s}", "model_type", model_type_name(config->type));
    for (int i = 0; o && i < n; i++)
        json_object_set_new(o, sizes[i].key, json_integer(*sizes[i].value));
    return o;
}

fsdp_status model_create(const model_config *config, fsdp_module **out)
{
    switch (config->type) {
    case MODEL_LLAMA:
        return fsdp_llama_new(&config->llama, out);
    case MODEL_T5:
        return fsdp_t5_new(&config->t5, out);
    case MODEL_CNN:
        return fsdp_cnn_new(&config->cnn, out);
    case MODEL_MLP:
        return fsdp_mlp_new(&config->mlp, out);
    }
    return error_set(FSDP_ERR_INPUT, "model type %d is none", (int)config->type);
}
