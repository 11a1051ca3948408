/* Finds the maker of every piece of a program's slab. Values that share memory are one entry, named after the first. */
#include "tensor/program_values.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "tensor/program_internal.h"

typedef struct makers {
    const storage **storages; /* (n), those that stand for themselves and are used */
    program_value *values;    /* (n) */
    bool *named;              /* (n) */
    int n;
} makers;

static int by_address(const void *a, const void *b)
{
    const storage *x = *(const storage *const *)a, *y = *(const storage *const *)b;
    return x < y ? -1 : x > y;
}

static void name_storage(makers *m, storage *s, value_role role, const char *operation, const fsdp_tensor *x)
{
    const storage *owner = storage_of(s);
    const storage **found = owner ? bsearch(&owner, m->storages, (size_t)m->n, sizeof *m->storages, by_address) : NULL;
    if (!found || m->named[found - m->storages])
        return;
    program_value *v = &m->values[found - m->storages];
    m->named[found - m->storages] = true;
    v->role = role;
    size_t used = (size_t)snprintf(v->name, sizeof v->name, "%s", operation);
    if (!x || used >= sizeof v->name)
        return;
    used += (size_t)snprintf(v->name + used, sizeof v->name - used, " (");
    for (int i = 0; i < x->n_dims && used < sizeof v->name; i++)
        used +=
            (size_t)snprintf(v->name + used, sizeof v->name - used, "%s%lld", i ? ", " : "", (long long)x->shape[i]);
    if (used < sizeof v->name)
        snprintf(v->name + used, sizeof v->name - used, ") %s", fsdp_dtype_name(x->dtype));
}

static const char *operation_of(const node *n)
{
    return n->name ? n->name : n->op->name;
}

/* Forward first: what backward finds where forward left it is forward's. */
static void name_all(const program *p, makers *m)
{
    const fsdp_tape *t = p->tape;
    for (int i = 0; i < t->n_tensors; i++) {
        const fsdp_tensor *x = t->tensors[i];
        if (x->kind == TENSOR_INPUT)
            name_storage(m, x->data, VALUE_INPUT, "input", x);
        else if (x->producer)
            name_storage(m, x->data, VALUE_ACTIVATION, operation_of(x->producer), x);
    }
    for (int i = 0; i < t->n_tensors; i++) {
        const fsdp_tensor *x = t->tensors[i];
        if (x->producer)
            name_storage(m, x->replay, VALUE_RECOMPUTED, operation_of(x->producer), x);
    }
    for (int i = 0; i < t->n_tensors; i++) {
        const fsdp_tensor *x = t->tensors[i];
        name_storage(m, x->grad, VALUE_GRADIENT, x->producer ? operation_of(x->producer) : "input", x);
    }
    for (int i = 0; i < p->length; i++) {
        const instruction *step = &p->list[i];
        if (step->n)
            name_storage(m, step->workspace, VALUE_WORKSPACE, operation_of(step->n), NULL);
    }
}

fsdp_status program_values(const program *p, program_value **out, int *n)
{
    size_t most = (size_t)p->n_storages + 1;
    makers m = {.storages = malloc(most * sizeof *m.storages),
                .values = calloc(most, sizeof *m.values),
                .named = calloc(most, sizeof *m.named)};
    fsdp_status status = FSDP_OK;
    if (!m.storages || !m.values || !m.named) {
        status = error_set(FSDP_ERR_MEMORY, "listing %d values: out of host memory", p->n_storages);
        free(m.values);
        m.values = NULL;
    }
    for (int i = 0; i < p->n_storages && status == FSDP_OK; i++) {
        const storage *s = p->storages[i];
        if (!s->shared && s->first >= 0 && s->bytes > 0)
            m.storages[m.n++] = s;
    }
    if (status == FSDP_OK) {
        qsort(m.storages, (size_t)m.n, sizeof *m.storages, by_address);
        for (int i = 0; i < m.n; i++)
            m.values[i] = (program_value){.role = VALUE_WORKSPACE,
                                          .name = "scratch",
                                          .bytes = m.storages[i]->bytes,
                                          .first = m.storages[i]->first,
                                          .last = m.storages[i]->last};
        name_all(p, &m);
    }
    free(m.storages);
    free(m.named);
    *out = m.values;
    *n = m.n;
    return status;
}
