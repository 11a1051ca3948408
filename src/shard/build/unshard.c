/* Full parameters of one unit in host memory, for a program's own computations, and their way back. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "shard/model.h"

typedef struct full_parameter {
    const fsdp_parameter *parameter;
    float *values; /* within the unit's */
} full_parameter;

struct fsdp_unsharded {
    fsdp_model *model;
    int unit;
    int n;
    full_parameter *list; /* in tree order */
    float *values;        /* (numel) */
    int64_t numel;
};

const char *fsdp_model_unit_name(const fsdp_model *m, int index)
{
    return index >= 0 && index < m->layout->n_units ? m->layout->units[index].name : NULL;
}

static fsdp_status find_unit(const fsdp_model *m, const char *name, int *index)
{
    for (*index = 0; *index < m->layout->n_units; ++*index) {
        if (strcmp(m->layout->units[*index].name, name) == 0)
            return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT, "the model has no unit named \"%s\"; fsdp_model_unit_name lists them", name);
}

static void discard(fsdp_unsharded *u)
{
    if (!u)
        return;
    free(u->values);
    free(u->list);
    free(u);
}

/* Memory for the unit's parameters, one after the other; zeros. */
static fsdp_unsharded *make(fsdp_model *m, int index)
{
    fsdp_unsharded *u = calloc(1, sizeof *u);
    if (!u)
        return NULL;
    *u = (fsdp_unsharded){.model = m, .unit = index, .numel = m->layout->units[index].parameters_numel};
    u->list = calloc((size_t)m->contents.n_parameters, sizeof *u->list);
    u->values = calloc((size_t)u->numel, sizeof *u->values);
    if (!u->list || !u->values) {
        discard(u);
        return NULL;
    }
    float *at = u->values;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        if (p->unit != index)
            continue;
        u->list[u->n++] = (full_parameter){p, at};
        at += p->numel;
    }
    return u;
}

static float *values_of(const fsdp_unsharded *u, const fsdp_parameter *p)
{
    for (int i = 0; i < u->n; i++) {
        if (u->list[i].parameter == p)
            return u->list[i].values;
    }
    return NULL;
}

static fsdp_status read_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    float *values = values_of(context, slice->parameter);
    return values ? model_read_slice(m, slice, 0, slice->n, values + slice->first) : FSDP_OK;
}

static fsdp_status write_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    const float *values = values_of(context, slice->parameter);
    return values ? model_write_slice(m, slice, 0, slice->n, values + slice->first) : FSDP_OK;
}

fsdp_status fsdp_unshard(fsdp_model *m, const char *name, fsdp_unsharded **out)
{
    int index;
    FSDP_TRY(find_unit(m, name, &index));
    fsdp_unsharded *u = make(m, index);
    if (!u) /* the other ranks are told when they wait for this one */
        return error_set(FSDP_ERR_MEMORY, "unsharding unit %s: no host memory for %lld values", name,
                         (long long)m->layout->units[index].parameters_numel);
    fsdp_status status = model_for_each_slice(m, read_slice, u);
    if (status == FSDP_OK)
        status = model_join_slices(m, index, "unsharding a unit", u->values, u->numel);
    if (status != FSDP_OK) {
        discard(u);
        return status;
    }
    *out = u;
    return FSDP_OK;
}

float *fsdp_unsharded_values(const fsdp_unsharded *u, const char *name, int64_t *numel)
{
    for (int i = 0; i < u->n; i++) {
        if (strcmp(u->list[i].parameter->name, name) != 0)
            continue;
        if (numel)
            *numel = u->list[i].parameter->numel;
        return u->list[i].values;
    }
    error_set(FSDP_ERR_INPUT, "unit %s has no parameter named %s", u->model->layout->units[u->unit].name, name);
    return NULL;
}

const char *fsdp_unsharded_name(const fsdp_unsharded *u, int index)
{
    return index >= 0 && index < u->n ? u->list[index].parameter->name : NULL;
}

/* Every rank keeps a part of its own values: others would leave a unit that no rank has computed. */
static fsdp_status compare_ranks(const fsdp_unsharded *u)
{
    fsdp_model *m = u->model;
    int n = m->n_ranks;
    uint64_t mine = hash_bytes(HASH_START, u->values, (size_t)u->numel * sizeof *u->values);
    uint64_t *all = calloc((size_t)n, sizeof *all);
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!all || !bytes)
        error_set(status, "comparing the ranks' values: out of host memory");
    else
        status =
            comm_exchange(comm_world(m->world->comm), "values of a unit", &mine, sizeof mine, sizeof mine, all, bytes);
    for (int r = 1; status == FSDP_OK && r < n; r++) {
        if (all[r] != all[0])
            status = error_set(FSDP_ERR_INPUT,
                               "resharding unit %s: rank %d has other values than rank 0; every rank must write the "
                               "same. Nothing was changed",
                               m->layout->units[u->unit].name, r);
    }
    free(all);
    free(bytes);
    return status;
}

static fsdp_status write_back(fsdp_unsharded *u)
{
    fsdp_model *m = u->model;
    FSDP_TRY(compare_ranks(u));
    FSDP_TRY(comm_wait_sent(&m->units[u->unit].gather, m->compute)); /* in fp32 peers gather the masters themselves */
    FSDP_TRY(m->dev->stream_synchronize(m->compute));
    FSDP_TRY(model_for_each_slice(m, write_slice, u));
    return model_refresh_unit(m, u->unit);
}

fsdp_status fsdp_reshard(fsdp_unsharded *u, bool write)
{
    fsdp_status status = u && write ? write_back(u) : FSDP_OK;
    discard(u);
    return status;
}
