/* The net of a case, its value with one element moved, the comparison. */
#include "api/support_differences.h"

#include <math.h>

enum { MAX_NAMES = 16, MAX_NUMEL = 128 };

/* A parameter "p" (ROWS, COLUMNS), and where a case wants one a layer. */
typedef struct op_net {
    fsdp_module base;
    fsdp_parameter *p;
    fsdp_module *layer;
} op_net;

fsdp_tensor *ints(fsdp_tape *t, const int32_t *values, int n_dims, int64_t rows, int64_t columns)
{
    return fsdp_input(t, FSDP_I32, n_dims, (int64_t[]){rows, columns}, values);
}

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
            double slope = 0, gradient = gradients[k][i];
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

static fsdp_status check_named_case(fsdp_world *w, void *context)
{
    fsdp_status status = check_case(w, context);
    if (status != FSDP_OK)
        fprintf(stderr, "%s\n", ((const op_case *)context)->name);
    return status;
}

void check_differences(const op_case *cases, size_t n)
{
    op_case *all = shared_memory(n * sizeof *all);
    memcpy(all, cases, n * sizeof *all);
    assert_true(ranks_run_each(2, check_named_case, all, (int)n, sizeof *all));
}
