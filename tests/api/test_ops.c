/* Operations as a program has them, from public headers and the library alone: the gradient of every one, and of the
 * layers built on them, is what finite differences of its value say, on two ranks that share the parameters. */
#include "api/support_differences.h"

static const int32_t mask[ROWS * COLUMNS] = {1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0};
static const int32_t index_of[] = {2, 0, 2, 1};
static const int32_t labels[ROWS] = {3, FSDP_IGNORE, 1};
static const float shares[ROWS * COLUMNS] = {0.1f, 0.2f, 0.3f,  0.4f,  0.7f,  0.1f,
                                             0.1f, 0.1f, 0.25f, 0.25f, 0.25f, 0.25f};

/* At least 1, for logarithms and roots. */
static fsdp_tensor *above_one(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_add_scalar(t, fsdp_mul(t, p, p), 1);
}

VALUE(softmax, fsdp_softmax(t, p, -1))
VALUE(softmax_of_columns, fsdp_softmax(t, p, 0))
VALUE(log_softmax, fsdp_log_softmax(t, p, 1))
VALUE(sigmoid, fsdp_sigmoid(t, p))
VALUE(tanh, fsdp_tanh(t, p))
VALUE(exp, fsdp_exp(t, p))
VALUE(log, fsdp_log(t, above_one(t, p)))
VALUE(sqrt, fsdp_sqrt(t, above_one(t, p)))
VALUE(pow, fsdp_pow(t, above_one(t, p), 1.7f))
VALUE(softplus, fsdp_softplus(t, p))
VALUE(divide, fsdp_div(t, p, above_one(t, fsdp_slice(t, p, 0, 1, 1))))
VALUE(subtract, fsdp_sub(t, fsdp_slice(t, p, 1, 2, 1), p))
VALUE(multiply, fsdp_mul(t, p, fsdp_slice(t, p, 1, 0, 1)))
VALUE(sum, fsdp_sum_dim(t, p, 0, false))
VALUE(mean, fsdp_mean_dim(t, p, -1, true))
VALUE(max, fsdp_max_dim(t, p, 1, false))
VALUE(min, fsdp_min_dim(t, p, 0, true))
VALUE(where, fsdp_where(t, ints(t, mask, 2, ROWS, COLUMNS), p, fsdp_scale(t, p, -3)))
VALUE(masked_fill, fsdp_masked_fill(t, p, ints(t, mask, 2, ROWS, COLUMNS), 2))
VALUE(index_select, fsdp_index_select(t, p, 0, ints(t, index_of, 1, 4, 0)))
VALUE(gather, fsdp_gather(t, p, 0, ints(t, index_of, 2, 1, COLUMNS)))
VALUE(one_hot, fsdp_matmul(t, fsdp_one_hot(t, ints(t, index_of, 1, 4, 0), ROWS, FSDP_F32), p, false, false))
VALUE(group_norm, fsdp_call(layer, t, fsdp_reshape(t, p, 3, (int64_t[]){1, COLUMNS, ROWS})))
VALUE(conv1d, fsdp_call(layer, t, fsdp_reshape(t, p, 3, (int64_t[]){1, COLUMNS, ROWS})))
VALUE(conv2d, fsdp_call(layer, t, fsdp_reshape(t, p, 4, (int64_t[]){1, 2, 2, ROWS})))

static fsdp_tensor *value_gru(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)
{
    fsdp_tensor *h = fsdp_slice(t, p, 1, 0, 2);
    for (int i = 0; i < 2; i++)
        fsdp_call_list(layer, t, (fsdp_tensor *[]){p, h}, 2, &h, 1);
    return h;
}

static fsdp_tensor *value_lstm(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)
{
    fsdp_tensor *state[] = {fsdp_slice(t, p, 1, 0, 2), fsdp_slice(t, p, 1, 2, 2)};
    for (int i = 0; i < 2; i++)
        fsdp_call_list(layer, t, (fsdp_tensor *[]){p, state[0], state[1]}, 3, state, 2);
    return fsdp_concat(t, state, 2, 1);
}

static fsdp_loss loss_smoothed(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_cross_entropy_smoothed(t, p, ints(t, labels, 1, ROWS, 0), FSDP_IGNORE, 0.2f);
}

static fsdp_loss loss_kl(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_kl_divergence(t, fsdp_log_softmax(t, p, 1),
                              fsdp_input(t, FSDP_F32, 2, (int64_t[]){ROWS, COLUMNS}, shares));
}

static fsdp_loss loss_bce(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_bce_with_logits(t, p, fsdp_input(t, FSDP_F32, 2, (int64_t[]){ROWS, COLUMNS}, shares));
}

static fsdp_module *group_norm(void)
{
    return fsdp_group_norm_new(2, COLUMNS, 1e-5f);
}

static fsdp_module *conv1d(void)
{
    return fsdp_conv1d_new(COLUMNS, 6, 3, 1, 1, 2, true);
}

static fsdp_module *conv2d(void)
{
    return fsdp_conv2d_grouped_new(2, 4, (fsdp_window){2, 2, 1, 1, 0, 0}, 2, true);
}

static fsdp_module *gru(void)
{
    return fsdp_gru_cell_new(COLUMNS, 2);
}

static fsdp_module *lstm(void)
{
    return fsdp_lstm_cell_new(COLUMNS, 2);
}

static const op_case cases[] = {
    CASE(softmax),     CASE(softmax_of_columns),
    CASE(log_softmax), CASE(sigmoid),
    CASE(tanh),        CASE(exp),
    CASE(log),         CASE(sqrt),
    CASE(pow),         CASE(softplus),
    CASE(divide),      CASE(subtract),
    CASE(multiply),    CASE(sum),
    CASE(mean),        CASE(max),
    CASE(min),         CASE(where),
    CASE(gather),      CASE(one_hot),
    CASE(masked_fill), CASE(index_select),
    LAYER(group_norm), LAYER(conv1d),
    LAYER(conv2d),     LAYER(gru),
    LAYER(lstm),       LOSS(smoothed),
    LOSS(kl),          LOSS(bce),
};

static void gradients_are_those_of_finite_differences(void **state)
{
    (void)state;
    check_differences(cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_those_of_finite_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
