/* Any bytes as a text for real tokenizers (those of the golden data; the byte tokenizer always): ids lie inside the
 * vocabulary, and valid UTF-8 comes back from the byte-level ones as it went in. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host/environment.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { N_TOKENIZERS = 4 };

/* Loaded once; they live as long as the process. */
static fsdp_tokenizer *tokenizers[N_TOKENIZERS];

static void load(void)
{
    static const char *const names[] = {"tokenizer_llama3", "tokenizer_llama2", "tokenizer_t5"};
    const char *root = environment_text("FSDP_GOLDEN_DIR");
    if (tokenizers[0] || fsdp_tokenizer_byte(&tokenizers[0]) != FSDP_OK)
        return;
    for (int i = 1; i < N_TOKENIZERS; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", root ? root : FSDP_GOLDEN_DEFAULT, names[i - 1]);
        if (fsdp_tokenizer_load(path, &tokenizers[i]) != FSDP_OK)
            tokenizers[i] = NULL;
    }
}

static void use(fsdp_tokenizer *t, bool keeps, const char *text, size_t bytes)
{
    const int32_t *ids;
    const char *back;
    size_t n, back_bytes;
    if (fsdp_tokenizer_encode(t, text, bytes, false, &ids, &n) != FSDP_OK)
        return;
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= fsdp_tokenizer_vocab_size(t))
            abort();
    int32_t *copy = malloc((n + 1) * sizeof *copy);
    if (n > 0)
        memcpy(copy, ids, n * sizeof *copy);
    if (fsdp_tokenizer_decode(t, copy, n, false, &back, &back_bytes) != FSDP_OK || back[back_bytes] != '\0')
        abort();
    if (keeps && utf8_valid_bytes(text, bytes) == bytes && (back_bytes != bytes || memcmp(back, text, bytes) != 0))
        abort();
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    load();
    for (int i = 0; i < N_TOKENIZERS; i++)
        if (tokenizers[i])
            use(tokenizers[i], i < 2, (const char *)data, bytes);
    return 0;
}
