/* Lists of tensors and slices: parameters and moments from the model's pieces, persistent buffers from rank 0. */
#include "state/model_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/float_bits.h"
#include "ckpt/load/names.h"
#include "shard/offload/offload.h"

enum { MOST_ROLES = 4 }; /* of a parameter, besides its own */

struct model_state {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    model_view view;
    ckpt_tensor *tensors;
    ckpt_slice *slices;
    model_slice *pieces;
    ckpt_state state;
    uint16_t *halves; /* (HALVES): 16-bit moments on their way between device and fp32; NULL: there are none */
    bool on_host;     /* slices are plain memory */
};

enum { HALVES = 1 << 18 };

static ckpt_tensor *add_tensor(model_state *s, const char *name, ckpt_role role, int n_dims, const int64_t *shape)
{
    ckpt_tensor *t = &s->tensors[s->state.n_tensors++];
    *t = (ckpt_tensor){.name = name, .role = role, .n_dims = n_dims};
    memcpy(t->shape, shape, (size_t)n_dims * sizeof shape[0]);
    return t;
}

static ckpt_slice *add_slice(model_state *s, int tensor, int64_t first, int64_t count, float *memory, bool on_host)
{
    ckpt_slice *slice = &s->slices[s->state.n_slices++];
    *slice = (ckpt_slice){
        .tensor = tensor, .first = first, .count = count, .data = on_host ? memory : NULL, .handle = memory};
    return slice;
}

/* What is added to the parameter as it is read; NULL: nothing. */
static const adapter_pair *pair_for(const model_state *s, const fsdp_parameter *p)
{
    return s->view.merged && p->lora.b ? adapter_find(s->view.merged, p->name) : NULL;
}

static bool is_left_out(const model_state *s, const fsdp_parameter *p)
{
    return p->adapter ? s->view.without_adapters : s->view.without_base;
}

bool model_state_has_base(const fsdp_model *m)
{
    bool adapted = false;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        adapted |= m->contents.parameters[i]->adapter;
        if (m->contents.parameters[i]->trainable && !m->contents.parameters[i]->adapter)
            return false;
    }
    return adapted;
}

/* A slice of moments or of an average, which lie at `memory`. Those of 16 bits are reached through read and write
 * wherever they are. */
static void add_moment(model_state *s, int tensor, const model_slice *p, void *memory, bool on_host)
{
    add_slice(s, tensor, p->first, p->n, memory, on_host && s->tensors[tensor].dtype == FSDP_F32);
}

static const fsdp_optimizer_config *optimizer_of(const model_state *s, const fsdp_parameter *p)
{
    return s->optimizer && p->trainable ? &s->optimizer->config : NULL;
}

/* Which of a parameter's tensors there are, in the order in which they are listed after it. */
static int roles_of(const model_state *s, const fsdp_parameter *p, ckpt_role *roles)
{
    const fsdp_optimizer_config *c = optimizer_of(s, p);
    int n = 0;
    if (c && update_has_first(c))
        roles[n++] = CKPT_MOMENT1;
    if (c && update_has_second(c->kind, p))
        roles[n++] = CKPT_MOMENT2;
    if (c && c->average > 0)
        roles[n++] = CKPT_AVERAGE;
    if (c && update_is_factored(c->kind, p)) {
        roles[n++] = CKPT_ROWS;
        roles[n++] = CKPT_COLUMNS;
    }
    return n;
}

/* Where the elements of a slice lie; NULL: those are no part of a shard. */
static void *place_of(const model_state *s, const model_slice *p, ckpt_role role)
{
    const update *u = s->optimizer->update;
    const update_range *r = update_range_at(u, p->range);
    if (role == CKPT_MOMENT2)
        return update_moment2_at(u, p->range, p->at);
    if (role == CKPT_MOMENT1)
        return (uint8_t *)r->moment1 + (size_t)p->at * fsdp_dtype_size(s->optimizer->config.state_dtype);
    return role == CKPT_AVERAGE ? r->average + p->at : NULL;
}

/* A parameter's masters and its moments. */
static void list_piece(model_state *s, int tensor, model_slice *p)
{
    bool on_host = s->on_host || p->segment->host_copy;
    float *master = p->segment->master && !pair_for(s, p->parameter) ? p->segment->master + p->at : NULL;
    ckpt_role roles[MOST_ROLES];
    int first = s->state.n_slices, n = p->range >= 0 ? roles_of(s, p->parameter, roles) : 0;
    add_slice(s, tensor, p->first, p->n, master, on_host)->handle = p;
    for (int i = 0; i < n; i++) {
        void *place = place_of(s, p, roles[i]);
        if (place)
            add_moment(s, tensor + 1 + i, p, place, on_host);
    }
    for (int i = first; i < s->state.n_slices; i++)
        s->slices[i].writes = p->writes;
}

static bool is_parameter(const model_state *s, const ckpt_slice *slice)
{
    return s->tensors[slice->tensor].role == CKPT_PARAMETER;
}

static bool is_half(const model_state *s, const ckpt_slice *slice)
{
    return s->tensors[slice->tensor].dtype == FSDP_BF16;
}

static fsdp_status fetch_halves(model_state *s, const uint16_t *from, int64_t n, float *out)
{
    for (int64_t done = 0, now; done < n; done += now) {
        now = min_i64(HALVES, n - done);
        FSDP_TRY(model_fetch(s->model, s->halves, from + done, (size_t)now * sizeof *from));
        for (int64_t i = 0; i < now; i++)
            out[done + i] = float_bits_from_bf16(s->halves[i]);
    }
    return FSDP_OK;
}

static fsdp_status put_halves(model_state *s, uint16_t *to, int64_t n, const float *in)
{
    for (int64_t done = 0, now; done < n; done += now) {
        now = min_i64(HALVES, n - done);
        for (int64_t i = 0; i < now; i++)
            s->halves[i] = float_bits_to_bf16(in[done + i]);
        FSDP_TRY(model_put(s->model, to + done, s->halves, (size_t)now * sizeof *to));
    }
    return FSDP_OK;
}

/* Where the file has what the model keeps in fewer bits; NULL: read what is kept. */
static const source_tensor *original_of(const model_state *s, const model_slice *p)
{
    const ckpt_source *base = s->view.base;
    bool tied = !module_find_parameter(&s->model->contents, "lm_head.weight");
    if (!base || p->segment->layout->trainable || p->segment->master)
        return NULL;
    const source_tensor *t =
        source_find(base, CKPT_PARAMETER, names_find(base, CKPT_PARAMETER, tied, p->parameter->name));
    return t && t->numel == p->parameter->numel ? t : NULL;
}

static fsdp_status fetch(void *context, const ckpt_slice *slice, int64_t first, int64_t n, float *out)
{
    model_state *s = context;
    if (is_parameter(s, slice)) {
        const model_slice *p = slice->handle;
        const adapter_pair *pair = pair_for(s, p->parameter);
        const source_tensor *original = original_of(s, p);
        FSDP_TRY(original ? source_read(original, p->first + first, n, out)
                          : model_read_slice(s->model, p, first, n, out));
        return pair ? adapter_add_product(s->view.merged, pair, p->parameter->shape, p->first + first, n, out)
                    : FSDP_OK;
    }
    if (is_half(s, slice))
        return fetch_halves(s, (const uint16_t *)slice->handle + first, n, out);
    return model_fetch(s->model, out, (float *)slice->handle + first, (size_t)n * sizeof(float));
}

static fsdp_status put(void *context, const ckpt_slice *slice, int64_t first, int64_t n, const float *in)
{
    model_state *s = context;
    if (is_parameter(s, slice))
        return model_write_slice(s->model, slice->handle, first, n, in);
    if (is_half(s, slice))
        return put_halves(s, (uint16_t *)slice->handle + first, n, in);
    return model_put(s->model, (float *)slice->handle + first, in, (size_t)n * sizeof(float));
}

/* Means of rows lack the last dimension, means of columns the one before it. */
static void add_state(model_state *s, const fsdp_parameter *p, ckpt_role role)
{
    bool mean = role == CKPT_ROWS || role == CKPT_COLUMNS;
    ckpt_tensor *t = add_tensor(s, p->name, role, p->n_dims, p->shape);
    if (role == CKPT_MOMENT1 || role == CKPT_MOMENT2)
        t->dtype = s->optimizer->config.state_dtype;
    if (mean)
        t->n_dims--;
    if (role == CKPT_COLUMNS)
        t->shape[t->n_dims - 1] = p->shape[p->n_dims - 1];
}

/* Every rank has all of them; rank 0 writes them, as it does buffers. */
static void list_means(model_state *s, int tensor, bool writes)
{
    const ckpt_tensor *t = &s->tensors[tensor];
    float *means = adafactor_means(s->optimizer->adafactor, t->name, t->role == CKPT_ROWS);
    add_slice(s, tensor, 0, ckpt_tensor_numel(t), means, s->on_host)->writes = writes;
}

/* Tensors in the order parameter i, then its moments: index of a parameter's first is kept in `at`. */
static void list_tensors(model_state *s, int *at)
{
    const module_contents *c = &s->model->contents;
    bool has_base = s->view.all_base || model_state_has_base(s->model);
    for (int i = 0; i < c->n_parameters; i++) {
        const fsdp_parameter *p = c->parameters[i];
        at[i] = s->state.n_tensors;
        if (is_left_out(s, p))
            continue;
        add_tensor(s, p->name, CKPT_PARAMETER, p->n_dims, p->shape)->base = has_base && !p->adapter;
        ckpt_role roles[MOST_ROLES];
        int n = roles_of(s, p, roles);
        for (int k = 0; k < n; k++)
            add_state(s, p, roles[k]);
    }
    for (int i = 0; i < c->n_buffers; i++) {
        if (c->buffers[i]->persistent)
            add_tensor(s, c->buffers[i]->name, CKPT_BUFFER, c->buffers[i]->n_dims, c->buffers[i]->shape);
    }
}

static void list_slices(model_state *s, const int *at)
{
    fsdp_model *m = s->model;
    int n = model_slices(m);
    for (int i = 0; i < n; i++) {
        s->pieces[i] = model_slice_at(m, i);
        if (!is_left_out(s, s->pieces[i].parameter))
            list_piece(s, at[s->pieces[i].parameter->index], &s->pieces[i]);
    }
    bool first_rank = comm_rank(m->world->comm) == 0;
    for (int i = 0; i < s->state.n_tensors; i++) {
        const ckpt_tensor *t = &s->tensors[i];
        if (t->role == CKPT_ROWS || t->role == CKPT_COLUMNS)
            list_means(s, i, first_rank);
        if (t->role != CKPT_BUFFER)
            continue;
        fsdp_buffer *b = module_find_buffer(&m->contents, t->name);
        add_slice(s, i, 0, b->numel, b->data, s->on_host)->writes = first_rank;
    }
}

fsdp_status model_state_create(fsdp_model *m, fsdp_optimizer *o, const model_view *view, model_state **out)
{
    size_t most = (size_t)m->contents.n_parameters * (1 + MOST_ROLES) + (size_t)m->contents.n_buffers;
    size_t most_slices = (size_t)model_slices(m) * (1 + MOST_ROLES) + (size_t)m->contents.n_parameters * 2 +
                         (size_t)m->contents.n_buffers;
    model_state *s = calloc(1, sizeof *s);
    int *at = calloc((size_t)m->contents.n_parameters + 1, sizeof *at);
    if (s) {
        s->tensors = calloc(most + 1, sizeof *s->tensors);
        s->slices = calloc(most_slices + 1, sizeof *s->slices);
        s->pieces = calloc((size_t)model_slices(m) + 1, sizeof *s->pieces);
        s->halves = o && update_halves(&o->config) > 0 ? malloc(HALVES * sizeof *s->halves) : NULL;
    }
    if (!s || !at || !s->tensors || !s->slices || !s->pieces || (o && update_halves(&o->config) > 0 && !s->halves)) {
        free(at);
        model_state_free(s);
        return error_set(FSDP_ERR_MEMORY, "listing the state of a model: out of host memory");
    }
    s->model = m;
    s->optimizer = o;
    s->view = view ? *view : (model_view){.merged = NULL};
    s->on_host = !m->dev->own_memory;
    s->state = (ckpt_state)CKPT_STATE_INIT;
    list_tensors(s, at);
    list_slices(s, at);
    free(at);
    s->state.tensors = s->tensors;
    s->state.slices = s->slices;
    s->state.read = fetch;
    s->state.write = put;
    s->state.context = s;
    *out = s;
    return FSDP_OK;
}

void model_state_free(model_state *s)
{
    if (!s)
        return;
    free(s->tensors);
    free(s->slices);
    free(s->pieces);
    free(s->halves);
    free(s);
}

ckpt_state *model_state_describe(model_state *s)
{
    return &s->state;
}

/* How many ranks in a row hold different slices of a unit, before they repeat. */
static int period_of(const fsdp_model *m, int index)
{
    if (m->policies[index].ignored)
        return m->n_ranks; /* they may differ */
    return m->shardings[index].whole ? 1 : m->shardings[index].n_shards;
}

static int common_multiple(int a, int b)
{
    int multiple = a;
    while (multiple % b != 0)
        multiple += a;
    return multiple;
}

int model_state_replica(const model_state *s)
{
    const fsdp_model *m = s->model;
    int period = 1, n_replicated = 0;
    for (int i = 0; i < m->n_policies; i++) {
        if (period_of(m, i) == m->n_ranks)
            continue;
        period = common_multiple(period, period_of(m, i));
        n_replicated++;
    }
    return n_replicated > 0 && period < m->n_ranks ? m->rank % period : -1;
}

bool model_state_is_replicated(const model_state *s, const ckpt_slice *slice)
{
    const fsdp_parameter *p = module_find_parameter(&s->model->contents, s->tensors[slice->tensor].name);
    return p && period_of(s->model, p->unit) < s->model->n_ranks;
}

fsdp_status model_state_settle(model_state *s)
{
    return offload_settle(s->model);
}

fsdp_status model_state_before_load(model_state *s)
{
    return model_before_writes(s->model);
}

fsdp_status model_state_loaded(model_state *s)
{
    return model_refresh_copies(s->model);
}
