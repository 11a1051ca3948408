/* Speed of the tokenizers on one thread: bench_tokenizer [FOLDER [TEXT_FILE]]. FOLDER holds a tokenizer.json; without
 * it all tokenizers of the golden data run. TEXT_FILE is cut into documents of about 2 KB at line ends; without it the
 * text is made up of words whose frequencies fall as they do in English. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/tokenizer.h>

#include "base/clock.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/rng.h"

enum { TEXT_BYTES = 8 << 20, DOCUMENT_BYTES = 2048, N_WORDS = 30000, LONGEST_WORD = 14, ROUNDS = 3 };

static size_t make_word(rng_key key, uint64_t index, char *out)
{
    static const char *const parts[] = {"an", "er", "st", "re", "on", "ti", "th", "al", "ou",  "in",  "es", "en",
                                        "le", "ma", "co", "de", "ra", "li", "s",  "ed", "ing", "pro", "un", "ly"};
    size_t n = 0, wanted = 2 + rng_word(key, 1, 64 * index) % 8 + index % 5;
    for (uint64_t i = 1; n < wanted && i < 60; i++) {
        const char *part = parts[rng_word(key, 1, 64 * index + i) % (sizeof parts / sizeof parts[0])];
        if (n + strlen(part) > LONGEST_WORD)
            break;
        memcpy(out + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

/* Word k of the list comes about 1/k as often as the first: k is drawn as a power of the length of the list. */
static char *make_text(size_t *bytes)
{
    rng_key key = rng_key_make(7);
    char *text = malloc(TEXT_BYTES + 64);
    size_t n = 0;
    for (uint64_t i = 0; text != NULL && n < TEXT_BYTES; i++) {
        double u = rng_to_uniform(rng_word(key, 0, 2 * i));
        uint64_t rank = (uint64_t)(__builtin_pow(N_WORDS, u)) - 1;
        size_t start = n;
        n += make_word(key, rank, text + n);
        uint32_t mark = rng_word(key, 0, 2 * i + 1) % 64;
        if (mark % 9 == 0 && n > start)
            text[start] = (char)(text[start] - 32);
        if (mark < 5)
            text[n++] = ',';
        else if (mark < 9)
            text[n++] = '.';
        text[n++] = mark == 10 ? '\n' : ' ';
    }
    *bytes = n;
    return text;
}

static size_t document_end(const char *text, size_t bytes, size_t start)
{
    if (bytes - start <= DOCUMENT_BYTES)
        return bytes;
    const char *line = memchr(text + start + DOCUMENT_BYTES, '\n', bytes - start - DOCUMENT_BYTES);
    return line == NULL ? bytes : (size_t)(line - text) + 1;
}

static int bench(const char *folder, const char *text, size_t bytes)
{
    fsdp_tokenizer *tokenizer;
    double best = 1e30;
    size_t n_tokens = 0;
    if (fsdp_tokenizer_load(folder, &tokenizer) != FSDP_OK) {
        fprintf(stderr, "%s\n", fsdp_last_error());
        return 1;
    }
    for (int round = 0; round < ROUNDS; round++) {
        double began = clock_seconds();
        n_tokens = 0;
        for (size_t start = 0, end; start < bytes; start = end) {
            const int32_t *ids;
            size_t n;
            end = document_end(text, bytes, start);
            if (fsdp_tokenizer_encode(tokenizer, text + start, end - start, true, &ids, &n) != FSDP_OK) {
                fprintf(stderr, "%s\n", fsdp_last_error());
                fsdp_tokenizer_free(tokenizer);
                return 1;
            }
            n_tokens += n;
        }
        double seconds = clock_seconds() - began;
        best = seconds < best ? seconds : best;
    }
    const char *name = strrchr(folder, '/');
    printf("tokenizer %-20s %7.1f MB/s %9.2f million tokens/s (%zu tokens)\n", name == NULL ? folder : name + 1,
           (double)bytes / best / 1e6, (double)n_tokens / best / 1e6, n_tokens);
    fsdp_tokenizer_free(tokenizer);
    return 0;
}

static int bench_golden(const char *text, size_t bytes)
{
    const char *root = environment_text("FSDP_GOLDEN_DIR");
    int failed = 0;
    root = root != NULL ? root : FSDP_GOLDEN_DEFAULT;
    DIR *folder = opendir(root);
    if (folder == NULL) {
        printf("tokenizer: no golden data in %s\n", root);
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        if (strncmp(entry->d_name, "tokenizer_", 10) == 0)
            failed |= bench(path, text, bytes);
    }
    closedir(folder);
    return failed;
}

int main(int argc, char **argv)
{
    char *text = NULL;
    size_t bytes = 0;
    if (argc > 2 && file_read(argv[2], &text, &bytes) != FSDP_OK) {
        fprintf(stderr, "%s\n", fsdp_last_error());
        return 1;
    }
    if (text == NULL)
        text = make_text(&bytes);
    if (text == NULL)
        return 1;
    int failed = argc > 1 ? bench(argv[1], text, bytes) : bench_golden(text, bytes);
    free(text);
    return failed;
}
