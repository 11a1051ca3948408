/* Viterbi over the bytes of a word: the best path to every position, tokens found by walking a trie from each start.
 * Scores are doubles summed from the left, in the library's order, so that ties fall the same way. */
#include "tokenizer/model/unigram.h"

#include <math.h>
#include <stdlib.h>

#include "tokenizer/component.h"
#include "tokenizer/model/trie.h"
#include "tokenizer/text/utf8.h"

static const double unknown_penalty = 10.0; /* below the lowest score of the vocabulary */

typedef struct unigram_node {
    double score; /* of the best path that ends here */
    size_t start; /* of its last token; SIZE_MAX: no path yet */
    int32_t id;
} unigram_node;

struct unigram {
    vocabulary *tokens;
    trie *trie;
    double *scores; /* by id */
    double unknown_score;
    int32_t unknown_id; /* -1: none */
    bool byte_fallback;
    int32_t fallback_id[256];
};

static fsdp_status read_token(const char *name, const json_t *entry, size_t id, unigram *m, double *lowest)
{
    const json_t *token = json_array_get(entry, 0), *score = json_array_get(entry, 1);
    if (!json_is_string(token) || !json_is_number(score))
        return error_set(FSDP_ERR_INPUT, "%s: entry %zu of the vocabulary must be [token, score]", name, id);
    m->scores[id] = json_number_value(score);
    if (m->scores[id] < *lowest)
        *lowest = m->scores[id];
    FSDP_TRY(vocabulary_add(m->tokens, json_string_value(token), json_string_length(token), (int32_t)id));
    if (json_string_length(token) == 0)
        return FSDP_OK; /* never found in a text */
    return trie_add(m->trie, json_string_value(token), json_string_length(token), (int32_t)id, NULL);
}

static fsdp_status read_tokens(const char *name, const json_t *object, unigram *m)
{
    json_t *vocab, *entry;
    size_t id;
    double lowest = INFINITY;
    FSDP_TRY(component_array(name, object, "vocab", &vocab));
    size_t n = json_array_size(vocab);
    FSDP_TRY(vocabulary_create(n, &m->tokens));
    FSDP_TRY(trie_create(&m->trie));
    m->scores = calloc(n + 1, sizeof *m->scores);
    if (m->scores == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %zu tokens", name, n);
    json_array_foreach(vocab, id, entry) FSDP_TRY(read_token(name, entry, id, m, &lowest));
    m->unknown_score = lowest - unknown_penalty;
    return FSDP_OK;
}

fsdp_status unigram_create(const char *name, const json_t *object, unigram **out)
{
    fsdp_status status;
    int64_t unknown = -1;
    unigram *m = calloc(1, sizeof *m);
    if (m == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    TRY_OR(fail, read_tokens(name, object, m));
    TRY_OR(fail, json_opt_bool(name, object, "byte_fallback", &m->byte_fallback));
    TRY_OR(fail, json_opt_int(name, object, "unk_id", &unknown));
    if (unknown < -1 || unknown >= (int64_t)json_array_size(json_object_get(object, "vocab")))
        TRY_OR(fail, error_set(FSDP_ERR_INPUT, "%s: unk_id %lld is not in the vocabulary", name, (long long)unknown));
    m->unknown_id = (int32_t)unknown;
    for (unsigned byte = 0; byte < 256; byte++) {
        char code[8];
        snprintf(code, sizeof code, "<0x%02X>", byte);
        m->fallback_id[byte] = vocabulary_id(m->tokens, code, 6);
    }
    *out = m;
    return FSDP_OK;
fail:
    unigram_free(m);
    return status;
}

void unigram_free(unigram *m)
{
    if (m == NULL)
        return;
    free(m->scores);
    trie_free(m->trie);
    vocabulary_free(m->tokens);
    free(m);
}

const vocabulary *unigram_vocabulary(const unigram *m)
{
    return m->tokens;
}

fsdp_status unigram_room_create(unigram_room *room)
{
    *room = (unigram_room){0};
    return word_cache_create(&room->cache);
}

void unigram_room_free(unigram_room *room)
{
    span_free(&room->pieces);
    free(room->nodes);
    word_cache_free(room->cache);
    *room = (unigram_room){0};
}

static inline void offer(unigram_node *node, double score, size_t start, int32_t id)
{
    if (node->start == SIZE_MAX || score > node->score)
        *node = (unigram_node){score, start, id};
}

static fsdp_status find_best_paths(const unigram *m, unigram_node *nodes, const char *word, size_t bytes)
{
    for (size_t i = 0; i <= bytes; i++)
        nodes[i] = (unigram_node){0.0, SIZE_MAX, 0};
    for (size_t start = 0, length; start < bytes; start += length) {
        double here = nodes[start].score;
        bool single = false; /* some token is exactly the first character */
        uint32_t node = 0;
        length = utf8_length((uint8_t)word[start]);
        for (size_t end = start; end < bytes;) {
            node = trie_child(m->trie, node, (uint8_t)word[end++]);
            if (node == 0)
                break;
            int32_t id = m->trie->values[node];
            if (id < 0)
                continue;
            offer(&nodes[end], m->scores[id] + here, start, id);
            single = single || end - start == length;
        }
        if (single)
            continue;
        if (m->unknown_id < 0)
            return error_set(FSDP_ERR_INPUT,
                             "a text has a character that the Unigram tokenizer lacks, and it has no unk_id");
        offer(&nodes[start + length], m->unknown_score + here, start, m->unknown_id);
    }
    return FSDP_OK;
}

/* A piece that is no token: its bytes, when all of them are tokens, else the unknown token. */
static fsdp_status append_unknown(const unigram *m, const char *text, size_t bytes, id_vector *ids)
{
    bool all = m->byte_fallback;
    for (size_t i = 0; i < bytes && all; i++)
        all = m->fallback_id[(uint8_t)text[i]] >= 0;
    if (!all)
        return id_append(ids, m->unknown_id);
    for (size_t i = 0; i < bytes; i++)
        FSDP_TRY(id_append(ids, m->fallback_id[(uint8_t)text[i]]));
    return FSDP_OK;
}

/* From the end of the best path back to its start; unknown neighbours become one piece. */
static fsdp_status collect_pieces(const unigram *m, unigram_room *room, size_t bytes)
{
    bool unknown_before = false;
    room->pieces.n = 0;
    for (size_t end = bytes; end > 0; end = room->nodes[end].start) {
        const unigram_node *node = &room->nodes[end];
        bool unknown = node->id == m->unknown_id;
        if (unknown && unknown_before)
            room->pieces.data[room->pieces.n - 1].start = node->start;
        else
            FSDP_TRY(span_append(&room->pieces, node->start, end, unknown));
        unknown_before = unknown;
    }
    return FSDP_OK;
}

static fsdp_status encode_new(const unigram *m, unigram_room *room, const char *word, size_t bytes, id_vector *ids)
{
    if (room->capacity < bytes + 1)
        FSDP_TRY(array_grow((void **)&room->nodes, &room->capacity, bytes + 1, sizeof *room->nodes));
    FSDP_TRY(find_best_paths(m, room->nodes, word, bytes));
    FSDP_TRY(collect_pieces(m, room, bytes));
    for (size_t i = room->pieces.n; i-- > 0;) {
        text_span s = room->pieces.data[i];
        int32_t id = s.matched ? vocabulary_id(m->tokens, word + s.start, s.end - s.start) : room->nodes[s.end].id;
        if (id >= 0)
            FSDP_TRY(id_append(ids, id));
        else
            FSDP_TRY(append_unknown(m, word + s.start, s.end - s.start, ids));
    }
    return FSDP_OK;
}

fsdp_status unigram_encode(const unigram *m, unigram_room *room, const char *word, size_t bytes, id_vector *ids)
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
