/* Element types by every spelling users bring, and the arithmetic on sizes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <fsdp/dtype.h>

#include "base/checked.h"

static void every_type_is_found_by_both_its_names(void **state)
{
    (void)state;
    for (int i = 0; i < FSDP_DTYPE_COUNT; i++) {
        fsdp_dtype found = FSDP_DTYPE_COUNT;
        assert_true(fsdp_dtype_size((fsdp_dtype)i) > 0);
        assert_int_equal(fsdp_dtype_parse(fsdp_dtype_name((fsdp_dtype)i), &found), FSDP_OK);
        assert_int_equal(found, i);
        found = FSDP_DTYPE_COUNT;
        assert_int_equal(fsdp_dtype_parse(fsdp_dtype_safetensors_name((fsdp_dtype)i), &found), FSDP_OK);
        assert_int_equal(found, i);
    }
    assert_int_equal(fsdp_dtype_size(FSDP_DTYPE_COUNT), 0);
}

static void torch_spellings_are_understood(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        fsdp_dtype dtype;
        size_t size;
    } known[] = {{"float32", FSDP_F32, 4},         {"torch.float32", FSDP_F32, 4}, {"bfloat16", FSDP_BF16, 2},
                 {"torch.bfloat16", FSDP_BF16, 2}, {"float16", FSDP_F16, 2},       {"torch.float64", FSDP_F64, 8},
                 {"int64", FSDP_I64, 8},           {"torch.uint8", FSDP_U8, 1},    {"torch.int32", FSDP_I32, 4}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        fsdp_dtype found = FSDP_DTYPE_COUNT;
        assert_int_equal(fsdp_dtype_parse(known[i].name, &found), FSDP_OK);
        assert_int_equal(found, known[i].dtype);
        assert_int_equal(fsdp_dtype_size(found), known[i].size);
    }
}

static void other_names_are_refused_with_the_choices(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "fp8", "torch.", "torch.fp32x", "Float32", "bf16 "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fsdp_dtype found = FSDP_F64;
        assert_int_equal(fsdp_dtype_parse(wrong[i], &found), FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), "bf16"));
        assert_int_equal(found, FSDP_F64);
    }
}

static void sizes_that_do_not_fit_are_seen(void **state)
{
    (void)state;
    size_t out;
    int64_t product;
    assert_false(checked_add(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_true(checked_add(SIZE_MAX, 1, &out));
    assert_true(checked_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_true(checked_mul_i64(INT64_MAX / 3, 4, &product));
    assert_false(checked_mul_i64(-3, 7, &product));
    assert_int_equal(product, -21);
    assert_int_equal(round_up(0, 64), 0);
    assert_int_equal(round_up(1, 64), 64);
    assert_int_equal(round_up(64, 64), 64);
    assert_int_equal(ceil_div(7, 3), 3);
    assert_int_equal(min_i64(-1, 1) + max_i64(-1, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_found_by_both_its_names),
        cmocka_unit_test(torch_spellings_are_understood),
        cmocka_unit_test(other_names_are_refused_with_the_choices),
        cmocka_unit_test(sizes_that_do_not_fit_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
