/* Dropout of a model of one's own: ranks draw different masks, and together those that one rank draws for the same
 * global batch, whether the position is said or follows from the rank. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "training/support_ranks.h"

enum { SAMPLES = 12, LENGTH = 3, WIDTH = 5, HEADS = 2, HEAD = 4, ROUNDS = 3, MAX_RANKS = 4 };
enum { PLAIN = SAMPLES * LENGTH * WIDTH, ATTENDED = SAMPLES * LENGTH * HEADS * HEAD };

/* What a rank reads, at the place of its samples in the global batch. */
typedef struct masks {
    float plain[ROUNDS][PLAIN];       /* (samples, length, width) */
    float flat[ROUNDS][PLAIN];        /* the same as rows: (samples * length, width) */
    float attended[ROUNDS][ATTENDED]; /* (samples, length, heads * head) */
} masks;

typedef struct setting {
    int shares[MAX_RANKS]; /* samples of each rank */
    bool says_position;
    masks *all; /* shared by the ranks */
} setting;

static fsdp_tensor *attend(fsdp_tape *t, fsdp_tensor *x)
{
    fsdp_attention_config c = {.q = {x, 0},
                               .k = {x, HEADS * HEAD},
                               .v = {x, 2 * HEADS * HEAD},
                               .q_heads = HEADS,
                               .kv_heads = HEADS,
                               .head_dim = HEAD,
                               .scale = 1,
                               .dropout = 0.5f};
    return fsdp_attention(t, &c);
}

static fsdp_status draw(fsdp_model *m, int first, int n, int round, masks *out)
{
    static float ones[3 * ATTENDED];
    int64_t shape[] = {n, LENGTH, WIDTH}, rows[] = {n * LENGTH, WIDTH}, wide[] = {n, LENGTH, 3 * HEADS * HEAD};
    for (int i = 0; i < 3 * ATTENDED; i++)
        ones[i] = 1;
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *plain = fsdp_dropout(t, fsdp_scale(t, fsdp_input(t, FSDP_F32, 3, shape, ones), 1), 0.5f);
    fsdp_tensor *flat = fsdp_dropout(t, fsdp_scale(t, fsdp_input(t, FSDP_F32, 2, rows, ones), 1), 0.5f);
    fsdp_tensor *attended = attend(t, fsdp_scale(t, fsdp_input(t, FSDP_F32, 3, wide, ones), 1));
    fsdp_tensor *x = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, rows, ones));
    fsdp_output(t, plain), fsdp_output(t, flat), fsdp_output(t, attended);
    FSDP_TRY(fsdp_backward(t, fsdp_mse(t, x, fsdp_input(t, FSDP_F32, 2, rows, ones)), true));
    int64_t numel = (int64_t)n * LENGTH * WIDTH, at = (int64_t)first * LENGTH * WIDTH;
    FSDP_TRY(fsdp_read(plain, out->plain[round] + at, numel));
    FSDP_TRY(fsdp_read(flat, out->flat[round] + at, numel));
    return fsdp_read(attended, out->attended[round] + (int64_t)first * LENGTH * HEADS * HEAD,
                     (int64_t)n * LENGTH * HEADS * HEAD);
}

static fsdp_status run_rank(int rank, void *context)
{
    const setting *s = context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_world *w;
    fsdp_model *m;
    int first = 0;
    for (int r = 0; r < rank; r++)
        first += s->shares[r];
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 20;
    c.seed = 9;
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(fsdp_shard(w, fsdp_linear_new(WIDTH, WIDTH, false), &c, &m));
    if (s->says_position)
        fsdp_set_position(m, first);
    for (int round = 0; round < ROUNDS; round++)
        FSDP_TRY(draw(m, first, s->shares[rank], round, s->all));
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

static masks *run(setting s, int ranks)
{
    s.all = mmap(NULL, sizeof *s.all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s.all != MAP_FAILED);
    assert_true(ranks_run(ranks, run_rank, &s));
    return s.all;
}

static void ranks_draw_what_one_rank_draws_for_the_same_batch(void **state)
{
    (void)state;
    const setting settings[] = {{.shares = {6, 6}}, {.shares = {3, 3, 3, 3}}};
    masks *alone = run((setting){.shares = {SAMPLES}}, 1);
    for (int i = 0; i < 2; i++) {
        masks *together = run(settings[i], i ? 4 : 2);
        assert_memory_equal(together, alone, sizeof *alone);
        munmap(together, sizeof *together);
    }
    munmap(alone, sizeof *alone);
}

/* No two ranks, and no two micro-batches, have the same mask. */
static void masks_differ_between_ranks_and_micro_batches(void **state)
{
    (void)state;
    masks *all = run((setting){.shares = {6, 6}}, 2);
    enum { HALF = PLAIN / 2, HALF_ATTENDED = ATTENDED / 2 };
    for (int round = 0; round < ROUNDS; round++) {
        assert_memory_not_equal(all->plain[round], all->plain[round] + HALF, HALF * sizeof(float));
        assert_memory_not_equal(all->flat[round], all->flat[round] + HALF, HALF * sizeof(float));
        assert_memory_not_equal(all->attended[round], all->attended[round] + HALF_ATTENDED,
                                HALF_ATTENDED * sizeof(float));
        for (int other = 0; other < round; other++)
            assert_memory_not_equal(all->plain[round], all->plain[other], sizeof all->plain[0]);
    }
    munmap(all, sizeof *all);
}

/* Unequal shares need to be told apart; rows of one sample are not samples, so `flat` is left out. */
static void a_position_that_is_said_serves_unequal_shares(void **state)
{
    (void)state;
    masks *alone = run((setting){.shares = {SAMPLES}, .says_position = true}, 1);
    masks *together = run((setting){.shares = {5, 1, 6}, .says_position = true}, 3);
    assert_memory_equal(together->plain, alone->plain, sizeof alone->plain);
    assert_memory_equal(together->attended, alone->attended, sizeof alone->attended);
    munmap(together, sizeof *together);
    munmap(alone, sizeof *alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_draw_what_one_rank_draws_for_the_same_batch),
        cmocka_unit_test(masks_differ_between_ranks_and_micro_batches),
        cmocka_unit_test(a_position_that_is_said_serves_unequal_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
