/* Reads the pre-tokenizers of a tokenizer.json into a list of cuts; sequences are flattened. Cutting itself is
 * pretokenizer_cut.c's. */
#include "tokenizer/pretokenizer_internal.h"

#include <stdlib.h>

#include "tokenizer/component.h"
#include "tokenizer/pattern_known.h"
#include "tokenizer/text/utf8.h"

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
    {"UnicodeScripts", CUT_SCRIPTS},
    {NULL, 0},
};

static const component_kind behaviors[] = {
    {"Removed", REMOVED},
    {"Isolated", ISOLATED},
    {"Contiguous", CONTIGUOUS},
    {"MergedWithPrevious", MERGED_WITH_PREVIOUS},
    {"MergedWithNext", MERGED_WITH_NEXT},
    {NULL, 0},
};

static const component_kind schemes[] = {
    {"always", PREPEND_ALWAYS},
    {"first", PREPEND_FIRST},
    {"never", PREPEND_NEVER},
    {NULL, 0},
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

static fsdp_status add_cut(pretokenizer *p, const char *name, cut_kind kind, cut **out)
{
    FSDP_TRY(component_count(name, "pre_tokenizer", p->n_cuts));
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
        FSDP_TRY(add_cut(p, name, CUT_CLASS, &c));
        FSDP_TRY(read_class(c, UNICODE_WHITE, REMOVED));
        FSDP_TRY(add_cut(p, name, CUT_CLASS, &c));
        return read_class(c, UNICODE_PUNCTUATION, ISOLATED);
    }
    FSDP_TRY(add_cut(p, name, (cut_kind)kind, &c));
    FSDP_TRY(read_cut(name, object, p->unicode, c));
    bool prepends = p->n_cuts > 1 && (c[-1].kind == CUT_METASPACE || c[-1].kind == CUT_BYTE_LEVEL);
    if (c->kind == CUT_METASPACE && c->scheme == PREPEND_FIRST && prepends)
        return error_set(
            FSDP_ERR_UNSUPPORTED,
            "%s: Metaspace with prepend_scheme first after another Metaspace or ByteLevel is not supported", name);
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

/* --- separators -------------------------------------------------------------------------------------------------- */

#define MARK "\xE2\x96\x81" /* U+2581 */

static bool is_same(const char *a, const char *b, size_t b_bytes)
{
    return strlen(a) == b_bytes && memcmp(a, b, b_bytes) == 0;
}

static separator_effect pattern_at_separator(const cut *c, const char *separator)
{
    size_t bytes;
    const char *literal = pattern_literal_text(c->pattern, &bytes);
    bool is_mark = strcmp(separator, MARK) == 0;
    if (pattern_covers(c->pattern)) /* all of them end a run of letters in front of a blank, whatever follows it */
        return !is_mark && c->behavior == (c->invert ? REMOVED : ISOLATED) ? SEPARATOR_ENDS_WORD : SEPARATOR_UNKNOWN;
    if (literal == NULL || c->invert)
        return SEPARATOR_UNKNOWN;
    if (is_same(separator, literal, bytes))
        return c->behavior == MERGED_WITH_PREVIOUS ? SEPARATOR_UNKNOWN : SEPARATOR_ENDS_WORD;
    return is_mark && is_same(" ", literal, bytes) ? SEPARATOR_IN_WORD : SEPARATOR_UNKNOWN;
}

/* A text that begins with the separator gets nothing in front. */
static separator_effect metaspace_at_separator(const cut *c, const char **separator)
{
    if (strcmp(*separator, "\n") == 0)
        return c->scheme == PREPEND_ALWAYS ? SEPARATOR_UNKNOWN : SEPARATOR_IN_WORD;
    if (!is_same(MARK, c->replacement, c->replacement_bytes))
        return SEPARATOR_UNKNOWN;
    *separator = MARK;
    return c->split ? SEPARATOR_ENDS_WORD : SEPARATOR_IN_WORD;
}

static separator_effect class_at_separator(const unicode *u, const cut *c, const char *separator)
{
    size_t length;
    if (!(unicode_class(u, utf8_decode(separator, &length)) & c->class_bits))
        return SEPARATOR_IN_WORD;
    return c->behavior == REMOVED ? SEPARATOR_ENDS_WORD : SEPARATOR_UNKNOWN;
}

static separator_effect cut_at_separator(const pretokenizer *p, const cut *c, const char **separator)
{
    bool space = strcmp(*separator, " ") == 0, blank = space || strcmp(*separator, "\n") == 0;
    switch (c->kind) {
    case CUT_PATTERN:
        return pattern_at_separator(c, *separator);
    case CUT_BYTE_LEVEL:
        return c->pattern != NULL && (c->prefix_space ? space : blank) ? SEPARATOR_ENDS_WORD : SEPARATOR_UNKNOWN;
    case CUT_METASPACE:
        return metaspace_at_separator(c, separator);
    case CUT_WORDS:
        return blank ? SEPARATOR_ENDS_WORD : SEPARATOR_UNKNOWN;
    case CUT_CLASS:
        return class_at_separator(p->unicode, c, *separator);
    default:
        return SEPARATOR_UNKNOWN;
    }
}

separator_effect pretokenizer_at_separator(const pretokenizer *p, const char *separator, bool *is_mark)
{
    separator_effect effect = SEPARATOR_IN_WORD;
    for (size_t i = 0; i < p->n_cuts && effect == SEPARATOR_IN_WORD; i++)
        effect = cut_at_separator(p, &p->cuts[i], &separator);
    *is_mark = strcmp(separator, MARK) == 0;
    return effect;
}
