/* Links stood in for by blocks and by copy engines (comm/emulate): bytes and times. Skipped (77) where there is no GPU.
 */
#include "device/cuda_checks.h"

#include "base/clock.h"

/* A link stood in for: all bytes arrive, repeated as often as they must be, and not before their time. */
static void check_paced_moves(int blocks)
{
    bench b = start_bench();
    const size_t sizes[][3] = {{16 << 20, 48 << 20, 48 << 20},
                               {1000, 3333, 3333},
                               {4096, 1024, 1 << 20},
                               {64 << 20, 256 << 20, blocks == 5 ? 3000000000 : 9000000000}};
    /* from, to, moved; the last at 450 GB/s, or 30 a block */
    for (int i = 0; i < 4; i++) {
        size_t from_bytes = sizes[i][0], to_bytes = sizes[i][1], bytes = sizes[i][2];
        uint8_t *host = malloc(from_bytes), *got = malloc(to_bytes);
        for (size_t k = 0; k < from_bytes; k++)
            host[k] = (uint8_t)(k * 2654435761u >> 11);
        paced_move_args a = {.from = bench_take(&b, from_bytes),
                             .to = bench_take(&b, to_bytes),
                             .from_bytes = from_bytes,
                             .to_bytes = to_bytes,
                             .bytes = bytes,
                             .seconds = 0.02,
                             .blocks = blocks};
        MUST(gpu->copy(b.s, (void *)a.from, host, from_bytes));
        MUST(gpu->stream_synchronize(b.s));
        paced_move_args first = a;
        first.bytes = first.from_bytes = first.to_bytes = 1000;
        MUST(gpu->paced_move(b.s, &first)); /* the first launch loads the kernel */
        MUST(gpu->stream_synchronize(b.s));
        double begun = clock_seconds();
        MUST(gpu->paced_move(b.s, &a));
        MUST(gpu->stream_synchronize(b.s));
        double took = clock_seconds() - begun;
        MUST(gpu->copy(b.s, got, a.to, to_bytes));
        MUST(gpu->stream_synchronize(b.s));
        print_message("%zu bytes with %d blocks: %.4f s\n", bytes, blocks, took);
        if (took < 0.0199 || took > 0.03)
            fail_msg("moving %zu bytes with %d blocks took %.4f s instead of 0.02", bytes, blocks, took);
        for (size_t k = 0; k < to_bytes && bytes <= to_bytes; k++)
            if (got[k] != host[k % from_bytes])
                fail_msg("byte %zu of %zu did not arrive", k, to_bytes);
        free(got);
        free(host);
        bench_clear(&b);
    }
    end_bench(&b);
}

/* Copies need no room on a multiprocessor: beside blocks that fill all of them they begin, and end in their time. */
static void paced_copies_pass_busy_multiprocessors(void **state)
{
    (void)state;
    bench b = start_bench();
    enum { SIZE = 64 << 20 };
    const int filling = 4 * gpu->gpu->n_multiprocessors; /* of 512 threads */
    stream *copies;
    event *from, *to;
    double took;
    MUST(gpu->stream_create(gpu, 1, &copies));
    MUST(gpu->event_create(gpu, &from));
    MUST(gpu->event_create(gpu, &to));
    void *memory = bench_take(&b, SIZE), *other = bench_take(&b, SIZE);
    paced_move_args copy = {memory, other, SIZE / 2, SIZE, (size_t)4 << 30, 0.02, 0};
    paced_move_args busy = {memory, other, SIZE / 2, SIZE, SIZE, 0.1, filling};
    for (int i = 0; i < 2; i++) { /* the first loads the kernel and starts the thread */
        MUST(gpu->paced_move(b.s, &busy));
        MUST(gpu->event_record(copies, from));
        MUST(gpu->paced_move(copies, &copy));
        MUST(gpu->event_record(copies, to));
        MUST(gpu->event_elapsed(from, to, &took));
        MUST(gpu->stream_synchronize(b.s));
    }
    print_message("beside %d busy blocks: %.3f ms\n", filling, took);
    if (took < 19.9 || took > 30)
        fail_msg("copies for 20 ms took %.3f ms beside %d busy blocks", took, filling);
    gpu->event_free(from);
    gpu->event_free(to);
    gpu->stream_free(copies);
    bench_clear(&b);
    end_bench(&b);
}

static void paced_moves_take_their_time(void **state)
{
    (void)state;
    check_paced_moves(24);
    check_paced_moves(16);
    check_paced_moves(5); /* no cluster of four */
    check_paced_moves(0); /* copy engines */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paced_moves_take_their_time),
        cmocka_unit_test(paced_copies_pass_busy_multiprocessors),
    };
    int unusable = open_first_gpu();
    if (unusable)
        return unusable;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpu->close(gpu);
    return failed;
}
