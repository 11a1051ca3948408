/* Opens the right kind of source for what is named, and keeps ranges of it apart (training and held-back samples). */
#include "data/dataset.h"

#include <stdatomic.h>
#include <stdlib.h>

#include <fsdp/ops.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "base/host/threads.h"

/* Shared by the data sets that are ranges of it. */
typedef struct shared_source {
    atomic_int n_users;
    dataset_source *source;
} shared_source;

struct fsdp_dataset {
    shared_source *shared;
    int64_t first, count;
};

void dataset_label_next(const int32_t *ids, int64_t width, int32_t *labels)
{
    for (int64_t i = 0; i + 1 < width; i++)
        labels[i] = ids[i + 1];
    labels[width - 1] = FSDP_IGNORE;
}

/* --- fields ------------------------------------------------------------------------------------------------------ */

int64_t field_numel(const fsdp_field *f)
{
    int64_t n = 1;
    for (int i = 0; i < f->n_dims; i++)
        n *= f->shape[i];
    return n;
}

size_t field_bytes(const fsdp_field *f)
{
    return (size_t)field_numel(f) * fsdp_dtype_size(f->dtype);
}

static fsdp_field tokens_field(const char *name, int64_t width, double padding)
{
    return (fsdp_field){.name = name, .dtype = FSDP_I32, .n_dims = 1, .shape = {width}, .padding = padding};
}

static void describe_fields(dataset_source *s)
{
    fsdp_dataset_info *info = &s->info;
    fsdp_field *f = s->fields;
    if (info->kind == FSDP_DATASET_TEXT) {
        f[TEXT_IDS] = tokens_field("ids", info->width, 0);
        f[TEXT_LABELS] = tokens_field("labels", info->width, FSDP_IGNORE);
        f[TEXT_DOCUMENTS] = tokens_field("documents", info->width, -1);
        f[TEXT_POSITIONS] = tokens_field("positions", info->width, 0);
        info->n_fields = info->documents ? TEXT_ALL_FIELDS : TEXT_FIELDS;
    } else if (info->kind == FSDP_DATASET_PAIRS) {
        f[PAIRS_IDS] = tokens_field("ids", info->width, 0);
        f[PAIRS_MASK] = tokens_field("mask", info->width, 0);
        f[PAIRS_DECODER_IDS] = tokens_field("decoder_ids", info->target_width, 0);
        f[PAIRS_LABELS] = tokens_field("labels", info->target_width, FSDP_IGNORE);
        info->n_fields = PAIRS_FIELDS;
    } else if (info->kind == FSDP_DATASET_IMAGES) {
        f[IMAGES_PIXELS] = (fsdp_field){.name = "pixels",
                                        .dtype = FSDP_F32,
                                        .n_dims = 3,
                                        .shape = {info->channels, info->height, info->image_width}};
        f[IMAGES_CLASSES] = (fsdp_field){.name = "classes", .dtype = FSDP_I32, .padding = FSDP_IGNORE};
        info->n_fields = IMAGES_FIELDS;
    }
    info->fields = f;
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

static fsdp_status open_source(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    bool documents = options->documents || options->packing == FSDP_PACK_BEST_FIT;
    bool chat = false;
    FSDP_TRY(dataset_chat_is(files, options, &chat));
    if (chat && documents)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: conversations are one a sample and are not packed: leave packing out",
                         files->files[0].path);
    if (chat)
        return dataset_chat_open(files, options, out);
    source_kind kind = files->files[0].kind;
    if (documents && (options->pairs || kind == SOURCE_TABLE || kind == SOURCE_IMAGES))
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: only documents of text can be packed, not %s: leave packing out",
                         files->files[0].path, options->pairs ? "pairs" : "this data");
    switch (kind) {
    case SOURCE_TOKENS:
        if (documents)
            return dataset_stream_open(files, options, out);
        return dataset_tokens_open(files, options, out);
    case SOURCE_TABLE:
        return dataset_steps_open(files, options, out);
    case SOURCE_IMAGES:
        return dataset_images_open(files, options, out);
    default:
        if (documents || (options->stream_from_bytes > 0 && source_list_bytes(files) >= options->stream_from_bytes))
            return options->pairs ? error_set(FSDP_ERR_UNSUPPORTED, "%s: pairs cannot be streamed: turn streaming off",
                                              files->files[0].path)
                                  : dataset_stream_open(files, options, out);
        return options->pairs ? dataset_pairs_open(files, options, out) : dataset_tokens_open(files, options, out);
    }
}

/* Takes `source` in any case. */
static fsdp_status wrap(dataset_source *source, int64_t max_samples, fsdp_dataset **out)
{
    fsdp_dataset *d = calloc(1, sizeof *d);
    shared_source *shared = calloc(1, sizeof *shared);
    if (d == NULL || shared == NULL) {
        free(shared);
        free(d);
        source->table->free(source);
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    }
    describe_fields(source);
    atomic_init(&shared->n_users, 1);
    shared->source = source;
    d->shared = shared;
    d->count = source->info.n_samples;
    if (max_samples > 0 && max_samples < d->count && !source->info.stream)
        d->count = max_samples;
    *out = d;
    return FSDP_OK;
}

/* Where the tokens of long texts are kept; malloc'd. NULL when nobody says where: they then stay in memory. */
static char *token_cache(void)
{
    const char *own = environment_text("FSDP_CACHE_DIR"), *user = environment_text("XDG_CACHE_HOME");
    const char *home = environment_text("HOME");
    if (own)
        return file_join(own, "tokens");
    return user ? file_join(user, "fsdp/tokens") : home ? file_join(home, ".cache/fsdp/tokens") : NULL;
}

static fsdp_status open_named(const fsdp_dataset_config *c, fsdp_dataset **out)
{
    source_list files;
    dataset_source *source = NULL;
    if (c->weights != NULL) {
        FSDP_TRY(dataset_mix_open(c, &source));
        return wrap(source, 0, out);
    }
    FSDP_TRY(source_list_make(c->names, c->n_names, c->config_name, c->part, c->download, &files));
    bool found = files.n_files > 0;
    fsdp_status status = found ? open_source(&files, c, &source) : FSDP_OK;
    source_list_free(&files);
    return found && status == FSDP_OK ? wrap(source, c->max_samples, out) : status;
}

fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **out)
{
    char *cache = NULL;
    *out = NULL;
    SIZED_READ(fsdp_dataset_config, FSDP_DATASET_CONFIG_INIT, c, config);
    if (c.threads == 0)
        c.threads = threads_count();
    if (c.cache_folder == NULL)
        c.cache_folder = cache = token_cache();
    else if (c.cache_folder[0] == '\0')
        c.cache_folder = NULL;
    fsdp_status status = open_named(&c, out);
    free(cache);
    return status;
}

fsdp_status fsdp_dataset_from(const fsdp_dataset_source *source, fsdp_dataset **out)
{
    dataset_source *own;
    *out = NULL;
    SIZED_READ(fsdp_dataset_source, FSDP_DATASET_SOURCE_INIT, s, source);
    FSDP_TRY(dataset_own_open(&s, &own));
    FSDP_TRY(wrap(own, 0, out));
    dataset_own_take_context(own, s.close); /* until all is well it is the caller's */
    return FSDP_OK;
}

void fsdp_dataset_free(fsdp_dataset *d)
{
    if (d == NULL)
        return;
    if (atomic_fetch_sub(&d->shared->n_users, 1) == 1) {
        d->shared->source->table->free(d->shared->source);
        free(d->shared);
    }
    free(d);
}

fsdp_status fsdp_dataset_describe(const fsdp_dataset *d, fsdp_dataset_info *info)
{
    SIZED_CHECK(fsdp_dataset_info, FSDP_DATASET_INFO_INIT, info);
    fsdp_dataset_info known = d->shared->source->info;
    known.n_samples = d->count;
    sized_write(info, &known, sizeof known);
    return FSDP_OK;
}

const dataset_source *dataset_source_of(const fsdp_dataset *d)
{
    return d->shared->source;
}

int64_t fsdp_dataset_count(const fsdp_dataset *d)
{
    return d->count;
}

fsdp_status fsdp_dataset_hold_back(fsdp_dataset *d, int64_t n_samples, fsdp_dataset **out)
{
    if (d->shared->source->info.stream)
        return error_set(
            FSDP_ERR_UNSUPPORTED,
            "nothing can be held back from a stream or a mix, whose end is not known: name validation data "
            "instead");
    if (n_samples <= 0 || n_samples >= d->count)
        return error_set(FSDP_ERR_INPUT,
                         "%lld samples cannot be held back from a data set of %lld: one must be left on each side",
                         (long long)n_samples, (long long)d->count);
    fsdp_dataset *held = calloc(1, sizeof *held);
    if (held == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    d->count -= n_samples;
    *held = (fsdp_dataset){d->shared, d->first + d->count, n_samples};
    atomic_fetch_add(&d->shared->n_users, 1);
    *out = held;
    return FSDP_OK;
}

fsdp_status fsdp_dataset_read(const fsdp_dataset *d, int64_t index, void *const *fields)
{
    if (index < 0 || index >= d->count)
        return error_set(FSDP_ERR_STATE, "sample %lld of a data set of %lld", (long long)index, (long long)d->count);
    return d->shared->source->table->read(d->shared->source, d->first + index, fields);
}
