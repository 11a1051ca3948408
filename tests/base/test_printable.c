/* What base/printable promises: text that a terminal shows and does not obey. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text/printable.h"

static const struct {
    const char *text, *line, *lines;
} cases[] = {
    {"", "", ""},
    {"model.layers.0.weight", "model.layers.0.weight", "model.layers.0.weight"},
    {"C:\\x1b", "C:\\x1b", "C:\\x1b"},
    {"\xe2\x96\x81Gr\xc3\xbc\xc3\x9f\x65 \xf0\x9f\x98\x80", "\xe2\x96\x81Gr\xc3\xbc\xc3\x9f\x65 \xf0\x9f\x98\x80",
     "\xe2\x96\x81Gr\xc3\xbc\xc3\x9f\x65 \xf0\x9f\x98\x80"},
    {"a\nb\tc\r", "a\\x0ab\\x09c\\x0d", "a\nb\tc\\x0d"},
    {"\033]0;title\a", "\\x1b]0;title\\x07", "\\x1b]0;title\\x07"},
    {"\x7f", "\\x7f", "\\x7f"},
    {"\xc2\x9b"
     "31m",
     "\\u{9b}31m", "\\u{9b}31m"},                          /* CSI as one character */
    {"\xe2\x80\xae", "\\u{202e}", "\\u{202e}"},            /* right to left from here */
    {"\xe2\x80\xa8", "\\u{2028}", "\\u{2028}"},            /* line separator */
    {"\xff\xc3", "\\xff\\xc3", "\\xff\\xc3"},              /* no UTF-8; cut off */
    {"\xc0\x8a", "\\xc0\\x8a", "\\xc0\\x8a"},              /* an overlong newline */
    {"\xed\xa0\x80", "\\xed\\xa0\\x80", "\\xed\\xa0\\x80"} /* a surrogate */
};

static void what_a_terminal_would_obey_is_escaped(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[128], again[128];
        assert_int_equal(printable(cases[i].text, false, out, sizeof out), strlen(cases[i].line));
        assert_string_equal(out, cases[i].line);
        assert_int_equal(printable(out, false, again, sizeof again), strlen(out));
        assert_string_equal(again, out);
        char *copy = printable_copy(cases[i].text, true);
        assert_string_equal(copy, cases[i].lines);
        free(copy);
    }
}

static void what_does_not_fit_is_cut_between_characters(void **state)
{
    (void)state;
    for (size_t room = 0; room < 16; room++) {
        char out[17];
        memset(out, 'x', sizeof out);
        assert_int_equal(printable("a\nb\xc3\xbc\n", false, out, room), 12);
        static const char *const cut[] = {"",
                                          "",
                                          "a",
                                          "a",
                                          "a",
                                          "a",
                                          "a\\x0a",
                                          "a\\x0ab",
                                          "a\\x0ab",
                                          "a\\x0ab\xc3\xbc",
                                          "a\\x0ab\xc3\xbc",
                                          "a\\x0ab\xc3\xbc"};
        if (room > 0 && room < 12)
            assert_string_equal(out, cut[room]);
        assert_int_equal(out[room], 'x');
    }
}

static void keep_line(void *context, fsdp_log_level level, const char *line)
{
    (void)level;
    strcpy(context, line);
}

static void log_lines_are_one_line_each(void **state)
{
    (void)state;
    char line[4096];
    fsdp_log_set_sink(keep_line, line, FSDP_LOG_INFO);
    log_write(FSDP_LOG_INFO, "checkpoint %s", "x\n[error] forged\033[1A");
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    assert_string_equal(line, "checkpoint x\\x0a[error] forged\\x1b[1A");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_terminal_would_obey_is_escaped),
        cmocka_unit_test(what_does_not_fit_is_cut_between_characters),
        cmocka_unit_test(log_lines_are_one_line_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
