/* A cut stands in front of a separator (a space, a line break) that has a letter on both sides. What makes it safe:
 *
 *   added tokens    none reaches over the cut, and none in front of it strips the separator;
 *   normalizer      every step looks at single characters, or at strings that hold no letter next to a space; what it
 *                   does at the start of a text is left out where the text is a later part of another;
 *   pre-tokenizer   ends a word there, whatever else stands around;
 *   model           sees words, or is a BPE of which no merge crosses the separator.
 *
 * The letters are those that are one letter after the normalizer too; the separator is followed through the steps as
 * what the normalizer makes of it. */
#include "tokenizer/text_cut.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/model/bpe_internal.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/text/utf8.h"

/* What the normalizer makes of `text` inside a longer one; in `room`. */
static fsdp_status normalize(const tokenizer_tables *t, normalizer_room *room, const char *text, size_t bytes,
                             const char **out, size_t *out_bytes)
{
    return normalizer_apply(t->normalizer, room, text, bytes, true, out, out_bytes);
}

/* What becomes of a separator between two letters, where it is one of those that the steps below know. */
static fsdp_status separator_image(const tokenizer_tables *t, normalizer_room *room, char separator, const char **image)
{
    static const char *const known[] = {" ", "\n", BPE_MARK};
    const char text[3] = {'a', separator, 'a'}, *out;
    size_t bytes;
    *image = NULL;
    FSDP_TRY(normalize(t, room, text, sizeof text, &out, &bytes));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i]);
        if (bytes == n + 2 && out[0] == 'a' && memcmp(out + 1, known[i], n) == 0 && out[n + 1] == 'a')
            *image = known[i];
    }
    return FSDP_OK;
}

/* Whether a code point is one letter after the normalizer too. */
static fsdp_status stays_a_letter(const tokenizer_tables *t, normalizer_room *room, const char *text, size_t bytes,
                                  bool *stays)
{
    enum { NEITHER = UNICODE_MARK | UNICODE_WHITE | UNICODE_SPACE | UNICODE_PUNCTUATION | UNICODE_NUMERIC };
    size_t length, out_bytes;
    const char *out;
    uint8_t before = unicode_class(t->unicode, utf8_decode(text, &length));
    *stays = false;
    if (!(before & UNICODE_LETTER) || before & NEITHER)
        return FSDP_OK;
    FSDP_TRY(normalize(t, room, text, bytes, &out, &out_bytes));
    if (out_bytes == 0 || utf8_length((uint8_t)out[0]) != out_bytes)
        return FSDP_OK;
    uint8_t behind = unicode_class(t->unicode, utf8_decode(out, &length));
    *stays = behind & UNICODE_LETTER && !(behind & NEITHER);
    return FSDP_OK;
}

static bool cuts_at(const tokenizer_tables *t, const char *image)
{
    bool is_mark = false;
    if (image == NULL)
        return false;
    switch (pretokenizer_at_separator(t->pretokenizer, image, &is_mark)) {
    case SEPARATOR_ENDS_WORD:
        return true;
    case SEPARATOR_IN_WORD:
        return is_mark && t->bpe != NULL && t->bpe->cuts_at_mark && t->bpe->by_bytes == NULL;
    default:
        return false;
    }
}

/* The text stands once in what the post-processor makes, so that parts of it can stand there. */
static bool stands_once(const postprocessor *p)
{
    size_t texts = 0;
    for (size_t i = 0; i < p->pieces.n; i++)
        texts += p->pieces.data[i] == POSTPROCESSOR_TEXT;
    return p->pieces.n == 0 || texts == 1;
}

static fsdp_status find_cuts(const tokenizer_tables *t, normalizer_room *room, text_cuts *cuts)
{
    const char *space = NULL, *line = NULL;
    FSDP_TRY(separator_image(t, room, ' ', &space));
    FSDP_TRY(separator_image(t, room, '\n', &line));
    cuts->at_spaces = cuts_at(t, space);
    cuts->at_lines = cuts_at(t, line);
    for (int c = 0; c < 128; c++) {
        const char letter = (char)c;
        FSDP_TRY(stays_a_letter(t, room, &letter, 1, &cuts->plain[c]));
    }
    return FSDP_OK;
}

void text_cuts_find(tokenizer_tables *t)
{
    normalizer_room room = {0};
    t->cuts = (text_cuts){.anywhere = tokenizer_is_byte(t)};
    if (t->cuts.anywhere || !stands_once(&t->postprocessor) || !normalizer_is_local(t->normalizer) ||
        !added_tokens_allow_cuts(t->added, normalizer_asks_for_start(t->normalizer)))
        return;
    if (find_cuts(t, &room, &t->cuts) != FSDP_OK) /* its texts will say why */
        t->cuts = (text_cuts){0};
    normalizer_room_free(&room);
}

/* Whether a letter begins at text[at..); *length is its length. */
static fsdp_status is_plain_letter(fsdp_tokenizer *t, const char *text, size_t bytes, size_t at, size_t *length,
                                   bool *plain)
{
    uint8_t first = (uint8_t)text[at];
    *length = utf8_length(first);
    *plain = first < 0x80 && t->tables->cuts.plain[first];
    if (first < 0x80 || at + *length > bytes || utf8_valid_bytes(text + at, *length) < *length)
        return FSDP_OK;
    return stays_a_letter(t->tables, &t->normalizer, text + at, *length, plain);
}

/* Whether text[at] is a separator with a letter on both sides. At least a code point follows it. */
static fsdp_status is_place(fsdp_tokenizer *t, const char *text, size_t bytes, size_t at, bool *is)
{
    size_t before = at - utf8_last_length(text, at), length = 0;
    *is = (text[at] == ' ' && t->tables->cuts.at_spaces) || (text[at] == '\n' && t->tables->cuts.at_lines);
    if (*is)
        FSDP_TRY(is_plain_letter(t, text, bytes, before, &length, is));
    if (!*is)
        return FSDP_OK;
    /* Some letters are one cluster with whatever follows them. */
    *is =
        before + length == at && (length == 1 || unicode_grapheme_end(t->tables->unicode, text, at + 1, before) == at);
    if (!*is)
        return FSDP_OK;
    return is_plain_letter(t, text, bytes, at + 1, &length, is);
}

fsdp_status text_cut_place(fsdp_tokenizer *t, const char *text, size_t bytes, size_t from, size_t *place)
{
    const text_cuts *cuts = &t->tables->cuts;
    *place = bytes;
    if (cuts->anywhere && from < bytes)
        *place = from;
    if (cuts->anywhere || !(cuts->at_spaces || cuts->at_lines))
        return FSDP_OK;
    for (size_t at = from > 0 ? from : 1; at + TEXT_CUT_BEHIND < bytes; at++) {
        bool is = false;
        if (text[at] == ' ' || text[at] == '\n')
            FSDP_TRY(is_place(t, text, bytes, at, &is));
        if (is) {
            *place = at;
            return FSDP_OK;
        }
    }
    return FSDP_OK;
}
