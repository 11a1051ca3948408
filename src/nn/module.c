/* The module tree: construction, names, calls. Layers are in layers.c; memory of parameters is decided above. */
#include "nn/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/rng.h"
#include "tensor/tape.h"

void *fsdp_module_new(const fsdp_module_class *module_class, size_t bytes)
{
    if (bytes < sizeof(fsdp_module)) {
        error_set(FSDP_ERR_INPUT, "creating a %s of %zu bytes: a module alone takes %zu", module_class->type, bytes,
                  sizeof(fsdp_module));
        return NULL;
    }
    fsdp_module *m = calloc(1, bytes);
    if (!m) {
        error_set(FSDP_ERR_MEMORY, "creating a %s: out of host memory", module_class->type);
        return NULL;
    }
    m->module_class = module_class;
    m->name = "";
    return m;
}

static void free_buffer(fsdp_buffer *b)
{
    free((char *)b->name);
    free(b->initial);
    free(b);
}

void fsdp_module_free(fsdp_module *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_children; i++)
        fsdp_module_free(m->children[i]);
    for (int i = 0; i < m->n_parameters; i++) {
        free((char *)m->parameters[i]->name);
        free(m->parameters[i]);
    }
    for (int i = 0; i < m->n_buffers; i++)
        free_buffer(m->buffers[i]);
    if (m->module_class->destroy)
        m->module_class->destroy(m);
    if (m->parent)
        free((char *)m->name);
    free(m->children);
    free(m->parameters);
    free(m->buffers);
    free(m->broken_message);
    free(m->facts);
    free(m);
}

/* A ready-made model that something is added to, at any depth, is no longer what its facts say. */
static void forget_facts(fsdp_module *m)
{
    for (; m; m = m->parent) {
        free(m->facts);
        m->facts = NULL;
    }
}

static bool append(void **list, int *n, void *item)
{
    void **grown = realloc(*list, (size_t)(*n + 1) * sizeof *grown);
    if (!grown)
        return false;
    grown[(*n)++] = item;
    *list = grown;
    return true;
}

/* Keeps the first failure of a module, whose message is this thread's last: others may follow before it is asked for.
 */
static void break_module(fsdp_module *m, fsdp_status status)
{
    if (m->broken != FSDP_OK)
        return;
    m->broken = status;
    m->broken_message = strdup(fsdp_last_error());
}

/* Why `child` cannot become a child of p. */
static fsdp_status check_child(const fsdp_module *p, const char *name, const fsdp_module *c)
{
    if (!name)
        return error_set(FSDP_ERR_INPUT, "a child of a %s has no name", p->module_class->type);
    if (!c && error_last() != FSDP_OK)
        return error_prefix(error_last(), "%s of a %s: ", name, p->module_class->type);
    if (!c)
        return error_set(FSDP_ERR_INPUT, "%s of a %s is NULL", name, p->module_class->type);
    if (c->parent || c == p)
        return error_set(FSDP_ERR_INPUT, "%s of a %s is part of a tree already, as %s", name, p->module_class->type,
                         c->name);
    return FSDP_OK;
}

fsdp_module *fsdp_module_add(void *parent, const char *name, void *child)
{
    fsdp_module *p = parent, *c = child;
    if (!p) {
        fsdp_module_free(c);
        return NULL;
    }
    fsdp_status status = check_child(p, name, c);
    char *copy = status == FSDP_OK ? strdup(name) : NULL;
    if (status == FSDP_OK && (!copy || !append((void **)&p->children, &p->n_children, c)))
        status = error_set(FSDP_ERR_MEMORY, "%s of a %s: out of host memory", name, p->module_class->type);
    if (status != FSDP_OK) {
        break_module(p, status);
        free(copy);
        if (c && !c->parent && c != p)
            fsdp_module_free(c);
        return NULL;
    }
    c->name = copy;
    c->parent = p;
    forget_facts(p);
    return c;
}

fsdp_status fsdp_module_check(const fsdp_module *m)
{
    if (!m)
        return error_last() != FSDP_OK ? error_prefix(error_last(), "building a module tree: ")
                                       : error_set(FSDP_ERR_INPUT, "building a module tree: there is no module");
    if (m->broken != FSDP_OK) {
        error_set(m->broken, "%s", m->broken_message ? m->broken_message : "out of host memory");
        return error_prefix(m->broken, "building a module tree, type %s: ", m->module_class->type);
    }
    for (int i = 0; i < m->n_children; i++)
        FSDP_TRY(fsdp_module_check(m->children[i]));
    return FSDP_OK;
}

static bool fill_shape(int n_dims, const int64_t *shape, int64_t *copy, int64_t *numel)
{
    if (n_dims < 1 || n_dims > FSDP_MAX_DIMS)
        return false;
    *numel = 1;
    for (int i = 0; i < n_dims; i++) {
        copy[i] = shape[i];
        if (shape[i] < 1 || checked_mul_i64(*numel, shape[i], numel))
            return false;
    }
    return true;
}

/* "parameter weight of a linear: size -1: every size must be positive" */
static void break_by_shape(fsdp_module *m, const char *what, const char *name, int n_dims, const int64_t *shape)
{
    for (int i = 0; i < n_dims && n_dims <= FSDP_MAX_DIMS; i++) {
        if (shape[i] < 1) {
            break_module(m, error_set(FSDP_ERR_INPUT, "%s %s of a %s: size %lld: every size must be positive", what,
                                      name, m->module_class->type, (long long)shape[i]));
            return;
        }
    }
    break_module(m, error_set(FSDP_ERR_INPUT, "%s %s of a %s: 1 to %d dimensions, and fewer elements, are expected",
                              what, name, m->module_class->type, FSDP_MAX_DIMS));
}

fsdp_parameter *fsdp_module_parameter(void *module, const char *name, int n_dims, const int64_t *shape, fsdp_init init,
                                      float scale)
{
    fsdp_module *m = module;
    if (!m)
        return NULL;
    fsdp_parameter *p = calloc(1, sizeof *p);
    if (p && !fill_shape(n_dims, shape, p->shape, &p->numel)) {
        break_by_shape(m, "parameter", name, n_dims, shape);
        free(p);
        return NULL;
    }
    if (!p || !(p->name = strdup(name)) || !append((void **)&m->parameters, &m->n_parameters, p)) {
        if (p)
            free((char *)p->name);
        free(p);
        break_module(m, error_set(FSDP_ERR_MEMORY, "%s of a %s: out of host memory", name, m->module_class->type));
        return NULL;
    }
    forget_facts(m);
    p->n_dims = n_dims;
    p->dtype = p->grad_dtype = FSDP_F32;
    p->trainable = true;
    p->decay = n_dims >= 2;
    p->init = init;
    p->init_scale = scale;
    p->group_head = p;
    p->index = p->unit = -1;
    return p;
}

void fsdp_parameter_set_init(fsdp_parameter *p, fsdp_init init, float scale)
{
    if (!p)
        return;
    p->init = init;
    p->init_scale = scale;
}

void fsdp_parameter_group(fsdp_parameter *const *members, int n)
{
    for (int i = 0; i < n; i++) {
        if (!members[i])
            return;
    }
    for (int i = 0; i < n; i++) {
        members[i]->group_head = members[0];
        members[i]->group_next = i + 1 < n ? members[i + 1] : NULL;
    }
}

fsdp_buffer *fsdp_module_buffer(void *module, const char *name, int n_dims, const int64_t *shape, const float *values,
                                bool persistent)
{
    fsdp_module *m = module;
    if (!m)
        return NULL;
    fsdp_buffer *b = calloc(1, sizeof *b);
    if (b && !fill_shape(n_dims, shape, b->shape, &b->numel)) {
        break_by_shape(m, "buffer", name, n_dims, shape);
        free(b);
        return NULL;
    }
    if (!b || !(b->initial = calloc((size_t)b->numel, sizeof *b->initial)) || !(b->name = strdup(name)) ||
        !append((void **)&m->buffers, &m->n_buffers, b)) {
        if (b)
            free_buffer(b);
        break_module(m, error_set(FSDP_ERR_MEMORY, "%s of a %s: out of host memory", name, m->module_class->type));
        return NULL;
    }
    forget_facts(m);
    b->n_dims = n_dims;
    b->persistent = persistent;
    if (values)
        memcpy(b->initial, values, (size_t)b->numel * sizeof *values);
    return b;
}

fsdp_tensor *fsdp_use(fsdp_tape *t, fsdp_parameter *p)
{
    return p ? tape_parameter(t, p) : NULL;
}

fsdp_tensor *fsdp_use_group(fsdp_tape *t, fsdp_parameter *p)
{
    return p ? tape_parameter_group(t, p) : NULL;
}

fsdp_tensor *fsdp_use_buffer(fsdp_tape *t, fsdp_buffer *b)
{
    return b ? tape_buffer(t, FSDP_F32, b->n_dims, b->shape, b->data) : NULL;
}

/* The inputs as the module computes with them; NULL when the tape has failed. */
static fsdp_tensor *const *cast_inputs(const fsdp_module *m, fsdp_tape *t, fsdp_tensor *const *in, int n)
{
    if (!m->casts_inputs || n == 0)
        return in;
    fsdp_tensor **cast = arena_alloc(t->memory, (size_t)n * sizeof *cast);
    for (int i = 0; cast && i < n; i++)
        cast[i] = in[i] && in[i]->dtype <= FSDP_F16 ? fsdp_cast(t, in[i], m->input_dtype) : in[i];
    if (!cast)
        tape_refuse(t, "inputs of a %s: out of host memory", m->module_class->type);
    return tape_failed(t) ? NULL : cast;
}

void fsdp_call_list(fsdp_module *m, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out, int n_out)
{
    for (int i = 0; i < n_out; i++)
        out[i] = NULL;
    if (!m || tape_failed(t) || !(in = cast_inputs(m, t, in, n_in)))
        return;
    bool region = m->checkpoint && t->training && t->region < 0, selective = t->selective;
    if (region) {
        fsdp_checkpoint_begin(t);
        t->selective = m->marked == 0 ? selective : m->marked > 0;
    }
    if (m->module_class->forward_list)
        m->module_class->forward_list(m, t, in, n_in, out, n_out);
    else if (n_in == 1 && n_out == 1)
        out[0] = m->module_class->forward(m, t, in[0]);
    else
        tape_refuse(t, "%s takes one tensor and returns one, not %d and %d", m->module_class->type, n_in, n_out);
    if (region) {
        fsdp_checkpoint_end(t);
        t->selective = selective;
    }
}

fsdp_tensor *fsdp_call(fsdp_module *m, fsdp_tape *t, fsdp_tensor *x)
{
    fsdp_tensor *y = NULL;
    if (x)
        fsdp_call_list(m, t, &x, 1, &y, 1);
    return y;
}

/* Walks and lists. */

static bool walk(fsdp_module *m, char *path, size_t used, size_t capacity, module_visitor visit, void *context)
{
    if (!visit(context, m, path))
        return false;
    for (int i = 0; i < m->n_children; i++) {
        int more = snprintf(path + used, capacity - used, used ? ".%s" : "%s", m->children[i]->name);
        if (!walk(m->children[i], path, used + (size_t)more < capacity ? used + (size_t)more : capacity - 1, capacity,
                  visit, context))
            return false;
        path[used] = '\0';
    }
    return true;
}

bool module_walk(fsdp_module *root, module_visitor visit, void *context)
{
    char path[1024] = "";
    return walk(root, path, 0, sizeof path, visit, context);
}

static const char *full_name(const char *path, const char *name)
{
    char *full = NULL;
    if (asprintf(&full, "%s%s%s", path, path[0] ? "." : "", name) < 0)
        return NULL;
    return full;
}

static bool list_module(void *context, fsdp_module *m, const char *path)
{
    module_contents *out = context;
    for (int i = 0; i < m->n_parameters; i++) {
        fsdp_parameter *p = m->parameters[i];
        const char *name = full_name(path, p->name);
        if (!name || !append((void **)&out->parameters, &out->n_parameters, p))
            return false;
        free((char *)p->name);
        p->name = name;
        p->index = out->n_parameters - 1;
    }
    for (int i = 0; i < m->n_buffers; i++) {
        fsdp_buffer *b = m->buffers[i];
        const char *name = full_name(path, b->name);
        if (!name || !append((void **)&out->buffers, &out->n_buffers, b))
            return false;
        free((char *)b->name);
        b->name = name;
    }
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names are how initial values, files and checkpoints tell parameters apart. */
static fsdp_status check_names(const module_contents *contents)
{
    int n = contents->n_parameters + contents->n_buffers;
    const char **names = malloc((size_t)n * sizeof *names + 1);
    if (!names)
        return error_set(FSDP_ERR_MEMORY, "listing %d parameters: out of host memory", n);
    for (int i = 0; i < contents->n_parameters; i++)
        names[i] = contents->parameters[i]->name;
    for (int i = 0; i < contents->n_buffers; i++)
        names[contents->n_parameters + i] = contents->buffers[i]->name;
    qsort(names, (size_t)n, sizeof *names, by_name);
    fsdp_status status = FSDP_OK;
    for (int i = 1; i < n && status == FSDP_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            status = error_set(FSDP_ERR_INPUT, "the model has two parameters or buffers named %s", names[i]);
    }
    free(names);
    return status;
}

fsdp_status module_finish(fsdp_module *root, module_contents *out)
{
    *out = (module_contents){NULL, 0, NULL, 0};
    FSDP_TRY(fsdp_module_check(root));
    if (!module_walk(root, list_module, out)) {
        module_contents_free(out);
        return error_set(FSDP_ERR_MEMORY, "listing the parameters of a model: out of host memory");
    }
    fsdp_status status = check_names(out);
    if (status != FSDP_OK)
        module_contents_free(out);
    return status;
}

void module_contents_free(module_contents *contents)
{
    free(contents->parameters);
    free(contents->buffers);
    *contents = (module_contents){NULL, 0, NULL, 0};
}

fsdp_parameter *module_find_parameter(const module_contents *contents, const char *name)
{
    for (int i = 0; i < contents->n_parameters; i++) {
        if (strcmp(contents->parameters[i]->name, name) == 0)
            return contents->parameters[i];
    }
    return NULL;
}

fsdp_buffer *module_find_buffer(const module_contents *contents, const char *name)
{
    for (int i = 0; i < contents->n_buffers; i++) {
        if (strcmp(contents->buffers[i]->name, name) == 0)
            return contents->buffers[i];
    }
    return NULL;
}

void parameter_initial_values(const fsdp_parameter *p, uint64_t seed, int64_t first, int64_t n, float *out)
{
    rng_key key = rng_key_fold_text(rng_key_make(seed), p->name);
    if (p->init == FSDP_INIT_NORMAL)
        rng_fill_normal(key, (uint64_t)first, n, 0, p->init_scale, out);
    else if (p->init == FSDP_INIT_UNIFORM)
        rng_fill_uniform(key, (uint64_t)first, n, -p->init_scale, p->init_scale, out);
    else
        for (int64_t i = 0; i < n; i++)
            out[i] = p->init == FSDP_INIT_ONE ? 1 : 0;
}
