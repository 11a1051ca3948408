/* Which bytes are UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF. */
#ifndef BASE_TEXT_UTF8_CHECK_H
#define BASE_TEXT_UTF8_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the valid code point at `p` (bytes > 0), or 0; then *broken is how many bytes belong to what is wrong: the
 * longest prefix of a code point that could still have become valid, at least 1. */
size_t utf8_check_one(const uint8_t *p, size_t bytes, size_t *broken);

/* How many bytes from the front are valid UTF-8. */
size_t utf8_valid_bytes(const char *text, size_t bytes);

#endif
