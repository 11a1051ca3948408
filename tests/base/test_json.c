/* What base/json promises: errors that name the file, the line and the field. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "base/json.h"
#include "base/scratch.h"

static json_t *parse(const char *text)
{
    json_t *value;
    assert_int_equal(json_parse("config.json", text, strlen(text), &value), FSDP_OK);
    return value;
}

static void assert_says(const char *part)
{
    if (!strstr(fsdp_last_error(), part))
        fail_msg("\"%s\" is not in \"%s\"", part, fsdp_last_error());
}

static void broken_text_is_refused_with_file_and_line(void **state)
{
    (void)state;
    static const char *const broken[] = {"", "{", "{\"a\": 1,\n\"b\": }", "{\"a\": 1} x", "{\"a\": \"\xff\"}", "nul"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        json_t *value;
        assert_int_equal(json_parse("config.json", broken[i], strlen(broken[i]), &value), FSDP_ERR_INPUT);
        assert_says("config.json: line ");
    }
    json_t *value;
    assert_int_equal(json_parse("config.json", broken[2], strlen(broken[2]), &value), FSDP_ERR_INPUT);
    assert_says("line 2");
}

static void duplicate_keys_are_refused(void **state)
{
    (void)state;
    static const char text[] = "{\"layers\": 1, \"layers\": 2}";
    json_t *value;
    assert_int_equal(json_parse("config.json", text, sizeof text - 1, &value), FSDP_ERR_INPUT);
    assert_says("duplicate");
}

static void required_fields_are_read_or_named(void **state)
{
    (void)state;
    json_t *o = parse("{\"n\": 12, \"x\": 0.5, \"s\": \"llama\", \"z\": null}");
    int64_t n = 0;
    double x = 0;
    const char *s = NULL;
    assert_int_equal(json_get_int("config.json", o, "n", &n), FSDP_OK);
    assert_int_equal(n, 12);
    assert_int_equal(json_get_number("config.json", o, "x", &x), FSDP_OK);
    assert_true(x == 0.5);
    assert_int_equal(json_get_number("config.json", o, "n", &x), FSDP_OK);
    assert_true(x == 12.0);
    assert_int_equal(json_get_string("config.json", o, "s", &s), FSDP_OK);
    assert_string_equal(s, "llama");
    assert_int_equal(json_get_int("config.json", o, "absent", &n), FSDP_ERR_INPUT);
    assert_says("config.json: \"absent\" is missing");
    assert_int_equal(json_get_int("config.json", o, "z", &n), FSDP_ERR_INPUT);
    assert_int_equal(json_get_int("config.json", o, "x", &n), FSDP_ERR_INPUT);
    assert_says("config.json: \"x\" must be a whole number, it is a number");
    assert_int_equal(json_get_string("config.json", o, "n", &s), FSDP_ERR_INPUT);
    assert_int_equal(json_get_number("config.json", o, "s", &x), FSDP_ERR_INPUT);
    assert_int_equal(n, 12);
    json_decref(o);
}

static void absent_and_null_fields_leave_the_default(void **state)
{
    (void)state;
    json_t *o = parse("{\"z\": null, \"n\": -4, \"t\": true, \"s\": \"x\"}");
    int64_t n = 7;
    double x = 1.5;
    bool flag = false;
    const char *s = "default";
    static const char *const unset[] = {"z", "absent"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(json_opt_int("c", o, unset[i], &n), FSDP_OK);
        assert_int_equal(json_opt_number("c", o, unset[i], &x), FSDP_OK);
        assert_int_equal(json_opt_bool("c", o, unset[i], &flag), FSDP_OK);
        assert_int_equal(json_opt_string("c", o, unset[i], &s), FSDP_OK);
    }
    assert_int_equal(n, 7);
    assert_true(x == 1.5 && !flag);
    assert_string_equal(s, "default");
    assert_int_equal(json_opt_int("c", o, "n", &n), FSDP_OK);
    assert_int_equal(n, -4);
    assert_int_equal(json_opt_bool("c", o, "t", &flag), FSDP_OK);
    assert_true(flag);
    assert_int_equal(json_opt_bool("c", o, "n", &flag), FSDP_ERR_INPUT);
    assert_says("c: \"n\" must be true or false, it is a whole number");
    assert_int_equal(json_opt_string("c", o, "t", &s), FSDP_ERR_INPUT);
    json_decref(o);
}

static void fields_of_what_is_not_an_object_are_refused(void **state)
{
    (void)state;
    json_t *array = parse("[1]");
    int64_t n = 0;
    assert_int_equal(json_get_int("c", array, "n", &n), FSDP_ERR_INPUT);
    assert_says("an array");
    assert_int_equal(json_opt_int("c", NULL, "n", &n), FSDP_ERR_INPUT);
    json_decref(array);
}

static void a_written_file_reads_back_with_keys_in_order(void **state)
{
    char *path = file_join(*state, "out.json");
    json_t *written = parse("{\"zeta\": [1, 2.25, \"\\u00e4\"], \"alpha\": {\"tiny\": 1e-17}}"), *back;
    assert_int_equal(json_write_file(path, written), FSDP_OK);
    assert_int_equal(json_read_file(path, &back), FSDP_OK);
    assert_true(json_equal(written, back));
    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    assert_true(strstr(text, "zeta") < strstr(text, "alpha"));
    assert_int_equal(text[bytes - 1], '\n');
    free(text);
    json_decref(back);
    json_decref(written);
    assert_int_equal(file_remove_tree(path), FSDP_OK);
    assert_int_equal(json_read_file(path, &back), FSDP_ERR_INPUT);
    assert_says(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_text_is_refused_with_file_and_line),
        cmocka_unit_test(duplicate_keys_are_refused),
        cmocka_unit_test(required_fields_are_read_or_named),
        cmocka_unit_test(absent_and_null_fields_leave_the_default),
        cmocka_unit_test(fields_of_what_is_not_an_object_are_refused),
        cmocka_unit_test_setup_teardown(a_written_file_reads_back_with_keys_in_order, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
