/* The order of samples and their division among ranks: every sample once per epoch, whatever the numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "data/sampler.h"

static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 64, 100, 101, 255, 256, 257, 1000, 4099};

static void every_epoch_is_a_permutation(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int64_t n = sizes[k];
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            sampler s = sampler_make(n, 42 + k, shuffle);
            for (int64_t epoch = 0; epoch < 4; epoch++) {
                char *seen = calloc((size_t)n, 1);
                for (int64_t i = 0; i < n; i++) {
                    int64_t sample = sampler_at(&s, epoch * n + i);
                    assert_in_range(sample, 0, n - 1);
                    assert_int_equal(seen[sample]++, 0);
                    if (!shuffle)
                        assert_int_equal(sample, i);
                }
                free(seen);
            }
        }
    }
}

static void epochs_and_seeds_give_other_orders(void **state)
{
    sampler a = sampler_make(1000, 1, true), b = sampler_make(1000, 2, true);
    int same_epochs = 0, same_seeds = 0, in_place = 0;
    (void)state;
    for (int64_t i = 0; i < 1000; i++) {
        same_epochs += sampler_at(&a, i) == sampler_at(&a, 1000 + i);
        same_seeds += sampler_at(&a, i) == sampler_at(&b, i);
        in_place += sampler_at(&a, i) == i;
    }
    assert_in_range(same_epochs, 0, 10); /* one is expected by chance */
    assert_in_range(same_seeds, 0, 10);
    assert_in_range(in_place, 0, 10);
    assert_int_equal(sampler_at(&a, 5), sampler_at(&(sampler){a.n_samples, a.shuffle, a.key, a.half_bits}, 5));
}

static void every_sample_is_equally_often_at_every_place(void **state)
{
    enum { N = 10, EPOCHS = 5000 };
    int counts[N][N] = {{0}};
    sampler s = sampler_make(N, 7, true);
    double chi = 0;
    (void)state;
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++)
        for (int64_t i = 0; i < N; i++)
            counts[i][sampler_at(&s, epoch * N + i)]++;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++)
            chi += (counts[i][k] - EPOCHS / N) * (double)(counts[i][k] - EPOCHS / N) / (EPOCHS / N);
    assert_true(chi < 150); /* 81 degrees of freedom: a fair order stays below this but once in 200,000 */
}

static void shares_cover_a_batch_and_differ_by_one_at_most(void **state)
{
    (void)state;
    for (int world = 1; world <= 7; world++) {
        for (int64_t n = 0; n < 40; n++) {
            int64_t next = 0, first, count;
            for (int rank = 0; rank < world; rank++) {
                fsdp_sampler_share(n, rank, world, &first, &count);
                assert_int_equal(first, next);
                assert_in_range(count, n / world, n / world + (n % world > 0));
                next += count;
            }
            assert_int_equal(next, n);
        }
    }
}

/* Runs one epoch from `position` with `world` ranks, marking what every rank takes. Returns where it stopped. */
static int64_t run_ranks(const sampler *s, int64_t position, int64_t end, int64_t batch, int world, char *seen)
{
    while (position < end) {
        int64_t n = sampler_batch(s, position, batch, true), first, count;
        for (int rank = 0; rank < world; rank++) {
            fsdp_sampler_share(n, rank, world, &first, &count);
            for (int64_t i = 0; i < count; i++)
                seen[sampler_at(s, position + first + i)]++;
        }
        position += n;
    }
    return position;
}

static void an_epoch_is_complete_for_any_world_and_after_a_change_of_world(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        for (int world = 1; world <= 5; world++) {
            for (int after = 1; after <= 5; after++) {
                int64_t n = sizes[k], batch = 6;
                sampler s = sampler_make(n, 3, true);
                char *seen = calloc((size_t)n, 1);
                int64_t stopped = run_ranks(&s, 0, n / 2, batch, world, seen);
                assert_int_equal(run_ranks(&s, stopped, n, batch, after, seen), n);
                for (int64_t i = 0; i < n; i++)
                    assert_int_equal(seen[i], 1);
                free(seen);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_is_a_permutation),
        cmocka_unit_test(epochs_and_seeds_give_other_orders),
        cmocka_unit_test(every_sample_is_equally_often_at_every_place),
        cmocka_unit_test(shares_cover_a_batch_and_differ_by_one_at_most),
        cmocka_unit_test(an_epoch_is_complete_for_any_world_and_after_a_change_of_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
