/* Any bytes as a tokenizer.json with a text behind it: the input up to the first NUL is the file, the rest the text.
 * What loads must encode without a crash, and its ids must lie inside its vocabulary and decode. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void use(fsdp_tokenizer *t, const char *text, size_t bytes)
{
    const int32_t *ids;
    const char *back;
    size_t n, back_bytes;
    for (int special = 0; special < 2; special++) {
        if (fsdp_tokenizer_encode(t, text, bytes, special, &ids, &n) != FSDP_OK)
            continue;
        for (size_t i = 0; i < n; i++)
            if (ids[i] < 0 || (!special && ids[i] >= fsdp_tokenizer_vocab_size(t)))
                abort();
        if (fsdp_tokenizer_decode(t, ids, n, special, &back, &back_bytes) == FSDP_OK && back[back_bytes] != '\0')
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = memchr(data, 0, bytes);
    size_t json_bytes = end == NULL ? bytes : (size_t)(end - data);
    const char *text = end == NULL ? "the text" : (const char *)end + 1;
    size_t text_bytes = end == NULL ? 8 : bytes - json_bytes - 1;
    json_t *root;
    tokenizer_tables *tables;
    fsdp_tokenizer *t;
    if (json_parse_as("fuzz", (const char *)data, json_bytes, JSON_WITH_NUL | JSON_AS_SERDE, &root) != FSDP_OK)
        return 0;
    if (tokenizer_tables_read("fuzz", root, &tables) == FSDP_OK) {
        if (tokenizer_new(tables, &t) == FSDP_OK) {
            use(t, text, text_bytes);
            fsdp_tokenizer_free(t);
        } else {
            tokenizer_tables_free(tables);
        }
    }
    json_decref(root);
    return 0;
}
