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
    {&good_llama, "rope_parameters.original_max_position_embeddings", NULL, "original_max_position_embeddings"},
    {&good_llama, "rope_parameters.original_max_position_embeddings", "-32", "original_max_position_embeddings"},
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
    static const bad_field cases[] = {{&good_llama, "model_type", "\"gpt2\"", "gpt2"},
                                      {&good_llama, "hidden_act", "\"gelu\"", "gelu"},
                                      {&good_llama, "rope_parameters.rope_type", "\"yarn\"", "yarn"},
                                      {&good_t5, "feed_forward_proj", "\"gated-silu\"", "gated-silu"}};
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
    write_text("{\"model_type\": \"mistral\", \"vocab_size\": 65, \"hidden_size\": 24, \"intermediate_size\": 40, "
               "\"num_hidden_layers\": 2,"
               " \"num_attention_heads\": 4, \"head_dim\": null, \"rope_scaling\": null}");
    assert_int_equal(model_config_read(path, &c), FSDP_OK);
    assert_int_equal(c.type, MODEL_LLAMA);
    assert_int_equal(c.llama.kv_heads, 4);
    assert_int_equal(c.llama.head_dim, 6);
    assert_int_equal(c.llama.positions, 2048);
    assert_true(c.llama.rope_base == 10000 && c.llama.rope_scaling == FSDP_ROPE_PLAIN && !c.llama.tied);
    write_text("{\"model_type\": \"t5\", \"vocab_size\": 65, \"d_model\": 24, \"d_ff\": 40, \"d_kv\": 6, "
               "\"num_heads\": 4, \"num_layers\": 2}");
    assert_int_equal(model_config_read(path, &c), FSDP_OK);
    assert_int_equal(c.t5.decoder_layers, 2);
    assert_int_equal(c.t5.buckets, 32);
    assert_int_equal(c.t5.max_distance, 128);
    assert_true(c.t5.tied && c.t5.scale_decoder_outputs && !c.t5.gated);
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
    assert_true(c.llama.rope_base == 500000 && c.llama.rope_scaling == FSDP_ROPE_LINEAR && c.llama.rope_factor == 2);
    json_decref(object);
}

static bool same_config(const model_config *a, const model_config *b)
{
    const fsdp_llama_config *p = &a->llama, *q = &b->llama;
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
        cmocka_unit_test(what_is_written_is_read_back),
    };
    return cmocka_run_group_tests_name("config", tests, make_file, remove_file);
}
