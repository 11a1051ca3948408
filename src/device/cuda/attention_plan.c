/* Finds, compiles, keeps and runs cuDNN plans for attention. A plan takes up to a second to compile and milliseconds to
 * load, so with a plan folder each is also kept there as JSON. The graphs are in attention_graph.c. */
#include "device/cuda/attention_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

#ifdef CUDA_HAS_CUDNN

#define KEY_CHARS 256

/* Engines for the accumulating form need little memory of their own; the deterministic one keeps all scores of the
 * sequences it works on, so it gets the batch in steps of about this much. */
#define ENGINE_LIMIT ((int64_t)256 << 20)
#define SCORES_LIMIT ((int64_t)512 << 20)

struct attention_plan {
    attention_plan *next;
    char key[KEY_CHARS];
    attention_shape shape;         /* its batch is the number of sequences a run works on */
    cudnnBackendDescriptor_t plan; /* NULL: cuDNN has no engine for it */
    size_t engine_bytes, row_sums_bytes, d_q_bytes;
};

struct attention_plans {
    pthread_mutex_t mutex;
    attention_plan *first;
    char *folder;
};

fsdp_status attention_plans_create(attention_plans **out)
{
    attention_plans *plans = calloc(1, sizeof *plans);
    if (!plans)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for attention plans");
    pthread_mutex_init(&plans->mutex, NULL);
    *out = plans;
    return FSDP_OK;
}

void attention_plans_free(cuda_device *d, attention_plans *plans)
{
    if (!plans)
        return;
    while (plans->first) {
        attention_plan *next = plans->first->next;
        if (plans->first->plan)
            d->libraries.cudnn.cudnnBackendDestroyDescriptor(plans->first->plan);
        free(plans->first);
        plans->first = next;
    }
    pthread_mutex_destroy(&plans->mutex);
    free(plans->folder);
    free(plans);
}

fsdp_status cuda_set_plan_folder(device *base, const char *folder)
{
    attention_plans *plans = ((cuda_device *)base)->plans;
    char *copy = NULL;
    if (folder) {
        FSDP_TRY(file_make_directories(folder));
        copy = strdup(folder);
        if (!copy)
            return error_set(FSDP_ERR_MEMORY, "out of host memory");
    }
    pthread_mutex_lock(&plans->mutex);
    free(plans->folder);
    plans->folder = copy;
    pthread_mutex_unlock(&plans->mutex);
    return FSDP_OK;
}

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
    if (a->causal && a->q_length != a->kv_length)
        return false;
    int64_t widest = d->compute_capability == 90 ? 256 : 128;
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

static void make_key(const cuda_device *d, const attention_shape *s, char key[KEY_CHARS])
{
    snprintf(key, KEY_CHARS, "cudnn %zu %s %s %s%s%s %lldx%lld,%lld heads %lld,%lld of %lld rows %lld,%lld,%lld",
             d->libraries.cudnn_version, d->gpu, s->backward ? "backward" : "forward", fsdp_dtype_name(s->dtype),
             s->causal ? " causal" : "", s->deterministic ? " deterministic" : "", (long long)s->batch,
             (long long)s->q_length, (long long)s->kv_length, (long long)s->q_heads, (long long)s->kv_heads,
             (long long)s->head_dim, (long long)s->q_row, (long long)s->k_row, (long long)s->v_row);
}

static char *plan_path(const attention_plans *plans, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, "attention-%016llx.json", (unsigned long long)hash_text(HASH_START, key));
    return plans->folder ? file_join(plans->folder, name) : NULL;
}

/* NULL when there is no file or cuDNN does not take it: it is then compiled anew. */
static cudnnBackendDescriptor_t load_plan(const graph_target *target, const char *path)
{
    char *json = NULL;
    size_t bytes = 0;
    cudnnBackendDescriptor_t plan = NULL;
    if (!path || !file_exists(path) || file_read(path, &json, &bytes) != FSDP_OK)
        return NULL;
    if (graph_plan_from_json(target, json, &plan) != FSDP_OK)
        log_write(LOG_WARNING, "%s: not usable (%s); compiling again", path, fsdp_last_error());
    free(json);
    return plan;
}

static void save_plan(const cudnn_api *api, cudnnBackendDescriptor_t plan, const char *path)
{
    char *json = NULL;
    if (!path)
        return;
    if (graph_plan_to_json(api, plan, &json) != FSDP_OK || file_write_atomic(path, json, strlen(json)) != FSDP_OK)
        log_write(LOG_WARNING, "attention plan not kept: %s", fsdp_last_error());
    free(json);
}

static fsdp_status compile_plan(const graph_target *target, attention_plan *plan)
{
    graph_builder *b = malloc(sizeof *b);
    if (!b)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for an attention graph");
    const attention_shape *s = &plan->shape;
    int64_t limit = ENGINE_LIMIT;
    if (s->deterministic) /* with room for a second copy: engines pad as they like */
        limit += 2 * scores_bytes(s->batch, s->q_heads, s->q_length, s->kv_length);
    graph_start(b, target);
    attention_graph_build(b, s);
    fsdp_status status = graph_plan(b, limit, &plan->plan);
    graph_discard(b);
    free(b);
    return status;
}

/* Fills in plan->plan, or leaves it NULL when cuDNN has nothing for the shape. */
static fsdp_status prepare_plan(cuda_device *d, attention_plan *plan)
{
    graph_target target = {.api = &d->libraries.cudnn};
    FSDP_TRY(libraries_cudnn_handle(&d->libraries, &target.handle));
    char *path = plan_path(d->plans, plan->key);
    plan->plan = load_plan(&target, path);
    if (!plan->plan) {
        if (compile_plan(&target, plan) == FSDP_OK)
            save_plan(target.api, plan->plan, path);
        else
            log_write(LOG_INFO, "%s: %s; the own kernel is used", plan->key, fsdp_last_error());
    }
    free(path);
    if (!plan->plan)
        return FSDP_OK;
    int64_t bytes = 0;
    FSDP_TRY(graph_plan_workspace(target.api, plan->plan, &bytes));
    const attention_shape *s = &plan->shape;
    size_t rows = (size_t)(s->batch * s->q_heads * s->q_length);
    plan->engine_bytes = round_up((size_t)bytes, 256);
    if (s->backward)
        plan->row_sums_bytes = round_up(rows * sizeof(float), 256);
    if (s->backward && !s->deterministic)
        plan->d_q_bytes = round_up(rows * (size_t)s->head_dim * sizeof(float), 256);
    return FSDP_OK;
}

fsdp_status attention_plan_find(cuda_device *d, const attention_args *a, bool backward, const attention_plan **out)
{
    *out = NULL;
    if (!is_served(d, a, backward))
        return FSDP_OK;
    attention_shape shape = make_shape(a, backward);
    char key[KEY_CHARS];
    make_key(d, &shape, key);
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&d->plans->mutex);
    attention_plan *plan = d->plans->first;
    while (plan && strcmp(plan->key, key) != 0)
        plan = plan->next;
    if (!plan) {
        plan = calloc(1, sizeof *plan);
        status = plan ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of host memory for an attention plan");
        if (plan) {
            snprintf(plan->key, sizeof plan->key, "%s", key);
            plan->shape = shape;
            plan->next = d->plans->first;
            d->plans->first = plan;
            status = prepare_plan(d, plan);
        }
    }
    if (status == FSDP_OK && plan->plan)
        *out = plan;
    pthread_mutex_unlock(&d->plans->mutex);
    return status;
}

size_t attention_plan_workspace(const attention_plan *plan)
{
    return plan->engine_bytes + plan->row_sums_bytes + plan->d_q_bytes;
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
    graph_target target = {.api = &s->device->libraries.cudnn, .handle = s->device->libraries.cudnn_handle};
    return graph_execute(&target, plan->plan, n, uids, pointers, workspace);
}

fsdp_status attention_plan_run(stream *s, const attention_plan *plan, const attention_args *a)
{
    cuda_device *d = s->device;
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&d->plans->mutex); /* the handle has one stream at a time */
    cudnnStatus_t set = d->libraries.cudnn.cudnnSetStream(d->libraries.cudnn_handle, s->launch.stream);
    if (set != CUDNN_STATUS_SUCCESS)
        status = error_set(FSDP_ERR_DEVICE, "cuDNN refused a stream: %s", d->libraries.cudnn.cudnnGetErrorString(set));
    for (int64_t first = 0; status == FSDP_OK && first < a->batch; first += plan->shape.batch)
        status = run_sequences(s, plan, a, first);
    pthread_mutex_unlock(&d->plans->mutex);
    return status;
}

#else /* built without cuDNN: the own kernel serves everything */

fsdp_status attention_plans_create(attention_plans **out)
{
    *out = NULL;
    return FSDP_OK;
}

void attention_plans_free(cuda_device *d, attention_plans *plans)
{
    (void)d;
    (void)plans;
}

fsdp_status cuda_set_plan_folder(device *base, const char *folder)
{
    (void)base;
    (void)folder;
    return FSDP_OK;
}

fsdp_status attention_plan_find(cuda_device *d, const attention_args *a, bool backward, const attention_plan **out)
{
    (void)d;
    (void)a;
    (void)backward;
    *out = NULL;
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
