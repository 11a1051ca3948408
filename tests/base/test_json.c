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

static json_t *parse_as(const char *text, unsigned flags)
{
    json_t *value = NULL;
    if (json_parse_as("file", text, strlen(text), flags, &value) != FSDP_OK)
        fail_msg("%s: %s", text, fsdp_last_error());
    return value;
}

static void integers_of_any_size_are_read(void **state)
{
    (void)state;
    json_t *o =
        parse("{\"model_max_length\": 1000000000000000019884624838656, \"most\": 9223372036854775807, "
              "\"least\": -9223372036854775808, \"more\": 9223372036854775808, \"less\": -9223372036854775809}");
    double x = 0;
    int64_t n = 0;
    assert_int_equal(json_get_number("c", o, "model_max_length", &x), FSDP_OK);
    assert_true(x == 1e30);
    assert_int_equal(json_get_int("c", o, "most", &n), FSDP_OK);
    assert_true(n == INT64_MAX);
    assert_int_equal(json_get_int("c", o, "least", &n), FSDP_OK);
    assert_true(n == INT64_MIN);
    assert_int_equal(json_get_int("c", o, "more", &n), FSDP_ERR_INPUT);
    assert_int_equal(json_get_int("c", o, "less", &n), FSDP_ERR_INPUT);
    json_decref(o);
}

static void a_nul_is_read_only_where_it_is_expected(void **state)
{
    (void)state;
    static const char text[] = "{\"a\\u0000b\": \"\\u0000\"}";
    json_t *value;
    assert_int_equal(json_parse("config.json", text, strlen(text), &value), FSDP_ERR_INPUT);
    assert_says("u0000");
    value = parse_as(text, JSON_WITH_NUL);
    assert_int_equal(json_string_length(json_object_getn(value, "a\0b", 3)), 1);
    json_decref(value);
}

static void what_python_writes_is_read_where_it_is_expected(void **state)
{
    (void)state;
    static const char *const texts[] = {"[NaN]", "[Infinity]", "[-Infinity]", "[1e999]"};
    json_t *value;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(json_parse("config.json", texts[i], strlen(texts[i]), &value), FSDP_ERR_INPUT);
        value = parse_as(texts[i], JSON_AS_PYTHON);
        assert_true(json_is_null(json_array_get(value, 0)));
        json_decref(value);
    }
    static const char half[] = "[\"a\\ud83d b\\ude00 \\ud83d\\ude00\"]";
    assert_int_equal(json_parse("config.json", half, strlen(half), &value), FSDP_ERR_INPUT);
    assert_says("surrogate");
    value = parse_as(half, JSON_AS_PYTHON);
    assert_string_equal(json_string_value(json_array_get(value, 0)), "a\xED\xA0\xBD b\xED\xB8\x80 \xF0\x9F\x98\x80");
    json_decref(value);
    value = parse_as("{\"a\": 1, \"a\": 2}", JSON_AS_PYTHON);
    assert_int_equal(json_integer_value(json_object_get(value, "a")), 2);
    json_decref(value);
}

/* Made by serde_json 1.0 through the tokenizers library: scores that it read and wrote again. */
static void fractions_round_as_serde_json_rounds_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double nearest, serde;
    } cases[] = {
        {"[-12.458033897794039]", -0x1.8ea836b46f838p+3, -0x1.8ea836b46f839p+3},
        {"[-15.903871311313933]", -0x1.fcec83873c59fp+3, -0x1.fcec83873c59ep+3},
        {"[-14.797971494798613]", -0x1.d988fb84299bep+3, -0x1.d988fb84299bdp+3},
        {"[-9.312453087562107]", -0x1.29ff9d9e13a19p+3, -0x1.29ff9d9e13a1ap+3},
        {"[-15.50902927062136527070]", -0x1.f049f7c0c0d0ep+3, -0x1.f049f7c0c0d0fp+3},
        {"[-12.78372001313274175516]", -0x1.99143bfe3406bp+3, -0x1.99143bfe3406cp+3},
        {"[-15.71461610704462330546]", -0x1.f6de22991e72ap+3, -0x1.f6de22991e729p+3},
        {"[12345678901234567890e-25]", 0x1.4b66dc01ec6fbp-20, 0x1.4b66dc01ec6fap-20},
        {"[1234567890123456789012345.678]", 0x1.056e0f36a6444p+80, 0x1.056e0f36a6444p+80},
        {"[-0.00000000000000000000012345678901234567890123]", -0x1.2a800d163332fp-73, -0x1.2a800d163332fp-73},
        {"[18446744073709551615.25]", 0x1.0000000000000p+64, 0x1.0000000000000p+64},
        {"[18446744073709551616]", 0x1.0000000000000p+64, 0x1.0000000000000p+64},
        {"[-1.5e-320]", -0x0.0000000000bdcp-1022, -0x0.0000000000bdcp-1022},
        {"[3.25e-5]", 0x1.10a137f38c543p-15, 0x1.10a137f38c543p-15},
        {"[1.7976931348623157e308]", 0x1.fffffffffffffp+1023, 0x1.fffffffffffffp+1023},
        {"[184467440737095516199.5]", 0x1.4000000000000p+67, 0x1.4000000000000p+67},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *nearest = parse_as(cases[i].text, 0), *serde = parse_as(cases[i].text, JSON_AS_SERDE);
        assert_true(json_number_value(json_array_get(nearest, 0)) == cases[i].nearest);
        assert_true(json_number_value(json_array_get(serde, 0)) == cases[i].serde);
        json_decref(nearest);
        json_decref(serde);
    }
}

static void nesting_without_end_is_refused(void **state)
{
    (void)state;
    char text[5001];
    json_t *value;
    memset(text, '[', 5000);
    text[5000] = '\0';
    assert_int_equal(json_parse("config.json", text, 5000, &value), FSDP_ERR_INPUT);
    assert_says("nested too deep");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_text_is_refused_with_file_and_line),
        cmocka_unit_test(duplicate_keys_are_refused),
        cmocka_unit_test(required_fields_are_read_or_named),
        cmocka_unit_test(absent_and_null_fields_leave_the_default),
        cmocka_unit_test(fields_of_what_is_not_an_object_are_refused),
        cmocka_unit_test(integers_of_any_size_are_read),
        cmocka_unit_test(a_nul_is_read_only_where_it_is_expected),
        cmocka_unit_test(what_python_writes_is_read_where_it_is_expected),
        cmocka_unit_test(fractions_round_as_serde_json_rounds_them),
        cmocka_unit_test(nesting_without_end_is_refused),
        cmocka_unit_test_setup_teardown(a_written_file_reads_back_with_keys_in_order, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
