/* Direct sums without a GPU: threads are the ranks, the CPU's kernel adds, and copies between the threads' buffers
 * stand in for the links. Every sum has the bits of a serial loop over ranks, in one round or in many, and keeps to the
 * staging memory that was planned for it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "base/host/threads.h"
#include "base/log.h"
#include "comm/cases.h"
#include "comm/direct.h"
#include "support/draw.h"

static const comm_backend queued = {.name = "test", .enqueues = true};

static int hosts = 1, ranks_of_a_host = 8, stride = 1; /* from one member of the group to the next */
static device *cpu;
static stream *queue;

typedef struct team {
    int n;
    const collective_case *what;
    size_t staging_bytes;
    pthread_barrier_t all_here;
    const char *sends[RANKS_MAX], *sums[RANKS_MAX];
    _Atomic int64_t received[RANKS_MAX];
} team;

typedef struct member {
    team *team;
    comm comm;
    comm_group group;
    int ranks[RANKS_MAX];
} member;

static void meet(team *t)
{
    (void)pthread_barrier_wait(&t->all_here);
}

/* From the peers' own buffers, which they have not yet written to. */
static fsdp_status scatter(void *context, const direct_sum *d, int64_t round, void *staging)
{
    team *t = context;
    int rank = d->group->rank;
    direct_part mine = direct_part_of(d, round, rank);
    meet(t);
    for (int peer = 0; peer < t->n; peer++) {
        if (peer == rank)
            continue;
        memcpy(direct_slot(d, staging, peer), t->sends[peer] + 2 * mine.first, 2 * (size_t)mine.n);
        atomic_fetch_add(&t->received[rank], 2 * mine.n);
    }
    meet(t);
    return FSDP_OK;
}

static fsdp_status gather(void *context, const direct_sum *d, int64_t round, buffer whole)
{
    team *t = context;
    int rank = d->group->rank;
    int64_t size = (int64_t)fsdp_dtype_size(whole.dtype), first = direct_part_of(d, round, 0).first;
    t->sums[rank] = whole.p;
    meet(t);
    for (int peer = 0; peer < t->n; peer++) {
        direct_part part = direct_part_of(d, round, peer);
        if (peer == rank)
            continue;
        memcpy((char *)whole.p + (part.first - first) * size, t->sums[peer] + (part.first - first) * size,
               (size_t)(part.n * size));
        atomic_fetch_add(&t->received[rank], part.n * size);
    }
    meet(t);
    return FSDP_OK;
}

/* The parts of a round cover it, none longer than what staging memory has room for. */
static void check_parts(const direct_sum *d)
{
    for (int64_t round = 0; round < d->n_rounds; round++)
        for (int rank = 0; rank < d->group->size; rank++) {
            direct_part part = direct_part_of(d, round, rank);
            RANK_CHECK(part.n >= 0);
            if (rank == d->group->rank)
                RANK_CHECK(part.n <= d->stride);
            if (rank > 0 && !d->scatters) {
                direct_part before = direct_part_of(d, round, rank - 1);
                RANK_CHECK(before.first + before.n == part.first && part.first % 8 == 0);
            }
        }
}

static void sum_once(member *m, comm_request *r, int64_t numel)
{
    team *t = m->team;
    size_t bytes = direct_staging_bytes(&m->comm.config, r->kind, t->n, numel);
    char *staging = aligned_alloc(256, (bytes + 511) / 256 * 256);
    memset(staging, 0xff, (bytes + 511) / 256 * 256);
    direct_carrier carrier = {.stream = queue, .context = t, .scatter = scatter, .gather = gather};
    direct_sum sum = direct_begin(r, r->op.spans);
    RANK_CHECK(direct_is(r, r->op.spans));
    check_parts(&sum);
    RANK_CHECK(direct_run(&sum, &carrier, staging) == FSDP_OK);
    for (size_t i = bytes; i < (bytes + 511) / 256 * 256; i++)
        RANK_CHECK((unsigned char)staging[i] == 0xff);
    free(staging);
}

static void *be_member(void *context)
{
    member *m = context;
    team *t = m->team;
    case_memory none = {.shared = NULL};
    case_span span;
    case_prepare(t->what, &m->group, &none, 0, &span);
    t->sends[m->group.rank] = span.span.send.p;
    comm_request r = {.kind = t->what->kind, .group = &m->group, .op = {.n_spans = 1, .spans = &span.span}};
    int64_t expected = request_received(&r);
    sum_once(m, &r, span.recv_numel);
    case_verify(t->what, &m->group, 0, &span);
    /* The last rank sums up to nine elements for every rank more than the others. */
    int64_t got = atomic_load(&t->received[m->group.rank]);
    RANK_CHECK(llabs(got - expected) <= (t->what->kind == COMM_ALL_REDUCE ? 9 * 6 * t->n * t->n : 0));
    meet(t);
    free(span.before);
    free(span.kept);
    free(span.kept_send);
    return NULL;
}

static void run_team(int n, const collective_case *what, size_t staging_bytes)
{
    static member members[RANKS_MAX];
    team t = {.n = n, .what = what, .staging_bytes = staging_bytes};
    pthread_t threads[RANKS_MAX];
    pthread_barrier_init(&t.all_here, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        memset(&members[i], 0, sizeof members[i]);
        members[i].team = &t;
        members[i].comm.backend = &queued;
        members[i].comm.rank = i;
        members[i].comm.n_nodes = hosts;
        members[i].comm.local_world_size = ranks_of_a_host;
        members[i].comm.config.device = cpu;
        members[i].comm.config.staging_bytes = staging_bytes;
        for (int k = 0; k < n; k++)
            members[i].ranks[k] = k * stride;
        members[i].group = (comm_group){.comm = &members[i].comm, .rank = i, .size = n, .members = members[i].ranks};
        assert_int_equal(pthread_create(&threads[i], NULL, be_member, &members[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&t.all_here);
}

/* Bits: unequal, in place, added, all_reduce, result of the values' type, fp16. False: these do not go together. */
static bool make_case(int form, int64_t count, collective_case *out)
{
    collective_case k = {.kind = form & 8 ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER,
                         .from = form & 32 ? FSDP_F16 : FSDP_BF16,
                         .count = count,
                         .n_spans = 1,
                         .unequal = form & 1,
                         .in_place = form & 2,
                         .add = form & 4};
    k.to = form & 16 ? k.from : FSDP_F32;
    *out = k;
    return !(k.unequal && k.kind == COMM_ALL_REDUCE) && !(k.in_place && (k.add || k.to != k.from));
}

static void direct_sums_have_the_bits_of_a_loop_over_ranks(void **state)
{
    static const int64_t counts[] = {1, 9, 640, 9001};
    static const int sizes[] = {2, 3, 8};
    (void)state;
    for (int form = 0; form < 64; form++)
        for (int i = 0; i < 12; i++) {
            collective_case k;
            if (make_case(form, counts[i % 4], &k))
                run_team(sizes[i / 4], &k, 4096);
        }
}

static void random_sums_have_them_in_any_number_of_rounds(void **state)
{
    uint64_t random = 7;
    (void)state;
    for (int i = 0; i < 150; i++) {
        collective_case k;
        int form = (int)(draw_word(&random) % 64), n = 2 + (int)(draw_word(&random) % 7);
        int64_t count = (int64_t)(draw_word(&random) % (draw_word(&random) % 2 ? 300 : 6000));
        if (make_case(form, count, &k))
            run_team(n, &k, (size_t)1 << (8 + draw_word(&random) % 10));
    }
}

static _Atomic int said;
static const char *who, *how_much;

static void hear(void *context, fsdp_log_level level, const char *text)
{
    (void)context;
    said += who && level == FSDP_LOG_WARNING && strstr(text, who) && strstr(text, how_much) ? 1 : 100;
}

/* Once, by rank 0, and not where a group has one host, or one rank on each. */
static void the_cost_between_hosts_is_said(void **state)
{
    (void)state;
    static const struct {
        int n, nodes, here, stride, form;
        const char *who, *how_much;
    } worlds[] = {
        {8, 2, 4, 1, 0, "over 8 ranks on 2 hosts", "2.3 times"},
        {8, 4, 8, 4, 0, "over 8 ranks on 4 hosts", "1.7 times"},  /* replicas of shards on half a host */
        {8, 2, 4, 1, 24, "over 8 ranks on 2 hosts", "1.6 times"}, /* an all_reduce gathers its sums as a ring does, */
        {8, 2, 4, 1, 8, "over 8 ranks on 2 hosts", "2.1 times"},  /* these in fp32 */
        {8, 1, 8, 1, 0, NULL, NULL},
        {8, 8, 1, 1, 0, NULL, NULL},
        {4, 2, 4, 1, 0, NULL, NULL},
        {8, 8, 4, 4, 0, NULL, NULL}, /* hybrid on more hosts than a host has ranks */
    };
    fsdp_log_set_sink(hear, NULL, FSDP_LOG_INFO);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        collective_case k;
        assert_true(make_case(worlds[i].form, 9, &k));
        hosts = worlds[i].nodes;
        ranks_of_a_host = worlds[i].here;
        stride = worlds[i].stride;
        who = worlds[i].who;
        how_much = worlds[i].how_much;
        said = 0;
        run_team(worlds[i].n, &k, 4096);
        assert_int_equal(said, who ? 1 : 0);
    }
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    hosts = stride = 1;
}

/* What is planned is a round's, however long the sum. */
static void staging_memory_is_bounded(void **state)
{
    comm_config config = COMM_CONFIG_INIT;
    (void)state;
    config.backend = "nccl";
    config.job.world_size = config.job.local_world_size = 8;
    for (int kind = COMM_REDUCE_SCATTER; kind <= COMM_ALL_REDUCE; kind++) {
        size_t most = comm_staging_bytes(&config, (comm_kind)kind, 8, (int64_t)1 << 40, FSDP_BF16, FSDP_F32, false);
        assert_in_range(most, 127 << 20, (128 << 20) + (8 << 10));
        assert_int_equal(comm_staging_bytes(&config, (comm_kind)kind, 8, 0, FSDP_BF16, FSDP_F32, false), 0);
        assert_int_equal(comm_staging_bytes(&config, (comm_kind)kind, 1, 1000, FSDP_BF16, FSDP_F32, false), 0);
        assert_int_equal(comm_staging_bytes(&config, (comm_kind)kind, 8, 1000, FSDP_F32, FSDP_F32, false), 0);
    }
    /* seven peers, of each a thousand elements in lines of 128, in whole pages */
    assert_int_equal(comm_staging_bytes(&config, COMM_REDUCE_SCATTER, 8, 1000, FSDP_F16, FSDP_F16, false), 16384);
    config.accumulation = FSDP_ACCUMULATE_LIBRARY; /* the sum, before it is widened */
    assert_int_equal(comm_staging_bytes(&config, COMM_REDUCE_SCATTER, 8, 5000, FSDP_BF16, FSDP_F32, false), 12288);
    assert_int_equal(comm_staging_bytes(&config, COMM_REDUCE_SCATTER, 8, 5000, FSDP_BF16, FSDP_BF16, false), 0);
    assert_int_equal(comm_staging_bytes(&config, COMM_REDUCE_SCATTER, 8, 5000, FSDP_F32, FSDP_F32, true), 20480);
    config.backend = "shm";
    assert_int_equal(comm_staging_bytes(&config, COMM_REDUCE_SCATTER, 8, 5000, FSDP_BF16, FSDP_F32, false), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct_sums_have_the_bits_of_a_loop_over_ranks),
        cmocka_unit_test(random_sums_have_them_in_any_number_of_rounds),
        cmocka_unit_test(staging_memory_is_bounded),
        cmocka_unit_test(the_cost_between_hosts_is_said),
    };
    threads_set(1, 1);
    if (device_open_cpu(CPU_GEMM_AUTO, &cpu) != FSDP_OK || cpu->stream_create(cpu, 0, &queue) != FSDP_OK)
        return 1;
    int failed = cmocka_run_group_tests_name("direct sums", tests, NULL, NULL);
    cpu->stream_free(queue);
    device_close(cpu);
    return failed;
}
