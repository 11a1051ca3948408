/* Pages hold what they are given and nothing of it can run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "page/page.h"

static int occurrences(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word))
        n++;
    return n;
}

static const char *const hostile[] = {
    "</script><script>alert(1)</script>",
    "<!--",
    "<!--<script>",
    "]]>",
    "\xE2\x80\xA8\xE2\x80\xA9",
    "&lt;img onerror=x>",
    "\\u003c",
    "\"'`${alert(1)}",
    "\x01\x1f",
};

static json_t *hostile_data(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        json_t *o = json_object();
        json_object_set_new(o, hostile[i], json_string(hostile[i]));
        json_array_append_new(list, o);
    }
    return json_pack("{s:o}", "plans", list);
}

static void data_of_strangers_stays_data(void **state)
{
    (void)state;
    json_t *data = hostile_data();
    page p = {.title = "</title><script>alert(2)</script>&", .language = "en", .view = "plan", .data = data};
    char *text;
    size_t bytes;
    assert_int_equal(page_text(&p, &text, &bytes), FSDP_OK);
    assert_int_equal(strlen(text), bytes);
    assert_int_equal(occurrences(text, "<script"), 3);
    assert_int_equal(occurrences(text, "</script"), 3);
    assert_int_equal(occurrences(text, "</title"), 1);
    assert_int_equal(occurrences(text, "<!--"), 0);
    free(text);
    json_decref(data);
}

static void a_page_gives_back_the_data_it_was_given(void **state)
{
    (void)state;
    json_t *data = hostile_data();
    page p = {.title = "t", .language = "ko", .view = "plan", .data = data};
    char *text;
    size_t bytes;
    assert_int_equal(page_text(&p, &text, &bytes), FSDP_OK);
    char *begin = strstr(text, "id=\"data\">"), *end = begin ? strstr(begin, "</script>") : NULL;
    assert_non_null(end);
    *end = '\0';
    json_t *back = json_loads(begin + strlen("id=\"data\">"), 0, NULL);
    assert_non_null(back);
    assert_true(json_equal(back, data));
    json_decref(back);
    json_decref(data);
    free(text);
}

static void the_policy_lets_only_our_own_scripts_run(void **state)
{
    (void)state;
    json_t *data = json_object();
    page p = {.title = "t", .language = "en", .view = "plan", .data = data};
    char *text, nonce[17];
    size_t bytes;
    assert_int_equal(page_text(&p, &text, &bytes), FSDP_OK);
    const char *policy = strstr(text, "default-src 'none'; script-src 'nonce-");
    assert_non_null(policy);
    memcpy(nonce, policy + strlen("default-src 'none'; script-src 'nonce-"), 16);
    nonce[16] = '\0';
    assert_int_equal(occurrences(text, nonce), 2 + 3); /* twice in the policy; the style sheet and two scripts */
    assert_null(strstr(text, "unsafe-inline"));
    assert_int_equal(occurrences(text, "http"), 2); /* http-equiv, and the name of SVG */
    free(text);
    json_decref(data);
}

static void an_unknown_view_is_refused(void **state)
{
    (void)state;
    page p = {.title = "t", .language = "en", .view = "nothing", .data = NULL};
    char *text;
    size_t bytes;
    assert_int_equal(page_text(&p, &text, &bytes), FSDP_ERR_STATE);
    assert_null(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_of_strangers_stays_data),
        cmocka_unit_test(a_page_gives_back_the_data_it_was_given),
        cmocka_unit_test(the_policy_lets_only_our_own_scripts_run),
        cmocka_unit_test(an_unknown_view_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
