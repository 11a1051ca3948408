/* Training from a model folder and exporting one: what the folder's files say holds, and what they do not say and
 * training did not change is in the export as it was. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "format/weights/model_folder.h"
#include "format/weights/safetensors.h"
#include "format/weights/safetensors_writer.h"
#include "support_job.h"

static void expect_ok(const job *j)
{
    if (j->status != FSDP_OK)
        fail_msg("%s", j->error);
}

static void expect_refused(const job *j, fsdp_status status, const char *says)
{
    if (j->status != status || !strstr(j->error, says))
        fail_msg("\"%s\" is expected, there is: %s", says, j->status == FSDP_OK ? "no error" : j->error);
}

static char *path_in(const job *j, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", j->folder, name);
    return path;
}

static json_t *read_json(const job *j, const char *name)
{
    json_t *value;
    assert_int_equal(json_read_file(path_in(j, name), &value), FSDP_OK);
    return value;
}

/* One field of a folder's config.json; value NULL: taken out. */
static void set_config(const job *j, const char *folder, const char *field, const char *value)
{
    char name[128];
    snprintf(name, sizeof name, "%s/config.json", folder);
    json_t *config = read_json(j, name);
    if (value)
        json_object_set_new(config, field, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(config, field);
    assert_int_equal(json_write_file(path_in(j, name), config), FSDP_OK);
    json_decref(config);
}

static void expect_field(const json_t *config, const char *field, const char *value)
{
    json_t *wanted = json_loads(value, JSON_DECODE_ANY, NULL), *got = json_object_get(config, field);
    char *text = got ? json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (!got || !json_equal(got, wanted))
        fail_msg("%s is %s instead of %s", field, text ? text : "not there", value);
    free(text);
    json_decref(wanted);
}

static bool has_tensor(const job *j, const char *folder, const char *name)
{
    model_folder *f;
    assert_int_equal(model_folder_open(path_in(j, folder), &f), FSDP_OK);
    bool found = model_folder_find(f, name) != NULL;
    model_folder_close(f);
    return found;
}

/* The loss of the first step from a folder. */
static double first_loss(job *j, const char *folder)
{
    char flag[64];
    snprintf(flag, sizeof flag, "--init_from=@%s", folder);
    RUN(j, flag, "--max_steps=1", "--lr=0", "--no_shuffle");
    expect_ok(j);
    return j->steps[0].loss;
}

static void a_head_that_differs_from_the_embedding_is_kept_whatever_the_file_says(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@untied", "--lr=0.1");
    expect_ok(j);
    double wanted = first_loss(j, "untied");
    set_config(j, "untied", "tie_word_embeddings", "true");
    double got = first_loss(j, "untied");
    assert_true(got == wanted);
    assert_non_null(strstr(j->said, "not tied"));
    RUN(j, "--init_from=@untied", "--export_dir=@again");
    expect_ok(j);
    assert_true(has_tensor(j, "again", "lm_head.weight"));
    json_t *config = read_json(j, "again/config.json");
    expect_field(config, "tie_word_embeddings", "false");
    json_decref(config);
    /* Tied files stay tied. */
    RUN(j, "--tie_word_embeddings", "--export_dir=@tied");
    RUN(j, "--init_from=@tied", "--export_dir=@again");
    expect_ok(j);
    assert_false(has_tensor(j, "again", "lm_head.weight"));
}

static void an_export_is_the_sources_config_with_what_training_changed(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@source", "--rope_scaling=linear", "--rope_factor=2");
    expect_ok(j);
    static const char *const kept[][2] = {
        {"architectures", "[\"LlamaForCausalLM\"]"},
        {"max_position_embeddings", "4096"},
        {"bos_token_id", "7"},
        {"eos_token_id", "[8, 9]"},
        {"pad_token_id", "10"},
        {"transformers_version", "\"4.40.0\""},
        {"something_of_others", "{\"a\": [1, null]}"},
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        set_config(j, "source", kept[i][0], kept[i][1]);
    set_config(j, "source", "rope_parameters", NULL); /* as transformers 4 writes it */
    set_config(j, "source", "dtype", NULL);
    set_config(j, "source", "torch_dtype", "\"bfloat16\"");
    RUN(j, "--init_from=@source", "--export_dir=@export", "--checkpoint_freq=4", "--max_context_width=8");
    expect_ok(j);
    assert_non_null(strstr(j->said, "\"something_of_others\""));
    static const char *const written[] = {"export/config.json", "run/checkpoints/step-00000004/config.json"};
    for (int f = 0; f < 2; f++) {
        json_t *config = read_json(j, written[f]);
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            expect_field(config, kept[i][0], kept[i][1]);
        expect_field(config, "rope_theta", "500000.0");
        expect_field(config, "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2.0}");
        expect_field(config, "rope_parameters",
                     "{\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 500000.0}");
        expect_field(config, "torch_dtype", "\"float32\""); /* true to the files */
        expect_field(config, "dtype", "\"float32\"");
        json_decref(config);
    }
}

static void an_export_without_a_source_names_the_tokenizers_ids(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@export");
    expect_ok(j);
    json_t *config = read_json(j, "export/config.json");
    expect_field(config, "eos_token_id", "0"); /* bytes end with 0 and have no beginning */
    expect_field(config, "bos_token_id", "null");
    expect_field(config, "rope_scaling", "null");
    expect_field(config, "rms_norm_eps", "1e-5");
    json_decref(config);
}

static void a_window_counts_where_texts_are_longer(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@mistral");
    expect_ok(j);
    double wanted = first_loss(j, "mistral");
    set_config(j, "mistral", "model_type", "\"mistral\"");
    set_config(j, "mistral", "sliding_window", "16");
    assert_true(first_loss(j, "mistral") == wanted);
    RUN(j, "--init_from=@mistral", "--export_dir=@again");
    expect_ok(j);
    json_t *config = read_json(j, "again/config.json");
    expect_field(config, "model_type", "\"mistral\"");
    expect_field(config, "sliding_window", "16");
    json_decref(config);
    set_config(j, "mistral", "sliding_window", "3");
    assert_true(first_loss(j, "mistral") != wanted);
    RUN(j, "--init_from=@mistral", "--sliding_window=4");
    expect_refused(j, FSDP_ERR_INPUT, "--sliding_window=4 contradicts the 3");
}

/* Writes a folder's weights again with `from` at the beginning of names replaced by `to`, and a tensor more unless it
 * is NULL. */
static void rename_weights(const job *j, const char *folder, const char *from, const char *to, const char *more)
{
    enum { MAX = 200 };
    safetensors *old;
    safetensors_writer *w;
    char path[300], name[300];
    float *values[MAX], extra[4] = {1, 2, 3, 4};
    size_t index[MAX + 1], n;
    int64_t numel[MAX], four = 4;
    snprintf(path, sizeof path, "%s/model.safetensors", path_in(j, folder));
    assert_int_equal(safetensors_open(path, &old), FSDP_OK);
    assert_int_equal(safetensors_writer_create(path, &w), FSDP_OK);
    n = safetensors_count(old);
    assert_true(n <= MAX);
    for (size_t i = 0; i < n; i++) {
        const safetensors_tensor *t = safetensors_at(old, i);
        bool renamed = strncmp(t->name, from, strlen(from)) == 0;
        snprintf(name, sizeof name, "%s%s", renamed ? to : "", renamed ? t->name + strlen(from) : t->name);
        assert_int_equal(safetensors_writer_add(w, name, FSDP_F32, t->n_dims, t->shape, &index[i]), FSDP_OK);
        numel[i] = t->numel;
        values[i] = malloc((size_t)t->numel * sizeof(float));
        assert_int_equal(safetensors_read_f32(t, 0, t->numel, values[i]), FSDP_OK);
    }
    safetensors_close(old);
    if (more)
        assert_int_equal(safetensors_writer_add(w, more, FSDP_F32, 1, &four, &index[n]), FSDP_OK);
    assert_int_equal(safetensors_writer_begin(w), FSDP_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(safetensors_writer_write(w, index[i], 0, values[i], (size_t)numel[i] * sizeof(float)),
                         FSDP_OK);
        free(values[i]);
    }
    if (more)
        assert_int_equal(safetensors_writer_write(w, index[n], 0, extra, 4 * sizeof(float)), FSDP_OK);
    assert_int_equal(safetensors_writer_commit(w), FSDP_OK);
}

static void published_files_name_their_weights_in_several_ways(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@plain", "--lr=0.1");
    expect_ok(j);
    double wanted = first_loss(j, "plain");
    rename_weights(j, "plain", "model.", "", "layers.0.self_attn.rotary_emb.inv_freq");
    assert_true(first_loss(j, "plain") == wanted);
    rename_weights(j, "plain", "norm.weight", "strange.weight", NULL);
    RUN(j, "--init_from=@plain");
    expect_refused(j, FSDP_ERR_INPUT, "strange.weight");
    RUN(j, "--tie_word_embeddings", "--export_dir=@tied", "--lr=0.1");
    wanted = first_loss(j, "tied");
    rename_weights(j, "tied", "model.embed_tokens.weight", "lm_head.weight", NULL);
    assert_true(first_loss(j, "tied") == wanted);
    RUN(j, "--model_type=gpt2", "--num_key_value_heads=0", "--export_dir=@gpt2", "--lr=0.1");
    expect_ok(j);
    RUN(j, "--model_type=gpt2", "--init_from=@gpt2", "--max_steps=1", "--lr=0", "--no_shuffle");
    expect_ok(j);
    wanted = j->steps[0].loss;
    rename_weights(j, "gpt2", "transformer.", "", "h.0.attn.bias");
    RUN(j, "--model_type=gpt2", "--init_from=@gpt2", "--max_steps=1", "--lr=0", "--no_shuffle");
    expect_ok(j);
    assert_true(j->steps[0].loss == wanted);
}

/* Letters a to p and the space are one token each, "ab" and "cd" too. */
static const char *const tokenizer =
    "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 19, \"content\": \"</s>\", \"special\": true, "
    "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false}], \"normalizer\": null, "
    "\"pre_tokenizer\": null, \"post_processor\": null, \"decoder\": null, \"model\": {\"type\": \"BPE\", \"vocab\": "
    "{\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3, \"e\": 4, \"f\": 5, \"g\": 6, \"h\": 7, \" \": 8, \"i\": 9, \"j\": 10, "
    "\"k\": 11, \"l\": 12, \"m\": 13, \"n\": 14, \"o\": 15, \"p\": 16, \"ab\": 17, \"cd\": 18}, \"merges\": "
    "[\"a b\", \"c d\"]}}";

static void a_folders_own_tokenizer_is_used_and_travels_along(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@model");
    expect_ok(j);
    double bytes = first_loss(j, "model");
    job_write(j, "model/tokenizer.json", tokenizer);
    double tokens = first_loss(j, "model");
    assert_true(tokens != bytes);
    json_t *settings = read_json(j, "run/settings.json");
    assert_string_equal(json_string_value(json_object_get(settings, "tokenizer")), path_in(j, "model"));
    json_decref(settings);
    RUN(j, "--init_from=@model", "--max_steps=1", "--lr=0", "--no_shuffle", "--tokenizer=@model/tokenizer.json");
    assert_true(j->steps[0].loss == tokens);
    RUN(j, "--init_from=@model", "--export_dir=@again");
    expect_ok(j);
    char *copied = job_file(j, "again/tokenizer.json");
    assert_non_null(copied);
    free(copied);
    /* Only the configuration: the tokenizer beside it all the same. */
    RUN(j, "--model_config=@model", "--export_dir=@again");
    expect_ok(j);
    copied = job_file(j, "again/tokenizer.json");
    assert_non_null(copied);
    free(copied);
}

static void a_folder_whose_tokenizer_cannot_be_read_does_not_train_on_bytes(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@unread");
    expect_ok(j);
    job_write(j, "unread/tokenizer.model", "sentencepiece");
    RUN(j, "--init_from=@unread");
    expect_refused(j, FSDP_ERR_INPUT, "no tokenizer.json");
    job_write(j, "unread/tokenizer.json", "{\"model\": {\"type\": \"Syllables\", \"vocab\": {}}}");
    RUN(j, "--init_from=@unread");
    expect_refused(j, FSDP_ERR_INPUT, "Syllables");
    /* Whoever names one is not held up. */
    job_write(j, "tokenizer.json", tokenizer);
    RUN(j, "--init_from=@unread", "--tokenizer=@tokenizer.json");
    expect_ok(j);
}

static void t5_trains_from_the_start_token_that_its_folder_names(void **state)
{
    static const char *const base[] = {"--model_type=t5",
                                       "--dataset=@pairs.jsonl",
                                       "--max_target_width=12",
                                       "--max_context_width=24",
                                       "--dropout=0",
                                       "--max_steps=1",
                                       "--lr=0",
                                       "--no_shuffle",
                                       "--export_dir=@t5",
                                       "--init_from=@t5",
                                       NULL};
    job *j = *state;
    const char *first[16];
    double losses[3];
    char text[2048] = "";
    for (int i = 0; i < 6; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"text\": \"the %d cats and %d dogs\", \"summary\": \"%d pets\"}\n", i, i + 3, 2 * i + 3);
    job_write(j, "pairs.jsonl", text);
    memcpy(first, base, sizeof base);
    first[9] = NULL;
    job_run(j, first);
    expect_ok(j);
    first[8] = "--init_from=@t5";
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            set_config(j, "t5", i == 1 ? "decoder_start_token_id" : "pad_token_id", "5");
        job_run(j, first);
        expect_ok(j);
        losses[i] = j->steps[0].loss;
    }
    assert_true(losses[1] != losses[0]);
    assert_true(losses[2] == losses[1]); /* padding is masked, and counts for nothing */
    memcpy(first, base, sizeof base);
    first[8] = "--export_dir=@again";
    job_run(j, first);
    json_t *config = read_json(j, "again/config.json");
    expect_field(config, "decoder_start_token_id", "5");
    expect_field(config, "pad_token_id", "5");
    json_decref(config);
}

static void settings_say_all_of_the_models_shape(void **state)
{
    job *j = *state;
    RUN(j, "--export_dir=@shape", "--rope_scaling=llama3", "--rope_factor=8", "--rope_low_freq_factor=2",
        "--rope_high_freq_factor=3", "--rope_original_context=64", "--norm_eps=1e-4", "--initializer_range=0.5");
    expect_ok(j);
    RUN(j, "--model_config=@shape");
    expect_ok(j);
    json_t *settings = read_json(j, "run/settings.json");
    expect_field(settings, "rope_scaling", "\"llama3\"");
    assert_true(json_number_value(json_object_get(settings, "rope_factor")) == 8);
    assert_true(json_number_value(json_object_get(settings, "rope_low_freq_factor")) == 2);
    assert_true(json_number_value(json_object_get(settings, "rope_high_freq_factor")) == 3);
    assert_true(json_number_value(json_object_get(settings, "rope_original_context")) == 64);
    assert_true(fabs(json_number_value(json_object_get(settings, "norm_eps")) - 1e-4) < 1e-9);
    assert_true(fabs(json_number_value(json_object_get(settings, "initializer_range")) - 0.5) < 1e-9);
    json_decref(settings);
    /* The same settings, read again, do not contradict the model. */
    char *text = job_file(j, "run/settings.json");
    job_write(j, "settings.json", text);
    free(text);
    RUN(j, "--config=@settings.json");
    expect_ok(j);
    static const char *const contradicting[] = {"--rope_scaling=linear", "--rope_low_freq_factor=1",
                                                "--rope_original_context=65", "--norm_eps=1e-5",
                                                "--initializer_range=0.1"};
    for (size_t i = 0; i < sizeof contradicting / sizeof *contradicting; i++) {
        RUN(j, "--model_config=@shape", contradicting[i]);
        expect_refused(j, FSDP_ERR_INPUT, "of the model's config.json");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_that_differs_from_the_embedding_is_kept_whatever_the_file_says),
        cmocka_unit_test(an_export_is_the_sources_config_with_what_training_changed),
        cmocka_unit_test(an_export_without_a_source_names_the_tokenizers_ids),
        cmocka_unit_test(a_window_counts_where_texts_are_longer),
        cmocka_unit_test(published_files_name_their_weights_in_several_ways),
        cmocka_unit_test(a_folders_own_tokenizer_is_used_and_travels_along),
        cmocka_unit_test(a_folder_whose_tokenizer_cannot_be_read_does_not_train_on_bytes),
        cmocka_unit_test(t5_trains_from_the_start_token_that_its_folder_names),
        cmocka_unit_test(settings_say_all_of_the_models_shape),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
