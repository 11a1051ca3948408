/* Eight bytes of ASCII at a time, everything else code point by code point. */
#include "base/text/utf8_check.h"

#include <string.h>

size_t utf8_check_one(const uint8_t *p, size_t bytes, size_t *broken)
{
    uint8_t first = p[0];
    size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
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
        size_t length = utf8_check_one(p + i, bytes - i, &broken);
        if (length == 0)
            break;
        i += length;
    }
    return i;
}
