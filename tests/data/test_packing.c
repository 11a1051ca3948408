/* Best-fit packing: every document comes whole and once, labels stay inside, little is padding, and text, token files,
 * ranks and stops give the same samples. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <fsdp/ops.h>
#include <fsdp/tokenizer.h>

#include "base/hash.h"
#include "base/scratch.h"
#include "data/files.h"
#include "data/loader.h"
#include "data/pack.h"
#include "support/draw.h"

enum { WIDTH = 2048, WINDOW = (1 << 19) / WIDTH, N_DOCUMENTS = 1500, MAX_SAMPLES = 4 * WINDOW };

/* A document's length: most are short, some longer than two samples. */
static size_t length_of(uint64_t *seed)
{
    uint64_t r = draw_word(seed);
    return 1 + r % (r % 16 == 0 ? 5000 : 900);
}

static uint64_t hash_ids(const int32_t *ids, int64_t n)
{
    return hash_bytes(HASH_START, ids, (size_t)n * sizeof *ids);
}

/* Writes records; the result is the sum of the hashes of what they become: the bytes and an end, in parts of a sample.
 */
static uint64_t write_documents(void **state, int64_t *n_tokens)
{
    uint64_t seed = 5, sum = 0;
    char *text = malloc(N_DOCUMENTS * 5100), *at = text;
    int32_t *ids = malloc(6000 * sizeof *ids);
    *n_tokens = 0;
    for (int i = 0; i < N_DOCUMENTS; i++) {
        int64_t n = (int64_t)length_of(&seed);
        at += sprintf(at, "{\"text\": \"");
        for (int64_t k = 0; k < n; k++)
            ids[k] = *at++ = (char)('a' + draw_word(&seed) % 26);
        ids[n++] = 0;
        at += sprintf(at, "\"}\n");
        *n_tokens += n;
        for (int64_t k = 0; k < n; k += WIDTH)
            sum += hash_ids(ids + k, n - k < WIDTH ? n - k : WIDTH);
    }
    files_text(*state, "documents.jsonl", text);
    free(text);
    free(ids);
    return sum;
}

static fsdp_dataset *open_packed(void **state, const char *name)
{
    fsdp_tokenizer *t = NULL;
    fsdp_dataset *d = NULL;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *path = files_path(*state, name);
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    o.tokenizer = t;
    o.width = WIDTH;
    o.packing = FSDP_PACK_BEST_FIT;
    if (files_open(&path, 1, &o, &d) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    fsdp_tokenizer_free(t);
    return d;
}

static fsdp_loader *load(const fsdp_dataset *d, int rank, int world)
{
    fsdp_loader *l = NULL;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = 6;
    c.seed = 7;
    c.stop_at_epoch = false;
    c.threads = 1 + rank;
    if (loader_create(d, rank, world, &c, &l) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    return l;
}

/* Checks a row's documents, positions and labels; the result is the sum of its documents' hashes. */
static uint64_t check_row(const fsdp_batch *b, int64_t r, int64_t *n_tokens)
{
    const int32_t *ids = (int32_t *)fsdp_batch_field(b, "ids") + r * WIDTH;
    const int32_t *labels = (int32_t *)fsdp_batch_field(b, "labels") + r * WIDTH;
    const int32_t *documents = (int32_t *)fsdp_batch_field(b, "documents") + r * WIDTH;
    const int32_t *positions = (int32_t *)fsdp_batch_field(b, "positions") + r * WIDTH;
    uint64_t sum = 0;
    int64_t at = 0;
    for (int32_t number = 0; at < WIDTH && documents[at] >= 0; number++) {
        int64_t n = 0;
        for (; at + n < WIDTH && documents[at + n] == number; n++) {
            bool last = at + n + 1 == WIDTH || documents[at + n + 1] != number;
            assert_int_equal(positions[at + n], n);
            assert_int_equal(labels[at + n], last ? FSDP_IGNORE : ids[at + n + 1]);
        }
        assert_true(n > 0);
        sum += hash_ids(ids + at, n);
        at += n;
        *n_tokens += n;
    }
    for (; at < WIDTH; at++)
        assert_true(documents[at] == -1 && labels[at] == FSDP_IGNORE && positions[at] == 0);
    return sum;
}

/* hashes[position] = of the row's documents. */
static void collect(fsdp_loader *l, int64_t end, uint64_t *hashes, int64_t *n_tokens)
{
    fsdp_batch *b;
    while (fsdp_loader_position(l) < end) {
        if (fsdp_loader_next(l, &b) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        for (int64_t r = 0; r < b->counted; r++)
            hashes[b->first_sample + r] = check_row(b, r, n_tokens);
    }
}

static void every_document_comes_whole_and_once_with_little_padding(void **state)
{
    static uint64_t hashes[MAX_SAMPLES + 6];
    int64_t n_written, n_read = 0;
    uint64_t wanted = write_documents(state, &n_written), sum = 0;
    fsdp_source_use use = FSDP_SOURCE_USE_INIT;
    fsdp_dataset *d = open_packed(state, "documents.jsonl");
    fsdp_loader *l = load(d, 0, 1);
    collect(l, n_written / WIDTH + 6, hashes, &n_read);
    int64_t n = loader_epoch_samples(l);
    assert_in_range(n, WINDOW + 1, MAX_SAMPLES);
    assert_int_equal(fsdp_loader_seek(l, 0), FSDP_OK);
    collect(l, n, hashes, &n_read);
    for (int64_t i = 0; i < n; i++)
        sum += hashes[i];
    assert_true(sum == wanted);
    assert_int_equal(fsdp_loader_source(l, 0, &use), FSDP_OK);
    double padding = 1 - (double)n_written / (double)(n * WIDTH);
    assert_true(use.padding > 0 && use.padding < 0.03 && padding < 0.03);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
}

static void token_files_ranks_and_stops_give_the_same_samples(void **state)
{
    static uint64_t one[MAX_SAMPLES + 6], many[MAX_SAMPLES + 6];
    int64_t n_tokens;
    const int64_t end = WINDOW + 60;
    fsdp_tokenizer *t = NULL;
    write_documents(state, &n_tokens);
    const char *input = files_path(*state, "documents.jsonl");
    fsdp_tokenize_config tokenize = FSDP_TOKENIZE_CONFIG_INIT;
    tokenize.inputs = &input;
    tokenize.n_inputs = 1;
    tokenize.output = files_path(*state, "documents.bin");
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    assert_int_equal(fsdp_tokenize_files(t, &tokenize, NULL), FSDP_OK);
    fsdp_tokenizer_free(t);

    fsdp_dataset *d = open_packed(state, "documents.jsonl");
    fsdp_loader *l = load(d, 0, 1);
    collect(l, end, one, &n_tokens);
    fsdp_loader_free(l);
    for (int kind = 0; kind < 2; kind++) { /* text, then tokens; two ranks, then three, which go on where one stopped */
        json_t *described = NULL;
        fsdp_dataset *other = open_packed(state, kind ? "documents.bin" : "documents.jsonl");
        memset(many, 0, sizeof many);
        int64_t stop = kind ? 36 : WINDOW + 18;
        l = load(other, 0, 1);
        collect(l, stop, many, &n_tokens);
        assert_int_equal(loader_describe(l, &described), FSDP_OK);
        fsdp_loader_free(l);
        fsdp_dataset_free(other);
        other = open_packed(state, kind ? "documents.bin" : "documents.jsonl");
        for (int rank = 0; rank < 2 + kind; rank++) {
            l = load(other, rank, 2 + kind);
            if (loader_restore(l, "checkpoint", described, stop) != FSDP_OK)
                fail_msg("%s", fsdp_last_error());
            collect(l, end, many, &n_tokens);
            fsdp_loader_free(l);
        }
        assert_memory_equal(one, many, (size_t)end * sizeof *one);
        json_decref(described);
        fsdp_dataset_free(other);
    }
    fsdp_dataset_free(d);
}

/* Against a search through all rows. */
static void a_row_is_the_one_with_the_least_room(void **state)
{
    (void)state;
    uint64_t seed = 9;
    pack p;
    assert_int_equal(pack_make(200, 50, &p), FSDP_OK);
    for (int round = 0; round < 50; round++) {
        int64_t room[50], n_rows = 0, begin, full = 0;
        pack_clear(&p);
        while (full < 3) {
            int64_t length = 1 + (int64_t)(draw_word(&seed) % 200), least = INT64_MAX;
            for (int64_t i = 0; i < n_rows; i++)
                if (room[i] >= length && room[i] < least)
                    least = room[i];
            int64_t row = pack_add(&p, length, &begin);
            if (least == INT64_MAX && n_rows == 50) {
                assert_int_equal(row, -1);
                full++;
                continue;
            }
            if (least == INT64_MAX)
                room[n_rows++] = least = 200;
            assert_in_range(row, 0, n_rows - 1);
            assert_int_equal(room[row], least);
            assert_int_equal(begin, 200 - least);
            room[row] -= length;
        }
    }
    pack_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_one_with_the_least_room),
        cmocka_unit_test_setup_teardown(every_document_comes_whole_and_once_with_little_padding, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(token_files_ranks_and_stops_give_the_same_samples, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
