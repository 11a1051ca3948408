/* The library ships an Oniguruma of Unicode 16; Debian's knows Unicode 14, and calls newer letters no letters. A set of
 * code points means the same to both. Inside another set it stands as one nested in it. */
#include "tokenizer/pattern_classes.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/text/category_tables.h"

/* In the order of the generated table's numbers. */
static const char *const categories[] = {"cn", "lu", "ll", "lt", "lm", "lo", "mn", "mc", "me", "nd",
                                         "nl", "no", "pc", "pd", "ps", "pe", "pi", "pf", "po", "sm",
                                         "sc", "sk", "so", "zs", "zl", "zp", "cc", "cf", "co", "cs"};
enum { N_CATEGORIES = sizeof categories / sizeof categories[0] };

/* Long names of categories; a short one of one letter stands for all that begin with it. */
static const char *const long_names[][2] = {
    {"letter", "l"},
    {"uppercaseletter", "lu"},
    {"lowercaseletter", "ll"},
    {"titlecaseletter", "lt"},
    {"modifierletter", "lm"},
    {"otherletter", "lo"},
    {"mark", "m"},
    {"nonspacingmark", "mn"},
    {"spacingmark", "mc"},
    {"enclosingmark", "me"},
    {"number", "n"},
    {"decimalnumber", "nd"},
    {"letternumber", "nl"},
    {"othernumber", "no"},
    {"punctuation", "p"},
    {"connectorpunctuation", "pc"},
    {"dashpunctuation", "pd"},
    {"openpunctuation", "ps"},
    {"closepunctuation", "pe"},
    {"initialpunctuation", "pi"},
    {"finalpunctuation", "pf"},
    {"otherpunctuation", "po"},
    {"symbol", "s"},
    {"mathsymbol", "sm"},
    {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"},
    {"othersymbol", "so"},
    {"separator", "z"},
    {"spaceseparator", "zs"},
    {"lineseparator", "zl"},
    {"paragraphseparator", "zp"},
    {"other", "c"},
    {"control", "cc"},
    {"format", "cf"},
    {"privateuse", "co"},
    {"unassigned", "cn"},
    {"surrogate", "cs"},
};

/* Short names of scripts, which the generated table has by their codes of four letters. */
static const char *const short_scripts[][2] = {{"han", "hani"}, {"lao", "laoo"}, {"mro", "mroo"},
                                               {"nko", "nkoo"}, {"vai", "vaii"}, {"yi", "yiii"}};

/* What a set holds: categories by bit, or a script, or word characters. */
typedef struct set {
    uint32_t categories;
    uint8_t script;
    bool word;
    bool negated;
} set;

static bool run_is_in(const unicode_category_run *r, const set *s)
{
    if (s->word)
        return r->category & UNICODE_CATEGORY_WORD;
    if (s->script != 0)
        return r->script == s->script;
    return s->categories >> (r->category & ~UNICODE_CATEGORY_WORD) & 1;
}

/* Surrogates are no characters to Oniguruma. */
static fsdp_status write_range(uint32_t first, uint32_t last, text_buffer *out)
{
    char range[40];
    if (first <= 0xDFFF && last >= 0xD800) {
        if (first < 0xD800)
            FSDP_TRY(write_range(first, 0xD7FF, out));
        return last > 0xDFFF ? write_range(0xE000, last, out) : FSDP_OK;
    }
    int n = snprintf(range, sizeof range, "\\x{%X}-\\x{%X}", first, last);
    return text_append(out, range, (size_t)n);
}

static fsdp_status write_set(const set *s, text_buffer *out)
{
    FSDP_TRY(text_append(out, s->negated ? "[^" : "[", s->negated ? 2 : 1));
    for (size_t i = 0; i < unicode_n_categories;) {
        if (!run_is_in(&unicode_categories[i], s)) {
            i++;
            continue;
        }
        uint32_t first = unicode_categories[i].first;
        while (i < unicode_n_categories && run_is_in(&unicode_categories[i], s))
            i++;
        uint32_t last = (i < unicode_n_categories ? unicode_categories[i].first : 0x110000) - 1;
        FSDP_TRY(write_range(first, last, out));
    }
    return text_append(out, "]", 1);
}

static uint32_t categories_called(const char *name)
{
    uint32_t found = 0;
    for (size_t i = 0; i < sizeof long_names / sizeof long_names[0]; i++)
        if (strcmp(name, long_names[i][0]) == 0)
            name = long_names[i][1];
    for (uint32_t i = 0; i < N_CATEGORIES && strlen(name) <= 2 && name[0] != '\0'; i++)
        if (strncmp(categories[i], name, strlen(name)) == 0)
            found |= 1u << i;
    return found;
}

/* The set that `name` in \p{name} means; false for what is left to Oniguruma. */
static bool find_set(const char *name, size_t bytes, set *s)
{
    char plain[32];
    size_t n = 0;
    *s = (set){.negated = bytes > 0 && name[0] == '^'};
    for (size_t i = s->negated; i < bytes; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-')
            continue;
        if (n + 1 == sizeof plain)
            return false;
        plain[n++] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    plain[n] = '\0';
    s->categories = categories_called(plain);
    for (size_t i = 0; i < sizeof short_scripts / sizeof short_scripts[0]; i++)
        if (strcmp(plain, short_scripts[i][0]) == 0)
            strcpy(plain, short_scripts[i][1]);
    for (size_t i = 0; i < unicode_n_scripts && s->categories == 0; i++)
        if (strcmp(plain, unicode_scripts[i]) == 0)
            s->script = (uint8_t)(i + 1);
    return s->categories != 0 || s->script != 0;
}

/* The set at the backslash text[0]; *length is that of what stands for it. */
static bool set_at(const char *text, size_t bytes, set *s, size_t *length)
{
    char c = bytes > 1 ? text[1] : '\0';
    *length = 2;
    *s = (set){.word = c == 'w' || c == 'W', .negated = c == 'W' || c == 'D'};
    if (s->word)
        return true;
    s->categories = categories_called("nd");
    if (c == 'd' || c == 'D')
        return true;
    const char *end = (c == 'p' || c == 'P') && bytes > 3 && text[2] == '{' ? memchr(text, '}', bytes) : NULL;
    if (end == NULL || !find_set(text + 3, (size_t)(end - text) - 3, s))
        return false;
    s->negated = s->negated != (c == 'P');
    *length = (size_t)(end - text) + 1;
    return true;
}

fsdp_status pattern_classes_expand(const char *text, size_t bytes, text_buffer *out)
{
    for (size_t i = 0, length; i < bytes; i += length) {
        set s;
        length = 1;
        if (text[i] != '\\') {
            FSDP_TRY(text_append(out, text + i, 1));
        } else if (set_at(text + i, bytes - i, &s, &length)) {
            FSDP_TRY(write_set(&s, out));
        } else {
            length = i + 1 < bytes ? 2 : 1;
            FSDP_TRY(text_append(out, text + i, length));
        }
    }
    return FSDP_OK;
}
