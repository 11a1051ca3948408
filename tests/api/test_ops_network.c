/* The operations that networks are made of, and the layers around them: like test_ops.c, gradients against finite
 * differences, on two ranks. */
#include "api/support_differences.h"

static const int32_t index_of[] = {2, 0, 2, 1};
static const int32_t labels[ROWS] = {2, FSDP_IGNORE, 1};
static const int32_t documents[ROWS] = {0, 0, 1};
static const int32_t positions[ROWS] = {0, 1, 0};
static const int32_t visible[ROWS] = {1, 0, 1};
static const float cosine[ROWS] = {1, 0.5f, -0.4f}, sine[ROWS] = {0, 0.9f, 0.7f};

/* Tensors of other shapes made of p, so that gradients meet in it. */
static fsdp_tensor *shaped(fsdp_tape *t, fsdp_tensor *p, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return fsdp_reshape(t, p, d ? 4 : 3, (int64_t[]){a, b, c, d});
}

static fsdp_tensor *per_row(fsdp_tape *t, fsdp_tensor *p) /* (ROWS) */
{
    return fsdp_mean_dim(t, p, 1, false);
}

static fsdp_tensor *per_column(fsdp_tape *t, fsdp_tensor *p) /* (COLUMNS) */
{
    return fsdp_mean_dim(t, p, 0, false);
}

static fsdp_tensor *picture(fsdp_tape *t, fsdp_tensor *p) /* (1, 1, ROWS, COLUMNS) */
{
    return shaped(t, p, 1, 1, ROWS, COLUMNS);
}

static fsdp_tensor *tokens(fsdp_tape *t, fsdp_tensor *p) /* (1, ROWS, COLUMNS) */
{
    return shaped(t, p, 1, ROWS, COLUMNS, 0);
}

static fsdp_window square(int64_t kernel, int64_t stride)
{
    return (fsdp_window){kernel, kernel, stride, stride, 0, 0};
}

static fsdp_tensor *angles(fsdp_tape *t, const float *values)
{
    return fsdp_input(t, FSDP_F32, 2, (int64_t[]){ROWS, 1}, values);
}

VALUE(silu, fsdp_silu(t, p))
VALUE(gelu, fsdp_gelu(t, p))
VALUE(gelu_tanh, fsdp_gelu_tanh(t, p))
VALUE(relu_of, fsdp_relu(t, p))
VALUE(swiglu, fsdp_swiglu(t, p))
VALUE(geglu_tanh, fsdp_geglu_tanh(t, p))
VALUE(add, fsdp_add(t, fsdp_slice(t, p, 0, 1, 1), p))
VALUE(sum, fsdp_sum(t, fsdp_mul(t, p, p)))
VALUE(mean, fsdp_mean(t, fsdp_mul(t, p, fsdp_scale(t, p, 5))))
VALUE(transpose, fsdp_transpose(t, p, 0, 1))
VALUE(all_gather, fsdp_all_gather(t, p))
VALUE(linear_of, fsdp_linear(t, p, p, per_row(t, p)))
VALUE(linear_add, fsdp_linear_add(t, p, p, NULL, fsdp_slice(t, p, 1, 1, ROWS)))
VALUE(linear_input_major, fsdp_linear_input_major(t, p, fsdp_transpose(t, p, 0, 1), per_row(t, p), NULL))
VALUE(embedding_of, fsdp_embedding(t, ints(t, index_of, 1, 4, 0), p))
VALUE(rmsnorm_of, fsdp_rmsnorm(t, p, per_column(t, p), 1e-5f))
VALUE(rmsnorm_plus_one_of, fsdp_rmsnorm_plus_one(t, p, per_column(t, p), 1e-5f))
VALUE(layernorm_of, fsdp_layernorm(t, p, per_column(t, p), per_column(t, p), 1e-5f))
VALUE(group_norm_of,
      fsdp_group_norm(t, shaped(t, p, 1, COLUMNS, ROWS, 0), 2, per_column(t, p), per_column(t, p), 1e-5f))
VALUE(conv1d_of, fsdp_conv1d(t, shaped(t, p, 1, 2, 6, 0), shaped(t, p, 4, 1, 3, 0), per_column(t, p), 1, 1, 2))
VALUE(conv2d_of, fsdp_conv2d(t, picture(t, p), shaped(t, p, 3, 1, 2, 2), per_row(t, p), square(2, 1)))
VALUE(conv2d_grouped_of, fsdp_conv2d_grouped(t, shaped(t, p, 1, 2, 2, 3), shaped(t, p, 6, 1, 1, 2), NULL,
                                             (fsdp_window){1, 2, 1, 1, 0, 0}, 2))
VALUE(max_pool2d_of, fsdp_max_pool2d(t, picture(t, p), (fsdp_window){2, 2, 1, 2, 0, 0}))
VALUE(avg_pool2d_of, fsdp_avg_pool2d(t, picture(t, p), (fsdp_window){2, 2, 1, 2, 0, 0}))
VALUE(rope, fsdp_rope(t, tokens(t, p), angles(t, cosine), angles(t, sine), 2, 2, 0))
VALUE(rope_at, fsdp_rope_at(t, tokens(t, p), angles(t, cosine), angles(t, sine), ints(t, positions, 2, 1, ROWS), 2, 2))

/* Two heads of two columns over three tokens; queries, keys and values are all made of p. */
static fsdp_attention_config heads(fsdp_tape *t, fsdp_tensor *p)
{
    fsdp_tensor *x = tokens(t, p), *k = fsdp_scale(t, x, 0.8f), *v = fsdp_scale(t, x, -1.5f);
    return (fsdp_attention_config){
        .q = {x, 0}, .k = {k, 0}, .v = {v, 0}, .q_heads = 2, .kv_heads = 2, .head_dim = 2, .scale = 0.7f};
}

static fsdp_tensor *value_attention(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)
{
    (void)layer;
    fsdp_attention_config a = heads(t, p);
    a.key_mask = ints(t, visible, 2, 1, ROWS);
    return fsdp_attention(t, &a);
}

static fsdp_tensor *value_attention_of_documents(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)
{
    (void)layer;
    fsdp_attention_config a = heads(t, p);
    a.causal = true;
    a.starts = fsdp_document_starts(t, ints(t, documents, 2, 1, ROWS));
    return fsdp_attention(t, &a);
}

static fsdp_tensor *value_attention_with_buckets(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)
{
    (void)layer;
    fsdp_attention_config a = heads(t, p);
    fsdp_tensor *table = fsdp_reshape(t, p, 2, (int64_t[]){6, 2});
    a.bias = fsdp_relative_bias(t, table, ROWS, ROWS, true, 8, 0);
    a.relative = true;
    return fsdp_attention(t, &a);
}

/* Computed again in backward, but for what is kept. */
static fsdp_tensor *value_region(fsdp_tape *t, fsdp_tensor *p, fsdp_module *layer)
{
    (void)layer;
    fsdp_checkpoint_begin(t);
    fsdp_tensor *kept = fsdp_keep(t, fsdp_tanh(t, p));
    fsdp_tensor *y = fsdp_mul(t, kept, fsdp_sigmoid(t, p));
    fsdp_checkpoint_end(t);
    return fsdp_exp(t, y);
}

/* ---- Layers ---- */

VALUE(linear, fsdp_call(layer, t, p))
VALUE(rmsnorm, fsdp_call(layer, t, p))
VALUE(rmsnorm_plus_one, fsdp_call(layer, t, p))
VALUE(layernorm, fsdp_call(layer, t, p))
VALUE(embedding, fsdp_add(t, p, fsdp_slice(t, fsdp_call(layer, t, ints(t, index_of, 1, 4, 0)), 0, 0, ROWS)))
VALUE(stack, fsdp_call(layer, t, p))
VALUE(pools, fsdp_call(layer, t, picture(t, p)))
VALUE(grouped, fsdp_call(layer, t, p))

static fsdp_module *linear(void)
{
    return fsdp_linear_new(COLUMNS, 2, true);
}

static fsdp_module *rmsnorm(void)
{
    return fsdp_rmsnorm_new(COLUMNS, 1e-5f);
}

static fsdp_module *rmsnorm_plus_one(void)
{
    return fsdp_rmsnorm_plus_one_new(COLUMNS, 1e-5f);
}

static fsdp_module *layernorm(void)
{
    return fsdp_layernorm_new(COLUMNS, 1e-5f);
}

static fsdp_module *embedding(void)
{
    return fsdp_embedding_new(ROWS, COLUMNS);
}

/* Relu, and below pools and flatten, have no parameters of their own: the gradient goes through them. */
static fsdp_module *stack(void)
{
    fsdp_module *s = fsdp_sequential_new();
    fsdp_module_add(s, "linear", fsdp_linear_new(COLUMNS, 6, false));
    fsdp_module_add(s, "relu", fsdp_relu_new());
    return s;
}

static fsdp_module *pools(void)
{
    fsdp_module *s = fsdp_sequential_new();
    fsdp_module_add(s, "conv", fsdp_conv2d_new(1, 2, (fsdp_window){1, 1, 1, 1, 0, 0}, true)); /* (1, 2, 3, 4) */
    fsdp_module_add(s, "max", fsdp_max_pool2d_new((fsdp_window){2, 1, 1, 1, 0, 0}));          /* (1, 2, 2, 4) */
    fsdp_module_add(s, "average", fsdp_avg_pool2d_new(square(2, 2)));                         /* (1, 2, 1, 2) */
    fsdp_module_add(s, "flat", fsdp_flatten_new());                                           /* (1, 4) */
    return s;
}

/* Two parameters that one product reads as one matrix. */
typedef struct grouped_net {
    fsdp_module base;
    fsdp_parameter *first;
} grouped_net;

static fsdp_tensor *grouped_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_linear(t, x, fsdp_use_group(t, ((grouped_net *)self)->first), NULL);
}

static fsdp_module *grouped(void)
{
    static const fsdp_module_class grouped_class = {.type = "grouped", .forward = grouped_forward};
    grouped_net *g = fsdp_module_new(&grouped_class, sizeof *g);
    fsdp_parameter *members[] = {
        fsdp_module_parameter(g, "q", 2, (int64_t[]){2, COLUMNS}, FSDP_INIT_NORMAL, 1),
        fsdp_module_parameter(g, "k", 2, (int64_t[]){1, COLUMNS}, FSDP_INIT_UNIFORM, 1),
    };
    fsdp_parameter_group(members, 2);
    g->first = members[0];
    return &g->base;
}

/* ---- Losses ---- */

static fsdp_loss loss_cross_entropy(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_cross_entropy(t, p, ints(t, labels, 1, ROWS, 0), FSDP_IGNORE);
}

static fsdp_loss loss_linear_cross_entropy(fsdp_tape *t, fsdp_tensor *p)
{
    return fsdp_linear_cross_entropy(t, p, p, ints(t, labels, 1, ROWS, 0), FSDP_IGNORE);
}

static const op_case cases[] = {
    CASE(silu),
    CASE(gelu),
    CASE(gelu_tanh),
    CASE(relu_of),
    CASE(swiglu),
    CASE(geglu_tanh),
    CASE(add),
    CASE(sum),
    CASE(mean),
    CASE(transpose),
    CASE(all_gather),
    CASE(linear_of),
    CASE(linear_add),
    CASE(linear_input_major),
    CASE(embedding_of),
    CASE(rmsnorm_of),
    CASE(rmsnorm_plus_one_of),
    CASE(layernorm_of),
    CASE(group_norm_of),
    CASE(conv1d_of),
    CASE(conv2d_of),
    CASE(conv2d_grouped_of),
    CASE(max_pool2d_of),
    CASE(avg_pool2d_of),
    CASE(rope),
    CASE(rope_at),
    CASE(attention),
    CASE(attention_of_documents),
    CASE(attention_with_buckets),
    CASE(region),
    LAYER(linear),
    LAYER(rmsnorm),
    LAYER(rmsnorm_plus_one),
    LAYER(layernorm),
    LAYER(embedding),
    LAYER(stack),
    LAYER(pools),
    LAYER(grouped),
    LOSS(cross_entropy),
    LOSS(linear_cross_entropy),
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
