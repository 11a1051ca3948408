/* tokenizer.json files that ask for more than any text needs: they are refused, or the text is, in bounded time and
 * memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fsdp/tokenizer.h>

#include "base/scratch.h"
#include "data/files.h"

#define MODEL(vocab) "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{" vocab "},\"merges\":[[\"a\",\"b\"]]}"
#define VOCAB "\"?\":0,\"a\":1,\"b\":2,\"ab\":3"

static fsdp_status try_load(void **state, const char *json, fsdp_tokenizer **out)
{
    return fsdp_tokenizer_load(files_text(*state, "tokenizer.json", json), out);
}

static void refuse(void **state, const char *json, const char *said)
{
    fsdp_tokenizer *t = NULL;
    assert_int_equal(try_load(state, json, &t), FSDP_ERR_INPUT);
    if (!strstr(fsdp_last_error(), said) || !strstr(fsdp_last_error(), "tokenizer.json"))
        fail_msg("\"%s\" does not say \"%s\" and the file", fsdp_last_error(), said);
}

static fsdp_tokenizer *load(void **state, const char *json)
{
    fsdp_tokenizer *t = NULL;
    if (try_load(state, json, &t) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    return t;
}

/* The text is refused with `said` within `seconds` of this thread's time. */
static void refuse_text(fsdp_tokenizer *t, const char *text, size_t bytes, const char *said, double seconds)
{
    const int32_t *ids;
    size_t n;
    clock_t before = clock();
    assert_int_equal(fsdp_tokenizer_encode(t, text, bytes, true, &ids, &n), FSDP_ERR_INPUT);
    double taken = (double)(clock() - before) / CLOCKS_PER_SEC;
    if (!strstr(fsdp_last_error(), said))
        fail_msg("\"%s\" does not say \"%s\"", fsdp_last_error(), said);
    if (taken > seconds)
        fail_msg("refused after %.1f s: %s", taken, fsdp_last_error());
    fsdp_tokenizer_free(t);
}

/* n times `item`, commas between, in `head` and `tail`; the caller frees it. */
static char *repeated(const char *head, const char *item, int n, const char *tail)
{
    char *json = malloc(strlen(head) + (strlen(item) + 1) * (size_t)n + strlen(tail) + 1), *at = json;
    at += sprintf(at, "%s", head);
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s%s", i ? "," : "", item);
    sprintf(at, "%s", tail);
    return json;
}

static void steps_that_multiply_a_text_are_stopped(void **state)
{
    static const struct {
        const char *head, *item, *text;
    } cases[] = {
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}", "a"},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
         "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[ab]\"},\"content\":\"abab\"}", "a"},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", "{\"type\":\"ByteLevel\"}", "\xC3\xA9"},
        {"{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
         "{\"type\":\"ByteLevel\",\"use_regex\":false}", "\xC3\xA9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = repeated(cases[i].head, cases[i].item, 30, "]}," MODEL(VOCAB) "}");
        refuse_text(load(state, json), cases[i].text, strlen(cases[i].text), "the tokenizer makes more than", 5);
        free(json);
    }
    /* Ordinary growth is none of this: every character of a long text may become several. */
    fsdp_tokenizer *t = load(state, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
                                    "\"abababab\"}," MODEL(VOCAB) "}");
    enum { BYTES = 3 << 20 };
    char *text = malloc(BYTES);
    const int32_t *ids;
    size_t n;
    memset(text, ' ', BYTES);
    assert_int_equal(fsdp_tokenizer_encode(t, text, BYTES, false, &ids, &n), FSDP_OK);
    assert_int_equal(n, 4 * BYTES);
    free(text);
    fsdp_tokenizer_free(t);
}

static void decoders_that_multiply_a_text_are_stopped(void **state)
{
    char *json = repeated("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[",
                          "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}", 30,
                          "]}," MODEL(VOCAB) "}");
    fsdp_tokenizer *t = load(state, json);
    const char *text;
    assert_int_equal(fsdp_tokenizer_decode(t, (int32_t[]){1, 2, 1}, 3, false, &text, NULL), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "the tokenizer makes more than"));
    assert_int_equal(fsdp_tokenizer_decode(t, (int32_t[]){2, 2}, 2, false, &text, NULL), FSDP_OK); /* and goes on */
    fsdp_tokenizer_free(t);
    free(json);
}

#define SPLIT(regex)                                                                                                   \
    "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                                           \
    "\"},\"behavior\":\"Isolated\"}," MODEL(VOCAB) "}"

static void patterns_that_go_back_and_forth_are_stopped(void **state)
{
    char text[1000];
    memset(text, 'a', sizeof text);
    /* No attempt takes long enough for a limit of its own, but there is one for every byte of a search... */
    refuse_text(load(state, SPLIT("(?:aa?){21}(?!a).")), text, sizeof text, "gave up", 5);
    /* ... or a search for every byte. */
    refuse_text(load(state, SPLIT("(?:aa?){19}(?!a).|a")), text, sizeof text, "takes too long", 8);
}

static void lists_without_end_are_refused(void **state)
{
    char *json = repeated("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", "{\"type\":\"NFC\"}", 65,
                          "]}," MODEL(VOCAB) "}");
    refuse(state, json, "more than 64 steps");
    free(json);
    json = repeated("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[", "{\"type\":\"Whitespace\"}", 65,
                    "]}," MODEL(VOCAB) "}");
    refuse(state, json, "more than 64 steps");
    free(json);
    json = repeated("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[", "{\"type\":\"Fuse\"}", 65,
                    "]}," MODEL(VOCAB) "}");
    refuse(state, json, "more than 64 steps");
    free(json);
    json = repeated("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"special_tokens\":{},\"single\":[",
                    "{\"Sequence\":{\"id\":\"A\"}}", 100000, "]}," MODEL(VOCAB) "}");
    refuse(state, json, "more than 1024 pieces");
    free(json);
    json =
        repeated("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
                 "\"special_tokens\":{\"x\":{\"ids\":[",
                 "1", 100000, "]}}}," MODEL(VOCAB) "}");
    refuse(state, json, "more than 1024 pieces");
    free(json);
    json = repeated("{\"post_processor\":{\"type\":\"TemplateProcessing\",\"special_tokens\":{},\"single\":[",
                    "{\"Sequence\":{\"id\":\"A\"}}", 1024, "]}," MODEL(VOCAB) "}");
    char *text = malloc(1 << 20);
    memset(text, 'a', 1 << 20);
    refuse_text(load(state, json), text, 1 << 20, "the tokenizer makes more than", 20);
    free(text);
    free(json);
    char *pattern = repeated("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"", "abcdefg", 10000,
                             "\"},\"behavior\":\"Isolated\"}," MODEL(VOCAB) "}");
    refuse(state, pattern, "is too long");
    free(pattern);
}

static void ids_that_cannot_be_are_refused(void **state)
{
    refuse(state, "{\"added_tokens\":[{\"id\":-3,\"content\":\"<x>\"}]," MODEL(VOCAB) "}", "\"<x>\" has id -3");
    refuse(state, "{\"added_tokens\":[{\"id\":1099511627776,\"content\":\"<x>\"}]," MODEL(VOCAB) "}", "has id");
    refuse(state, "{" MODEL("\"?\":0,\"a\":1,\"b\":1,\"ab\":3") "}", "have the same id 1");
    refuse(state, "{" MODEL("\"?\":0,\"a\":1,\"b\":-2,\"ab\":3") "}", "the id of token \"b\"");
    refuse(state,
           "{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",1],\"sep\":[\"x\",4]}," MODEL(VOCAB) "}",
           "uses id 4");
    /* Names go through to the message without what a terminal would obey. */
    refuse(state, "{\"added_tokens\":[{\"id\":-3,\"content\":\"\\u001b[2J\\n\"}]," MODEL(VOCAB) "}",
           "\"\\x1b[2J\\x0a\"");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(steps_that_multiply_a_text_are_stopped),
        TEST(decoders_that_multiply_a_text_are_stopped),
        TEST(patterns_that_go_back_and_forth_are_stopped),
        TEST(lists_without_end_are_refused),
        TEST(ids_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
