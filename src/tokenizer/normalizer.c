/* Each normalizer appends its rewriting to a buffer; a chain alternates between two. Character tables are unicode.c's,
 * the SentencePiece map is charsmap.c's. */
#include "tokenizer/normalizer.h"

#include <ctype.h>
#include <stdlib.h>

#include "tokenizer/model/byte_alphabet.h"
#include "tokenizer/text/charsmap.h"
#include "tokenizer/component.h"
#include "tokenizer/text/utf8.h"

typedef enum step_kind {
    STEP_SEQUENCE,
    STEP_NFC,
    STEP_NFD,
    STEP_NFKC,
    STEP_NFKD,
    STEP_LOWERCASE,
    STEP_STRIP,
    STEP_STRIP_ACCENTS,
    STEP_REPLACE,
    STEP_PREPEND,
    STEP_PRECOMPILED,
    STEP_BYTE_LEVEL,
    STEP_NMT,
    STEP_BERT,
} step_kind;

static const component_kind kinds[] = {
    {"Sequence", STEP_SEQUENCE},
    {"NFC", STEP_NFC},
    {"NFD", STEP_NFD},
    {"NFKC", STEP_NFKC},
    {"NFKD", STEP_NFKD},
    {"Lowercase", STEP_LOWERCASE},
    {"Strip", STEP_STRIP},
    {"StripAccents", STEP_STRIP_ACCENTS},
    {"Replace", STEP_REPLACE},
    {"Prepend", STEP_PREPEND},
    {"Precompiled", STEP_PRECOMPILED},
    {"ByteLevel", STEP_BYTE_LEVEL},
    {"Nmt", STEP_NMT},
    {"BertNormalizer", STEP_BERT},
    {NULL, 0},
};

typedef struct step {
    step_kind kind;
    bool strip_left, strip_right;
    bool clean, chinese, accents, lower; /* STEP_BERT */
    pattern *pattern;
    charsmap *map;
    char *content;
    size_t content_bytes;
} step;

struct normalizer {
    const unicode *unicode;
    byte_alphabet alphabet;
    step *steps;
    size_t n_steps, capacity;
};

static fsdp_status keep_content(const char *name, const json_t *object, const char *key, step *s)
{
    const char *text = NULL;
    FSDP_TRY(component_text(name, object, key, &text, &s->content_bytes));
    s->content = malloc(s->content_bytes + 1);
    if (s->content == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a normalizer", name);
    memcpy(s->content, text, s->content_bytes);
    return FSDP_OK;
}

static fsdp_status try_replace(const char *name, const step *s);

/* Accents go with capitals unless the file says otherwise. */
static fsdp_status read_bert(const char *name, const json_t *object, step *s)
{
    s->clean = s->chinese = s->lower = true;
    FSDP_TRY(json_opt_bool(name, object, "clean_text", &s->clean));
    FSDP_TRY(json_opt_bool(name, object, "handle_chinese_chars", &s->chinese));
    FSDP_TRY(json_opt_bool(name, object, "lowercase", &s->lower));
    s->accents = s->lower;
    return json_opt_bool(name, object, "strip_accents", &s->accents);
}

static fsdp_status read_step(const char *name, const json_t *object, const unicode *u, step *s)
{
    const char *text = NULL;
    size_t bytes = 0;
    switch (s->kind) {
    case STEP_STRIP:
        FSDP_TRY(json_opt_bool(name, object, "strip_left", &s->strip_left));
        return json_opt_bool(name, object, "strip_right", &s->strip_right);
    case STEP_REPLACE:
        FSDP_TRY(component_pattern(name, object, "pattern", u, &s->pattern));
        FSDP_TRY(keep_content(name, object, "content", s));
        return try_replace(name, s);
    case STEP_BERT:
        return read_bert(name, object, s);
    case STEP_PREPEND:
        return keep_content(name, object, "prepend", s);
    case STEP_PRECOMPILED:
        FSDP_TRY(component_text(name, object, "precompiled_charsmap", &text, &bytes));
        return charsmap_create(name, text, bytes, &s->map);
    default:
        return FSDP_OK;
    }
}

static fsdp_status add_steps(normalizer *n, const char *name, const json_t *object)
{
    int kind = 0;
    FSDP_TRY(component_find(name, "normalizer", object, kinds, &kind));
    if (kind == STEP_SEQUENCE) {
        json_t *members, *member;
        size_t i;
        FSDP_TRY(component_array(name, object, "normalizers", &members));
        json_array_foreach(members, i, member) FSDP_TRY(add_steps(n, name, member));
        return FSDP_OK;
    }
    FSDP_TRY(component_count(name, "normalizer", n->n_steps));
    if (n->n_steps == n->capacity)
        FSDP_TRY(array_grow((void **)&n->steps, &n->capacity, n->n_steps + 1, sizeof *n->steps));
    step *s = &n->steps[n->n_steps++];
    *s = (step){.kind = (step_kind)kind};
    return read_step(name, object, n->unicode, s);
}

fsdp_status normalizer_create(const char *name, const json_t *object, const unicode *u, normalizer **out)
{
    normalizer *n = calloc(1, sizeof *n);
    if (n == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a normalizer", name);
    n->unicode = u;
    byte_alphabet_init(&n->alphabet);
    fsdp_status status = object == NULL || json_is_null(object) ? FSDP_OK : add_steps(n, name, object);
    if (status != FSDP_OK) {
        normalizer_free(n);
        return status;
    }
    *out = n;
    return FSDP_OK;
}

void normalizer_free(normalizer *n)
{
    if (n == NULL)
        return;
    for (size_t i = 0; i < n->n_steps; i++) {
        pattern_free(n->steps[i].pattern);
        charsmap_free(n->steps[i].map);
        free(n->steps[i].content);
    }
    free(n->steps);
    free(n);
}

void normalizer_room_free(normalizer_room *room)
{
    text_free(&room->texts[0]);
    text_free(&room->texts[1]);
    text_free(&room->bert);
    id_free(&room->points);
    pattern_room_free(&room->search);
}

bool normalizer_is_empty(const normalizer *n)
{
    return n->n_steps == 0;
}

bool normalizer_drops_front(const normalizer *n)
{
    for (size_t i = 0; i < n->n_steps; i++) {
        step_kind kind = n->steps[i].kind;
        if (kind == STEP_STRIP || kind == STEP_STRIP_ACCENTS || kind == STEP_NMT || kind == STEP_PRECOMPILED ||
            kind == STEP_BERT || (kind == STEP_REPLACE && n->steps[i].content_bytes == 0))
            return true;
    }
    return false;
}

/* A Replace of one space, of runs of spaces, or of a string of punctuation: it neither joins nor parts letters. */
static bool replaces_locally(const step *s)
{
    size_t bytes;
    const char *literal = pattern_literal_text(s->pattern, &bytes);
    if (literal == NULL)
        return pattern_is_spaces(s->pattern);
    if (bytes == 1 && literal[0] == ' ')
        return true;
    for (size_t i = 0; i < bytes; i++)
        if (!ispunct((unsigned char)literal[i]))
            return false;
    return true;
}

bool normalizer_is_local(const normalizer *n)
{
    for (size_t i = 0; i < n->n_steps; i++)
        if (n->steps[i].kind == STEP_REPLACE && !replaces_locally(&n->steps[i]))
            return false;
    return true;
}

bool normalizer_asks_for_start(const normalizer *n)
{
    for (size_t i = 0; i < n->n_steps; i++)
        if (n->steps[i].kind == STEP_PREPEND || (n->steps[i].kind == STEP_STRIP && n->steps[i].strip_left))
            return true;
    return false;
}

static fsdp_status replace(const step *s, pattern_room *room, const char *text, size_t bytes, text_buffer *out)
{
    bool empty_front = false;
    FSDP_TRY(pattern_replace(s->pattern, room, text, bytes, s->content, s->content_bytes, out, &empty_front));
    if (empty_front) /* what later steps of the library make of this is not worth copying */
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "a Replace whose pattern matches nothing at the start of a text is not supported");
    return FSDP_OK;
}

/* Applied once when it is read, so that a pattern that cannot be used is refused early. */
static fsdp_status try_replace(const char *name, const step *s)
{
    text_buffer out = {.limit = text_most(s->content_bytes)};
    pattern_room room = {0};
    fsdp_status status = replace(s, &room, "a", 1, &out);
    pattern_room_free(&room);
    text_free(&out);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s: ", name);
}

static fsdp_status strip(const unicode *u, const step *s, const char *text, size_t bytes, bool continues,
                         text_buffer *out)
{
    size_t start = 0, end = bytes, length;
    while (s->strip_left && !continues && start < end &&
           unicode_class(u, utf8_decode(text + start, &length)) & UNICODE_WHITE)
        start += length;
    while (s->strip_right && end > start) {
        length = utf8_last_length(text, end);
        size_t ignored;
        if (!(unicode_class(u, utf8_decode(text + end - length, &ignored)) & UNICODE_WHITE))
            break;
        end -= length;
    }
    return text_append(out, text + start, end - start);
}

static fsdp_status strip_accents(const unicode *u, const char *text, size_t bytes, text_buffer *out)
{
    for (size_t i = 0, length; i < bytes; i += length)
        if (!(unicode_class(u, utf8_decode(text + i, &length)) & UNICODE_MARK))
            FSDP_TRY(text_append(out, text + i, length));
    return FSDP_OK;
}

/* SentencePiece's "nmt" rules: control characters go, odd spaces become plain ones. */
static fsdp_status nmt(const char *text, size_t bytes, text_buffer *out)
{
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t c = utf8_decode(text + i, &length);
        if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
            continue;
        bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
        FSDP_TRY(text_append(out, space ? " " : text + i, space ? 1 : length));
    }
    return FSDP_OK;
}

/* clean_text and handle_chinese_chars in one pass. */
static fsdp_status bert_clean(const unicode *u, const step *s, const char *text, size_t bytes, text_buffer *out)
{
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t c = utf8_decode(text + i, &length);
        uint8_t bits = unicode_bert(u, c);
        if (s->clean && bits & UNICODE_BERT_CONTROL)
            continue;
        bool space = s->clean && unicode_class(u, c) & UNICODE_WHITE;
        bool chinese = s->chinese && bits & UNICODE_BERT_CHINESE;
        FSDP_TRY(text_append(out, " ", chinese));
        FSDP_TRY(text_append(out, space ? " " : text + i, space ? 1 : length));
        FSDP_TRY(text_append(out, " ", chinese));
    }
    return FSDP_OK;
}

static fsdp_status bert_strip_accents(const unicode *u, const char *text, size_t bytes, text_buffer *out)
{
    for (size_t i = 0, length; i < bytes; i += length)
        if (!(unicode_bert(u, utf8_decode(text + i, &length)) & UNICODE_BERT_MARK))
            FSDP_TRY(text_append(out, text + i, length));
    return FSDP_OK;
}

/* BERT's own chain, each part of it optional; text goes back and forth between `out` and a buffer of the room. */
static fsdp_status bert(const unicode *u, const step *s, normalizer_room *room, const char *text, size_t bytes,
                        text_buffer *out)
{
    text_buffer *other = &room->bert;
    other->limit = out->limit;
    FSDP_TRY(bert_clean(u, s, text, bytes, out));
    if (s->accents) {
        other->bytes = 0;
        FSDP_TRY(unicode_normalize(FORM_NFD, out->data, out->bytes, other, &room->points));
        out->bytes = 0;
        FSDP_TRY(bert_strip_accents(u, other->data, other->bytes, out));
    }
    if (!s->lower)
        return FSDP_OK;
    other->bytes = 0;
    FSDP_TRY(unicode_lowercase(out->data, out->bytes, other));
    out->bytes = 0;
    return text_append(out, other->data, other->bytes);
}

static fsdp_status apply_step(const normalizer *n, const step *s, normalizer_room *room, const char *text, size_t bytes,
                              bool continues, text_buffer *out)
{
    switch (s->kind) {
    case STEP_NFC:
        return unicode_normalize(FORM_NFC, text, bytes, out, &room->points);
    case STEP_NFD:
        return unicode_normalize(FORM_NFD, text, bytes, out, &room->points);
    case STEP_NFKC:
        return unicode_normalize(FORM_NFKC, text, bytes, out, &room->points);
    case STEP_NFKD:
        return unicode_normalize(FORM_NFKD, text, bytes, out, &room->points);
    case STEP_LOWERCASE:
        return unicode_lowercase(text, bytes, out);
    case STEP_STRIP:
        return strip(n->unicode, s, text, bytes, continues, out);
    case STEP_STRIP_ACCENTS:
        return strip_accents(n->unicode, text, bytes, out);
    case STEP_REPLACE:
        return replace(s, &room->search, text, bytes, out);
    case STEP_PREPEND:
        if (bytes > 0 && !continues)
            FSDP_TRY(text_append(out, s->content, s->content_bytes));
        return text_append(out, text, bytes);
    case STEP_PRECOMPILED:
        return charsmap_apply(s->map, n->unicode, text, bytes, out);
    case STEP_BYTE_LEVEL:
        return byte_alphabet_encode(&n->alphabet, text, bytes, out);
    case STEP_NMT:
        return nmt(text, bytes, out);
    case STEP_BERT:
        return bert(n->unicode, s, room, text, bytes, out);
    case STEP_SEQUENCE:
        break;
    }
    return error_set(FSDP_ERR_STATE, "a sequence of normalizers was not taken apart");
}

fsdp_status normalizer_apply(const normalizer *n, normalizer_room *room, const char *text, size_t bytes, bool continues,
                             const char **out, size_t *out_bytes)
{
    size_t most = text_most(bytes);
    for (size_t i = 0; i < n->n_steps; i++) {
        text_buffer *to = &room->texts[i % 2];
        to->bytes = 0;
        to->limit = most;
        FSDP_TRY(text_reserve(to, bytes));
        FSDP_TRY(apply_step(n, &n->steps[i], room, text, bytes, continues, to));
        text = to->data;
        bytes = to->bytes;
    }
    *out = text;
    *out_bytes = bytes;
    return FSDP_OK;
}
