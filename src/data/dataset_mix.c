/* Several data sets as one, each drawn by its weight. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/dataset.h"
#include "data/mix.h"

typedef struct mix_source {
    dataset_source base;
    fsdp_dataset *parts[MIX_MAX];
    mix order;
} mix_source;

static fsdp_status mix_read(const dataset_source *base, int64_t index, void *const *fields)
{
    (void)base;
    (void)fields;
    return error_set(FSDP_ERR_UNSUPPORTED, "sample %lld: mixed sources are read in their order, by a loader",
                     (long long)index);
}

static void mix_source_free(dataset_source *base)
{
    mix_source *s = (mix_source *)base;
    for (int i = 0; i < MIX_MAX; i++)
        fsdp_dataset_free(s->parts[i]);
    mix_free(&s->order);
    free(s);
}

static const dataset_table mix_table = {mix_read, mix_source_free};

int dataset_mix_parts(const dataset_source *source, fsdp_dataset *const **parts, const mix **order)
{
    if (source->table != &mix_table)
        return 0;
    const mix_source *s = (const mix_source *)source;
    *parts = s->parts;
    *order = &s->order;
    return s->order.n;
}

/* Rows of a batch come from all sources: their fields must be the same. */
static fsdp_status check_alike(const fsdp_dataset_config *options, const fsdp_dataset_info *a,
                               const fsdp_dataset_info *b, int i)
{
    bool alike = a->kind == b->kind && a->n_fields == b->n_fields && a->ordered == b->ordered;
    for (int k = 0; k < a->n_fields && alike; k++)
        alike = a->fields[k].dtype == b->fields[k].dtype && a->fields[k].n_dims == b->fields[k].n_dims &&
                memcmp(a->fields[k].shape, b->fields[k].shape, sizeof a->fields[k].shape) == 0;
    return alike ? FSDP_OK
                 : error_set(FSDP_ERR_INPUT, "%s and %s have samples of other kinds or sizes: they cannot be mixed",
                             options->names[0], options->names[i]);
}

static fsdp_status open_parts(const fsdp_dataset_config *options, mix_source *s)
{
    fsdp_dataset_config one = *options;
    fsdp_dataset_info infos[2] = {FSDP_DATASET_INFO_INIT, FSDP_DATASET_INFO_INIT};
    one.n_names = 1;
    one.weights = NULL;
    one.cache_folder = options->cache_folder ? options->cache_folder : ""; /* it has been looked up */
    for (int i = 0; i < s->order.n; i++) {
        one.names = &options->names[i];
        FSDP_TRY(fsdp_dataset_open(&one, &s->parts[i]));
        if (s->parts[i] == NULL)
            return error_set(FSDP_ERR_INPUT, "%s: there are no such files to mix", one.names[0]);
        FSDP_TRY(fsdp_dataset_describe(s->parts[i], &infos[i > 0]));
        if (i > 0)
            FSDP_TRY(check_alike(options, &infos[0], &infos[1], i));
        if (infos[i > 0].vocabulary > infos[0].vocabulary)
            infos[0].vocabulary = infos[1].vocabulary;
        infos[0].chat |= infos[i > 0].chat;
        infos[0].rendered |= infos[i > 0].rendered;
    }
    memcpy(s->base.fields, infos[0].fields, (size_t)infos[0].n_fields * sizeof *infos[0].fields);
    s->base.info = infos[0];
    s->base.info.n_samples = FSDP_ENDLESS;
    s->base.info.stream = true;
    return FSDP_OK;
}

fsdp_status dataset_mix_open(const fsdp_dataset_config *options, dataset_source **out)
{
    mix_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    s->base.table = &mix_table;
    fsdp_status status =
        options->max_samples > 0
            ? error_set(FSDP_ERR_UNSUPPORTED, "sources are mixed by weight: max_samples says nothing")
            : mix_make(options->weights, options->n_names <= MIX_MAX ? (int)options->n_names : 0, &s->order);
    if (status == FSDP_OK)
        status = open_parts(options, s);
    if (status != FSDP_OK) {
        mix_source_free(&s->base);
        return status;
    }
    *out = &s->base;
    return FSDP_OK;
}
