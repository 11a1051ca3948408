/* A scanner over one line of JSON. It skips values that are not asked for, and refuses what is not JSON. */
#include "json_line.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

static bool push(json_text *out, const char *bytes, size_t n)
{
    if (!out || n == 0)
        return true;
    if (out->capacity - out->n < n) {
        size_t capacity = 2 * (out->n + n) + 256;
        char *grown = realloc(out->bytes, capacity);
        if (!grown)
            return false;
        out->bytes = grown;
        out->capacity = capacity;
    }
    memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
    return true;
}

static bool push_code_point(json_text *out, uint32_t c)
{
    char bytes[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (n == 1)
        bytes[0] = (char)c;
    for (size_t i = n; n > 1 && i-- > 1; c >>= 6)
        bytes[i] = (char)(0x80 | (c & 0x3f));
    if (n > 1)
        bytes[0] = (char)((0xf00 >> n & 0xff) | c);
    return push(out, bytes, n);
}

static const char *hex4(const char *at, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++, at++) {
        const char *digits = "0123456789abcdef", *digit = *at ? strchr(digits, *at | 0x20) : NULL;
        if (!digit)
            return NULL;
        *value = *value << 4 | (uint32_t)(digit - digits);
    }
    return at;
}

/* After "\u"; two halves of a pair become one character, a half by itself the replacement character. */
static const char *read_unicode(const char *at, json_text *out)
{
    uint32_t high, low;
    at = hex4(at, &high);
    if (!at)
        return NULL;
    if (high >= 0xd800 && high < 0xdc00 && at[0] == '\\' && at[1] == 'u') {
        const char *behind = hex4(at + 2, &low);
        if (!behind)
            return NULL;
        if (low >= 0xdc00 && low < 0xe000)
            return push_code_point(out, 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)) ? behind : NULL;
    }
    if (high >= 0xd800 && high < 0xe000)
        high = 0xfffd;
    return push_code_point(out, high) ? at : NULL;
}

/* `at` stands on the opening quote; NULL when the text is malformed. `out` may be NULL. */
static const char *read_text(const char *at, json_text *out)
{
    static const char names[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    for (at++; *at != '"';) {
        size_t plain = strcspn(at, "\"\\");
        if (!push(out, at, plain))
            return NULL;
        at += plain;
        if (*at == 0)
            return NULL;
        if (*at != '\\')
            continue;
        const char *name = at[1] ? strchr(names, at[1]) : NULL;
        if (name && push(out, &bytes[name - names], 1))
            at += 2;
        else if (at[1] != 'u' || !(at = read_unicode(at + 2, out)))
            return NULL;
    }
    return at + 1;
}

/* Behind any value; NULL when it is none. Brackets need only close in number: what is inside is not used. */
static const char *skip_value(const char *at)
{
    int depth = 0;
    do {
        at = skip_space(at);
        if (*at == '"') {
            if (!(at = read_text(at, NULL)))
                return NULL;
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            depth--;
            at++;
        } else {
            size_t n = strcspn(at, "{}[]\", \t\r\n");
            at += n ? n : 1;
        }
        if (depth > MAX_DEPTH || (*at == 0 && depth > 0))
            return NULL;
    } while (depth > 0);
    return at;
}

/* The value of `key` in the object at `at`; NULL when it has none. */
static const char *find_value(const char *at, const char *key)
{
    const char *found = NULL;
    json_text name = {0};
    for (at = skip_space(at + 1); *at == '"' && !found;) {
        name.n = 0;
        at = read_text(at, &name);
        if (!at || *(at = skip_space(at)) != ':')
            break;
        at = skip_space(at + 1);
        if (name.n == strlen(key) && memcmp(name.bytes, key, name.n) == 0)
            found = at;
        else if (!(at = skip_value(at)))
            break;
        else if (*(at = skip_space(at)) == ',')
            at = skip_space(at + 1);
    }
    free(name.bytes);
    return found;
}

static const char *value_of(const char *line, const char *key)
{
    line = skip_space(line);
    return *line == '{' ? find_value(line, key) : line;
}

bool json_line_text(const char *line, const char *key, json_text *out)
{
    const char *value = value_of(line, key);
    out->n = 0;
    return value && *value == '"' && read_text(value, out);
}

bool json_line_numbers(const char *line, const char *key, json_numbers *out)
{
    const char *at = value_of(line, key);
    out->n = 0;
    if (!at || *at != '[')
        return false;
    for (at = skip_space(at + 1); *at != ']';) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < INT32_MIN || value > INT32_MAX)
            return false;
        if (out->n == out->capacity) {
            size_t capacity = 2 * out->capacity + 256;
            int32_t *grown = realloc(out->values, capacity * sizeof *grown);
            if (!grown)
                return false;
            out->values = grown;
            out->capacity = capacity;
        }
        out->values[out->n++] = (int32_t)value;
        at = skip_space(end);
        if (*at == ',')
            at = skip_space(at + 1);
        else if (*at != ']')
            return false;
    }
    return true;
}

void json_line_print(FILE *out, const char *text, size_t n)
{
    fputc('"', out);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", out);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}
