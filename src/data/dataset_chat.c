/* Instruction data: a sample is one conversation, cut to the width and padded behind; labels are what follows each
 * token where that is the assistant's, and nothing elsewhere. Such sets are small: their tokens are kept in memory. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/ops.h>

#include "base/error.h"
#include "base/log.h"
#include "data/chat_record.h"
#include "data/dataset.h"
#include "data/document.h"
#include "tokenizer/tokenizer_internal.h"

typedef struct chat_source {
    dataset_source base;
    id_vector ids;       /* of all samples, one behind the other */
    text_buffer trained; /* a byte for each */
    size_t *ends;        /* of each sample */
    size_t n_ends, capacity;
    int64_t n_cut; /* samples that were longer than the width */
    int32_t pad;
} chat_source;

static fsdp_status chat_read(const dataset_source *base, int64_t index, void *const *fields)
{
    const chat_source *s = (const chat_source *)base;
    size_t start = index == 0 ? 0 : s->ends[index - 1];
    int64_t n = (int64_t)(s->ends[index] - start);
    int32_t *ids = fields[TEXT_IDS], *labels = fields[TEXT_LABELS];
    for (int64_t i = 0; i < base->info.width; i++) {
        ids[i] = i < n ? s->ids.data[start + (size_t)i] : s->pad;
        bool trained = i + 1 < n && s->trained.data[start + (size_t)i + 1];
        labels[i] = trained ? s->ids.data[start + (size_t)i + 1] : FSDP_IGNORE;
    }
    return FSDP_OK;
}

static void chat_free(dataset_source *base)
{
    chat_source *s = (chat_source *)base;
    id_free(&s->ids);
    text_free(&s->trained);
    free(s->ends);
    free(s);
}

static const dataset_table chat_table = {chat_read, chat_free};

/* Keeps a record's tokens up to the width. False when none of them would be trained on. */
static fsdp_status keep(chat_source *s, const chat_encoder *e, size_t width, bool *kept)
{
    size_t n = e->ids.n < width ? e->ids.n : width;
    *kept = n > 1 && memchr(e->trained.data + 1, 1, n - 1) != NULL;
    if (!*kept)
        return FSDP_OK;
    s->n_cut += e->ids.n > width;
    FSDP_TRY(id_append_all(&s->ids, e->ids.data, n));
    FSDP_TRY(text_append(&s->trained, e->trained.data, n));
    if (s->n_ends == s->capacity)
        FSDP_TRY(array_grow((void **)&s->ends, &s->capacity, s->n_ends + 1, sizeof *s->ends));
    s->ends[s->n_ends++] = s->ids.n;
    return FSDP_OK;
}

/* A record to be released: a line of JSONL, or a row's prompt and response. */
static fsdp_status record_of(const chat_encoder *e, const document *d, json_t **out)
{
    *out = d->record != NULL ? json_incref(d->record)
                             : json_pack("{s:o, s:o}", e->prompt_field, json_stringn_nocheck(d->text, d->bytes),
                                         e->response_field, json_stringn_nocheck(d->target, d->target_bytes));
    return *out != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory");
}

static fsdp_status add_records(chat_source *s, chat_encoder *e, const fsdp_dataset_config *options,
                               document_reader *reader)
{
    document d;
    json_t *record;
    bool more = true, kept = false;
    while (options->max_samples == 0 || s->n_ends < (size_t)options->max_samples) {
        FSDP_TRY(document_reader_next(reader, &d, &more));
        if (!more)
            return FSDP_OK;
        FSDP_TRY(record_of(e, &d, &record));
        fsdp_status status = chat_record_encode(e, record);
        json_decref(record);
        if (status == FSDP_OK)
            status = keep(s, e, (size_t)options->width, &kept);
        if (status == FSDP_ERR_MEMORY || status == FSDP_ERR_UNSUPPORTED)
            return status;
        if (status != FSDP_OK)
            FSDP_TRY(document_reader_skip(reader, fsdp_last_error()));
        else if (!kept)
            FSDP_TRY(document_reader_skip(reader, "no response within the context width"));
    }
    return FSDP_OK;
}

static bool has_column(const char *path, const char *name)
{
    table_file *t = NULL;
    bool there = table_open(path, &name, 1, &t) == FSDP_OK;
    table_close(t);
    return there;
}

static bool has_messages(const char *path)
{
    table_file *t = NULL;
    bool there = document_open_messages(path, &t) == FSDP_OK;
    table_close(t);
    return there;
}

static bool has_field(const source_file *file, const json_t *first, const char *name)
{
    return file->kind == SOURCE_ROWS ? has_column(file->path, name) : json_object_get(first, name) != NULL;
}

/* "prompt" and "response", or what the settings name; "completion" where the data begins with that. */
static void name_fields(const fsdp_dataset_config *options, const source_file *file, const json_t *first,
                        chat_encoder *e)
{
    static const fsdp_dataset_config usual = FSDP_DATASET_CONFIG_INIT;
    bool named_prompt = strcmp(options->source_field, usual.source_field) != 0;
    bool named_response = strcmp(options->target_field, usual.target_field) != 0;
    bool completion = has_field(file, first, "completion") && !has_field(file, first, "response");
    e->prompt_field = named_prompt ? options->source_field : "prompt";
    e->response_field = named_response ? options->target_field : completion ? "completion" : "response";
}

/* The first record that can be read; NULL without one. The caller releases it. */
static fsdp_status first_record(const source_list *files, fsdp_tokenizer *tokenizer, json_t **out)
{
    document_reader *reader = NULL;
    document d;
    bool more = false;
    *out = NULL;
    source_list first = {.files = files->files, .n_files = 1, .stop = files->stop};
    FSDP_TRY(source_list_await(&first, 0)); /* a file that does not come is an error; one that is no JSONL is text */
    if (files->files[0].kind != SOURCE_JSONL)
        return FSDP_OK;
    fsdp_status status = document_reader_open(&first, NULL, NULL, true, tokenizer, &reader);
    if (status == FSDP_OK && document_reader_next(reader, &d, &more) == FSDP_OK && more)
        *out = json_incref(d.record);
    document_reader_close(reader);
    return status;
}

fsdp_status dataset_chat_is(const source_list *files, const fsdp_dataset_config *options, bool *is)
{
    json_t *first = NULL;
    const source_file *file = &files->files[0];
    *is = options->chat;
    if (options->chat || options->pairs || (file->kind != SOURCE_JSONL && file->kind != SOURCE_ROWS))
        return FSDP_OK;
    FSDP_TRY(first_record(files, NULL, &first));
    *is = (file->kind == SOURCE_ROWS ? has_messages(file->path) : chat_record_has_messages(first)) &&
          !has_field(file, first, options->source_field);
    json_decref(first);
    return FSDP_OK;
}

static fsdp_status check(const source_list *files, const fsdp_dataset_config *options)
{
    if (options->tokenizer == NULL || options->width < 2)
        return error_set(FSDP_ERR_INPUT, "%s: conversations need a tokenizer and a width of at least 2 tokens",
                         files->files[0].path);
    for (size_t i = 0; i < files->n_files; i++)
        if (files->files[i].kind != files->files[0].kind ||
            (files->files[i].kind != SOURCE_JSONL && files->files[i].kind != SOURCE_ROWS))
            return error_set(FSDP_ERR_INPUT,
                             "%s: conversations are read from JSONL or from tables, not from both at once",
                             files->files[i].path);
    return FSDP_OK;
}

fsdp_status dataset_chat_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    fsdp_status status;
    fsdp_tokenizer *tokenizer = NULL;
    document_reader *reader = NULL;
    chat_template *template = NULL;
    json_t *first = NULL;
    chat_encoder e = {0};
    chat_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    s->base.table = &chat_table;
    TRY_OR(done, check(files, options));
    TRY_OR(done, fsdp_tokenizer_share(options->tokenizer, &tokenizer));
    TRY_OR(done, chat_template_load(tokenizer->tables->folder, options->chat_template, &template));
    TRY_OR(done, first_record(files, tokenizer, &first));
    e = (chat_encoder){.tokenizer = tokenizer, .template = template};
    name_fields(options, &files->files[0], first, &e);
    bool rows = files->files[0].kind == SOURCE_ROWS, pairs = rows && has_column(files->files[0].path, e.prompt_field);
    if (template == NULL && (rows ? !pairs : chat_record_has_messages(first)))
        TRY_OR(done, error_set(FSDP_ERR_INPUT,
                               "%s: messages want a chat template, and the tokenizer's folder has none: name one with "
                               "--chat_template",
                               files->files[0].path));
    TRY_OR(done, document_reader_open(files, pairs ? e.prompt_field : NULL, pairs ? e.response_field : NULL,
                                      options->strict, tokenizer, &reader));
    TRY_OR(done, add_records(s, &e, options, reader));
    if (s->n_ends == 0)
        TRY_OR(done, error_set(FSDP_ERR_INPUT, "%s: there is no record with \"messages\", or with \"%s\" and \"%s\"",
                               files->files[0].path, e.prompt_field, e.response_field));
    if (s->n_cut > 0)
        log_write(FSDP_LOG_WARNING, "%s: %lld of %zu conversations are longer than %lld tokens and were cut there",
                  files->files[0].path, (long long)s->n_cut, s->n_ends, (long long)options->width);
    s->pad = options->pad_id >= 0 ? options->pad_id : fsdp_tokenizer_pad(tokenizer);
    s->pad = s->pad >= 0 ? s->pad : 0;
    s->base.info = (fsdp_dataset_info){.kind = FSDP_DATASET_TEXT,
                                       .n_samples = (int64_t)s->n_ends,
                                       .n_truncated = s->n_cut,
                                       .n_skipped = document_reader_skipped(reader),
                                       .width = options->width,
                                       .vocabulary = fsdp_tokenizer_vocab_size(tokenizer),
                                       .chat = true,
                                       .rendered = template != NULL};
    *out = &s->base;
done:
    if (status != FSDP_OK)
        chat_free(&s->base);
    chat_encoder_free(&e);
    json_decref(first);
    document_reader_close(reader);
    chat_template_free(template);
    fsdp_tokenizer_free(tokenizer);
    return status;
}
