/* Reading and writing config.json of the decoders; rotary positions are config_rope.c's. Where a field is absent,
 * transformers' default holds (family.c). */
#include "models/config_decoder.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "models/config.h"
#include "models/config_rope.h"
#include "models/family.h"
#include "models/rope.h"

/* Tables of fields beside common_fields. */
static const config_field *const tables_of[FSDP_FAMILY_COUNT][2] = {
    [FSDP_FAMILY_LLAMA] = {decoder_fields, llama_fields},   [FSDP_FAMILY_MISTRAL] = {decoder_fields, mistral_fields},
    [FSDP_FAMILY_QWEN2] = {decoder_fields, qwen2_fields},   [FSDP_FAMILY_QWEN3] = {decoder_fields, qwen3_fields},
    [FSDP_FAMILY_GEMMA3] = {decoder_fields, gemma3_fields}, [FSDP_FAMILY_GPT2] = {gpt2_fields, NULL},
    [FSDP_FAMILY_PHI3] = {decoder_fields, phi3_fields},
};

bool decoder_family_find(const char *name, fsdp_family *family, const config_field *tables[4])
{
    for (int i = 0; i < FSDP_FAMILY_COUNT; i++) {
        if (strcmp(family_of((fsdp_family)i)->model_type, name) != 0)
            continue;
        *family = (fsdp_family)i;
        tables[0] = common_fields;
        tables[1] = tables_of[i][0];
        tables[2] = tables_of[i][1];
        tables[3] = NULL;
        return true;
    }
    return false;
}

/* ---- Functions of the feed-forward ---- */

static const struct {
    const char *name;
    fsdp_feed_forward_function function;
    bool with_gate;
} functions[] = {
    {"silu", FSDP_FUNCTION_SILU, true},          {"swish", FSDP_FUNCTION_SILU, true},
    {"gelu_new", FSDP_FUNCTION_GELU_TANH, true}, {"gelu_pytorch_tanh", FSDP_FUNCTION_GELU_TANH, true},
    {"gelu", FSDP_FUNCTION_GELU, false},         {"relu", FSDP_FUNCTION_RELU, false},
};

static const char *function_field(fsdp_family family)
{
    return family == FSDP_FAMILY_GPT2     ? "activation_function"
           : family == FSDP_FAMILY_GEMMA3 ? "hidden_activation"
                                          : "hidden_act";
}

static fsdp_status parse_function(const char *name, const json_t *o, fsdp_decoder_config *c)
{
    const char *field = function_field(c->family), *given = NULL;
    bool gated = !family_of(c->family)->ungated;
    char shown[FIELD_TEXT];
    FSDP_TRY(json_opt_string(name, o, field, &given));
    for (size_t i = 0; given && i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, given) == 0 && (functions[i].with_gate || !gated)) {
            c->function = functions[i].function;
            return FSDP_OK;
        }
    }
    if (!given)
        return FSDP_OK;
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: %s %s; silu, gelu_new and gelu_pytorch_tanh are known%s", name, field,
                     field_text(json_object_get(o, field), shown), gated ? "" : ", gelu and relu too");
}

/* ---- Windows ---- */

/* "sliding_window", where absent and null are different: the family's default, and none. */
static fsdp_status parse_size(const char *name, const json_t *o, fsdp_decoder_config *c)
{
    const json_t *value = json_object_get(o, "sliding_window");
    if (json_is_null(value))
        c->window = 0;
    if (!value || json_is_null(value))
        return FSDP_OK;
    FSDP_TRY(json_get_int(name, o, "sliding_window", &c->window));
    if (c->window < 1 || c->window > (int64_t)1 << 31)
        return error_set(FSDP_ERR_INPUT, "%s: sliding_window is %lld; it must be positive, or null for none", name,
                         (long long)c->window);
    return FSDP_OK;
}

static fsdp_status set_full(const char *name, fsdp_decoder_config *c, int64_t layer)
{
    if (layer >= (int64_t)(8 * sizeof c->full_layers))
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: layer %lld sees all, and others do not; such layers may be among "
                         "the first %zu only",
                         name, (long long)layer, 8 * sizeof c->full_layers);
    c->full_layers[layer / 64] |= (uint64_t)1 << (layer % 64);
    return FSDP_OK;
}

/* Layer by layer, as the file lists them. */
static fsdp_status parse_types(const char *name, const json_t *types, fsdp_decoder_config *c)
{
    bool windowed = false;
    char shown[FIELD_TEXT];
    if (!json_is_array(types) || (int64_t)json_array_size(types) != c->layers)
        return error_set(FSDP_ERR_INPUT, "%s: layer_types must be a list of the %lld layers' types", name,
                         (long long)c->layers);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "full_attention") == 0)
            FSDP_TRY(set_full(name, c, (int64_t)i));
        else if (type && strcmp(type, "sliding_attention") == 0)
            windowed = true;
        else
            return error_set(FSDP_ERR_UNSUPPORTED,
                             "%s: layer_types has %s; full_attention and sliding_attention are known", name,
                             field_text(json_array_get(types, i), shown));
    }
    if (windowed && c->window == 0)
        return error_set(FSDP_ERR_INPUT, "%s: layer_types has sliding_attention, and there is no sliding_window", name);
    if (!windowed)
        c->window = 0;
    return FSDP_OK;
}

/* Without a list: Qwen's first layers see all, of Gemma's every sixth does. */
static fsdp_status parse_pattern(const char *name, const json_t *o, fsdp_decoder_config *c)
{
    int64_t first = 28, every = 6;
    bool gemma = c->family == FSDP_FAMILY_GEMMA3;
    FSDP_TRY(gemma ? json_opt_int(name, o, "sliding_window_pattern", &every)
                   : json_opt_int(name, o, "max_window_layers", &first));
    if (first < 0 || every < 1)
        return error_set(FSDP_ERR_INPUT, "%s: %s is %lld", name, gemma ? "sliding_window_pattern" : "max_window_layers",
                         (long long)(gemma ? every : first));
    if (c->window > 0 && !gemma && first >= c->layers)
        c->window = 0;
    for (int64_t i = 0; c->window > 0 && i < c->layers; i++) {
        if (gemma ? (i + 1) % every == 0 : i < first)
            FSDP_TRY(set_full(name, c, i));
    }
    return FSDP_OK;
}

void decoder_default_layers(fsdp_decoder_config *c)
{
    for (int64_t i = 5; c->family == FSDP_FAMILY_GEMMA3 && i < c->layers && i < (int64_t)(8 * sizeof c->full_layers);
         i += 6)
        c->full_layers[i / 64] |= (uint64_t)1 << (i % 64);
}

static fsdp_status parse_windows(const char *name, const json_t *o, fsdp_decoder_config *c)
{
    const json_t *types = json_object_get(o, "layer_types");
    bool used = true;
    if (c->family == FSDP_FAMILY_LLAMA || c->family == FSDP_FAMILY_GPT2)
        return FSDP_OK;
    FSDP_TRY(parse_size(name, o, c));
    if (c->family == FSDP_FAMILY_MISTRAL || c->family == FSDP_FAMILY_PHI3)
        return FSDP_OK;
    if (c->family != FSDP_FAMILY_GEMMA3) {
        used = false;
        FSDP_TRY(json_opt_bool(name, o, "use_sliding_window", &used));
    }
    if (!used)
        c->window = 0;
    return types && !json_is_null(types) ? parse_types(name, types, c) : parse_pattern(name, o, c);
}

/* ---- Padding ---- */

/* Its row of the embedding takes no gradient. GPT-2's has no such row. Absent and null are different, as above; an id
 * outside the vocabulary is no row, one below 0 counts from the end. */
static fsdp_status parse_padding(const char *name, const json_t *o, fsdp_decoder_config *c)
{
    const json_t *value = json_object_get(o, "pad_token_id");
    int64_t id = c->family == FSDP_FAMILY_GEMMA3 ? 0 : c->family == FSDP_FAMILY_PHI3 ? 32000 : c->vocabulary;
    if (json_is_null(value) || c->family == FSDP_FAMILY_GPT2)
        id = c->vocabulary;
    else if (value)
        FSDP_TRY(json_get_int(name, o, "pad_token_id", &id));
    if (id < 0 && id >= -c->vocabulary)
        id += c->vocabulary;
    c->padding_id = id >= 0 && id < c->vocabulary ? id : -1;
    return FSDP_OK;
}

/* ---- The whole ---- */

/* transformers takes "hidden_size" for "n_embd" and so on; both are well where they agree. */
static fsdp_status check_gpt2_aliases(const char *name, const json_t *o, const fsdp_decoder_config *c)
{
    const config_alias aliases[] = {{"hidden_size", "n_embd", c->hidden},
                                    {"num_attention_heads", "n_head", c->heads},
                                    {"num_hidden_layers", "n_layer", c->layers},
                                    {"max_position_embeddings", "n_positions", c->positions}};
    return config_check_aliases(name, o, aliases, sizeof aliases / sizeof aliases[0]);
}

static fsdp_status parse_gpt2(const char *name, const json_t *o, fsdp_decoder_config *c)
{
    bool scaled = true;
    FSDP_TRY(check_gpt2_aliases(name, o, c));
    FSDP_TRY(json_opt_bool(name, o, "scale_attn_weights", &scaled));
    c->query_scalar = scaled ? 0 : 1;
    if (c->intermediate == 0)
        c->intermediate = 4 * c->hidden;
    return FSDP_OK;
}

fsdp_status decoder_config_parse(const char *name, const json_t *o, bool warns, fsdp_decoder_config *c)
{
    fsdp_family family = c->family;
    const family_traits *traits = family_of(family);
    const json_t *kv_heads = json_object_get(o, "num_key_value_heads");
    *c = traits->defaults;
    c->size = sizeof *c;
    c->family = family;
    c->rope_factor = 1;
    c->init_deviation = 0.02f;
    if (kv_heads)
        c->kv_heads = 0; /* null: as many as of queries */
    for (int i = 0; i < 2 && tables_of[family][i]; i++)
        FSDP_TRY(fields_read(name, o, tables_of[family][i], c));
    if (family == FSDP_FAMILY_GPT2)
        FSDP_TRY(parse_gpt2(name, o, c));
    if (c->kv_heads == 0)
        c->kv_heads = c->heads;
    if (c->head_dim == 0 && c->hidden % c->heads != 0)
        return error_set(
            FSDP_ERR_INPUT,
            "%s: hidden_size (%lld) is not a multiple of num_attention_heads (%lld) and head_dim is not given", name,
            (long long)c->hidden, (long long)c->heads);
    if (c->head_dim == 0)
        c->head_dim = c->hidden / c->heads;
    FSDP_TRY(parse_function(name, o, c));
    FSDP_TRY(parse_windows(name, o, c));
    FSDP_TRY(parse_padding(name, o, c));
    return traits->names.positions ? FSDP_OK : config_rope_parse(name, o, warns, c);
}

fsdp_status decoder_config_check(const fsdp_decoder_config *c)
{
    const family_traits *traits = family_of(c->family);
    const config_size sizes[] = {{"vocab_size", c->vocabulary, (int64_t)MAX_WIDTH * 4},
                                 {"hidden_size", c->hidden, MAX_WIDTH},
                                 {"intermediate_size", c->intermediate, MAX_WIDTH},
                                 {"num_hidden_layers", c->layers, MAX_LAYERS},
                                 {"num_attention_heads", c->heads, MAX_HEADS},
                                 {"num_key_value_heads", c->kv_heads, MAX_HEADS},
                                 {"head_dim", c->head_dim, MAX_HEAD_DIM},
                                 {"max_position_embeddings", c->positions, (int64_t)1 << 31}};
    FSDP_TRY(config_check_sizes(sizes, sizeof sizes / sizeof sizes[0]));
    double attention = (double)c->hidden * (double)c->head_dim * (double)(2 * c->heads + 2 * c->kv_heads);
    double layer = attention + (traits->ungated ? 2 : 3) * (double)c->hidden * (double)c->intermediate;
    FSDP_TRY(config_check_parameters((double)c->vocabulary * (double)c->hidden * (c->tied ? 1 : 2) +
                                     (double)c->layers * layer));
    if ((unsigned)c->family >= FSDP_FAMILY_COUNT)
        return error_set(FSDP_ERR_INPUT, "family %d is none", (int)c->family);
    if (c->heads % c->kv_heads != 0)
        return error_set(FSDP_ERR_INPUT, "num_attention_heads (%lld) must be a multiple of num_key_value_heads (%lld)",
                         (long long)c->heads, (long long)c->kv_heads);
    if (c->family == FSDP_FAMILY_GPT2 && (c->kv_heads != c->heads || c->heads * c->head_dim != c->hidden))
        return error_set(FSDP_ERR_INPUT,
                         "a GPT-2 has as many heads of keys as of queries, and together they are as wide as the model: "
                         "%lld and %lld of %lld in %lld are not",
                         (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim, (long long)c->hidden);
    if (!(c->norm_eps > 0))
        return error_set(FSDP_ERR_INPUT, "%s is %g; it must be positive",
                         traits->norm == NORM_LAYER ? "layer_norm_epsilon" : "rms_norm_eps", (double)c->norm_eps);
    if (!(c->init_deviation >= 0))
        return error_set(FSDP_ERR_INPUT, "initializer_range is %g; it may not be negative", (double)c->init_deviation);
    if (c->window < 0 || !(c->query_scalar >= 0))
        return error_set(FSDP_ERR_INPUT, "sliding_window (%lld) and query_pre_attn_scalar (%g) may not be negative",
                         (long long)c->window, (double)c->query_scalar);
    const float dropouts[] = {c->embedding_dropout, c->residual_dropout, c->attention_dropout};
    for (int i = 0; i < 3; i++) {
        if (!(dropouts[i] >= 0 && dropouts[i] < 1))
            return error_set(FSDP_ERR_INPUT, "a dropout of %g; it must lie in [0, 1)", (double)dropouts[i]);
    }
    if (!traits->ungated && c->function != FSDP_FUNCTION_SILU && c->function != FSDP_FUNCTION_GELU_TANH)
        return error_set(FSDP_ERR_UNSUPPORTED, "a gated feed-forward has silu or gelu_tanh, no other function");
    return traits->names.positions ? FSDP_OK : rope_check(c);
}

void decoder_limit_positions(fsdp_decoder_config *c, int64_t length)
{
    if (!family_of(c->family)->names.positions)
        c->positions = length;
}

fsdp_status decoder_tables_check(const fsdp_decoder_config *c)
{
    double bytes = (double)c->positions * (double)c->head_dim * sizeof(float);
    if (!family_of(c->family)->names.positions && bytes > MAX_TABLE_BYTES)
        return error_set(FSDP_ERR_INPUT, "rotary tables of %lld positions for a head_dim of %lld would take %.2g bytes",
                         (long long)c->positions, (long long)c->head_dim, bytes);
    return FSDP_OK;
}

/* ---- Writing ---- */

static json_t *types_json(const fsdp_decoder_config *c)
{
    json_t *types = json_array();
    for (int64_t i = 0; types && i < c->layers; i++) {
        bool beyond = i >= (int64_t)(8 * sizeof c->full_layers);
        bool full = c->window == 0 || (!beyond && c->full_layers[i / 64] >> (i % 64) & 1);
        json_array_append_new(types, json_string(full ? "full_attention" : "sliding_attention"));
    }
    return types;
}

static bool write_windows(json_t *o, const fsdp_decoder_config *c)
{
    if (c->family == FSDP_FAMILY_LLAMA || c->family == FSDP_FAMILY_GPT2)
        return true;
    json_t *size = c->window > 0 ? json_integer(c->window) : json_null();
    if (json_object_set_new(o, "sliding_window", size) != 0)
        return false;
    if (c->family == FSDP_FAMILY_MISTRAL || c->family == FSDP_FAMILY_PHI3)
        return true;
    if (c->family != FSDP_FAMILY_GEMMA3 && json_object_set_new(o, "use_sliding_window", json_boolean(c->window > 0)))
        return false;
    return json_object_set_new(o, "layer_types", types_json(c)) == 0;
}

/* Left out where absent means none. */
static bool write_padding(json_t *o, const fsdp_decoder_config *c)
{
    bool other = c->family == FSDP_FAMILY_GEMMA3 || c->family == FSDP_FAMILY_PHI3;
    if (c->family == FSDP_FAMILY_GPT2 || (c->padding_id < 0 && !other))
        return true;
    return json_object_set_new(o, "pad_token_id", c->padding_id >= 0 ? json_integer(c->padding_id) : json_null()) == 0;
}

static const char *function_name(fsdp_feed_forward_function function)
{
    return function == FSDP_FUNCTION_SILU   ? "silu"
           : function == FSDP_FUNCTION_GELU ? "gelu"
           : function == FSDP_FUNCTION_RELU ? "relu"
                                            : "gelu_pytorch_tanh";
}

static bool write_fields(json_t *o, const fsdp_decoder_config *c, const fsdp_decoder_config *before)
{
    for (int i = 0; i < 2 && tables_of[c->family][i]; i++) {
        if (!fields_write(o, tables_of[c->family][i], c, before))
            return false;
    }
    return family_of(c->family)->names.positions || config_rope_write(o, c);
}

json_t *decoder_config_json(const fsdp_decoder_config *c)
{
    const family_traits *traits = family_of(c->family);
    json_t *o = json_pack("{s:[s], s:s, s:s}", "architectures", traits->architecture, "model_type", traits->model_type,
                          function_field(c->family), function_name(c->function));
    /* transformers scales dynamically from the length that positions have in the file */
    if (o && write_fields(o, c, NULL) && write_windows(o, c) && write_padding(o, c) &&
        (c->rope_scaling != FSDP_ROPE_DYNAMIC ||
         json_object_set_new(o, "max_position_embeddings", json_integer((json_int_t)c->rope_original_positions)) ==
             0) &&
        (c->family != FSDP_FAMILY_GPT2 ||
         json_object_set_new(o, "scale_attn_weights", json_boolean(c->query_scalar == 0)) == 0))
        return o;
    json_decref(o);
    return NULL;
}

bool decoder_config_update(json_t *o, const fsdp_decoder_config *before, const fsdp_decoder_config *c)
{
    fsdp_decoder_config same = *before;
    same.positions = c->positions; /* how long texts were in training, not how long they may be */
    return write_fields(o, c, &same);
}
