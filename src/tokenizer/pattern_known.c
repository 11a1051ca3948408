/* The expressions of GPT-2, LLaMA 3, Qwen 2 and T5, matched without a regular expression engine. Each alternative of an
 * expression is one `if`, in its order; greedy repeats that may have to give back are worked out by hand in a comment.
 */
#include "tokenizer/pattern_known.h"

#include <string.h>

#include "tokenizer/text/utf8.h"

typedef struct reader {
    const unicode *unicode;
    const char *text;
    size_t bytes;
} reader;

enum { KIND = UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE };

/* Class of the code point at `at` and its length; at the end of the text KIND (no real class has all its bits) and 0.
 */
static inline uint8_t class_at(const reader *r, size_t at, size_t *length)
{
    if (at >= r->bytes) {
        *length = 0;
        return KIND;
    }
    return unicode_class(r->unicode, utf8_decode(r->text + at, length)) & KIND;
}

/* The end of the run of code points of class `kind` that starts at `at`; at most `most` of them. */
static inline size_t run_end(const reader *r, size_t at, uint8_t kind, size_t most)
{
    size_t length;
    while (most-- > 0 && class_at(r, at, &length) == kind)
        at += length;
    return at;
}

static inline size_t newlines_end(const reader *r, size_t at)
{
    while (at < r->bytes && (r->text[at] == '\r' || r->text[at] == '\n'))
        at++;
    return at;
}

/* 's 't 're 've 'm 'll 'd after the apostrophe at `at`; its end, or `at`. Without case, s is also U+017F. */
static size_t contraction_end(const reader *r, size_t at, bool any_case)
{
    if (at + 1 >= r->bytes)
        return at;
    char fold = any_case ? 0x20 : 0;
    char a = r->text[at + 1] | fold, b = at + 2 < r->bytes ? r->text[at + 2] | fold : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    if (any_case && at + 2 < r->bytes && memcmp(r->text + at + 1, "\xC5\xBF", 2) == 0)
        return at + 3;
    return at;
}

/* \s+(?!\S)|\s+ on the run of whitespace that starts at `at`: all of it at the end of the text, otherwise all but its
 * last code point, which goes with what follows; a single one stands alone. */
static size_t spaces_end(const reader *r, size_t at)
{
    size_t end = run_end(r, at, UNICODE_SPACE, SIZE_MAX);
    if (end == r->bytes)
        return end;
    size_t last = end - utf8_last_length(r->text, end);
    return last > at ? last : end;
}

/* \s*[\r\n]+ gives back until its last line break is after \s*: it ends after the last line break of the run. */
static size_t lines_end(const reader *r, size_t at)
{
    size_t end = run_end(r, at, UNICODE_SPACE, SIZE_MAX);
    while (end > at && r->text[end - 1] != '\n' && r->text[end - 1] != '\r')
        end--;
    return end;
}

static size_t gpt2_end(const unicode *u, const char *text, size_t bytes, size_t start)
{
    reader r = {u, text, bytes};
    size_t length, at = start;
    if (text[start] == '\'') {
        size_t end = contraction_end(&r, start, false);
        if (end > start)
            return end;
    }
    uint8_t kind = class_at(&r, start, &length);
    if (text[start] == ' ') {
        uint8_t next = class_at(&r, start + 1, &length);
        if (next != KIND && next != UNICODE_SPACE) {
            at = start + 1;
            kind = next;
        }
    }
    return kind == UNICODE_SPACE ? spaces_end(&r, start) : run_end(&r, at, kind, SIZE_MAX);
}

/* LLaMA 3 and Qwen 2 differ in how many digits make a number. */
static inline size_t llama3_family_end(const reader *r, size_t start, size_t most_digits)
{
    const char *text = r->text;
    size_t length, next_length;
    if (text[start] == '\'') {
        size_t end = contraction_end(r, start, true);
        if (end > start)
            return end;
    }
    uint8_t kind = class_at(r, start, &length);
    if (kind == UNICODE_LETTER)
        return run_end(r, start + length, UNICODE_LETTER, SIZE_MAX);
    if (kind == UNICODE_NUMBER)
        return run_end(r, start + length, UNICODE_NUMBER, most_digits - 1);
    uint8_t next = class_at(r, start + length, &next_length);
    if (next == UNICODE_LETTER && text[start] != '\r' && text[start] != '\n')
        return run_end(r, start + length + next_length, UNICODE_LETTER, SIZE_MAX);
    if (kind == 0 || (text[start] == ' ' && next == 0))
        return newlines_end(r, run_end(r, start + length, 0, SIZE_MAX));
    size_t end = lines_end(r, start);
    return end > start ? end : spaces_end(r, start);
}

static size_t llama3_end(const unicode *u, const char *text, size_t bytes, size_t start)
{
    reader r = {u, text, bytes};
    return llama3_family_end(&r, start, 3);
}

static size_t qwen2_end(const unicode *u, const char *text, size_t bytes, size_t start)
{
    reader r = {u, text, bytes};
    return llama3_family_end(&r, start, 1);
}

static bool two_spaces_find(const char *text, size_t bytes, size_t from, size_t *start, size_t *end)
{
    const char *at = memmem(text + from, bytes - from, "  ", 2);
    *end = bytes;
    if (at == NULL)
        return false;
    *start = (size_t)(at - text);
    *end = *start + 2;
    while (*end < bytes && text[*end] == ' ')
        ++*end;
    return true;
}

static const known_pattern known[] = {
    {PATTERN_GPT2, gpt2_end, NULL},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
     "|\\s+(?!\\S)|\\s+",
     llama3_end, NULL},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+"
     "|\\s+(?!\\S)|\\s+",
     qwen2_end, NULL},
    {" {2,}", NULL, two_spaces_find},
};

const known_pattern *known_pattern_at(size_t index)
{
    return index < sizeof known / sizeof known[0] ? &known[index] : NULL;
}

const known_pattern *known_pattern_find(const char *expression, size_t bytes)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].expression) == bytes && memcmp(known[i].expression, expression, bytes) == 0)
            return &known[i];
    return NULL;
}
