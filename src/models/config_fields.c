/* Tables of the known fields, and the loops that read, check and write by them. What fields mean together is
 * config.c's. */
#include "models/config_fields.h"

#include "format/weights/adapter_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/models.h>

#include "base/error.h"
#include "base/log.h"

/* ---- Values that change nothing ---- */

static bool is_one(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) == 1;
}

static bool is_false(const json_t *value)
{
    return json_is_false(value);
}

static bool is_true(const json_t *value)
{
    return json_is_true(value);
}

static bool is_empty(const json_t *value)
{
    return (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static bool is_full_attention(const json_t *value)
{
    if (!json_is_array(value))
        return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *type = json_string_value(json_array_get(value, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return false;
    }
    return true;
}

static bool is_nothing(const json_t *value)
{
    (void)value;
    return false; /* null has been accepted before */
}

/* ---- Tables ---- */

#define NO_EFFECT(field)                                                                                               \
    {                                                                                                                  \
        .name = field, .kind = FIELD_NO_EFFECT                                                                         \
    }
#define CODE(field)                                                                                                    \
    {                                                                                                                  \
        .name = field, .kind = FIELD_CODE                                                                              \
    }
#define ONLY(field, function, words)                                                                                   \
    {                                                                                                                  \
        .name = field, .kind = FIELD_ONLY, .accepts = function, .wanted = words                                        \
    }

/* bos, eos and pad ids matter to whoever makes batches and text; T5's pad id is in its own table. */
const config_field common_fields[] = {
    CODE("model_type"),
    CODE(ADAPTER_KEY),
    NO_EFFECT("architectures"),
    NO_EFFECT("_name_or_path"),
    NO_EFFECT("name_or_path"),
    NO_EFFECT("_commit_hash"),
    NO_EFFECT("transformers_version"),
    NO_EFFECT("dtype"),
    NO_EFFECT("torch_dtype"),
    NO_EFFECT("torchscript"),
    NO_EFFECT("use_bfloat16"),
    NO_EFFECT("tokenizer_class"),
    NO_EFFECT("prefix"),
    NO_EFFECT("auto_map"),
    NO_EFFECT("finetuning_task"),
    NO_EFFECT("task_specific_params"),
    NO_EFFECT("problem_type"),
    NO_EFFECT("num_labels"),
    NO_EFFECT("id2label"),
    NO_EFFECT("label2id"),
    NO_EFFECT("return_dict"),
    NO_EFFECT("use_return_dict"),
    NO_EFFECT("output_hidden_states"),
    NO_EFFECT("output_attentions"),
    NO_EFFECT("output_past"),
    NO_EFFECT("use_cache"),
    NO_EFFECT("gradient_checkpointing"),
    NO_EFFECT("chunk_size_feed_forward"),
    NO_EFFECT("attn_implementation"),
    NO_EFFECT("_attn_implementation"),
    NO_EFFECT("_attn_implementation_autoset"),
    NO_EFFECT("_attn_implementation_internal"),
    NO_EFFECT("experts_implementation"),
    NO_EFFECT("is_encoder_decoder"),
    NO_EFFECT("is_decoder"),
    NO_EFFECT("cross_attention_hidden_size"),
    NO_EFFECT("bos_token_id"),
    NO_EFFECT("eos_token_id"),
    NO_EFFECT("sep_token_id"),
    /* generation */
    NO_EFFECT("assistant_confidence_threshold"),
    NO_EFFECT("assistant_lookbehind"),
    NO_EFFECT("bad_words_ids"),
    NO_EFFECT("begin_suppress_tokens"),
    NO_EFFECT("diversity_penalty"),
    NO_EFFECT("do_sample"),
    NO_EFFECT("early_stopping"),
    NO_EFFECT("encoder_no_repeat_ngram_size"),
    NO_EFFECT("encoder_repetition_penalty"),
    NO_EFFECT("epsilon_cutoff"),
    NO_EFFECT("eta_cutoff"),
    NO_EFFECT("exponential_decay_length_penalty"),
    NO_EFFECT("forced_bos_token_id"),
    NO_EFFECT("forced_eos_token_id"),
    NO_EFFECT("length_penalty"),
    NO_EFFECT("max_length"),
    NO_EFFECT("max_new_tokens"),
    NO_EFFECT("min_length"),
    NO_EFFECT("no_repeat_ngram_size"),
    NO_EFFECT("num_assistant_tokens"),
    NO_EFFECT("num_assistant_tokens_schedule"),
    NO_EFFECT("num_beam_groups"),
    NO_EFFECT("num_beams"),
    NO_EFFECT("num_return_sequences"),
    NO_EFFECT("output_scores"),
    NO_EFFECT("remove_invalid_values"),
    NO_EFFECT("repetition_penalty"),
    NO_EFFECT("return_dict_in_generate"),
    NO_EFFECT("suppress_tokens"),
    NO_EFFECT("target_lookbehind"),
    NO_EFFECT("temperature"),
    NO_EFFECT("top_k"),
    NO_EFFECT("top_p"),
    NO_EFFECT("typical_p"),
    /* what would change the network */
    ONLY("add_cross_attention", is_false, "false"),
    ONLY("is_causal", is_true, "true"), /* encoders made of decoders say false */
    ONLY("tie_encoder_decoder", is_false, "false"),
    ONLY("pruned_heads", is_empty, "none"),
    ONLY("per_layer_config", is_empty, "none"),
    ONLY("quantization_config", is_nothing, "none"),
    ONLY("transformers_weights", is_nothing, "none (weights under their usual names)"),
    NO_EFFECT("fusion_config"),
    ONLY("compression_config", is_nothing, "none"),
    {.name = NULL},
};

#define DECODER(field, kind_, member, ...)                                                                             \
    {                                                                                                                  \
        .name = field, .kind = kind_, .offset = offsetof(fsdp_decoder_config, member), __VA_ARGS__                     \
    }

/* Of all families but GPT-2, which has other names for them. */
const config_field decoder_fields[] = {
    DECODER("vocab_size", FIELD_SIZE, vocabulary, .required = true),
    DECODER("hidden_size", FIELD_SIZE, hidden, .required = true),
    DECODER("intermediate_size", FIELD_SIZE, intermediate, .required = true),
    DECODER("num_hidden_layers", FIELD_SIZE, layers, .required = true),
    DECODER("num_attention_heads", FIELD_SIZE, heads, .required = true),
    DECODER("num_key_value_heads", FIELD_SIZE, kv_heads, .required = false),
    DECODER("head_dim", FIELD_SIZE, head_dim, .required = false),
    DECODER("max_position_embeddings", FIELD_SIZE, positions, .required = false),
    DECODER("rms_norm_eps", FIELD_FLOAT, norm_eps, .required = false),
    DECODER("initializer_range", FIELD_FLOAT, init_deviation, .required = false),
    DECODER("attention_dropout", FIELD_FLOAT, attention_dropout, .required = false),
    DECODER("tie_word_embeddings", FIELD_SWITCH, tied, .required = false),
    CODE("hidden_act"),
    CODE("rope_theta"),
    CODE("rope_parameters"),
    CODE("rope_scaling"),
    CODE("original_max_position_embeddings"),
    CODE("pad_token_id"),
    NO_EFFECT("pretraining_tp"),
    ONLY("partial_rotary_factor", is_one, "1"),
    {.name = NULL},
};

/* transformers' Llama has these and no window. */
const config_field llama_fields[] = {
    DECODER("attention_bias", FIELD_SWITCH, attention_bias, .required = false),
    DECODER("mlp_bias", FIELD_SWITCH, mlp_bias, .required = false),
    ONLY("layer_types", is_full_attention, "full_attention"),
    NO_EFFECT("sliding_window"),
    {.name = NULL},
};

/* Its Mistral has a window in all layers and no biases, whatever the file says. */
const config_field mistral_fields[] = {
    CODE("sliding_window"),
    ONLY("layer_types", is_full_attention, "full_attention"),
    ONLY("attention_bias", is_false, "false"),
    ONLY("mlp_bias", is_false, "false"),
    {.name = NULL},
};

#define WINDOWS CODE("sliding_window"), CODE("layer_types")

const config_field qwen2_fields[] = {
    WINDOWS,
    CODE("use_sliding_window"),
    CODE("max_window_layers"),
    NO_EFFECT("attention_bias"), /* always on q, k and v */
    NO_EFFECT("mlp_bias"),
    {.name = NULL},
};

const config_field qwen3_fields[] = {
    WINDOWS,
    CODE("use_sliding_window"),
    CODE("max_window_layers"),
    DECODER("attention_bias", FIELD_SWITCH, attention_bias, .required = false),
    NO_EFFECT("mlp_bias"),
    {.name = NULL},
};

const config_field gemma3_fields[] = {
    WINDOWS,
    CODE("sliding_window_pattern"),
    NO_EFFECT("_sliding_window_pattern"),
    CODE("hidden_activation"),
    CODE("rope_local_base_freq"),
    NO_EFFECT("cache_implementation"),
    DECODER("query_pre_attn_scalar", FIELD_FLOAT, query_scalar, .required = false),
    DECODER("attention_bias", FIELD_SWITCH, attention_bias, .required = false),
    ONLY("attn_logit_softcapping", is_nothing, "null"),
    ONLY("final_logit_softcapping", is_nothing, "null"),
    ONLY("use_bidirectional_attention", is_false, "false"),
    {.name = NULL},
};

const config_field gpt2_fields[] = {
    DECODER("vocab_size", FIELD_SIZE, vocabulary, .required = true),
    DECODER("n_embd", FIELD_SIZE, hidden, .required = true),
    DECODER("n_layer", FIELD_SIZE, layers, .required = true),
    DECODER("n_head", FIELD_SIZE, heads, .required = true),
    DECODER("n_inner", FIELD_SIZE, intermediate, .required = false),
    DECODER("n_positions", FIELD_SIZE, positions, .required = false),
    DECODER("layer_norm_epsilon", FIELD_FLOAT, norm_eps, .required = false),
    DECODER("initializer_range", FIELD_FLOAT, init_deviation, .required = false),
    DECODER("embd_pdrop", FIELD_FLOAT, embedding_dropout, .required = false),
    DECODER("resid_pdrop", FIELD_FLOAT, residual_dropout, .required = false),
    DECODER("attn_pdrop", FIELD_FLOAT, attention_dropout, .required = false),
    DECODER("tie_word_embeddings", FIELD_SWITCH, tied, .required = false),
    DECODER("scale_attn_by_inverse_layer_idx", FIELD_SWITCH, scale_by_layer, .required = false),
    CODE("activation_function"),
    CODE("scale_attn_weights"),
    /* other names of fields above */
    CODE("hidden_size"),
    CODE("num_attention_heads"),
    CODE("num_hidden_layers"),
    CODE("max_position_embeddings"),
    NO_EFFECT("n_ctx"),
    NO_EFFECT("pad_token_id"),
    NO_EFFECT("reorder_and_upcast_attn"), /* scores are fp32 sums in any case */
    NO_EFFECT("summary_activation"),
    NO_EFFECT("summary_first_dropout"),
    NO_EFFECT("summary_proj_to_labels"),
    NO_EFFECT("summary_type"),
    NO_EFFECT("summary_use_proj"),
    {.name = NULL},
};

const config_field phi3_fields[] = {
    CODE("sliding_window"),
    DECODER("resid_pdrop", FIELD_FLOAT, residual_dropout, .required = false),
    NO_EFFECT("embd_pdrop"), /* transformers reads it and drops nothing */
    ONLY("layer_types", is_full_attention, "full_attention"),
    ONLY("attention_bias", is_false, "false"),
    ONLY("mlp_bias", is_false, "false"),
    {.name = NULL},
};

/* Inside rope_parameters and rope_scaling. What other kinds of scaling have is without effect on ours. */
const config_field rope_fields[] = {
    CODE("rope_theta"),
    CODE("rope_type"),
    CODE("type"),
    CODE("factor"),
    CODE("low_freq_factor"),
    CODE("high_freq_factor"),
    CODE("original_max_position_embeddings"),
    CODE("attention_factor"),
    CODE("beta_fast"),
    CODE("beta_slow"),
    CODE("mscale"),
    CODE("mscale_all_dim"),
    CODE("truncate"),
    NO_EFFECT("short_factor"),
    NO_EFFECT("long_factor"),
    ONLY("partial_rotary_factor", is_one, "1"),
    ONLY("full_attention", is_nothing, "one set of values for all layers"),
    ONLY("sliding_attention", is_nothing, "one set of values for all layers"),
    {.name = NULL},
};

#define T5(field, kind_, member, ...)                                                                                  \
    {                                                                                                                  \
        .name = field, .kind = kind_, .offset = offsetof(fsdp_t5_config, member), __VA_ARGS__                          \
    }

const config_field t5_fields[] = {
    T5("vocab_size", FIELD_SIZE, vocabulary, .required = true),
    T5("d_model", FIELD_SIZE, hidden, .required = true),
    T5("d_ff", FIELD_SIZE, intermediate, .required = true),
    T5("d_kv", FIELD_SIZE, head_dim, .required = true),
    T5("num_heads", FIELD_SIZE, heads, .required = true),
    T5("num_layers", FIELD_SIZE, layers, .required = true),
    T5("num_decoder_layers", FIELD_SIZE, decoder_layers, .required = false),
    T5("relative_attention_num_buckets", FIELD_SIZE, buckets, .required = false),
    T5("relative_attention_max_distance", FIELD_SIZE, max_distance, .required = false),
    T5("layer_norm_epsilon", FIELD_FLOAT, norm_eps, .required = false),
    T5("dropout_rate", FIELD_FLOAT, dropout, .required = false),
    T5("initializer_factor", FIELD_FLOAT, init_factor, .required = false),
    T5("tie_word_embeddings", FIELD_SWITCH, tied, .required = false),
    CODE("scale_decoder_outputs"),
    CODE("pad_token_id"),
    CODE("decoder_start_token_id"),
    CODE("feed_forward_proj"),
    CODE("dense_act_fn"),
    CODE("is_gated_act"),
    /* other names of fields above */
    CODE("hidden_size"),
    CODE("num_attention_heads"),
    CODE("num_hidden_layers"),
    CODE("head_dim"),
    NO_EFFECT("n_positions"),
    NO_EFFECT("classifier_dropout"),
    {.name = NULL},
};

#define CNN(member)                                                                                                    \
    {                                                                                                                  \
        .name = #member, .kind = FIELD_SIZE, .offset = offsetof(fsdp_cnn_config, member)                               \
    }
#define MLP(member)                                                                                                    \
    {                                                                                                                  \
        .name = #member, .kind = FIELD_SIZE, .offset = offsetof(fsdp_mlp_config, member)                               \
    }

const config_field cnn_fields[] = {
    CNN(channels), CNN(height), CNN(width),  CNN(classes),   CNN(first),
    CNN(second),   CNN(branch), CNN(hidden), {.name = NULL},
};

const config_field mlp_fields[] = {MLP(inputs), MLP(hidden), MLP(layers), MLP(outputs), {.name = NULL}};

/* ---- Reading ---- */

static fsdp_status read_size(const char *name, const json_t *o, const char *key, int64_t *out)
{
    FSDP_TRY(json_get_int(name, o, key, out));
    if (*out < 1 || *out > (int64_t)1 << 31)
        return error_set(FSDP_ERR_INPUT, "%s: %s is %lld; it must be positive and below 2^31", name, key,
                         (long long)*out);
    return FSDP_OK;
}

static fsdp_status read_float(const char *name, const json_t *o, const char *key, float *out)
{
    double value = *out;
    FSDP_TRY(json_opt_number(name, o, key, &value));
    if (!isfinite((float)value))
        return error_set(FSDP_ERR_INPUT, "%s: %s is %g, which is not a finite number in fp32", name, key, value);
    *out = (float)value;
    return FSDP_OK;
}

fsdp_status fields_read(const char *name, const json_t *object, const config_field *table, void *config)
{
    for (const config_field *f = table; f->name; f++) {
        void *member = (char *)config + f->offset;
        const json_t *value = json_object_get(object, f->name);
        bool absent = !value || json_is_null(value);
        if (f->kind == FIELD_SIZE && (f->required || !absent))
            FSDP_TRY(read_size(name, object, f->name, member));
        else if (f->kind == FIELD_FLOAT)
            FSDP_TRY(read_float(name, object, f->name, member));
        else if (f->kind == FIELD_SWITCH)
            FSDP_TRY(json_opt_bool(name, object, f->name, member));
    }
    return FSDP_OK;
}

/* ---- Checking ---- */

const char *field_text(const json_t *value, char out[FIELD_TEXT])
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    int n = snprintf(out, FIELD_TEXT, "%s", text ? text : "nothing");
    if (n >= FIELD_TEXT)
        memcpy(out + FIELD_TEXT - 4, "...", 4);
    free(text);
    return out;
}

static const config_field *find_field(const config_field *const *tables, const char *name)
{
    for (int i = 0; tables[i]; i++)
        for (const config_field *f = tables[i]; f->name; f++)
            if (strcmp(f->name, name) == 0)
                return f;
    return NULL;
}

enum { MAX_NAMED = 12 };

/* A list of names for one line, each as JSON writes it. */
typedef struct unknown_names {
    char text[MAX_NAMED * (FIELD_TEXT + 2)];
    size_t used;
    int n;
} unknown_names;

static void add_unknown(unknown_names *u, const char *key)
{
    char shown[FIELD_TEXT];
    json_t *name = json_string(key);
    if (u->n++ < MAX_NAMED)
        u->used += (size_t)snprintf(u->text + u->used, sizeof u->text - u->used, "%s%s", u->n > 1 ? ", " : "",
                                    field_text(name, shown));
    json_decref(name);
}

fsdp_status fields_check(const char *name, const char *inside, const json_t *object, const config_field *const *tables,
                         bool warns)
{
    const char *key;
    json_t *value;
    unknown_names unknown = {.n = 0};
    char shown[FIELD_TEXT], more[32] = "";
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const config_field *f = find_field(tables, key);
        if (!f)
            add_unknown(&unknown, key);
        else if (f->kind == FIELD_ONLY && !json_is_null(value) && !f->accepts(value))
            return error_set(FSDP_ERR_UNSUPPORTED, "%s: %s%s is %s, which is not implemented; only %s is", name, inside,
                             f->name, field_text(value, shown), f->wanted);
    }
    if (unknown.n > MAX_NAMED)
        snprintf(more, sizeof more, " and %d more", unknown.n - MAX_NAMED);
    if (warns && unknown.n > 0)
        log_write(FSDP_LOG_WARNING,
                  "%s: unknown fields%s%.*s are ignored: %s%s. If one of them changes what the model computes, results "
                  "will differ from the model's own code",
                  name, *inside ? " of " : "", (int)(*inside ? strlen(inside) - 1 : 0), inside, unknown.text, more);
    return FSDP_OK;
}

/* ---- Writing ---- */

/* The shortest decimal that is this float. */
static json_t *float_json(float value)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return json_real(strtod(text, NULL));
}

static size_t field_bytes(field_kind kind)
{
    return kind == FIELD_SIZE ? sizeof(int64_t) : kind == FIELD_FLOAT ? sizeof(float) : sizeof(bool);
}

bool fields_write(json_t *object, const config_field *table, const void *config, const void *before)
{
    for (const config_field *f = table; f->name; f++) {
        const void *member = (const char *)config + f->offset;
        json_t *value;
        if (f->kind != FIELD_SIZE && f->kind != FIELD_FLOAT && f->kind != FIELD_SWITCH)
            continue;
        if (before && memcmp(member, (const char *)before + f->offset, field_bytes(f->kind)) == 0)
            continue;
        if (f->kind == FIELD_SIZE)
            value = json_integer(*(const int64_t *)member);
        else if (f->kind == FIELD_FLOAT)
            value = float_json(*(const float *)member);
        else
            value = json_boolean(*(const bool *)member);
        if (json_object_set_new(object, f->name, value) != 0)
            return false;
    }
    return true;
}
