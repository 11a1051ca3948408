/* Dropout on attention weights: how many go, on what that depends, and that evaluation has none. That gradients and
 * replays follow the same weights is checked with all other operations (gradient_cases.h). */
#include "tensor/rig.h"

/* Attention over constant keys and scores of zero: without dropout every weight is 1 / KEYS, so that with values 2^j an
 * output tells which weights stayed. */
enum { SAMPLES = 4, QUERIES = 6, KEYS = 16, NUMEL = SAMPLES * QUERIES };

static float *dropped_weights(rig *r, float dropout, bool training)
{
    static float queries[SAMPLES * QUERIES], keys[SAMPLES * KEYS], values[SAMPLES * KEYS];
    for (int i = 0; i < SAMPLES * KEYS; i++)
        values[i] = ldexpf(1, i % KEYS);
    fsdp_tape *t = rig_tape(r);
    tape_reset(t, training);
    fsdp_attention_config a = {.q_heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1, .dropout = dropout};
    a.q.x = fsdp_input(t, FSDP_F32, DIMS(SAMPLES, QUERIES, 1), queries);
    a.k.x = fsdp_input(t, FSDP_F32, DIMS(SAMPLES, KEYS, 1), keys);
    a.v.x = fsdp_input(t, FSDP_F32, DIMS(SAMPLES, KEYS, 1), values);
    fsdp_tensor *y = fsdp_output(t, fsdp_attention(t, &a));
    plan p = rig_compile(r, t, NULL, false);
    rig_run(r, &p);
    float *out = rig_output(&p, y);
    rig_free(r, &p);
    return out;
}

/* Bit j: the weight of key j stayed. Of those that stay each is multiplied by 4/3. */
static uint32_t kept_keys(float out)
{
    double bits = (double)out * KEYS * 0.75;
    assert_true(fabs(bits - round(bits)) < 1e-2);
    return (uint32_t)lround(bits);
}

static void attention_drops_its_share_of_weights_anew_each_step_and_sample(void **state)
{
    rig *r = *state;
    int64_t n_kept = 0, n_drawn = 0, counts[KEYS] = {0};
    for (int step = 0; step < 200; step++) {
        r->scalars.step = 1000 + (uint64_t)step;
        float *out = dropped_weights(r, 0.25f, true), *again = dropped_weights(r, 0.25f, true);
        assert_true(same_bits(out, again, NUMEL));
        /* On another rank, whose first sample is this one's second. */
        r->scalars.first_sample++;
        float *shifted = dropped_weights(r, 0.25f, true);
        r->scalars.first_sample--;
        assert_true(same_bits(shifted, out + QUERIES, NUMEL - QUERIES));
        for (int i = 0; i < NUMEL; i++) {
            uint32_t kept = kept_keys(out[i]);
            for (int k = 0; k < KEYS; k++)
                counts[k] += kept >> k & 1;
            n_kept += __builtin_popcount(kept);
            n_drawn += KEYS;
        }
        free(out);
        free(again);
        free(shifted);
    }
    r->scalars.step = 3;
    assert_true(fabs((double)n_kept / (double)n_drawn - 0.75) < 4 * sqrt(0.25 * 0.75 / (double)n_drawn));
    for (int k = 0; k < KEYS; k++) {
        double n = (double)n_drawn / KEYS;
        assert_true(fabs((double)counts[k] / n - 0.75) < 5 * sqrt(0.25 * 0.75 / n));
    }
}

static void attention_of_another_seed_drops_other_weights(void **state)
{
    rig *r = *state;
    float *out = dropped_weights(r, 0.25f, true);
    r->random_seed++;
    float *other = dropped_weights(r, 0.25f, true);
    r->random_seed--;
    assert_false(same_bits(out, other, NUMEL));
    free(out);
    free(other);
}

static void attention_drops_nothing_in_evaluation(void **state)
{
    rig *r = *state;
    float *plain = dropped_weights(r, 0, true), *evaluated = dropped_weights(r, 0.25f, false);
    assert_true(same_bits(plain, evaluated, NUMEL));
    free(plain);
    free(evaluated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_drops_its_share_of_weights_anew_each_step_and_sample),
        cmocka_unit_test(attention_of_another_seed_drops_other_weights),
        cmocka_unit_test(attention_drops_nothing_in_evaluation),
    };
    return cmocka_run_group_tests_name("attention dropout", tests, rig_setup, rig_teardown);
}
