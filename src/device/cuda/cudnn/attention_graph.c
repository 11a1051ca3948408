/* Attention as graphs of elementary operations. cuDNN's engines know attention by its pattern, so the order and the
 * kinds of operations here are given; only types and strides are ours. Shapes: (batch, heads, length, head_dim). */
#include "device/cuda/cudnn/attention_graph.h"

#ifdef CUDA_HAS_CUDNN

typedef struct view {
    graph_builder *b;
    const attention_shape *s;
    cudnnDataType_t type;
} view;

static graph_layout rows_layout(int64_t batch, int64_t heads, int64_t length, int64_t head_dim, int64_t row)
{
    return (graph_layout){{batch, heads, length, head_dim}, {length * row, head_dim, row, 1}};
}

/* The same memory with the last two dimensions exchanged. */
static graph_layout transposed(graph_layout layout)
{
    graph_layout out = layout;
    out.size[2] = layout.size[3];
    out.size[3] = layout.size[2];
    out.stride[2] = layout.stride[3];
    out.stride[3] = layout.stride[2];
    return out;
}

static graph_layout packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    return (graph_layout){{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}

static graph_layout scores_layout(const attention_shape *s)
{
    return packed(s->batch, s->q_heads, s->q_length, s->kv_length);
}

static graph_layout statistics_layout(const attention_shape *s)
{
    return packed(s->batch, s->q_heads, s->q_length, 1);
}

static graph_tensor intermediate(const view *v, cudnnDataType_t type, graph_layout layout)
{
    return graph_add_tensor(v->b, 0, type, layout);
}

/* A new fp32 intermediate in the shape of `layout`: mode(first, second). */
static graph_tensor apply(const view *v, cudnnPointwiseMode_t mode, graph_tensor first, graph_tensor second,
                          graph_layout layout)
{
    graph_tensor out = intermediate(v, CUDNN_DATA_FLOAT, layout);
    graph_add_pointwise(v->b, mode, CUDNN_DATA_FLOAT, -1, first, second, NULL, out);
    return out;
}

/* scores where the key is not after the query, -inf elsewhere. */
static graph_tensor mask_future(const view *v, graph_tensor scores, graph_tensor minus_infinity)
{
    graph_layout layout = scores_layout(v->s);
    graph_tensor row = intermediate(v, CUDNN_DATA_INT32, layout), column = intermediate(v, CUDNN_DATA_INT32, layout);
    graph_tensor seen = intermediate(v, CUDNN_DATA_BOOLEAN, layout), out = intermediate(v, CUDNN_DATA_FLOAT, layout);
    graph_add_pointwise(v->b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2, scores, NULL, NULL, row);
    graph_add_pointwise(v->b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3, scores, NULL, NULL, column);
    graph_add_pointwise(v->b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, seen);
    graph_add_pointwise(v->b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, scores, minus_infinity, seen, out);
    return out;
}

static graph_tensor scaled_scores(const view *v, graph_tensor q, graph_tensor k_transposed, graph_tensor scale)
{
    graph_layout layout = scores_layout(v->s);
    graph_tensor products = intermediate(v, CUDNN_DATA_FLOAT, layout);
    graph_add_matmul(v->b, q, k_transposed, products);
    return apply(v, CUDNN_POINTWISE_MUL, products, scale, layout);
}

static void build_forward(const view *v)
{
    const attention_shape *s = v->s;
    graph_builder *b = v->b;
    graph_layout scores = scores_layout(s), statistics = statistics_layout(s);
    graph_layout keys = rows_layout(s->batch, s->kv_heads, s->kv_length, s->head_dim, s->k_row);
    graph_layout values = rows_layout(s->batch, s->kv_heads, s->kv_length, s->head_dim, s->v_row);
    graph_tensor q =
        graph_add_tensor(b, UID_Q, v->type, rows_layout(s->batch, s->q_heads, s->q_length, s->head_dim, s->q_row));
    graph_tensor k_transposed = graph_add_tensor(b, UID_K, v->type, transposed(keys));
    graph_tensor value = graph_add_tensor(b, UID_V, v->type, values);
    graph_tensor out = graph_add_tensor(
        b, UID_OUT, v->type, rows_layout(s->batch, s->q_heads, s->q_length, s->head_dim, s->q_heads * s->head_dim));
    graph_tensor lse = graph_add_tensor(b, UID_LSE, CUDNN_DATA_FLOAT, statistics);
    graph_tensor score = scaled_scores(v, q, k_transposed, graph_add_scalar(b, UID_SCALE));
    if (s->causal)
        score = mask_future(v, score, graph_add_scalar(b, UID_MINUS_INFINITY));
    graph_tensor maximum = intermediate(v, CUDNN_DATA_FLOAT, statistics);
    graph_tensor sum = intermediate(v, CUDNN_DATA_FLOAT, statistics);
    graph_tensor p = intermediate(v, v->type, scores);
    graph_add_reduction(b, CUDNN_REDUCE_TENSOR_MAX, false, score, maximum);
    graph_tensor shifted = apply(v, CUDNN_POINTWISE_SUB, score, maximum, scores);
    graph_tensor powers = apply(v, CUDNN_POINTWISE_EXP, shifted, NULL, scores);
    graph_add_reduction(b, CUDNN_REDUCE_TENSOR_ADD, false, powers, sum);
    graph_tensor log_sum = apply(v, CUDNN_POINTWISE_LOG, sum, NULL, statistics);
    graph_add_pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, -1, maximum, log_sum, NULL, lse);
    graph_add_pointwise(b, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, -1, powers, sum, NULL, p);
    graph_add_matmul(b, p, value, out);
}

/* Tensors that the backward graph uses more than once. */
typedef struct backward_inputs {
    graph_tensor q, k_transposed, v_transposed, d_out, scale;
    graph_layout keys; /* k as stored */
} backward_inputs;

static backward_inputs add_backward_inputs(const view *v)
{
    const attention_shape *s = v->s;
    graph_layout keys = rows_layout(s->batch, s->kv_heads, s->kv_length, s->head_dim, s->k_row);
    graph_layout values = rows_layout(s->batch, s->kv_heads, s->kv_length, s->head_dim, s->v_row);
    return (backward_inputs){
        .q = graph_add_tensor(v->b, UID_Q, v->type,
                              rows_layout(s->batch, s->q_heads, s->q_length, s->head_dim, s->q_row)),
        .k_transposed = graph_add_tensor(v->b, UID_K, v->type, transposed(keys)),
        .v_transposed = graph_add_tensor(v->b, UID_V, v->type, transposed(values)),
        .d_out =
            graph_add_tensor(v->b, UID_D_OUT, v->type,
                             rows_layout(s->batch, s->q_heads, s->q_length, s->head_dim, s->q_heads * s->head_dim)),
        .scale = graph_add_scalar(v->b, UID_SCALE),
        .keys = keys,
    };
}

/* Rows of d_out * out summed, kept in memory: what softmax's gradient subtracts. */
static graph_tensor add_row_sums(const view *v, const backward_inputs *in)
{
    const attention_shape *s = v->s;
    graph_layout statistics = statistics_layout(s);
    graph_layout wide = rows_layout(s->batch, s->q_heads, s->q_length, s->head_dim, s->q_heads * s->head_dim);
    graph_tensor out = graph_add_tensor(v->b, UID_OUT, v->type, wide);
    graph_layout products = {
        {s->batch, s->q_heads, s->q_length, s->head_dim},
        {s->q_heads * s->q_length * s->head_dim, s->q_length * s->head_dim, s->q_heads * s->head_dim, 1}};
    graph_tensor product = apply(v, CUDNN_POINTWISE_MUL, in->d_out, out, products);
    graph_tensor sums = intermediate(v, CUDNN_DATA_FLOAT, statistics);
    graph_tensor kept = graph_add_tensor(v->b, UID_ROW_SUMS, CUDNN_DATA_FLOAT, statistics);
    graph_add_reduction(v->b, CUDNN_REDUCE_TENSOR_ADD, false, product, sums);
    graph_add_pointwise(v->b, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, -1, sums, graph_add_scalar(v->b, UID_ONE), NULL,
                        kept);
    return kept;
}

static graph_tensor add_softmax_again(const view *v, const backward_inputs *in)
{
    graph_layout scores = scores_layout(v->s);
    graph_tensor lse = graph_add_tensor(v->b, UID_LSE, CUDNN_DATA_FLOAT, statistics_layout(v->s));
    graph_tensor score = scaled_scores(v, in->q, in->k_transposed, in->scale);
    score = apply(v, CUDNN_POINTWISE_SUB, score, lse, scores);
    if (v->s->causal)
        score = mask_future(v, score, graph_add_scalar(v->b, UID_MINUS_INFINITY));
    return apply(v, CUDNN_POINTWISE_EXP, score, NULL, scores);
}

/* out = weights^T m, summed over the query heads that share a key head. */
static void add_key_gradient(const view *v, graph_tensor weights, graph_tensor m, int64_t uid, int64_t row)
{
    const attention_shape *s = v->s;
    graph_tensor turned = intermediate(v, v->type, transposed(scores_layout(s)));
    graph_add_reshape(v->b, weights, turned);
    graph_tensor out =
        graph_add_tensor(v->b, uid, v->type, rows_layout(s->batch, s->kv_heads, s->kv_length, s->head_dim, row));
    if (s->q_heads == s->kv_heads) {
        graph_add_matmul(v->b, turned, m, out);
        return;
    }
    graph_tensor every_head = intermediate(v, v->type, packed(s->batch, s->q_heads, s->kv_length, s->head_dim));
    graph_add_matmul(v->b, turned, m, every_head);
    graph_add_reduction(v->b, CUDNN_REDUCE_TENSOR_ADD, s->deterministic, every_head, out);
}

static void add_query_gradient(const view *v, const backward_inputs *in, graph_tensor d_scores)
{
    const attention_shape *s = v->s;
    graph_layout queries = rows_layout(s->batch, s->q_heads, s->q_length, s->head_dim, s->q_row);
    graph_tensor keys = intermediate(v, v->type, in->keys);
    graph_tensor d_q = graph_add_tensor(v->b, UID_D_Q, v->type, queries);
    graph_add_reshape(v->b, in->k_transposed, keys);
    if (s->deterministic) {
        graph_add_matmul(v->b, d_scores, keys, d_q);
        return;
    }
    graph_tensor sums =
        graph_add_tensor(v->b, UID_D_Q_SUMS, CUDNN_DATA_FLOAT, packed(s->batch, s->q_heads, s->q_length, s->head_dim));
    graph_add_matmul(v->b, d_scores, keys, sums);
    graph_add_pointwise(v->b, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, -1, sums, NULL, NULL, d_q);
}

static void build_backward(const view *v)
{
    graph_layout scores = scores_layout(v->s);
    backward_inputs in = add_backward_inputs(v);
    graph_tensor row_sums = add_row_sums(v, &in);
    graph_tensor p = add_softmax_again(v, &in);
    add_key_gradient(v, p, in.d_out, UID_D_V, v->s->v_row);
    graph_tensor d_p = intermediate(v, CUDNN_DATA_FLOAT, scores);
    graph_add_matmul(v->b, in.d_out, in.v_transposed, d_p);
    graph_tensor centred = apply(v, CUDNN_POINTWISE_SUB, d_p, row_sums, scores);
    graph_tensor weighted = apply(v, CUDNN_POINTWISE_MUL, centred, p, scores);
    graph_tensor d_scores = apply(v, CUDNN_POINTWISE_MUL, weighted, in.scale, scores);
    add_key_gradient(v, d_scores, in.q, UID_D_K, v->s->k_row);
    add_query_gradient(v, &in, d_scores);
}

void attention_graph_build(graph_builder *b, const attention_shape *shape)
{
    view v = {b, shape, shape->dtype == FSDP_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF};
    if (shape->backward)
        build_backward(&v);
    else
        build_forward(&v);
}

#endif
