/* The player against steps computed by hand, and what must hold for any step: more bandwidth is never slower, nothing
 * is shorter than its kernels, overlap never hurts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/rng.h"
#include "plan/predict/player.h"

enum { UNITS = 4 };

/* One kernel that takes so many seconds: rows are by shape. */
static void add_kernel(plan_script *s, kernel_profile *p, int64_t shape, double seconds)
{
    kernel_work w = {.kernel = KERNEL_axpby, .shape = {shape}, .bytes = (double)shape};
    assert_int_equal(plan_script_add_work(s, &w), FSDP_OK);
    assert_int_equal(profile_add(p, &w, seconds), FSDP_OK);
}

static void add_gather(plan_script *s, int slot, double bytes)
{
    script_item gather = {.kind = SCRIPT_COLLECTIVE,
                          .collective = SCRIPT_ALL_GATHER,
                          .slot = slot,
                          .after = -1,
                          .unit = slot,
                          .ranks = 2,
                          .stride = 1,
                          .bytes = bytes};
    assert_int_equal(plan_script_add(s, gather), FSDP_OK);
    if (slot >= s->n_slots)
        s->n_slots = slot + 1;
}

static void add_wait(plan_script *s, int slot)
{
    assert_int_equal(plan_script_add(s, (script_item){.kind = SCRIPT_WAIT, .slot = slot, .after = -1, .unit = slot}),
                     FSDP_OK);
}

static void close_script(plan_script *s)
{
    s->sections[s->n_sections++] = (script_section){0, s->n_items, 1};
    s->sections[s->n_sections++] = (script_section){s->n_items, s->n_items, 1};
}

/* Two ranks, 2 GB/s, no latency: a gather of b bytes takes b / 4e9 seconds. */
static kernel_profile plain_profile(void)
{
    return (kernel_profile){.ranks = 2,
                            .threads = 1,
                            .overlaps = true,
                            .compute = 1,
                            .memory = 1,
                            .host_copy = 1e9,
                            .host_update = 1e9,
                            .links = {.inside = 2e9, .outside = 1e9}};
}

static played_step play(const plan_script *s, const kernel_profile *p)
{
    played_step out;
    assert_int_equal(player_play(s, p, 8, &out), FSDP_OK);
    assert_true(isfinite(out.seconds) && out.seconds >= 0);
    return out;
}

static void assert_near(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-9 + 1e-9 * fabs(b));
}

/* Gather 0, gather 1 | wait 0, compute 3 s | wait 1, compute 1 s; a gather takes 2 s. */
static void write_two_units(plan_script *s, kernel_profile *p)
{
    add_gather(s, 0, 8e9);
    add_gather(s, 1, 8e9);
    add_wait(s, 0);
    add_kernel(s, p, 1000, 3);
    add_wait(s, 1);
    add_kernel(s, p, 2000, 1);
    close_script(s);
}

static void a_prefetched_gather_is_hidden_by_compute(void **state)
{
    (void)state;
    plan_script s = {.n_items = 0};
    kernel_profile p = plain_profile();
    write_two_units(&s, &p);
    played_step out = play(&s, &p);
    assert_near(out.seconds, 2 + 3 + 1); /* the second gather runs from 2 to 4, while compute runs from 2 to 5 */
    assert_near(out.exposed, 2);
    assert_near(out.exposed_by[SCRIPT_ALL_GATHER], 2);
    assert_near(out.communication, 4);
    assert_near(out.compute, 4);
    plan_script_clear(&s);
    profile_clear(&p);
}

static void without_a_core_to_spare_every_gather_is_exposed(void **state)
{
    (void)state;
    plan_script s = {.n_items = 0};
    kernel_profile p = plain_profile();
    p.overlaps = false;
    write_two_units(&s, &p);
    played_step out = play(&s, &p);
    assert_near(out.seconds, 8);
    assert_near(out.exposed, 4);
    plan_script_clear(&s);
    profile_clear(&p);
}

/* Compute runs at 3/4 while the second gather is under way (2 s): 1.5 s of its work are done then. */
static void kernels_are_slower_beside_a_collective(void **state)
{
    (void)state;
    plan_script s = {.n_items = 0};
    kernel_profile p = plain_profile();
    p.slowdown = 0.25;
    write_two_units(&s, &p);
    played_step out = play(&s, &p);
    assert_near(out.seconds, 2 + 2 + 1.5 + 1);
    assert_near(out.slowed, 0.5);
    plan_script_clear(&s);
    profile_clear(&p);
}

/* The host needs 1 s to start a graph; the first kernel waits for it, the second runs long enough to hide the next. */
static void launches_are_hidden_by_what_the_device_still_does(void **state)
{
    (void)state;
    plan_script s = {.n_items = 0};
    kernel_profile p = plain_profile();
    p.streams = true;
    p.launch = (profile_launch){.gap = 0.5, .graph = 1};
    script_item launch = {.kind = SCRIPT_LAUNCH, .graph = true, .slot = -1, .after = -1, .unit = -1};
    assert_int_equal(plan_script_add(&s, launch), FSDP_OK);
    add_kernel(&s, &p, 1000, 4);
    assert_int_equal(plan_script_add(&s, launch), FSDP_OK);
    add_kernel(&s, &p, 2000, 1);
    close_script(&s);
    played_step out = play(&s, &p);
    assert_near(out.seconds, 1 + 4.5 + 1.5);
    assert_near(out.launch_wait, 1);
    plan_script_clear(&s);
    profile_clear(&p);
}

/* Backward 2 s, the gradient leaves (1 s), the host updates (3 s) and the copy returns (1 s), for which the next
 * forward of 4 s waits: 2 + 1 + 3 + 1 + 4. */
static void the_next_forward_waits_for_the_update_in_host_memory(void **state)
{
    (void)state;
    plan_script s = {.n_items = 0, .n_slots = 2};
    kernel_profile p = plain_profile();
    const script_item items[] = {{.kind = SCRIPT_OUT, .slot = 0, .after = -1, .bytes = 1e9},
                                 {.kind = SCRIPT_SYNC, .slot = -1, .after = -1},
                                 {.kind = SCRIPT_UPDATE, .slot = 1, .after = 0, .bytes = 3e9},
                                 {.kind = SCRIPT_RETURN, .slot = 1, .after = 1, .bytes = 1e9}};
    add_wait(&s, 1);
    add_kernel(&s, &p, 1000, 4);
    add_kernel(&s, &p, 2000, 2);
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        assert_int_equal(plan_script_add(&s, items[i]), FSDP_OK);
    close_script(&s);
    played_step out = play(&s, &p);
    assert_near(out.seconds, 11);
    assert_near(out.transfer_wait, 5);
    plan_script_clear(&s);
    profile_clear(&p);
}

/* Two gradients leave at 1 and 2 s (1 s each), the close is at 3.5 s. Updates of 2 s that may run ahead: the first
 * begins at 2 s and ends at 4, the second would begin at 4, which is too late, so it is made after the close, in half
 * the time where the device shares it. */
static void updates_run_ahead_until_the_close(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        plan_script s = {.n_items = 0, .n_slots = 4, .shares_updates = shared};
        kernel_profile p = plain_profile();
        p.host_shared = 2e9;
        add_wait(&s, 2);
        add_wait(&s, 3);
        add_kernel(&s, &p, 1000, 1);
        const script_item items[] = {{.kind = SCRIPT_OUT, .slot = 0, .after = -1, .bytes = 1e9},
                                     {.kind = SCRIPT_UPDATE, .slot = 2, .after = 0, .bytes = 2e9, .ahead = true},
                                     {.kind = SCRIPT_OUT, .slot = 1, .after = -1, .bytes = 1e9},
                                     {.kind = SCRIPT_UPDATE, .slot = 3, .after = 1, .bytes = 2e9, .ahead = true}};
        for (size_t i = 0; i < sizeof items / sizeof *items; i++)
            assert_int_equal(plan_script_add(&s, items[i]), FSDP_OK);
        add_kernel(&s, &p, 2000, 2.5);
        const script_item close[] = {{.kind = SCRIPT_SYNC, .slot = -1, .after = -1},
                                     {.kind = SCRIPT_UPDATE, .slot = 2, .after = 0, .bytes = 2e9},
                                     {.kind = SCRIPT_UPDATE, .slot = 3, .after = 1, .bytes = 2e9}};
        for (size_t i = 0; i < sizeof close / sizeof *close; i++)
            assert_int_equal(plan_script_add(&s, close[i]), FSDP_OK);
        close_script(&s);
        played_step out = play(&s, &p);
        assert_near(out.transfer_wait, 0.5 + (shared ? 1 : 2));
        assert_near(out.seconds, 3.5 + 0.5 + (shared ? 1 : 2));
        plan_script_clear(&s);
        profile_clear(&p);
    }
}

/* A random step: units are gathered and waited for, with kernels between. */
static void write_random(plan_script *s, kernel_profile *p, uint64_t seed)
{
    rng_key key = rng_key_make(seed);
    bool gathered[UNITS] = {false};
    for (uint64_t i = 0; i < 60; i++) {
        uint32_t what = rng_word(key, 0, i), size = rng_word(key, 1, i) % 1000 + 1;
        int unit = (int)(what / 7 % UNITS);
        if (what % 3 == 0 && !gathered[unit]) {
            add_gather(s, unit, size * 1e6);
            gathered[unit] = true;
        } else if (what % 3 == 1 && gathered[unit]) {
            add_wait(s, unit);
            gathered[unit] = false;
        } else {
            add_kernel(s, p, (int64_t)i + 1, size * 1e-4);
        }
    }
    for (int i = 0; i < UNITS; i++)
        if (gathered[i])
            add_wait(s, i);
    close_script(s);
}

static void any_step_is_bounded_and_never_slower_with_faster_links(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        plan_script s = {.n_items = 0, .n_slots = UNITS};
        kernel_profile p = plain_profile();
        write_random(&s, &p, seed);
        double before = INFINITY;
        for (double inside = 0.25e9; inside < 1e12; inside *= 2) {
            p.links.inside = inside;
            p.overlaps = false;
            played_step apart = play(&s, &p);
            p.overlaps = true;
            played_step out = play(&s, &p);
            assert_true(out.seconds <= before * (1 + 1e-9));
            assert_true(out.seconds <= apart.seconds * (1 + 1e-9));
            assert_true(out.seconds >= fmax(out.compute, out.communication) * (1 - 1e-9));
            assert_true(out.seconds <= (out.compute + out.communication) * (1 + 1e-9));
            assert_near(out.seconds, out.compute + out.exposed);
            assert_near(apart.seconds, apart.compute + apart.communication);
            before = out.seconds;
        }
        plan_script_clear(&s);
        profile_clear(&p);
    }
}

static double collective(const kernel_profile *p, script_collective which, int ranks, int stride, double bytes)
{
    script_item item = {
        .kind = SCRIPT_COLLECTIVE, .collective = which, .ranks = ranks, .stride = stride, .bytes = bytes};
    return profile_collective_seconds(p, &item, 8);
}

static void collectives_are_rings_within_and_between_nodes(void **state)
{
    (void)state;
    kernel_profile p = plain_profile();
    p.links = (profile_links){.inside = 8e9, .outside = 0.5e9, .hop_inside = 1e-3, .hop_outside = 1e-2, .start = 1e-4};
    assert_near(collective(&p, SCRIPT_ALL_GATHER, 1, 1, 8e9), 0);
    assert_near(collective(&p, SCRIPT_ALL_GATHER, 8, 1, 8e9), 1e-4 + 7e-3 + 7.0 / 8);
    /* two nodes: eight ways out together have 4 GB/s, which is less than within */
    assert_near(collective(&p, SCRIPT_REDUCE_SCATTER, 16, 1, 8e9), 1e-4 + 14e-3 + 2e-2 + 15.0 / 16 * 2);
    /* replicas, one a node: each has its own way out */
    assert_near(collective(&p, SCRIPT_ALL_REDUCE, 2, 8, 1e9), 1e-4 + 2 * (2e-2 + 0.5 * 2));
    /* few bytes over many nodes go by tree */
    double few = collective(&p, SCRIPT_ALL_REDUCE, 8192, 1, 16);
    assert_true(few < 1 && few > 0.2);
    p.collectives = NULL;
    profile_collective measured[] = {{.ranks = 4, .bytes = 1000, .seconds = 1},
                                     {.ranks = 4, .bytes = 3000, .seconds = 2}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(profile_add_collective(&p, &measured[i]), FSDP_OK);
    assert_near(collective(&p, SCRIPT_ALL_GATHER, 4, 1, 2000), 1.5);
    assert_near(collective(&p, SCRIPT_ALL_GATHER, 4, 1, 6000), 4);
    assert_near(collective(&p, SCRIPT_ALL_GATHER, 4, 1, 10), 1);
    profile_clear(&p);
}

/* Values go to those who sum them at once, each over its own way; what an all-reduce sums goes round in the type that
 * comes back. The sum itself is a kernel of the collective's. */
static void direct_sums_take_each_ranks_own_ways(void **state)
{
    (void)state;
    kernel_profile p = plain_profile();
    p.links = (profile_links){.inside = 8e9, .outside = 0.5e9, .hop_inside = 1e-3, .hop_outside = 1e-2, .start = 1e-4};
    script_item item = {.kind = SCRIPT_COLLECTIVE,
                        .collective = SCRIPT_REDUCE_SCATTER,
                        .direct = true,
                        .ranks = 8,
                        .stride = 1,
                        .bytes = 8e9,
                        .received = 7e9};
    assert_near(profile_collective_seconds(&p, &item, 8), 1e-4 + 1e-3 + 7.0 / 8);
    item.collective = SCRIPT_ALL_REDUCE;
    item.received = 21e9;
    assert_near(profile_collective_seconds(&p, &item, 8), 1e-4 + 1e-3 + 7.0 / 8 + 1e-4 + 7e-3 + 14.0 / 8);
    item.collective = SCRIPT_REDUCE_SCATTER;
    item.ranks = 16; /* half of it from the other node, over one way out instead of eight */
    assert_near(profile_collective_seconds(&p, &item, 8), 1e-4 + 1e-2 + 4 / 0.5);
    profile_collective measured = {.which = SCRIPT_REDUCE_SCATTER, .ranks = 8, .bytes = 8e9, .seconds = 1};
    assert_int_equal(profile_add_collective(&p, &measured), FSDP_OK);
    item.ranks = 8; /* of another kind */
    assert_near(profile_collective_seconds(&p, &item, 8), 1e-4 + 1e-3 + 7.0 / 8);
    profile_clear(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefetched_gather_is_hidden_by_compute),
        cmocka_unit_test(without_a_core_to_spare_every_gather_is_exposed),
        cmocka_unit_test(kernels_are_slower_beside_a_collective),
        cmocka_unit_test(launches_are_hidden_by_what_the_device_still_does),
        cmocka_unit_test(the_next_forward_waits_for_the_update_in_host_memory),
        cmocka_unit_test(updates_run_ahead_until_the_close),
        cmocka_unit_test(any_step_is_bounded_and_never_slower_with_faster_links),
        cmocka_unit_test(collectives_are_rings_within_and_between_nodes),
        cmocka_unit_test(direct_sums_take_each_ranks_own_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
