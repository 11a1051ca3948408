/* Normal forms, case, grapheme clusters and the repair of broken UTF-8. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/rng.h"
#include "tokenizer/text/unicode.h"
#include "tokenizer/text/utf8.h"

static void expect_form(normal_form form, const char *text, const char *expected)
{
    text_buffer out = {0};
    id_vector points = {0};
    assert_int_equal(unicode_normalize(form, text, strlen(text), &out, &points), FSDP_OK);
    assert_int_equal(out.bytes, strlen(expected));
    assert_memory_equal(out.data, expected, out.bytes);
    text_free(&out);
    id_free(&points);
}

static void normal_forms_decompose_order_and_compose(void **state)
{
    (void)state;
    expect_form(FORM_NFD, "\u00e9", "e\u0301");
    expect_form(FORM_NFC, "e\u0301", "\u00e9");
    expect_form(FORM_NFC, "\u212b", "\u00c5");               /* angstrom sign: not composed back to itself */
    expect_form(FORM_NFD, "q\u0307\u0323", "q\u0323\u0307"); /* marks in the order of their classes */
    expect_form(FORM_NFC, "a\u0323\u0302", "\u1ead");        /* two compositions */
    expect_form(FORM_NFC, "a\u0301\u0301", "\u00e1\u0301");  /* the second is blocked by the first's class */
    expect_form(FORM_NFC, "\u0958", "\u0915\u093c");         /* excluded from composition */
    expect_form(FORM_NFD, "\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af");
    expect_form(FORM_NFC, "\u1112\u1161\u11ab\u1100\u1173\u11af", "\ud55c\uae00");
    expect_form(FORM_NFKC, "\ufb01 \u2460 \uff21", "fi 1 A");
    expect_form(FORM_NFKD, "\u00bd", "1\u20442");
    expect_form(FORM_NFC, "", "");
}

static void lower_case_is_by_single_code_points(void **state)
{
    text_buffer out = {0};
    const char *text = "AbC \u00c9\u03a3 \u0130\u01c5";
    (void)state;
    assert_int_equal(unicode_lowercase(text, strlen(text), &out), FSDP_OK);
    const char *expected = "abc \u00e9\u03c3 i\u0307\u01c6"; /* no final sigma */
    assert_int_equal(out.bytes, strlen(expected));
    assert_memory_equal(out.data, expected, out.bytes);
    text_free(&out);
}

static void expect_graphemes(const unicode *u, const char *text, size_t n, const size_t *ends)
{
    size_t at = 0, bytes = strlen(text);
    for (size_t i = 0; i < n; i++) {
        at = unicode_grapheme_end(u, text, bytes, at);
        assert_int_equal(at, ends[i]);
    }
    assert_int_equal(at, bytes);
}

static void grapheme_clusters_follow_annex_29(void **state)
{
    unicode *u;
    (void)state;
    assert_int_equal(unicode_create(&u), FSDP_OK);
    expect_graphemes(u, "a\r\nb", 3, (const size_t[]){1, 3, 4});
    expect_graphemes(u, "e\u0301x", 2, (const size_t[]){3, 4});
    expect_graphemes(u, "\u1100\u1161\u11a8\uac00\u11a8", 2, (const size_t[]){9, 15});
    expect_graphemes(u, "\U0001F1F0\U0001F1F7\U0001F1FA", 2, (const size_t[]){8, 12});
    expect_graphemes(u, "\U0001F468\u200D\U0001F469\u200D\U0001F467!", 2, (const size_t[]){18, 19});
    expect_graphemes(u, "\u0915\u094d\u0937\u093f", 1, (const size_t[]){12}); /* a conjunct and its vowel sign */
    expect_graphemes(u, "\n\u0301", 2, (const size_t[]){1, 3});
    unicode_free(u);
}

static void classes_are_those_of_the_library(void **state)
{
    unicode *u;
    (void)state;
    assert_int_equal(unicode_create(&u), FSDP_OK);
    assert_int_equal(unicode_class(u, 'a'), UNICODE_LETTER | UNICODE_WORD);
    assert_int_equal(unicode_class(u, '7'), UNICODE_NUMBER | UNICODE_WORD | UNICODE_NUMERIC);
    assert_int_equal(unicode_class(u, ' '), UNICODE_SPACE | UNICODE_WHITE);
    assert_int_equal(unicode_class(u, '$'), UNICODE_PUNCTUATION);
    assert_int_equal(unicode_class(u, '_'), UNICODE_PUNCTUATION | UNICODE_WORD);
    assert_int_equal(unicode_class(u, 0x301), UNICODE_MARK | UNICODE_WORD);
    assert_int_equal(unicode_class(u, 0x200b), 0);
    assert_int_equal(unicode_class(u, 0x10ffff), 0);
    unicode_free(u);
}

static void repaired_text_is_always_valid(void **state)
{
    text_buffer out = {0};
    rng_key key = rng_key_make(3);
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        char text[12];
        size_t bytes = rng_word(key, i, 0) % (sizeof text + 1);
        for (size_t k = 0; k < bytes; k++) {
            uint32_t word = rng_word(key, i, k + 1);
            text[k] = (char)(word & 1 ? 0x80 | (word >> 8 & 0x7F) : word >> 8);
        }
        out.bytes = 0;
        assert_int_equal(utf8_repair(text, bytes, &out), FSDP_OK);
        assert_int_equal(utf8_valid_bytes(out.data, out.bytes), out.bytes);
        if (utf8_valid_bytes(text, bytes) == bytes) {
            assert_int_equal(out.bytes, bytes);
            assert_memory_equal(out.data, text, bytes);
        }
    }
    text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_forms_decompose_order_and_compose),
        cmocka_unit_test(lower_case_is_by_single_code_points),
        cmocka_unit_test(grapheme_clusters_follow_annex_29),
        cmocka_unit_test(classes_are_those_of_the_library),
        cmocka_unit_test(repaired_text_is_always_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
