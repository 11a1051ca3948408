/* Sums of 16-bit values over NCCL, between processes that share the first GPU: the bits of a serial loop over ranks in
 * fp32, in many rounds, from host and device memory. Skipped without a GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "comm/cases.h"
#include "comm/gpu_ranks.h"

typedef struct gpu_copy {
    char *send, *recv;
    size_t send_bytes, recv_bytes;
} gpu_copy;

/* The same case with its buffers on the GPU. In place, recv lies in send. */
static gpu_copy copy_to_gpu(gpu_rank *g, const collective_case *k, case_span *p)
{
    gpu_copy c = {.send_bytes = (size_t)p->send_numel * fsdp_dtype_size(k->from),
                  .recv_bytes = (size_t)p->recv_numel * fsdp_dtype_size(k->to)};
    void *send, *recv = NULL;
    RANK_CHECK(g->device->allocate(g->device, MEMORY_DEVICE, c.send_bytes + 1, &send) == FSDP_OK);
    put(g, send, p->span.send.p, c.send_bytes);
    c.send = send;
    if (k->in_place) {
        c.recv = c.send + ((char *)p->span.recv.p - (char *)p->span.send.p);
        return c;
    }
    RANK_CHECK(g->device->allocate(g->device, MEMORY_DEVICE, c.recv_bytes + 1, &recv) == FSDP_OK);
    put(g, recv, p->span.recv.p, c.recv_bytes);
    c.recv = recv;
    return c;
}

static void run_on_gpu(gpu_rank *g, const collective_case *k, comm_group *group, int64_t step)
{
    case_memory none = {.shared = NULL};
    case_span spans[CASE_PIECES];
    comm_span given[CASE_PIECES];
    gpu_copy copies[CASE_PIECES];
    comm_request r = COMM_REQUEST_INIT;
    for (int i = 0; i < k->n_spans; i++) {
        case_prepare(k, group, &none, i, &spans[i]);
        given[i] = spans[i].span;
        copies[i] = copy_to_gpu(g, k, &spans[i]);
        given[i].send.p = copies[i].send;
        given[i].recv.p = copies[i].recv;
    }
    comm_op op = {.unit = "layers.0", .step = step, .n_spans = k->n_spans, .spans = given, .stream = g->stream};
    RANK_CHECK((k->kind == COMM_ALL_REDUCE ? comm_all_reduce : comm_reduce_scatter)(group, &op, &r) == FSDP_OK);
    RANK_CHECK(comm_wait(&r, g->stream) == FSDP_OK);
    for (int i = 0; i < k->n_spans; i++) {
        put(g, spans[i].span.recv.p, copies[i].recv, copies[i].recv_bytes);
        case_verify(k, group, i, &spans[i]);
        g->device->release(g->device, MEMORY_DEVICE, copies[i].send, copies[i].send_bytes + 1);
        if (!k->in_place)
            g->device->release(g->device, MEMORY_DEVICE, copies[i].recv, copies[i].recv_bytes + 1);
        free(spans[i].before);
        free(spans[i].kept);
        free(spans[i].kept_send);
    }
}

/* Forms are bits: unequal, in place, added, all_reduce, result of the values' type, fp16, on the GPU. */
static bool sums_in_form(gpu_rank *g, comm_group *group, int64_t count, int form, int64_t step)
{
    case_memory none = {.shared = NULL};
    collective_case k = {.kind = form & 8 ? COMM_ALL_REDUCE : COMM_REDUCE_SCATTER,
                         .from = form & 32 ? FSDP_F16 : FSDP_BF16,
                         .count = count,
                         .n_spans = 1 + (int)(step % CASE_PIECES),
                         .unequal = form & 1,
                         .in_place = form & 2,
                         .add = form & 4};
    k.to = form & 16 ? k.from : FSDP_F32;
    if ((k.unequal && k.kind == COMM_ALL_REDUCE) || (k.in_place && (k.add || k.to != k.from)))
        return false;
    if (form & 64)
        run_on_gpu(g, &k, group, step);
    else
        case_run(&k, group, &none, step);
    return true;
}

/* In many rounds, as the staging memory is small. */
static void summing(ranks *all, int rank, void *context)
{
    static const int64_t counts[] = {1, 65, 1003, 9001};
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    comm_group *shard, *replica;
    int n = 0;
    (void)context;
    config.staging_bytes = 4096;
    RANK_CHECK(comm_open(&config, &g.comm) == FSDP_OK);
    RANK_CHECK(comm_group_split_by_size(g.comm, 2, &shard, &replica) == FSDP_OK);
    for (int form = 0; form < 128; form++) {
        comm_group *group = comm_group_size(replica) > 1 && form % 5 == 0 ? replica : comm_world(g.comm);
        for (int i = 0; i < 4; i++)
            n += sums_in_form(&g, group, counts[i], form, n);
    }
    if (rank == 0)
        printf("%d sums on %d ranks\n", n, all->n);
    gpu_close(&g);
}

static void sums_of_16_bits_have_the_bits_of_a_loop_over_ranks(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n += 2) {
        ranks all = ranks_make(n);
        bool good = ranks_run(&all, summing, NULL);
        ranks_free(&all);
        assert_true(good);
    }
}

/* 200 and many small numbers: NCCL's ring loses those that do not change 8 bits, a sum in fp32 does not. */
static float sum_of_small(gpu_rank *g, int n, void *memory, int64_t *received)
{
    enum { N = 1024 };
    uint16_t host[4 * N];
    float sums[N];
    float *recv = (float *)((char *)memory + sizeof host);
    for (int i = 0; i < n * N; i++)
        host[i] = round_to_bf16(comm_rank(g->comm) == 0 ? 200.0f : 0.375f);
    put(g, memory, host, sizeof host);
    comm_span span = {.send = {memory, FSDP_BF16}, .recv = {recv, FSDP_F32}, .count = N};
    comm_op op = {.unit = "layers.1", .n_spans = 1, .spans = &span, .stream = g->stream};
    comm_request r = COMM_REQUEST_INIT;
    int64_t before = comm_group_bytes(comm_world(g->comm));
    RANK_CHECK(comm_reduce_scatter(comm_world(g->comm), &op, &r) == FSDP_OK);
    RANK_CHECK(comm_wait(&r, g->stream) == FSDP_OK);
    *received = comm_group_bytes(comm_world(g->comm)) - before;
    RANK_CHECK(*received == (n - 1) * N * 2);
    put(g, sums, recv, sizeof sums);
    return sums[N / 2];
}

static void accumulating(ranks *all, int rank, void *context)
{
    fsdp_reduce_accumulation how = *(const fsdp_reduce_accumulation *)context;
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    void *memory;
    int64_t received;
    config.accumulation = how;
    RANK_CHECK(comm_open(&config, &g.comm) == FSDP_OK);
    RANK_CHECK(comm_allocate(g.comm, 1 << 16, &memory) == FSDP_OK);
    float sum = sum_of_small(&g, all->n, memory, &received), exact = 200 + 0.375f * (float)(all->n - 1);
    printf("rank %d: %s sums 200 and %d times 0.375 to %g\n", rank, how ? "the library" : "fp32", all->n - 1,
           (double)sum);
    RANK_CHECK(how == FSDP_ACCUMULATE_FP32 ? sum == exact : fabsf(sum - exact) <= 2);
    gpu_close(&g);
}

static void fp32_keeps_what_16_bits_lose(void **state)
{
    (void)state;
    for (fsdp_reduce_accumulation how = FSDP_ACCUMULATE_FP32; how <= FSDP_ACCUMULATE_LIBRARY; how++) {
        ranks all = ranks_make(4);
        bool good = ranks_run(&all, accumulating, &how);
        ranks_free(&all);
        assert_true(good);
    }
}

static void accumulating_in_two_ways(ranks *all, int rank, void *context)
{
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    uint16_t value = 0;
    comm_span span = {.send = {&value, FSDP_BF16}, .recv = {&value, FSDP_BF16}, .count = 1};
    comm_op op = {.label = "something", .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    (void)context;
    config.accumulation = rank == 1 ? FSDP_ACCUMULATE_LIBRARY : FSDP_ACCUMULATE_FP32;
    RANK_CHECK(comm_open(&config, &g.comm) == FSDP_OK);
    fsdp_status status = comm_all_reduce(comm_world(g.comm), &op, &r);
    status = status == FSDP_OK ? comm_wait(&r, NULL) : status;
    RANK_CHECK(status == FSDP_ERR_PEER);
    RANK_CHECK(strstr(fsdp_last_error(), "sum in fp32 by its owner"));
    gpu_close(&g);
}

static void ranks_that_accumulate_in_two_ways_are_told(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, accumulating_in_two_ways, NULL);
    ranks_free(&all);
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_16_bits_have_the_bits_of_a_loop_over_ranks),
        cmocka_unit_test(fp32_keeps_what_16_bits_lose),
        cmocka_unit_test(ranks_that_accumulate_in_two_ways_are_told),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests_name("sums over NCCL", tests, NULL, NULL);
}
