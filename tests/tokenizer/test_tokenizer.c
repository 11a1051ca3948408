/* Tokenizers through the public API, with small tokenizer.json files written here. Equality with the reference vectors
 * is golden_tokenizers.c's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <fsdp/tokenizer.h>

#include "base/scratch.h"

static char *write_file(void **state, const char *name, const char *text)
{
    char *path = file_join(*state, name);
    assert_non_null(path);
    assert_int_equal(file_write_atomic(path, text, strlen(text)), FSDP_OK);
    return path;
}

static fsdp_tokenizer *load(void **state, const char *json)
{
    fsdp_tokenizer *t = NULL;
    char *path = write_file(state, "tokenizer.json", json);
    fsdp_status status = fsdp_tokenizer_load(path, &t);
    free(path);
    if (status != FSDP_OK)
        print_error("%s\n", fsdp_last_error());
    assert_int_equal(status, FSDP_OK);
    return t;
}

static void refuse(void **state, const char *json, fsdp_status expected, const char *words)
{
    fsdp_tokenizer *t = NULL;
    char *path = write_file(state, "tokenizer.json", json);
    assert_int_equal(fsdp_tokenizer_load(path, &t), expected);
    if (strstr(fsdp_last_error(), words) == NULL || strstr(fsdp_last_error(), path) == NULL)
        fail_msg("the error does not say \"%s\" and the file: %s", words, fsdp_last_error());
    free(path);
}

static void expect_ids(fsdp_tokenizer *t, const char *text, bool special, size_t n_expected, const int32_t *expected)
{
    const int32_t *ids;
    size_t n;
    assert_int_equal(fsdp_tokenizer_encode(t, text, strlen(text), special, &ids, &n), FSDP_OK);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, n * sizeof *ids);
}

#define EXPECT(t, text, special, ...)                                                                                  \
    expect_ids(t, text, special, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__})

static void expect_text(fsdp_tokenizer *t, size_t n, const int32_t *ids, bool skip, const char *expected)
{
    const char *text;
    size_t bytes;
    assert_int_equal(fsdp_tokenizer_decode(t, ids, n, skip, &text, &bytes), FSDP_OK);
    assert_string_equal(text, expected);
    assert_int_equal(bytes, strlen(expected));
}

#define BPE_MODEL                                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,"    \
    "\"c\":3,\"ab\":4,\"abc\":5,\"\xE2\x96\x81\":6,\"\xE2\x96\x81"                                                     \
    "a\":7,\" \":8},\"merges\":[[\"a\",\"b\"],\"ab c\",[\"\xE2\x96\x81\",\"a\"]]}"
#define ADDED(content, rest) "\"added_tokens\":[{\"id\":9,\"content\":\"" content "\"" rest "}],"

static void lowest_ranks_are_joined_first_and_unknowns_fuse(void **state)
{
    fsdp_tokenizer *t = load(state, "{" BPE_MODEL "}");
    EXPECT(t, "abcab", false, 5, 4);
    EXPECT(t, "acb", false, 1, 3, 2);
    EXPECT(t, "xyza", false, 0, 1);
    const int32_t *ids;
    size_t n = 1;
    assert_int_equal(fsdp_tokenizer_encode(t, "", 0, false, &ids, &n), FSDP_OK);
    assert_int_equal(n, 0);
    assert_int_equal(fsdp_tokenizer_vocab_size(t), 9);
    assert_int_equal(fsdp_tokenizer_id(t, "abc"), 5);
    assert_int_equal(fsdp_tokenizer_id(t, "nothing"), -1);
    assert_string_equal(fsdp_tokenizer_token(t, 4), "ab");
    assert_null(fsdp_tokenizer_token(t, 9));
    assert_null(fsdp_tokenizer_token(t, -1));
    fsdp_tokenizer_free(t);
}

static void a_long_word_joins_as_a_short_one_does(void **state)
{
    fsdp_tokenizer *t = load(state, "{" BPE_MODEL "}");
    char text[3001];
    const int32_t *ids;
    size_t n;
    for (size_t i = 0; i < 3000; i++)
        text[i] = "abc"[i % 3];
    assert_int_equal(fsdp_tokenizer_encode(t, text, 3000, false, &ids, &n), FSDP_OK);
    assert_int_equal(n, 1000);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], 5);
    fsdp_tokenizer_free(t);
}

static void text_that_is_not_utf8_counts_as_replacement_characters(void **state)
{
    fsdp_tokenizer *t =
        load(state, "{\"added_tokens\":[{\"id\":9,\"content\":\"\xEF\xBF\xBD\",\"normalized\":false}]," BPE_MODEL "}");
    EXPECT(t, "a\xFFz", false, 1, 9, 0);
    EXPECT(t, "\xE2\x82", false, 9);           /* a truncated sequence is one */
    EXPECT(t, "\xC0\xAF", false, 9, 9);        /* overlong: two bytes, each broken */
    EXPECT(t, "\xED\xA0\x80", false, 9, 9, 9); /* a surrogate */
    EXPECT(t, "\xF0\x9F\x98", false, 9);
    fsdp_tokenizer_free(t);
}

static void added_tokens_follow_their_flags(void **state)
{
    fsdp_tokenizer *t =
        load(state, "{" ADDED("<x>", ",\"special\":true,\"lstrip\":true,\"rstrip\":true") BPE_MODEL "}");
    EXPECT(t, "a  <x> \nb", false, 1, 9, 2);
    EXPECT(t, "<x", false, 0);
    expect_text(t, 3, (int32_t[]){1, 9, 2}, true, "a b");
    expect_text(t, 3, (int32_t[]){1, 9, 2}, false, "a <x> b");
    fsdp_tokenizer_free(t);
    t = load(state, "{" ADDED("b", ",\"single_word\":true") BPE_MODEL "}");
    EXPECT(t, "b ab b", false, 2, 8, 4, 8, 2);
    fsdp_tokenizer_free(t);
    t = load(state, "{\"normalizer\":{\"type\":\"Lowercase\"}," ADDED("YES", ",\"normalized\":true") BPE_MODEL "}");
    EXPECT(t, "aYesB", false, 1, 9, 2);
    fsdp_tokenizer_free(t);
    t = load(state, "{\"normalizer\":{\"type\":\"Lowercase\"}," ADDED("YES", ",\"normalized\":false") BPE_MODEL "}");
    EXPECT(t, "aYesYES", false, 1, 0, 9);
    fsdp_tokenizer_free(t);
}

static void templates_put_special_tokens_around_the_text(void **state)
{
    fsdp_tokenizer *t = load(
        state,
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"S\",\"type_id\":"
        "0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"pair\":[],"
        "\"special_tokens\":{\"S\":{\"id\":\"S\",\"ids\":[7,7],\"tokens\":[\"S\"]},\"E\":{\"id\":\"E\",\"ids\":[0],"
        "\"tokens\":[\"E\"]}}}," BPE_MODEL "}");
    EXPECT(t, "ab", true, 7, 7, 4, 0);
    EXPECT(t, "ab", false, 4);
    EXPECT(t, "", true, 7, 7, 0);
    fsdp_tokenizer_free(t);
}

static void unigram_takes_the_best_sum_and_falls_back(void **state)
{
    fsdp_tokenizer *t =
        load(state, "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":"
                    "true,\"vocab\":"
                    "[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],[\"ab\",-2.5],[\"ba\",-1.5],[\"<0x63>\",-9]]}}");
    EXPECT(t, "ab", false, 1, 2);
    EXPECT(t, "aba", false, 1, 4);
    EXPECT(t, "acca", false, 1, 5, 5, 1); /* bytes of c */
    EXPECT(t, "axcxa", false, 1, 0, 1);   /* x has no byte token: the whole unknown piece is one */
    expect_text(t, 3, (int32_t[]){1, 99, 2}, true, "ab");
    fsdp_tokenizer_free(t);
}

static void the_byte_tokenizer_gives_back_every_byte(void **state)
{
    fsdp_tokenizer *t;
    char text[255];
    const int32_t *ids;
    const char *back;
    size_t n, bytes;
    (void)state;
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    for (int i = 0; i < 255; i++)
        text[i] = (char)(i + 1);
    assert_int_equal(fsdp_tokenizer_encode(t, text, sizeof text, true, &ids, &n), FSDP_OK);
    assert_int_equal(n, 255);
    for (int i = 0; i < 255; i++)
        assert_int_equal(ids[i], i + 1);
    assert_int_equal(fsdp_tokenizer_decode(t, ids, n, true, &back, &bytes), FSDP_OK);
    assert_int_equal(bytes, 255);
    assert_memory_equal(back, text, 255);
    assert_int_equal(fsdp_tokenizer_vocab_size(t), 256);
    assert_int_equal(fsdp_tokenizer_eos(t), 0);
    assert_int_equal(fsdp_tokenizer_bos(t), -1);
    expect_text(t, 3, (int32_t[]){'a', 0, 'b'}, true, "ab");
    fsdp_tokenizer_free(t);
    fsdp_tokenizer_free(NULL);
}

static void begin_end_and_pad_come_from_the_files_beside(void **state)
{
    fsdp_tokenizer *t = load(state, "{" ADDED("</s>", "") BPE_MODEL "}");
    assert_int_equal(fsdp_tokenizer_eos(t), 9);
    assert_int_equal(fsdp_tokenizer_pad(t), -1);
    fsdp_tokenizer_free(t);
    free(write_file(state, "tokenizer_config.json", "{\"eos_token\":\"abc\",\"bos_token\":null}"));
    free(write_file(state, "special_tokens_map.json", "{\"pad_token\":{\"content\":\"ab\"},\"eos_token\":\"a\"}"));
    assert_int_equal(fsdp_tokenizer_load(*state, &t), FSDP_OK); /* the folder */
    assert_int_equal(fsdp_tokenizer_eos(t), 5);
    assert_int_equal(fsdp_tokenizer_pad(t), 4);
    assert_int_equal(fsdp_tokenizer_bos(t), -1);
    fsdp_tokenizer_free(t);
}

static void a_token_may_hold_a_nul(void **state)
{
    fsdp_tokenizer *t = load(state, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\u0000\":1,\"a\\u0000\":2},"
                                    "\"merges\":[[\"a\",\"\\u0000\"]]},\"decoder\":{\"type\":\"Fuse\"}}");
    const int32_t *ids;
    const char *text;
    size_t n;
    assert_int_equal(fsdp_tokenizer_encode(t, "\0a\0a", 4, false, &ids, &n), FSDP_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(ids, ((int32_t[]){1, 2, 0}), sizeof(int32_t[3]));
    assert_int_equal(fsdp_tokenizer_decode(t, (int32_t[]){1, 2, 0}, 3, false, &text, &n), FSDP_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(text, "\0a\0a", 4);
    fsdp_tokenizer_free(t);
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    fsdp_tokenizer *t;
    refuse(state, "{\"model\":{\"type\":\"Letters\",\"vocab\":{}}}", FSDP_ERR_UNSUPPORTED, "model \"Letters\"");
    refuse(state, "{\"normalizer\":{\"type\":\"Upper\"}," BPE_MODEL "}", FSDP_ERR_UNSUPPORTED, "normalizer \"Upper\"");
    refuse(state, "{\"pre_tokenizer\":{\"type\":\"Lines\"}," BPE_MODEL "}", FSDP_ERR_UNSUPPORTED,
           "pre_tokenizer \"Lines\"");
    refuse(state, "{\"decoder\":{\"type\":\"Morse\"}," BPE_MODEL "}", FSDP_ERR_UNSUPPORTED, "decoder \"Morse\"");
    refuse(state, "{\"post_processor\":{\"type\":\"New\"}," BPE_MODEL "}", FSDP_ERR_UNSUPPORTED,
           "post_processor \"New\"");
    refuse(state, "{\"truncation\":{\"max_length\":3}," BPE_MODEL "}", FSDP_ERR_UNSUPPORTED, "truncation");
    refuse(state, "{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", FSDP_ERR_UNSUPPORTED,
           "dropout");
    refuse(state, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b\"]]}}", FSDP_ERR_INPUT,
           "merge 0");
    refuse(state,
           "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}," BPE_MODEL
           "}",
           FSDP_ERR_INPUT, "regular expression");
    refuse(state, "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}," BPE_MODEL "}",
           FSDP_ERR_INPUT, "base64");
    refuse(state, "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}," BPE_MODEL "}",
           FSDP_ERR_INPUT, "cut short");
    refuse(state, "{}", FSDP_ERR_INPUT, "model");
    refuse(state, "{\"model\":", FSDP_ERR_INPUT, "tokenizer.json");
    assert_int_equal(fsdp_tokenizer_load("/nowhere/tokenizer.json", &t), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "/nowhere/tokenizer.json"));
    setenv("HF_HUB_CACHE", *state, 1);
    assert_int_equal(fsdp_tokenizer_load("org/absent", &t), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "fsdp fetch org/absent"));
    unsetenv("HF_HUB_CACHE");
}

#define SPELLED_VOCAB_HEAD "\"model\":{\"type\":\"BPE\",\"vocab\":{"

/* All 256 letters of GPT-2's alphabet as ids 0-255, "he" and "hello" as 256 and 257 with no merges to the latter. */
static char *byte_level_json(bool use_bytes, bool ignore_merges)
{
    char *json = malloc(16384);
    int n = sprintf(
        json,
        "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"use_regex\":true}%s]},\"decoder\":{\"type\":\"ByteLevel\"}," SPELLED_VOCAB_HEAD,
        use_bytes ? "" : ",{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}");
    int next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        n += sprintf(json + n, "\"\\u%04x\":%d,", printable ? byte : next++, byte);
    }
    sprintf(json + n, "\"he\":256,\"hello\":257},\"merges\":[[\"h\",\"e\"]],\"ignore_merges\":%s}}",
            ignore_merges ? "true" : "false");
    return json;
}

static void byte_level_words_need_no_spelling(void **state)
{
    for (int variant = 0; variant < 2; variant++) {
        char *json = byte_level_json(variant == 0, false);
        fsdp_tokenizer *t = load(state, json);
        free(json);
        EXPECT(t, "he", false, 256);
        EXPECT(t, "hello\xC3\xA9 \x01", false, 256, 'l', 'l', 'o', 0xC3, 0xA9, ' ', 1);
        expect_text(t, 3, (int32_t[]){256, 0xC3, 0xA9}, false, "he\xC3\xA9");
        expect_text(t, 2, (int32_t[]){256, 0xC3}, false, "he\xEF\xBF\xBD");
        fsdp_tokenizer_free(t);
        json = byte_level_json(variant == 0, true);
        t = load(state, json);
        free(json);
        EXPECT(t, "hello", false, 257);
        EXPECT(t, " hello", false, ' ', 256, 'l', 'l', 'o');
        fsdp_tokenizer_free(t);
    }
}

static void encoding_again_allocates_nothing(void **state)
{
    char *json = byte_level_json(true, false), text[4096];
    fsdp_tokenizer *t = load(state, json);
    const int32_t *ids;
    size_t n;
    free(json);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "hello, other world \xC3\xA9\n 123"[i % 27];
    for (int round = 0; round < 2; round++)
        assert_int_equal(fsdp_tokenizer_encode(t, text, sizeof text, true, &ids, &n), FSDP_OK);
    size_t before = mallinfo2().uordblks;
    for (int round = 0; round < 20; round++)
        assert_int_equal(fsdp_tokenizer_encode(t, text, sizeof text - (size_t)round, true, &ids, &n), FSDP_OK);
    assert_int_equal(mallinfo2().uordblks, before);
    fsdp_tokenizer_free(t);
}

typedef struct shared_work {
    fsdp_tokenizer *tokenizer;
    int failures;
} shared_work;

static void *encode_many(void *context)
{
    shared_work *work = context;
    for (int i = 0; i < 2000; i++) {
        char text[64];
        const int32_t *ids;
        const char *back;
        size_t n;
        int bytes = snprintf(text, sizeof text, "hello number %d, he said", i);
        if (fsdp_tokenizer_encode(work->tokenizer, text, (size_t)bytes, false, &ids, &n) != FSDP_OK ||
            fsdp_tokenizer_decode(work->tokenizer, ids, n, false, &back, NULL) != FSDP_OK || strcmp(text, back) != 0)
            work->failures++;
    }
    return NULL;
}

static void handles_of_two_threads_share_tables(void **state)
{
    char *json = byte_level_json(true, false);
    shared_work work[2] = {{load(state, json), 0}, {NULL, 0}};
    pthread_t threads[2];
    free(json);
    assert_int_equal(fsdp_tokenizer_share(work[0].tokenizer, &work[1].tokenizer), FSDP_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many, &work[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(work[0].failures + work[1].failures, 0);
    fsdp_tokenizer_free(work[0].tokenizer);
    EXPECT(work[1].tokenizer, "he", false, 256); /* the first handle is gone, its tables are not */
    fsdp_tokenizer_free(work[1].tokenizer);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(lowest_ranks_are_joined_first_and_unknowns_fuse),
        TEST(a_long_word_joins_as_a_short_one_does),
        TEST(text_that_is_not_utf8_counts_as_replacement_characters),
        TEST(added_tokens_follow_their_flags),
        TEST(templates_put_special_tokens_around_the_text),
        TEST(unigram_takes_the_best_sum_and_falls_back),
        TEST(the_byte_tokenizer_gives_back_every_byte),
        TEST(begin_end_and_pad_come_from_the_files_beside),
        TEST(a_token_may_hold_a_nul),
        TEST(what_is_not_supported_is_refused_by_name),
        TEST(byte_level_words_need_no_spelling),
        TEST(encoding_again_allocates_nothing),
        TEST(handles_of_two_threads_share_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
