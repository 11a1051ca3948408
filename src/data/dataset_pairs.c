/* Pairs of texts (an article and its summary): both tokenized once, cut to their widths with the end token kept, and
 * padded when they are read. */
#include <stdlib.h>

#include <fsdp/ops.h>

#include "base/error.h"
#include "data/dataset.h"
#include "data/document.h"
#include "tokenizer/text/text_buffer.h"

typedef struct pairs_source {
    dataset_source base;
    id_vector ids; /* source, target, source, target, ... */
    size_t *ends;  /* of each, in ids; (2 * n_samples) */
    size_t n_ends, capacity;
    int64_t n_cut; /* pairs of which either half was longer than its width */
    int32_t pad, start;
} pairs_source;

static const int32_t *half(const pairs_source *s, size_t index, int64_t *n)
{
    size_t start = index == 0 ? 0 : s->ends[index - 1];
    *n = (int64_t)(s->ends[index] - start);
    return s->ids.data + start;
}

static fsdp_status pairs_read(const dataset_source *base, int64_t index, void *const *fields)
{
    const pairs_source *s = (const pairs_source *)base;
    int64_t n_source, n_target;
    const int32_t *source = half(s, 2 * (size_t)index, &n_source), *target = half(s, 2 * (size_t)index + 1, &n_target);
    int32_t *ids = fields[PAIRS_IDS], *mask = fields[PAIRS_MASK];
    int32_t *decoder_ids = fields[PAIRS_DECODER_IDS], *labels = fields[PAIRS_LABELS];
    for (int64_t i = 0; i < base->info.width; i++) {
        ids[i] = i < n_source ? source[i] : s->pad;
        mask[i] = i < n_source;
    }
    for (int64_t i = 0; i < base->info.target_width; i++) {
        labels[i] = i < n_target ? target[i] : FSDP_IGNORE;
        decoder_ids[i] = i == 0 ? s->start : i <= n_target ? target[i - 1] : s->pad;
    }
    return FSDP_OK;
}

static void pairs_free(dataset_source *base)
{
    pairs_source *s = (pairs_source *)base;
    id_free(&s->ids);
    free(s->ends);
    free(s);
}

static const dataset_table pairs_table = {pairs_read, pairs_free};

/* Appends the tokens of a text, at most `width`; the last is the end token, cut or not. *cut is set when it was. */
static fsdp_status add_half(pairs_source *s, fsdp_tokenizer *t, const char *text, size_t bytes, int64_t width,
                            bool *cut)
{
    const int32_t *ids;
    size_t n, limit = (size_t)width;
    int32_t eos = fsdp_tokenizer_eos(t);
    FSDP_TRY(fsdp_tokenizer_encode(t, text, bytes, true, &ids, &n));
    if (n > 0 && eos >= 0 && ids[n - 1] == eos)
        n--;
    if (eos >= 0)
        limit--;
    *cut |= n > limit;
    FSDP_TRY(id_append_all(&s->ids, ids, n < limit ? n : limit));
    if (eos >= 0)
        FSDP_TRY(id_append(&s->ids, eos));
    if (s->n_ends == s->capacity)
        FSDP_TRY(array_grow((void **)&s->ends, &s->capacity, s->n_ends + 1, sizeof *s->ends));
    s->ends[s->n_ends++] = s->ids.n;
    return FSDP_OK;
}

static fsdp_status add_pairs(pairs_source *s, const source_list *files, const fsdp_dataset_config *options,
                             fsdp_tokenizer *t, document_reader *reader, text_buffer *prefixed)
{
    const char *prefix = options->source_prefix == NULL ? "" : options->source_prefix;
    document d;
    bool more = true;
    while (options->max_samples == 0 || s->n_ends / 2 < (size_t)options->max_samples) {
        FSDP_TRY(document_reader_next(reader, &d, &more));
        if (!more)
            break;
        prefixed->bytes = 0;
        FSDP_TRY(text_append(prefixed, prefix, strlen(prefix)));
        FSDP_TRY(text_append(prefixed, d.text, d.bytes));
        FSDP_TRY(text_reserve(prefixed, 1));
        bool cut = false;
        FSDP_TRY(add_half(s, t, prefixed->data, prefixed->bytes, options->width, &cut));
        FSDP_TRY(add_half(s, t, d.target, d.target_bytes, options->target_width, &cut));
        s->n_cut += cut;
    }
    if (s->n_ends == 0)
        return error_set(FSDP_ERR_INPUT, "%s: there is no record with \"%s\" and \"%s\"", files->files[0].path,
                         options->source_field, options->target_field);
    return FSDP_OK;
}

fsdp_status dataset_pairs_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    fsdp_status status;
    fsdp_tokenizer *tokenizer = NULL;
    document_reader *reader = NULL;
    text_buffer prefixed = {0};
    pairs_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    s->base.table = &pairs_table;
    if (options->tokenizer == NULL || options->width < 2 || options->target_width < 2)
        TRY_OR(done, error_set(FSDP_ERR_INPUT, "%s: pairs need a tokenizer and widths of at least 2 tokens",
                               files->files[0].path));
    TRY_OR(done, fsdp_tokenizer_share(options->tokenizer, &tokenizer));
    TRY_OR(done, document_reader_open(files, options->source_field, options->target_field, options->strict, tokenizer,
                                      &reader));
    TRY_OR(done, add_pairs(s, files, options, tokenizer, reader, &prefixed));
    s->pad = options->pad_id >= 0 ? options->pad_id : fsdp_tokenizer_pad(tokenizer);
    s->pad = s->pad >= 0 ? s->pad : 0;
    s->start = options->start_id >= 0 ? options->start_id : s->pad;
    s->base.info = (fsdp_dataset_info){.kind = FSDP_DATASET_PAIRS,
                                       .n_samples = (int64_t)(s->n_ends / 2),
                                       .width = options->width,
                                       .target_width = options->target_width,
                                       .n_truncated = s->n_cut,
                                       .n_skipped = document_reader_skipped(reader),
                                       .vocabulary = fsdp_tokenizer_vocab_size(tokenizer)};
    *out = &s->base;
done:
    if (status != FSDP_OK)
        pairs_free(&s->base);
    text_free(&prefixed);
    document_reader_close(reader);
    fsdp_tokenizer_free(tokenizer);
    return status;
}
