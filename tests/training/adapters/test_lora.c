/* Adapters under every strategy: the same bits, in every precision, with dropout, checkpointing and offload; the base
 * stays as it is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "training/training_checks.h"

static fsdp_lora_config adapters(const char *targets)
{
    fsdp_lora_config c = FSDP_LORA_CONFIG_INIT;
    c.rank = 3, c.alpha = 12;
    snprintf(c.targets, sizeof c.targets, "%s", targets);
    return c;
}

static void adapters_give_the_same_bits_under_every_strategy(void **state)
{
    (void)state;
    static const char *const targets[] = {"", "all-linear"};
    for (int model = 0; model < TRAIN_CNN; model++) {
        for (int all = 0; all < 2; all++) {
            fsdp_lora_config lora = adapters(targets[all]);
            training t = training_default((training_model)model, 1 + all);
            lora.dropout = all ? 0.1 : 0;
            lora.rslora = all;
            t.lora = &lora;
            t.config.param_dtype = all ? FSDP_BF16 : FSDP_F32;
            expect_same_bits(t, model == TRAIN_T5 ? "t5" : "llama");
        }
    }
}

static void the_world_size_changes_rounding_only(void **state)
{
    (void)state;
    fsdp_lora_config lora = adapters("q_proj,o_proj,up_proj");
    lora.dropout = 0.2;
    training t = training_default(TRAIN_LLAMA, 1);
    t.lora = &lora;
    training_result one = run(&t);
    for (int ranks = 2; ranks <= 3; ranks++) {
        t.ranks = ranks;
        training_result r = run(&t);
        for (int i = 0; i < TRAINING_STEPS; i++)
            assert_true(fabs(r.loss[i] - one.loss[i]) < 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_give_the_same_bits_under_every_strategy),
        cmocka_unit_test(the_world_size_changes_rounding_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
