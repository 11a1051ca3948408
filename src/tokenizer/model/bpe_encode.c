/* Encoding one word: from the cache, else its first symbols are joined pair by pair. Short words keep their pairs in an
 * array that is searched from the left for the lowest rank; long ones use a heap, so that no text takes quadratic time.
 */
#include "tokenizer/model/bpe_internal.h"

#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/text/utf8.h"

enum { SHORT_WORD = 48 }; /* symbols; where a heap begins to pay */

typedef struct bpe_symbol {
    int32_t id;
    uint32_t rank;       /* of the pair with the next symbol */
    int32_t whole;       /* what that pair becomes */
    uint32_t prev, next; /* long words only; UINT32_MAX: none */
} bpe_symbol;

fsdp_status bpe_room_create(bpe_room *room)
{
    *room = (bpe_room){0};
    return word_cache_create(&room->cache);
}

void bpe_room_free(bpe_room *room)
{
    free(room->heap);
    free(room->symbols);
    word_cache_free(room->cache);
    *room = (bpe_room){0};
}

static inline void rank_pair(const bpe *b, bpe_symbol *s, const bpe_symbol *next)
{
    const bpe_merge *m = bpe_merge_find(b, s->id, next->id);
    s->rank = m == NULL ? BPE_NO_RANK : m->rank;
    s->whole = m == NULL ? -1 : m->whole;
}

/* --- the first symbols ------------------------------------------------------------------------------------------- */

static void first_symbols_of_bytes(const bpe *b, bpe_room *room, const char *word, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        room->symbols[i].id = b->byte_id[(uint8_t)word[i]];
}

/* The id of a character of the word, with the prefix and suffix that its place asks for; -1 when there is none.
 * *text is what was looked up. */
static int32_t character_id(const bpe *b, const char *word, size_t at, size_t length, size_t bytes, char *affixed,
                            const char **text, size_t *text_bytes)
{
    *text = word + at;
    *text_bytes = length;
    if (b->prefix == NULL && b->suffix == NULL)
        return length == 1 ? b->ascii_id[(uint8_t)word[at]] : vocabulary_id(b->tokens, word + at, length);
    size_t prefix = at > 0 ? b->prefix_bytes : 0, suffix = at + length == bytes ? b->suffix_bytes : 0;
    if (prefix > 0)
        memcpy(affixed, b->prefix, prefix);
    memcpy(affixed + prefix, word + at, length);
    if (suffix > 0)
        memcpy(affixed + prefix + length, b->suffix, suffix);
    *text = affixed;
    *text_bytes = prefix + length + suffix;
    return vocabulary_id(b->tokens, *text, *text_bytes);
}

/* Writes the byte tokens of `text` and says true; false when one is missing from the vocabulary. */
static bool fall_back_to_bytes(const bpe *b, const char *text, size_t bytes, bpe_symbol *symbols, size_t *n)
{
    for (size_t i = 0; i < bytes; i++)
        if (b->fallback_id[(uint8_t)text[i]] < 0)
            return false;
    for (size_t i = 0; i < bytes; i++)
        symbols[(*n)++].id = b->fallback_id[(uint8_t)text[i]];
    return true;
}

/* An unknown token waits until a known character or the end of the word: neighbours may join it (fuse_unk). Byte
 * tokens pass it by, as they do in the library. */
static fsdp_status first_symbols(const bpe *b, bpe_room *room, const char *word, size_t bytes, char *affixed, size_t *n)
{
    bool waiting = false;
    size_t text_bytes;
    const char *text;
    *n = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = utf8_length((uint8_t)word[at]);
        int32_t id = character_id(b, word, at, length, bytes, affixed, &text, &text_bytes);
        if (id >= 0) {
            if (waiting)
                room->symbols[(*n)++].id = b->unknown_id;
            waiting = false;
            room->symbols[(*n)++].id = id;
            continue;
        }
        if (b->byte_fallback && fall_back_to_bytes(b, text, text_bytes, room->symbols, n))
            continue;
        if (!b->has_unknown)
            continue;
        if (b->unknown_id < 0)
            return error_set(FSDP_ERR_INPUT, "the tokenizer's unk_token is not in its vocabulary, and a text needs it");
        if (waiting && !b->fuse_unknown)
            room->symbols[(*n)++].id = b->unknown_id;
        waiting = true;
    }
    if (waiting)
        room->symbols[(*n)++].id = b->unknown_id;
    return FSDP_OK;
}

/* --- joining ----------------------------------------------------------------------------------------------------- */

static size_t join_short(const bpe *b, bpe_symbol *s, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++)
        rank_pair(b, &s[i], &s[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank)
                best = i;
        if (s[best].rank == BPE_NO_RANK)
            break;
        s[best].id = s[best].whole;
        memmove(&s[best + 1], &s[best + 2], (n - best - 2) * sizeof *s);
        n--;
        if (best + 1 < n)
            rank_pair(b, &s[best], &s[best + 1]);
        if (best > 0)
            rank_pair(b, &s[best - 1], &s[best]);
    }
    return n;
}

/* Entries are rank * 2^32 + position: the lowest rank first, the leftmost of equals. */
static void heap_push(bpe_room *room, uint32_t rank, size_t position)
{
    uint64_t entry = (uint64_t)rank << 32 | position;
    size_t i = room->heap_n++;
    while (i > 0 && room->heap[(i - 1) / 2] > entry) {
        room->heap[i] = room->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    room->heap[i] = entry;
}

static uint64_t heap_pop(bpe_room *room)
{
    uint64_t top = room->heap[0], last = room->heap[--room->heap_n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < room->heap_n) {
        if (child + 1 < room->heap_n && room->heap[child + 1] < room->heap[child])
            child++;
        if (room->heap[child] >= last)
            break;
        room->heap[i] = room->heap[child];
        i = child;
    }
    room->heap[i] = last;
    return top;
}

static void push_pair(const bpe *b, bpe_room *room, bpe_symbol *s, uint32_t position)
{
    s[position].rank = BPE_NO_RANK;
    if (s[position].next == UINT32_MAX)
        return;
    rank_pair(b, &s[position], &s[s[position].next]);
    if (s[position].rank != BPE_NO_RANK)
        heap_push(room, s[position].rank, position);
}

/* Every join pushes at most two entries, so n first ones and 2 per join fit in 3n. An entry is stale when its pair has
 * another rank by now. */
static fsdp_status join_long(const bpe *b, bpe_room *room, bpe_symbol *s, size_t *n)
{
    if (room->heap_capacity < 3 * *n)
        FSDP_TRY(array_grow((void **)&room->heap, &room->heap_capacity, 3 * *n, sizeof *room->heap));
    room->heap_n = 0;
    for (size_t i = 0; i < *n; i++) {
        s[i].prev = i == 0 ? UINT32_MAX : (uint32_t)i - 1;
        s[i].next = i + 1 == *n ? UINT32_MAX : (uint32_t)i + 1;
    }
    for (size_t i = 0; i < *n; i++)
        push_pair(b, room, s, (uint32_t)i);
    while (room->heap_n > 0) {
        uint64_t entry = heap_pop(room);
        uint32_t at = (uint32_t)entry, right = s[at].next;
        if (s[at].rank != entry >> 32)
            continue;
        s[at].id = s[at].whole;
        s[at].next = s[right].next;
        s[right].rank = BPE_NO_RANK;
        if (s[at].next != UINT32_MAX)
            s[s[at].next].prev = at;
        push_pair(b, room, s, at);
        if (s[at].prev != UINT32_MAX)
            push_pair(b, room, s, s[at].prev);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != UINT32_MAX; i = s[i].next)
        s[kept++].id = s[i].id;
    *n = kept;
    return FSDP_OK;
}

/* --- words ------------------------------------------------------------------------------------------------------- */

static fsdp_status encode_new(const bpe *b, bpe_room *room, const char *word, size_t bytes, id_vector *ids)
{
    size_t n = bytes, affixes = b->prefix_bytes + b->suffix_bytes;
    size_t most = bytes * (1 + affixes); /* symbols: every byte, and every affix byte, at worst a token of its own */
    if (most >= UINT32_MAX)
        return error_set(FSDP_ERR_INPUT, "a word of %zu bytes is too long for the tokenizer", bytes);
    if (room->capacity < most)
        FSDP_TRY(array_grow((void **)&room->symbols, &room->capacity, most, sizeof *room->symbols));
    if (b->by_bytes != NULL) {
        first_symbols_of_bytes(b, room, word, bytes);
    } else {
        char affixed[4 + 256];
        if (affixes > 256)
            return error_set(FSDP_ERR_UNSUPPORTED, "a BPE prefix and suffix of %zu bytes together is not supported",
                             affixes);
        FSDP_TRY(first_symbols(b, room, word, bytes, affixed, &n));
    }
    if (n <= SHORT_WORD)
        n = join_short(b, room->symbols, n);
    else
        FSDP_TRY(join_long(b, room, room->symbols, &n));
    FSDP_TRY(id_reserve(ids, n));
    for (size_t i = 0; i < n; i++)
        ids->data[ids->n++] = room->symbols[i].id;
    return FSDP_OK;
}

static fsdp_status encode_word(const bpe *b, bpe_room *room, const char *word, size_t bytes, id_vector *ids)
{
    uint64_t hash = 0;
    size_t n, before = ids->n;
    bool cached = bytes <= WORD_CACHE_LONGEST;
    const int32_t *known = cached ? word_cache_find(room->cache, word, bytes, &n, &hash) : NULL;
    if (known != NULL)
        return id_append_all(ids, known, n);
    const vocabulary *whole = b->by_bytes != NULL ? b->by_bytes : b->tokens;
    int32_t id = -1;
    if (b->ignore_merges && bytes <= vocabulary_longest(whole))
        id = vocabulary_id(whole, word, bytes);
    if (id >= 0)
        FSDP_TRY(id_append(ids, id));
    else
        FSDP_TRY(encode_new(b, room, word, bytes, ids));
    if (cached)
        word_cache_add(room->cache, word, bytes, hash, ids->data + before, ids->n - before);
    return FSDP_OK;
}

/* Where the part that starts at `start` ends: in front of the first mark that does not follow a mark. */
static size_t part_end(const char *text, size_t bytes, size_t start)
{
    bool after_mark = true; /* a mark at the very start belongs to the part */
    for (size_t i = start; i < bytes;) {
        if (text[i] == BPE_MARK[0] && i + BPE_MARK_BYTES <= bytes && memcmp(text + i, BPE_MARK, BPE_MARK_BYTES) == 0) {
            if (!after_mark)
                return i;
            i += BPE_MARK_BYTES;
        } else {
            after_mark = false;
            i++;
        }
    }
    return bytes;
}

fsdp_status bpe_encode(const bpe *b, bpe_room *room, const char *word, size_t bytes, id_vector *ids)
{
    if (!b->cuts_at_mark || b->by_bytes != NULL)
        return encode_word(b, room, word, bytes, ids);
    for (size_t start = 0, end; start < bytes; start = end) {
        end = part_end(word, bytes, start);
        FSDP_TRY(encode_word(b, room, word + start, end - start, ids));
    }
    return FSDP_OK;
}
