/* The trie's units are darts-clone's: bits 0-7 label, 8 has a value, 9 scale of the offset, 10-30 offset, 31 value
 * unit. Blob: u32 bytes of the trie, the trie, then the replacements, each ending with a NUL. Files are not trusted:
 * every index is checked. */
#include "tokenizer/text/charsmap.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/text/utf8.h"

enum {
    WHOLE_GRAPHEME_BELOW = 6, /* bytes; longer clusters are mapped by code points. The library's rule. */
};

struct charsmap {
    uint32_t *units;
    size_t n_units;
    char *replacements;
    size_t replacements_bytes;
    bool ascii_kept[128]; /* nothing starting with this byte is ever replaced when it is a cluster of its own */
};

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes in groups of four, the last one padded with '='. */
static bool base64_decode(const char *text, size_t bytes, uint8_t *out, size_t *n_out)
{
    if (bytes % 4 != 0)
        return false;
    *n_out = 0;
    for (size_t i = 0; i < bytes; i += 4) {
        size_t padding = i + 4 < bytes ? 0 : (size_t)(text[i + 3] == '=') + (size_t)(text[i + 2] == '=');
        uint32_t group = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = k >= 4 - padding ? 0 : base64_value(text[i + k]);
            if (value < 0)
                return false;
            group = group << 6 | (uint32_t)value;
        }
        for (size_t k = 0; k < 3 - padding; k++)
            out[(*n_out)++] = (uint8_t)(group >> (16 - 8 * k));
    }
    return true;
}

static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The replacement for the shortest key that begins text[0..bytes); false when there is none. */
static bool find_replacement(const charsmap *m, const char *text, size_t bytes, const char **replacement,
                             size_t *replacement_bytes)
{
    if (m->n_units == 0)
        return false;
    size_t at = unit_offset(m->units[0]);
    for (size_t i = 0; i < bytes && text[i] != '\0'; i++) {
        at ^= (uint8_t)text[i];
        if (at >= m->n_units || (m->units[at] & 0x800000FFu) != (uint8_t)text[i])
            return false;
        uint32_t unit = m->units[at];
        at ^= unit_offset(unit);
        if (unit >> 8 & 1) {
            if (at >= m->n_units || m->units[at] >> 31 == 0)
                return false;
            size_t where = m->units[at] & 0x7FFFFFFFu;
            if (where >= m->replacements_bytes)
                return false;
            *replacement = m->replacements + where;
            *replacement_bytes = strlen(*replacement);
            return true;
        }
    }
    return false;
}

static fsdp_status read_blob(const char *name, const uint8_t *blob, size_t bytes, charsmap *m)
{
    uint32_t trie_bytes = 0;
    for (size_t i = 0; i < 4 && bytes >= 4; i++)
        trie_bytes |= (uint32_t)blob[i] << (8 * i);
    m->n_units = trie_bytes / 4;
    if (bytes < 4 || m->n_units * 4 > bytes - 4)
        return error_set(FSDP_ERR_INPUT, "%s: precompiled_charsmap is cut short", name);
    const uint8_t *trie = blob + 4, *text = trie + m->n_units * 4;
    m->replacements_bytes = bytes - 4 - m->n_units * 4;
    m->units = malloc(m->n_units * sizeof *m->units + 1);
    m->replacements = malloc(m->replacements_bytes + 1);
    if (m->units == NULL || m->replacements == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for precompiled_charsmap", name);
    for (size_t i = 0; i < m->n_units; i++)
        m->units[i] = (uint32_t)trie[4 * i] | (uint32_t)trie[4 * i + 1] << 8 | (uint32_t)trie[4 * i + 2] << 16 |
                      (uint32_t)trie[4 * i + 3] << 24;
    memcpy(m->replacements, text, m->replacements_bytes);
    m->replacements[m->replacements_bytes] = '\0';
    if (utf8_valid_bytes(m->replacements, m->replacements_bytes) != m->replacements_bytes)
        return error_set(FSDP_ERR_INPUT, "%s: the replacements of precompiled_charsmap are not UTF-8", name);
    return FSDP_OK;
}

/* A replacement that starts in the middle of a code point would make broken text of good one. */
static fsdp_status check_values(const char *name, const charsmap *m)
{
    for (size_t i = 0; i < m->n_units; i++) {
        size_t where = m->units[i] & 0x7FFFFFFFu;
        if (m->units[i] >> 31 && where < m->replacements_bytes && ((uint8_t)m->replacements[where] & 0xC0) == 0x80)
            return error_set(FSDP_ERR_INPUT, "%s: precompiled_charsmap points into the middle of a character", name);
    }
    return FSDP_OK;
}

fsdp_status charsmap_create(const char *name, const char *base64, size_t bytes, charsmap **out)
{
    size_t blob_bytes = 0;
    const char *replacement;
    size_t replacement_bytes;
    fsdp_status status;
    charsmap *m = calloc(1, sizeof *m);
    uint8_t *blob = malloc(bytes / 4 * 3 + 1);
    if (m == NULL || blob == NULL)
        TRY_OR(fail, error_set(FSDP_ERR_MEMORY, "%s: out of memory for precompiled_charsmap", name));
    if (!base64_decode(base64, bytes, blob, &blob_bytes))
        TRY_OR(fail, error_set(FSDP_ERR_INPUT, "%s: precompiled_charsmap is not base64", name));
    TRY_OR(fail, read_blob(name, blob, blob_bytes, m));
    TRY_OR(fail, check_values(name, m));
    for (int c = 0; c < 128; c++) {
        char text = (char)c;
        m->ascii_kept[c] = !find_replacement(m, &text, 1, &replacement, &replacement_bytes);
    }
    free(blob);
    *out = m;
    return FSDP_OK;
fail:
    free(blob);
    charsmap_free(m);
    return status;
}

void charsmap_free(charsmap *m)
{
    if (m == NULL)
        return;
    free(m->replacements);
    free(m->units);
    free(m);
}

/* Bytes from `start` that are ASCII, kept, and clusters of their own because ASCII follows them too. */
static size_t plain_run(const charsmap *m, const char *text, size_t bytes, size_t start)
{
    size_t i = start;
    while (i < bytes && (uint8_t)text[i] < 0x80 && m->ascii_kept[(uint8_t)text[i]] && text[i] != '\r' &&
           (i + 1 == bytes || (uint8_t)text[i + 1] < 0x80))
        i++;
    return i - start;
}

static fsdp_status apply_to_points(const charsmap *m, const char *text, size_t bytes, text_buffer *out)
{
    const char *replacement;
    size_t replacement_bytes;
    for (size_t i = 0, length; i < bytes; i += length) {
        length = utf8_length((uint8_t)text[i]);
        if (find_replacement(m, text + i, length, &replacement, &replacement_bytes))
            FSDP_TRY(text_append(out, replacement, replacement_bytes));
        else
            FSDP_TRY(text_append(out, text + i, length));
    }
    return FSDP_OK;
}

fsdp_status charsmap_apply(const charsmap *m, const unicode *u, const char *text, size_t bytes, text_buffer *out)
{
    const char *replacement;
    size_t replacement_bytes;
    for (size_t i = 0; i < bytes;) {
        size_t plain = plain_run(m, text, bytes, i);
        FSDP_TRY(text_append(out, text + i, plain));
        i += plain;
        if (i >= bytes)
            break;
        size_t end = unicode_grapheme_end(u, text, bytes, i);
        if (end - i < WHOLE_GRAPHEME_BELOW && find_replacement(m, text + i, end - i, &replacement, &replacement_bytes))
            FSDP_TRY(text_append(out, replacement, replacement_bytes));
        else
            FSDP_TRY(apply_to_points(m, text + i, end - i, out));
        i = end;
    }
    return FSDP_OK;
}
