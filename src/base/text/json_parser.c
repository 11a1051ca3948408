/* Recursive descent, at most MAX_LEVELS deep. Strings without escapes are taken as they stand; others are unescaped
 * into a buffer that the parser keeps. */
#include "base/text/json_parser.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/utf8_check.h"

enum { MAX_LEVELS = 2048, LONGEST_NUMBER = 4096 };

typedef struct parser {
    const char *start, *at, *end;
    unsigned flags;
    int level;
    char *scratch; /* the last string that had escapes */
    size_t capacity;
    json_fault *fault;
} parser;

static json_t *read_value(parser *p);

/* Keeps the first fault; returns NULL for the caller to return. */
static json_t *fail(parser *p, const char *text)
{
    if (p->fault->text[0] != '\0')
        return NULL;
    p->fault->line = 1;
    for (const char *c = p->start; c < p->at; c++)
        p->fault->line += *c == '\n';
    snprintf(p->fault->text, sizeof p->fault->text, "%s", text);
    return NULL;
}

static json_t *no_memory(parser *p)
{
    p->fault->out_of_memory = true;
    return fail(p, "out of memory");
}

static json_t *made(parser *p, json_t *value)
{
    return value != NULL ? value : no_memory(p);
}

static void skip_blanks(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

/* True when `c` comes next; then it is taken. */
static bool take(parser *p, char c)
{
    skip_blanks(p);
    if (p->at >= p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* --- strings ----------------------------------------------------------------------------------------------------- */

static bool read_hex(parser *p, uint32_t *value)
{
    *value = 0;
    if (p->end - p->at < 4)
        return false;
    for (int i = 0; i < 4; i++, p->at++) {
        char c = *p->at;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        *value = *value << 4 | (uint32_t)digit;
    }
    return true;
}

static size_t put_point(uint32_t c, char *out)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(first[n] | c);
    return n;
}

/* After "\u": one code point, from a pair of surrogates where there is one. */
static bool read_escaped_point(parser *p, uint32_t *point)
{
    uint32_t low;
    if (!read_hex(p, point))
        return fail(p, "\\u without four hexadecimal digits") != NULL;
    if (*point == 0 && !(p->flags & JSON_WITH_NUL))
        return fail(p, "\\u0000 in a string") != NULL;
    if (*point < 0xD800 || *point > 0xDFFF)
        return true;
    const char *behind = p->at;
    if (*point < 0xDC00 && take_word(p, "\\u") && read_hex(p, &low) && low >= 0xDC00 && low <= 0xDFFF) {
        *point = 0x10000 + ((*point - 0xD800) << 10) + (low - 0xDC00);
        return true;
    }
    p->at = behind;
    if (p->flags & JSON_AS_PYTHON)
        return true;
    return fail(p, "half of a surrogate pair in a string") != NULL;
}

/* The escape at p->at, which is its backslash; its bytes go to `out`. */
static bool read_escape(parser *p, char *out, size_t *n)
{
    static const char codes[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    uint32_t point;
    const char *code = p->at + 1 < p->end && p->at[1] != '\0' ? strchr(codes, p->at[1]) : NULL;
    if (code != NULL) {
        p->at += 2;
        out[(*n)++] = values[code - codes];
        return true;
    }
    if (!take_word(p, "\\u"))
        return fail(p, "an unknown escape in a string") != NULL;
    if (!read_escaped_point(p, &point))
        return false;
    *n += put_point(point, out + *n);
    return true;
}

static bool unescape(parser *p, const char *quote, const char **text, size_t *bytes)
{
    size_t most = (size_t)(quote - p->at), n = 0;
    if (p->capacity < most) {
        char *larger = realloc(p->scratch, most * 2);
        if (larger == NULL)
            return no_memory(p) != NULL;
        p->scratch = larger;
        p->capacity = most * 2;
    }
    while (p->at < quote) {
        if (*p->at != '\\')
            p->scratch[n++] = *p->at++;
        else if (!read_escape(p, p->scratch, &n))
            return false;
    }
    *text = p->scratch;
    *bytes = n;
    return true;
}

/* The string after the quote that was taken; *text is valid until the next one is read. */
static bool read_text(parser *p, const char **text, size_t *bytes)
{
    bool escapes = false;
    const char *quote = p->at;
    for (; quote < p->end && *quote != '"'; quote++) {
        if ((uint8_t)*quote < 0x20) {
            p->at = quote;
            return fail(p, "a control character in a string; it must be escaped") != NULL;
        }
        if (*quote == '\\') {
            escapes = true;
            quote += quote + 1 < p->end;
        }
    }
    if (quote >= p->end)
        return fail(p, "a string without its end") != NULL;
    size_t valid = utf8_valid_bytes(p->at, (size_t)(quote - p->at));
    if (valid < (size_t)(quote - p->at)) {
        p->at += valid;
        return fail(p, "a string that is not UTF-8") != NULL;
    }
    *text = p->at;
    *bytes = valid;
    if (escapes && !unescape(p, quote, text, bytes))
        return false;
    p->at = quote + 1;
    return true;
}

static json_t *read_string(parser *p)
{
    const char *text;
    size_t bytes;
    if (!read_text(p, &text, &bytes))
        return NULL;
    return made(p, json_stringn_nocheck(text, bytes));
}

/* --- numbers ----------------------------------------------------------------------------------------------------- */

static size_t count_digits(const parser *p, const char *from)
{
    const char *c = from;
    while (c < p->end && *c >= '0' && *c <= '9')
        c++;
    return (size_t)(c - from);
}

/* 10^exponent times significand in serde_json's order of operations. */
static double serde_scale(uint64_t significand, int64_t exponent)
{
    double f = (double)significand;
    for (; exponent < -308 && f != 0; exponent += 308)
        f /= 1e308;
    if (f == 0)
        return f;
    if (exponent > 308)
        return HUGE_VAL;
    char power[16]; /* a table of constants: read as the compiler would */
    snprintf(power, sizeof power, "1e%d", (int)(exponent < 0 ? -exponent : exponent));
    return exponent < 0 ? f / strtod(power, NULL) : f * strtod(power, NULL);
}

/* serde_json gathers digits while they fit 64 bits; those after only count, or, in a fraction, are dropped. */
static double serde_real(const char *c, const char *end)
{
    uint64_t significand = 0;
    int64_t exponent = 0, stated = 0;
    bool fraction = false, full = false, negative = *c == '-';
    for (c += negative; c < end && *c != 'e' && *c != 'E'; c++) {
        if (*c == '.') {
            fraction = true;
            full = false;
            continue;
        }
        uint64_t digit = (uint64_t)(*c - '0');
        bool fits = significand < UINT64_MAX / 10 || (significand == UINT64_MAX / 10 && digit <= UINT64_MAX % 10);
        full = full || !fits;
        if (!full)
            significand = significand * 10 + digit;
        if (fraction ? !full : full)
            exponent += fraction ? -1 : 1;
    }
    if (c < end) {
        stated = strtoll(c + 1, NULL, 10);
        stated = stated > 100000 ? 100000 : stated < -100000 ? -100000 : stated;
    }
    double value = serde_scale(significand, exponent + stated);
    return negative ? -value : value;
}

/* The nearest double. strtod wants the decimal point of the process's locale. */
static double nearest_real(char *number)
{
    char *point = strchr(number, '.');
    const char *wanted = localeconv()->decimal_point;
    if (point != NULL && wanted[0] != '\0')
        *point = wanted[0];
    return strtod(number, NULL);
}

static json_t *make_real(parser *p, const char *from, size_t bytes)
{
    char number[LONGEST_NUMBER + 1];
    if (bytes > LONGEST_NUMBER)
        return fail(p, "a number of more than 4096 characters");
    memcpy(number, from, bytes);
    number[bytes] = '\0';
    double value = p->flags & JSON_AS_SERDE ? serde_real(number, number + bytes) : nearest_real(number);
    if (isfinite(value))
        return made(p, json_real(value));
    return p->flags & JSON_AS_PYTHON ? json_null() : fail(p, "a number that is too large");
}

static json_t *read_number(parser *p)
{
    const char *from = p->at, *c = from + (*from == '-');
    size_t digits = count_digits(p, c);
    bool real = false;
    if (digits == 0 || (digits > 1 && *c == '0'))
        return fail(p, digits == 0 ? "a value is expected" : "a number that begins with 0");
    c += digits;
    if (c < p->end && *c == '.') {
        real = true;
        digits = count_digits(p, ++c);
        c += digits;
    }
    if (digits > 0 && c < p->end && (*c == 'e' || *c == 'E')) {
        real = true;
        c += 1 + (c + 1 < p->end && (c[1] == '+' || c[1] == '-'));
        digits = count_digits(p, c);
        c += digits;
    }
    if (digits == 0)
        return fail(p, "a number without digits where some belong");
    p->at = c;
    if (!real && c - from <= 20) {
        char number[24] = {0};
        memcpy(number, from, (size_t)(c - from));
        errno = 0;
        long long value = strtoll(number, NULL, 10);
        if (errno == 0)
            return made(p, json_integer(value));
    }
    return make_real(p, from, (size_t)(c - from));
}

/* --- values ------------------------------------------------------------------------------------------------------ */

static bool read_member(parser *p, json_t *object)
{
    const char *text;
    size_t bytes;
    if (!take(p, '"'))
        return fail(p, "a key in quotes is expected") != NULL;
    if (!read_text(p, &text, &bytes))
        return false;
    if (p->flags & JSON_UNIQUE_KEYS && json_object_getn(object, text, bytes) != NULL) {
        char what[sizeof p->fault->text];
        snprintf(what, sizeof what, "duplicate key \"%.100s\"", text);
        return fail(p, what) != NULL;
    }
    char *key = malloc(bytes + 1); /* the value may need the buffer that holds it */
    if (key == NULL)
        return no_memory(p) != NULL;
    memcpy(key, text, bytes);
    key[bytes] = '\0';
    json_t *value = take(p, ':') ? read_value(p) : fail(p, "a colon is expected after a key");
    bool kept = value != NULL && json_object_setn_new_nocheck(object, key, bytes, value) == 0;
    free(key);
    return kept || (value != NULL && no_memory(p) != NULL);
}

static json_t *read_object(parser *p)
{
    json_t *object = made(p, json_object());
    if (object == NULL || take(p, '}'))
        return object;
    do {
        if (!read_member(p, object))
            goto fail;
    } while (take(p, ','));
    if (take(p, '}'))
        return object;
    fail(p, "a comma or a closing brace is expected");
fail:
    json_decref(object);
    return NULL;
}

static json_t *read_array(parser *p)
{
    json_t *array = made(p, json_array());
    if (array == NULL || take(p, ']'))
        return array;
    do {
        json_t *value = read_value(p);
        if (value == NULL)
            goto fail;
        if (json_array_append_new(array, value) != 0) {
            no_memory(p);
            goto fail;
        }
    } while (take(p, ','));
    if (take(p, ']'))
        return array;
    fail(p, "a comma or a closing bracket is expected");
fail:
    json_decref(array);
    return NULL;
}

static json_t *read_plain(parser *p)
{
    if (take_word(p, "true"))
        return json_true();
    if (take_word(p, "false"))
        return json_false();
    if (take_word(p, "null"))
        return json_null();
    if (p->flags & JSON_AS_PYTHON && (take_word(p, "NaN") || take_word(p, "Infinity") || take_word(p, "-Infinity")))
        return json_null();
    return p->at < p->end ? read_number(p) : fail(p, "a value is expected, the text ends");
}

static json_t *read_value(parser *p)
{
    json_t *value;
    if (++p->level > MAX_LEVELS)
        return fail(p, "values nested too deep");
    if (take(p, '{'))
        value = read_object(p);
    else if (take(p, '['))
        value = read_array(p);
    else
        value = take(p, '"') ? read_string(p) : read_plain(p);
    p->level--;
    return value;
}

json_t *json_parser_read(const char *text, size_t bytes, unsigned flags, json_fault *fault)
{
    parser p = {.start = text, .at = text, .end = text + bytes, .flags = flags, .fault = fault};
    *fault = (json_fault){0};
    json_t *value = read_value(&p);
    skip_blanks(&p);
    if (value != NULL && p.at < p.end) {
        fail(&p, "text after the end of the value");
        json_decref(value);
        value = NULL;
    }
    free(p.scratch);
    return value;
}
