/* Escapes what a terminal would obey instead of show. */
#include "base/text/printable.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the UTF-8 character at `s`, with its number in *code; 0 when there is none (overlong and surrogate forms are
 * none). */
static size_t decode(const uint8_t *s, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf8 ? 4 : 0;
    if (n == 0)
        return 0;
    *code = n == 1 ? s[0] : s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* the terminating NUL, too */
            return 0;
        *code = *code << 6 | (s[i] & 0x3f);
    }
    return *code < least[n] || *code > 0x10ffff || (*code >= 0xd800 && *code < 0xe000) ? 0 : n;
}

static bool is_plain(uint32_t code, bool lines)
{
    if (code < 0x20)
        return lines && (code == '\n' || code == '\t');
    if (code >= 0x7f && code < 0xa0) /* DEL, and control characters of eight bits */
        return false;
    bool directs = code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
                   (code >= 0x2066 && code <= 0x2069);
    bool separates = code == 0x2028 || code == 0x2029;
    return !directs && !separates && code != 0xfeff;
}

size_t printable(const char *text, bool lines, char *out, size_t room)
{
    const uint8_t *s = (const uint8_t *)text;
    size_t length = 0;
    bool fits = true;
    if (room > 0)
        out[0] = '\0';
    while (*s) {
        char escaped[16];
        uint32_t code = 0;
        size_t n = decode(s, &code), n_out = n;
        const char *from = (const char *)s;
        if (n == 0 || !is_plain(code, lines)) {
            from = escaped;
            n_out = (size_t)(n <= 1 ? snprintf(escaped, sizeof escaped, "\\x%02x", s[0])
                                    : snprintf(escaped, sizeof escaped, "\\u{%x}", (unsigned)code));
        }
        fits = fits && length + n_out < room;
        if (fits) {
            memcpy(out + length, from, n_out);
            out[length + n_out] = '\0';
        }
        length += n_out;
        s += n > 0 ? n : 1;
    }
    return length;
}

char *printable_copy(const char *text, bool lines)
{
    size_t room = printable(text, lines, NULL, 0) + 1;
    char *copy = malloc(room);
    if (copy)
        printable(text, lines, copy, room);
    return copy;
}
