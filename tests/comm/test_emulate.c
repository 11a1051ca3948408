/* An emulated world: what its links say, how long collectives take, and that groups, counts and values are those of a
 * world in which every peer holds what this rank holds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
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

/* Everybody sends to everybody: one hop, no switch, and what comes from another host comes over one adapter. */
static void direct_sums_use_one_adapter(void **state)
{
    (void)state;
    links l = {.per_host = 4, .n_hosts = 2, .within = 100e9, .between = 10e9, .memory = FSDP_COMM_MEMORY_SYMMETRIC};
    const int host[] = {0, 1, 2, 3}, all[] = {0, 1, 2, 3, 4, 5, 6, 7}, replicas[] = {1, 5};
    assert_int_equal(links_direct_blocks(&l), 4);
    near(links_direct_seconds(&l, host, 4, 1e9), 8.4e-6 + 3.4e-6 + 0.01);
    near(links_direct_seconds(&l, all, 8, 7e9), 8.4e-6 + 14e-6 + 0.4);
    near(links_direct_seconds(&l, replicas, 2, 1e9), 8.4e-6 + 14e-6 + 0.1);
    l.within = 1e9;
    near(links_direct_seconds(&l, all, 8, 7e9), 8.4e-6 + 14e-6 + 3);
    l.within = 450e9;
    l.ctas = 2;
    assert_int_equal(links_direct_blocks(&l), 2);
    near(links_direct_seconds(&l, host, 4, 1e9), 8.4e-6 + 3.4e-6 + 1 / (2 * 36.7));
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

/* Asked for while a thread runs collectives: nothing is counted twice or lost. */
static void seconds_are_counted_beside_a_thread(void **state)
{
    (void)state;
    enum { TIMES = 200 };
    float data[4] = {0};
    comm_config config = COMM_CONFIG_INIT;
    config.backend = "emulate:2@1GBs";
    config.progress = COMM_PROGRESS_THREAD;
    config.job = (job){.world_size = 1, .local_world_size = 1, .n_nodes = 1};
    comm *c = NULL;
    assert_int_equal(comm_open(&config, &c), FSDP_OK);
    double taken = 0;
    comm_span span = {.send = {data, FSDP_F32}, .recv = {data, FSDP_F32}, .count = 4};
    comm_op op = {.label = "data", .n_spans = 1, .spans = &span};
    for (int i = 0; i < TIMES; i++) {
        comm_request r = COMM_REQUEST_INIT;
        assert_int_equal(comm_all_reduce(comm_world(c), &op, &r), FSDP_OK);
        nanosleep(&(struct timespec){.tv_nsec = i * 500}, NULL);
        taken += emulate_take_seconds(c);
        assert_int_equal(comm_wait(&r, NULL), FSDP_OK);
    }
    near(taken + emulate_take_seconds(c), TIMES * (16 / 1e9 + 8.4e-6 + 2 * 3.4e-6));
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

/* A queue without a GPU: the processor's streams, on which a paced move takes no time. */
static fsdp_status move_at_once(stream *s, const paced_move_args *a)
{
    (void)s;
    for (size_t at = 0; at < a->bytes; at++)
        ((char *)a->to)[at % a->to_bytes] = ((const char *)a->from)[at % a->from_bytes];
    return FSDP_OK;
}

/* Memory as a GPU gives it out: what lies there is no number. */
static fsdp_status (*allocate_clean)(device *d, memory_kind kind, size_t bytes, void **out);

static fsdp_status allocate_dirty(device *d, memory_kind kind, size_t bytes, void **out)
{
    FSDP_TRY(allocate_clean(d, kind, bytes, out));
    memset(*out, 0xff, bytes);
    return FSDP_OK;
}

enum { QUEUED = 5000 };

typedef struct queued_world {
    device *dev;
    stream *queue;
    comm *comm;
    int64_t bytes; /* that the device has given out */
} queued_world;

static void count_bytes(void *context, const hook_event *e)
{
    ((queued_world *)context)->bytes += e->bytes;
}

static void open_queued(queued_world *w, const char *backend, size_t staging_bytes)
{
    comm_config config = COMM_CONFIG_INIT;
    *w = (queued_world){.bytes = 0};
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &w->dev), FSDP_OK);
    w->dev->paced_move = move_at_once;
    allocate_clean = w->dev->allocate;
    w->dev->allocate = allocate_dirty;
    assert_int_equal(w->dev->stream_create(w->dev, 0, &w->queue), FSDP_OK);
    config.backend = backend;
    config.device = w->dev;
    config.staging_bytes = staging_bytes;
    config.job = (job){.world_size = 1, .local_world_size = 1, .n_nodes = 1};
    if (comm_open(&config, &w->comm) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    assert_true(comm_enqueues(w->comm));
}

static void close_queued(queued_world *w)
{
    comm_close(w->comm);
    w->dev->stream_free(w->queue);
    device_close(w->dev);
}

/* Of values that peers hold too, of which some do not arrive where they are summed; in staging memory as planned. */
static void sums_on_a_queue_take_the_planned_memory(void **state)
{
    (void)state;
    static uint16_t values[QUEUED];
    static float sum[QUEUED];
    for (int i = 0; i < QUEUED; i++)
        values[i] = 0x3f80; /* bf16: 1 */
    for (int scatters = 0; scatters < 2; scatters++)
        for (int add = 0; add < 2; add++) {
            queued_world w;
            comm_config plan = COMM_CONFIG_INIT;
            comm_kind kind = scatters ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
            int64_t numel = scatters ? QUEUED / 5 : QUEUED;
            open_queued(&w, "emulate:5@1GBs", 4096);
            plan.backend = "emulate";
            plan.device = w.dev;
            plan.staging_bytes = 4096;
            assert_true(comm_sums_directly(&plan, FSDP_BF16));
            comm_span span = {.send = {values, FSDP_BF16}, .recv = {sum, FSDP_F32}, .count = numel, .add = add};
            comm_op op = {.unit = "layer", .n_spans = 1, .spans = &span, .stream = w.queue};
            comm_request r = COMM_REQUEST_INIT;
            for (int i = 0; i < QUEUED; i++)
                sum[i] = 2;
            assert_int_equal(hooks_add_kind(HOOK_MEMORY, count_bytes, &w), FSDP_OK);
            assert_int_equal((scatters ? comm_reduce_scatter : comm_all_reduce)(comm_world(w.comm), &op, &r), FSDP_OK);
            assert_int_equal(comm_wait(&r, w.queue), FSDP_OK);
            hooks_remove(count_bytes, &w);
            assert_int_equal(w.bytes, comm_staging_bytes(&plan, kind, 5, numel, FSDP_BF16, FSDP_F32, add));
            for (int64_t i = 0; i < numel; i++)
                assert_true(sum[i] >= (add ? 2 : 0) && sum[i] <= (add ? 7 : 5));
            close_queued(&w);
        }
}

static void count_waits(void *context, const hook_event *e)
{
    *(int *)context += e->moment == HOOK_BEGIN;
}

/* Enqueuing is no wait: the compute stream stands still where it waits, and only there. */
static void a_collective_on_a_queue_is_waited_for_once(void **state)
{
    (void)state;
    static float send[64], sum[64];
    int waits = 0;
    queued_world w;
    open_queued(&w, "emulate:3@1GBs", 0);
    comm_span span = {.send = {send, FSDP_F32}, .recv = {sum, FSDP_F32}, .count = 64};
    comm_op op = {.unit = "layer", .n_spans = 1, .spans = &span, .stream = w.queue};
    comm_request r = COMM_REQUEST_INIT;
    assert_int_equal(hooks_add_kind(HOOK_WAIT, count_waits, &waits), FSDP_OK);
    assert_int_equal(comm_all_reduce(comm_world(w.comm), &op, &r), FSDP_OK);
    assert_int_equal(waits, 0);
    assert_int_equal(comm_wait(&r, w.queue), FSDP_OK);
    assert_int_equal(waits, 1);
    hooks_remove(count_waits, &waits);
    close_queued(&w);
}

/* No kernel adds up fp64; what a step does with the sum must not be skipped because it is not finite. */
static void sums_of_doubles_on_a_queue_stay_numbers(void **state)
{
    (void)state;
    queued_world w;
    double values[64], sum[64] = {0};
    open_queued(&w, "emulate:3@1GBs", 0);
    for (int i = 0; i < 64; i++)
        values[i] = 1.0 / (1 + i);
    comm_span span = {.send = {values, FSDP_F64}, .recv = {sum, FSDP_F64}, .count = 64};
    comm_op op = {.label = "norm", .n_spans = 1, .spans = &span, .stream = w.queue};
    comm_request r = COMM_REQUEST_INIT;
    assert_int_equal(comm_all_reduce(comm_world(w.comm), &op, &r), FSDP_OK);
    assert_int_equal(comm_wait(&r, w.queue), FSDP_OK);
    assert_memory_equal(sum, values, sizeof sum);
    span.send = span.recv;
    assert_int_equal(comm_all_reduce(comm_world(w.comm), &op, &r), FSDP_OK);
    assert_int_equal(comm_wait(&r, w.queue), FSDP_OK);
    assert_memory_equal(sum, values, sizeof sum);
    close_queued(&w);
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
    config.memory = FSDP_COMM_MEMORY_PLAIN;
    config.accumulation = FSDP_ACCUMULATE_LIBRARY;
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "--reduce_accumulation"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_read),
        cmocka_unit_test(what_is_no_link_is_refused),
        cmocka_unit_test(seconds_follow_the_slowest_link),
        cmocka_unit_test(blocks_follow_memory_and_limit),
        cmocka_unit_test(direct_sums_use_one_adapter),
        cmocka_unit_test(groups_are_those_of_the_whole_world),
        cmocka_unit_test(peers_hold_what_this_rank_holds),
        cmocka_unit_test(collectives_take_their_time),
        cmocka_unit_test(sums_on_a_queue_take_the_planned_memory),
        cmocka_unit_test(a_collective_on_a_queue_is_waited_for_once),
        cmocka_unit_test(sums_of_doubles_on_a_queue_stay_numbers),
        cmocka_unit_test(seconds_are_counted_beside_a_thread),
        cmocka_unit_test(a_job_of_several_ranks_is_no_emulation),
        cmocka_unit_test(blocks_and_memory_are_refused_without_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
