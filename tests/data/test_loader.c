/* The loader: what ranks get together, resuming, ends of epochs, errors and shutdown. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/scratch.h"
#include "data/files.h"
#include "data/loader.h"

/* A data set of `n` samples of four tokens, the first of which is the sample's number plus one. */
static fsdp_dataset *numbered(void **state, int64_t n)
{
    fsdp_tokenizer *t = NULL;
    fsdp_dataset *d = NULL;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    char *text = malloc((size_t)n * 4 + 1);
    for (int64_t i = 0; i < n * 4; i++)
        text[i] = (char)(i % 4 == 0 ? i / 4 + 1 : 'x');
    const char *path = files_write(*state, "numbered.txt", text, (size_t)n * 4);
    free(text);
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    o.tokenizer = t;
    o.width = 4;
    assert_int_equal(files_open(&path, 1, &o, &d), FSDP_OK);
    fsdp_tokenizer_free(t);
    assert_int_equal(files_describe(d).n_samples, n);
    return d;
}

static fsdp_loader_config config_of(int rank, int64_t batch, int64_t position, int64_t end)
{
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = batch;
    c.position = position;
    c.end = end;
    c.seed = 5;
    c.threads = 1 + rank % 3;
    c.prefetch = 1 + rank % 4;
    return c;
}

/* Adds one to seen[sample] for everything that the ranks of a world get; says where they stop. */
static int64_t run_world(const fsdp_dataset *d, int world, int64_t batch, int64_t position, int64_t end,
                         bool stop_at_epoch, int *seen)
{
    int64_t stopped = position;
    for (int rank = 0; rank < world; rank++) {
        fsdp_loader *l = NULL;
        fsdp_batch *b;
        int64_t expected = position;
        fsdp_loader_config c = config_of(rank, batch, position, end);
        c.stop_at_epoch = stop_at_epoch;
        c.same_rows = true;
        assert_int_equal(loader_create(d, rank, world, &c, &l), FSDP_OK);
        for (;;) {
            assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
            if (b == NULL && stop_at_epoch && expected < end) /* an epoch has ended */
                assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
            if (b == NULL)
                break;
            const int32_t *ids = fsdp_batch_field(b, "ids"), *labels = fsdp_batch_field(b, "labels");
            assert_int_equal(b->position, expected);
            assert_in_range(b->counted, 0, b->n);
            expected += b->n_global;
            for (int64_t r = 0; r < b->counted; r++) {
                assert_int_equal(ids[4 * r], b->samples[r] + 1); /* the content is the sample's */
                seen[b->samples[r]]++;
            }
            for (int64_t r = b->counted; r < b->n; r++)
                for (int k = 0; k < 4; k++)
                    assert_int_equal(labels[4 * r + k], FSDP_IGNORE);
        }
        assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK); /* the end stays the end */
        assert_null(b);
        fsdp_loader_free(l);
        stopped = expected;
    }
    return stopped;
}

static void every_sample_comes_once_per_epoch_for_any_world(void **state)
{
    static const int64_t sizes[] = {1, 5, 12, 50, 101};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int64_t n = sizes[k];
        fsdp_dataset *d = numbered(state, n);
        for (int world = 1; world <= 5; world++) {
            int seen[128] = {0};
            assert_int_equal(run_world(d, world, 4 * world, 0, 2 * n, k % 2 == 0, seen), 2 * n);
            for (int64_t i = 0; i < n; i++)
                assert_int_equal(seen[i], 2);
        }
        fsdp_dataset_free(d);
    }
}

static void a_run_resumes_exactly_at_another_world_size(void **state)
{
    fsdp_dataset *d = numbered(state, 53);
    for (int before = 1; before <= 5; before++) {
        for (int after = 1; after <= 5; after++) {
            int seen[128] = {0};
            int64_t stopped = run_world(d, before, 6, 0, 30, false, seen);
            assert_int_equal(stopped, 30);
            run_world(d, after, 6, stopped, 53, false, seen);
            for (int i = 0; i < 53; i++)
                assert_int_equal(seen[i], 1);
        }
    }
    fsdp_dataset_free(d);
}

static void positions_not_ranks_decide_what_a_batch_holds(void **state)
{
    fsdp_dataset *d = numbered(state, 40);
    int64_t single[12], pair[12];
    fsdp_loader *l = NULL;
    fsdp_batch *b;
    fsdp_loader_config c = config_of(0, 12, 24, 0);
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_OK);
    assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
    memcpy(single, b->samples, sizeof single);
    fsdp_loader_free(l);
    for (int rank = 0; rank < 2; rank++) {
        c = config_of(rank, 12, 24, 0);
        assert_int_equal(loader_create(d, rank, 2, &c, &l), FSDP_OK);
        assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
        assert_int_equal(b->counted, 6);
        memcpy(pair + 6 * rank, b->samples, 6 * sizeof *pair);
        fsdp_loader_free(l);
    }
    assert_memory_equal(single, pair, sizeof single);
    fsdp_dataset_free(d);
}

static void a_sample_that_cannot_be_read_is_an_error_at_its_turn(void **state)
{
    fsdp_tokenizer *t = NULL;
    fsdp_dataset *d = NULL;
    fsdp_loader *l = NULL;
    fsdp_batch *b;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    fsdp_tokenize_config c = FSDP_TOKENIZE_CONFIG_INIT;
    const char *input = files_text(*state, "a.txt", "aaaabbbbccccdddd"), *path = files_path(*state, "a.bin");
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    c.inputs = &input;
    c.n_inputs = 1;
    c.output = path;
    assert_int_equal(fsdp_tokenize_files(t, &c, NULL), FSDP_OK);
    fsdp_tokenizer_free(t);
    char *data;
    size_t bytes;
    assert_int_equal(file_read(path, &data, &bytes), FSDP_OK);
    memset(data + 64 + 2 * 9, 0xFF, 2); /* token 9, in the third sample, is now outside the vocabulary */
    assert_int_equal(file_write_atomic(path, data, bytes), FSDP_OK);
    free(data);
    o.width = 4;
    assert_int_equal(files_open(&path, 1, &o, &d), FSDP_OK);
    fsdp_loader_config config = FSDP_LOADER_CONFIG_INIT;
    config.shuffle = false;
    config.threads = 2;
    assert_int_equal(loader_create(d, 0, 1, &config, &l), FSDP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
        assert_int_equal(b->samples[0], i);
    }
    for (int i = 0; i < 2; i++) { /* and stays one */
        assert_int_not_equal(fsdp_loader_next(l, &b), FSDP_OK);
        assert_null(b);
        assert_non_null(strstr(fsdp_last_error(), "a.bin"));
    }
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
}

static void a_loader_stops_cleanly_while_its_threads_are_busy(void **state)
{
    fsdp_dataset *d = numbered(state, 100);
    for (int i = 0; i < 50; i++) {
        fsdp_loader *l = NULL;
        fsdp_batch *b;
        fsdp_loader_config c = config_of(0, 7, 0, 0);
        c.threads = 4;
        assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_OK);
        for (int k = 0; k < i % 5; k++)
            assert_int_equal(fsdp_loader_next(l, &b), FSDP_OK);
        fsdp_loader_free(l);
    }
    fsdp_loader_free(NULL);
    fsdp_dataset_free(d);
}

static void settings_that_make_no_sense_are_refused(void **state)
{
    fsdp_dataset *d = numbered(state, 4);
    fsdp_loader *l = NULL;
    fsdp_loader_config c = config_of(2, 4, 0, 0);
    assert_int_equal(loader_create(d, 2, 2, &c, &l), FSDP_ERR_INPUT);
    c = config_of(0, 0, 0, 0);
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_ERR_INPUT);
    c = config_of(0, 1, INT64_MAX, 0); /* the next position could not be counted */
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_ERR_INPUT);
    c = config_of(0, 1, -1, 0);
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_ERR_INPUT);
    c = config_of(0, 1, 0, 0);
    c.size = 1;
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_ERR_INPUT);
    c = config_of(0, 5, 0, 0); /* no batch of five in a data set of four */
    c.drop_last = true;
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_ERR_INPUT);
    fsdp_dataset_free(d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_sample_comes_once_per_epoch_for_any_world),
        TEST(a_run_resumes_exactly_at_another_world_size),
        TEST(positions_not_ranks_decide_what_a_batch_holds),
        TEST(a_sample_that_cannot_be_read_is_an_error_at_its_turn),
        TEST(a_loader_stops_cleanly_while_its_threads_are_busy),
        TEST(settings_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
