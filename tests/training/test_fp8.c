/* Training with linear layers in 8 bits: every strategy and schedule gives the same bits, layers can be left out by
 * name, and the curve stays near that of full precision. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <fsdp/models.h>
#include <fsdp/status.h>

#include "tensor/op.h"
#include "training/training_checks.h"

static training fp8_training(int ranks)
{
    training t = training_default(TRAIN_LLAMA, ranks);
    t.config.fp8 = FSDP_FP8_HYBRID;
    return t;
}

static void every_strategy_gives_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) { /* the last with 72 tokens each, no multiple of 16 */
        training_result first = {.hash = 0};
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            training t = fp8_training(ranks);
            t.config.strategy = (fsdp_strategy)s;
            training_result r = run(&t);
            if (s == FSDP_FULL)
                first = r;
            if (r.hash != first.hash)
                fail_msg("%d ranks: %s and full differ", ranks, fsdp_strategy_name((fsdp_strategy)s));
        }
    }
}

static void checkpointing_and_offload_keep_every_bit(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks += 2) { /* 144 tokens each, then 72 */
        training t = fp8_training(ranks);
        uint64_t hash = run(&t).hash;
        t.config.checkpointing = FSDP_CHECKPOINT_FULL;
        assert_true(run(&t).hash == hash);
        t.config.checkpointing = FSDP_CHECKPOINT_SELECTIVE;
        assert_true(run(&t).hash == hash);
        t.config.checkpointing = FSDP_CHECKPOINT_NONE;
        t.config.recompute_cheap = true;
        assert_true(run(&t).hash == hash);
        t.config.cpu_offload = true;
        assert_true(run(&t).hash == hash);
    }
}

static void layers_are_left_out_by_name(void **state)
{
    (void)state;
    static const char *const all[] = {"*"}, *const none[] = {"no.such.*"};
    training t = fp8_training(1);
    expect_layers_left_out(t);
    t.config.n_fp8_skip = 1;
    training_result refused;
    t.config.fp8_skip = none;
    assert_false(training_run(&t, &refused)); /* a pattern that matches nothing is an error */
    t.config.fp8_skip = all;
    assert_false(training_run(&t, &refused)); /* and so is one that leaves no layer */
}

static fsdp_tensor *logits_of(fsdp_model *m, fsdp_tape *t, bool t5)
{
    static const int32_t ids[16] = {1, 2, 3}, mask[16] = {1, 1, 1};
    const int64_t shape[] = {1, 16};
    fsdp_tensor *x = fsdp_input(t, FSDP_I32, 2, shape, ids);
    return t5 ? fsdp_t5_logits(fsdp_model_module(m), t, x, fsdp_input(t, FSDP_I32, 2, shape, mask),
                               fsdp_input(t, FSDP_I32, 2, shape, ids))
              : fsdp_decoder_logits(fsdp_model_module(m), t, x);
}

/* The loss's products with the head are not in 8 bits, so those that give logits must not be either: samples come from
 * the model that is trained. */
static void a_head_gives_logits_in_param_dtype(void **state)
{
    (void)state;
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    config.device = "cpu";
    fsdp_world *w;
    assert_int_equal(fsdp_world_open(&config, &w), FSDP_OK);
    for (int kind = 0; kind < 4; kind++) {
        fsdp_decoder_config decoder = FSDP_DECODER_CONFIG_INIT;
        fsdp_t5_config t5 = FSDP_T5_CONFIG_INIT;
        fsdp_config c = FSDP_CONFIG_INIT;
        fsdp_module *net;
        fsdp_model *m;
        decoder.vocabulary = t5.vocabulary = 64;
        decoder.hidden = t5.hidden = 32;
        decoder.intermediate = t5.intermediate = 64;
        decoder.positions = 64;
        decoder.layers = t5.layers = t5.decoder_layers = 1;
        decoder.heads = decoder.kv_heads = t5.heads = 2;
        decoder.head_dim = t5.head_dim = 16;
        decoder.tied = t5.tied = kind & 1;
        c.fp8 = FSDP_FP8_HYBRID;
        assert_int_equal(kind & 2 ? fsdp_t5_new(&t5, &net) : fsdp_decoder_new(&decoder, &net), FSDP_OK);
        assert_int_equal(fsdp_shard(w, net, &c, &m), FSDP_OK);
        fsdp_tape *t = fsdp_begin_evaluation(m);
        fsdp_tensor *logits = fsdp_output(t, logits_of(m, t, kind & 2));
        int in_8_bits = 0;
        for (int i = 0; i < t->n_nodes; i++)
            in_8_bits += strcmp(t->nodes[i]->op->name, "linear_fp8") == 0;
        assert_int_equal(fsdp_evaluate(t), FSDP_OK);
        assert_true(in_8_bits >= 4);
        assert_string_equal(logits->producer->op->name, "linear");
        fsdp_model_free(m);
    }
    fsdp_world_close(w);
}

static void asked_for_where_no_layer_can_have_it_is_an_error(void **state)
{
    (void)state;
    training t = training_default(TRAIN_T5, 2); /* 24 wide: no multiple of 16 */
    training_result refused;
    t.config.fp8 = FSDP_FP8_HYBRID;
    assert_false(training_run(&t, &refused));
}

static void the_plan_is_what_is_taken(void **state)
{
    (void)state;
    for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
        training t = fp8_training(2);
        t.config.strategy = (fsdp_strategy)s;
        training_result r = run(&t);
        assert_int_equal(r.memory, r.planned_memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_same_bits),
        cmocka_unit_test(checkpointing_and_offload_keep_every_bit),
        cmocka_unit_test(layers_are_left_out_by_name),
        cmocka_unit_test(a_head_gives_logits_in_param_dtype),
        cmocka_unit_test(asked_for_where_no_layer_can_have_it_is_an_error),
        cmocka_unit_test(the_plan_is_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
