/* Attention by cuDNN: what its engines take, the plan for it and its memory. The graphs are in attention_graph.c, the
 * plans are kept by cudnn_plans.c. */
#include "device/cuda/cudnn/attention_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

#ifdef CUDA_HAS_CUDNN

/* Engines for the accumulating form need little memory of their own; the deterministic one keeps all scores of the
 * sequences it works on, so it gets the batch in steps of about this much. */
#define ENGINE_LIMIT ((int64_t)256 << 20)
#define SCORES_LIMIT ((int64_t)512 << 20)

/* What cuDNN's engines take at all; the rest is for the own kernel. */
static bool is_served(const cuda_device *d, const attention_args *a, bool backward)
{
    if (!d->cudnn || d->libraries.cudnn_version < 91100)
        return false;
    fsdp_dtype type = a->q.dtype;
    if ((type != FSDP_BF16 && type != FSDP_F16) || a->k.dtype != type || a->v.dtype != type || a->out.dtype != type)
        return false;
    if (a->bias.p || a->key_mask || a->q_length < 2 || a->kv_length < 2 || a->batch < 1)
        return false;
    if ((a->causal && a->q_length != a->kv_length) || a->window > 0)
        return false;
    int64_t widest = d->gpu.compute_capability == 90 ? 256 : 128;
    if (a->head_dim % 8 != 0 || a->head_dim > widest || (a->q_row | a->k_row | a->v_row) % 8 != 0)
        return false;
    /* Before 9.16 keys past the end of an uneven tile were read. */
    if (a->kv_length % 128 != 0 && d->libraries.cudnn_version < 91600)
        return false;
    if (!backward)
        return true;
    if (a->d_out.dtype != type || a->d_q.dtype != type || a->d_k.dtype != type || a->d_v.dtype != type)
        return false;
    return !a->add_q && !a->add_k && !a->add_v && !a->d_bias;
}

/* Bytes of the scores of `batch` sequences, which the deterministic form keeps. */
static int64_t scores_bytes(int64_t batch, int64_t q_heads, int64_t q_length, int64_t kv_length)
{
    return batch * q_heads * (int64_t)round_up((size_t)q_length, 64) * (int64_t)round_up((size_t)kv_length, 64) * 2;
}

/* Sequences a run of the deterministic form works on: a divisor of the batch, so that one plan serves all. */
static int64_t sequences_at_once(const attention_args *a)
{
    int64_t one = max_i64(1, scores_bytes(1, a->q_heads, a->q_length, a->kv_length));
    int64_t step = min_i64(max_i64(1, SCORES_LIMIT / one), a->batch);
    while (a->batch % step != 0)
        step--;
    return step;
}

static attention_shape make_shape(const attention_args *a, bool backward)
{
    attention_shape s = {
        .batch = a->batch,
        .q_length = a->q_length,
        .kv_length = a->kv_length,
        .q_heads = a->q_heads,
        .kv_heads = a->kv_heads,
        .head_dim = a->head_dim,
        .q_row = a->q_row,
        .k_row = a->k_row,
        .v_row = a->v_row,
        .dtype = a->q.dtype,
        .causal = a->causal,
        .backward = backward,
        .deterministic = backward && a->deterministic,
    };
    if (s.deterministic)
        s.batch = sequences_at_once(a);
    return s;
}

static void make_key(const attention_shape *s, char key[PLAN_KEY_CHARS])
{
    snprintf(key, PLAN_KEY_CHARS, "%s %s%s%s %lldx%lld,%lld heads %lld,%lld of %lld rows %lld,%lld,%lld",
             s->backward ? "backward" : "forward", fsdp_dtype_name(s->dtype), s->causal ? " causal" : "",
             s->deterministic ? " deterministic" : "", (long long)s->batch, (long long)s->q_length,
             (long long)s->kv_length, (long long)s->q_heads, (long long)s->kv_heads, (long long)s->head_dim,
             (long long)s->q_row, (long long)s->k_row, (long long)s->v_row);
}

static void build_graph(graph_builder *b, const void *shape)
{
    attention_graph_build(b, shape);
}

fsdp_status attention_plan_find(cuda_device *d, const attention_args *a, bool backward, attention_plan *out)
{
    memset(out, 0, sizeof *out);
    if (!is_served(d, a, backward))
        return FSDP_OK;
    attention_shape *s = &out->shape;
    *s = make_shape(a, backward);
    char key[PLAN_KEY_CHARS];
    make_key(s, key);
    plan_request request = {
        .kind = "attention", .key = key, .build = build_graph, .shape = s, .choice = {.workspace_limit = ENGINE_LIMIT}};
    if (s->deterministic) /* with room for a second copy: engines pad as they like */
        request.choice.workspace_limit += 2 * scores_bytes(s->batch, s->q_heads, s->q_length, s->kv_length);
    FSDP_TRY(cudnn_plans_find(d, &request, &out->plan));
    size_t rows = (size_t)(s->batch * s->q_heads * s->q_length);
    out->engine_bytes = cudnn_plan_workspace(out->plan);
    if (backward)
        out->row_sums_bytes = round_up(rows * sizeof(float), 256);
    if (backward && !s->deterministic)
        out->d_q_bytes = round_up(rows * (size_t)s->head_dim * sizeof(float), 256);
    return FSDP_OK;
}

size_t attention_plan_workspace(const attention_plan *plan)
{
    return plan->plan ? plan->engine_bytes + plan->row_sums_bytes + plan->d_q_bytes : 0;
}

static void *offset(buffer b, int64_t elements)
{
    return b.p ? (char *)b.p + elements * (int64_t)fsdp_dtype_size(b.dtype) : NULL;
}

/* Sequences first .. first + shape.batch - 1. */
static fsdp_status run_sequences(stream *s, const attention_plan *plan, const attention_args *a, int64_t first)
{
    const attention_shape *shape = &plan->shape;
    float scale = a->scale, minus_infinity = -INFINITY, one = 1.0f; /* passed by value: read during the call */
    int64_t width = a->q_heads * a->head_dim, q_at = first * a->q_length * a->q_row,
            k_at = first * a->kv_length * a->k_row;
    int64_t v_at = first * a->kv_length * a->v_row, out_at = first * a->q_length * width;
    char *workspace = a->workspace;
    char *row_sums = workspace + plan->engine_bytes, *d_q_sums = row_sums + plan->row_sums_bytes;
    struct {
        int64_t uid;
        void *p;
        bool backward_only;
    } all[] = {
        {UID_Q, offset(a->q, q_at), false},
        {UID_K, offset(a->k, k_at), false},
        {UID_V, offset(a->v, v_at), false},
        {UID_OUT, offset(a->out, out_at), false},
        {UID_LSE, a->lse + first * a->q_heads * a->q_length, false},
        {UID_SCALE, &scale, false},
        {UID_MINUS_INFINITY, shape->causal ? &minus_infinity : NULL, false},
        {UID_ONE, &one, true},
        {UID_D_OUT, offset(a->d_out, out_at), true},
        {UID_D_Q, offset(a->d_q, q_at), true},
        {UID_D_K, offset(a->d_k, k_at), true},
        {UID_D_V, offset(a->d_v, v_at), true},
        {UID_ROW_SUMS, row_sums, true},
        {UID_D_Q_SUMS, shape->deterministic ? NULL : d_q_sums, true},
    };
    int64_t uids[sizeof all / sizeof *all];
    void *pointers[sizeof all / sizeof *all];
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].p && (shape->backward || !all[i].backward_only)) {
            uids[n] = all[i].uid;
            pointers[n++] = all[i].p;
        }
    return cudnn_plan_run(s, plan->plan, n, uids, pointers, workspace);
}

fsdp_status attention_plan_run(stream *s, const attention_plan *plan, const attention_args *a)
{
    for (int64_t first = 0; first < a->batch; first += plan->shape.batch)
        FSDP_TRY(run_sequences(s, plan, a, first));
    return FSDP_OK;
}

#else /* built without cuDNN: the own kernel serves everything */

fsdp_status attention_plan_find(cuda_device *d, const attention_args *a, bool backward, attention_plan *out)
{
    (void)d;
    (void)a;
    (void)backward;
    memset(out, 0, sizeof *out);
    return FSDP_OK;
}

size_t attention_plan_workspace(const attention_plan *plan)
{
    (void)plan;
    return 0;
}

fsdp_status attention_plan_run(stream *s, const attention_plan *plan, const attention_args *a)
{
    (void)s;
    (void)plan;
    (void)a;
    return error_set(FSDP_ERR_STATE, "no attention plan without cuDNN");
}

#endif
