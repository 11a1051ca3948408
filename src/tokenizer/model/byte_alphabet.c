/* Printable Latin-1 bytes stand for themselves, the others for the code points from U+0100 on, in their order. */
#include "tokenizer/model/byte_alphabet.h"

#include "tokenizer/text/utf8.h"

void byte_alphabet_init(byte_alphabet *a)
{
    uint16_t next = 256;
    for (size_t i = 0; i < 512; i++)
        a->byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        a->point_of[byte] = printable ? (uint16_t)byte : next++;
        a->byte_of[a->point_of[byte]] = (int16_t)byte;
    }
}

fsdp_status byte_alphabet_encode(const byte_alphabet *a, const char *text, size_t bytes, text_buffer *out)
{
    FSDP_TRY(text_reserve(out, bytes * 2));
    for (size_t i = 0; i < bytes; i++)
        out->bytes += utf8_encode(a->point_of[(uint8_t)text[i]], out->data + out->bytes);
    return FSDP_OK;
}

fsdp_status byte_alphabet_decode(const byte_alphabet *a, const char *text, size_t bytes, text_buffer *out,
                                 bool *spelled)
{
    size_t before = out->bytes;
    FSDP_TRY(text_reserve(out, bytes));
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t point = utf8_decode(text + i, &length);
        if (point >= 512 || a->byte_of[point] < 0) {
            out->bytes = before;
            *spelled = false;
            return FSDP_OK;
        }
        out->data[out->bytes++] = (char)a->byte_of[point];
    }
    *spelled = true;
    return FSDP_OK;
}
