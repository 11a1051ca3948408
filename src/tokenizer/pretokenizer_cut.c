/* A chain of cuts: each step hands every piece it makes to the next one, the last to the sink. Cuts are independent of
 * each other, so this depth-first order gives what the library gets by finishing step after step. */
#include "tokenizer/pretokenizer_internal.h"

#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/text/utf8.h"

struct pretokenizer_scratch {
    text_buffer text; /* the piece with something in front, or spelled anew */
    text_buffer spelled;
    span_vector spans;
};

fsdp_status pretokenizer_room_create(const pretokenizer *p, pretokenizer_room *room)
{
    *room = (pretokenizer_room){.n_steps = p->n_cuts};
    room->steps = calloc(p->n_cuts + 1, sizeof *room->steps);
    return room->steps != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory for a pre_tokenizer");
}

void pretokenizer_room_free(pretokenizer_room *room)
{
    for (size_t i = 0; room->steps != NULL && i < room->n_steps; i++) {
        text_free(&room->steps[i].text);
        text_free(&room->steps[i].spelled);
        span_free(&room->steps[i].spans);
    }
    free(room->steps);
    pattern_room_free(&room->search);
    *room = (pretokenizer_room){0};
}

/* One walk over one text: what all steps share. */
typedef struct walk {
    const pretokenizer *p;
    pretokenizer_room *room;
    pretokenizer_sink sink;
    void *context;
} walk;

static fsdp_status apply_cut(const walk *w, size_t index, const char *text, size_t bytes, bool at_start);

/* Hands a piece to the step after `index`. Empty pieces vanish, as they do in the library. */
static inline fsdp_status pass_on(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    if (bytes == 0)
        return FSDP_OK;
    if (index + 1 == w->p->n_cuts)
        return w->sink(w->context, text, bytes);
    return apply_cut(w, index + 1, text, bytes, at_start);
}

/* Joins spans in place so that every one left is a piece; REMOVED keeps its matches marked instead. */
static void join_spans(span_vector *v, behavior how)
{
    size_t kept = 0;
    int previous = 0;
    if (how == MERGED_WITH_NEXT) {
        size_t first = v->n;
        for (size_t i = v->n; i-- > 0;) {
            text_span s = v->data[i];
            if (s.matched && !previous && first < v->n)
                v->data[first].start = s.start;
            else
                v->data[--first] = s;
            previous = s.matched;
        }
        memmove(v->data, v->data + first, (v->n - first) * sizeof *v->data);
        v->n -= first;
        return;
    }
    for (size_t i = 0; i < v->n; i++) {
        text_span s = v->data[i];
        bool joins = how == CONTIGUOUS ? s.matched == previous : how == MERGED_WITH_PREVIOUS && s.matched && !previous;
        if (joins && kept > 0)
            v->data[kept - 1].end = s.end;
        else
            v->data[kept++] = s;
        previous = s.matched;
    }
    v->n = kept;
}

static fsdp_status pass_spans(const walk *w, size_t index, const char *text, bool at_start)
{
    const cut *c = &w->p->cuts[index];
    span_vector *v = &w->room->steps[index].spans;
    if (c->behavior != REMOVED)
        join_spans(v, c->behavior);
    for (size_t i = 0; i < v->n; i++) {
        text_span s = v->data[i];
        if (c->behavior == REMOVED && s.matched)
            continue;
        FSDP_TRY(pass_on(w, index, text + s.start, s.end - s.start, at_start && s.start == 0));
    }
    return FSDP_OK;
}

static fsdp_status cut_by_pattern(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    const cut *c = &w->p->cuts[index];
    span_vector *v = &w->room->steps[index].spans;
    if (c->behavior == ISOLATED && pattern_covers(c->pattern)) {
        for (size_t start = 0, end; start < bytes; start = end) {
            end = pattern_cover_end(c->pattern, text, bytes, start);
            FSDP_TRY(pass_on(w, index, text + start, end - start, at_start && start == 0));
        }
        return FSDP_OK;
    }
    v->n = 0;
    FSDP_TRY(pattern_spans(c->pattern, &w->room->search, text, bytes, v));
    for (size_t i = 0; c->invert && i < v->n; i++)
        v->data[i].matched = !v->data[i].matched;
    return pass_spans(w, index, text, at_start);
}

/* Every code point of the class is a match by itself. */
static fsdp_status cut_by_class(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    const cut *c = &w->p->cuts[index];
    span_vector *v = &w->room->steps[index].spans;
    size_t previous = 0, length;
    v->n = 0;
    for (size_t i = 0; i < bytes; i += length) {
        if (!(unicode_class(w->p->unicode, utf8_decode(text + i, &length)) & c->class_bits))
            continue;
        if (c->behavior == REMOVED) {
            FSDP_TRY(pass_on(w, index, text + previous, i - previous, at_start && previous == 0));
        } else {
            if (previous < i)
                FSDP_TRY(span_append(v, previous, i, 0));
            FSDP_TRY(span_append(v, i, i + length, 1));
        }
        previous = i + length;
    }
    if (c->behavior == REMOVED)
        return pass_on(w, index, text + previous, bytes - previous, at_start && previous == 0);
    if (previous < bytes)
        FSDP_TRY(span_append(v, previous, bytes, 0));
    return pass_spans(w, index, text, at_start);
}

/* Runs of word characters and runs of what is neither word nor space; spaces go. */
static fsdp_status cut_words(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    size_t start = 0, length;
    uint8_t kind = 0;
    for (size_t i = 0; i <= bytes; i += length) {
        uint8_t next = 0;
        length = 1;
        if (i < bytes) {
            uint8_t bits = unicode_class(w->p->unicode, utf8_decode(text + i, &length));
            next = bits & UNICODE_WORD ? UNICODE_WORD : bits & UNICODE_WHITE ? 0 : UNICODE_PUNCTUATION;
        }
        if (next == kind && i < bytes)
            continue;
        if (kind != 0)
            FSDP_TRY(pass_on(w, index, text + start, i - start, at_start && start == 0));
        start = i;
        kind = next;
    }
    return FSDP_OK;
}

static fsdp_status cut_at_delimiter(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    const cut *c = &w->p->cuts[index];
    size_t start = 0;
    for (;;) {
        const char *at = memmem(text + start, bytes - start, c->replacement, c->replacement_bytes);
        size_t end = at == NULL ? bytes : (size_t)(at - text);
        FSDP_TRY(pass_on(w, index, text + start, end - start, at_start && start == 0));
        if (at == NULL)
            return FSDP_OK;
        start = end + c->replacement_bytes;
    }
}

static fsdp_status cut_fixed_length(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    for (size_t start = 0, end; start < bytes; start = end) {
        end = start;
        for (size_t n = w->p->cuts[index].length; n > 0 && end < bytes; n--)
            end += utf8_length((uint8_t)text[end]);
        FSDP_TRY(pass_on(w, index, text + start, end - start, at_start && start == 0));
    }
    return FSDP_OK;
}

/* A piece begins wherever the script changes; what belongs to any script goes with what stands before it, and is
 * dropped where nothing does, as in the library. */
static fsdp_status cut_scripts(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    size_t start = SIZE_MAX, length;
    uint8_t last = UNICODE_ANY_SCRIPT;
    for (size_t i = 0; i < bytes; i += length) {
        uint8_t script = unicode_script(w->p->unicode, utf8_decode(text + i, &length));
        if (script == UNICODE_ANY_SCRIPT || script == last)
            continue;
        if (start != SIZE_MAX)
            FSDP_TRY(pass_on(w, index, text + start, i - start, at_start && start == 0));
        start = i;
        last = script;
    }
    return start == SIZE_MAX ? FSDP_OK : pass_on(w, index, text + start, bytes - start, at_start && start == 0);
}

static fsdp_status byte_level_word(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    text_buffer *spelled = &w->room->steps[index].spelled;
    if (!w->p->cuts[index].spell_bytes)
        return pass_on(w, index, text, bytes, at_start);
    spelled->bytes = 0;
    FSDP_TRY(byte_alphabet_encode(&w->p->alphabet, text, bytes, spelled));
    return pass_on(w, index, spelled->data, spelled->bytes, at_start);
}

static fsdp_status cut_byte_level(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    const cut *c = &w->p->cuts[index];
    text_buffer *front = &w->room->steps[index].text;
    if (c->prefix_space && text[0] != ' ') {
        front->bytes = 0;
        FSDP_TRY(text_append(front, " ", 1));
        FSDP_TRY(text_append(front, text, bytes));
        text = front->data;
        bytes = front->bytes;
    }
    if (c->pattern == NULL)
        return byte_level_word(w, index, text, bytes, at_start);
    for (size_t start = 0, end; start < bytes; start = end) {
        end = pattern_cover_end(c->pattern, text, bytes, start);
        FSDP_TRY(byte_level_word(w, index, text + start, end - start, at_start && start == 0));
    }
    return FSDP_OK;
}

/* Where the replacement is next, `bytes` when nowhere. Words are short: finding its first byte beats a general search.
 */
static size_t find_replacement(const cut *c, const char *text, size_t bytes, size_t from)
{
    while (from + c->replacement_bytes <= bytes) {
        const char *at = memchr(text + from, c->replacement[0], bytes - from - c->replacement_bytes + 1);
        if (at == NULL)
            break;
        if (memcmp(at, c->replacement, c->replacement_bytes) == 0)
            return (size_t)(at - text);
        from = (size_t)(at - text) + 1;
    }
    return bytes;
}

/* Spaces become the replacement, one may be put in front, and each begins a piece. */
static fsdp_status cut_metaspace(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    const cut *c = &w->p->cuts[index];
    text_buffer *to = &w->room->steps[index].text;
    bool begins =
        text[0] == ' ' || (bytes >= c->replacement_bytes && memcmp(text, c->replacement, c->replacement_bytes) == 0);
    to->bytes = 0;
    if (!begins && (c->scheme == PREPEND_ALWAYS || (c->scheme == PREPEND_FIRST && at_start)))
        FSDP_TRY(text_append(to, c->replacement, c->replacement_bytes));
    for (size_t i = 0; i < bytes;) {
        const char *space = memchr(text + i, ' ', bytes - i);
        size_t end = space == NULL ? bytes : (size_t)(space - text);
        FSDP_TRY(text_append(to, text + i, end - i));
        if (space != NULL)
            FSDP_TRY(text_append(to, c->replacement, c->replacement_bytes));
        i = end + 1;
    }
    if (!c->split)
        return pass_on(w, index, to->data, to->bytes, at_start);
    for (size_t start = 0, end; start < to->bytes; start = end) {
        end = find_replacement(c, to->data, to->bytes, start + utf8_length((uint8_t)to->data[start]));
        FSDP_TRY(pass_on(w, index, to->data + start, end - start, at_start && start == 0));
    }
    return FSDP_OK;
}

static fsdp_status apply_cut(const walk *w, size_t index, const char *text, size_t bytes, bool at_start)
{
    switch (w->p->cuts[index].kind) {
    case CUT_PATTERN:
        return cut_by_pattern(w, index, text, bytes, at_start);
    case CUT_BYTE_LEVEL:
        return cut_byte_level(w, index, text, bytes, at_start);
    case CUT_METASPACE:
        return cut_metaspace(w, index, text, bytes, at_start);
    case CUT_WORDS:
        return cut_words(w, index, text, bytes, at_start);
    case CUT_CLASS:
        return cut_by_class(w, index, text, bytes, at_start);
    case CUT_DELIMITER:
        return cut_at_delimiter(w, index, text, bytes, at_start);
    case CUT_FIXED_LENGTH:
        return cut_fixed_length(w, index, text, bytes, at_start);
    case CUT_SCRIPTS:
        return cut_scripts(w, index, text, bytes, at_start);
    default:
        return error_set(FSDP_ERR_STATE, "a pre_tokenizer was not taken apart");
    }
}

fsdp_status pretokenizer_apply(const pretokenizer *p, pretokenizer_room *room, const char *text, size_t bytes,
                               bool at_start, pretokenizer_sink sink, void *context)
{
    walk w = {p, room, sink, context};
    for (size_t i = 0; i < room->n_steps; i++)
        room->steps[i].text.limit = room->steps[i].spelled.limit = text_most(bytes);
    if (bytes == 0)
        return FSDP_OK;
    if (p->n_cuts == 0)
        return sink(context, text, bytes);
    return apply_cut(&w, 0, text, bytes, at_start);
}
