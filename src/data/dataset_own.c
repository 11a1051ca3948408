/* A user's own data: samples that a callback reads, fields as the user describes them. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "data/dataset.h"

typedef struct own_source {
    dataset_source base;
    fsdp_status (*read)(void *context, int64_t index, void *const *fields);
    void (*close)(void *context);
    void *context;
    char *name;
    char *field_names[FSDP_MAX_FIELDS];
} own_source;

static fsdp_status own_read(const dataset_source *base, int64_t index, void *const *fields)
{
    const own_source *s = (const own_source *)base;
    unsigned before = error_count();
    fsdp_status status = s->read(s->context, index, fields);
    if (status == FSDP_OK)
        return FSDP_OK;
    if (error_count() == before)
        return error_set(status,
                         "sample %lld of %s: its read function returned \"%s\" without a message; fsdp_fail "
                         "sets one",
                         (long long)index, s->name, fsdp_status_name(status));
    return error_prefix(status, "sample %lld of %s: ", (long long)index, s->name);
}

static void own_free(dataset_source *base)
{
    own_source *s = (own_source *)base;
    if (s->close)
        s->close(s->context);
    for (int i = 0; i < FSDP_MAX_FIELDS; i++)
        free(s->field_names[i]);
    free(s->name);
    free(s);
}

static const dataset_table own_table = {own_read, own_free};

static fsdp_status check_field(const char *name, const fsdp_field *fields, int i)
{
    const fsdp_field *f = &fields[i];
    size_t bytes = 1;
    if (f->name == NULL || f->name[0] == '\0')
        return error_set(FSDP_ERR_INPUT, "%s: field %d has no name", name, i);
    if ((unsigned)f->dtype >= FSDP_DTYPE_COUNT || f->n_dims < 0 || f->n_dims > FSDP_MAX_DIMS - 1)
        return error_set(FSDP_ERR_INPUT, "%s: field %s has type %d and %d dimensions: %d are the most", name, f->name,
                         (int)f->dtype, f->n_dims, FSDP_MAX_DIMS - 1);
    bool too_large = checked_mul(bytes, fsdp_dtype_size(f->dtype), &bytes);
    for (int k = 0; k < f->n_dims; k++) {
        if (f->shape[k] < 1)
            return error_set(FSDP_ERR_INPUT, "%s: field %s has size %lld in dimension %d: at least 1 is wanted", name,
                             f->name, (long long)f->shape[k], k);
        too_large = too_large || checked_mul(bytes, (size_t)f->shape[k], &bytes);
    }
    if (too_large || bytes > PTRDIFF_MAX)
        return error_set(FSDP_ERR_INPUT, "%s: a sample of field %s has more bytes than memory could hold", name,
                         f->name);
    if ((f->dtype == FSDP_BF16 || f->dtype == FSDP_F16) && f->padding != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: field %s of %s can be padded with 0 only, not with %g", name,
                         f->name, fsdp_dtype_name(f->dtype), f->padding);
    for (int k = 0; k < i; k++) {
        if (strcmp(fields[k].name, f->name) == 0)
            return error_set(FSDP_ERR_INPUT, "%s: two fields are called %s", name, f->name);
    }
    return FSDP_OK;
}

static fsdp_status check_source(const fsdp_dataset_source *source, const char *name)
{
    if (source->count < 1)
        return error_set(FSDP_ERR_INPUT, "%s is empty: it has %lld samples", name, (long long)source->count);
    if (source->read == NULL)
        return error_set(FSDP_ERR_INPUT, "%s: it has no read function", name);
    if (source->n_fields < 1 || source->n_fields > FSDP_MAX_FIELDS || source->fields == NULL)
        return error_set(FSDP_ERR_INPUT, "%s: samples of %d fields; from 1 to %d are possible", name, source->n_fields,
                         FSDP_MAX_FIELDS);
    for (int i = 0; i < source->n_fields; i++)
        FSDP_TRY(check_field(name, source->fields, i));
    return FSDP_OK;
}

fsdp_status dataset_own_open(const fsdp_dataset_source *source, dataset_source **out)
{
    const char *name = source->name ? source->name : "the data set";
    FSDP_TRY(check_source(source, name));
    own_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    s->base.table = &own_table;
    s->base.info = (fsdp_dataset_info){
        .kind = FSDP_DATASET_OWN, .n_samples = source->count, .ordered = source->ordered, .n_fields = source->n_fields};
    s->read = source->read;
    s->context = source->context;
    bool whole = (s->name = strdup(name)) != NULL;
    for (int i = 0; i < source->n_fields; i++) {
        whole = (s->field_names[i] = strdup(source->fields[i].name)) != NULL && whole;
        s->base.fields[i] = source->fields[i];
        s->base.fields[i].name = s->field_names[i];
    }
    if (!whole) {
        own_free(&s->base);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    }
    *out = &s->base;
    return FSDP_OK;
}

void dataset_own_take_context(dataset_source *base, void (*close)(void *context))
{
    ((own_source *)base)->close = close;
}
