/* Looks up whole words, or their pieces from the longest down. Words come from the cache where it has them. */
#include "tokenizer/model/word_list.h"

#include <stdlib.h>

#include "tokenizer/component.h"
#include "tokenizer/text/utf8.h"

struct word_list {
    vocabulary *tokens;
    bool pieces; /* WordPiece */
    char *unknown;
    int32_t unknown_id; /* -1: not in the vocabulary */
    char *prefix;
    size_t prefix_bytes;
    int64_t longest_word; /* in code points; longer ones are unknown */
};

static fsdp_status copy_text(const char *name, const json_t *object, const char *key, const char *otherwise, char **out)
{
    const char *text = otherwise;
    FSDP_TRY(json_opt_string(name, object, key, &text));
    *out = strdup(text);
    return *out != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
}

fsdp_status word_list_create(const char *name, const json_t *object, bool pieces, word_list **out)
{
    fsdp_status status;
    word_list *m = calloc(1, sizeof *m);
    if (m == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    m->pieces = pieces;
    m->longest_word = 100;
    TRY_OR(fail, component_vocabulary(name, object, &m->tokens));
    TRY_OR(fail, copy_text(name, object, "unk_token", pieces ? "[UNK]" : "<unk>", &m->unknown));
    TRY_OR(fail, copy_text(name, object, "continuing_subword_prefix", "##", &m->prefix));
    TRY_OR(fail, json_opt_int(name, object, "max_input_chars_per_word", &m->longest_word));
    m->prefix_bytes = strlen(m->prefix);
    m->unknown_id = vocabulary_id(m->tokens, m->unknown, strlen(m->unknown));
    *out = m;
    return FSDP_OK;
fail:
    word_list_free(m);
    return status;
}

void word_list_free(word_list *m)
{
    if (m == NULL)
        return;
    vocabulary_free(m->tokens);
    free(m->prefix);
    free(m->unknown);
    free(m);
}

const vocabulary *word_list_vocabulary(const word_list *m)
{
    return m->tokens;
}

fsdp_status word_list_room_create(word_list_room *room)
{
    *room = (word_list_room){0};
    return word_cache_create(&room->cache);
}

void word_list_room_free(word_list_room *room)
{
    text_free(&room->piece);
    word_cache_free(room->cache);
    *room = (word_list_room){0};
}

/* The longest piece that begins at `start`, -1 when there is none; *end is where it ends. */
static fsdp_status longest_piece(const word_list *m, word_list_room *room, const char *word, size_t bytes, size_t start,
                                 size_t *end, int32_t *id)
{
    size_t prefix = start > 0 ? m->prefix_bytes : 0, longest = vocabulary_longest(m->tokens);
    size_t most = longest > prefix ? longest - prefix : 0;
    *id = -1;
    *end = bytes - start > most ? start + most : bytes;
    while (*end > start && *end < bytes && ((uint8_t)word[*end] & 0xC0) == 0x80)
        --*end;
    room->piece.bytes = 0;
    FSDP_TRY(text_append(&room->piece, m->prefix, prefix));
    FSDP_TRY(text_append(&room->piece, word + start, *end - start));
    while (*end > start) {
        *id = vocabulary_id(m->tokens, room->piece.data, prefix + (*end - start));
        if (*id >= 0)
            break;
        *end -= utf8_last_length(word + start, *end - start);
    }
    return FSDP_OK;
}

static bool is_too_long(const word_list *m, const char *word, size_t bytes)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((uint8_t)word[i] & 0xC0) != 0x80;
    return n > m->longest_word;
}

/* A word with a part that is no piece is unknown as a whole. */
static fsdp_status encode_pieces(const word_list *m, word_list_room *room, const char *word, size_t bytes,
                                 id_vector *ids, bool *known)
{
    size_t before = ids->n;
    *known = !is_too_long(m, word, bytes);
    for (size_t start = 0, end; start < bytes && *known; start = end) {
        int32_t id;
        FSDP_TRY(longest_piece(m, room, word, bytes, start, &end, &id));
        *known = id >= 0;
        if (*known)
            FSDP_TRY(id_append(ids, id));
    }
    if (!*known)
        ids->n = before;
    return FSDP_OK;
}

static fsdp_status encode_new(const word_list *m, word_list_room *room, const char *word, size_t bytes, id_vector *ids)
{
    bool known;
    if (m->pieces) {
        FSDP_TRY(encode_pieces(m, room, word, bytes, ids, &known));
    } else {
        int32_t id = vocabulary_id(m->tokens, word, bytes);
        known = id >= 0;
        if (known)
            FSDP_TRY(id_append(ids, id));
    }
    if (known)
        return FSDP_OK;
    if (m->unknown_id < 0)
        return error_set(FSDP_ERR_INPUT,
                         "the tokenizer's unk_token \"%s\" is not in its vocabulary, and a text needs it", m->unknown);
    return id_append(ids, m->unknown_id);
}

fsdp_status word_list_encode(const word_list *m, word_list_room *room, const char *word, size_t bytes, id_vector *ids)
{
    uint64_t hash = 0;
    size_t n, before = ids->n;
    bool cached = bytes <= WORD_CACHE_LONGEST;
    const int32_t *known = cached ? word_cache_find(room->cache, word, bytes, &n, &hash) : NULL;
    if (known != NULL)
        return id_append_all(ids, known, n);
    FSDP_TRY(encode_new(m, room, word, bytes, ids));
    if (cached)
        word_cache_add(room->cache, word, bytes, hash, ids->data + before, ids->n - before);
    return FSDP_OK;
}
