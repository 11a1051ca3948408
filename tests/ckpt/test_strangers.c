/* Checkpoints that came from a stranger, or that somebody tampered with: nothing outside them is read or copied because
 * they say so, nothing in them hangs or floods the reader, and what contradicts itself is refused by name. */
#include "ckpt/fixture.h"

#include <fsdp/checkpoint.h>
#include <inttypes.h>
#include <sys/stat.h>

static char path_room[8][1400];
static int path_next;

static const char *join(const char *folder, const char *name)
{
    char *path = path_room[path_next++ % 8];
    snprintf(path, sizeof path_room[0], "%s/%s", folder, name);
    return path;
}

/* A checkpoint of step 10 at <directory>/step-00000010; returns that path. */
static const char *save(const char *directory, fsdp_checkpoint_kind kind, const char *tokenizer)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, 10);
    ckpt_save_config config = fixture_config(directory, kind, 10);
    json_t *model = json_pack("{s:s, s:i, s:i, s:i}", "model_type", "llama", "vocab_size", 97, "hidden_size", 37,
                              "num_hidden_layers", 2);
    config.model = model;
    config.tokenizer = tokenizer;
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    json_decref(model);
    fixture_free(f);
    return join(directory, "step-00000010");
}

/* Puts the text there as the manifest, with a marker that vouches for it. */
static void put_manifest(const char *checkpoint, const char *text, size_t bytes)
{
    char marker[64];
    hash_stream hash;
    hash_stream_start(&hash);
    hash_stream_add(&hash, text, bytes);
    int length = snprintf(marker, sizeof marker, "fsdp-checkpoint 1 %016" PRIx64 "\n", hash_stream_end(&hash));
    assert_ok(file_write_atomic(join(checkpoint, "checkpoint.json"), text, bytes));
    assert_ok(file_write_atomic(join(checkpoint, "COMMIT"), marker, (size_t)length));
}

/* Sets a field of the manifest; takes `value`. */
static void forge(const char *checkpoint, const char *key, json_t *value)
{
    json_t *root;
    assert_ok(json_read_file(join(checkpoint, "checkpoint.json"), &root));
    assert_int_equal(json_object_set_new(root, key, value), 0);
    char *text = json_dumps(root, JSON_REAL_PRECISION(17));
    put_manifest(checkpoint, text, strlen(text));
    free(text);
    json_decref(root);
}

static fsdp_status export_to(const char *checkpoint, const char *folder, const char *tokenizer, char **text)
{
    fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    config.source = checkpoint;
    config.destination = folder;
    config.tokenizer = tokenizer;
    return fsdp_checkpoint_export(&config, text);
}

static void assert_verify_finds(const char *checkpoint, const char *problem)
{
    char *text;
    assert_int_equal(fsdp_checkpoint_verify(checkpoint, false, &text), FSDP_ERR_INPUT);
    if (!strstr(text, problem))
        fail_msg("\"%s\" is not in: %s", problem, text);
    free(text);
}

static void a_manifest_cannot_have_a_file_of_this_machine_exported(void **state)
{
    (void)state;
    const char *secret = scratch_path("id_ed25519"), *folder = scratch_path("stolen");
    const char *checkpoint = save(scratch_path("thief"), FSDP_CKPT_SHARDED, NULL);
    char *text;
    assert_ok(file_write_atomic(secret, "{\"model\": {\"key\": 1}}", 21)); /* it even parses */
    forge(checkpoint, "tokenizer", json_string(secret));
    assert_ok(export_to(checkpoint, folder, NULL, &text));
    assert_false(file_exists(join(folder, "tokenizer.json")));
    assert_non_null(strstr(text, "no tokenizer files: training had them in"));
    assert_non_null(strstr(text, secret));
    free(text);
}

static void links_in_a_checkpoint_are_not_followed(void **state)
{
    (void)state;
    const char *secret = scratch_path("secret.json"), *folder = scratch_path("linked");
    const char *checkpoint = save(scratch_path("links"), FSDP_CKPT_FULL, NULL);
    char *text;
    assert_ok(file_write_atomic(secret, "{\"model\": {}}", 13));
    assert_int_equal(symlink(secret, join(checkpoint, "tokenizer.json")), 0);
    assert_fails(FSDP_ERR_INPUT, export_to(checkpoint, folder, NULL, &text), "tokenizer.json", "is a link");
    assert_false(file_exists(folder));
}

static void tokenizer_files_are_what_their_names_say(void **state)
{
    (void)state;
    const char *folder = scratch_path("any"), *tokenizer = scratch_path("tokenizers");
    const char *checkpoint = save(scratch_path("plain"), FSDP_CKPT_SHARDED, NULL);
    char *text;
    assert_ok(file_make_directories(tokenizer));
    assert_ok(file_write_atomic(join(tokenizer, "key"), "-----BEGIN OPENSSH PRIVATE KEY-----", 35));
    assert_fails(FSDP_ERR_INPUT, export_to(checkpoint, folder, join(tokenizer, "key"), &text), "key");
    assert_ok(file_write_atomic(join(tokenizer, "key"), "{\"token\": \"hf_secret\"}", 22));
    assert_fails(FSDP_ERR_INPUT, export_to(checkpoint, folder, join(tokenizer, "key"), &text), "is not a tokenizer");
    assert_false(file_exists(folder));
    assert_ok(file_write_atomic(join(tokenizer, "tokenizer.json"), "{\"model\": {}}", 13));
    assert_ok(file_write_atomic(join(tokenizer, "merges.txt"), "a\0b", 3));
    assert_ok(file_write_atomic(join(tokenizer, "spiece.model"), "-----BEGIN OPENSSH PRIVATE KEY-----", 35));
    assert_ok(export_to(checkpoint, folder, tokenizer, &text));
    free(text);
    assert_true(file_exists(join(folder, "tokenizer.json")));
    assert_false(file_exists(join(folder, "merges.txt")));
    assert_false(file_exists(join(folder, "spiece.model")));
}

static void a_sharded_checkpoint_brings_its_tokenizer_along(void **state)
{
    (void)state;
    const char *tokenizer = scratch_path("brought"), *folder = scratch_path("with-it");
    char *text;
    assert_ok(file_make_directories(tokenizer));
    assert_ok(file_write_atomic(join(tokenizer, "tokenizer.json"), "{\"model\": {}}", 13));
    const char *checkpoint = save(scratch_path("brings"), FSDP_CKPT_SHARDED, tokenizer);
    assert_ok(file_remove_tree(tokenizer));
    assert_ok(export_to(checkpoint, folder, NULL, &text));
    assert_null(strstr(text, "no tokenizer files"));
    free(text);
    assert_true(file_exists(join(folder, "tokenizer.json")));
}

/* Each in turn: neither the commands nor a resume wait for it or swallow it whole. */
static void fifos_and_devices_in_place_of_files_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"checkpoint.json", "COMMIT",         "rank-00000.safetensors",
                                        "config.json",     "tokenizer.json", "checkpoint.json",
                                        "COMMIT",          "config.json",    "rank-00000.safetensors"};
    const char *directory = scratch_path("odd"), *folder = scratch_path("odd-exported"), *tokenizer = scratch_path("t");
    assert_ok(file_make_directories(tokenizer));
    assert_ok(file_write_atomic(join(tokenizer, "tokenizer.json"), "{\"model\": {}}", 13));
    alarm(120);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char odd[1400], *text;
        assert_ok(file_remove_tree(directory));
        const char *checkpoint = save(directory, FSDP_CKPT_SHARDED, tokenizer);
        snprintf(odd, sizeof odd, "%s/%s", checkpoint, names[i]);
        assert_int_equal(unlink(odd), 0);
        assert_int_equal(i < 5 ? mkfifo(odd, 0600) : symlink("/dev/zero", odd), 0);
        assert_verify_finds(checkpoint, names[i]);
        assert_fails(FSDP_ERR_INPUT, export_to(checkpoint, folder, NULL, &text), names[i]);
        assert_false(file_exists(folder));
        int64_t step = fixture_resumed_step(directory);
        assert_int_equal(step, strstr(names[i], "config") || strstr(names[i], "tokenizer") ? 10 : -2);
    }
    alarm(0);
}

static void an_index_that_is_a_device_is_refused(void **state)
{
    (void)state;
    const char *folder = scratch_path("index");
    char *text;
    assert_ok(file_make_directories(folder));
    assert_int_equal(symlink("/dev/zero", join(folder, "model.safetensors.index.json")), 0);
    alarm(60);
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_show(folder, false, &text), "a character device");
    alarm(0);
}

static void what_lies_beside_the_tensors_is_verified(void **state)
{
    (void)state;
    static const fsdp_checkpoint_kind kinds[] = {FSDP_CKPT_SHARDED, FSDP_CKPT_FULL};
    for (int k = 0; k < 2; k++) {
        const char *directory = scratch_path(k ? "beside-full" : "beside");
        const char *checkpoint = save(directory, kinds[k], NULL), *config = join(checkpoint, "config.json");
        char *text, *before;
        size_t bytes;
        assert_ok(fsdp_checkpoint_verify(checkpoint, false, &text));
        free(text);
        assert_ok(file_read(config, &before, &bytes));
        assert_ok(file_write_atomic(config, before, bytes - 4));
        assert_verify_finds(checkpoint, "config.json is not as it was written");
        assert_ok(file_write_atomic(config, "{}", 2));
        assert_verify_finds(checkpoint, "config.json is not as it was written");
        assert_int_equal(unlink(config), 0);
        assert_verify_finds(checkpoint, "config.json is missing");
        assert_fails(FSDP_ERR_INPUT, export_to(checkpoint, scratch_path("never"), NULL, &text), "config.json");
        assert_int_equal(fixture_resumed_step(directory), 10); /* training does not need it */
        free(before);
    }
}

static void a_full_checkpoint_without_its_manifest_does_not_verify(void **state)
{
    (void)state;
    const char *directory = scratch_path("headless");
    const char *checkpoint = save(directory, FSDP_CKPT_FULL, NULL);
    assert_int_equal(unlink(join(checkpoint, "checkpoint.json")), 0);
    assert_verify_finds(checkpoint, "checkpoint.json is missing");
    assert_verify_finds(directory, "checkpoint.json is missing");
    assert_int_equal(unlink(join(checkpoint, "COMMIT")), 0);
    assert_verify_finds(checkpoint, "checkpoint.json and COMMIT are missing");
    assert_verify_finds(directory, "checkpoint.json and COMMIT are missing");
}

static void a_config_of_another_model_is_refused(void **state)
{
    (void)state;
    static const char *const fields[] = {"vocab_size", "hidden_size", "num_hidden_layers"};
    for (size_t i = 0; i < 3; i++) {
        char name[32], *text;
        snprintf(name, sizeof name, "other-%zu", i);
        const char *checkpoint = save(scratch_path(name), FSDP_CKPT_SHARDED, NULL);
        json_t *config;
        assert_ok(json_read_file(join(checkpoint, "config.json"), &config));
        json_object_set_new(config, fields[i], json_integer(1 << 20));
        assert_ok(json_write_file(join(checkpoint, "config.json"), config));
        json_decref(config);
        forge(checkpoint, "beside", json_array());
        assert_verify_finds(checkpoint, "config.json is of another model");
        assert_fails(FSDP_ERR_INPUT, export_to(checkpoint, scratch_path("no-such"), NULL, &text), "of another model");
    }
}

static void junk_behind_the_marker_is_refused(void **state)
{
    (void)state;
    const char *directory = scratch_path("junk"), *marker = join(save(directory, FSDP_CKPT_SHARDED, NULL), "COMMIT");
    char *text, junk[200] = {0};
    size_t bytes;
    assert_ok(file_read(marker, &text, &bytes));
    memcpy(junk, text, bytes);
    free(text);
    memcpy(junk + bytes + 1, "junk", 4); /* behind a NUL, where strcmp does not look */
    assert_ok(file_write_atomic(marker, junk, bytes + 5));
    assert_int_equal(fixture_resumed_step(directory), -2);
    assert_ok(file_write_atomic(marker, junk, bytes));
    assert_int_equal(fixture_resumed_step(directory), 10);
}

/* Names of tensors, of files, keys of the training state: shown, not obeyed. */
static void names_from_files_are_shown_not_obeyed(void **state)
{
    (void)state;
    const char *directory = scratch_path("names");
    char *text;
    bool same;
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    snprintf(f->names[2], sizeof f->names[2], "w\033[2J\n[error] forged\xc2\x9b");
    fixture_fill(f, 10);
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 10);
    config.strategy = "full\nforged";
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    config.step = 20;
    fixture_fill(f, 20);
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    fixture_free(f);
    const char *a = join(directory, "step-00000010"), *b = join(directory, "step-00000020");
    for (int json = 0; json < 2; json++) {
        assert_ok(fsdp_checkpoint_show(a, json, &text));
        assert_null(strchr(text, '\033'));
        assert_null(strstr(text, "\n[error] forged"));
        assert_null(strstr(text, "\nforged"));
        assert_null(strstr(text, "\xc2\x9b"));
        assert_non_null(strstr(text, json ? "\\u001B[2J" : "w\\x1b[2J\\x0a[error] forged\\u{9b}"));
        free(text);
        assert_ok(fsdp_checkpoint_diff(a, b, 0, json, &same, &text));
        assert_null(strchr(text, '\033'));
        assert_null(strstr(text, "\n[error] forged"));
        free(text);
    }
    assert_fails(FSDP_ERR_INPUT, fixture_resumed_step(directory) == -2 ? FSDP_ERR_INPUT : FSDP_OK, "w\\x1b[2J\\x0a");
}

/* A folder with the name of rank 16 million does not cost a look at all those before it. */
static void prune_does_not_count_to_sixteen_million(void **state)
{
    (void)state;
    static const char *const names[] = {"step-00000010.rank-16777215", "step-00000010.rank-1048576",
                                        "step-00000010.rank-1048575"};
    const char *directory = scratch_path("many");
    char *text;
    fsdp_checkpoint_prune_config config = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    save(directory, FSDP_CKPT_SHARDED, NULL);
    for (size_t i = 0; i < 3; i++)
        assert_ok(file_make_directories(join(directory, names[i])));
    config.directory = directory;
    config.keep = 1;
    alarm(20);
    assert_ok(fsdp_checkpoint_prune(&config, &text));
    alarm(0);
    free(text);
    assert_int_equal(fixture_count_entries(directory), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_cannot_have_a_file_of_this_machine_exported),
        cmocka_unit_test(links_in_a_checkpoint_are_not_followed),
        cmocka_unit_test(tokenizer_files_are_what_their_names_say),
        cmocka_unit_test(a_sharded_checkpoint_brings_its_tokenizer_along),
        cmocka_unit_test(fifos_and_devices_in_place_of_files_are_refused),
        cmocka_unit_test(an_index_that_is_a_device_is_refused),
        cmocka_unit_test(what_lies_beside_the_tensors_is_verified),
        cmocka_unit_test(a_full_checkpoint_without_its_manifest_does_not_verify),
        cmocka_unit_test(a_config_of_another_model_is_refused),
        cmocka_unit_test(junk_behind_the_marker_is_refused),
        cmocka_unit_test(names_from_files_are_shown_not_obeyed),
        cmocka_unit_test(prune_does_not_count_to_sixteen_million),
    };
    return cmocka_run_group_tests(tests, fixture_setup_one_thread, scratch_teardown);
}
