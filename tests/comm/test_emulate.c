/* An emulated world: what its links say, how long collectives take, and that groups, counts and values are those of a
 * world in which every peer holds what this rank holds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/comm.h"
#include "comm/emulate/emulate.h"
#include "comm/emulate/links.h"

static void links_are_read(void **state)
{
    (void)state;
    links l;
    assert_int_equal(links_parse("8@450GBs", &l), FSDP_OK);
    assert_true(l.per_host == 8 && l.n_hosts == 1 && l.within == 450e9);
    assert_int_equal(links_parse("8@450GB/s,2@50GBs", &l), FSDP_OK);
    assert_true(l.per_host == 8 && l.n_hosts == 2 && l.within == 450e9 && l.between == 50e9);
    assert_int_equal(links_parse("1@0.5GBs,3@2GBs", &l), FSDP_OK);
    assert_true(l.per_host == 1 && l.n_hosts == 3 && l.within == 0.5e9);
}

static void what_is_no_link_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",          "8",          "8@",         "8@450",           "0@450GBs",
                                        "-8@450GBs", "8@0GBs",     "8@-1GBs",    "8@nanGBs",        "8@infGBs",
                                        "8@450GBs,", "8@450GBs,2", "8@450GBsx",  "8@450GBs,16ctas", "8@450GBs,2@1GBs,",
                                        "@450GBs",   "8@1GBs,2@",  "99999@1GBs", "8@1GBs,9999@1GBs"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        links l;
        if (links_parse(texts[i], &l) != FSDP_ERR_INPUT)
            fail_msg("\"%s\" was taken for links", texts[i]);
        assert_non_null(strstr(fsdp_last_error(), "8@450GBs"));
    }
}

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-9 * want)
        fail_msg("%.9g seconds, expected %.9g", got, want);
}

static void seconds_follow_the_slowest_link(void **state)
{
    (void)state;
    links l = {.per_host = 4, .n_hosts = 2, .within = 100e9, .between = 10e9};
    const int host[] = {0, 1, 2, 3}, all[] = {0, 1, 2, 3, 4, 5, 6, 7}, replicas[] = {1, 5};
    near(links_seconds(&l, host, 4, COMM_ALL_GATHER, 1e9), 8.4e-6 + 3 * 3.4e-6 + 0.01);
    /* Four adapters of 10 GB/s a host are slower than 100 GB/s within it. */
    near(links_seconds(&l, all, 8, COMM_REDUCE_SCATTER, 1e9), 8.4e-6 + 6 * 3.4e-6 + 14e-6 + 0.025);
    near(links_seconds(&l, replicas, 2, COMM_ALL_REDUCE, 1e9), 8.4e-6 + 2 * 14e-6 + 0.1);
    l.between = 100e9; /* four together are faster than the host */
    near(links_seconds(&l, all, 8, COMM_ALL_GATHER, 1e9), 8.4e-6 + 6 * 3.4e-6 + 14e-6 + 0.01);
}

/* Rings take as many blocks as the rate asks for, of which each carries at most 36.7 GB/s, in whole clusters, and not
 * more than the 24 of NCCL; the switch takes few; copies take none. */
static void blocks_follow_memory_and_limit(void **state)
{
    (void)state;
    links l = {.per_host = 2, .n_hosts = 2, .within = 450e9, .between = 50e9};
    const int host[] = {0, 1}, all[] = {0, 1, 2, 3}, replicas[] = {0, 2};
    const double latency = 8.4e-6 + 3.4e-6;
    assert_int_equal(links_blocks(&l, host, 2, COMM_ALL_GATHER), 16);
    near(links_seconds(&l, host, 2, COMM_ALL_GATHER, 1e9), latency + 1 / 450.0);
    l.within = 225e9;
    assert_int_equal(links_blocks(&l, host, 2, COMM_ALL_GATHER), 8);
    l.within = 4500e9;
    assert_int_equal(links_blocks(&l, host, 2, COMM_ALL_GATHER), 24);
    l.within = 450e9;
    l.ctas = 64;
    assert_int_equal(links_blocks(&l, host, 2, COMM_REDUCE_SCATTER), 24);
    near(links_seconds(&l, host, 2, COMM_REDUCE_SCATTER, 1e9), latency + 1 / 450.0);
    l.ctas = 8;
    near(links_seconds(&l, host, 2, COMM_REDUCE_SCATTER, 1e9), latency + 1 / (8 * 36.7));
    l.memory = FSDP_COMM_MEMORY_SYMMETRIC;
    assert_int_equal(links_blocks(&l, host, 2, COMM_ALL_GATHER), 4);
    assert_int_equal(links_blocks(&l, host, 2, COMM_REDUCE_SCATTER), 5);
    assert_int_equal(links_blocks(&l, all, 4, COMM_ALL_GATHER), 6);
    assert_int_equal(links_blocks(&l, replicas, 2, COMM_ALL_REDUCE), 8);
    near(links_seconds(&l, host, 2, COMM_ALL_GATHER, 1e9), latency + 1 / 450.0);
    l.ctas = 2; /* half of what saturates the links */
    near(links_seconds(&l, host, 2, COMM_ALL_GATHER, 1e9), latency + 1 / 225.0);
    l.memory = FSDP_COMM_MEMORY_COPY_ENGINE;
    assert_int_equal(links_blocks(&l, host, 2, COMM_ALL_GATHER), 0);
    near(links_seconds(&l, host, 2, COMM_ALL_GATHER, 1e9), latency + 1 / 450.0);
    assert_int_equal(links_blocks(&l, host, 2, COMM_REDUCE_SCATTER), 2);
    assert_int_equal(links_blocks(&l, all, 4, COMM_ALL_GATHER), 2);
}

static comm *open_emulated(const char *backend)
{
    comm_config config = COMM_CONFIG_INIT;
    config.backend = backend;
    config.job = (job){.world_size = 1, .local_world_size = 1, .n_nodes = 1};
    comm *c = NULL;
    if (comm_open(&config, &c) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    return c;
}

static void groups_are_those_of_the_whole_world(void **state)
{
    (void)state;
    comm *c = open_emulated("emulate:4@10GBs,2@1GBs");
    comm_group *shard, *replica;
    assert_int_equal(comm_world_size(c), 8);
    assert_int_equal(comm_rank(c), 0);
    assert_int_equal(comm_group_split_by_size(c, 4, &shard, &replica), FSDP_OK);
    assert_int_equal(comm_group_size(shard), 4);
    assert_int_equal(comm_group_size(replica), 2);
    assert_int_equal(comm_group_world_rank(shard, 3), 3);
    assert_int_equal(comm_group_world_rank(replica, 1), 4);
    comm_close(c);
}

static void peers_hold_what_this_rank_holds(void **state)
{
    (void)state;
    comm *c = open_emulated("emulate:3@10GBs");
    const int64_t counts[] = {2, 0, 3};
    float mine[] = {1, 2}, all[5] = {0}, whole[] = {5, 6, 7, 8, 9}, part[2] = {0};
    comm_span gather = {.send = {mine, FSDP_F32}, .recv = {all, FSDP_F32}, .counts = counts};
    comm_span scatter = {.send = {whole, FSDP_F32}, .recv = {part, FSDP_F32}, .counts = counts};
    comm_op op = {.unit = "layer", .n_spans = 1, .spans = &gather};
    comm_request r = COMM_REQUEST_INIT;
    assert_int_equal(comm_all_gather(comm_world(c), &op, &r), FSDP_OK);
    assert_int_equal(comm_wait(&r, NULL), FSDP_OK);
    assert_memory_equal(all, ((float[]){1, 2, 1, 2, 1}), sizeof all);
    assert_int_equal(comm_group_bytes(comm_world(c)), 3 * sizeof(float));
    op.spans = &scatter;
    assert_int_equal(comm_reduce_scatter(comm_world(c), &op, &r), FSDP_OK);
    assert_int_equal(comm_wait_sent(&r, NULL), FSDP_OK);
    assert_memory_equal(part, ((float[]){15, 18}), sizeof part);
    double sum[] = {2}, highest[] = {2};
    assert_int_equal(comm_all_reduce_f64(comm_world(c), "x", 0, FSDP_REDUCE_SUM, sum, 1), FSDP_OK);
    assert_int_equal(comm_all_reduce_f64(comm_world(c), "x", 0, FSDP_REDUCE_MAX, highest, 1), FSDP_OK);
    assert_true(sum[0] == 6 && highest[0] == 2);
    comm_close(c);
}

static void collectives_take_their_time(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static float data[N];
    comm *c = open_emulated("emulate:2@0.01GBs"); /* 256 KiB at 10 MB/s */
    comm_span span = {.send = {data, FSDP_F32}, .recv = {data, FSDP_F32}, .count = N};
    comm_op op = {.label = "data", .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    (void)emulate_take_seconds(c);
    double begun = clock_seconds();
    assert_int_equal(comm_all_reduce(comm_world(c), &op, &r), FSDP_OK);
    assert_int_equal(comm_wait(&r, NULL), FSDP_OK);
    double want = 4.0 * N / 0.01e9 + 8.4e-6 + 2 * 3.4e-6;
    assert_true(clock_seconds() - begun >= want);
    near(emulate_take_seconds(c), want);
    emulate_without_links(c, true);
    assert_int_equal(comm_all_reduce(comm_world(c), &op, &r), FSDP_OK);
    assert_int_equal(comm_wait(&r, NULL), FSDP_OK);
    assert_true(emulate_take_seconds(c) == 0);
    comm_close(c);
}

static void a_job_of_several_ranks_is_no_emulation(void **state)
{
    (void)state;
    comm_config config = COMM_CONFIG_INIT;
    config.backend = "emulate:2@1GBs";
    config.job = (job){.world_size = 2, .local_world_size = 2, .n_nodes = 1};
    comm *c = NULL;
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "one process"));
    config.job = (job){.world_size = 1, .local_world_size = 1, .n_nodes = 1};
    config.backend = "emulate";
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "does not describe links"));
}

/* Blocks and memory are a GPU's: elsewhere they would be ignored. */
static void blocks_and_memory_are_refused_without_a_gpu(void **state)
{
    (void)state;
    comm_config config = COMM_CONFIG_INIT;
    config.job = (job){.world_size = 1, .local_world_size = 1, .n_nodes = 1};
    comm *c = NULL;
    config.ctas = 16;
    assert_int_equal(comm_open(&config, &c), FSDP_OK); /* one rank has no collectives */
    comm_close(c);
    config.backend = "emulate:2@1GBs";
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "--comm_ctas"));
    config.ctas = 0;
    config.memory = FSDP_COMM_MEMORY_COPY_ENGINE;
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_read),
        cmocka_unit_test(what_is_no_link_is_refused),
        cmocka_unit_test(seconds_follow_the_slowest_link),
        cmocka_unit_test(blocks_follow_memory_and_limit),
        cmocka_unit_test(groups_are_those_of_the_whole_world),
        cmocka_unit_test(peers_hold_what_this_rank_holds),
        cmocka_unit_test(collectives_take_their_time),
        cmocka_unit_test(a_job_of_several_ranks_is_no_emulation),
        cmocka_unit_test(blocks_and_memory_are_refused_without_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
