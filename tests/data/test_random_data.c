/* Random data against a naive reference: documents written to files of every form are read as the one row of tokens
 * that they are; and loaders of any world size, stopped anywhere and resumed at another, give every sample exactly once
 * an epoch, at the position where every other world gives it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/scratch.h"
#include "data/files.h"
#include "data/loader.h"
#include "format/weights/safetensors_writer.h"
#include "format/token/token_file.h"

typedef struct draw {
    rng_key key;
    uint64_t n;
} draw;

static int64_t pick(draw *d, int64_t below)
{
    return (int64_t)(rng_word(d->key, 0, d->n++) % (uint64_t)below);
}

/* --- the reference: all tokens in a row -------------------------------------------------------------------------- */

enum { MAX_TOKENS = 1 << 20, MAX_DOCUMENT = 300000 };

typedef struct reference {
    int32_t *tokens; /* [MAX_TOKENS] */
    int64_t n;
} reference;

/* A document of letters, spaces and line breaks; short, empty, or rarely longer than a part of a text. */
static size_t random_document(draw *d, char *text)
{
    int64_t form = pick(d, 40);
    size_t n = (size_t)(form == 0 ? pick(d, MAX_DOCUMENT) : form < 5 ? 0 : 1 + pick(d, 60));
    uint64_t word = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0)
            word = rng_word(d->key, 0, d->n++);
        text[i] = "abcdefgh \nxyzuvw"[word >> (i % 8) * 4 & 15];
    }
    text[n] = '\0';
    return n;
}

static void refer(reference *r, const char *text, size_t bytes)
{
    if (bytes == 0)
        return;
    assert_true(r->n + (int64_t)bytes < MAX_TOKENS);
    for (size_t i = 0; i < bytes; i++)
        r->tokens[r->n++] = (unsigned char)text[i];
    r->tokens[r->n++] = 0;
}

/* --- writing ----------------------------------------------------------------------------------------------------- */

static const char *write_form(draw *d, void **state, const char *name, const char *text)
{
    char full[128];
    int64_t packing = pick(d, 3);
    snprintf(full, sizeof full, "%s%s", name, packing == 0 ? "" : packing == 1 ? ".gz" : ".zst");
    return packing == 0   ? files_text(*state, full, text)
           : packing == 1 ? files_gzip(*state, full, text)
                          : files_zstd(*state, full, text);
}

/* Records in lines, in an array, or over several lines; some bad ones among them. */
static void write_records(draw *d, void **state, const char *name, char *document, reference *r)
{
    int64_t n = pick(d, 12), form = pick(d, 3);
    size_t room = 64 + (size_t)(n + 1) * (2 * MAX_DOCUMENT + 64), used = 0;
    char *json = malloc(room);
    if (pick(d, 4) == 0)
        used += (size_t)sprintf(json + used, "\xEF\xBB\xBF");
    used += (size_t)sprintf(json + used, form == 1 ? "[\n" : "");
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = random_document(d, document);
        used += (size_t)sprintf(json + used,
                                form == 2 ? "{\n  \"id\": %d,\n  \"text\": \"" : "{\"id\": %d, \"text\": \"", (int)i);
        for (size_t k = 0; k < bytes; k++) {
            if (document[k] == '\n')
                json[used++] = '\\';
            json[used++] = document[k] == '\n' ? 'n' : document[k];
        }
        used += (size_t)sprintf(json + used, form == 2 ? "\"\n}\n" : form == 1 && i + 1 < n ? "\"},\n" : "\"}\n");
        if (form == 0 && pick(d, 10) == 0)
            used += (size_t)sprintf(json + used, "%s\n", pick(d, 2) ? "" : "{\"text\": 7}");
        refer(r, document, bytes);
    }
    sprintf(json + used, form == 1 ? "]" : "");
    write_form(d, state, name, json);
    free(json);
}

/* A folder of files whose paths sort as they were written. */
static void write_texts(draw *d, void **state, reference *r)
{
    char *document = malloc(MAX_DOCUMENT + 1), name[64];
    int64_t n = 1 + pick(d, 6);
    for (int64_t i = 0; i < n; i++) {
        bool records = pick(d, 2);
        snprintf(name, sizeof name, pick(d, 2) ? "data/f%d/x%s" : "data/f%d%s", (int)i, records ? ".jsonl" : ".txt");
        if (records) {
            write_records(d, state, name, document, r);
        } else {
            size_t bytes = random_document(d, document);
            refer(r, document, bytes);
            write_form(d, state, name, document);
        }
    }
    free(document);
}

/* Token files, some of them empty; samples lie across their borders. */
static void write_token_files(draw *d, void **state, reference *r)
{
    char name[64];
    int64_t n = 1 + pick(d, 4);
    for (int64_t i = 0; i < n; i++) {
        token_writer *w;
        int64_t documents = pick(d, 4);
        snprintf(name, sizeof name, "data/t%d.bin", (int)i);
        assert_int_equal(token_writer_create(files_path(*state, name), 70000 - 69000 * (i % 2), &w), FSDP_OK);
        for (int64_t k = 0; k < documents; k++) {
            int64_t length = pick(d, 300), first = r->n;
            for (int64_t t = 0; t < length; t++)
                r->tokens[r->n++] = (int32_t)pick(d, 1000);
            assert_int_equal(token_writer_append(w, r->tokens + first, (size_t)length), FSDP_OK);
            assert_int_equal(token_writer_end_document(w), FSDP_OK);
        }
        assert_int_equal(token_writer_commit(w), FSDP_OK);
    }
}

static void write_table(draw *d, void **state, int64_t width, reference *r)
{
    safetensors_writer *w;
    size_t index;
    int64_t samples = 1 + pick(d, 60);
    for (r->n = 0; r->n < samples * width; r->n++)
        r->tokens[r->n] = (int32_t)pick(d, 1000);
    assert_int_equal(safetensors_writer_create(files_path(*state, "data/table.safetensors"), &w), FSDP_OK);
    assert_int_equal(safetensors_writer_add(w, "data", FSDP_I32, 2, (const int64_t[]){samples, width}, &index),
                     FSDP_OK);
    assert_int_equal(safetensors_writer_begin(w), FSDP_OK);
    assert_int_equal(safetensors_writer_write(w, index, 0, r->tokens, (size_t)r->n * sizeof *r->tokens), FSDP_OK);
    assert_int_equal(safetensors_writer_commit(w), FSDP_OK);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

/* NULL when there is less than one sample, which must be an error then. */
static fsdp_dataset *open_random(draw *d, void **state, fsdp_tokenizer *t, int64_t width, int64_t form,
                                 int64_t *max_samples, const reference *r)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    fsdp_dataset *data = NULL;
    const char *folder = files_path(*state, "data");
    o.tokenizer = t;
    o.width = width;
    o.threads = (int)(1 + pick(d, 3));
    o.max_samples = *max_samples = pick(d, 4) == 0 ? 1 + pick(d, 20) : 0;
    o.cache_folder = pick(d, 2) ? files_path(*state, "cache") : "";
    o.cache_from_bytes = 0;
    fsdp_status status = files_open(&folder, 1, &o, &data);
    if (form < 2 && r->n < width) {
        assert_int_equal(status, FSDP_ERR_INPUT);
        return NULL;
    }
    if (status != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    return data;
}

static void expect_row(const reference *r, int64_t width, int64_t sample, const int32_t *ids, const int32_t *labels)
{
    assert_memory_equal(ids, r->tokens + sample * width, (size_t)width * sizeof *ids);
    assert_memory_equal(labels, ids + 1, (size_t)(width - 1) * sizeof *ids);
    assert_int_equal(labels[width - 1], FSDP_IGNORE);
}

static void expect_rows(const fsdp_dataset *data, const reference *r, int64_t width, int64_t first, int64_t n)
{
    int32_t ids[64], labels[64];
    assert_int_equal(files_describe(data).n_samples, n);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(fsdp_dataset_read(data, i, (void *[]){ids, labels}), FSDP_OK);
        expect_row(r, width, first + i, ids, labels);
    }
}

/* What was given at every position so far, -1: nothing yet. The first world to come by decides; all others must agree.
 */
typedef struct journal {
    int64_t *sample; /* [end] */
    int64_t end, n_samples;
} journal;

/* One world reads some batches from `position` on, each rank with a loader of its own; where it stops. */
static int64_t read_segment(draw *d, const fsdp_dataset *data, const reference *r, int64_t width, fsdp_loader_config c,
                            int world, journal *told)
{
    int64_t batches = 1 + pick(d, 8), stopped = 0, position = c.position;
    int *given = calloc((size_t)told->end, sizeof *given);
    for (int rank = 0; rank < world; rank++) {
        fsdp_loader *l = NULL;
        fsdp_batch *b;
        int64_t at = position;
        c.threads = (int)(1 + pick(d, 3));
        c.prefetch = (int)(1 + pick(d, 4));
        assert_int_equal(loader_create(data, rank, world, &c, &l), FSDP_OK);
        for (int64_t i = 0; i < batches; i++) {
            assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
            if (b == NULL && c.stop_at_epoch && at < told->end) { /* an epoch has ended */
                assert_int_equal(at % told->n_samples, 0);
                assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
            }
            if (b == NULL)
                break;
            const int32_t *ids = fsdp_batch_field(b, "ids"), *labels = fsdp_batch_field(b, "labels");
            assert_int_equal(b->position, at);
            assert_int_equal(b->epoch, at / told->n_samples);
            int64_t left = told->n_samples - at % told->n_samples, wanted = c.batch;
            wanted = c.stop_at_epoch && left < wanted ? left : wanted;
            wanted = told->end - at < wanted ? told->end - at : wanted;
            assert_int_equal(b->n_global, wanted);
            for (int64_t row = 0; row < b->counted; row++) {
                int64_t place = b->first_sample + row;
                assert_true(place >= at && place < at + b->n_global);
                if (told->sample[place] < 0)
                    told->sample[place] = b->samples[row];
                assert_int_equal(told->sample[place], b->samples[row]);
                expect_row(r, width, b->samples[row], ids + row * width, labels + row * width);
                given[place]++;
            }
            for (int64_t k = b->counted * width; k < b->n * width; k++)
                assert_int_equal(labels[k], FSDP_IGNORE);
            at += b->n_global;
        }
        fsdp_loader_free(l);
        assert_true(rank == 0 || at == stopped); /* all ranks stop at the same place */
        stopped = at;
    }
    for (int64_t i = 0; i < told->end; i++)
        assert_int_equal(given[i], i >= position && i < stopped);
    free(given);
    return stopped;
}

static void read_epochs(draw *d, const fsdp_dataset *data, const reference *r, int64_t width, bool ordered)
{
    int64_t n = files_describe(data).n_samples, epochs = 1 + pick(d, 3);
    journal told = {malloc((size_t)(n * epochs) * sizeof *told.sample), n * epochs, n};
    int *seen = calloc((size_t)n, sizeof *seen);
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.seed = (uint64_t)pick(d, 5);
    c.shuffle = pick(d, 2);
    c.stop_at_epoch = pick(d, 2);
    c.end = told.end;
    c.same_rows = pick(d, 2);
    memset(told.sample, 0xFF, (size_t)told.end * sizeof *told.sample);
    while (c.position < told.end) {
        int world = (int)(1 + pick(d, 5));
        c.batch = 1 + pick(d, 2 * n < 40 ? 2 * n : 40);
        c.position = read_segment(d, data, r, width, c, world, &told);
    }
    for (int i = 0; i < 2; i++) { /* again, from anywhere */
        c.position = pick(d, told.end);
        int world = (int)(1 + pick(d, 5));
        c.batch = 1 + pick(d, 20);
        read_segment(d, data, r, width, c, world, &told);
    }
    for (int64_t i = 0; i < told.end; i++) {
        if (!c.shuffle || ordered)
            assert_int_equal(told.sample[i], i % n);
        assert_int_equal(seen[told.sample[i]]++, i / n); /* as often as epochs were before */
    }
    free(seen);
    free(told.sample);
}

static void try_case(void **state, uint64_t number, reference *r, fsdp_tokenizer *t)
{
    draw d = {.key = rng_key_make(number)};
    int64_t width = 2 + pick(&d, 60), form = pick(&d, 3), max_samples;
    char *old = file_join(*state, "data");
    assert_int_equal(file_remove_tree(old), FSDP_OK);
    free(old);
    r->n = 0;
    if (form == 0)
        write_texts(&d, state, r);
    else if (form == 1)
        write_token_files(&d, state, r);
    else
        write_table(&d, state, width, r);
    fsdp_dataset *data = open_random(&d, state, t, width, form, &max_samples, r), *held = NULL;
    if (data == NULL)
        return;
    int64_t n = r->n / width;
    n = max_samples > 0 && max_samples < n ? max_samples : n;
    expect_rows(data, r, width, 0, n);
    if (n > 1 && pick(&d, 3) == 0) {
        int64_t away = 1 + pick(&d, n - 1);
        assert_int_equal(fsdp_dataset_hold_back(data, away, &held), FSDP_OK);
        n -= away;
        expect_rows(held, r, width, n, away);
        expect_rows(data, r, width, 0, n);
    }
    if (n <= 2000)
        read_epochs(&d, data, r, width, form == 2);
    fsdp_dataset_free(data);
    fsdp_dataset_free(held);
}

static void random_data_is_read_as_the_reference_reads_it(void **state)
{
    enum { CASES = 150 };
    reference r = {.tokens = malloc(MAX_TOKENS * sizeof *r.tokens)};
    fsdp_tokenizer *t = NULL;
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    for (uint64_t i = 0; i < CASES; i++)
        try_case(state, i, &r, t);
    fsdp_tokenizer_free(t);
    free(r.tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_data_is_read_as_the_reference_reads_it, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
