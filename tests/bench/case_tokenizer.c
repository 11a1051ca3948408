/* Speed of the tokenizers on one thread. --tokenizer FOLDER holds a tokenizer.json; without it all tokenizers of the
 * golden data run. --text FILE is cut into documents of about 2 KB at line ends; without it the text is made. With
 * FSDP_BENCH_PYTHON naming a python that has Hugging Face's tokenizers, each round of ours is followed by one of
 * theirs, single thread against single thread, and the ratio of the best rounds is given. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fsdp/tokenizer.h>

#include "base/host/environment.h"
#include "base/file.h"
#include "base/rng.h"
#include "bench.h"

enum { TEXT_BYTES = 4 << 20, DOCUMENT_BYTES = 2048, N_WORDS = 200000, LONGEST_WORD = 16, ROUNDS = 4 };

/* The made text: words of 200,000 different ones, the k-th about 1/k as often as the first (so tens of thousands come
 * only once or twice, and no cache of words can hold them all), capitals, punctuation, numbers, accents, some Greek and
 * Chinese, paragraphs. */
typedef struct text_maker {
    rng_key key;
    char *text;
    size_t n;
} text_maker;

static void put(text_maker *m, const char *text)
{
    size_t n = strlen(text);
    memcpy(m->text + m->n, text, n);
    m->n += n;
}

static void put_word(text_maker *m, uint64_t index)
{
    static const char *const parts[] = {"an", "er", "st", "re", "on", "ti",  "th",  "al", "ou", "in",      "es",
                                        "en", "le", "ma", "co", "de", "ra",  "li",  "s",  "ed", "ing",     "pro",
                                        "un", "ly", "q",  "x",  "wh", "ght", "ver", "ja", "ku", "\xc3\xa9"};
    size_t start = m->n, wanted = 1 + rng_word(m->key, 1, 64 * index) % 9 + index % 4;
    for (uint64_t i = 1; m->n - start < wanted && i < 60; i++) {
        const char *part = parts[rng_word(m->key, 1, 64 * index + i) % (sizeof parts / sizeof parts[0])];
        if (m->n - start + strlen(part) > LONGEST_WORD)
            break;
        put(m, part);
    }
}

static void put_other(text_maker *m, uint32_t draw)
{
    char number[16];
    if (draw % 4 == 0) {
        put(m, draw % 8 == 0 ? "\xe4\xb8\xad\xe6\x96\x87\xe5\xad\x97" : "\xce\xbb\xcf\x8c\xce\xb3\xce\xbf\xcf\x82");
    } else {
        snprintf(number, sizeof number, "%u", draw % (draw % 3 ? 100 : 100000));
        put(m, number);
    }
}

static char *make_text(size_t *bytes)
{
    static const char *const ends[] = {", ",   ", ", ". ", ". ",  ".\n", "; ", "? ",
                                       "\n\n", " (", ") ", "'s ", " - ", "\" "};
    text_maker m = {.key = rng_key_make(7), .text = malloc(TEXT_BYTES + 128)};
    for (uint64_t i = 0; m.text != NULL && m.n < TEXT_BYTES; i++) {
        uint32_t draw = rng_word(m.key, 0, 2 * i + 1);
        size_t start = m.n;
        if (draw % 50 == 0)
            put_other(&m, draw / 50);
        else
            put_word(&m, (uint64_t)__builtin_pow(N_WORDS, rng_to_uniform(rng_word(m.key, 0, 2 * i))) - 1);
        if (draw % 11 == 0 && m.text[start] >= 'a' && m.text[start] <= 'z')
            m.text[start] = (char)(m.text[start] - 32);
        put(&m, draw / 16 % 7 == 0 ? ends[draw / 128 % (sizeof ends / sizeof ends[0])] : " ");
    }
    *bytes = m.n;
    return m.text;
}

static size_t document_end(const char *text, size_t bytes, size_t start)
{
    if (bytes - start <= DOCUMENT_BYTES)
        return bytes;
    const char *line = memchr(text + start + DOCUMENT_BYTES, '\n', bytes - start - DOCUMENT_BYTES);
    return line == NULL ? bytes : (size_t)(line - text) + 1;
}

/* --- the others --- */

typedef struct rival {
    FILE *ask, *answer; /* NULL: there is none */
    pid_t process;
    char name[64];
} rival;

static bool write_documents(const char *path, const char *text, size_t bytes)
{
    FILE *out = fopen(path, "w");
    for (size_t start = 0, end; out != NULL && start < bytes; start = end) {
        end = document_end(text, bytes, start);
        fwrite(text + start, 1, end - start, out);
        fputc('\0', out);
    }
    return out != NULL && fclose(out) == 0;
}

static void rival_start(rival *r, const char *python, const char *tokenizer, const char *documents)
{
    int to[2], from[2];
    *r = (rival){.process = -1};
    if (python == NULL || pipe(to) != 0 || pipe(from) != 0)
        return;
    r->process = fork();
    if (r->process == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        execl(python, python, FSDP_GOLDEN_DEFAULT "/../bench/tokenizer_rounds.py", tokenizer, documents, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    r->ask = fdopen(to[1], "w");
    r->answer = fdopen(from[0], "r");
    if (fscanf(r->answer, " %63[^\n]", r->name) != 1) {
        fclose(r->ask);
        fclose(r->answer);
        waitpid(r->process, NULL, 0);
        *r = (rival){.process = -1};
    }
}

static bool rival_round(rival *r, double *seconds, size_t *n_tokens)
{
    fputs("go\n", r->ask);
    fflush(r->ask);
    return fscanf(r->answer, "%lf %zu", seconds, n_tokens) == 2;
}

static void rival_end(rival *r)
{
    if (r->ask == NULL)
        return;
    fclose(r->ask);
    fclose(r->answer);
    waitpid(r->process, NULL, 0);
}

/* --- ours --- */

static fsdp_status own_round(fsdp_tokenizer *tokenizer, const char *text, size_t bytes, bench_times *times,
                             size_t *n_tokens)
{
    bench_moment began = bench_now();
    *n_tokens = 0;
    for (size_t start = 0, end; start < bytes; start = end) {
        const int32_t *ids;
        size_t n;
        end = document_end(text, bytes, start);
        FSDP_TRY(fsdp_tokenizer_encode(tokenizer, text + start, end - start, true, &ids, &n));
        *n_tokens += n;
    }
    bench_record(times, began);
    return FSDP_OK;
}

/* A fresh tokenizer every round: nothing learnt in one round helps the next. */
static int compare(const char *folder, const char *text, size_t bytes, rival *r)
{
    static bench_times own, theirs;
    double seconds;
    size_t n_tokens = 0, their_tokens = 0;
    const char *name = strrchr(folder, '/');
    own.n = theirs.n = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fsdp_tokenizer *tokenizer;
        if (fsdp_tokenizer_load(folder, &tokenizer) != FSDP_OK ||
            own_round(tokenizer, text, bytes, &own, &n_tokens) != FSDP_OK)
            bench_fail(folder);
        fsdp_tokenizer_free(tokenizer);
        if (r->ask != NULL && rival_round(r, &seconds, &their_tokens))
            bench_add(&theirs, seconds, seconds);
    }
    double best = bench_best(own.wall, own.n), their_best = bench_best(theirs.wall, theirs.n);
    bench_text("tokenizer", name == NULL ? folder : name + 1);
    bench_number("MB/s", 1, (double)bytes / best / 1e6);
    bench_number("million tokens/s", 2, (double)n_tokens / best / 1e6);
    if (theirs.n > 0) {
        char column[96];
        snprintf(column, sizeof column, "%s, MB/s", r->name);
        bench_number(column, 1, (double)bytes / their_best / 1e6);
        bench_number("ratio", 1, their_best / best);
        bench_number("tokens that differ in number", 0, (double)n_tokens - (double)their_tokens);
    }
    bench_row();
    return theirs.n > 0 && their_tokens != n_tokens;
}

static int bench_folder(const char *folder, const char *text, size_t bytes)
{
    char tokenizer[4096], documents[] = "/tmp/fsdp-bench-text-XXXXXX";
    const char *python = environment_text("FSDP_BENCH_PYTHON");
    rival r;
    int file = mkstemp(documents);
    snprintf(tokenizer, sizeof tokenizer, "%s%s", folder, file_is_directory(folder) ? "/tokenizer.json" : "");
    if (file < 0 || !write_documents(documents, text, bytes))
        python = NULL;
    rival_start(&r, python, tokenizer, documents);
    int failed = compare(folder, text, bytes, &r);
    rival_end(&r);
    close(file);
    unlink(documents);
    return failed;
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
            failed |= bench_folder(path, text, bytes);
    }
    closedir(folder);
    return failed;
}

static int run_tokenizer(int argc, char **argv)
{
    const char *folder = NULL, *file = NULL;
    const bench_option table[] = {
        {"tokenizer", BENCH_TEXT, &folder, 0, 0}, {"text", BENCH_TEXT, &file, 0, 0}, {NULL, BENCH_SWITCH, NULL, 0, 0}};
    char *text = NULL;
    size_t bytes = 0;
    if (!bench_options(argc, argv, table))
        return 2;
    if (file && file_read(file, &text, &bytes) != FSDP_OK)
        bench_fail("text");
    if (text == NULL)
        text = make_text(&bytes);
    if (text == NULL)
        return 1;
    if (environment_text("FSDP_BENCH_PYTHON") == NULL)
        bench_title("not compared: FSDP_BENCH_PYTHON names no python with the tokenizers package");
    int failed = folder ? bench_folder(folder, text, bytes) : bench_golden(text, bytes);
    free(text);
    return failed;
}

const bench_case case_tokenizer = {.name = "tokenizer",
                                   .summary = "tokenizers on one thread, beside Hugging Face's",
                                   .usage = "[--tokenizer FOLDER] [--text FILE]",
                                   .run = run_tokenizer};
