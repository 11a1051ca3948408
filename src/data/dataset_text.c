/* Rows of tokens: text packed to the context width without gaps, documents ended by the end token; and tables of steps,
 * where row i of a safetensors tensor is what step i trains on. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/dataset.h"
#include "data/token_store.h"
#include "format/weights/safetensors.h"

typedef struct tokens_source {
    dataset_source base;
    token_store *store;
} tokens_source;

static fsdp_status tokens_read(const dataset_source *s, int64_t index, void *const *fields)
{
    const tokens_source *t = (const tokens_source *)s;
    FSDP_TRY(token_store_read(t->store, index * s->info.width, s->info.width, fields[TEXT_IDS]));
    dataset_label_next(fields[TEXT_IDS], s->info.width, fields[TEXT_LABELS]);
    return FSDP_OK;
}

static void tokens_free(dataset_source *s)
{
    token_store_free(((tokens_source *)s)->store);
    free(s);
}

static const dataset_table tokens_table = {tokens_read, tokens_free};

static fsdp_status open_store(const source_list *files, const fsdp_dataset_config *options, token_store **out)
{
    if (files->files[0].kind == SOURCE_TOKENS)
        return token_store_open(files, options->vocabulary, out);
    if (options->tokenizer == NULL)
        return error_set(FSDP_ERR_INPUT, "%s holds text, which needs a tokenizer and a model that reads tokens",
                         files->files[0].path);
    token_build_options build = {.field = options->source_field,
                                 .strict = options->strict,
                                 .n_threads = options->threads,
                                 .max_tokens = options->max_samples * options->width,
                                 .progress = options->progress,
                                 .context = options->progress_context};
    if (options->max_samples == 0)
        FSDP_TRY(source_list_await_all(files));
    bool cached = !source_list_comes(files) && options->cache_folder != NULL &&
                  source_list_bytes(files) >= options->cache_from_bytes;
    return token_store_build(files, options->tokenizer, &build, cached ? options->cache_folder : NULL, out);
}

fsdp_status dataset_tokens_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    token_store *store = NULL;
    if (options->width < 2)
        return error_set(FSDP_ERR_INPUT, "a context width of %lld: text needs at least 2 tokens in a sample",
                         (long long)options->width);
    FSDP_TRY(open_store(files, options, &store));
    int64_t count = token_store_count(store);
    tokens_source *s = calloc(1, sizeof *s);
    if (s == NULL || count < options->width) {
        token_store_free(store);
        free(s);
        return s == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory")
                         : error_set(FSDP_ERR_INPUT,
                                     "%s%s: the data has %lld tokens, less than one context of %lld; give more data or "
                                     "a smaller context width",
                                     files->files[0].path, files->n_files > 1 ? " and others" : "", (long long)count,
                                     (long long)options->width);
    }
    s->store = store;
    s->base.table = &tokens_table;
    s->base.info = (fsdp_dataset_info){.kind = FSDP_DATASET_TEXT,
                                       .n_samples = count / options->width,
                                       .width = options->width,
                                       .tokens = files->files[0].kind == SOURCE_TOKENS,
                                       .vocabulary = token_store_vocabulary(store),
                                       .n_skipped = token_store_skipped(store)};
    *out = &s->base;
    return FSDP_OK;
}

/* --- tables of steps --------------------------------------------------------------------------------------------- */

typedef struct steps_source {
    dataset_source base;
    int32_t *ids; /* (samples, width): tables are small, and files that are mapped can shrink */
} steps_source;

static fsdp_status steps_read(const dataset_source *s, int64_t index, void *const *fields)
{
    int64_t width = s->info.width;
    memcpy(fields[TEXT_IDS], ((const steps_source *)s)->ids + index * width, (size_t)width * sizeof(int32_t));
    dataset_label_next(fields[TEXT_IDS], width, fields[TEXT_LABELS]);
    return FSDP_OK;
}

static void steps_free(dataset_source *s)
{
    free(((steps_source *)s)->ids);
    free(s);
}

static const dataset_table steps_table = {steps_read, steps_free};

/* Reads and checks every token, and finds the vocabulary. */
static fsdp_status read_tokens(const safetensors_tensor *tensor, int32_t *ids, int64_t *vocabulary)
{
    int64_t values[256];
    *vocabulary = 0;
    for (int64_t at = 0; at < tensor->numel; at += 256) {
        int64_t n = tensor->numel - at < 256 ? tensor->numel - at : 256;
        FSDP_TRY(safetensors_read_i64(tensor, at, n, values));
        for (int64_t i = 0; i < n; i++) {
            if (values[i] < 0 || values[i] >= INT32_MAX)
                return error_set(FSDP_ERR_INPUT, "%s: \"%s\" holds %lld, which is not a token", tensor->path,
                                 tensor->name, (long long)values[i]);
            if (values[i] >= *vocabulary)
                *vocabulary = values[i] + 1;
            ids[at + i] = (int32_t)values[i];
        }
    }
    return FSDP_OK;
}

/* `t` is (steps, batch, width) or (samples, width). */
static fsdp_status read_steps(const fsdp_dataset_config *options, const safetensors_tensor *t, steps_source *s)
{
    int64_t width = t->n_dims < 2 ? 0 : t->shape[t->n_dims - 1];
    if (t->n_dims < 2 || t->n_dims > 3 || width < 2 || t->numel == 0)
        return error_set(FSDP_ERR_INPUT, "%s: \"data\" must be steps x batch x tokens, or samples x tokens", t->path);
    if (options->width != 0 && options->width != width)
        return error_set(FSDP_ERR_INPUT, "%s: its rows have %lld tokens, but the context width is %lld", t->path,
                         (long long)width, (long long)options->width);
    s->base.info = (fsdp_dataset_info){
        .kind = FSDP_DATASET_TEXT, .n_samples = t->numel / width, .width = width, .tokens = true, .ordered = true};
    s->ids = malloc((size_t)t->numel * sizeof *s->ids);
    if (s->ids == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %lld tokens", t->path, (long long)t->numel);
    return read_tokens(t, s->ids, &s->base.info.vocabulary);
}

fsdp_status dataset_steps_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    fsdp_status status;
    safetensors *file = NULL;
    const safetensors_tensor *tensor;
    if (files->n_files != 1)
        return error_set(FSDP_ERR_INPUT, "%s and %zu more: a table of tokens must be one file", files->files[0].path,
                         files->n_files - 1);
    steps_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    s->base.table = &steps_table;
    TRY_OR(done, safetensors_open(files->files[0].path, &file));
    TRY_OR(done, safetensors_get(file, "data", &tensor));
    TRY_OR(done, read_steps(options, tensor, s));
    *out = &s->base;
done:
    if (status != FSDP_OK)
        steps_free(&s->base);
    safetensors_close(file);
    return status;
}
