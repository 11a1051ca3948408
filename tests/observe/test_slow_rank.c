/* A rank that slows the others down is named with its phase within ten steps; noise of the kinds that machines make
 * names nobody, in hundreds of runs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/record/hooks.h"
#include "observe/attribution.h"
#include "observe/noisy_steps.h"
#include "support/draw.h"

enum { MAX_RANKS = 64, STEPS = 200, RUNS = 200 };

typedef struct machine {
    int n;
    uint64_t state;
    double step;             /* seconds of computing */
    double jitter;           /* spread of each step, of all */
    double spikes;           /* how often a step of a rank takes several times as long */
    int burst[MAX_RANKS];    /* steps that another program still shares the rank's core; below 0: steps without */
    double share[MAX_RANKS]; /* ranks differ a little, always */
} machine;

static double uniform(machine *m)
{
    return (double)(draw_state(&m->state) >> 11) / 9007199254740992.0;
}

static double gaussian(machine *m)
{
    return sqrt(-2 * log(uniform(m) + 1e-300)) * cos(6.283185307179586 * uniform(m));
}

static machine draw_machine(uint64_t seed)
{
    static const int sizes[] = {2, 2, 3, 4, 8, 64};
    machine m = {.state = seed * 7919 + 1};
    for (int i = 0; i < 8; i++)
        uniform(&m);
    m.n = sizes[(int)(uniform(&m) * 6)];
    m.step = 0.002 * pow(10, 2.5 * uniform(&m)); /* 2 ms to 600 ms */
    m.jitter = 0.15 * uniform(&m);
    m.spikes = 0.1 * uniform(&m);
    for (int i = 0; i < m.n; i++)
        m.share[i] = 1 + 0.05 * uniform(&m);
    return m;
}

/* A step of all ranks, with every sort of noise: jitter, spikes, a core that is shared for up to four steps, a save. */
static void draw_step(machine *m, int step, rank_snapshot *ranks)
{
    static const double parts[] = {
        [LAP_DATA] = 0.02, [LAP_FORWARD] = 0.3, [LAP_BACKWARD] = 0.6, [LAP_OPTIMIZER] = 0.08};
    memset(ranks, 0, (size_t)m->n * sizeof *ranks);
    for (int r = 0; r < m->n; r++) {
        double factor = m->share[r];
        if (m->burst[r] <= -10 && uniform(m) < 0.05)
            m->burst[r] = 1 + (int)(4 * uniform(m));
        bool shared = m->burst[r]-- > 0;
        factor *= shared ? 2 : 1;
        for (int i = 0; i <= LAP_OPTIMIZER; i++) {
            double seconds = m->step * parts[i] * factor * exp(m->jitter * gaussian(m));
            if (uniform(m) < m->spikes / 4)
                seconds *= 1 + 9 * uniform(m);
            ranks[r].seconds[i] = (float)seconds;
        }
        ranks[r].core_wait = (float)(shared ? m->step : 0);
        ranks[r].seconds[LAP_OTHER] = (float)(r == 0 ? 0.001 : 0.0002); /* rank 0 writes files */
        ranks[r].seconds[LAP_SAVE] = step % 50 == 0 ? (float)(0.5 * m->step * uniform(m)) : 0;
    }
}

static void nobody_is_named_in_quiet_runs(void **state)
{
    rank_snapshot ranks[MAX_RANKS];
    (void)state;
    for (uint64_t seed = 0; seed < RUNS; seed++) {
        machine m = draw_machine(seed);
        slow_watch *w;
        assert_int_equal(slow_watch_new(m.n, &w), FSDP_OK);
        for (int step = 1; step <= STEPS; step++) {
            draw_step(&m, step, ranks);
            slow_rank slow = slow_watch_add(w, ranks);
            if (slow.rank >= 0)
                fail_msg("seed %d, step %d: rank %d of %d is named for %s, %g s of %g", (int)seed, step, slow.rank, m.n,
                         lap_name(slow.phase), slow.seconds, m.step);
        }
        slow_watch_free(w);
    }
}

/* From a random step on, one rank loses 40 % of a step (3 ms at least) in one phase; later it recovers. */
static void a_slow_rank_is_named_with_its_phase_within_ten_steps(void **state)
{
    rank_snapshot ranks[MAX_RANKS];
    (void)state;
    for (uint64_t seed = 0; seed < RUNS; seed++) {
        machine m = draw_machine(seed);
        slow_watch *w;
        int slowed = (int)(uniform(&m) * m.n), from = 1 + (int)(uniform(&m) * 100), named = 0, freed = 0;
        lap phase = (lap)(uniform(&m) * 4);
        m.jitter *= 0.5;
        m.spikes = 0;
        double seconds = fmax(0.4 * m.step, 0.003);
        slow_rank slow = {.rank = -1};
        assert_int_equal(slow_watch_new(m.n, &w), FSDP_OK);
        const int slow_steps = 40;
        for (int step = 1; step < from + slow_steps + 30; step++) {
            draw_step(&m, step, ranks);
            memset(m.burst, 0, sizeof m.burst);
            for (int r = 0; r < m.n; r++) /* they wait for it */
                ranks[r].seconds[LAP_ALL_REDUCE] =
                    r != slowed && step >= from && step < from + slow_steps ? (float)seconds : 0;
            if (step >= from && step < from + slow_steps)
                ranks[slowed].seconds[phase] += (float)seconds;
            slow = slow_watch_add(w, ranks);
            if (slow.rank >= 0 && !named) {
                named = step;
                assert_int_equal(slow.rank, slowed);
                assert_int_equal(slow.phase, phase);
                assert_true(slow.seconds > 0.5 * seconds && slow.seconds < 2 * seconds);
            }
            if (named && !freed && slow.rank < 0)
                freed = step;
        }
        if (named < from || named > from + 9)
            fail_msg("seed %d: slow from step %d, named at %d, not within ten", (int)seed, from, named);
        assert_true(freed >= from + slow_steps && freed <= from + slow_steps + 10);
        slow_watch_free(w);
    }
}

/* Steps of 25 ms; for 12 of them another program has half of rank 1's core. */
static void a_neighbour_of_half_a_second_names_nobody(void **state)
{
    slow_watch *w;
    (void)state;
    assert_int_equal(slow_watch_new(2, &w), FSDP_OK);
    for (int step = 1; step <= 200; step++) {
        rank_snapshot ranks[2] = {{0}, {0}};
        bool shared = step % 50 < 12;
        ranks[0].seconds[LAP_BACKWARD] = 0.025F;
        ranks[0].seconds[LAP_ALL_REDUCE] = shared ? 0.025F : 0;
        ranks[1].seconds[LAP_BACKWARD] = shared ? 0.05F : 0.025F;
        ranks[1].core_wait = shared ? 0.025F : 0;
        assert_int_equal(slow_watch_add(w, ranks).rank, -1);
    }
    slow_watch_free(w);
}

/* Two ranks of real runs on a machine that was busy with other work and did not count waits for a core. */
static void recorded_noise_names_nobody(void **state)
{
    (void)state;
    for (size_t run = 0; run < sizeof noisy_runs / sizeof *noisy_runs; run++) {
        slow_watch *w;
        assert_int_equal(slow_watch_new(2, &w), FSDP_OK);
        for (int step = 0; step < noisy_runs[run].n; step++) {
            rank_snapshot ranks[2] = {{0}, {0}};
            for (int r = 0; r < 2; r++) {
                ranks[r].core_wait = -1;
                ranks[r].seconds[LAP_BACKWARD] = noisy_runs[run].seconds[step][r];
            }
            slow_rank slow = slow_watch_add(w, ranks);
            if (slow.rank >= 0)
                fail_msg("recorded run %d, step %d: rank %d is named", (int)run, step, slow.rank);
        }
        slow_watch_free(w);
    }
}

static void an_attribution_says_who_was_waited_for(void **state)
{
    rank_snapshot ranks[3] = {{0}, {0}, {0}};
    (void)state;
    for (int r = 0; r < 3; r++) {
        ranks[r].seconds[LAP_FORWARD] = 1;
        ranks[r].seconds[LAP_DATA] = r == 1 ? 4 : 1;
        ranks[r].seconds[LAP_ALL_GATHER] = r == 1 ? 0.5f : 3;
        ranks[r].seconds[LAP_ALL_REDUCE] = 0.5;
    }
    attribution a = attribution_of(ranks, 3);
    assert_int_equal(a.waited_for, 1);
    assert_int_equal(a.waited_phase, LAP_DATA);
    assert_int_equal(a.laps[LAP_DATA].rank, 1);
    assert_float_equal(a.laps[LAP_DATA].mean, 2, 1e-6);
    assert_float_equal(a.exposed.min, 1, 1e-6);
    assert_float_equal(a.exposed.max, 3.5, 1e-6);
    assert_int_equal(a.exposed.rank, 0);
    assert_int_equal(a.slow.rank, -1);
}

static void a_snapshot_is_read_as_it_was_put(void **state)
{
    run_snapshot *s;
    step_figures f = {.step = 12, .loss = 2.5}, read;
    rank_snapshot ranks[2] = {{.step = 12}, {.step = 12}}, found[2];
    (void)state;
    ring_open(0, 1);
    hook_call call = {.slot = 0, .sequence = 9};
    hooks_keep(ring_own(), HOOK_COLLECTIVE, HOOK_INSTANT, "all_gather", "layers.3", 64, 1, &call);
    HOOK(HOOK_PHASE, HOOK_BEGIN, "data", NULL, 0, 0);
    ranks[1] = snapshot_of_rank(12);
    assert_string_equal(ranks[1].collective, "all_gather of layers.3");
    assert_int_equal(ranks[1].sequence, 9);
    assert_int_equal(snapshot_new(2, &s), FSDP_OK);
    assert_false(snapshot_read(s, &read, found));
    snapshot_put(s, &f, ranks);
    assert_true(snapshot_read(s, &read, found));
    assert_true(read.step == 12 && read.loss == 2.5);
    assert_memory_equal(found, ranks, sizeof ranks);
    snapshot_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_named_in_quiet_runs),
        cmocka_unit_test(a_slow_rank_is_named_with_its_phase_within_ten_steps),
        cmocka_unit_test(a_neighbour_of_half_a_second_names_nobody),
        cmocka_unit_test(recorded_noise_names_nobody),
        cmocka_unit_test(an_attribution_says_who_was_waited_for),
        cmocka_unit_test(a_snapshot_is_read_as_it_was_put),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
