/* config.json: every field that is missing, of another type, negative or at odds with another is refused with the file
 * and the field named; what is read is what was written. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "models/config.h"

static const char *const good_llama = "{\"model_type\": \"llama\", \"vocab_size\": 65, \"hidden_size\": 24, "
                                      "\"intermediate_size\": 40, \"num_hidden_layers\": 2,"
                                      " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 6, "
                                      "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5,"
                                      " \"initializer_range\": 0.02, \"tie_word_embeddings\": false, "
                                      "\"attention_bias\": false, \"mlp_bias\": false, \"hidden_act\": \"silu\","
                                      " \"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"llama3\", "
                                      "\"factor\": 8.0, \"low_freq_factor\": 1.0,"
                                      " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32}}";

static const char *const good_mistral =
    "{\"model_type\": \"mistral\", \"vocab_size\": 65, \"hidden_size\": 48, \"intermediate_size\": 40, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"head_dim\": null, \"rope_scaling\": null}";

static const char *const good_t5 =
    "{\"model_type\": \"t5\", \"vocab_size\": 65, \"d_model\": 24, \"d_ff\": 40, \"d_kv\": 6, \"num_heads\": 4, "
    "\"num_layers\": 2,"
    " \"num_decoder_layers\": 3, \"relative_attention_num_buckets\": 32, \"relative_attention_max_distance\": 128,"
    " \"layer_norm_epsilon\": 1e-6, \"dropout_rate\": 0.1, \"initializer_factor\": 1.0, \"tie_word_embeddings\": true, "
    "\"pad_token_id\": 0,"
    " \"decoder_start_token_id\": 0, \"feed_forward_proj\": \"relu\"}";

static const char *const good_cnn =
    "{\"model_type\": \"cnn\", \"channels\": 1, \"height\": 12, \"width\": 12, \"classes\": 10, \"first\": 8,"
    " \"second\": 16, \"branch\": 4, \"hidden\": 32}";
static const char *const good_mlp =
    "{\"model_type\": \"mlp\", \"inputs\": 20, \"hidden\": 8, \"layers\": 2, \"outputs\": 3}";

static char path[64];

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/fsdp_config_XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* One field of a good file changed. value NULL: the field is taken out. "rope_parameters.factor" names one inside. */
typedef struct bad_field {
    const char *const *base;
    const char *field, *value;
    const char *says; /* besides the file: NULL: the field */
} bad_field;

static void change_field(json_t *object, const char *field, const char *value)
{
    const char *dot = strchr(field, '.');
    if (dot) {
        char outer[64];
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - field), field);
        change_field(json_object_get(object, outer), dot + 1, value);
    } else if (value) {
        json_t *parsed = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(parsed);
        json_object_set_new(object, field, parsed);
    } else {
        assert_int_equal(json_object_del(object, field), 0);
    }
}

static void write_changed(const bad_field *c)
{
    json_t *object = json_loads(*c->base, 0, NULL);
    assert_non_null(object);
    change_field(object, c->field, c->value);
    char *text = json_dumps(object, 0);
    write_text(text);
    free(text);
    json_decref(object);
}

static const bad_field bad_fields[] = {
    {&good_llama, "model_type", NULL, NULL},
    {&good_llama, "model_type", "7", NULL},
    {&good_llama, "vocab_size", NULL, NULL},
    {&good_llama, "vocab_size", "-65", NULL},
    {&good_llama, "vocab_size", "0", NULL},
    {&good_llama, "vocab_size", "65.5", NULL},
    {&good_llama, "vocab_size", "\"65\"", NULL},
    {&good_llama, "vocab_size", "1099511627776", NULL},
    {&good_llama, "hidden_size", NULL, NULL},
    {&good_llama, "hidden_size", "-24", NULL},
    {&good_llama, "intermediate_size", NULL, NULL},
    {&good_llama, "intermediate_size", "0", NULL},
    {&good_llama, "num_hidden_layers", NULL, NULL},
    {&good_llama, "num_hidden_layers", "-1", NULL},
    {&good_llama, "num_attention_heads", NULL, NULL},
    {&good_llama, "num_attention_heads", "0", NULL},
    {&good_llama, "num_attention_heads", "5", NULL},
    {&good_llama, "num_key_value_heads", "3", NULL},
    {&good_llama, "num_key_value_heads", "-2", NULL},
    {&good_llama, "num_key_value_heads", "8", NULL},
    {&good_llama, "head_dim", "5", NULL},
    {&good_llama, "head_dim", "-6", NULL},
    {&good_llama, "head_dim", "true", NULL},
    {&good_llama, "max_position_embeddings", "0", NULL},
    {&good_llama, "rms_norm_eps", "-1e-5", NULL},
    {&good_llama, "rms_norm_eps", "0", NULL},
    {&good_llama, "rms_norm_eps", "\"small\"", NULL},
    {&good_llama, "initializer_range", "-0.02", NULL},
    {&good_llama, "tie_word_embeddings", "1", NULL},
    {&good_llama, "attention_bias", "\"no\"", NULL},
    {&good_llama, "mlp_bias", "0.5", NULL},
    {&good_llama, "hidden_act", "3", NULL},
    {&good_llama, "rope_parameters", "3", NULL},
    {&good_llama, "rope_parameters.rope_theta", "-1", NULL},
    {&good_llama, "rope_parameters.rope_theta", "\"big\"", "rope_theta"},
    {&good_llama, "rope_parameters.factor", NULL, "factor"},
    {&good_llama, "rope_parameters.factor", "0", "factor"},
    {&good_llama, "rope_parameters.factor", "-8", "factor"},
    {&good_llama, "rope_parameters.low_freq_factor", NULL, "low_freq_factor"},
    {&good_llama, "rope_parameters.low_freq_factor", "-1", "low_freq_factor"},
    {&good_llama, "rope_parameters.low_freq_factor", "4", "low_freq_factor"},
    {&good_llama, "rope_parameters.high_freq_factor", NULL, "high_freq_factor"},
    {&good_llama, "rope_parameters.high_freq_factor", "0.5", "high_freq_factor"},
    {&good_llama, "rope_parameters.original_max_position_embeddings", "-32", "original_max_position_embeddings"},
    {&good_llama, "num_hidden_layers", "16000000", NULL},
    {&good_llama, "head_dim", "2147483648", NULL},
    {&good_llama, "num_attention_heads", "2147483648", NULL},
    {&good_llama, "intermediate_size", "2147483648", NULL},
    {&good_llama, "rms_norm_eps", "1e300", NULL},
    {&good_llama, "original_max_position_embeddings", "64", NULL},
    {&good_llama, "rope_parameters", "{\"rope_type\": \"linear\"}", "factor"},
    {&good_llama, "rope_scaling", "{\"type\": \"linear\"}", "factor"},
    {&good_llama, "rope_scaling", "[1]", NULL},
    {&good_llama, "attention_dropout", "1", "dropout"},
    {&good_mistral, "sliding_window", "0", NULL},
    {&good_mistral, "sliding_window", "-4096", NULL},
    {&good_mistral, "sliding_window", "\"wide\"", NULL},
    {&good_t5, "num_layers", "16000000", NULL},
    {&good_t5, "num_decoder_layers", "16000000", NULL},
    {&good_t5, "d_kv", "2147483648", NULL},
    {&good_t5, "hidden_size", "25", NULL},
    {&good_t5, "head_dim", "7", NULL},
    {&good_t5, "decoder_start_token_id", "-1", NULL},
    {&good_t5, "is_gated_act", "3", NULL},
    {&good_mlp, "layers", "2000000000", NULL},
    {&good_cnn, "first", "2000000000", NULL},
    {&good_t5, "vocab_size", NULL, NULL},
    {&good_t5, "d_model", NULL, NULL},
    {&good_t5, "d_model", "-24", NULL},
    {&good_t5, "d_ff", NULL, NULL},
    {&good_t5, "d_ff", "0", NULL},
    {&good_t5, "d_kv", NULL, NULL},
    {&good_t5, "d_kv", "-6", NULL},
    {&good_t5, "num_heads", NULL, NULL},
    {&good_t5, "num_heads", "0", NULL},
    {&good_t5, "num_layers", NULL, NULL},
    {&good_t5, "num_layers", "-2", NULL},
    {&good_t5, "num_decoder_layers", "0", NULL},
    {&good_t5, "relative_attention_num_buckets", "-32", NULL},
    {&good_t5, "relative_attention_num_buckets", "31", NULL},
    {&good_t5, "relative_attention_num_buckets", "2", NULL},
    {&good_t5, "relative_attention_max_distance", "16", NULL},
    {&good_t5, "relative_attention_max_distance", "0", NULL},
    {&good_t5, "layer_norm_epsilon", "-1", NULL},
    {&good_t5, "dropout_rate", "1", NULL},
    {&good_t5, "dropout_rate", "-0.1", NULL},
    {&good_t5, "initializer_factor", "-1", NULL},
    {&good_t5, "tie_word_embeddings", "\"yes\"", NULL},
    {&good_t5, "scale_decoder_outputs", "1", NULL},
    {&good_t5, "pad_token_id", "-1", NULL},
    {&good_t5, "pad_token_id", "65", NULL},
    {&good_t5, "decoder_start_token_id", "65", NULL},
    {&good_t5, "feed_forward_proj", "1", NULL},
    {&good_cnn, "channels", "0", NULL},
    {&good_cnn, "height", "3", NULL},
    {&good_cnn, "width", "-12", NULL},
    {&good_cnn, "classes", "\"ten\"", NULL},
    {&good_cnn, "first", "0", NULL},
    {&good_cnn, "second", "0", NULL},
    {&good_cnn, "branch", "-4", NULL},
    {&good_cnn, "hidden", "0", NULL},
    {&good_mlp, "inputs", "0", NULL},
    {&good_mlp, "hidden", "-8", NULL},
    {&good_mlp, "layers", "0", NULL},
    {&good_mlp, "outputs", "1.5", NULL},
};

static void a_bad_field_is_refused_with_file_and_field_named(void **state)
{
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < sizeof bad_fields / sizeof bad_fields[0]; i++) {
        const bad_field *c = &bad_fields[i];
        model_config config;
        write_changed(c);
        fsdp_status status = model_config_read(path, &config);
        const char *says = c->says ? c->says : strchr(c->field, '.') ? strchr(c->field, '.') + 1 : c->field;
        if (status != FSDP_ERR_INPUT || !strstr(fsdp_last_error(), path) || !strstr(fsdp_last_error(), says)) {
            print_error("%s = %s: %s, %s\n", c->field, c->value ? c->value : "(missing)", fsdp_status_name(status),
                        status == FSDP_OK ? "" : fsdp_last_error());
            bad++;
        }
        assert_null(strchr(status == FSDP_OK ? "" : fsdp_last_error(), '\n'));
    }
    assert_int_equal(bad, 0);
}

static void what_is_known_but_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    static const bad_field cases[] = {
        {&good_llama, "model_type", "\"gpt_neox\"", "gpt_neox"},
        {&good_llama, "hidden_act", "\"gelu\"", "gelu"},
        {&good_llama, "rope_parameters.rope_type", "\"longrope\"", "longrope"},
        {&good_llama, "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5"},
        {&good_llama, "rope_parameters.partial_rotary_factor", "0.5", "rope_parameters.partial_rotary_factor is 0.5"},
        {&good_llama, "rope_parameters.full_attention", "{\"rope_type\": \"default\"}", "full_attention"},
        {&good_llama, "layer_types", "[\"full_attention\", \"sliding_attention\"]", "layer_types"},
        {&good_llama, "quantization_config", "{\"bits\": 4}", "quantization_config"},
        {&good_llama, "per_layer_config", "{\"0\": {}}", "per_layer_config"},
        {&good_llama, "add_cross_attention", "true", "add_cross_attention"},
        {&good_llama, "is_causal", "false", "is_causal"},
        {&good_llama, "transformers_weights", "\"other.safetensors\"", "transformers_weights"},
        {&good_mistral, "attention_bias", "true", "attention_bias"},
        {&good_mistral, "mlp_bias", "true", "mlp_bias"},
        {&good_t5, "feed_forward_proj", "\"gated-silu\"", "gated-silu"},
        {&good_t5, "dense_act_fn", "\"gelu_new\"", "dense_act_fn"},
        {&good_t5, "dense_act_fn", "\"silu\"", "silu"},
        {&good_t5, "is_gated_act", "true", "is_gated_act"},
        {&good_t5, "tie_encoder_decoder", "true", "tie_encoder_decoder"},
        {&good_t5, "is_causal", "false", "is_causal"},
        {&good_t5, "pruned_heads", "{\"0\": [1]}", "pruned_heads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_config config;
        write_changed(&cases[i]);
        assert_int_equal(model_config_read(path, &config), FSDP_ERR_UNSUPPORTED);
        assert_non_null(strstr(fsdp_last_error(), path));
        assert_non_null(strstr(fsdp_last_error(), cases[i].says));
    }
}

static void text_that_is_no_object_is_refused_with_the_file_named(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", "{", "[1, 2]", "3", "{\"model_type\": \"mlp\", \"model_type\": \"mlp\"}", "{\"model_type\": \"mlp\"} x"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        model_config config;
        write_text(texts[i]);
        assert_int_equal(model_config_read(path, &config), FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), path));
    }
    model_config config;
    assert_int_not_equal(model_config_read("/nowhere/config.json", &config), FSDP_OK);
    assert_non_null(strstr(fsdp_last_error(), "/nowhere/config.json"));
}

static void what_may_be_left_out_has_hugging_faces_defaults(void **state)
{
    (void)state;
    model_config c;
    write_text(good_mistral);
    assert_int_equal(model_config_read(path, &c), FSDP_OK);
    assert_int_equal(c.type, MODEL_DECODER);
    assert_int_equal(c.decoder.kv_heads, 8);
    assert_int_equal(c.decoder.head_dim, 6);
    assert_int_equal(c.decoder.positions, 131072);
    assert_int_equal(c.decoder.window, 4096);
    assert_true(c.decoder.norm_eps == 1e-6f);
    assert_true(c.decoder.rope_base == 10000 && c.decoder.rope_scaling == FSDP_ROPE_PLAIN && !c.decoder.tied);
    write_text("{\"model_type\": \"llama\", \"vocab_size\": 65, \"hidden_size\": 24, \"intermediate_size\": 40, "
               "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"sliding_window\": 16}");
    assert_int_equal(model_config_read(path, &c), FSDP_OK);
    assert_int_equal(c.decoder.kv_heads, 4);
    assert_int_equal(c.decoder.positions, 2048);
    assert_int_equal(c.decoder.window, 0);
    assert_true(c.decoder.norm_eps == 1e-6f);
    write_text("{\"model_type\": \"t5\", \"vocab_size\": 65, \"d_model\": 24, \"d_ff\": 40, \"d_kv\": 6, "
               "\"num_heads\": 4, \"num_layers\": 2}");
    assert_int_equal(model_config_read(path, &c), FSDP_OK);
    assert_int_equal(c.t5.decoder_layers, 2);
    assert_int_equal(c.t5.buckets, 32);
    assert_int_equal(c.t5.max_distance, 128);
    assert_true(c.t5.tied && c.t5.scale_decoder_outputs && !c.t5.gated);
    assert_true(c.t5.pad_id == 0 && c.t5.decoder_start_id == 0);
    assert_true(fabsf(c.t5.dropout - 0.1f) < 1e-7f && fabsf(c.t5.norm_eps - 1e-6f) < 1e-12f);
}

static void older_files_say_rope_scaling(void **state)
{
    (void)state;
    model_config c;
    bad_field old = {&good_llama, "rope_parameters", NULL, NULL};
    write_changed(&old);
    json_t *object;
    assert_int_equal(json_read_file(path, &object), FSDP_OK);
    change_field(object, "rope_theta", "500000.0");
    change_field(object, "rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}");
    assert_int_equal(model_config_parse("old", object, &c), FSDP_OK);
    assert_true(c.decoder.rope_base == 500000 && c.decoder.rope_scaling == FSDP_ROPE_LINEAR &&
                c.decoder.rope_factor == 2);
    json_decref(object);
}

static void read_changed(const char *base, const char *field, const char *value, model_config *c)
{
    bad_field change = {&base, field, value, NULL};
    write_changed(&change);
    if (model_config_read(path, c) != FSDP_OK)
        fail_msg("%s = %s: %s", field, value ? value : "(missing)", fsdp_last_error());
}

static void of_two_forms_of_rope_the_older_wins(void **state)
{
    (void)state;
    model_config c;
    read_changed(good_llama, "rope_scaling", "{\"type\": \"linear\", \"factor\": 4.0}", &c);
    assert_true(c.decoder.rope_scaling == FSDP_ROPE_LINEAR && c.decoder.rope_factor == 4);
    read_changed(good_llama, "rope_scaling", "{}", &c);
    assert_int_equal(c.decoder.rope_scaling, FSDP_ROPE_LLAMA3);
    read_changed(good_llama, "rope_scaling", "null", &c);
    assert_int_equal(c.decoder.rope_scaling, FSDP_ROPE_LLAMA3);
    /* The theta of the form that lost is lost with it. */
    bad_field theta = {&good_llama, "rope_parameters.rope_theta", "7.0", NULL};
    json_t *object;
    write_changed(&theta);
    assert_int_equal(json_read_file(path, &object), FSDP_OK);
    assert_int_equal(model_config_parse("newer", object, &c), FSDP_OK);
    assert_true(c.decoder.rope_base == 7);
    change_field(object, "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 4.0}");
    assert_int_equal(model_config_parse("both", object, &c), FSDP_OK);
    assert_true(c.decoder.rope_base == 10000);
    json_decref(object);
}

static void what_changes_nothing_is_accepted(void **state)
{
    (void)state;
    static const bad_field cases[] = {
        {&good_llama, "attention_dropout", "0", NULL},
        {&good_llama, "attention_dropout", "0.0", NULL},
        {&good_llama, "partial_rotary_factor", "1.0", NULL},
        {&good_llama, "layer_types", "[\"full_attention\", \"full_attention\"]", NULL},
        {&good_llama, "quantization_config", "null", NULL},
        {&good_llama, "original_max_position_embeddings", "32", NULL},
        {&good_llama, "hidden_act", "\"swish\"", NULL},
        {&good_mistral, "attention_bias", "false", NULL},
        {&good_t5, "dense_act_fn", "\"relu\"", NULL},
        {&good_t5, "is_gated_act", "false", NULL},
        {&good_t5, "hidden_size", "24", NULL},
        {&good_t5, "pruned_heads", "{}", NULL},
    };
    model_config c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        read_changed(*cases[i].base, cases[i].field, cases[i].value, &c);
    read_changed(good_mistral, "sliding_window", "null", &c);
    assert_int_equal(c.decoder.window, 0);
}

static int n_warnings;
static char warning[2048];

static void hear(void *context, fsdp_log_level level, const char *line)
{
    (void)context;
    n_warnings += level == FSDP_LOG_WARNING;
    snprintf(warning, sizeof warning, "%s", line);
}

static void unknown_fields_are_named_in_one_warning(void **state)
{
    (void)state;
    model_config c;
    char name[32];
    json_t *object = json_loads(good_llama, 0, NULL);
    change_field(object, "resid_pdrop", "0.5");
    json_object_set_new(object, "clear\033[2J\nforged", json_true());
    n_warnings = 0;
    fsdp_log_set_sink(hear, NULL, FSDP_LOG_WARNING);
    assert_int_equal(model_config_parse("some/config.json", object, &c), FSDP_OK);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warning, "some/config.json"));
    assert_non_null(strstr(warning, "\"resid_pdrop\""));
    assert_non_null(strstr(warning, "\\u001B"));
    assert_true(!strchr(warning, '\033') && !strchr(warning, '\n'));
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "unknown_%d", i);
        json_object_set_new(object, name, json_true());
    }
    assert_int_equal(model_config_parse("some/config.json", object, &c), FSDP_OK);
    assert_non_null(strstr(warning, "and 990 more"));
    json_decref(object);

    const char *const known[] = {good_llama, good_mistral, good_t5, good_cnn, good_mlp};
    n_warnings = 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        write_text(known[i]);
        assert_int_equal(model_config_read(path, &c), FSDP_OK);
        json_t *written = model_config_json(&c);
        assert_int_equal(model_config_parse("ours", written, &c), FSDP_OK);
        json_decref(written);
    }
    assert_int_equal(n_warnings, 0);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
}

static void names_from_files_are_escaped_in_errors(void **state)
{
    (void)state;
    static const struct {
        const char *const *base, *field;
    } cases[] = {{&good_llama, "model_type"},
                 {&good_llama, "hidden_act"},
                 {&good_llama, "rope_parameters.rope_type"},
                 {&good_llama, "quantization_config"},
                 {&good_t5, "feed_forward_proj"},
                 {&good_t5, "dense_act_fn"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model_config c;
        bad_field change = {cases[i].base, cases[i].field, "\"a\\u001b[2J\\nb\"", NULL};
        write_changed(&change);
        assert_int_not_equal(model_config_read(path, &c), FSDP_OK);
        assert_non_null(strstr(fsdp_last_error(), "a\\u001B[2J\\nb"));
        assert_true(!strchr(fsdp_last_error(), '\033') && !strchr(fsdp_last_error(), '\n'));
    }
}

static void without_a_training_length_llama3_scales_from_that_of_the_positions(void **state)
{
    (void)state;
    model_config c;
    read_changed(good_llama, "rope_parameters.original_max_position_embeddings", NULL, &c);
    assert_int_equal(c.decoder.rope_scaling, FSDP_ROPE_LLAMA3);
    assert_true(c.decoder.rope_original_positions == (double)c.decoder.positions);
}

static void sizes_beyond_any_memory_are_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    model_config c;
    fsdp_module *m;
    read_changed(good_llama, "num_hidden_layers", "16384", &c);
    read_changed(good_llama, "hidden_size", "1048576", &c);
    c.decoder.intermediate = 1048576;
    assert_int_equal(model_create(&c, &m), FSDP_OK);
    fsdp_module_free(m);
    c.decoder.layers = 16384;
    assert_int_equal(model_create(&c, &m), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "parameters"));
    read_changed(good_llama, "head_dim", "65536", &c);
    c.decoder.positions = (int64_t)1 << 31;
    assert_int_equal(model_create(&c, &m), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "rotary tables"));
}

static void check_untouched(const json_t *source, json_t *written)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)source, key, value)
    {
        if (strcmp(key, "rope_parameters") != 0 && !json_equal(value, json_object_get(written, key)))
            fail_msg("%s has changed", key);
    }
}

static void a_file_is_written_again_with_what_changed_and_nothing_else(void **state)
{
    (void)state;
    model_config c, again;
    json_t *source = json_loads(good_llama, 0, NULL);
    change_field(source, "bos_token_id", "1");
    change_field(source, "eos_token_id", "[2, 3]");
    change_field(source, "something_of_others", "{\"a\": [1]}");
    assert_int_equal(model_config_parse("source", source, &c), FSDP_OK);
    c.decoder.positions = 16;
    json_t *written = model_config_update(source, &c);
    check_untouched(source, written);
    /* Both forms of rope, and nothing beside them. */
    json_t *older = json_object_get(written, "rope_scaling"), *newer = json_object_get(written, "rope_parameters");
    assert_int_equal(json_object_size(written), json_object_size(source) + 2);
    assert_true(json_number_value(json_object_get(written, "rope_theta")) == 10000);
    assert_string_equal(json_string_value(json_object_get(older, "rope_type")), "llama3");
    assert_string_equal(json_string_value(json_object_get(newer, "rope_type")), "llama3");
    assert_null(json_object_get(older, "rope_theta"));
    assert_true(json_number_value(json_object_get(newer, "rope_theta")) == 10000);
    assert_int_equal(model_config_parse("written", written, &again), FSDP_OK);
    assert_int_equal(again.decoder.positions, 64);
    json_decref(written);
    c.decoder.tied = true;
    c.decoder.vocabulary = 66;
    written = model_config_update(source, &c);
    assert_true(json_is_true(json_object_get(written, "tie_word_embeddings")));
    assert_int_equal(json_integer_value(json_object_get(written, "vocab_size")), 66);
    json_decref(written);
    json_decref(source);
}

static void a_mistral_stays_one_and_an_untied_t5_keeps_its_scale(void **state)
{
    (void)state;
    model_config c, again;
    json_t *source = json_loads(good_mistral, 0, NULL);
    assert_int_equal(model_config_parse("source", source, &c), FSDP_OK);
    json_t *written = model_config_update(source, &c);
    assert_string_equal(json_string_value(json_object_get(written, "model_type")), "mistral");
    check_untouched(source, written);
    json_decref(written);
    json_decref(source);
    source = json_loads(good_t5, 0, NULL);
    assert_int_equal(model_config_parse("source", source, &c), FSDP_OK);
    c.t5.tied = false;
    written = model_config_update(source, &c);
    assert_int_equal(model_config_parse("written", written, &again), FSDP_OK);
    assert_true(!again.t5.tied && again.t5.scale_decoder_outputs);
    json_decref(written);
    json_decref(source);
}

static bool same_config(const model_config *a, const model_config *b)
{
    const fsdp_llama_config *p = &a->decoder, *q = &b->decoder;
    const fsdp_t5_config *s = &a->t5, *t = &b->t5;
    return a->type == b->type && p->vocabulary == q->vocabulary && p->hidden == q->hidden &&
           p->intermediate == q->intermediate && p->layers == q->layers && p->heads == q->heads &&
           p->kv_heads == q->kv_heads && p->head_dim == q->head_dim && p->positions == q->positions &&
           p->rope_base == q->rope_base && p->rope_scaling == q->rope_scaling && p->rope_factor == q->rope_factor &&
           p->rope_low_factor == q->rope_low_factor && p->rope_high_factor == q->rope_high_factor &&
           p->rope_original_positions == q->rope_original_positions && p->norm_eps == q->norm_eps &&
           p->init_deviation == q->init_deviation && p->tied == q->tied && p->attention_bias == q->attention_bias &&
           p->mlp_bias == q->mlp_bias && s->vocabulary == t->vocabulary && s->hidden == t->hidden &&
           s->intermediate == t->intermediate && s->layers == t->layers && s->decoder_layers == t->decoder_layers &&
           s->heads == t->heads && s->head_dim == t->head_dim && s->buckets == t->buckets &&
           s->max_distance == t->max_distance && s->pad_id == t->pad_id && s->decoder_start_id == t->decoder_start_id &&
           s->norm_eps == t->norm_eps && s->dropout == t->dropout && s->init_factor == t->init_factor &&
           s->gated == t->gated && s->tied == t->tied && s->scale_decoder_outputs == t->scale_decoder_outputs &&
           memcmp(&a->cnn, &b->cnn, sizeof a->cnn) == 0 && memcmp(&a->mlp, &b->mlp, sizeof a->mlp) == 0;
}

static void check_round_trip(const char *base, const char *field, const char *value)
{
    model_config first, second;
    bad_field change = {&base, field, value, NULL};
    write_changed(&change);
    assert_int_equal(model_config_read(path, &first), FSDP_OK);
    json_t *written = model_config_json(&first);
    assert_non_null(written);
    assert_int_equal(json_write_file(path, written), FSDP_OK);
    json_decref(written);
    assert_int_equal(model_config_read(path, &second), FSDP_OK);
    if (!same_config(&first, &second)) {
        print_error("%s = %s is lost on the way through a file\n", field, value);
        fail();
    }
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    const struct {
        const char *base, *field, *value;
    } changes[] = {
        {good_llama, "rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 12345.678}"},
        {good_llama, "rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 2.5}"},
        {good_llama, "rope_parameters.factor", "7.3"},
        {good_llama, "rms_norm_eps", "1.2345678e-6"},
        {good_llama, "initializer_range", "0.0123"},
        {good_llama, "tie_word_embeddings", "true"},
        {good_llama, "attention_bias", "true"},
        {good_llama, "mlp_bias", "true"},
        {good_llama, "num_key_value_heads", "1"},
        {good_t5, "tie_word_embeddings", "false"},
        {good_t5, "scale_decoder_outputs", "false"},
        {good_t5, "feed_forward_proj", "\"gated-gelu\""},
        {good_t5, "dropout_rate", "0.0"},
        {good_t5, "layer_norm_epsilon", "3.3e-7"},
        {good_t5, "initializer_factor", "0.05"},
        {good_t5, "pad_token_id", "3"},
        {good_t5, "decoder_start_token_id", "4"},
        {good_t5, "num_decoder_layers", "5"},
        {good_cnn, "height", "17"},
        {good_cnn, "branch", "3"},
        {good_mlp, "layers", "4"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        check_round_trip(changes[i].base, changes[i].field, changes[i].value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_field_is_refused_with_file_and_field_named),
        cmocka_unit_test(what_is_known_but_not_supported_is_refused_by_name),
        cmocka_unit_test(text_that_is_no_object_is_refused_with_the_file_named),
        cmocka_unit_test(what_may_be_left_out_has_hugging_faces_defaults),
        cmocka_unit_test(older_files_say_rope_scaling),
        cmocka_unit_test(of_two_forms_of_rope_the_older_wins),
        cmocka_unit_test(what_changes_nothing_is_accepted),
        cmocka_unit_test(unknown_fields_are_named_in_one_warning),
        cmocka_unit_test(names_from_files_are_escaped_in_errors),
        cmocka_unit_test(without_a_training_length_llama3_scales_from_that_of_the_positions),
        cmocka_unit_test(sizes_beyond_any_memory_are_refused_before_anything_is_allocated),
        cmocka_unit_test(a_file_is_written_again_with_what_changed_and_nothing_else),
        cmocka_unit_test(a_mistral_stays_one_and_an_untied_t5_keeps_its_scale),
        cmocka_unit_test(what_is_written_is_read_back),
    };
    return cmocka_run_group_tests_name("config", tests, make_file, remove_file);
}
