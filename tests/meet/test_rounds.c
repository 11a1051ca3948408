/* Rounds of launchers at one store: who gets which ranks, what a failure, a lost node and a newcomer lead to, and what
 * hundreds of launchers cost. The launchers are clients of one process; what they would start is left out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "meet/open_server.h"

typedef struct node {
    client *client;
    round_place place;
    round_stop stop;
} node;

static rounds_policy policy_of(int least, int most)
{
    return (rounds_policy){
        .min_nodes = least, .max_nodes = most, .last_call_seconds = 0.3, .join_timeout_seconds = 30, .max_restarts = 2};
}

static void come(const server *s, node *n, int number)
{
    client_config config = {
        .candidates = server_endpoint(s), .n_candidates = 1, .key = &key, .job = "job", .timeout_seconds = 20};
    snprintf(config.who.who, sizeof config.who.who, "node %d", number);
    assert_int_equal(client_open(&config, &n->client), FSDP_OK);
}

static void join(node *n, const rounds_policy *policy, int number, int n_ranks)
{
    round_join j = {.node_rank = number,
                    .n_ranks = n_ranks,
                    .min_nodes = policy->min_nodes,
                    .max_nodes = policy->max_nodes,
                    .last_round = -1,
                    .master_port = 1000 + number};
    wire_body body = {0};
    snprintf(j.host, sizeof j.host, "host%d", number);
    snprintf(j.address, sizeof j.address, "10.0.0.%d", number);
    round_join_put(&body, &j);
    client_send(n->client, WIRE_JOIN, body.data, body.bytes);
    wire_free(&body);
}

/* Until the store says something other than that it has heard us; what kind it was, 0 after `seconds`. */
static uint32_t hear(node *n, double seconds)
{
    const void *body;
    uint32_t kind;
    size_t bytes;
    double deadline = clock_seconds() + seconds;
    for (;;) {
        line_state state = client_receive(n->client, &kind, &body, &bytes);
        wire_reader r = wire_read(body, state == LINE_MESSAGE ? bytes : 0);
        if (state == LINE_MESSAGE && kind == WIRE_ROUND)
            assert_true(round_place_get(&r, &n->place));
        if (state == LINE_MESSAGE && kind == WIRE_STOP)
            assert_true(round_stop_get(&r, &n->stop));
        if (state == LINE_MESSAGE && kind == WIRE_BEAT)
            continue;
        if (state == LINE_MESSAGE)
            return kind;
        double left = deadline - clock_seconds();
        struct pollfd p = {.fd = client_socket(n->client), .events = POLLIN};
        if (state != LINE_NOTHING || left <= 0)
            return 0;
        poll(&p, 1, (int)(left * 1e3) + 1);
    }
}

static void fail_round_of(node *n, round_final is_final)
{
    round_failure f = {.round = n->place.round, .exit_code = 9, .is_final = is_final, .reason = "it broke"};
    wire_body body = {0};
    round_failure_put(&body, &f);
    client_send(n->client, WIRE_FAIL, body.data, body.bytes);
    wire_free(&body);
}

static void done(node *n)
{
    int32_t round = n->place.round;
    client_send(n->client, WIRE_DONE, &round, sizeof round);
}

static void leave_all(node *nodes, int n, server *s)
{
    for (int i = 0; i < n; i++)
        client_close(nodes[i].client);
    server_close(s, 2);
}

/* ---- ranks ---- */

static void ranks_follow_the_numbers_of_nodes_whoever_comes_first(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(3, 3);
    server *s = open_server(&policy);
    node nodes[3];
    static const int order[] = {2, 0, 1}, sizes[] = {1, 4, 2};
    for (int i = 0; i < 3; i++) {
        come(s, &nodes[order[i]], order[i]);
        join(&nodes[order[i]], &policy, order[i], sizes[order[i]]);
    }
    static const int first[] = {0, 1, 5};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hear(&nodes[i], 10), WIRE_ROUND);
        assert_int_equal(nodes[i].place.node, i);
        assert_int_equal(nodes[i].place.first_rank, first[i]);
        assert_int_equal(nodes[i].place.world_size, 7);
        assert_string_equal(nodes[i].place.master_address, "10.0.0.0");
        assert_int_equal(nodes[i].place.master_port, 1000);
    }
    char members[256] = "";
    size_t bytes;
    assert_int_equal(client_get(nodes[1].client, "round.0", 1, members, sizeof members - 1, &bytes), FSDP_OK);
    assert_string_equal(members, "0 1 host0 10.0.0.0\n1 4 host1 10.0.0.1\n2 2 host2 10.0.0.2\n");
    leave_all(nodes, 3, s);
}

static void nodes_without_numbers_are_counted_as_they_come(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(2, 2);
    server *s = open_server(&policy);
    node nodes[2];
    for (int i = 0; i < 2; i++) {
        come(s, &nodes[i], i);
        join(&nodes[i], &policy, -1, 1);
        assert_int_equal(hear(&nodes[i], i == 0 ? 0.2 : 10), i == 0 ? 0 : WIRE_ROUND);
    }
    assert_int_equal(hear(&nodes[0], 10), WIRE_ROUND);
    assert_int_equal(nodes[0].place.node, 0);
    assert_int_equal(nodes[1].place.node, 1);
    leave_all(nodes, 2, s);
}

/* ---- what follows ---- */

static void restarts_are_counted_and_then_it_is_over(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(2, 2);
    server *s = open_server(&policy);
    node nodes[2];
    for (int i = 0; i < 2; i++)
        come(s, &nodes[i], i);
    for (int round = 0; round <= policy.max_restarts; round++) {
        for (int i = 0; i < 2; i++)
            join(&nodes[i], &policy, i, 1);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(hear(&nodes[i], 20), WIRE_ROUND);
            assert_int_equal(nodes[i].place.round, round);
            assert_int_equal(nodes[i].place.n_restarts, round);
        }
        fail_round_of(&nodes[1], FINAL_NO);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(hear(&nodes[i], 10), WIRE_STOP);
            assert_int_equal(nodes[i].stop.verdict, round < policy.max_restarts ? ROUND_AGAIN : ROUND_OVER);
            assert_int_equal(nodes[i].stop.exit_code, 9);
            assert_non_null(strstr(nodes[i].stop.reason, "it broke"));
        }
    }
    join(&nodes[0], &policy, 0, 1); /* who asks again hears the same */
    assert_int_equal(hear(&nodes[0], 10), WIRE_STOP);
    assert_int_equal(nodes[0].stop.verdict, ROUND_OVER);
    leave_all(nodes, 2, s);
}

static void only_restarts_within_the_window_count(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(1, 1);
    policy.max_restarts = 1;
    policy.restart_window_seconds = 0.5;
    server *s = open_server(&policy);
    node alone;
    come(s, &alone, 0);
    for (int round = 0; round < 3; round++) {
        join(&alone, &policy, 0, 1);
        assert_int_equal(hear(&alone, 20), WIRE_ROUND);
        struct timespec pause = {.tv_nsec = 600000000};
        nanosleep(&pause, NULL);
        fail_round_of(&alone, FINAL_NO);
        assert_int_equal(hear(&alone, 10), WIRE_STOP);
        assert_int_equal(alone.stop.verdict, ROUND_AGAIN);
    }
    leave_all(&alone, 1, s);
}

static void what_was_asked_for_is_not_restarted(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(1, 1);
    server *s = open_server(&policy);
    node alone;
    come(s, &alone, 0);
    join(&alone, &policy, 0, 1);
    assert_int_equal(hear(&alone, 10), WIRE_ROUND);
    fail_round_of(&alone, FINAL_RANK);
    assert_int_equal(hear(&alone, 10), WIRE_STOP);
    assert_int_equal(alone.stop.verdict, ROUND_OVER);
    leave_all(&alone, 1, s);
}

/* Ranks that are stopped with their round take others along, whose launcher has not heard yet. */
static void ranks_of_a_stopped_round_end_nothing(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(2, 2);
    server *s = open_server(&policy);
    node nodes[2];
    for (int i = 0; i < 2; i++)
        come(s, &nodes[i], i);
    for (int i = 0; i < 2; i++)
        join(&nodes[i], &policy, i, 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hear(&nodes[i], 20), WIRE_ROUND);
    fail_round_of(&nodes[0], FINAL_NO);
    assert_int_equal(hear(&nodes[0], 10), WIRE_STOP);
    fail_round_of(&nodes[1], FINAL_RANK);
    assert_int_equal(hear(&nodes[1], 10), WIRE_STOP);
    assert_int_equal(nodes[1].stop.verdict, ROUND_AGAIN);
    for (int i = 0; i < 2; i++)
        join(&nodes[i], &policy, i, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hear(&nodes[i], 20), WIRE_ROUND);
        assert_int_equal(nodes[i].place.round, 1);
    }
    fail_round_of(&nodes[0], FINAL_NO);
    for (int i = 0; i < 2; i++)
        assert_int_equal(hear(&nodes[i], 10), WIRE_STOP);
    fail_round_of(&nodes[1], FINAL_LAUNCHER); /* it will not come again */
    join(&nodes[0], &policy, 0, 1);
    assert_int_equal(hear(&nodes[0], 10), WIRE_STOP);
    assert_int_equal(nodes[0].stop.verdict, ROUND_OVER);
    leave_all(nodes, 2, s);
}

/* The store without a socket, at times of our own. */
typedef struct told {
    int n_rounds, n_stops, n_examined, n_hung_up;
    int examined; /* the rank that was examined last */
    char reason[WIRE_TEXT_BYTES];
} told;

static void take_word(void *context, store_guest *g, uint32_t kind, const void *body, size_t bytes)
{
    told *t = context;
    wire_reader r = wire_read(body, bytes);
    round_stop stop;
    (void)g;
    t->n_rounds += kind == WIRE_ROUND;
    t->n_examined += kind == WIRE_EXAMINE;
    if (kind == WIRE_EXAMINE)
        t->examined = wire_get_i32(&r);
    t->n_hung_up += kind == WIRE_NOTHING;
    t->n_stops += kind == WIRE_STOP;
    if (kind == WIRE_STOP && round_stop_get(&r, &stop))
        snprintf(t->reason, sizeof t->reason, "%s", stop.reason);
}

static void beat(store *s, store_guest *g, int64_t count, double core_wait, bool waits, double now)
{
    wire_body body = {0};
    wire_put_i32(&body, 0);
    wire_put_i32(&body, 1);
    wire_put_i64(&body, count);
    wire_put_i64(&body, 5);
    wire_put_i64(&body, (int64_t)(core_wait * 1e6));
    wire_put_u32(&body, waits);
    wire_put_text(&body, "step 5");
    assert_true(store_hear(s, g, WIRE_BEAT, body.data, body.bytes, now));
    wire_free(&body);
}

static store_guest *join_store_of(store *s, int n_nodes, int n_ranks, int number, int64_t launcher)
{
    static int link;
    store_introduction who = {.seat = 0, .seats = 0};
    round_join j = {.node_rank = number,
                    .n_ranks = n_ranks,
                    .min_nodes = n_nodes,
                    .max_nodes = n_nodes,
                    .last_round = -1,
                    .launcher = launcher};
    store_guest *g;
    wire_body body = {0};
    snprintf(who.who, sizeof who.who, "node %d", number);
    assert_int_equal(store_admit(s, &who, &link, &g), FSDP_OK);
    round_join_put(&body, &j);
    assert_true(store_hear(s, g, WIRE_JOIN, body.data, body.bytes, 1));
    wire_free(&body);
    return g;
}

/* Of two nodes with a rank each. */
static store_guest *join_store(store *s, int number, int64_t launcher)
{
    return join_store_of(s, 2, 1, number, launcher);
}

/* A hang is told by counts that stand still: of the rank that does not wait, not of those that wait for it. */
static void the_rank_that_does_not_wait_is_examined(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(1, 1);
    policy.watchdog_seconds = 1;
    told t = {.examined = -1};
    store *s = store_new(take_word, &t, &policy);
    store_guest *alone = join_store_of(s, 1, 3, 0, 0);
    double now = 1;
    assert_int_equal(t.n_rounds, 1);
    for (int tick = 0; tick < 100 && t.n_examined == 0; tick++) { /* ten seconds */
        wire_body body = {0};
        now = 1 + tick * 0.1;
        wire_put_i32(&body, 0);
        wire_put_i32(&body, 3);
        for (int rank = 0; rank < 3; rank++) {
            wire_put_i64(&body, 100 + (tick > 4 ? 4 : tick)); /* soon all stand still */
            wire_put_i64(&body, 5);
            wire_put_i64(&body, 0);
            wire_put_u32(&body, rank != 1);
            wire_put_text(&body, rank == 1 ? "step 5, phase data" : "step 5, waits in all_gather");
        }
        assert_true(store_hear(s, alone, WIRE_BEAT, body.data, body.bytes, now));
        wire_free(&body);
        store_tick(s, now);
    }
    assert_int_equal(t.n_examined, 1);
    assert_int_equal(t.examined, 1);
    assert_true(now >= 1.4 + 1 && now <= 1.4 + 1 + 0.7); /* the watchdog, and until the store looks again */
    store_free(s);
}

/* Two nodes that beat until `silent_from`, when the second stops to speak; ranks move until `still_from`, with `works`
 * only the first does, which waits. Returns when the round was stopped, or -1. */
static double stopped_at(double still_from, double silent_from, bool works, told *t)
{
    rounds_policy policy = policy_of(2, 2);
    policy.watchdog_seconds = 2;
    *t = (told){0};
    store *s = store_new(take_word, t, &policy);
    store_guest *guests[] = {join_store(s, 0, 0), join_store(s, 1, 0)};
    double end = -1;
    assert_int_equal(t->n_rounds, 2);
    for (int tick = 0; tick < 400 && end < 0; tick++) { /* twenty seconds */
        double now = 1 + tick * 0.05;
        int64_t count = 1 + (int64_t)((now < still_from ? now : still_from) * 10);
        for (int i = 0; i < 2 && tick % 20 == 0; i++) /* once a second */
            if (i == 0 || now < silent_from)
                beat(s, guests[i], works && i == 1 ? tick + 1 : count, 0, i == 0, now);
        store_tick(s, now);
        end = t->n_stops > 0 ? now : -1;
    }
    store_free(s);
    return end;
}

/* Two ranks stand still from the third second on; for `part` of the time they have no core. Returns when one is
 * examined. */
static double examined_at(double part)
{
    rounds_policy policy = policy_of(2, 2);
    policy.watchdog_seconds = 2;
    told t = {0};
    store *s = store_new(take_word, &t, &policy);
    store_guest *guests[] = {join_store(s, 0, 0), join_store(s, 1, 0)};
    double end = -1;
    for (int tick = 0; tick < 400 && end < 0; tick++) {
        double now = 1 + tick * 0.05;
        for (int i = 0; i < 2 && tick % 20 == 0; i++)
            beat(s, guests[i], 1 + (int64_t)(fmin(now, 3) * 10), part * now, i == 0, now);
        store_tick(s, now);
        end = t.n_examined > 0 ? now : -1;
    }
    store_free(s);
    return end;
}

/* However long the load lasts; and a rank that runs in circles is found as soon as it has run for so long. */
static void a_rank_without_a_core_is_not_hung(void **state)
{
    (void)state;
    double alone = examined_at(0), half = examined_at(0.5);
    print_message("examined after %g s, with half a core %g s\n", alone, half);
    assert_true(alone >= 5 && alone <= 6.5);
    assert_true(half >= 6 && half <= 8.5 && half > alone);
    assert_true(examined_at(1) < 0);
    assert_true(examined_at(1000) < 0); /* many threads are not counted, but a clock may err */
    assert_true(examined_at(-1) == alone);
}

static void a_node_that_falls_silent_is_to_blame_and_is_not_asked(void **state)
{
    (void)state;
    told t;
    double at = stopped_at(3, 3, false, &t); /* the link is cut: ranks stand still, and one launcher says nothing */
    assert_int_equal(t.n_examined, 0);
    assert_non_null(strstr(t.reason, "node 1 has said nothing for"));
    assert_true(at > 3 && at <= 3 + 2 + 2);         /* the watchdog and two seconds */
    assert_true(stopped_at(100, 3, false, &t) < 0); /* ranks go on: a launcher may be slow */
    assert_int_equal(t.n_examined, 0);
    assert_true(stopped_at(3, 100, false, &t) > 3 + 2 + 2); /* it speaks, so it is asked first, and given time */
    assert_int_equal(t.n_examined, 1);
}

static void ranks_may_wait_for_one_that_works(void **state)
{
    (void)state;
    told t;
    assert_true(stopped_at(3, 100, true, &t) < 0); /* a save that takes long, say */
    assert_int_equal(t.n_examined, 0);
}

/* Nobody watches for hangs here; still, who has done its part is not kept waiting by one that is stopped or swaps. */
static void nodes_that_are_done_do_not_wait_for_a_silent_one(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(2, 2);
    for (int speaks = 0; speaks < 2; speaks++) {
        told t = {0};
        store *s = store_new(take_word, &t, &policy);
        store_guest *first = join_store(s, 0, 0), *second = join_store(s, 1, 0);
        int32_t round = 0;
        double now = 1, patience = rounds_patience(policy.join_timeout_seconds);
        for (; now < 2 * patience; now++) { /* as long as nobody is done, there is no hurry */
            beat(s, first, 0, 0, false, now);
            store_tick(s, now);
        }
        assert_int_equal(t.n_stops, 0);
        beat(s, second, 0, 0, false, now);
        assert_true(store_hear(s, first, WIRE_DONE, &round, sizeof round, now));
        for (double end = now + patience + 2; now < end; now++) {
            beat(s, first, 0, 0, false, now);
            if (speaks)
                beat(s, second, 0, 0, false, now);
            store_tick(s, now);
        }
        assert_int_equal(t.n_stops, speaks ? 0 : 2);
        assert_true(speaks || strstr(t.reason, "node 1 has said nothing for 20 s"));
        store_free(s);
    }
}

static void a_launcher_that_comes_again_is_no_twin(void **state)
{
    (void)state;
    rounds_policy policy = policy_of(2, 2);
    told t = {0};
    store *s = store_new(take_word, &t, &policy);
    join_store(s, 0, 70);
    store_guest *former = join_store(s, 1, 71);
    assert_int_equal(t.n_rounds, 2);
    join_store(s, 1, 71); /* the former connection is not known to be broken */
    assert_int_equal(t.n_hung_up, 1);
    assert_non_null(strstr(t.reason, "node 1 is gone"));
    assert_non_null(strstr(t.reason, "starting all ranks again"));
    store_lose(s, former, false, 2);
    assert_int_equal(t.n_stops, 1);
    join_store(s, 1, 72); /* but another launcher of this number is one too many */
    assert_int_equal(t.n_hung_up, 1);
    store_free(s);
}

/* ---- hundreds ---- */

/* CPU seconds of this process, the store's thread included, for a whole life of n launchers: two rounds and the end. */
static double life_of(int n, double *seconds)
{
    rounds_policy policy = policy_of(n, n);
    server *s = open_server(&policy);
    node *nodes = calloc((size_t)n, sizeof *nodes);
    assert_non_null(nodes);
    for (int i = 0; i < n; i++)
        come(s, &nodes[i], i);
    double begin = clock_seconds();
    clock_t cpu = clock();
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n; i++)
            join(&nodes[i], &policy, n - 1 - i, 1);
        for (int i = 0; i < n; i++) {
            assert_int_equal(hear(&nodes[i], 30), WIRE_ROUND);
            assert_int_equal(nodes[i].place.first_rank, n - 1 - i);
        }
        if (round == 0)
            fail_round_of(&nodes[n / 2], FINAL_NO);
        for (int i = 0; i < n; i++) {
            if (round == 1)
                done(&nodes[i]);
            else
                assert_int_equal(hear(&nodes[i], 30), WIRE_STOP);
        }
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(hear(&nodes[i], 30), WIRE_FINISHED);
    *seconds = clock_seconds() - begin;
    double used = (double)(clock() - cpu) / CLOCKS_PER_SEC;
    leave_all(nodes, n, s);
    free(nodes);
    return used;
}

static void five_hundred_launchers_cost_n_log_n(void **state)
{
    (void)state;
    enum { FEW = 64, MANY = 512 };
    double seconds, few = 1e9, many = 1e9, fastest = 1e9;
    for (int i = 0; i < 3; i++) { /* the best of some: the machine has other work */
        few = fmin(few, life_of(FEW, &seconds));
        many = fmin(many, life_of(MANY, &seconds));
        fastest = fmin(fastest, seconds);
    }
    assert_true(fastest < 10);
    double allowed = MANY * log2(MANY) / (FEW * log2(FEW));
    print_message("%d launchers: %.1f ms, %d: %.1f ms of CPU; n log n allows a factor of %.1f\n", FEW, few * 1e3, MANY,
                  many * 1e3, allowed);
    assert_true(many < 2 * allowed * few + 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_follow_the_numbers_of_nodes_whoever_comes_first),
        cmocka_unit_test(nodes_without_numbers_are_counted_as_they_come),
        cmocka_unit_test(restarts_are_counted_and_then_it_is_over),
        cmocka_unit_test(only_restarts_within_the_window_count),
        cmocka_unit_test(what_was_asked_for_is_not_restarted),
        cmocka_unit_test(ranks_of_a_stopped_round_end_nothing),
        cmocka_unit_test(the_rank_that_does_not_wait_is_examined),
        cmocka_unit_test(a_rank_without_a_core_is_not_hung),
        cmocka_unit_test(a_node_that_falls_silent_is_to_blame_and_is_not_asked),
        cmocka_unit_test(ranks_may_wait_for_one_that_works),
        cmocka_unit_test(nodes_that_are_done_do_not_wait_for_a_silent_one),
        cmocka_unit_test(a_launcher_that_comes_again_is_no_twin),
        cmocka_unit_test(five_hundred_launchers_cost_n_log_n),
    };
    return cmocka_run_group_tests_name("rounds", tests, NULL, NULL);
}
