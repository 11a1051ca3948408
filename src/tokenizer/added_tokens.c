/* Two tries, one for each kind of token, searched leftmost-longest; then the rules on word borders and on spaces. */
#include "tokenizer/added_tokens.h"

#include <stdlib.h>

#include "base/log.h"
#include "tokenizer/component.h"
#include "tokenizer/model/trie.h"
#include "tokenizer/text/utf8.h"

typedef struct added_token {
    bool single_word, left_strip, right_strip, normalized, special;
    char *spelling; /* when normalizing changes it; NULL: the content */
    size_t spelling_bytes;
} added_token;

typedef struct finder {
    trie *trie;
    bool starts[256]; /* bytes that begin some token */
    bool any;
} finder;

struct added_tokens {
    const unicode *unicode;
    vocabulary *contents;
    vocabulary *specials; /* contents that were special at least once */
    added_token *tokens;  /* by id */
    size_t capacity;
    finder finders[2]; /* [normalized] */
};

void added_tokens_free(added_tokens *a)
{
    if (a == NULL)
        return;
    trie_free(a->finders[0].trie);
    trie_free(a->finders[1].trie);
    for (size_t i = 0; i < a->capacity; i++)
        free(a->tokens[i].spelling);
    free(a->tokens);
    vocabulary_free(a->specials);
    vocabulary_free(a->contents);
    free(a);
}

static fsdp_status grow_to(added_tokens *a, int32_t id)
{
    size_t before = a->capacity;
    if ((size_t)id < before)
        return FSDP_OK;
    FSDP_TRY(array_grow((void **)&a->tokens, &a->capacity, (size_t)id + 1, sizeof *a->tokens));
    memset(a->tokens + before, 0, (a->capacity - before) * sizeof *a->tokens);
    return FSDP_OK;
}

/* The token's own normalized spelling, kept when it differs from the content. */
static fsdp_status spell(const normalizer *n, normalizer_room *room, const char *content, size_t bytes, added_token *t)
{
    const char *text = NULL;
    size_t text_bytes;
    free(t->spelling);
    t->spelling = NULL;
    if (!t->normalized)
        return FSDP_OK;
    FSDP_TRY(normalizer_apply(n, room, content, bytes, false, &text, &text_bytes));
    if (text_bytes == bytes && memcmp(text, content, bytes) == 0)
        return FSDP_OK;
    t->spelling = malloc(text_bytes + 1);
    if (t->spelling == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for an added token");
    memcpy(t->spelling, text, text_bytes);
    t->spelling[text_bytes] = '\0';
    t->spelling_bytes = text_bytes;
    return FSDP_OK;
}

static fsdp_status read_flags(const char *name, const json_t *entry, added_token *t)
{
    FSDP_TRY(json_opt_bool(name, entry, "single_word", &t->single_word));
    FSDP_TRY(json_opt_bool(name, entry, "lstrip", &t->left_strip));
    FSDP_TRY(json_opt_bool(name, entry, "rstrip", &t->right_strip));
    FSDP_TRY(json_opt_bool(name, entry, "normalized", &t->normalized));
    return json_opt_bool(name, entry, "special", &t->special);
}

static fsdp_status read_token(const char *name, const json_t *entry, const vocabulary *model, const normalizer *n,
                              normalizer_room *room, int32_t *next_id, added_tokens *a)
{
    const char *content = NULL;
    size_t bytes = 0;
    int64_t stated = INT64_MIN;
    added_token t = {0};
    FSDP_TRY(component_text(name, entry, "content", &content, &bytes));
    FSDP_TRY(read_flags(name, entry, &t));
    FSDP_TRY(json_opt_int(name, entry, "id", &stated));
    if (stated != INT64_MIN && (stated < 0 || stated >= VOCABULARY_MAX_ID))
        return error_set(FSDP_ERR_INPUT, "%s: added token \"%s\" has id %lld, which is outside 0..%d", name, content,
                         (long long)stated, VOCABULARY_MAX_ID - 1);
    if (bytes == 0)
        return FSDP_OK;
    int32_t id = vocabulary_id(a->contents, content, bytes);
    if (id < 0)
        id = vocabulary_id(model, content, bytes);
    if (id < 0)
        id = (*next_id)++;
    if (stated >= 0 && stated != id)
        log_write(FSDP_LOG_WARNING, "%s: added token \"%s\" states id %lld; its place in the vocabulary is %d", name,
                  content, (long long)stated, id);
    FSDP_TRY(vocabulary_add(a->contents, content, bytes, id));
    if (t.special)
        FSDP_TRY(vocabulary_add(a->specials, content, bytes, id));
    FSDP_TRY(grow_to(a, id));
    t.spelling = a->tokens[id].spelling;
    a->tokens[id] = t;
    return spell(n, room, content, bytes, &a->tokens[id]);
}

const char *added_tokens_spelling(const added_tokens *a, int32_t id, size_t *bytes)
{
    const char *content = vocabulary_text(a->contents, id, bytes);
    if (content == NULL || a->tokens[id].spelling == NULL)
        return content;
    if (bytes != NULL)
        *bytes = a->tokens[id].spelling_bytes;
    return a->tokens[id].spelling;
}

static fsdp_status build_finders(const char *name, added_tokens *a)
{
    FSDP_TRY(trie_create(&a->finders[0].trie));
    FSDP_TRY(trie_create(&a->finders[1].trie));
    for (int32_t id = 0; id < vocabulary_end(a->contents); id++) {
        size_t bytes;
        bool fresh;
        const char *spelling = added_tokens_spelling(a, id, &bytes);
        if (spelling == NULL)
            continue;
        finder *f = &a->finders[a->tokens[id].normalized];
        if (bytes == 0)
            return error_set(FSDP_ERR_INPUT, "%s: nothing is left of added token \"%s\" when it is normalized", name,
                             vocabulary_text(a->contents, id, NULL));
        FSDP_TRY(trie_add(f->trie, spelling, bytes, id, &fresh));
        if (!fresh)
            return error_set(FSDP_ERR_INPUT, "%s: two added tokens are the same when normalized: \"%s\"", name,
                             spelling);
        f->starts[(uint8_t)spelling[0]] = true;
        f->any = true;
    }
    return FSDP_OK;
}

fsdp_status added_tokens_create(const char *name, const json_t *array, const vocabulary *model, const normalizer *n,
                                const unicode *u, added_tokens **out)
{
    json_t *entry = NULL;
    size_t i;
    fsdp_status status;
    normalizer_room room = {0};
    int32_t next_id = (int32_t)vocabulary_count(model);
    added_tokens *a = calloc(1, sizeof *a);
    if (a == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    a->unicode = u;
    TRY_OR(fail, vocabulary_create(64, &a->contents));
    TRY_OR(fail, vocabulary_create(64, &a->specials));
    if (array != NULL && !json_is_null(array) && !json_is_array(array))
        TRY_OR(fail, error_set(FSDP_ERR_INPUT, "%s: \"added_tokens\" must be an array", name));
    json_array_foreach(array, i, entry) TRY_OR(fail, read_token(name, entry, model, n, &room, &next_id, a));
    TRY_OR(fail, build_finders(name, a));
    normalizer_room_free(&room);
    *out = a;
    return FSDP_OK;
fail:
    normalizer_room_free(&room);
    added_tokens_free(a);
    return status;
}

const vocabulary *added_tokens_vocabulary(const added_tokens *a)
{
    return a->contents;
}

bool added_tokens_is_special(const added_tokens *a, const char *text, size_t bytes)
{
    return vocabulary_id(a->specials, text, bytes) >= 0;
}

/* Whether a token can be told from the letters and the space around a cut: it has neither, or spaces only. */
static bool allows_cuts(const added_tokens *a, const added_token *t, const char *text, size_t bytes, bool start_matters)
{
    bool any_space = false, all_space = true, is_letter = false;
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t point = utf8_decode(text + i, &length);
        /* U+2581 and U+0120 are what spaces become in normalized text, U+010A what line breaks do. */
        bool space =
            unicode_class(a->unicode, point) & UNICODE_WHITE || point == 0x2581 || point == 0x120 || point == 0x10A;
        is_letter = unicode_class(a->unicode, point) & UNICODE_LETTER;
        any_space = any_space || space;
        all_space = all_space && space;
    }
    if (any_space)
        return all_space && !t->single_word;
    return !is_letter || !(t->right_strip || start_matters);
}

bool added_tokens_allow_cuts(const added_tokens *a, bool start_matters)
{
    for (int32_t id = 0; id < vocabulary_end(a->contents); id++) {
        size_t bytes;
        const char *text = added_tokens_spelling(a, id, &bytes);
        if (text != NULL && !allows_cuts(a, &a->tokens[id], text, bytes, start_matters))
            return false;
    }
    return true;
}

static bool class_before(const added_tokens *a, const char *text, size_t at, uint8_t bits)
{
    size_t length;
    return at > 0 && (unicode_class(a->unicode, utf8_decode(text + at - utf8_last_length(text, at), &length)) & bits);
}

static bool class_behind(const added_tokens *a, const char *text, size_t bytes, size_t at, uint8_t bits)
{
    size_t length;
    return at < bytes && (unicode_class(a->unicode, utf8_decode(text + at, &length)) & bits);
}

/* Widens the token at [*start, *end) over the spaces that it strips, on the left no further than `done`. */
static void strip_spaces(const added_tokens *a, const added_token *t, const char *text, size_t bytes, size_t done,
                         size_t *start, size_t *end)
{
    if (t->left_strip) {
        size_t left = *start;
        while (class_before(a, text, left, UNICODE_WHITE))
            left -= utf8_last_length(text, left);
        *start = left > done ? left : done;
    }
    while (t->right_strip && class_behind(a, text, bytes, *end, UNICODE_WHITE))
        *end += utf8_length((uint8_t)text[*end]);
}

fsdp_status added_tokens_split(const added_tokens *a, bool normalized, const char *text, size_t bytes,
                               span_vector *spans)
{
    const finder *f = &a->finders[normalized];
    size_t done = 0; /* up to here everything is in spans */
    int32_t id = -1;
    for (size_t at = 0; f->any && at < bytes;) {
        size_t length = f->starts[(uint8_t)text[at]] ? trie_longest(f->trie, text + at, bytes - at, &id) : 0;
        if (length == 0) {
            at++;
            continue;
        }
        size_t start = at, end = at + length;
        const added_token *t = &a->tokens[id];
        at = end;
        if (t->single_word &&
            (class_before(a, text, start, UNICODE_WORD) || class_behind(a, text, bytes, end, UNICODE_WORD)))
            continue;
        strip_spaces(a, t, text, bytes, done, &start, &end);
        if (done < start)
            FSDP_TRY(span_append(spans, done, start, 0));
        if (start < end) /* nothing is left of a space that the token before has stripped */
            FSDP_TRY(span_append(spans, start, end, id + 1));
        done = end;
    }
    return done < bytes ? span_append(spans, done, bytes, 0) : FSDP_OK;
}
