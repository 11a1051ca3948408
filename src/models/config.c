/* Reading and writing of config.json. The fields are config_fields.c's; here is what they mean together. Every one is
 * checked here or by the model's constructor, so a wrong file is refused with its name and the field, before anything
 * is built. Where a field is absent, transformers' default holds. */
#include "models/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "format/weights/adapter_config.h"
#include "models/config_decoder.h"
#include "models/config_fields.h"
#include "models/family.h"
#include "nn/lora.h"

/* T5's relatives, and what transformers calls them. */
static const struct {
    const char *name, *architecture;
} t5_families[] = {[FSDP_T5] = {"t5", "T5ForConditionalGeneration"},
                   [FSDP_MT5] = {"mt5", "MT5ForConditionalGeneration"},
                   [FSDP_UMT5] = {"umt5", "UMT5ForConditionalGeneration"}};

const char *model_type_name(const model_config *config)
{
    switch (config->type) {
    case MODEL_DECODER:
        return family_of(config->decoder.family)->model_type;
    case MODEL_T5:
        return t5_families[config->t5.family].name;
    case MODEL_CNN:
        return "cnn";
    case MODEL_MLP:
        break;
    }
    return "mlp";
}

/* Whether the weights of its layers are stored (inputs, outputs). */
static bool is_input_major(const model_config *config)
{
    return config->type == MODEL_DECODER && family_of(config->decoder.family)->input_major;
}

const char *model_block_type(const model_config *config)
{
    return config->type == MODEL_DECODER ? family_of(config->decoder.family)->block.type
           : config->type == MODEL_T5    ? "t5_block"
                                         : NULL;
}

model_config model_config_default(model_type type)
{
    return (model_config){.type = type,
                          .decoder = FSDP_DECODER_CONFIG_INIT,
                          .t5 = FSDP_T5_CONFIG_INIT,
                          .cnn = FSDP_CNN_CONFIG_INIT,
                          .mlp = FSDP_MLP_CONFIG_INIT,
                          .lora = {.size = sizeof(fsdp_lora_config)}};
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

/* ---- T5 ---- */

fsdp_status config_check_aliases(const char *name, const json_t *o, const config_alias *aliases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t value = aliases[i].value;
        FSDP_TRY(json_opt_int(name, o, aliases[i].alias, &value));
        if (value != aliases[i].value)
            return error_set(FSDP_ERR_INPUT, "%s: %s is %lld and %s, another name for it, is %lld", name,
                             aliases[i].alias, (long long)value, aliases[i].field, (long long)aliases[i].value);
    }
    return FSDP_OK;
}

/* transformers takes "hidden_size" for "d_model" and so on; both are well where they agree. */
static fsdp_status check_t5_aliases(const char *name, const json_t *o, const fsdp_t5_config *c)
{
    const config_alias aliases[] = {{"hidden_size", "d_model", c->hidden},
                                    {"num_attention_heads", "num_heads", c->heads},
                                    {"num_hidden_layers", "num_layers", c->layers},
                                    {"head_dim", "d_kv", c->head_dim}};
    return config_check_aliases(name, o, aliases, sizeof aliases / sizeof aliases[0]);
}

/* feed_forward_proj says both whether the layer is gated and by what function; is_gated_act and dense_act_fn, which
 * transformers writes beside it, win where they are given. */
static fsdp_status parse_feed_forward(const char *name, const json_t *o, fsdp_t5_config *c)
{
    const char *both = c->family == FSDP_T5 ? "relu" : "gated-gelu", *function = NULL;
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
    c->scale_decoder_outputs = c->family == FSDP_MT5 ? false : c->tied;
    if (c->family == FSDP_T5)
        FSDP_TRY(json_opt_bool(name, o, "scale_decoder_outputs", &c->scale_decoder_outputs));
    else
        c->tied = true; /* whatever the file says, as in transformers; weights with a head of their own untie it */
    FSDP_TRY(read_token(name, o, "pad_token_id", c->vocabulary, &c->pad_id));
    c->decoder_start_id = c->pad_id;
    FSDP_TRY(read_token(name, o, "decoder_start_token_id", c->vocabulary, &c->decoder_start_id));
    FSDP_TRY(check_t5_aliases(name, o, c));
    return parse_feed_forward(name, o, c);
}

/* ---- Any ---- */

/* What a model_type is to us: *out with the family set, and the tables of its fields. */
static fsdp_status find_family(const char *name, const json_t *o, model_config *out, const config_field *tables[4])
{
    const char *type;
    char shown[FIELD_TEXT];
    fsdp_family decoder;
    FSDP_TRY(json_get_string(name, o, "model_type", &type));
    if (decoder_family_find(type, &decoder, tables)) {
        *out = model_config_default(MODEL_DECODER);
        out->decoder.family = decoder;
        return FSDP_OK;
    }
    tables[0] = common_fields;
    tables[1] = t5_fields;
    tables[2] = NULL;
    for (size_t i = 0; i < sizeof t5_families / sizeof t5_families[0]; i++) {
        if (strcmp(type, t5_families[i].name) == 0) {
            *out = model_config_default(MODEL_T5);
            out->t5.family = (fsdp_t5_family)i;
            return FSDP_OK;
        }
    }
    bool cnn = strcmp(type, "cnn") == 0;
    *out = model_config_default(cnn ? MODEL_CNN : MODEL_MLP);
    tables[1] = cnn ? cnn_fields : mlp_fields;
    if (cnn || strcmp(type, "mlp") == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_UNSUPPORTED,
                     "%s: model_type %s; llama, mistral, qwen2, qwen3, gemma3_text, gpt2, phi3, t5, mt5, umt5, cnn and "
                     "mlp are known",
                     name, field_text(json_object_get(o, "model_type"), shown));
}

static fsdp_status parse_fields(const char *name, const json_t *o, bool warns, model_config *out)
{
    switch (out->type) {
    case MODEL_DECODER:
        return decoder_config_parse(name, o, warns, &out->decoder);
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
    case MODEL_DECODER:
        return decoder_config_check(&c->decoder);
    case MODEL_T5:
        return t5_config_check(&c->t5);
    case MODEL_CNN:
        return cnn_config_check(&c->cnn);
    case MODEL_MLP:
        return mlp_config_check(&c->mlp);
    }
    return FSDP_OK;
}

/* In a checkpoint's file: the adapters that are among its tensors. */
static fsdp_status parse_adapter(const char *name, const json_t *o, model_config *out)
{
    const json_t *adapter = json_object_get(o, ADAPTER_KEY);
    adapter_config config;
    if (!adapter)
        return FSDP_OK;
    FSDP_TRY(adapter_config_parse(name, adapter, &config));
    out->lora = config.lora;
    return FSDP_OK;
}

static fsdp_status parse(const char *name, const json_t *o, bool warns, model_config *out)
{
    const config_field *tables[4];
    if (!json_is_object(o))
        return error_set(FSDP_ERR_INPUT, "%s: a JSON object is expected", name);
    FSDP_TRY(find_family(name, o, out, tables));
    FSDP_TRY(parse_fields(name, o, warns, out));
    FSDP_TRY(parse_adapter(name, o, out));
    FSDP_TRY(fields_check(name, "", o, tables, warns));
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
    if (n_parameters > MAX_PARAMETERS)
        return error_set(FSDP_ERR_INPUT, "the model would have %.2g parameters, more than any memory holds (%.2g)",
                         n_parameters, MAX_PARAMETERS);
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

/* scale_decoder_outputs is always said: what its absence means depends on who reads. */
static bool write_t5(json_t *o, const fsdp_t5_config *c)
{
    return (c->family != FSDP_T5 ||
            json_object_set_new(o, "scale_decoder_outputs", json_boolean(c->scale_decoder_outputs)) == 0) &&
           json_object_set_new(o, "pad_token_id", json_integer(c->pad_id)) == 0 &&
           json_object_set_new(o, "decoder_start_token_id", json_integer(c->decoder_start_id)) == 0 &&
           json_object_set_new(o, "feed_forward_proj", json_string(c->gated ? "gated-gelu" : "relu")) == 0;
}

static json_t *t5_json(const fsdp_t5_config *c)
{
    json_t *o = json_pack("{s:[s], s:s, s:b, s:i}", "architectures", t5_families[c->family].architecture, "model_type",
                          t5_families[c->family].name, "is_encoder_decoder", 1, "eos_token_id", 1);
    if (o && fields_write(o, t5_fields, c, NULL) && write_t5(o, c))
        return o;
    json_decref(o);
    return NULL;
}

static json_t *shape_json(const model_config *config)
{
    if (config->type == MODEL_DECODER)
        return decoder_config_json(&config->decoder);
    if (config->type == MODEL_T5)
        return t5_json(&config->t5);
    bool cnn = config->type == MODEL_CNN;
    json_t *o = json_pack("{s:s}", "model_type", model_type_name(config));
    if (o && fields_write(o, cnn ? cnn_fields : mlp_fields, cnn ? (const void *)&config->cnn : &config->mlp, NULL))
        return o;
    json_decref(o);
    return NULL;
}

/* With what the adapters are, where there are any. Takes `o`. */
static json_t *with_adapter(json_t *o, const model_config *config)
{
    adapter_config adapter = {config->lora, is_input_major(config)};
    if (o && config->lora.rank > 0 &&
        json_object_set_new(o, ADAPTER_KEY, adapter_config_json(&adapter, NULL, NULL)) == 0)
        return o;
    if (o && config->lora.rank == 0) {
        json_object_del(o, ADAPTER_KEY);
        return o;
    }
    json_decref(o);
    return NULL;
}

json_t *model_config_json(const model_config *config)
{
    return with_adapter(shape_json(config), config);
}

static bool update_fields(json_t *o, const model_config *before, const model_config *now)
{
    model_config same = *before;
    switch (now->type) {
    case MODEL_DECODER:
        return decoder_config_update(o, &before->decoder, &now->decoder);
    case MODEL_T5:
        return fields_write(o, t5_fields, &now->t5, &same.t5) &&
               (now->t5.family != FSDP_T5 ||
                json_object_set_new(o, "scale_decoder_outputs", json_boolean(now->t5.scale_decoder_outputs)) == 0);
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
        return with_adapter(o, config);
    json_decref(o);
    return NULL;
}

static fsdp_status create_bare(const model_config *config, fsdp_module **out)
{
    switch (config->type) {
    case MODEL_DECODER:
        return fsdp_decoder_new(&config->decoder, out);
    case MODEL_T5:
        return fsdp_t5_new(&config->t5, out);
    case MODEL_CNN:
        return fsdp_cnn_new(&config->cnn, out);
    case MODEL_MLP:
        return fsdp_mlp_new(&config->mlp, out);
    }
    return error_set(FSDP_ERR_INPUT, "model type %d is none", (int)config->type);
}

fsdp_status model_create(const model_config *config, fsdp_module **out)
{
    FSDP_TRY(create_bare(config, out));
    fsdp_status status = config->lora.rank > 0 ? fsdp_lora(*out, &config->lora) : FSDP_OK;
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_module_free(*out);
    *out = NULL;
    return status;
}

/* What peft adapts where nothing is said: queries and values, or what they are fused into. */
static void default_targets(const model_config *known, char *out)
{
    const char *const *qkv = known && known->type == MODEL_DECODER ? family_of(known->decoder.family)->names.qkv : NULL;
    const char *first = qkv && strrchr(qkv[0], '.') ? strrchr(qkv[0], '.') + 1 : "";
    const char *third = qkv && qkv[2] && strrchr(qkv[2], '.') ? strrchr(qkv[2], '.') + 1 : "";
    if (qkv)
        snprintf(out, FSDP_LORA_TARGETS, "%s%s%s", first, *third ? "," : "", third);
    else
        snprintf(out, FSDP_LORA_TARGETS, "%s", known && known->type == MODEL_T5 ? "q,v" : "all-linear");
}

fsdp_status fsdp_lora(fsdp_module *net, const fsdp_lora_config *config)
{
    SIZED_READ(fsdp_lora_config, FSDP_LORA_CONFIG_INIT, full, config);
    model_config *facts = net ? net->facts : NULL;
    if (full.targets[0] == '\0')
        default_targets(facts, full.targets);
    if (net)
        net->facts = NULL; /* what is added does not make it another model */
    fsdp_status status = lora_apply(net, &full);
    if (net)
        net->facts = facts;
    if (facts && status == FSDP_OK)
        facts->lora = full;
    return status;
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
        status = error_set(FSDP_ERR_MEMORY, "building a %s: out of host memory", model_type_name(config));
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
    return c->type == MODEL_DECODER ? c->decoder.vocabulary : c->type == MODEL_T5 ? c->t5.vocabulary : 0;
}
