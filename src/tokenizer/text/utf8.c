/* The replacement of bytes that are not UTF-8: one U+FFFD for each longest prefix of a code point
 * that could still have become valid, the practice that the Unicode standard recommends. */
#include "tokenizer/text/utf8.h"

fsdp_status utf8_repair(const char *text, size_t bytes, text_buffer *out)
{
    size_t i = 0;
    while (i < bytes) {
        size_t valid = utf8_valid_bytes(text + i, bytes - i), broken;
        FSDP_TRY(text_append(out, text + i, valid));
        i += valid;
        if (i < bytes) {
            utf8_check_one((const uint8_t *)text + i, bytes - i, &broken);
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
