/* Ids to text as they come. What a decoder makes of an id depends on its neighbours (spaces between words, characters
 * made of several byte tokens), so a few ids before the new ones are decoded along and their text is cut off again. */
#include <string.h>

#include "base/error.h"
#include "tokenizer/text/utf8.h"
#include "generate/generate.h"

enum { CONTEXT = 4 }; /* ids decoded along */

text_stream text_stream_begin(fsdp_tokenizer *tokenizer, size_t n_given)
{
    return (text_stream){.tokenizer = tokenizer, .first = n_given > CONTEXT ? n_given - CONTEXT : 0, .given = n_given};
}

/* A character may be incomplete: bytes that are not valid yet, or the sign that a decoder puts for them. */
static bool ends_within_character(const char *text, size_t bytes)
{
    size_t n = strlen(UTF8_REPLACEMENT);
    if (bytes >= n && memcmp(text + bytes - n, UTF8_REPLACEMENT, n) == 0)
        return true;
    size_t start = bytes;
    while (start > 0 && bytes - start < 3 && ((uint8_t)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0 || (uint8_t)text[start - 1] < 0xC0)
        return false; /* ASCII, or continuation bytes that belong to nothing */
    return utf8_length((uint8_t)text[start - 1]) > bytes - start + 1;
}

fsdp_status text_stream_add(text_stream *s, const int32_t *ids, size_t n, bool last, const char **text, size_t *bytes)
{
    const char *known;
    size_t known_bytes;
    FSDP_TRY(fsdp_tokenizer_decode(s->tokenizer, ids + s->first, s->given - s->first, true, &known, &known_bytes));
    FSDP_TRY(fsdp_tokenizer_decode(s->tokenizer, ids + s->first, n - s->first, true, text, bytes));
    if (*bytes <= known_bytes || (!last && ends_within_character(*text, *bytes))) {
        *text = "";
        *bytes = 0;
        return FSDP_OK;
    }
    *text += known_bytes;
    *bytes -= known_bytes;
    s->first = s->given;
    s->given = n;
    return FSDP_OK;
}
