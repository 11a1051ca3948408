/* Streams: the order is the one that the header promises, on any number of ranks, after any number of stops, for any
 * kind of text file; resumed runs begin where they stopped, and files that changed are named. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/scratch.h"
#include "data/files.h"
#include "data/loader.h"
#include "data/stream.h"
#include "support/draw.h"

enum { WIDTH = 1 << 16, WINDOW = (1 << 19) / WIDTH }; /* windows of eight samples */

/* `bytes` of words and line ends; malloc'd. */
static char *words(uint64_t seed, size_t bytes)
{
    char *text = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        uint64_t r = draw_word(&seed);
        text[i] = r % 61 == 0 ? '\n' : r % 6 == 0 ? ' ' : (char)('a' + r % 26);
    }
    text[bytes] = '\0';
    return text;
}

/* Records of about 300 bytes; malloc'd. */
static char *records(uint64_t seed, size_t n, bool array)
{
    char *text = malloc(n * 700 + 16), *at = text;
    if (array)
        *at++ = '[';
    for (size_t i = 0; i < n; i++) {
        char *word = words(seed + i, draw_word(&seed) % 600);
        for (char *c = word; *c; c++)
            *c = *c == '\n' ? ' ' : *c;
        at += sprintf(at, "%s{\"text\": \"%s\"}%s", array && i > 0 ? ",\n " : "", word, array ? "" : "\n");
        free(word);
    }
    strcpy(at, array ? "]\n" : "");
    return text;
}

/* Five files, one of every kind: more than three windows of tokens together. */
static void make_files(void **state)
{
    char *text = words(1, 450000), *lines = records(2, 1000, false), *array = records(3, 750, true);
    char *more = words(4, 900000);
    char *table;
    size_t bytes;
    assert_int_equal(file_read_at_most(FSDP_GOLDEN_DEFAULT "/../format/tables/snappy.parquet", 1 << 20, &table, &bytes),
                     FSDP_OK);
    files_write(*state, "data/ab.parquet", table, bytes);
    free(table);
    files_text(*state, "data/a.txt", text);
    files_gzip(*state, "data/b.jsonl.gz", lines);
    files_text(*state, "data/c.json", array);
    files_zstd(*state, "data/d.txt.zst", more);
    free(text);
    free(lines);
    free(array);
    free(more);
}

static fsdp_dataset *open_with(void **state, int64_t stream_from_bytes, int64_t max_samples)
{
    fsdp_tokenizer *t = NULL;
    fsdp_dataset *d = NULL;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *path = files_path(*state, "data/");
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    o.tokenizer = t;
    o.width = WIDTH;
    o.stream_from_bytes = stream_from_bytes;
    o.max_samples = max_samples;
    assert_int_equal(files_open(&path, 1, &o, &d), FSDP_OK);
    fsdp_tokenizer_free(t);
    return d;
}

static fsdp_loader *load(const fsdp_dataset *d, int rank, int world, int64_t batch, int64_t position, bool shuffle)
{
    fsdp_loader *l = NULL;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = batch;
    c.seed = 7;
    c.shuffle = shuffle;
    c.stop_at_epoch = false;
    c.position = position;
    c.threads = 1 + rank % 3;
    c.prefetch = 1 + rank % 2;
    assert_int_equal(loader_create(d, rank, world, &c, &l), FSDP_OK);
    return l;
}

/* Writes what a rank gets up to `end` to samples[position], after checking each against the whole set `kept`. */
static void collect(fsdp_loader *l, const fsdp_dataset *kept, int64_t end, int64_t *samples)
{
    fsdp_batch *b;
    static int32_t ids[WIDTH], labels[WIDTH];
    while (fsdp_loader_position(l) < end) {
        if (fsdp_loader_next(l, &b) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        for (int64_t r = 0; r < b->counted; r++) {
            void *fields[] = {ids, labels};
            assert_int_equal(fsdp_dataset_read(kept, b->samples[r], fields), FSDP_OK);
            assert_memory_equal((int32_t *)fsdp_batch_field(b, "ids") + r * WIDTH, ids, sizeof ids);
            assert_memory_equal((int32_t *)fsdp_batch_field(b, "labels") + r * WIDTH, labels, sizeof labels);
            samples[b->first_sample + r] = b->samples[r];
        }
    }
}

/* Every sample of an epoch once, each window by itself, and epochs and windows in orders of their own. */
static void an_epoch_is_every_window_permuted(void **state)
{
    int64_t samples[128];
    make_files(state);
    fsdp_dataset *kept = open_with(state, 0, 0), *d = open_with(state, 1, 0);
    int64_t n = fsdp_dataset_count(kept), moved = 0, differ = 0;
    assert_in_range(n, 3 * WINDOW + 1, 64);
    assert_true(files_describe(d).stream && fsdp_dataset_count(d) == FSDP_ENDLESS);
    fsdp_loader *l = load(d, 0, 1, 2, 0, true);
    collect(l, kept, 2 * n, samples);
    assert_int_equal(loader_epoch_samples(l), n);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        uint64_t seen = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t sample = samples[epoch * n + i];
            assert_int_equal(sample / WINDOW, i / WINDOW);
            moved += sample != i;
            seen |= 1ull << sample;
        }
        assert_true(seen == (n == 64 ? ~0ull : (1ull << n) - 1));
    }
    for (int64_t i = 0; i < n; i++)
        differ += samples[i] != samples[n + i];
    assert_true(moved > n / 2 && differ > n / 4);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    fsdp_dataset_free(kept);
}

static void ranks_get_the_samples_of_one_and_seeking_changes_nothing(void **state)
{
    int64_t one[128], many[128], batch = 6;
    make_files(state);
    fsdp_dataset *kept = open_with(state, 0, 0), *d = open_with(state, 1, 0);
    int64_t end = (fsdp_dataset_count(kept) + 10) / batch * batch;
    fsdp_loader *l = load(d, 0, 1, batch, 0, true);
    collect(l, kept, end, one);
    for (int world = 2; world <= 3; world++) {
        memset(many, -1, sizeof many);
        for (int rank = 0; rank < world; rank++) {
            fsdp_loader *own = load(d, rank, world, batch, 0, true);
            collect(own, kept, end, many);
            fsdp_loader_free(own);
        }
        assert_memory_equal(one, many, (size_t)end * sizeof *one);
    }
    for (uint64_t i = 0, seed = 3; i < 6; i++) { /* forwards and backwards, and into the next epoch */
        int64_t position = (int64_t)(draw_word(&seed) % (uint64_t)end);
        assert_int_equal(fsdp_loader_seek(l, position), FSDP_OK);
        memset(many, -1, sizeof many);
        collect(l, kept, position + 1, many);
        for (int64_t k = position; k < fsdp_loader_position(l) && k < end; k++)
            assert_int_equal(many[k], one[k]);
    }
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    fsdp_dataset_free(kept);
}

/* Stops after `first` samples, on `before` ranks, and goes on with `after` in another process, which knows no more than
 * the checkpoint. */
static void resumes(void **state, const fsdp_dataset *kept, int64_t first, int before, int after, const int64_t *one,
                    int64_t end)
{
    int64_t many[128], batch = 6;
    json_t *described = NULL;
    fsdp_dataset *d = open_with(state, 1, 0);
    memset(many, -1, sizeof many);
    for (int rank = 0; rank < before; rank++) {
        fsdp_loader *l = load(d, rank, before, batch, 0, true);
        collect(l, kept, first, many);
        json_decref(described);
        assert_int_equal(loader_describe(l, &described), FSDP_OK);
        fsdp_loader_free(l);
    }
    fsdp_dataset_free(d);
    char *text = json_dumps(described, 0);
    json_decref(described);
    described = json_loads(text, 0, NULL);
    d = open_with(state, 1, 0);
    for (int rank = 0; rank < after; rank++) {
        fsdp_loader *l = load(d, rank, after, batch, 0, true);
        if (loader_restore(l, "checkpoint", described, first) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        collect(l, kept, end, many);
        fsdp_loader_free(l);
    }
    assert_memory_equal(one, many, (size_t)end * sizeof *one);
    json_decref(described);
    free(text);
    fsdp_dataset_free(d);
}

static void a_resumed_run_gets_the_samples_of_an_uninterrupted_one(void **state)
{
    int64_t one[128], batch = 6;
    make_files(state);
    fsdp_dataset *kept = open_with(state, 0, 0), *d = open_with(state, 1, 0);
    int64_t n = fsdp_dataset_count(kept), end = (n + 14) / batch * batch;
    fsdp_loader *l = load(d, 0, 1, batch, 0, true);
    collect(l, kept, end, one);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    for (int64_t first = batch; first < end; first += batch)
        resumes(state, kept, first, 1 + (int)(first / batch) % 3, 1 + (int)(first / batch + 1) % 3, one, end);
    fsdp_dataset_free(kept);
}

static void unshuffled_is_the_order_of_the_files_and_max_samples_ends_it(void **state)
{
    int64_t samples[128];
    make_files(state);
    fsdp_dataset *kept = open_with(state, 0, 0), *d = open_with(state, 1, 11);
    fsdp_loader *l = load(d, 0, 1, 1, 0, false);
    collect(l, kept, 25, samples);
    for (int64_t i = 0; i < 25; i++)
        assert_int_equal(samples[i], i % 11);
    assert_int_equal(loader_epoch_samples(l), 11);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    fsdp_dataset_free(kept);
}

/* Restores `described` on a stream of the files as they are now; the message must name `what`. */
static void refuses(void **state, const json_t *described, const char *what)
{
    fsdp_dataset *d = open_with(state, 1, 0);
    fsdp_loader *l = load(d, 0, 1, 1, 0, true);
    assert_int_equal(loader_restore(l, "checkpoint", described, 9), FSDP_ERR_INPUT);
    if (strstr(fsdp_last_error(), what) == NULL)
        fail_msg("%s is not in: %s", what, fsdp_last_error());
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
}

static void files_that_changed_between_are_named(void **state)
{
    int64_t samples[128];
    char aside[4096];
    json_t *described = NULL;
    make_files(state);
    fsdp_dataset *kept = open_with(state, 0, 0), *d = open_with(state, 1, 0);
    fsdp_loader *l = load(d, 0, 1, 1, 0, true);
    collect(l, kept, 9, samples);
    assert_int_equal(loader_describe(l, &described), FSDP_OK);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    fsdp_dataset_free(kept);

    snprintf(aside, sizeof aside, "%s/aside", (char *)*state);
    assert_int_equal(rename(files_path(*state, "data/d.txt.zst"), aside), 0);
    refuses(state, described, "d.txt.zst");
    assert_int_equal(rename(aside, files_path(*state, "data/d.txt.zst")), 0);
    const char *added = files_text(*state, "data/e.txt", "new");
    refuses(state, described, "e.txt: is new");
    unlink(added);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, files_path(*state, "data/c.json"), times, 0), 0);
    refuses(state, described, "c.json: changed since");
    refuses(state, NULL, "--stream off");
    json_decref(described);
}

/* A folder of the user's own may be called blobs: what lies there has a time, not a hash. */
static void a_link_into_blobs_is_not_always_the_hubs(void **state)
{
    char target[4096];
    fsdp_batch *b;
    json_t *described = NULL;
    make_files(state);
    assert_int_equal(mkdir(files_path(*state, "blobs"), 0777), 0);
    snprintf(target, sizeof target, "%s", files_text(*state, "blobs/e.txt", "some text"));
    assert_int_equal(symlink(target, files_path(*state, "data/e.txt")), 0);
    fsdp_dataset *d = open_with(state, 1, 0);
    fsdp_loader *l = load(d, 0, 1, 1, 0, true);
    assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
    assert_int_equal(loader_describe(l, &described), FSDP_OK);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, target, times, 0), 0);
    refuses(state, described, "e.txt: changed since");
    json_decref(described);
}

static void a_file_that_changes_while_it_is_streamed_is_an_error(void **state)
{
    fsdp_batch *b;
    make_files(state);
    fsdp_dataset *d = open_with(state, 1, 0);
    files_text(*state, "data/c.json", "{\"text\": \"other\"}\n");
    fsdp_loader *l = load(d, 0, 1, 1, 0, true);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < 100 && status == FSDP_OK; i++)
        status = fsdp_loader_next(l, &b);
    assert_int_equal(status, FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "c.json: changed while it was streamed"));
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
}

static void what_a_stream_cannot_do_is_refused(void **state)
{
    fsdp_loader *l = NULL;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    fsdp_dataset *held = NULL;
    int32_t ids[4];
    void *fields[] = {ids, ids};
    make_files(state);
    fsdp_dataset *d = open_with(state, 1, 0);
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_ERR_INPUT);
    assert_int_equal(fsdp_dataset_hold_back(d, 1, &held), FSDP_ERR_UNSUPPORTED);
    assert_int_equal(fsdp_dataset_read(d, 0, fields), FSDP_ERR_UNSUPPORTED);
    fsdp_dataset_free(d);
}

/* Bytes that this process has asked files for; -1: the kernel does not say. */
static int64_t bytes_read(void)
{
    long long n = -1;
    FILE *io = fopen("/proc/self/io", "r");
    if (io && fscanf(io, "rchar: %lld", &n) != 1)
        n = -1;
    if (io)
        fclose(io);
    return n;
}

/* Ten gigabytes, of which the beginning has text and the rest is a hole that nobody should look at. */
static void the_first_steps_read_little_of_a_long_file(void **state)
{
    enum { TEXT = 8 << 20, LITTLE = 6 << 20 };
    char *text = words(5, TEXT);
    fsdp_batch *b;
    assert_int_equal(truncate(files_text(*state, "data/long.txt", text), 10000000000), 0);
    free(text);
    int64_t before = bytes_read();
    if (before < 0)
        skip();
    fsdp_dataset *d = open_with(state, 1, 0);
    fsdp_loader *l = load(d, 0, 1, 2, 0, true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
    fsdp_loader_free(l); /* what ran ahead has stopped */
    fsdp_dataset_free(d);
    int64_t read = bytes_read() - before;
    assert_in_range(read, 3 * 2 * WIDTH, LITTLE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(an_epoch_is_every_window_permuted),
        TEST(ranks_get_the_samples_of_one_and_seeking_changes_nothing),
        TEST(a_resumed_run_gets_the_samples_of_an_uninterrupted_one),
        TEST(unshuffled_is_the_order_of_the_files_and_max_samples_ends_it),
        TEST(files_that_changed_between_are_named),
        TEST(a_link_into_blobs_is_not_always_the_hubs),
        TEST(a_file_that_changes_while_it_is_streamed_is_an_error),
        TEST(what_a_stream_cannot_do_is_refused),
        TEST(the_first_steps_read_little_of_a_long_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
