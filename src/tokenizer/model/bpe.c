/* Reads a BPE model from tokenizer.json: vocabulary, merges with their ranks, and the options. */
#include "tokenizer/model/bpe_internal.h"

#include <stdlib.h>

#include "tokenizer/component.h"

typedef struct text_view {
    const char *text;
    size_t bytes;
} text_view;

/* One merge: ["a", "b"], or "a b" in older files. */
static fsdp_status read_pair(const char *name, const json_t *entry, size_t rank, text_view pair[2])
{
    size_t bytes = json_string_length(entry);
    if (json_is_array(entry) && json_array_size(entry) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *half = json_array_get(entry, i);
            pair[i] = (text_view){json_string_value(half), json_string_length(half)};
        }
    } else {
        const char *line = json_string_value(entry), *space = line == NULL ? NULL : memchr(line, ' ', bytes);
        pair[0] = pair[1] = (text_view){0};
        size_t behind = space == NULL ? 0 : bytes - (size_t)(space - line) - 1;
        if (space != NULL && memchr(space + 1, ' ', behind) == NULL) {
            pair[0] = (text_view){line, (size_t)(space - line)};
            pair[1] = (text_view){space + 1, behind};
        }
    }
    if (pair[0].text == NULL || pair[1].text == NULL)
        return error_set(FSDP_ERR_INPUT, "%s: merge %zu must be two tokens", name, rank);
    return FSDP_OK;
}

static bool ends_with_mark(text_view t)
{
    return t.bytes >= BPE_MARK_BYTES && memcmp(t.text + t.bytes - BPE_MARK_BYTES, BPE_MARK, BPE_MARK_BYTES) == 0;
}

static bool begins_with_mark(text_view t)
{
    return t.bytes >= BPE_MARK_BYTES && memcmp(t.text, BPE_MARK, BPE_MARK_BYTES) == 0;
}

static fsdp_status add_merge(const char *name, bpe *b, const text_view pair[2], size_t rank, text_buffer *scratch)
{
    int32_t left = vocabulary_id(b->tokens, pair[0].text, pair[0].bytes);
    int32_t right = vocabulary_id(b->tokens, pair[1].text, pair[1].bytes);
    size_t prefix = b->prefix_bytes;
    scratch->bytes = 0;
    FSDP_TRY(text_append(scratch, pair[0].text, pair[0].bytes));
    if (prefix > pair[1].bytes)
        return error_set(FSDP_ERR_INPUT, "%s: the right part of merge %zu lacks the continuing_subword_prefix", name,
                         rank);
    FSDP_TRY(text_append(scratch, pair[1].text + prefix, pair[1].bytes - prefix));
    int32_t whole = vocabulary_id(b->tokens, scratch->data, scratch->bytes);
    if (left < 0 || right < 0 || whole < 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s: merge %zu (\"%.*s\" and \"%.*s\") uses or makes a token that is not in the vocabulary",
                         name, rank, (int)pair[0].bytes, pair[0].text, (int)pair[1].bytes, pair[1].text);
    size_t i = bpe_merge_slot(b, left, right);
    while (b->merges[i].left >= 0 && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & (b->n_slots - 1);
    b->merges[i] = (bpe_merge){left, right, (uint32_t)rank, whole};
    if (begins_with_mark(pair[1]) && !ends_with_mark(pair[0]))
        b->cuts_at_mark = false;
    return FSDP_OK;
}

static fsdp_status read_merges(const char *name, const json_t *object, bpe *b)
{
    json_t *merges, *entry;
    size_t rank;
    text_buffer scratch = {0};
    text_view pair[2];
    fsdp_status status = FSDP_OK;
    FSDP_TRY(component_array(name, object, "merges", &merges));
    b->n_slots = 64;
    while (b->n_slots < json_array_size(merges) * 2)
        b->n_slots *= 2;
    b->merges = malloc(b->n_slots * sizeof *b->merges);
    if (b->merges == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %zu merges", name, json_array_size(merges));
    for (size_t i = 0; i < b->n_slots; i++)
        b->merges[i].left = -1;
    json_array_foreach(merges, rank, entry)
    {
        const char *line = json_string_value(entry);
        if (line != NULL && strncmp(line, "#version", 8) == 0)
            continue;
        status = read_pair(name, entry, rank, pair);
        if (status == FSDP_OK)
            status = add_merge(name, b, pair, rank, &scratch);
        if (status != FSDP_OK)
            break;
    }
    text_free(&scratch);
    return status;
}

/* An affix under `key`: empty and absent are the same. */
static fsdp_status read_affix(const char *name, const json_t *object, const char *key, char **text, size_t *bytes)
{
    const char *value = NULL;
    FSDP_TRY(json_opt_string(name, object, key, &value));
    if (value == NULL || value[0] == '\0')
        return FSDP_OK;
    *bytes = strlen(value);
    *text = strdup(value);
    return *text != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
}

static fsdp_status read_options(const char *name, const json_t *object, bpe *b)
{
    double dropout = 0;
    const char *unknown = NULL;
    FSDP_TRY(json_opt_number(name, object, "dropout", &dropout));
    if (dropout != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: BPE with dropout %g is random and not supported; set it to null",
                         name, dropout);
    FSDP_TRY(json_opt_string(name, object, "unk_token", &unknown));
    FSDP_TRY(json_opt_bool(name, object, "fuse_unk", &b->fuse_unknown));
    FSDP_TRY(json_opt_bool(name, object, "byte_fallback", &b->byte_fallback));
    FSDP_TRY(json_opt_bool(name, object, "ignore_merges", &b->ignore_merges));
    FSDP_TRY(read_affix(name, object, "continuing_subword_prefix", &b->prefix, &b->prefix_bytes));
    FSDP_TRY(read_affix(name, object, "end_of_word_suffix", &b->suffix, &b->suffix_bytes));
    b->has_unknown = unknown != NULL;
    b->unknown_id = unknown == NULL ? -1 : vocabulary_id(b->tokens, unknown, strlen(unknown));
    return FSDP_OK;
}

static void fill_tables(bpe *b)
{
    bool all_bytes = b->byte_fallback;
    for (int c = 0; c < 256; c++) {
        char code[8], ascii = (char)c;
        snprintf(code, sizeof code, "<0x%02X>", (unsigned)c);
        b->fallback_id[c] = vocabulary_id(b->tokens, code, 6);
        all_bytes = all_bytes && b->fallback_id[c] >= 0;
        if (c < 128)
            b->ascii_id[c] = vocabulary_id(b->tokens, &ascii, 1);
    }
    /* A character that leaves no symbol would bring a mark next to what stood before it. */
    bool drops_nothing = b->has_unknown || all_bytes;
    b->cuts_at_mark = b->cuts_at_mark && drops_nothing && b->prefix == NULL && b->suffix == NULL && !b->ignore_merges &&
                      vocabulary_id(b->tokens, BPE_MARK, BPE_MARK_BYTES) >= 0;
}

fsdp_status bpe_create(const char *name, const json_t *object, bpe **out)
{
    fsdp_status status;
    bpe *b = calloc(1, sizeof *b);
    if (b == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    b->cuts_at_mark = true;
    TRY_OR(fail, component_vocabulary(name, object, &b->tokens));
    TRY_OR(fail, read_options(name, object, b));
    TRY_OR(fail, read_merges(name, object, b));
    fill_tables(b);
    *out = b;
    return FSDP_OK;
fail:
    bpe_free(b);
    return status;
}

void bpe_free(bpe *b)
{
    if (b == NULL)
        return;
    free(b->suffix);
    free(b->prefix);
    free(b->merges);
    vocabulary_free(b->by_bytes);
    vocabulary_free(b->tokens);
    free(b);
}

const vocabulary *bpe_vocabulary(const bpe *b)
{
    return b->tokens;
}

fsdp_status bpe_take_bytes(bpe *b, const byte_alphabet *alphabet, bool *taken)
{
    text_buffer plain = {0};
    fsdp_status status = FSDP_OK;
    *taken = b->prefix == NULL && b->suffix == NULL;
    for (int c = 0; c < 256 && status == FSDP_OK && *taken; c++) {
        char byte = (char)c;
        plain.bytes = 0;
        status = byte_alphabet_encode(alphabet, &byte, 1, &plain);
        if (status == FSDP_OK)
            b->byte_id[c] = vocabulary_id(b->tokens, plain.data, plain.bytes);
        *taken = b->byte_id[c] >= 0;
    }
    if (status == FSDP_OK && *taken)
        status = vocabulary_create(vocabulary_count(b->tokens), &b->by_bytes);
    for (int32_t id = 0; status == FSDP_OK && *taken && id < vocabulary_end(b->tokens); id++) {
        size_t bytes;
        bool spelled = false;
        const char *token = vocabulary_text(b->tokens, id, &bytes);
        plain.bytes = 0;
        if (token != NULL)
            status = byte_alphabet_decode(alphabet, token, bytes, &plain, &spelled);
        if (status == FSDP_OK && spelled && plain.bytes > 0)
            status = vocabulary_add(b->by_bytes, plain.data, plain.bytes, id);
    }
    text_free(&plain);
    return status;
}
