/* Sources mixed by weight: shares are exact, the order is the same on any number of ranks and after a stop, each source
 * is read as if it were alone. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/scratch.h"
#include "data/files.h"
#include "data/loader.h"
#include "data/mix.h"
#include "support/draw.h"

static void every_source_gets_its_share_and_never_strays_by_a_sample(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 20; round++) {
        double weights[MIX_MAX], sum = 0;
        int64_t given[MIX_MAX] = {0};
        int n = 1 + round * 3;
        mix m;
        for (int i = 0; i < n; i++)
            sum += weights[i] = 1 + draw_below(&seed, 997);
        assert_int_equal(mix_make(weights, n, &m), FSDP_OK);
        for (int64_t p = 0; p < MIX_PERIOD + 100; p++) {
            int source;
            int64_t own;
            mix_at(&m, p, &source, &own);
            assert_int_equal(own, given[source]++);
            for (int i = 0; i < n && p % 97 == 0; i++)
                assert_true(fabs((double)given[i] - (double)(p + 1) * (double)m.shares[i] / MIX_PERIOD) < 1);
        }
        for (int i = 0; i < n; i++) {
            assert_true(fabs((double)m.shares[i] / MIX_PERIOD - weights[i] / sum) <= 1.0 / MIX_PERIOD);
            assert_int_equal(mix_count(&m, i, MIX_PERIOD + 100), given[i]);
            assert_int_equal(mix_count(&m, i, 5 * (int64_t)MIX_PERIOD), 5 * m.shares[i]);
        }
        mix_free(&m);
    }
    const double bad[] = {1, 0}, tiny[] = {1, 1e-9};
    mix m;
    assert_int_equal(mix_make(bad, 2, &m), FSDP_ERR_INPUT);
    assert_int_equal(mix_make(tiny, 2, &m), FSDP_ERR_INPUT);
}

/* Text "a" of 40 samples, streamed text "b" of 11, text "c" of 5, all of four tokens, drawn 5 : 2 : 1. */
static fsdp_dataset *open_mix(void **state, double first)
{
    static const int counts[] = {40, 11, 5};
    const double weights[] = {first, 2, 1};
    const char *names[3];
    fsdp_tokenizer *t = NULL;
    fsdp_dataset *d = NULL;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    for (int i = 0; i < 3; i++) {
        char text[200] = "", name[] = "a.txt";
        name[0] = (char)('a' + i);
        for (int k = 0; k < counts[i]; k++)
            snprintf(text + 4 * k, sizeof text - 4 * (size_t)k, "%c%02d.", 'a' + i, k);
        names[i] = files_path(*state, name);
        if (!file_exists(names[i])) /* a stream's file may not change */
            files_text(*state, name, text);
    }
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    o.tokenizer = t;
    o.width = 4;
    o.weights = weights;
    o.stream_from_bytes = 1;
    if (files_open(names, 3, &o, &d) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    fsdp_tokenizer_free(t);
    return d;
}

static fsdp_loader *load(const fsdp_dataset *d, int rank, int world, int64_t batch)
{
    fsdp_loader *l = NULL;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = batch;
    c.seed = 3;
    c.stop_at_epoch = false;
    if (loader_create(d, rank, world, &c, &l) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    return l;
}

/* texts[position] = the four bytes there. */
static void collect(fsdp_loader *l, int64_t end, char (*texts)[4])
{
    fsdp_batch *b;
    while (fsdp_loader_position(l) < end) {
        if (fsdp_loader_next(l, &b) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        const int32_t *ids = fsdp_batch_field(b, "ids");
        for (int64_t r = 0; r < b->counted; r++) {
            char *text = texts[b->first_sample + r];
            for (int k = 0; k < 4; k++)
                text[k] = (char)ids[4 * r + k];
            assert_int_equal(b->samples[r] % 3, text[0] - 'a');
            assert_int_equal(b->samples[r] / 3, 10 * (text[1] - '0') + text[2] - '0');
        }
    }
}

enum { END = 384 };

static void sources_are_drawn_by_weight_and_each_epoch_of_one_is_whole(void **state)
{
    static char texts[END][4];
    static const int counts[] = {40, 11, 5};
    int seen[3][40] = {{0}};
    fsdp_dataset *d = open_mix(state, 5);
    fsdp_loader *l = load(d, 0, 1, 8);
    collect(l, END, texts);
    int n[3] = {0};
    for (int i = 0; i < END; i++) {
        int source = texts[i][0] - 'a', number = 10 * (texts[i][1] - '0') + texts[i][2] - '0';
        seen[source][number]++;
        n[source]++;
    }
    assert_true(n[0] == 240 && n[1] == 96 && n[2] == 48);
    for (int s = 0; s < 3; s++) {
        fsdp_source_use use = FSDP_SOURCE_USE_INIT;
        assert_int_equal(fsdp_loader_source(l, s, &use), FSDP_OK);
        assert_true(use.samples == n[s] && use.length == counts[s] &&
                    use.share == (s == 0   ? 0.625
                                  : s == 1 ? 0.25
                                           : 0.125));
        for (int i = 0; i < counts[s]; i++) /* no sample comes again before all have come */
            assert_in_range(seen[s][i], n[s] / counts[s], n[s] / counts[s] + 1);
    }
    fsdp_source_use use = FSDP_SOURCE_USE_INIT;
    assert_int_equal(fsdp_loader_source(l, 3, &use), FSDP_ERR_INPUT);
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
}

static void ranks_and_stops_change_nothing(void **state)
{
    static char one[END][4], many[END][4];
    fsdp_dataset *d = open_mix(state, 5);
    fsdp_loader *l = load(d, 0, 1, 6);
    collect(l, END, one);
    fsdp_loader_free(l);
    for (int world = 2; world <= 3; world++) {
        memset(many, 0, sizeof many);
        for (int rank = 0; rank < world; rank++) {
            l = load(d, rank, world, 6);
            collect(l, END, many);
            fsdp_loader_free(l);
        }
        assert_memory_equal(one, many, sizeof one);
    }
    for (int64_t stop = 6; stop < END; stop += 54) {
        json_t *described = NULL;
        memset(many, 0, sizeof many);
        l = load(d, 0, 1, 6);
        collect(l, stop, many);
        assert_int_equal(loader_describe(l, &described), FSDP_OK);
        fsdp_loader_free(l);
        fsdp_dataset *again = open_mix(state, 5);
        for (int rank = 0; rank < 2; rank++) {
            l = load(again, rank, 2, 6);
            if (loader_restore(l, "checkpoint", described, stop) != FSDP_OK)
                fail_msg("%s", fsdp_last_error());
            collect(l, END, many);
            fsdp_loader_free(l);
        }
        fsdp_dataset_free(again);
        assert_memory_equal(one, many, sizeof one);
        again = open_mix(state, 7); /* other weights are another order */
        l = load(again, 0, 1, 6);
        assert_int_equal(loader_restore(l, "checkpoint", described, stop), FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), "weights"));
        fsdp_loader_free(l);
        fsdp_dataset_free(again);
        json_decref(described);
    }
    fsdp_dataset_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_source_gets_its_share_and_never_strays_by_a_sample),
        cmocka_unit_test_setup_teardown(sources_are_drawn_by_weight_and_each_epoch_of_one_is_whole, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(ranks_and_stops_change_nothing, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
