/* Operations as a program has them, from public headers and the library alone: the gradient of every one, and of the
 * layers built on them, is what finite differences of its value say, on two ranks that share the parameters. */
#include <math.h>

#include "api/support_ranks.h"

enum { ROWS = 3, COLUMNS = 4, MAX_NAMES = 16, MAX_NUMEL = 128 };

/* A parameter "p" (ROWS, COLUMNS), and where a case wants one a layer. */
typedef struct op_net {
    fsdp_module base;
    fsdp_parameter *p;
    fsdp_module *layer;
} op_net;

typedef struct op_case {
    const char *name;
    fsdp_module *(*layer)(void);                                             /* NULL: none */
    fsdp_tensor *(*value)(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer); /* NULL: loss */
    fsdp_loss (*loss)(fsdp_tape *t, fsdp_tensor *p);
} op_case;

static const int32_t mask[ROWS * COLUMNS] = {1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 0};
static const int32_t index_of[] = {2, 0, 2, 1};
static const int32_t labels[ROWS] = {3, FSDP_IGNORE, 1};
static const float shares[ROWS * COLUMNS] = {0.1f, 0.2f, 0.3f,  0.4f,  0.7f,  0.1f,
                                             0.1f, 0.1f, 0.25f, 0.25f, 0.25f, 0.25f};

static fsdp_tensor *ints(fsdp_tape *t, const int32_t *values, int n_dims, int64_t rows, int64_t columns)
{
    return fsdp_input(t, FSDP_I32, n_dims, (int64_t[]){rows, columns}, values);
}

/* At least 1, for logarithms and roots. */
static fsdp_tensor *above_one(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_add_scalar(t, fsdp_mul(t, p, p), 1);
}

#define VALUE(name, expression)                                                                                        \
    static fsdp_tensor *value_##name(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)                                 \
    {                                                                                                                  \
        (void)layer;                                                                                                   \
        return expression;                                                                                             \
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

#define CASE(name)                                                                                                     \
    {                                                                                                                  \
#name, NULL, value_##name, NULL                                                                                \
    }
#define LAYER(name)                                                                                                    \
    {                                                                                                                  \
#name, name, value_##name, NULL                                                                                \
    }
#define LOSS(name)                                                                                                     \
    {                                                                                                                  \
#name, NULL, NULL, loss_##name                                                                                 \
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

/* ---- Gradients ---- */

/* Squares of what the case computes, each with another weight, so that every element counts. */
static fsdp_loss record(const op_case *c, fsdp_model *m, fsdp_tape *t)
{
    static float wanted[256];
    op_net *net = (op_net *)fsdp_model_module(m);
    fsdp_tensor *p = fsdp_scale(t, fsdp_use(t, net->p), 1); /* parameters themselves are not reshaped */
    if (c->loss)
        return c->loss(t, p);
    fsdp_tensor *value = c->value(t, p, net->layer);
    int64_t shape[FSDP_MAX_DIMS] = {0};
    for (int i = 0; value && i < fsdp_tensor_dims(value); i++)
        shape[i] = fsdp_tensor_size(value, i);
    for (int i = 0; i < 256; i++)
        wanted[i] = (float)(i * 7 % 11) / 5 - 1;
    return fsdp_mse(t, value, value ? fsdp_input(t, FSDP_F32, fsdp_tensor_dims(value), shape, wanted) : NULL);
}

static fsdp_status evaluate(const op_case *c, fsdp_model *m, double *mean)
{
    float sum, count;
    fsdp_tape *t = fsdp_begin_evaluation(m);
    fsdp_loss loss = record(c, m, t);
    fsdp_output(t, loss.sum);
    fsdp_output(t, loss.count);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(loss.sum, &sum, 1));
    FSDP_TRY(fsdp_read(loss.count, &count, 1));
    *mean = sum / count;
    return FSDP_OK;
}

typedef struct names {
    int n;
    char name[MAX_NAMES][64];
    int64_t numel[MAX_NAMES];
} names;

static fsdp_status add_name(void *context, const char *name, int n_dims, const int64_t *shape, const float *values)
{
    names *all = context;
    (void)values;
    snprintf(all->name[all->n], sizeof all->name[0], "%s", name);
    all->numel[all->n] = 1;
    for (int i = 0; i < n_dims; i++)
        all->numel[all->n] *= shape[i];
    all->n++;
    return FSDP_OK;
}

/* Central differences of element i. */
static fsdp_status difference(const op_case *c, fsdp_model *m, const char *name, int64_t i, double *slope)
{
    const float step = 4e-3f;
    double at[2];
    float value;
    FSDP_TRY(fsdp_parameter_read(m, name, i, 1, &value));
    for (int k = 0; k < 2; k++) {
        float moved = k ? value + step : value - step;
        FSDP_TRY(fsdp_parameter_write(m, name, i, 1, &moved));
        FSDP_TRY(evaluate(c, m, &at[k]));
    }
    *slope = (at[1] - at[0]) / (2 * step);
    return fsdp_parameter_write(m, name, i, 1, &value);
}

static fsdp_status compare_gradients(fsdp_world *w, const op_case *c, fsdp_model *m, const names *all)
{
    static float gradients[MAX_NAMES][MAX_NUMEL];
    double largest = 0;
    fsdp_tape *t = fsdp_begin(m);
    FSDP_TRY(fsdp_backward(t, record(c, m, t), true));
    for (int k = 0; k < all->n; k++)
        FSDP_TRY(fsdp_gradient_read(m, all->name[k], 0, all->numel[k], gradients[k]));
    for (int k = 0; k < all->n; k++) {
        for (int64_t i = 0; i < all->numel[k]; i++) {
            double slope, gradient = gradients[k][i];
            FSDP_TRY(difference(c, m, all->name[k], i, &slope));
            largest = fmax(largest, fabs(gradient));
            if (!(fabs(slope - gradient) <= 1e-3 + 1e-2 * fabs(gradient)))
                return fsdp_fail(FSDP_ERR_STATE, "%s: the gradient of %s[%d] is %g, finite differences say %g", c->name,
                                 all->name[k], (int)i, gradient, slope);
        }
    }
    EXPECT(w, largest > 1e-2); /* there was something to compare */
    return FSDP_OK;
}

static fsdp_status check_case(fsdp_world *w, void *context)
{
    static const fsdp_module_class op_class = {.type = "op_net"};
    const op_case *c = context;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config sgd = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_optimizer *optimizer;
    fsdp_model *m;
    names all = {0};
    op_net *net = fsdp_module_new(&op_class, sizeof *net);
    net->p = fsdp_module_parameter(net, "p", 2, (int64_t[]){ROWS, COLUMNS}, FSDP_INIT_NORMAL, 1);
    if (c->layer)
        net->layer = fsdp_module_add(net, "layer", c->layer());
    FSDP_TRY(fsdp_module_check(&net->base));
    config.seed = 11;
    FSDP_TRY(fsdp_shard(w, &net->base, &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &sgd, &optimizer));
    FSDP_TRY(fsdp_summon(m, add_name, &all));
    EXPECT(w, all.n == 1 || c->layer);
    FSDP_TRY(compare_gradients(w, c, m, &all));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void gradients_are_those_of_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_case one = cases[i];
        if (!ranks_run(2, check_case, &one))
            fail_msg("%s", one.name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_those_of_finite_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
