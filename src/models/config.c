/* Reading and writing of config.json. The fields are config_fields.c's; here is what they mean together. Every one is
 * checked here or by the model's constructor, so a wrong file is refused with its name and the field, before anything
 * is built. Where a field is absent, transformers' default holds. */
#include "models/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "models/config_fields.h"

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

/* A token id below the vocabulary. */
static fsdp_status read_token(const char *name, const json_t *o, const char *key, int64_t vocabulary, int32_t *out)
{
    int64_t id = *out;
    FSDP_TRY(json_opt_int(name, o, key, &id));
    if (id < 0 || id >= vocabulary)
        return error_set(FSDP_ERR_INPUT, "%s: %s is %lld; it must lie in the vocabulary of %lld", name, key,
                         (long long)id, (long long)vocabulary);
    *out = (int32_t)id;
    return FSDP_OK;
}

static bool is_one_of(const char *text, const char *first, const char *second)
{
    return strcmp(text, first) == 0 || strcmp(text, second) == 0;
}

/* ---- LLaMA and Mistral ---- */

/* "rope_scaling" of older files where it says anything, else "rope_parameters" of newer ones: transformers' order. */
static const json_t *rope_of(const json_t *o, const char **which)
{
    const json_t *older = json_object_get(o, "rope_scaling");
    bool says = older && !json_is_null(older) && !(json_is_object(older) && json_object_size(older) == 0);
    *which = says ? "rope_scaling" : "rope_parameters";
    return says ? older : json_object_get(o, *which);
}

static fsdp_status parse_llama3_rope(const char *name, const json_t *o, const json_t *rope, fsdp_llama_config *c)
{
    c->rope_scaling = FSDP_ROPE_LLAMA3;
    FSDP_TRY(json_get_number(name, rope, "low_freq_factor", &c->rope_low_factor));
    FSDP_TRY(json_get_number(name, rope, "high_freq_factor", &c->rope_high_factor));
    FSDP_TRY(json_get_number(name, rope, "original_max_position_embeddings", &c->rope_original_positions));
    double outside = c->rope_original_positions;
    FSDP_TRY(json_opt_number(name, o, "original_max_position_embeddings", &outside));
    if (outside != c->rope_original_positions)
        return error_set(FSDP_ERR_INPUT,
                         "%s: original_max_position_embeddings is %g, and %g among the rope parameters; one is wrong",
                         name, outside, c->rope_original_positions);
    return FSDP_OK;
}

static fsdp_status parse_rope(const char *name, const json_t *o, fsdp_llama_config *c, bool warns)
{
    static const config_field *const tables[] = {rope_fields, NULL};
    const char *which, *kind = "default";
    char inside[32], shown[FIELD_TEXT];
    const json_t *rope = rope_of(o, &which);
    FSDP_TRY(json_opt_number(name, o, "rope_theta", &c->rope_base));
    if (!rope || json_is_null(rope))
        return FSDP_OK;
    if (!json_is_object(rope))
        return error_set(FSDP_ERR_INPUT, "%s: %s must be an object", name, which);
    FSDP_TRY(json_opt_number(name, rope, "rope_theta", &c->rope_base));
    FSDP_TRY(json_opt_string(name, rope, "type", &kind));
    FSDP_TRY(json_opt_string(name, rope, "rope_type", &kind));
    snprintf(inside, sizeof inside, "%s.", which);
    FSDP_TRY(fields_check(name, inside, rope, tables, warns));
    if (strcmp(kind, "default") == 0)
        return FSDP_OK;
    if (!is_one_of(kind, "linear", "llama3")) {
        const json_t *type = json_object_get(rope, "rope_type");
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: rope_type %s; default, linear and llama3 are known", name,
                         field_text(type ? type : json_object_get(rope, "type"), shown));
    }
    FSDP_TRY(json_get_number(name, rope, "factor", &c->rope_factor));
    if (strcmp(kind, "llama3") == 0)
        return parse_llama3_rope(name, o, rope, c);
    c->rope_scaling = FSDP_ROPE_LINEAR;
    return FSDP_OK;
}

/* What attention reaches back: Mistral's is 4096 where the file does not say, and null is no window. */
static fsdp_status parse_window(const char *name, const json_t *o, fsdp_llama_config *c)
{
    const json_t *value = json_object_get(o, "sliding_window");
    c->window = value ? 0 : 4096;
    FSDP_TRY(json_opt_int(name, o, "sliding_window", &c->window));
    if (c->window < 1 && value && !json_is_null(value))
        return error_set(FSDP_ERR_INPUT, "%s: sliding_window is %lld; it must be positive, or null for none", name,
                         (long long)c->window);
    return FSDP_OK;
}

static fsdp_status parse_llama(const char *name, const json_t *o, bool mistral, bool warns, fsdp_llama_config *c)
{
    const char *activation = "silu";
    char shown[FIELD_TEXT];
    const json_t *kv_heads = json_object_get(o, "num_key_value_heads");
    c->norm_eps = 1e-6f;
    c->positions = mistral ? 131072 : 2048;
    c->kv_heads = mistral && !kv_heads ? 8 : 0;
    FSDP_TRY(fields_read(name, o, llama_fields, c));
    FSDP_TRY(mistral ? parse_window(name, o, c) : fields_read(name, o, llama_only_fields, c));
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->head_dim == 0 && c->hidden % c->heads != 0)
        return error_set(
            FSDP_ERR_INPUT,
            "%s: hidden_size (%lld) is not a multiple of num_attention_heads (%lld) and head_dim is not given", name,
            (long long)c->hidden, (long long)c->heads);
    if (c->head_dim == 0)
        c->head_dim = c->hidden / c->heads;
    FSDP_TRY(json_opt_string(name, o, "hidden_act", &activation));
    if (!is_one_of(activation, "silu", "swish"))
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: hidden_act %s; LLaMA uses silu", name,
                         field_text(json_object_get(o, "hidden_act"), shown));
    return parse_rope(name, o, c, warns);
}

/* ---- T5 ---- */

/* transformers takes "hidden_size" for "d_model" and so on; both are well where they agree. */
static fsdp_status check_aliases(const char *name, const json_t *o, const fsdp_t5_config *c)
{
    const struct {
        const char *alias, *field;
        int64_t value;
    } aliases[] = {{"hidden_size", "d_model", c->hidden},
                   {"num_attention_heads", "num_heads", c->heads},
                   {"num_hidden_layers", "num_layers", c->layers},
                   {"head_dim", "d_kv", c->head_dim}};
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        int64_t value = aliases[i].value;
        FSDP_TRY(json_opt_int(name, o, aliases[i].alias, &value));
        if (value != aliases[i].value)
            return error_set(FSDP_ERR_INPUT, "%s: %s is %lld and %s, another name for it, is %lld", name,
                             aliases[i].alias, (long long)value, aliases[i].field, (long long)aliases[i].value);
    }
    return FSDP_OK;
}

/* feed_forward_proj says both whether the layer is gated and by what function; is_gated_act and dense_act_fn, which
 * transformers writes beside it, win where they are given. */
static fsdp_status parse_feed_forward(const char *name, const json_t *o, fsdp_t5_config *c)
{
    const char *both = "relu", *function = NULL;
    char shown[FIELD_TEXT];
    FSDP_TRY(json_opt_string(name, o, "feed_forward_proj", &both));
    if (!is_one_of(both, "relu", "gated-gelu"))
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: feed_forward_proj %s; relu and gated-gelu are known", name,
                         field_text(json_object_get(o, "feed_forward_proj"), shown));
    c->gated = strcmp(both, "gated-gelu") == 0;
    function = c->gated ? "gelu_new" : "relu";
    FSDP_TRY(json_opt_bool(name, o, "is_gated_act", &c->gated));
    FSDP_TRY(json_opt_string(name, o, "dense_act_fn", &function));
    bool known = c->gated ? is_one_of(function, "gelu_new", "gelu_pytorch_tanh") : strcmp(function, "relu") == 0;
    if (!known)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: dense_act_fn %s with is_gated_act %s; relu without a gate and gelu_new with one are "
                         "known",
                         name, field_text(json_object_get(o, "dense_act_fn"), shown), c->gated ? "true" : "false");
    return FSDP_OK;
}

static fsdp_status parse_t5(const char *name, const json_t *o, fsdp_t5_config *c)
{
    FSDP_TRY(fields_read(name, o, t5_fields, c));
    if (c->decoder_layers == 0)
        c->decoder_layers = c->layers;
    c->scale_decoder_outputs = c->tied;
    FSDP_TRY(json_opt_bool(name, o, "scale_decoder_outputs", &c->scale_decoder_outputs));
    FSDP_TRY(read_token(name, o, "pad_token_id", c->vocabulary, &c->pad_id));
    c->decoder_start_id = c->pad_id;
    FSDP_TRY(read_token(name, o, "decoder_start_token_id", c->vocabulary, &c->decoder_start_id));
    FSDP_TRY(check_aliases(name, o, c));
    return parse_feed_forward(name, o, c);
}

/* ---- Any ---- */

/* What a model_type is to us, and the tables of its fields. */
typedef struct family {
    const char *name;
    model_type type;
    bool mistral;
    const config_field *tables[4];
} family;

static const family families[] = {
    {"llama", MODEL_LLAMA, false, {common_fields, llama_fields, llama_only_fields}},
    {"mistral", MODEL_LLAMA, true, {common_fields, llama_fields, mistral_only_fields}},
    {"t5", MODEL_T5, false, {common_fields, t5_fields}},
    {"cnn", MODEL_CNN, false, {common_fields, cnn_fields}},
    {"mlp", MODEL_MLP, false, {common_fields, mlp_fields}},
};

static fsdp_status find_family(const char *name, const json_t *o, const family **out)
{
    const char *type;
    char shown[FIELD_TEXT];
    FSDP_TRY(json_get_string(name, o, "model_type", &type));
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(type, families[i].name) == 0) {
            *out = &families[i];
            return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: model_type %s; llama, mistral, t5, cnn and mlp are known", name,
                     field_text(json_object_get(o, "model_type"), shown));
}

static fsdp_status parse_fields(const char *name, const json_t *o, const family *f, bool warns, model_config *out)
{
    switch (f->type) {
    case MODEL_LLAMA:
        return parse_llama(name, o, f->mistral, warns, &out->llama);
    case MODEL_T5:
        return parse_t5(name, o, &out->t5);
    case MODEL_CNN:
        return fields_read(name, o, cnn_fields, &out->cnn);
    case MODEL_MLP:
        return fields_read(name, o, mlp_fields, &out->mlp);
    }
    return FSDP_OK;
}

/* Fields that are fine by themselves but not together, and sizes that no memory could hold. */
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
        return mlp_config_check(&c->mlp);
    }
    return FSDP_OK;
}

static fsdp_status parse(const char *name, const json_t *o, bool warns, model_config *out)
{
    const family *f = NULL;
    if (!json_is_object(o))
        return error_set(FSDP_ERR_INPUT, "%s: a JSON object is expected", name);
    FSDP_TRY(find_family(name, o, &f));
    *out = model_config_default(f->type);
    FSDP_TRY(parse_fields(name, o, f, warns, out));
    FSDP_TRY(fields_check(name, "", o, f->tables, warns));
    fsdp_status status = check_together(out);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s: ", name);
}

fsdp_status model_config_parse(const char *name, const json_t *o, model_config *out)
{
    return parse(name, o, true, out);
}

fsdp_status config_check_sizes(const config_size *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return error_set(FSDP_ERR_INPUT, "%s is %lld; it must be between 1 and %lld", sizes[i].name,
                             (long long)sizes[i].value, (long long)sizes[i].most);
    }
    return FSDP_OK;
}

fsdp_status config_check_parameters(double n_parameters)
{
    if (n_parameters > MOST_PARAMETERS)
        return error_set(FSDP_ERR_INPUT, "the model would have %.2g parameters, more than any memory holds (%.2g)",
                         n_parameters, MOST_PARAMETERS);
    return FSDP_OK;
}

fsdp_status model_config_open(const char *path, model_config *out, json_t **source)
{
    char *joined = file_is_directory(path) ? file_join(path, "config.json") : strdup(path);
    *source = NULL;
    if (!joined)
        return error_set(FSDP_ERR_MEMORY, "reading %s: out of host memory", path);
    fsdp_status status = json_read_file(joined, source);
    if (status == FSDP_OK)
        status = model_config_parse(joined, *source, out);
    if (status != FSDP_OK) {
        json_decref(*source);
        *source = NULL;
    }
    free(joined);
    return status;
}

fsdp_status model_config_read(const char *path, model_config *out)
{
    json_t *source;
    FSDP_TRY(model_config_open(path, out, &source));
    json_decref(source);
    return FSDP_OK;
}

/* ---- Writing ---- */

/* The rotation as both forms have it but for theta, which the older form keeps outside. */
static json_t *rope_json(const fsdp_llama_config *c)
{
    if (c->rope_scaling == FSDP_ROPE_PLAIN)
        return json_pack("{s:s}", "rope_type", "default");
    if (c->rope_scaling == FSDP_ROPE_LINEAR)
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", c->rope_factor);
    double original = c->rope_original_positions;
    bool whole = original < 1e15 && original == (double)(json_int_t)original; /* as others write it */
    return json_pack("{s:s, s:f, s:f, s:f, s:o}", "rope_type", "llama3", "factor", c->rope_factor, "low_freq_factor",
                     c->rope_low_factor, "high_freq_factor", c->rope_high_factor, "original_max_position_embeddings",
                     whole ? json_integer((json_int_t)original) : json_real(original));
}

/* Both forms, so that every version of transformers finds one that it reads: rope_theta and rope_scaling are the older,
 * rope_parameters the newer. */
static bool write_rope(json_t *o, const fsdp_llama_config *c)
{
    json_t *older = rope_json(c), *newer = json_pack("{s:f}", "rope_theta", c->rope_base);
    bool plain = c->rope_scaling == FSDP_ROPE_PLAIN;
    bool done = older && newer && json_object_update(newer, older) == 0 &&
                json_object_set_new(o, "rope_theta", json_real(c->rope_base)) == 0 &&
                json_object_set_new(o, "rope_scaling", plain ? json_null() : json_incref(older)) == 0 &&
                json_object_set(o, "rope_parameters", newer) == 0;
    json_decref(older);
    json_decref(newer);
    return done;
}

/* scale_decoder_outputs is always said: what its absence means depends on who reads. */
static bool write_t5(json_t *o, const fsdp_t5_config *c)
{
    return json_object_set_new(o, "scale_decoder_outputs", json_boolean(c->scale_decoder_outputs)) == 0 &&
           json_object_set_new(o, "pad_token_id", json_integer(c->pad_id)) == 0 &&
           json_object_set_new(o, "decoder_start_token_id", json_integer(c->decoder_start_id)) == 0 &&
           json_object_set_new(o, "feed_forward_proj", json_string(c->gated ? "gated-gelu" : "relu")) == 0;
}

static json_t *llama_json(const fsdp_llama_config *c)
{
    json_t *o = json_pack("{s:[s], s:s, s:s}", "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act",
                          "silu");
    if (o && fields_write(o, llama_fields, c, NULL) && fields_write(o, llama_only_fields, c, NULL) && write_rope(o, c))
        return o;
    json_decref(o);
    return NULL;
}

static json_t *t5_json(const fsdp_t5_config *c)
{
    json_t *o = json_pack("{s:[s], s:s, s:b, s:i}", "architectures", "T5ForConditionalGeneration", "model_type", "t5",
                          "is_encoder_decoder", 1, "eos_token_id", 1);
    if (o && fields_write(o, t5_fields, c, NULL) && write_t5(o, c))
        return o;
    json_decref(o);
    return NULL;
}

json_t *model_config_json(const model_config *config)
{
    if (config->type == MODEL_LLAMA)
        return llama_json(&config->llama);
    if (config->type == MODEL_T5)
        return t5_json(&config->t5);
    bool cnn = config->type == MODEL_CNN;
    json_t *o = json_pack("{s:s}", "model_type", model_type_name(config->type));
    if (o && fields_write(o, cnn ? cnn_fields : mlp_fields, cnn ? (const void *)&config->cnn : &config->mlp, NULL))
        return o;
    json_decref(o);
    return NULL;
}

static bool update_fields(json_t *o, const model_config *before, const model_config *now)
{
    model_config same = *before;
    switch (now->type) {
    case MODEL_LLAMA:
        same.llama.positions = now->llama.positions; /* how long texts were in training, not how long they may be */
        return fields_write(o, llama_fields, &now->llama, &same.llama) && write_rope(o, &now->llama);
    case MODEL_T5:
        return fields_write(o, t5_fields, &now->t5, &same.t5) &&
               json_object_set_new(o, "scale_decoder_outputs", json_boolean(now->t5.scale_decoder_outputs)) == 0;
    case MODEL_CNN:
        return fields_write(o, cnn_fields, &now->cnn, &same.cnn);
    case MODEL_MLP:
        return fields_write(o, mlp_fields, &now->mlp, &same.mlp);
    }
    return false;
}

json_t *model_config_update(const json_t *source, const model_config *config)
{
    model_config before;
    if (!source)
        return model_config_json(config);
    json_t *o = json_deep_copy(source);
    if (o && parse("config.json", source, false, &before) == FSDP_OK && update_fields(o, &before, config))
        return o;
    json_decref(o);
    return NULL;
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

fsdp_status fsdp_model_from_config(const char *path, fsdp_module **out)
{
    model_config c;
    FSDP_TRY(model_config_read(path, &c));
    return model_create(&c, out);
}

fsdp_status model_finish(fsdp_module *root, const model_config *config, fsdp_module **out)
{
    fsdp_status status = fsdp_module_check(root);
    if (status == FSDP_OK && !(root->facts = malloc(sizeof *config)))
        status = error_set(FSDP_ERR_MEMORY, "building a %s: out of host memory", model_type_name(config->type));
    if (status != FSDP_OK) {
        fsdp_module_free(root);
        return status;
    }
    memcpy(root->facts, config, sizeof *config);
    *out = root;
    return FSDP_OK;
}

const model_config *model_config_of(const fsdp_module *root)
{
    return root->facts;
}

int64_t model_vocabulary(const model_config *c)
{
    return c->type == MODEL_LLAMA ? c->llama.vocabulary : c->type == MODEL_T5 ? c->t5.vocabulary : 0;
}
