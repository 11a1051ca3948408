/* A chain of cuts: each step hands every piece it makes to the next one, the last to the sink. Cuts are independent of
 * each other, so this depth-first order gives what the library gets by finishing step after step. */
#include "data/pretokenizer.h"

#include <stdlib.h>

#include "data/byte_alphabet.h"
#include "data/component.h"
#include "data/pattern_known.h"
#include "data/utf8.h"

typedef enum cut_kind {
    CUT_SEQUENCE,
    CUT_PATTERN, /* Split */
    CUT_BYTE_LEVEL,
    CUT_METASPACE,
    CUT_WORDS, /* Whitespace: \w+|[^\w\s]+ */
    CUT_CLASS, /* by the class of single code points: WhitespaceSplit, Digits, Punctuation */
    CUT_WHITESPACE,
    CUT_DIGITS,
    CUT_PUNCTUATION,
    CUT_BERT,
    CUT_DELIMITER,
    CUT_FIXED_LENGTH,
} cut_kind;

static const component_kind kinds[] = {
    {"Sequence", CUT_SEQUENCE},
    {"Split", CUT_PATTERN},
    {"ByteLevel", CUT_BYTE_LEVEL},
    {"Metaspace", CUT_METASPACE},
    {"Whitespace", CUT_WORDS},
    {"WhitespaceSplit", CUT_WHITESPACE},
    {"Digits", CUT_DIGITS},
    {"Punctuation", CUT_PUNCTUATION},
    {"BertPreTokenizer", CUT_BERT},
    {"CharDelimiterSplit", CUT_DELIMITER},
    {"FixedLength", CUT_FIXED_LENGTH},
    {NULL, 0},
};

typedef enum behavior { REMOVED, ISOLATED, CONTIGUOUS, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT } behavior;

static const component_kind behaviors[] = {
    {"Removed", REMOVED},
    {"Isolated", ISOLATED},
    {"Contiguous", CONTIGUOUS},
    {"MergedWithPrevious", MERGED_WITH_PREVIOUS},
    {"MergedWithNext", MERGED_WITH_NEXT},
    {NULL, 0},
};

typedef enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

static const component_kind schemes[] = {
    {"always", PREPEND_ALWAYS},
    {"first", PREPEND_FIRST},
    {"never", PREPEND_NEVER},
    {NULL, 0},
};

typedef struct cut {
    cut_kind kind;
    behavior behavior;
    pattern *pattern; /* CUT_PATTERN; CUT_BYTE_LEVEL with its expression */
    bool invert;
    bool prefix_space; /* CUT_BYTE_LEVEL */
    bool spell_bytes;  /* CUT_BYTE_LEVEL: map bytes to the alphabet */
    bool split;        /* CUT_METASPACE */
    prepend_scheme scheme;
    char replacement[4]; /* CUT_METASPACE, CUT_DELIMITER */
    size_t replacement_bytes;
    uint8_t class_bits; /* CUT_CLASS */
    size_t length;      /* CUT_FIXED_LENGTH, in code points */
} cut;

struct pretokenizer {
    const unicode *unicode;
    byte_alphabet alphabet;
    cut *cuts;
    size_t n_cuts, capacity;
};

struct pretokenizer_scratch {
    text_buffer text; /* the piece with something in front, or spelled anew */
    text_buffer spelled;
    span_vector spans;
};

/* A named choice under `key`; absent means `*value` as it is. */
static fsdp_status read_choice(const char *name, const json_t *object, const char *key, const component_kind *choices,
                               int *value)
{
    const char *text = NULL;
    FSDP_TRY(json_opt_string(name, object, key, &text));
    if (text == NULL)
        return FSDP_OK;
    for (; choices->type != NULL; choices++) {
        if (strcmp(choices->type, text) == 0) {
            *value = choices->kind;
            return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: \"%s\": \"%s\" of a pre_tokenizer is not supported", name, key, text);
}

static fsdp_status read_behavior(const char *name, const json_t *object, cut *c)
{
    int value = (int)c->behavior;
    FSDP_TRY(read_choice(name, object, "behavior", behaviors, &value));
    c->behavior = (behavior)value;
    return FSDP_OK;
}

static fsdp_status read_metaspace(const char *name, const json_t *object, cut *c)
{
    bool prefix_space = true;
    int scheme = PREPEND_ALWAYS;
    c->split = true;
    FSDP_TRY(component_character(name, object, "replacement", c->replacement, &c->replacement_bytes));
    FSDP_TRY(read_choice(name, object, "prepend_scheme", schemes, &scheme));
    FSDP_TRY(json_opt_bool(name, object, "split", &c->split));
    FSDP_TRY(json_opt_bool(name, object, "add_prefix_space", &prefix_space));
    if (!prefix_space && scheme != PREPEND_NEVER)
        return error_set(FSDP_ERR_INPUT,
                         "%s: Metaspace has add_prefix_space false but does not say never in prepend_scheme", name);
    c->scheme = (prepend_scheme)scheme;
    return FSDP_OK;
}

static fsdp_status read_byte_level(const char *name, const json_t *object, const unicode *u, cut *c)
{
    bool use_regex = true;
    c->prefix_space = true;
    c->spell_bytes = true;
    FSDP_TRY(json_opt_bool(name, object, "add_prefix_space", &c->prefix_space));
    FSDP_TRY(json_opt_bool(name, object, "use_regex", &use_regex));
    return use_regex ? pattern_regex(name, PATTERN_GPT2, strlen(PATTERN_GPT2), u, &c->pattern) : FSDP_OK;
}

static fsdp_status read_class(cut *c, uint8_t class_bits, behavior how)
{
    c->kind = CUT_CLASS;
    c->class_bits = class_bits;
    c->behavior = how;
    return FSDP_OK;
}

static fsdp_status read_cut(const char *name, const json_t *object, const unicode *u, cut *c)
{
    bool individual = false;
    int64_t length = 5;
    switch (c->kind) {
    case CUT_PATTERN:
        FSDP_TRY(component_pattern(name, object, "pattern", u, &c->pattern));
        FSDP_TRY(json_opt_bool(name, object, "invert", &c->invert));
        if (!json_is_string(json_object_get(object, "behavior")))
            return error_set(FSDP_ERR_INPUT, "%s: a Split has no \"behavior\"", name);
        return read_behavior(name, object, c);
    case CUT_BYTE_LEVEL:
        return read_byte_level(name, object, u, c);
    case CUT_METASPACE:
        return read_metaspace(name, object, c);
    case CUT_WHITESPACE:
        return read_class(c, UNICODE_WHITE, REMOVED);
    case CUT_DIGITS:
        FSDP_TRY(json_opt_bool(name, object, "individual_digits", &individual));
        return read_class(c, UNICODE_NUMERIC, individual ? ISOLATED : CONTIGUOUS);
    case CUT_PUNCTUATION:
        FSDP_TRY(read_class(c, UNICODE_PUNCTUATION, ISOLATED));
        return read_behavior(name, object, c);
    case CUT_DELIMITER:
        return component_character(name, object, "delimiter", c->replacement, &c->replacement_bytes);
    case CUT_FIXED_LENGTH:
        FSDP_TRY(json_opt_int(name, object, "length", &length));
        if (length <= 0)
            return error_set(FSDP_ERR_INPUT, "%s: FixedLength needs a positive length", name);
        c->length = (size_t)length;
        return FSDP_OK;
    default:
        return FSDP_OK;
    }
}

static fsdp_status add_cut(pretokenizer *p, cut_kind kind, cut **out)
{
    if (p->n_cuts == p->capacity)
        FSDP_TRY(array_grow((void **)&p->cuts, &p->capacity, p->n_cuts + 1, sizeof *p->cuts));
    *out = &p->cuts[p->n_cuts++];
    **out = (cut){.kind = kind};
    return FSDP_OK;
}

static fsdp_status add_cuts(pretokenizer *p, const char *name, const json_t *object)
{
    int kind = 0;
    cut *c;
    FSDP_TRY(component_find(name, "pre_tokenizer", object, kinds, &kind));
    if (kind == CUT_SEQUENCE) {
        json_t *members, *member;
        size_t i;
        FSDP_TRY(component_array(name, object, "pretokenizers", &members));
        json_array_foreach(members, i, member) FSDP_TRY(add_cuts(p, name, member));
        return FSDP_OK;
    }
    if (kind == CUT_BERT) {
        FSDP_TRY(add_cut(p, CUT_CLASS, &c));
        FSDP_TRY(read_class(c, UNICODE_WHITE, REMOVED));
        FSDP_TRY(add_cut(p, CUT_CLASS, &c));
        return read_class(c, UNICODE_PUNCTUATION, ISOLATED);
    }
    FSDP_TRY(add_cut(p, (cut_kind)kind, &c));
    FSDP_TRY(read_cut(name, object, p->unicode, c));
    bool prepends = p->n_cuts > 1 && (c[-1].kind == CUT_METASPACE || c[-1].kind == CUT_BYTE_LEVEL);
    if (c->kind == CUT_METASPACE && c->scheme == PREPEND_FIRST && prepends)
        return error_set(
            FSDP_ERR_UNSUPPORTED,
            "%s: Metaspace with prepend_scheme first behind another Metaspace or ByteLevel is not supported", name);
    return FSDP_OK;
}

fsdp_status pretokenizer_create(const char *name, const json_t *object, const unicode *u, pretokenizer **out)
{
    pretokenizer *p = calloc(1, sizeof *p);
    if (p == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a pre_tokenizer", name);
    p->unicode = u;
    byte_alphabet_init(&p->alphabet);
    fsdp_status status = object == NULL || json_is_null(object) ? FSDP_OK : add_cuts(p, name, object);
    if (status != FSDP_OK) {
        pretokenizer_free(p);
        return status;
    }
    *out = p;
    return FSDP_OK;
}

void pretokenizer_free(pretokenizer *p)
{
    if (p == NULL)
        return;
    for (size_t i = 0; i < p->n_cuts; i++)
        pattern_free(p->cuts[i].pattern);
    free(p->cuts);
    free(p);
}

bool pretokenizer_spells_bytes(const pretokenizer *p)
{
    return p->n_cuts > 0 && p->cuts[p->n_cuts - 1].kind == CUT_BYTE_LEVEL;
}

void pretokenizer_keep_bytes(pretokenizer *p)
{
    p->cuts[p->n_cuts - 1].spell_bytes = false;
}

size_t pretokenizer_asks_for_start(const pretokenizer *p)
{
    for (size_t i = p->n_cuts; i > 0; i--)
        if (p->cuts[i - 1].kind == CUT_METASPACE && p->cuts[i - 1].scheme == PREPEND_FIRST)
            return i;
    return 0;
}

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

/* Hands a piece to the step behind `index`. Empty pieces vanish, as they do in the library. */
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
        size_t from = start + utf8_length((uint8_t)to->data[start]);
        const char *next = memmem(to->data + from, to->bytes - from, c->replacement, c->replacement_bytes);
        end = next == NULL ? to->bytes : (size_t)(next - to->data);
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
    default:
        return error_set(FSDP_ERR_STATE, "a pre_tokenizer was not taken apart");
    }
}

fsdp_status pretokenizer_apply(const pretokenizer *p, pretokenizer_room *room, const char *text, size_t bytes,
                               bool at_start, pretokenizer_sink sink, void *context)
{
    walk w = {p, room, sink, context};
    if (bytes == 0)
        return FSDP_OK;
    if (p->n_cuts == 0)
        return sink(context, text, bytes);
    return apply_cut(&w, 0, text, bytes, at_start);
}
