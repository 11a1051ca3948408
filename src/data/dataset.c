/* Opens the right kind of source for what is named, and keeps ranges of it apart (training and held-back samples). */
#include "data/dataset_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"

/* Shared by the data sets that are ranges of it. */
typedef struct shared_source {
    atomic_int n_users;
    dataset_source *source;
} shared_source;

struct dataset {
    shared_source *shared;
    int64_t first, count;
};

void dataset_label_next(const int32_t *ids, int64_t width, int32_t *labels)
{
    for (int64_t i = 0; i + 1 < width; i++)
        labels[i] = ids[i + 1];
    labels[width - 1] = DATASET_IGNORE;
}

static fsdp_status open_source(const source_list *files, const dataset_options *options, dataset_source **out)
{
    switch (files->files[0].kind) {
    case SOURCE_TOKENS:
        return dataset_tokens_open(files, options, out);
    case SOURCE_TABLE:
        return dataset_steps_open(files, options, out);
    case SOURCE_IMAGES:
        return dataset_images_open(files, options, out);
    default:
        return options->pairs ? dataset_pairs_open(files, options, out) : dataset_tokens_open(files, options, out);
    }
}

static fsdp_status wrap(dataset_source *source, int64_t max_samples, dataset **out)
{
    dataset *d = calloc(1, sizeof *d);
    shared_source *shared = calloc(1, sizeof *shared);
    if (d == NULL || shared == NULL) {
        free(shared);
        free(d);
        source->table->free(source);
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    }
    atomic_init(&shared->n_users, 1);
    shared->source = source;
    d->shared = shared;
    d->count = source->info.n_samples;
    if (max_samples > 0 && max_samples < d->count)
        d->count = max_samples;
    *out = d;
    return FSDP_OK;
}

fsdp_status dataset_open(const char *const *names, size_t n_names, const dataset_options *options, dataset **out)
{
    source_list files;
    dataset_source *source = NULL;
    if (options->size != sizeof *options)
        return error_set(FSDP_ERR_INPUT, "dataset_options has size %zu, not %zu: start from DATASET_OPTIONS_INIT",
                         options->size, sizeof *options);
    *out = NULL;
    FSDP_TRY(source_list_make(names, n_names, options->config_name, options->part, &files));
    bool found = files.n_files > 0;
    fsdp_status status = found ? open_source(&files, options, &source) : FSDP_OK;
    source_list_free(&files);
    return found && status == FSDP_OK ? wrap(source, options->max_samples, out) : status;
}

void dataset_free(dataset *d)
{
    if (d == NULL)
        return;
    if (atomic_fetch_sub(&d->shared->n_users, 1) == 1) {
        d->shared->source->table->free(d->shared->source);
        free(d->shared);
    }
    free(d);
}

dataset_info dataset_describe(const dataset *d)
{
    dataset_info info = d->shared->source->info;
    info.n_samples = d->count;
    return info;
}

fsdp_status dataset_hold_back(dataset *d, int64_t n_samples, dataset **out)
{
    if (n_samples <= 0 || n_samples >= d->count)
        return error_set(FSDP_ERR_INPUT,
                         "%lld samples cannot be held back from a data set of %lld: one must be left on each side",
                         (long long)n_samples, (long long)d->count);
    dataset *held = calloc(1, sizeof *held);
    if (held == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    d->count -= n_samples;
    *held = (dataset){d->shared, d->first + d->count, n_samples};
    atomic_fetch_add(&d->shared->n_users, 1);
    *out = held;
    return FSDP_OK;
}

fsdp_status dataset_read(const dataset *d, int64_t index, const dataset_row *row)
{
    if (index < 0 || index >= d->count)
        return error_set(FSDP_ERR_STATE, "sample %lld of a data set of %lld", (long long)index, (long long)d->count);
    return d->shared->source->table->read(d->shared->source, d->first + index, row);
}
