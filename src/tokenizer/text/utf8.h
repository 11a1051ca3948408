/* UTF-8, one code point at a time. Decoding trusts its input: utf8_repair is what makes any bytes trustworthy. */
#ifndef TOKENIZER_TEXT_UTF8_H
#define TOKENIZER_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text/utf8_check.h"
#include "tokenizer/text/text_buffer.h"

#define UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Bytes of the code point that starts with `first`. */
static inline size_t utf8_length(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* The code point at `p`, which holds valid UTF-8; *bytes is its length. */
static inline uint32_t utf8_decode(const char *text, size_t *bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80) {
        *bytes = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *bytes = 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *bytes = 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3Fu);
    }
    *bytes = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 |
           (p[3] & 0x3Fu);
}

/* The length of the last code point of `text[0..bytes)`; bytes > 0. */
static inline size_t utf8_last_length(const char *text, size_t bytes)
{
    size_t n = 1;
    while (n < bytes && ((uint8_t)text[bytes - n] & 0xC0) == 0x80)
        n++;
    return n;
}

/* Writes `point` to out[0..4) and returns how many bytes it took. */
static inline size_t utf8_encode(uint32_t point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xC0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xE0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (point & 0x3F));
    return 4;
}

/* Appends `text` with every maximal broken sequence replaced by U+FFFD. */
fsdp_status utf8_repair(const char *text, size_t bytes, text_buffer *out);

fsdp_status utf8_append(text_buffer *out, uint32_t point);

#endif
