/* Hand-written matchers against the regular expression engine, on texts put together at random; and what patterns do
 * with empty matches. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tokenizer/pattern.h"
#include "tokenizer/pattern_known.h"

static const char *const pieces[] = {
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    " \n",
    "\n ",
    "\xC2\xA0",
    "\xE3\x80\x80",
    "\xE2\x80\xA8",
    "\xC2\x85",
    "'s",
    "'S",
    "'\xC5\xBF",
    "'re",
    "'RE",
    "'Re",
    "'ll",
    "'lL",
    "'l",
    "'",
    "''",
    "'v",
    "'VE",
    "'d",
    "'m",
    "'T",
    "'x",
    "a",
    "Bc",
    "word",
    "\xC3\xA9",
    "e\xCC\x81",
    "\xE6\x97\xA5\xE6\x9C\xAC",
    "\xED\x95\x9C",
    "\xD0\x9F",
    "\xC7\x85",
    "\xE0\xA4\x95\xE0\xA5\x8D",
    "1",
    "23",
    "4567",
    "\xC2\xBD",
    "\xE2\x85\xA3",
    "\xD9\xA3",
    "\xE2\x91\xA0",
    ".",
    ",",
    "!?",
    "--",
    "#",
    "\xE2\x80\x94",
    "\xF0\x9F\x98\x80",
    "\xE2\x80\x8B",
    "\xEF\xBB\xBF",
    "_",
    "x",
    "\x01",
    "\xEF\xBF\xBD",
};

enum { N_PIECES = sizeof pieces / sizeof pieces[0], N_TEXTS = 20000 };

static size_t random_text(rng_key key, uint64_t number, char *out)
{
    size_t n = 0, count = 1 + rng_word(key, number, 0) % 12;
    for (size_t i = 1; i <= count; i++) {
        const char *piece = pieces[rng_word(key, number, i) % N_PIECES];
        memcpy(out + n, piece, strlen(piece));
        n += strlen(piece);
    }
    return n;
}

static void expect_same_spans(const span_vector *a, const span_vector *b, const char *expression, const char *text,
                              size_t bytes)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = a->data[i].start == b->data[i].start && a->data[i].end == b->data[i].end &&
               a->data[i].matched == b->data[i].matched;
    if (!same)
        fail_msg("%s cuts \"%.*s\" differently by hand", expression, (int)bytes, text);
}

static void known_expressions_match_as_the_engine_does(void **state)
{
    unicode *u;
    pattern_room room = {0};
    span_vector by_hand = {0}, by_engine = {0};
    char text[256];
    const known_pattern *known;
    (void)state;
    assert_int_equal(unicode_create(&u), FSDP_OK);
    for (size_t k = 0; (known = known_pattern_at(k)) != NULL; k++) {
        pattern *fast, *plain;
        size_t bytes = strlen(known->expression);
        assert_int_equal(pattern_regex("test", known->expression, bytes, u, &fast), FSDP_OK);
        assert_int_equal(pattern_regex_plain("test", known->expression, bytes, u, &plain), FSDP_OK);
        for (uint64_t i = 0; i < N_TEXTS; i++) {
            size_t n = random_text(rng_key_make(k), i, text);
            by_hand.n = by_engine.n = 0;
            assert_int_equal(pattern_spans(fast, &room, text, n, &by_hand), FSDP_OK);
            assert_int_equal(pattern_spans(plain, &room, text, n, &by_engine), FSDP_OK);
            expect_same_spans(&by_hand, &by_engine, known->expression, text, n);
        }
        pattern_free(fast);
        pattern_free(plain);
    }
    span_free(&by_hand);
    span_free(&by_engine);
    pattern_room_free(&room);
    unicode_free(u);
}

static void expect_starts(const char *expression, bool literal, const char *text, size_t n, const size_t (*expected)[3])
{
    unicode *u;
    pattern *p;
    pattern_room room = {0};
    span_vector spans = {0};
    assert_int_equal(unicode_create(&u), FSDP_OK);
    assert_int_equal((literal ? pattern_literal : pattern_regex)("test", expression, strlen(expression), u, &p),
                     FSDP_OK);
    assert_int_equal(pattern_spans(p, &room, text, strlen(text), &spans), FSDP_OK);
    assert_int_equal(spans.n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(spans.data[i].start, expected[i][0]);
        assert_int_equal(spans.data[i].end, expected[i][1]);
        assert_int_equal(spans.data[i].matched, expected[i][2]);
    }
    span_free(&spans);
    pattern_room_free(&room);
    pattern_free(p);
    unicode_free(u);
}

static void empty_matches_stand_between_characters_but_not_behind_a_match(void **state)
{
    (void)state;
    expect_starts("x*", false, "axa", 5, (const size_t[][3]){{0, 0, 1}, {0, 1, 0}, {1, 2, 1}, {2, 3, 0}, {3, 3, 1}});
    expect_starts("ab", true, "xababy", 4, (const size_t[][3]){{0, 1, 0}, {1, 3, 1}, {3, 5, 1}, {5, 6, 0}});
    expect_starts("ab", true, "", 1, (const size_t[][3]){{0, 0, 0}});
    expect_starts(" {2,}", false, "a  b c   ", 4, (const size_t[][3]){{0, 1, 0}, {1, 3, 1}, {3, 6, 0}, {6, 9, 1}});
}

/* U+31350, of an extension that Unicode 15 added, is a Han letter to everybody. */
static void scripts_know_the_newest_letters_by_their_short_names(void **state)
{
    (void)state;
    const char *text = "a\xF0\xB1\x8D\x90";
    expect_starts("\\p{Han}", false, text, 2, (const size_t[][3]){{0, 1, 0}, {1, 5, 1}});
    expect_starts("[\\p{L}&&[^\\p{Han}]]", false, text, 2, (const size_t[][3]){{0, 1, 1}, {1, 5, 0}});
    expect_starts("\\p{Lao}", false, "a\xE0\xBA\x81", 2, (const size_t[][3]){{0, 1, 0}, {1, 4, 1}});
    expect_starts("\\p{Yi}", false, "a\xEA\x80\x80", 2, (const size_t[][3]){{0, 1, 0}, {1, 4, 1}});
}

static void a_broken_expression_is_refused_with_its_home_named(void **state)
{
    unicode *u;
    pattern *p = NULL;
    (void)state;
    assert_int_equal(unicode_create(&u), FSDP_OK);
    assert_int_equal(pattern_regex("dir/tokenizer.json", "[a", 2, u, &p), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "dir/tokenizer.json"));
    assert_non_null(strstr(fsdp_last_error(), "[a"));
    unicode_free(u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_expressions_match_as_the_engine_does),
        cmocka_unit_test(empty_matches_stand_between_characters_but_not_behind_a_match),
        cmocka_unit_test(scripts_know_the_newest_letters_by_their_short_names),
        cmocka_unit_test(a_broken_expression_is_refused_with_its_home_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
