/* The tokenizer as a whole: the chain added tokens -> normalizer -> added tokens -> pre-tokenizer -> model ->
 * post-processor, and back through the decoder. Reading tokenizer.json into it is tokenizer_load.c's. */
#include "tokenizer/tokenizer_internal.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/text/utf8.h"

fsdp_status tokenizer_new(tokenizer_tables *tables, fsdp_tokenizer **out)
{
    fsdp_status status;
    fsdp_tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a tokenizer");
    if (tables->pretokenizer != NULL)
        TRY_OR(fail, pretokenizer_room_create(tables->pretokenizer, &t->pretokenizer));
    if (tables->bpe != NULL)
        TRY_OR(fail, bpe_room_create(&t->bpe));
    if (tables->unigram != NULL)
        TRY_OR(fail, unigram_room_create(&t->unigram));
    if (tables->words != NULL)
        TRY_OR(fail, word_list_room_create(&t->words));
    t->tables = tables;
    *out = t;
    return FSDP_OK;
fail:
    fsdp_tokenizer_free(t);
    return status;
}

void tokenizer_tables_free(tokenizer_tables *tables)
{
    if (tables == NULL)
        return;
    decoder_free(tables->decoder);
    postprocessor_free(&tables->postprocessor);
    word_list_free(tables->words);
    unigram_free(tables->unigram);
    bpe_free(tables->bpe);
    pretokenizer_free(tables->pretokenizer);
    added_tokens_free(tables->added);
    normalizer_free(tables->normalizer);
    unicode_free(tables->unicode);
    free(tables->folder);
    free(tables);
}

fsdp_status fsdp_tokenizer_byte(fsdp_tokenizer **out)
{
    tokenizer_tables *tables = calloc(1, sizeof *tables);
    if (tables == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a tokenizer");
    atomic_init(&tables->n_handles, 1);
    tables->bos = tables->pad = -1;
    tables->eos = 0;
    for (int c = 1; c < 256; c++)
        tables->byte_texts[c][0] = (char)c;
    tables->cuts.anywhere = true;
    fsdp_status status = tokenizer_new(tables, out);
    if (status != FSDP_OK)
        tokenizer_tables_free(tables);
    return status;
}

fsdp_status fsdp_tokenizer_share(const fsdp_tokenizer *tokenizer, fsdp_tokenizer **out)
{
    FSDP_TRY(tokenizer_new(tokenizer->tables, out));
    atomic_fetch_add(&tokenizer->tables->n_handles, 1);
    return FSDP_OK;
}

void fsdp_tokenizer_free(fsdp_tokenizer *t)
{
    if (t == NULL)
        return;
    text_free(&t->repaired);
    normalizer_room_free(&t->normalizer);
    pretokenizer_room_free(&t->pretokenizer);
    bpe_room_free(&t->bpe);
    unigram_room_free(&t->unigram);
    word_list_room_free(&t->words);
    decoder_room_free(&t->decoder);
    span_free(&t->outer);
    span_free(&t->inner);
    id_free(&t->ids);
    if (t->tables != NULL && atomic_fetch_sub(&t->tables->n_handles, 1) == 1)
        tokenizer_tables_free(t->tables);
    free(t);
}

/* --- encoding ---------------------------------------------------------------------------------------------------- */

static fsdp_status encode_word(void *context, const char *word, size_t bytes)
{
    fsdp_tokenizer *t = context;
    if (t->tables->bpe != NULL)
        return bpe_encode(t->tables->bpe, &t->bpe, word, bytes, &t->ids);
    if (t->tables->unigram != NULL)
        return unigram_encode(t->tables->unigram, &t->unigram, word, bytes, &t->ids);
    return word_list_encode(t->tables->words, &t->words, word, bytes, &t->ids);
}

/* Text between added tokens that are looked for before normalizing. */
static fsdp_status encode_piece(fsdp_tokenizer *t, const char *text, size_t bytes, bool at_start, bool continues)
{
    const tokenizer_tables *tables = t->tables;
    FSDP_TRY(normalizer_apply(tables->normalizer, &t->normalizer, text, bytes, continues, &text, &bytes));
    t->inner.n = 0;
    FSDP_TRY(added_tokens_split(tables->added, true, text, bytes, &t->inner));
    for (size_t i = 0; i < t->inner.n; i++) {
        text_span s = t->inner.data[i];
        if (s.matched)
            FSDP_TRY(id_append(&t->ids, s.matched - 1));
        else
            FSDP_TRY(pretokenizer_apply(tables->pretokenizer, &t->pretokenizer, text + s.start, s.end - s.start,
                                        at_start && s.start == 0, encode_word, t));
    }
    return FSDP_OK;
}

static fsdp_status encode_text(fsdp_tokenizer *t, const char *text, size_t bytes, bool continues)
{
    t->outer.n = 0;
    FSDP_TRY(added_tokens_split(t->tables->added, false, text, bytes, &t->outer));
    for (size_t i = 0; i < t->outer.n; i++) {
        text_span s = t->outer.data[i];
        bool first = s.start == 0;
        if (s.matched)
            FSDP_TRY(id_append(&t->ids, s.matched - 1));
        else
            FSDP_TRY(encode_piece(t, text + s.start, s.end - s.start, first && !continues, first && continues));
    }
    return FSDP_OK;
}

static fsdp_status encode_bytes(fsdp_tokenizer *t, const char *text, size_t bytes)
{
    FSDP_TRY(id_reserve(&t->ids, bytes));
    for (size_t i = 0; i < bytes; i++)
        t->ids.data[i] = (uint8_t)text[i];
    t->ids.n = bytes;
    return FSDP_OK;
}

/* The text where the post-processor wants it, and the tokens around it that this part has. */
static fsdp_status encode_with_specials(fsdp_tokenizer *t, const char *text, size_t bytes, int part)
{
    const id_vector *pieces = &t->tables->postprocessor.pieces;
    bool behind = false;
    for (size_t i = 0; i < pieces->n; i++) {
        bool is_text = pieces->data[i] == POSTPROCESSOR_TEXT;
        behind = behind || is_text;
        if (is_text)
            FSDP_TRY(encode_text(t, text, bytes, part & TOKENIZER_CONTINUES));
        else if (part & (behind ? TOKENIZER_BACK : TOKENIZER_FRONT))
            FSDP_TRY(id_append(&t->ids, pieces->data[i]));
    }
    return FSDP_OK;
}

fsdp_status tokenizer_encode_part(fsdp_tokenizer *t, const char *text, size_t bytes, int part, const int32_t **ids,
                                  size_t *n_ids)
{
    t->ids.n = 0;
    t->ids.limit = text_most(bytes);
    pattern_room_begin(&t->normalizer.search, bytes);
    pattern_room_begin(&t->pretokenizer.search, bytes);
    if (tokenizer_is_byte(t->tables)) {
        FSDP_TRY(encode_bytes(t, text, bytes));
    } else {
        if (utf8_valid_bytes(text, bytes) < bytes) {
            t->repaired.bytes = 0;
            FSDP_TRY(utf8_repair(text, bytes, &t->repaired));
            text = t->repaired.data;
            bytes = t->repaired.bytes;
        }
        if (part & (TOKENIZER_FRONT | TOKENIZER_BACK) && t->tables->postprocessor.pieces.n > 0)
            FSDP_TRY(encode_with_specials(t, text, bytes, part));
        else
            FSDP_TRY(encode_text(t, text, bytes, part & TOKENIZER_CONTINUES));
    }
    *ids = t->ids.data;
    *n_ids = t->ids.n;
    return FSDP_OK;
}

fsdp_status fsdp_tokenizer_encode(fsdp_tokenizer *t, const char *text, size_t bytes, bool add_special,
                                  const int32_t **ids, size_t *n_ids)
{
    return tokenizer_encode_part(t, text, bytes, add_special ? TOKENIZER_FRONT | TOKENIZER_BACK : 0, ids, n_ids);
}

/* --- decoding ---------------------------------------------------------------------------------------------------- */

const vocabulary *tokenizer_tables_model(const tokenizer_tables *tables)
{
    return tables->bpe != NULL       ? bpe_vocabulary(tables->bpe)
           : tables->unigram != NULL ? unigram_vocabulary(tables->unigram)
                                     : word_list_vocabulary(tables->words);
}

/* The spelling of an id as decoders see it, NULL when no token has it. */
static const char *spelling(const tokenizer_tables *tables, int32_t id, size_t *bytes)
{
    const char *text = added_tokens_spelling(tables->added, id, bytes);
    return text != NULL ? text : vocabulary_text(tokenizer_tables_model(tables), id, bytes);
}

static fsdp_status decode_bytes(fsdp_tokenizer *t, const int32_t *ids, size_t n_ids, bool skip_special,
                                const char **text, size_t *bytes)
{
    text_buffer *out = &t->decoder.scratch;
    out->bytes = out->limit = 0;
    FSDP_TRY(text_reserve(out, n_ids));
    for (size_t i = 0; i < n_ids; i++)
        if (ids[i] >= 0 && ids[i] < 256 && !(skip_special && ids[i] == 0))
            out->data[out->bytes++] = (char)ids[i];
    out->data[out->bytes] = '\0';
    *text = out->data;
    *bytes = out->bytes;
    return FSDP_OK;
}

fsdp_status fsdp_tokenizer_decode(fsdp_tokenizer *t, const int32_t *ids, size_t n_ids, bool skip_special,
                                  const char **text, size_t *bytes)
{
    size_t ignored;
    token_list *tokens = &t->decoder.lists[0];
    if (bytes == NULL)
        bytes = &ignored;
    if (tokenizer_is_byte(t->tables))
        return decode_bytes(t, ids, n_ids, skip_special, text, bytes);
    token_list_clear(tokens);
    tokens->text.limit = 0;
    for (size_t i = 0; i < n_ids; i++) {
        size_t token_bytes;
        const char *token = spelling(t->tables, ids[i], &token_bytes);
        if (token == NULL || (skip_special && added_tokens_is_special(t->tables->added, token, token_bytes)))
            continue;
        FSDP_TRY(token_list_add(tokens, token, token_bytes));
    }
    return decoder_apply(t->tables->decoder, &t->decoder, text, bytes);
}

/* --- questions --------------------------------------------------------------------------------------------------- */

int32_t fsdp_tokenizer_vocab_size(const fsdp_tokenizer *t)
{
    if (tokenizer_is_byte(t->tables))
        return 256;
    int32_t model = vocabulary_end(tokenizer_tables_model(t->tables));
    int32_t added = vocabulary_end(added_tokens_vocabulary(t->tables->added));
    return model > added ? model : added;
}

int32_t tokenizer_tables_id(const tokenizer_tables *tables, const char *token, size_t bytes)
{
    if (tokenizer_is_byte(tables))
        return bytes == 1 ? (uint8_t)token[0] : -1;
    int32_t id = vocabulary_id(added_tokens_vocabulary(tables->added), token, bytes);
    return id >= 0 ? id : vocabulary_id(tokenizer_tables_model(tables), token, bytes);
}

int32_t fsdp_tokenizer_id(const fsdp_tokenizer *t, const char *token)
{
    return tokenizer_tables_id(t->tables, token, strlen(token));
}

const char *fsdp_tokenizer_token(const fsdp_tokenizer *t, int32_t id)
{
    if (tokenizer_is_byte(t->tables))
        return id >= 0 && id < 256 ? t->tables->byte_texts[id] : NULL;
    return spelling(t->tables, id, NULL);
}

int32_t fsdp_tokenizer_bos(const fsdp_tokenizer *t)
{
    return t->tables->bos;
}

int32_t fsdp_tokenizer_eos(const fsdp_tokenizer *t)
{
    return t->tables->eos;
}

int32_t fsdp_tokenizer_pad(const fsdp_tokenizer *t)
{
    return t->tables->pad;
}
