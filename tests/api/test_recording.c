/* What a recording can say beside its operations: no gradient here, these rows do not count, this rank has no data,
 * this cannot be; and memory of a module's own. */
#include "api/support_ranks.h"

#include <math.h>

enum { ROWS = 4, COLUMNS = 3 };

typedef struct rows_net {
    fsdp_module base;
    fsdp_parameter *p; /* (ROWS, COLUMNS) */
    fsdp_module *layer;
    fsdp_buffer *shift, *zeros;
} rows_net;

static const float one = 1, shifts[COLUMNS] = {1, -2, 0.5f};
static const int32_t ids[] = {1, 3, 1, 0};

/* A model of one parameter, and of `layer` where there is one. */
static fsdp_status open_model(fsdp_world *w, fsdp_module *layer, fsdp_model **model)
{
    static const fsdp_module_class rows_class = {.type = "rows_net"};
    fsdp_config config = ranks_config();
    rows_net *net = fsdp_module_new(&rows_class, sizeof *net);
    net->p = fsdp_module_parameter(net, "p", 2, (int64_t[]){ROWS, COLUMNS}, FSDP_INIT_NORMAL, 1);
    net->shift = fsdp_module_buffer(net, "shift", 1, (int64_t[]){COLUMNS}, shifts, true);
    net->zeros = fsdp_module_buffer(net, "zeros", 1, (int64_t[]){COLUMNS}, NULL, false);
    if (layer)
        net->layer = fsdp_module_add(net, "layer", layer);
    return fsdp_shard(w, &net->base, &config, model);
}

static rows_net *net_of(fsdp_model *m)
{
    return (rows_net *)fsdp_model_module(m);
}

/* The sum of x itself: the gradient of x is 1 everywhere, on any number of ranks. */
static fsdp_loss sum_of(fsdp_tape *t, fsdp_tensor *x)
{
    return (fsdp_loss){fsdp_sum(t, x), fsdp_input(t, FSDP_F32, 1, (int64_t[]){1}, &one)};
}

static fsdp_tensor *numbers(fsdp_tape *t)
{
    return fsdp_input(t, FSDP_I32, 1, (int64_t[]){ROWS}, ids);
}

/* ---- Gradients that are not wanted ---- */

static fsdp_status stop_gradients(fsdp_world *w, void *context)
{
    fsdp_model *m;
    float values[ROWS * COLUMNS], gradient[ROWS * COLUMNS];
    (void)context;
    FSDP_TRY(open_model(w, NULL, &m));
    FSDP_TRY(fsdp_parameter_read(m, "p", 0, ROWS * COLUMNS, values));
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *p = fsdp_use(t, net_of(m)->p);
    fsdp_no_grad_begin(t);
    fsdp_no_grad_begin(t); /* they nest */
    fsdp_tensor *constant = fsdp_scale(t, p, 3);
    fsdp_no_grad_end(t);
    constant = fsdp_add_scalar(t, constant, 1);
    fsdp_no_grad_end(t);
    FSDP_TRY(fsdp_backward(t, sum_of(t, fsdp_mul(t, p, constant)), true));
    FSDP_TRY(fsdp_gradient_read(m, "p", 0, ROWS * COLUMNS, gradient));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        EXPECT(w, fabsf(gradient[i] - (3 * values[i] + 1)) < 1e-5f);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void what_is_recorded_without_gradients_counts_as_a_constant(void **state)
{
    (void)state;
    assert_true(ranks_run(2, stop_gradients, NULL));
}

/* Rows 0 and 3 are used once, row 1 twice, row 2 never; the padding takes nothing. */
static fsdp_status expect_rows(fsdp_world *w, fsdp_model *m, const char *name, int padding)
{
    static const float uses[ROWS] = {1, 2, 0, 1};
    float gradient[ROWS * COLUMNS];
    FSDP_TRY(fsdp_gradient_read(m, name, 0, ROWS * COLUMNS, gradient));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        EXPECT(w, gradient[i] == (i / COLUMNS == padding ? 0 : uses[i / COLUMNS]));
    return FSDP_OK;
}

static fsdp_status pad_embeddings(fsdp_world *w, void *context)
{
    fsdp_model *m;
    (void)context;
    for (int padding = -1; padding < ROWS; padding++) {
        fsdp_module *table = fsdp_embedding_new(ROWS, COLUMNS);
        fsdp_embedding_set_padding(table, padding);
        FSDP_TRY(open_model(w, table, &m));
        fsdp_tape *t = fsdp_begin(m);
        fsdp_tensor *own = fsdp_embedding_padded(t, numbers(t), fsdp_use(t, net_of(m)->p), padding);
        fsdp_tensor *both = fsdp_add(t, own, fsdp_call(net_of(m)->layer, t, numbers(t)));
        FSDP_TRY(fsdp_backward(t, sum_of(t, both), true));
        FSDP_TRY(expect_rows(w, m, "p", padding));
        FSDP_TRY(expect_rows(w, m, "layer.weight", padding));
        fsdp_model_free(m);
    }
    return FSDP_OK;
}

static void the_padding_row_of_an_embedding_takes_no_gradient(void **state)
{
    (void)state;
    assert_true(ranks_run(2, pad_embeddings, NULL));
}

/* ---- Rows and ranks that do not count ---- */

static fsdp_status count_right(fsdp_world *w, void *context)
{
    static const float logits[ROWS * COLUMNS] = {0, 2, 1, 5, 4, 3, 0, 0, 9, 7, 1, 1};
    static const int32_t labels[ROWS] = {1, 2, FSDP_IGNORE, 0};
    fsdp_model *m;
    float right, count;
    (void)context;
    FSDP_TRY(open_model(w, NULL, &m));
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, 2, (int64_t[]){ROWS, COLUMNS}, logits);
    fsdp_loss loss = fsdp_cross_entropy(t, x, fsdp_input(t, FSDP_I32, 1, (int64_t[]){ROWS}, labels), FSDP_IGNORE);
    fsdp_tensor *n = fsdp_loss_right(t, loss);
    fsdp_output(t, loss.count);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(n, &right, 1));
    FSDP_TRY(fsdp_read(loss.count, &count, 1));
    EXPECT(w, right == 2 && count == 3);
    t = fsdp_begin_evaluation(m); /* only losses that know labels know what is right */
    x = fsdp_input(t, FSDP_F32, 2, (int64_t[]){ROWS, COLUMNS}, logits);
    EXPECT(w, !fsdp_loss_right(t, fsdp_mse(t, x, x)) && fsdp_evaluate(t) == FSDP_ERR_INPUT);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void rows_whose_label_is_likeliest_are_counted(void **state)
{
    (void)state;
    assert_true(ranks_run(1, count_right, NULL));
}

/* Three steps, after the first of which rank 0 alone has data. In the first a rank without any does not know what the
 * others compute. */
static fsdp_status train_on_one_rank(fsdp_world *w, void *context)
{
    float *result = context;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_optimizer *optimizer;
    fsdp_model *m;
    float last[ROWS * COLUMNS];
    FSDP_TRY(open_model(w, NULL, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adam, &optimizer));
    for (int step = 0; step < 3; step++) {
        if (step == 0)
            EXPECT(w, fsdp_backward_nothing(m, true) == FSDP_ERR_STATE);
        if (step == 0 || fsdp_world_rank(w) == 0) {
            fsdp_tape *t = fsdp_begin(m);
            fsdp_tensor *p = fsdp_use(t, net_of(m)->p);
            FSDP_TRY(fsdp_backward(t, sum_of(t, fsdp_mul(t, p, p)), true));
        } else {
            FSDP_TRY(fsdp_backward_nothing(m, true));
        }
        FSDP_TRY(fsdp_step(optimizer, NULL));
    }
    FSDP_TRY(fsdp_parameter_read(m, "p", 0, ROWS * COLUMNS, last));
    if (fsdp_world_rank(w) == 0)
        memcpy(result, last, sizeof last);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void ranks_without_data_change_nothing(void **state)
{
    (void)state;
    float *alone = shared_memory(ROWS * COLUMNS * sizeof *alone),
          *beside = shared_memory(ROWS * COLUMNS * sizeof *alone);
    assert_true(ranks_run(1, train_on_one_rank, alone));
    assert_true(ranks_run(3, train_on_one_rank, beside));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(fabsf(alone[i] - beside[i]) < 1e-6f && alone[i] != 0);
}

/* Batch norm over `rows` pictures of one channel, of which `counted` are data; then what it has learned of them. */
static fsdp_status normalize(fsdp_model *m, const float *x, int64_t rows, int64_t counted, float *trained,
                             float *learned)
{
    fsdp_set_counted_rows(m, counted);
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *y = fsdp_call(net_of(m)->layer, t, fsdp_input(t, FSDP_F32, 4, (int64_t[]){rows, 1, 1, COLUMNS}, x));
    y = fsdp_output(t, fsdp_slice(t, y, 0, 0, 2));
    FSDP_TRY(fsdp_backward(t, sum_of(t, fsdp_mul(t, y, y)), true));
    FSDP_TRY(fsdp_read(y, trained, 2 * COLUMNS));
    t = fsdp_begin_evaluation(m);
    y = fsdp_output(t, fsdp_call(net_of(m)->layer, t, fsdp_input(t, FSDP_F32, 4, (int64_t[]){2, 1, 1, COLUMNS}, x)));
    FSDP_TRY(fsdp_evaluate(t));
    return fsdp_read(y, learned, 2 * COLUMNS);
}

static fsdp_status leave_rows_out(fsdp_world *w, void *context)
{
    static const float x[ROWS * COLUMNS] = {1, 2, 3, 0, -1, 4, 1000, -1000, 77, 5, 5, 1e6f};
    float trained[2][2 * COLUMNS], learned[2][2 * COLUMNS];
    (void)context;
    for (int padded = 0; padded < 2; padded++) {
        fsdp_model *m;
        FSDP_TRY(open_model(w, fsdp_batchnorm2d_new(1, 1e-5f, 0.1f), &m));
        FSDP_TRY(normalize(m, x, padded ? ROWS : 2, padded ? 2 : -1, trained[padded], learned[padded]));
        fsdp_model_free(m);
    }
    for (int i = 0; i < 2 * COLUMNS; i++) {
        EXPECT(w, fabsf(trained[0][i] - trained[1][i]) < 1e-5f);
        EXPECT(w, fabsf(learned[0][i] - learned[1][i]) < 1e-5f);
        EXPECT(w, fabsf(trained[0][i] - learned[0][i]) > 1e-3f); /* training and evaluation are not the same */
    }
    return FSDP_OK;
}

static void batch_norm_leaves_out_rows_that_do_not_count(void **state)
{
    (void)state;
    assert_true(ranks_run(2, leave_rows_out, NULL));
}

/* ---- Buffers, and a recording that cannot be ---- */

static fsdp_status use_buffers(fsdp_world *w, void *context)
{
    fsdp_model *m;
    float values[ROWS * COLUMNS], shifted[ROWS * COLUMNS];
    (void)context;
    FSDP_TRY(open_model(w, NULL, &m));
    FSDP_TRY(fsdp_parameter_read(m, "p", 0, ROWS * COLUMNS, values));
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_tensor *y = fsdp_add(t, fsdp_use(t, net_of(m)->p), fsdp_use_buffer(t, net_of(m)->shift));
    y = fsdp_output(t, fsdp_add(t, y, fsdp_use_buffer(t, net_of(m)->zeros)));
    EXPECT(w, fsdp_tensor_dtype(y) == FSDP_F32 && fsdp_tensor_dims(y) == 2 && fsdp_tensor_numel(y) == ROWS * COLUMNS);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(y, shifted, ROWS * COLUMNS));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        EXPECT(w, shifted[i] == values[i] + shifts[i % COLUMNS]);
    EXPECT(w, fsdp_read(y, shifted, 1) == FSDP_ERR_INPUT); /* not all of it */
    t = fsdp_begin_evaluation(m);
    y = fsdp_output(t, fsdp_use_buffer(t, net_of(m)->shift)); /* buffers are no outputs; inputs are */
    fsdp_tensor *x = fsdp_output(t, fsdp_input(t, FSDP_F32, 2, (int64_t[]){ROWS, COLUMNS}, values));
    fsdp_output(t, fsdp_silu(t, x));
    FSDP_TRY(fsdp_evaluate(t));
    EXPECT(w, fsdp_read(y, shifted, COLUMNS) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "buffer is no output"));
    FSDP_TRY(fsdp_read(x, shifted, ROWS * COLUMNS));
    EXPECT(w, memcmp(shifted, values, sizeof values) == 0);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void buffers_are_read_as_they_were_given(void **state)
{
    (void)state;
    assert_true(ranks_run(2, use_buffers, NULL));
}

/* An operation of a program's own: says no to a tensor of this kind. */
static fsdp_tensor *refuse(fsdp_tape *t, fsdp_tensor *x)
{
    return x ? fsdp_tape_fail(t, fsdp_fail(FSDP_ERR_UNSUPPORTED, "no purple tensors")) : NULL;
}

/* The operation with statistics of the program's own: the buffers of open_model. */
static fsdp_status move_statistics(fsdp_world *w, void *context)
{
    static const float x[] = {1, 2, 3, 5, 7, 9}; /* (2, COLUMNS, 1, 1): means 3, 4.5, 6 */
    fsdp_model *m;
    float mean[COLUMNS];
    (void)context;
    FSDP_TRY(open_model(w, NULL, &m));
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *weight = fsdp_mean_dim(t, fsdp_use(t, net_of(m)->p), 0, false);
    fsdp_tensor *pictures = fsdp_input(t, FSDP_F32, 4, (int64_t[]){2, COLUMNS, 1, 1}, x);
    fsdp_tensor *y = fsdp_batchnorm2d(t, pictures, weight, weight, fsdp_use_buffer(t, net_of(m)->zeros),
                                      fsdp_use_buffer(t, net_of(m)->shift), 1e-5f, 0.5f);
    FSDP_TRY(fsdp_backward(t, sum_of(t, y), true));
    t = fsdp_begin_evaluation(m);
    y = fsdp_output(t, fsdp_add_scalar(t, fsdp_use_buffer(t, net_of(m)->zeros), 0));
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(y, mean, COLUMNS));
    EXPECT(w, fabsf(mean[0] - 1.5f) < 1e-6f && fabsf(mean[1] - 2.25f) < 1e-6f && fabsf(mean[2] - 3) < 1e-6f);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void batch_norm_moves_the_statistics_it_is_given(void **state)
{
    (void)state;
    assert_true(ranks_run(2, move_statistics, NULL));
}

/* A loss is made of two numbers of this recording. */
static fsdp_status refuse_losses(fsdp_world *w, void *context)
{
    fsdp_model *m;
    (void)context;
    FSDP_TRY(open_model(w, NULL, &m));
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *p = fsdp_scale(t, fsdp_use(t, net_of(m)->p), 2);
    fsdp_loss good = sum_of(t, p);
    EXPECT(w, fsdp_backward(t, (fsdp_loss){good.sum, NULL}, true) == FSDP_ERR_STATE);
    EXPECT(w, fsdp_backward(t, (fsdp_loss){p, good.count}, true) == FSDP_ERR_INPUT);
    EXPECT(w, strstr(fsdp_last_error(), "the sum of the loss is fp32 of 12 elements"));
    EXPECT(w, fsdp_backward(t, (fsdp_loss){good.sum, fsdp_cast(t, good.count, FSDP_BF16)}, true) == FSDP_ERR_INPUT);
    EXPECT(w, strstr(fsdp_last_error(), "the count of the loss is bf16"));
    FSDP_TRY(fsdp_backward(t, good, true)); /* nothing of that has harmed the model */
    fsdp_model_free(m);
    return FSDP_OK;
}

static void a_loss_that_is_none_is_refused(void **state)
{
    (void)state;
    assert_true(ranks_run(2, refuse_losses, NULL));
}

static fsdp_status fail_recordings(fsdp_world *w, void *context)
{
    fsdp_model *m;
    (void)context;
    FSDP_TRY(open_model(w, NULL, &m));
    for (int training = 0; training < 2; training++) {
        fsdp_tape *t = training ? fsdp_begin(m) : fsdp_begin_evaluation(m);
        EXPECT(w, fsdp_training(t) == training && fsdp_tape_status(t) == FSDP_OK);
        fsdp_tensor *x = refuse(t, fsdp_use(t, net_of(m)->p));
        EXPECT(w, !x && !refuse(t, x) && !fsdp_silu(t, x)); /* NULL goes through */
        fsdp_fail(FSDP_ERR_IO, "something else, later");
        EXPECT(w, fsdp_tape_status(t) == FSDP_ERR_UNSUPPORTED && strstr(fsdp_last_error(), "purple"));
        fsdp_status status = training ? fsdp_backward(t, sum_of(t, x), true) : fsdp_evaluate(t);
        EXPECT(w, status == FSDP_ERR_UNSUPPORTED && strstr(fsdp_last_error(), "purple"));
    }
    fsdp_tape *t = fsdp_begin(m); /* the next one begins without it */
    FSDP_TRY(fsdp_backward(t, sum_of(t, fsdp_use(t, net_of(m)->p)), true));
    fsdp_model_free(m);
    return FSDP_OK;
}

static void a_recording_keeps_its_first_error_and_the_next_has_none(void **state)
{
    (void)state;
    assert_true(ranks_run(2, fail_recordings, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_recorded_without_gradients_counts_as_a_constant),
        cmocka_unit_test(the_padding_row_of_an_embedding_takes_no_gradient),
        cmocka_unit_test(rows_whose_label_is_likeliest_are_counted),
        cmocka_unit_test(ranks_without_data_change_nothing),
        cmocka_unit_test(batch_norm_leaves_out_rows_that_do_not_count),
        cmocka_unit_test(buffers_are_read_as_they_were_given),
        cmocka_unit_test(batch_norm_moves_the_statistics_it_is_given),
        cmocka_unit_test(a_loss_that_is_none_is_refused),
        cmocka_unit_test(a_recording_keeps_its_first_error_and_the_next_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
