/* Which bytes are UTF-8, and the replacement of those that are not: one U+FFFD for each longest prefix of a code point
 * that could still have become valid, the practice that the Unicode standard recommends. */
#include "tokenizer/text/utf8.h"

#include <string.h>

/* Bytes of the valid code point at `p`, or 0, then *broken is how many bytes one U+FFFD stands for. */
static size_t code_point_bytes(const uint8_t *p, size_t bytes, size_t *broken)
{
    uint8_t first = p[0];
    size_t length = utf8_length(first);
    uint8_t low = 0x80, high = 0xBF; /* of the second byte: no overlong forms, no surrogates, nothing past U+10FFFF */
    *broken = 1;
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    for (size_t i = 1; i < length; i++) {
        if (i >= bytes || p[i] < low || p[i] > high) {
            *broken = i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

size_t utf8_valid_bytes(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0, broken;
    while (i < bytes) {
        uint64_t eight;
        while (i + sizeof eight <= bytes) {
            memcpy(&eight, p + i, sizeof eight);
            if (eight & 0x8080808080808080ull)
                break;
            i += sizeof eight;
        }
        if (i >= bytes)
            break;
        size_t length = code_point_bytes(p + i, bytes - i, &broken);
        if (length == 0)
            break;
        i += length;
    }
    return i;
}

fsdp_status utf8_repair(const char *text, size_t bytes, text_buffer *out)
{
    size_t i = 0;
    while (i < bytes) {
        size_t valid = utf8_valid_bytes(text + i, bytes - i), broken;
        FSDP_TRY(text_append(out, text + i, valid));
        i += valid;
        if (i < bytes) {
            code_point_bytes((const uint8_t *)text + i, bytes - i, &broken);
            FSDP_TRY(text_append(out, UTF8_REPLACEMENT, 3));
            i += broken;
        }
    }
    return FSDP_OK;
}

fsdp_status utf8_append(text_buffer *out, uint32_t point)
{
    char encoded[4];
    return text_append(out, encoded, utf8_encode(point, encoded));
}
