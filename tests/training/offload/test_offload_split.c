/* Offloaded units that device and processor update together: whatever part of a unit goes through the device, every
 * loss, norm and bit is that of the processor alone. On the CPU both are the same processor, but the way through the
 * device's memory is the real one; differential/test_shaken_schedule.c has it on streams that are real queues. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "training/support_training.h"

static void expect_same_bits(training t, const char *what)
{
    training_result alone, shared;
    t.config.cpu_offload = true;
    t.config.cpu_offload_split = 0;
    assert_true(training_run(&t, &alone));
    t.config.cpu_offload_split = 1;
    assert_true(training_run(&t, &shared));
    if (memcmp(alone.loss, shared.loss, sizeof alone.loss) != 0 ||
        memcmp(alone.norm, shared.norm, sizeof alone.norm) != 0)
        fail_msg("%s on %d ranks: losses or norms differ", what, t.ranks);
    if (alone.hash != shared.hash || alone.average_hash != shared.average_hash)
        fail_msg("%s on %d ranks: the parameters at the end differ", what, t.ranks);
    assert_true(shared.memory > alone.memory); /* what passes through the device */
}

static void no_bit_depends_on_the_split_in_any_precision(void **state)
{
    (void)state;
    const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16}; /* the last skips its first steps: they overflow */
    for (int i = 0; i < 3; i++) {
        training t = training_default(TRAIN_LLAMA, 1 + i % 2);
        t.config.param_dtype = types[i];
        t.state_dtype = i == 0 ? FSDP_F32 : FSDP_BF16;
        expect_same_bits(t, "a precision");
    }
    training t = training_default(TRAIN_LLAMA, 2);
    t.config.reduce_dtype = t.config.gradient_dtype = FSDP_BF16;
    t.micro_batches = 1;
    expect_same_bits(t, "gradients of 16 bits");
}

static void no_bit_depends_on_the_split_with_any_optimizer(void **state)
{
    (void)state;
    const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_ADAM, FSDP_SGD};
    const fsdp_optimizer_group groups[] = {{.pattern = "*proj*", .lr_factor = 0.5f, .weight_decay = 0.2f},
                                           {.pattern = "*norm*", .lr_factor = 2.0f, .weight_decay = 0.0f}};
    for (int i = 0; i < 3; i++) {
        training t = training_default(TRAIN_LLAMA, 1 + i % 2);
        t.optimizer = kinds[i];
        t.average = 0.9f;
        t.groups = groups;
        t.n_groups = 2;
        t.state_dtype = i == 1 ? FSDP_BF16 : FSDP_F32;
        expect_same_bits(t, "groups and an average");
    }
}

static void no_bit_depends_on_the_split_of_uneven_shards(void **state)
{
    (void)state;
    const int weights[] = {5, 2};
    training t = training_default(TRAIN_T5, 2);
    t.config.shard_weights = weights;
    t.config.sync_each_micro_batch = false;
    expect_same_bits(t, "uneven shards");
    expect_same_bits(training_default(TRAIN_CNN, 1), "odd sizes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_bit_depends_on_the_split_in_any_precision),
        cmocka_unit_test(no_bit_depends_on_the_split_with_any_optimizer),
        cmocka_unit_test(no_bit_depends_on_the_split_of_uneven_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
