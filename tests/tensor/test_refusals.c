/* Shapes that do not go together: the recording names them, every later operation returns NULL, and nothing runs. */
#include "tensor/rig.h"

typedef struct refusal {
    const char *name;
    fsdp_tensor *(*record)(fsdp_tape *t);
    const char *says[3]; /* all of these are in the message */
} refusal;

/* Only shapes are looked at. */
static fsdp_tensor *floats(fsdp_tape *t, int n_dims, const int64_t *shape)
{
    return fsdp_input(t, FSDP_F32, n_dims, shape, "");
}

static fsdp_tensor *integers(fsdp_tape *t, int n_dims, const int64_t *shape)
{
    return fsdp_input(t, FSDP_I32, n_dims, shape, "");
}

#define X(...) floats(t, DIMS(__VA_ARGS__))
#define I(...) integers(t, DIMS(__VA_ARGS__))
#define RECORD(name, expression)                                                                                       \
    static fsdp_tensor *name(fsdp_tape *t)                                                                             \
    {                                                                                                                  \
        return expression;                                                                                             \
    }

static fsdp_tensor *low(fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_cast(t, x, FSDP_BF16);
}

static fsdp_tensor *attention(fsdp_tape *t, fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v, int64_t heads,
                              int64_t kv_heads)
{
    fsdp_attention_config a = {
        .q = {q, 0}, .k = {k, 0}, .v = {v, 0}, .q_heads = heads, .kv_heads = kv_heads, .head_dim = 2, .scale = 1};
    return fsdp_attention(t, &a);
}

static fsdp_tensor *attention_with(fsdp_tape *t, fsdp_tensor *bias, bool relative, fsdp_tensor *mask)
{
    fsdp_attention_config a = {.q = {X(2, 3, 4), 0},
                               .k = {X(2, 5, 4), 0},
                               .v = {X(2, 5, 4), 0},
                               .q_heads = 2,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .scale = 1,
                               .bias = bias,
                               .relative = relative,
                               .key_mask = mask};
    return fsdp_attention(t, &a);
}

static fsdp_tensor *attention_dropping(fsdp_tape *t, fsdp_tensor *x, float probability)
{
    fsdp_attention_config a = {.q = {x, 0},
                               .k = {x, 4},
                               .v = {x, 8},
                               .q_heads = 2,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .scale = 1,
                               .dropout = probability};
    return fsdp_attention(t, &a);
}

static fsdp_tensor *attention_starting(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *starts, bool causal)
{
    fsdp_attention_config a = {.q = {x, 0},
                               .k = {x, 4},
                               .v = {x, 8},
                               .q_heads = 2,
                               .kv_heads = 2,
                               .head_dim = 2,
                               .scale = 1,
                               .causal = causal,
                               .starts = starts};
    return fsdp_attention(t, &a);
}

static fsdp_tensor *concat(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b, int dim)
{
    fsdp_tensor *parts[] = {a, b};
    return fsdp_concat(t, parts, 2, dim);
}

static fsdp_window window(int64_t kernel, int64_t stride, int64_t padding)
{
    return (fsdp_window){kernel, kernel, stride, stride, padding, padding};
}

RECORD(linear_columns, fsdp_linear(t, X(3, 5), X(7, 4), NULL))
RECORD(linear_weight_dims, fsdp_linear(t, X(3, 5), X(5), NULL))
RECORD(linear_types, fsdp_linear(t, X(3, 5), low(t, X(7, 5)), NULL))
RECORD(linear_bias, fsdp_linear(t, X(3, 5), X(7, 5), X(6)))
RECORD(linear_residual, fsdp_linear_add(t, X(3, 5), X(7, 5), NULL, X(3, 6)))
RECORD(matmul_inner, fsdp_matmul(t, X(2, 3, 5), X(2, 4, 7), false, false))
RECORD(matmul_inner_transposed, fsdp_matmul(t, X(2, 3, 5), X(2, 5, 7), false, true))
RECORD(matmul_batch, fsdp_matmul(t, X(2, 3, 5), X(3, 5, 7), false, false))
RECORD(matmul_dims, fsdp_matmul(t, X(5), X(5), false, false))
RECORD(embedding_types, fsdp_embedding(t, X(3), X(7, 5)))
RECORD(embedding_table, fsdp_embedding(t, I(3), X(7)))
RECORD(rmsnorm_weight, fsdp_rmsnorm(t, X(3, 5), X(4), 1e-5f))
RECORD(layernorm_weight, fsdp_layernorm(t, X(3, 5), X(4), X(5), 1e-5f))
RECORD(layernorm_bias, fsdp_layernorm(t, X(3, 5), X(5), X(6), 1e-5f))
RECORD(batchnorm_dims, fsdp_batchnorm2d(t, X(3, 5), X(5), X(5), X(5), X(5), 1e-5f, 0.1f))
RECORD(batchnorm_channels, fsdp_batchnorm2d(t, X(3, 5, 2, 2), X(4), X(5), X(5), X(5), 1e-5f, 0.1f))
RECORD(rope_heads, fsdp_rope(t, X(2, 3, 8), X(3, 2), X(3, 2), 3, 4, 0))
RECORD(rope_odd, fsdp_rope(t, X(2, 3, 9), X(3, 1), X(3, 1), 3, 3, 0))
RECORD(rope_positions, fsdp_rope(t, X(2, 3, 8), X(3, 2), X(3, 2), 2, 4, 1))
RECORD(rope_negative, fsdp_rope(t, X(2, 3, 8), X(3, 2), X(3, 2), 2, 4, -1))
RECORD(rope_at_places, fsdp_rope_at(t, X(2, 3, 8), X(3, 2), X(3, 2), I(3), 2, 4))
RECORD(rope_at_type, fsdp_rope_at(t, X(2, 3, 8), X(3, 2), X(3, 2), X(2, 3), 2, 4))
RECORD(documents_type, fsdp_document_starts(t, X(2, 3)))
RECORD(documents_dims, fsdp_document_starts(t, I(3)))
RECORD(documents_computed, fsdp_document_starts(t, fsdp_relu(t, X(2, 3))))
RECORD(attention_starts_open, attention_starting(t, X(2, 3, 12), I(2, 3), false))
RECORD(attention_starts_shape, attention_starting(t, X(2, 3, 12), I(2, 4), true))
RECORD(attention_starts_type, attention_starting(t, X(2, 3, 12), X(2, 3), true))
RECORD(attention_heads, attention(t, X(2, 3, 6), X(2, 3, 4), X(2, 3, 4), 3, 2))
RECORD(attention_narrow, attention(t, X(2, 3, 4), X(2, 3, 4), X(2, 3, 4), 4, 2))
RECORD(attention_rest, attention(t, X(2, 3, 5), X(2, 3, 4), X(2, 3, 4), 2, 2))
RECORD(attention_batch, attention(t, X(2, 3, 4), X(1, 3, 4), X(1, 3, 4), 2, 2))
RECORD(attention_values, attention(t, X(2, 3, 4), X(2, 5, 4), X(2, 6, 4), 2, 2))
RECORD(attention_types, attention(t, X(2, 3, 4), low(t, X(2, 3, 4)), X(2, 3, 4), 2, 2))
RECORD(attention_bias, attention_with(t, X(2, 3, 4), false, NULL))
RECORD(attention_relative, attention_with(t, X(2, 3, 5), true, NULL))
RECORD(attention_mask, attention_with(t, NULL, false, I(2, 4)))
RECORD(attention_mask_type, attention_with(t, NULL, false, X(2, 5)))
RECORD(attention_dropout_all, attention_dropping(t, X(2, 3, 12), 1))
RECORD(attention_dropout_negative, attention_dropping(t, X(2, 3, 12), -0.5f))
RECORD(relative_table, fsdp_relative_bias(t, X(32), 3, 3, true, 128, 0))
RECORD(relative_distance_near, fsdp_relative_bias(t, X(32, 2), 3, 3, true, 8, 0))
RECORD(cross_entropy_rows, fsdp_cross_entropy(t, X(3, 5), I(4), -100).sum)
RECORD(cross_entropy_types, fsdp_cross_entropy(t, X(3, 5), X(3), -100).sum)
RECORD(linear_cross_entropy_columns, fsdp_linear_cross_entropy(t, X(3, 5), X(7, 4), I(3), -100).sum)
RECORD(linear_cross_entropy_labels, fsdp_linear_cross_entropy(t, X(3, 5), X(7, 5), I(4), -100).sum)
RECORD(mse_shapes, fsdp_mse(t, X(3, 5), X(3, 4)).sum)
RECORD(swiglu_odd, fsdp_swiglu(t, X(3, 5)))
RECORD(add_shapes, fsdp_add(t, X(3, 5), X(5, 3)))
RECORD(add_types, fsdp_add(t, X(3, 5), low(t, X(3, 5))))
RECORD(mul_shapes, fsdp_mul(t, X(3, 5), X(3, 4)))
RECORD(cast_integers, fsdp_cast(t, I(3), FSDP_F32))
RECORD(dropout_all, fsdp_dropout(t, X(3, 5), 1))
RECORD(dropout_negative, fsdp_dropout(t, X(3, 5), -0.5f))
RECORD(conv_channels, fsdp_conv2d(t, X(2, 3, 8, 8), X(4, 5, 3, 3), NULL, window(3, 1, 1)))
RECORD(conv_kernel, fsdp_conv2d(t, X(2, 3, 8, 8), X(4, 3, 5, 5), NULL, window(3, 1, 1)))
RECORD(conv_bias, fsdp_conv2d(t, X(2, 3, 8, 8), X(4, 3, 3, 3), X(3), window(3, 1, 1)))
RECORD(conv_small, fsdp_conv2d(t, X(2, 3, 2, 2), X(4, 3, 5, 5), NULL, window(5, 1, 0)))
RECORD(conv_stride, fsdp_conv2d(t, X(2, 3, 8, 8), X(4, 3, 3, 3), NULL, window(3, 0, 0)))
RECORD(pool_dims, fsdp_max_pool2d(t, X(3, 8, 8), window(2, 2, 0)))
RECORD(pool_padding, fsdp_avg_pool2d(t, X(2, 3, 8, 8), window(2, 2, 1)))
RECORD(pool_small, fsdp_max_pool2d(t, X(2, 3, 8, 8), window(9, 1, 0)))
RECORD(reshape_numel, fsdp_reshape(t, fsdp_silu(t, X(3, 5)), DIMS(4, 4)))
RECORD(reshape_rest, fsdp_reshape(t, fsdp_silu(t, X(3, 5)), DIMS(-1, 4)))
RECORD(reshape_two_free, fsdp_reshape(t, fsdp_silu(t, X(3, 5)), DIMS(-1, -1)))
RECORD(reshape_huge, fsdp_reshape(t, fsdp_silu(t, X(3, 5)), DIMS(INT64_MAX, 16, -1)))
RECORD(transpose_dim, fsdp_transpose(t, X(3, 5), 0, 2))
RECORD(slice_beyond, fsdp_slice(t, X(3, 5), 1, 3, 3))
RECORD(slice_negative, fsdp_slice(t, X(3, 5), 1, -1, 3))
RECORD(slice_huge, fsdp_slice(t, X(3, 5), 1, INT64_MAX, INT64_MAX))
RECORD(concat_shapes, concat(t, X(3, 5), X(4, 5), 1))
RECORD(concat_types, concat(t, X(3, 5), low(t, X(3, 5)), 1))
RECORD(concat_dim, concat(t, X(3, 5), X(3, 5), 2))
RECORD(mean_empty, fsdp_mean(t, X(0, 5)))
RECORD(negative_size, X(3, -5))
RECORD(too_large, X(INT64_MAX, 2))
RECORD(too_many_dims, X(1, 1, 1, 1, 1, 1, 1))

static fsdp_tensor *nested_regions(fsdp_tape *t)
{
    fsdp_checkpoint_begin(t);
    fsdp_checkpoint_begin(t);
    return fsdp_silu(t, X(3));
}

static fsdp_tensor *region_end(fsdp_tape *t)
{
    fsdp_checkpoint_end(t);
    return fsdp_silu(t, X(3));
}

static fsdp_tensor *no_grad_end(fsdp_tape *t)
{
    fsdp_no_grad_end(t);
    return fsdp_silu(t, X(3));
}

static const refusal refusals[] = {
    {"linear: columns", linear_columns, {"linear", "(3, 5)", "(7, 4)"}},
    {"linear: a vector as weight", linear_weight_dims, {"linear", "(3, 5)", "(5)"}},
    {"linear: types", linear_types, {"linear", "fp32", "bf16"}},
    {"linear: bias", linear_bias, {"linear", "6", "7"}},
    {"linear: residual", linear_residual, {"linear", "(3, 6)", "(3, 7)"}},
    {"matmul: inner dimension", matmul_inner, {"matmul", "(2, 3, 5)", "(2, 4, 7)"}},
    {"matmul: inner dimension, transposed", matmul_inner_transposed, {"matmul", "(2, 3, 5)", "(2, 5, 7)"}},
    {"matmul: batch", matmul_batch, {"matmul", "(2, 3, 5)", "(3, 5, 7)"}},
    {"matmul: vectors", matmul_dims, {"matmul", "(5)"}},
    {"embedding: ids of another type", embedding_types, {"embedding", "(3)", "fp32"}},
    {"embedding: a vector as table", embedding_table, {"embedding", "(3)", "(7)"}},
    {"rmsnorm: weights", rmsnorm_weight, {"rmsnorm", "4", "(3, 5)"}},
    {"layernorm: weights", layernorm_weight, {"layernorm", "4", "(3, 5)"}},
    {"layernorm: biases", layernorm_bias, {"layernorm", "6", "(3, 5)"}},
    {"batchnorm2d: no image", batchnorm_dims, {"batchnorm2d", "(3, 5)"}},
    {"batchnorm2d: channels", batchnorm_channels, {"batchnorm2d", "5"}},
    {"rope: too many heads", rope_heads, {"rope", "3", "(2, 3, 8)"}},
    {"rope: odd head", rope_odd, {"rope", "3", "(2, 3, 9)"}},
    {"rope: positions", rope_positions, {"rope", "(3, 2)", "4"}},
    {"rope: a position before the first", rope_negative, {"rope", "-1"}},
    {"attention: heads cannot be shared", attention_heads, {"attention", "3", "2"}},
    {"attention: heads beyond the row", attention_narrow, {"attention", "8", "(2, 3, 4)"}},
    {"attention: columns left over", attention_rest, {"attention", "4", "(2, 3, 5)"}},
    {"attention: batch", attention_batch, {"attention", "(2, 3, 4)", "(1, 3, 4)"}},
    {"attention: keys and values", attention_values, {"attention", "(2, 5, 4)", "(2, 6, 4)"}},
    {"attention: types", attention_types, {"attention", "fp32", "bf16"}},
    {"attention: bias", attention_bias, {"attention", "(2, 3, 4)", "5"}},
    {"attention: relative bias", attention_relative, {"attention", "(2, 3, 5)", "5"}},
    {"attention: mask", attention_mask, {"attention", "(2, 4)", "(2, 5)"}},
    {"rope: positions of other tokens", rope_at_places, {"rope", "positions", "(2, 3)"}},
    {"rope: positions of another type", rope_at_type, {"rope", "positions", "int32"}},
    {"documents of another type", documents_type, {"documents", "int32"}},
    {"documents without rows", documents_dims, {"documents", "rows"}},
    {"documents that are computed", documents_computed, {"documents", "input"}},
    {"attention: documents without a causal mask", attention_starts_open, {"attention", "causal"}},
    {"attention: starts of other tokens", attention_starts_shape, {"attention", "starts", "(2, 3)"}},
    {"attention: starts of another type", attention_starts_type, {"attention", "starts", "int32"}},
    {"attention: mask of another type", attention_mask_type, {"attention", "mask", "int32"}},
    {"attention: everything dropped", attention_dropout_all, {"attention", "dropout", "1"}},
    {"attention: negative dropout", attention_dropout_negative, {"attention", "dropout", "-0.5"}},
    {"relative bias: a vector as table", relative_table, {"relative bias", "(32)"}},
    {"relative bias: nothing beyond the exact buckets", relative_distance_near, {"relative bias", "(32, 2)", "8"}},
    {"cross_entropy: rows", cross_entropy_rows, {"cross_entropy", "(3, 5)", "(4)"}},
    {"cross_entropy: labels of another type", cross_entropy_types, {"cross_entropy", "int32"}},
    {"linear_cross_entropy: columns", linear_cross_entropy_columns, {"linear_cross_entropy", "(3, 5)", "(7, 4)"}},
    {"linear_cross_entropy: labels", linear_cross_entropy_labels, {"linear_cross_entropy", "(3, 5)", "(4)"}},
    {"mse", mse_shapes, {"mse", "(3, 5)", "(3, 4)"}},
    {"swiglu: odd rows", swiglu_odd, {"gated", "(3, 5)"}},
    {"add: shapes", add_shapes, {"add", "(3, 5)", "(5, 3)"}},
    {"add: types", add_types, {"add", "fp32", "bf16"}},
    {"mul: shapes", mul_shapes, {"mul", "(3, 5)", "(3, 4)"}},
    {"cast: integers", cast_integers, {"cast", "int32"}},
    {"dropout: everything", dropout_all, {"dropout", "1"}},
    {"dropout: negative", dropout_negative, {"dropout", "-0.5"}},
    {"conv2d: channels", conv_channels, {"conv2d", "(2, 3, 8, 8)", "(4, 5, 3, 3)"}},
    {"conv2d: kernel", conv_kernel, {"conv2d", "(4, 3, 5, 5)"}},
    {"conv2d: bias", conv_bias, {"conv2d", "(4, 3, 3, 3)"}},
    {"conv2d: image too small", conv_small, {"conv2d", "5 x 5", "(2, 3, 2, 2)"}},
    {"conv2d: stride 0", conv_stride, {"conv2d", "(2, 3, 8, 8)"}},
    {"pool: no image", pool_dims, {"max_pool2d", "(3, 8, 8)"}},
    {"pool: padding", pool_padding, {"avg_pool2d", "padding"}},
    {"pool: window too large", pool_small, {"max_pool2d", "9 x 9", "(2, 3, 8, 8)"}},
    {"reshape: elements", reshape_numel, {"reshape", "(3, 5)", "(4, 4)"}},
    {"reshape: does not divide", reshape_rest, {"reshape", "(3, 5)"}},
    {"reshape: two free dimensions", reshape_two_free, {"reshape", "-1"}},
    {"reshape: too large", reshape_huge, {"reshape", "(3, 5)"}},
    {"transpose: dimension", transpose_dim, {"transpose", "(3, 5)", "2"}},
    {"slice: beyond the end", slice_beyond, {"slice", "(3, 5)", "3"}},
    {"slice: before the start", slice_negative, {"slice", "(3, 5)", "-1"}},
    {"slice: too large", slice_huge, {"slice", "(3, 5)"}},
    {"concat: shapes", concat_shapes, {"concat", "(3, 5)", "(4, 5)"}},
    {"concat: types", concat_types, {"concat", "(3, 5)"}},
    {"concat: dimension", concat_dim, {"concat", "(3, 5)", "2"}},
    {"mean of nothing", mean_empty, {"mean", "(0, 5)"}},
    {"a negative size", negative_size, {"-5"}},
    {"a size that overflows", too_large, {"too large"}},
    {"seven dimensions", too_many_dims, {"7"}},
    {"nested regions", nested_regions, {"nest"}},
    {"a region that never began", region_end, {"never began"}},
    {"a no-grad section that never began", no_grad_end, {"never began"}},
};

static bool is_refused(rig *r, const refusal *c)
{
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *y = c->record(t);
    bool good = !y && fsdp_tape_status(t) == FSDP_ERR_INPUT;
    for (int i = 0; good && i < 3 && c->says[i]; i++)
        good = strstr(fsdp_last_error(), c->says[i]) != NULL;
    if (!good)
        print_error("%s: %s\n", c->name, y ? "not refused" : fsdp_last_error());
    /* The first error stays, whatever comes after; nothing can be recorded or compiled. */
    char first[512];
    snprintf(first, sizeof first, "%s", t->message);
    good &= !X(3, 5) && !fsdp_silu(t, y) && !fsdp_add(t, y, y) && !fsdp_linear(t, y, NULL, NULL) &&
            !fsdp_reshape(t, y, DIMS(1)) && !fsdp_cross_entropy(t, y, y, 0).sum && !fsdp_sum(t, y);
    program *p = NULL;
    program_options options = {.backward = false};
    good &= program_compile(t, NULL, &options, &p) == FSDP_ERR_INPUT && !p && strcmp(fsdp_last_error(), first) == 0;
    /* A new recording on the same tape begins without it. */
    tape_reset(t, true);
    good &= fsdp_tape_status(t) == FSDP_OK && fsdp_silu(t, X(3, 5));
    tape_free(t);
    return good;
}

static void wrong_shapes_are_refused_by_name_and_the_tape_does_not_run(void **state)
{
    (void)state;
    rig r;
    int bad = 0;
    rig_open(&r);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        if (!is_refused(&r, &refusals[i])) {
            print_error("case %zu: %s\n", i, refusals[i].name);
            bad++;
        }
    }
    rig_close(&r);
    assert_int_equal(bad, 0);
}

static void a_group_frozen_in_part_is_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    fsdp_parameter *a = rig_parameter(&r, DIMS(2, 5)), *b = rig_parameter(&r, DIMS(3, 5));
    a->name = "q_proj.weight";
    b->name = "k_proj.weight";
    a->group_next = b;
    b->trainable = false;
    fsdp_tape *t = rig_tape(&r);
    assert_null(tape_parameter_group(t, a));
    assert_status(FSDP_ERR_INPUT, fsdp_tape_status(t));
    assert_non_null(strstr(fsdp_last_error(), "q_proj.weight"));
    assert_non_null(strstr(fsdp_last_error(), "k_proj.weight"));
    tape_free(t);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_shapes_are_refused_by_name_and_the_tape_does_not_run),
        cmocka_unit_test(a_group_frozen_in_part_is_refused),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
