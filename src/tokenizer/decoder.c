/* Each decoder turns a list of tokens into another; a chain alternates between two lists, and what is left at the end
 * is put together. */
#include "tokenizer/decoder.h"

#include <stdlib.h>

#include "tokenizer/model/byte_alphabet.h"
#include "tokenizer/component.h"
#include "tokenizer/text/utf8.h"

typedef enum turn_kind {
    TURN_SEQUENCE,
    TURN_BYTE_LEVEL,
    TURN_METASPACE,
    TURN_BYTE_FALLBACK,
    TURN_FUSE,
    TURN_STRIP,
    TURN_REPLACE,
    TURN_BPE,
    TURN_WORD_PIECE,
    TURN_CTC,
} turn_kind;

static const component_kind kinds[] = {
    {"Sequence", TURN_SEQUENCE},
    {"ByteLevel", TURN_BYTE_LEVEL},
    {"Metaspace", TURN_METASPACE},
    {"ByteFallback", TURN_BYTE_FALLBACK},
    {"Fuse", TURN_FUSE},
    {"Strip", TURN_STRIP},
    {"Replace", TURN_REPLACE},
    {"BPEDecoder", TURN_BPE},
    {"WordPiece", TURN_WORD_PIECE},
    {"CTC", TURN_CTC},
    {NULL, 0},
};

typedef struct turn {
    turn_kind kind;
    pattern *pattern; /* TURN_REPLACE, TURN_BPE */
    char *content;    /* TURN_REPLACE; TURN_WORD_PIECE: the prefix; TURN_CTC: the token for nothing */
    size_t content_bytes;
    char *delimiter;   /* TURN_CTC: stands for a space */
    bool cleanup;      /* TURN_WORD_PIECE, TURN_CTC: spaces in front of punctuation go */
    char character[4]; /* TURN_METASPACE, TURN_STRIP */
    size_t character_bytes;
    bool drop_first;     /* TURN_METASPACE: the first token loses its marks */
    int64_t start, stop; /* TURN_STRIP: at most so many from each end */
} turn;

struct decoder {
    const unicode *unicode;
    byte_alphabet alphabet;
    turn *turns;
    size_t n_turns, capacity;
    bool joins_with_spaces; /* there is no decoder */
};

fsdp_status token_list_add(token_list *l, const char *text, size_t bytes)
{
    size_t start = l->text.bytes;
    FSDP_TRY(text_append(&l->text, text, bytes));
    return span_append(&l->tokens, start, start + bytes, 0);
}

void token_list_clear(token_list *l)
{
    l->text.bytes = 0;
    l->tokens.n = 0;
}

void decoder_room_free(decoder_room *room)
{
    for (int i = 0; i < 2; i++) {
        text_free(&room->lists[i].text);
        span_free(&room->lists[i].tokens);
    }
    text_free(&room->scratch);
    pattern_room_free(&room->search);
}

static fsdp_status read_replace(const char *name, const json_t *object, const unicode *u, turn *t)
{
    const char *content = NULL;
    FSDP_TRY(component_pattern(name, object, "pattern", u, &t->pattern));
    FSDP_TRY(component_text(name, object, "content", &content, &t->content_bytes));
    t->content = malloc(t->content_bytes + 1);
    if (t->content == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a decoder", name);
    memcpy(t->content, content, t->content_bytes);
    return FSDP_OK;
}

static fsdp_status keep_text(const char *name, const json_t *object, const char *key, char **out)
{
    const char *text = NULL;
    FSDP_TRY(json_get_string(name, object, key, &text));
    *out = strdup(text);
    return *out != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory for a decoder", name);
}

static fsdp_status read_words(const char *name, const json_t *object, turn *t)
{
    bool ctc = t->kind == TURN_CTC;
    t->cleanup = true;
    FSDP_TRY(json_opt_bool(name, object, "cleanup", &t->cleanup));
    FSDP_TRY(keep_text(name, object, ctc ? "pad_token" : "prefix", &t->content));
    t->content_bytes = strlen(t->content);
    return ctc ? keep_text(name, object, "word_delimiter_token", &t->delimiter) : FSDP_OK;
}

static fsdp_status read_turn(const char *name, const json_t *object, const unicode *u, turn *t)
{
    const char *scheme = "always", *suffix = "</w>";
    switch (t->kind) {
    case TURN_METASPACE:
        FSDP_TRY(json_opt_string(name, object, "prepend_scheme", &scheme));
        t->drop_first = strcmp(scheme, "never") != 0;
        return component_character(name, object, "replacement", t->character, &t->character_bytes);
    case TURN_STRIP:
        FSDP_TRY(json_get_int(name, object, "start", &t->start));
        FSDP_TRY(json_get_int(name, object, "stop", &t->stop));
        return component_character(name, object, "content", t->character, &t->character_bytes);
    case TURN_REPLACE:
        return read_replace(name, object, u, t);
    case TURN_BPE:
        FSDP_TRY(json_opt_string(name, object, "suffix", &suffix));
        if (suffix[0] == '\0')
            return error_set(FSDP_ERR_UNSUPPORTED, "%s: a BPEDecoder with an empty suffix is not supported", name);
        return pattern_literal(name, suffix, strlen(suffix), u, &t->pattern);
    case TURN_WORD_PIECE:
    case TURN_CTC:
        return read_words(name, object, t);
    default:
        return FSDP_OK;
    }
}

static fsdp_status add_turns(decoder *d, const char *name, const json_t *object)
{
    int kind = 0;
    FSDP_TRY(component_find(name, "decoder", object, kinds, &kind));
    if (kind == TURN_SEQUENCE) {
        json_t *members, *member;
        size_t i;
        FSDP_TRY(component_array(name, object, "decoders", &members));
        json_array_foreach(members, i, member) FSDP_TRY(add_turns(d, name, member));
        return FSDP_OK;
    }
    FSDP_TRY(component_count(name, "decoder", d->n_turns));
    if (d->n_turns == d->capacity)
        FSDP_TRY(array_grow((void **)&d->turns, &d->capacity, d->n_turns + 1, sizeof *d->turns));
    turn *t = &d->turns[d->n_turns++];
    *t = (turn){.kind = (turn_kind)kind};
    return read_turn(name, object, d->unicode, t);
}

fsdp_status decoder_create(const char *name, const json_t *object, const unicode *u, decoder **out)
{
    decoder *d = calloc(1, sizeof *d);
    if (d == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a decoder", name);
    d->unicode = u;
    d->joins_with_spaces = object == NULL || json_is_null(object);
    byte_alphabet_init(&d->alphabet);
    fsdp_status status = d->joins_with_spaces ? FSDP_OK : add_turns(d, name, object);
    if (status != FSDP_OK) {
        decoder_free(d);
        return status;
    }
    *out = d;
    return FSDP_OK;
}

void decoder_free(decoder *d)
{
    if (d == NULL)
        return;
    for (size_t i = 0; i < d->n_turns; i++) {
        pattern_free(d->turns[i].pattern);
        free(d->turns[i].content);
        free(d->turns[i].delimiter);
    }
    free(d->turns);
    free(d);
}

/* All bytes that the tokens spell, as one text; a token outside the alphabet stands for itself. */
static fsdp_status turn_byte_level(const decoder *d, decoder_room *room, const token_list *from, token_list *to)
{
    bool spelled;
    room->scratch.bytes = 0;
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        const char *token = from->text.data + s.start;
        FSDP_TRY(byte_alphabet_decode(&d->alphabet, token, s.end - s.start, &room->scratch, &spelled));
        if (!spelled)
            FSDP_TRY(text_append(&room->scratch, token, s.end - s.start));
    }
    FSDP_TRY(utf8_repair(room->scratch.data, room->scratch.bytes, &to->text));
    return span_append(&to->tokens, 0, to->text.bytes, 0);
}

static fsdp_status turn_metaspace(const turn *t, const token_list *from, token_list *to)
{
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        size_t start = to->text.bytes;
        for (size_t at = s.start, length; at < s.end; at += length) {
            const char *p = from->text.data + at;
            length = utf8_length((uint8_t)*p);
            if (length != t->character_bytes || memcmp(p, t->character, length) != 0)
                FSDP_TRY(text_append(&to->text, p, length));
            else if (i > 0 || !t->drop_first)
                FSDP_TRY(text_append(&to->text, " ", 1));
        }
        FSDP_TRY(span_append(&to->tokens, start, to->text.bytes, 0));
    }
    return FSDP_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The byte that "<0x41>" names, -1 for any other token. Rust's parser also takes "+5" as a number. */
static int named_byte(const char *token, size_t bytes)
{
    if (bytes != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = hex_digit(token[3]), low = hex_digit(token[4]);
    if (token[3] == '+')
        high = 0;
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Puts the bytes that were gathered out: as text when they are UTF-8, else as one U+FFFD for each. */
static fsdp_status flush_bytes(text_buffer *gathered, token_list *to)
{
    if (gathered->bytes > 0 && utf8_valid_bytes(gathered->data, gathered->bytes) == gathered->bytes) {
        FSDP_TRY(token_list_add(to, gathered->data, gathered->bytes));
    } else {
        for (size_t i = 0; i < gathered->bytes; i++)
            FSDP_TRY(token_list_add(to, UTF8_REPLACEMENT, 3));
    }
    gathered->bytes = 0;
    return FSDP_OK;
}

static fsdp_status turn_byte_fallback(decoder_room *room, const token_list *from, token_list *to)
{
    room->scratch.bytes = 0;
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        const char *token = from->text.data + s.start;
        int byte = named_byte(token, s.end - s.start);
        char c = (char)byte;
        if (byte >= 0) {
            FSDP_TRY(text_append(&room->scratch, &c, 1));
            continue;
        }
        FSDP_TRY(flush_bytes(&room->scratch, to));
        FSDP_TRY(token_list_add(to, token, s.end - s.start));
    }
    return flush_bytes(&room->scratch, to);
}

static bool is_character(const turn *t, const char *p, size_t length)
{
    return length == t->character_bytes && memcmp(p, t->character, length) == 0;
}

static fsdp_status turn_strip(const turn *t, const token_list *from, token_list *to)
{
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        const char *text = from->text.data;
        for (int64_t n = t->start; n > 0 && s.start < s.end; n--) {
            size_t length = utf8_length((uint8_t)text[s.start]);
            if (!is_character(t, text + s.start, length))
                break;
            s.start += length;
        }
        for (int64_t n = t->stop; n > 0 && s.start < s.end; n--) {
            size_t length = utf8_last_length(text + s.start, s.end - s.start);
            if (!is_character(t, text + s.end - length, length))
                break;
            s.end -= length;
        }
        FSDP_TRY(token_list_add(to, text + s.start, s.end - s.start));
    }
    return FSDP_OK;
}

/* TURN_BPE: the suffix that ends words becomes a space, or nothing in the last token. */
static fsdp_status turn_replace(const turn *t, decoder_room *room, const token_list *from, token_list *to)
{
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        bool bpe = t->kind == TURN_BPE, last = i + 1 == from->tokens.n;
        size_t start = to->text.bytes;
        FSDP_TRY(pattern_replace(t->pattern, &room->search, from->text.data + s.start, s.end - s.start,
                                 bpe ? " " : t->content, bpe ? (last ? 0 : 1) : t->content_bytes, &to->text, NULL));
        FSDP_TRY(span_append(&to->tokens, start, to->text.bytes, 0));
    }
    return FSDP_OK;
}

/* Replaces `from` in text->data[start..) by `with`, which is no longer. */
static void replace_from(text_buffer *text, size_t start, const char *from, const char *with)
{
    size_t from_bytes = strlen(from), with_bytes = strlen(with), to = start;
    for (size_t i = start; i < text->bytes;) {
        bool found = from_bytes > 0 && text->bytes - i >= from_bytes && memcmp(text->data + i, from, from_bytes) == 0;
        if (found)
            memcpy(text->data + to, with, with_bytes);
        else
            text->data[to] = text->data[i];
        i += found ? from_bytes : 1;
        to += found ? with_bytes : 1;
    }
    text->bytes = to;
}

/* English as people write it, by the library's list and in its order. */
static void clean_up(text_buffer *text, size_t start)
{
    static const char *const list[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                          {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                          {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        replace_from(text, start, list[i][0], list[i][1]);
}

/* Pieces with the prefix join the word before them. */
static fsdp_status turn_word_piece(const turn *t, const token_list *from, token_list *to)
{
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        size_t start = to->text.bytes;
        const char *token = from->text.data + s.start;
        size_t bytes = s.end - s.start;
        bool joins = bytes >= t->content_bytes && memcmp(token, t->content, t->content_bytes) == 0;
        size_t skip = i > 0 && joins ? t->content_bytes : 0;
        if (i > 0 && !joins)
            FSDP_TRY(text_append(&to->text, " ", 1));
        FSDP_TRY(text_append(&to->text, token + skip, bytes - skip));
        if (t->cleanup)
            clean_up(&to->text, start);
        FSDP_TRY(span_append(&to->tokens, start, to->text.bytes, 0));
    }
    return FSDP_OK;
}

/* Repeated tokens are one; the token for nothing goes. */
static fsdp_status turn_ctc(const turn *t, const token_list *from, token_list *to)
{
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i], before = i > 0 ? from->tokens.data[i - 1] : (text_span){0};
        size_t start = to->text.bytes, bytes = s.end - s.start;
        const char *token = from->text.data + s.start;
        if (i > 0 && before.end - before.start == bytes && memcmp(from->text.data + before.start, token, bytes) == 0)
            continue;
        FSDP_TRY(text_append(&to->text, token, bytes));
        replace_from(&to->text, start, t->content, "");
        if (t->cleanup) {
            clean_up(&to->text, start);
            replace_from(&to->text, start, t->delimiter, " ");
        }
        if (to->text.bytes > start)
            FSDP_TRY(span_append(&to->tokens, start, to->text.bytes, 0));
    }
    return FSDP_OK;
}

static fsdp_status apply_turn(const decoder *d, const turn *t, decoder_room *room, const token_list *from,
                              token_list *to)
{
    switch (t->kind) {
    case TURN_BYTE_LEVEL:
        return turn_byte_level(d, room, from, to);
    case TURN_METASPACE:
        return turn_metaspace(t, from, to);
    case TURN_BYTE_FALLBACK:
        return turn_byte_fallback(room, from, to);
    case TURN_FUSE:
        for (size_t i = 0; i < from->tokens.n; i++) {
            text_span s = from->tokens.data[i];
            FSDP_TRY(text_append(&to->text, from->text.data + s.start, s.end - s.start));
        }
        return span_append(&to->tokens, 0, to->text.bytes, 0);
    case TURN_STRIP:
        return turn_strip(t, from, to);
    case TURN_REPLACE:
    case TURN_BPE:
        return turn_replace(t, room, from, to);
    case TURN_WORD_PIECE:
        return turn_word_piece(t, from, to);
    case TURN_CTC:
        return turn_ctc(t, from, to);
    case TURN_SEQUENCE:
        break;
    }
    return error_set(FSDP_ERR_STATE, "a sequence of decoders was not taken apart");
}

fsdp_status decoder_apply(const decoder *d, decoder_room *room, const char **text, size_t *bytes)
{
    token_list *from = &room->lists[0], *to = &room->lists[1];
    size_t most = text_most(from->text.bytes);
    pattern_room_begin(&room->search, from->text.bytes);
    room->lists[0].text.limit = room->lists[1].text.limit = room->scratch.limit = most;
    for (size_t i = 0; i < d->n_turns; i++) {
        token_list_clear(to);
        FSDP_TRY(text_reserve(&to->text, from->text.bytes));
        FSDP_TRY(apply_turn(d, &d->turns[i], room, from, to));
        token_list *swap = from;
        from = to;
        to = swap;
    }
    token_list_clear(to);
    for (size_t i = 0; i < from->tokens.n; i++) {
        text_span s = from->tokens.data[i];
        if (d->joins_with_spaces && i > 0)
            FSDP_TRY(text_append(&to->text, " ", 1));
        FSDP_TRY(text_append(&to->text, from->text.data + s.start, s.end - s.start));
    }
    FSDP_TRY(text_reserve(&to->text, 1));
    to->text.data[to->text.bytes] = '\0';
    *text = to->text.data;
    *bytes = to->text.bytes;
    return FSDP_OK;
}
