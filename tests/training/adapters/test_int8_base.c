/* Adapters beside a frozen base in 8 bits: the same bits under every strategy, schedule and way of keeping units,
 * memory and traffic as planned, and the base's values are those of its blocks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/models.h>

#include "base/error.h"
#include "training/support_ranks.h"
#include "training/support_training.h"

/* Sums of doubles over all ranks, as one rank receives them. */
static int64_t doubles(int ranks, int n)
{
    return 2 * (ranks - 1) * n * 8 / ranks;
}

static training_result run(const training *t, const char *what)
{
    training_result r;
    if (!training_run(t, &r))
        fail_msg("%s on %d ranks failed", what, t->ranks);
    int64_t gathers = t->config.strategy == FSDP_SHARD_OP ? 1 : t->micro_batches;
    int64_t step =
        gathers * r.planned_gathered + t->micro_batches * r.planned_reduced + doubles(t->ranks, 3); /* norm, loss */
    if (t->ranks > 1 && !t->config.policy && t->config.n_unit_strategies == 0 &&
        r.shard_bytes != TRAINING_COUNTED * step)
        fail_msg("%s on %d ranks received %lld bytes where %lld were planned", what, t->ranks, (long long)r.shard_bytes,
                 (long long)(TRAINING_COUNTED * step));
    if (r.memory != r.planned_memory)
        fail_msg("%s on %d ranks took %lld bytes where %lld were planned", what, t->ranks, (long long)r.memory,
                 (long long)r.planned_memory);
    return r;
}

static void keep_among_two(const fsdp_module *module, const char *name, fsdp_unit_policy *p, void *context)
{
    (void)module, (void)name, (void)context;
    p->reshard_group_size = 2;
}

/* What must not change a bit. */
static const struct variant {
    const char *name;
    fsdp_strategy strategy;
    int buffers; /* gathered at a time */
    fsdp_checkpointing checkpointing;
    bool offload, keep, graphs, mixed;
    int least_ranks, most_ranks;
} variants[] = {
    {"full", FSDP_FULL, 2, FSDP_CHECKPOINT_NONE, false, false, false, false, 1, 8},
    {"shard_grad_op", FSDP_SHARD_GRAD_OP, 2, FSDP_CHECKPOINT_NONE, false, false, false, false, 1, 8},
    {"shard_op", FSDP_SHARD_OP, 2, FSDP_CHECKPOINT_NONE, false, false, false, false, 1, 8},
    {"no_shard", FSDP_NO_SHARD, 2, FSDP_CHECKPOINT_NONE, false, false, false, false, 1, 8},
    {"one unit at a time", FSDP_FULL, 1, FSDP_CHECKPOINT_NONE, false, false, false, false, 2, 8},
    {"all units at a time", FSDP_FULL, 100, FSDP_CHECKPOINT_NONE, false, false, false, false, 2, 8},
    {"checkpointing", FSDP_SHARD_GRAD_OP, 2, FSDP_CHECKPOINT_FULL, false, false, false, false, 1, 8},
    {"offload", FSDP_FULL, 2, FSDP_CHECKPOINT_NONE, true, false, false, false, 1, 8},
    {"kept by two ranks", FSDP_FULL, 2, FSDP_CHECKPOINT_NONE, false, true, false, false, 4, 4},
    {"strategies by unit", FSDP_SHARD_GRAD_OP, 2, FSDP_CHECKPOINT_NONE, false, false, false, true, 2, 8},
    {"graphs", FSDP_FULL, 2, FSDP_CHECKPOINT_NONE, false, false, true, false, 1, 1},
};

static void expect_same_bits(training t, const char *what)
{
    static const char *const mixed[] = {"*.0=no_shard", "*.1=full"};
    training_result first = {.hash = 0};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        char name[96];
        if (t.ranks < v->least_ranks || t.ranks > v->most_ranks)
            continue;
        t.config.strategy = v->strategy;
        t.config.gather_buffers = v->buffers;
        t.config.checkpointing = v->checkpointing;
        t.config.cpu_offload = v->offload;
        t.config.policy = v->keep ? keep_among_two : NULL;
        t.config.unit_strategies = mixed;
        t.config.n_unit_strategies = v->mixed ? 2 : 0;
        t.device = v->graphs ? "recording" : NULL;
        snprintf(name, sizeof name, "%s, %s", what, v->name);
        training_result r = run(&t, name);
        first = i == 0 ? r : first;
        assert_true(r.loss[TRAINING_STEPS - 1] < r.loss[0]);
        if (r.hash != first.hash)
            fail_msg("%s on %d ranks: not the bits of %s", name, t.ranks, variants[0].name);
    }
}

static fsdp_lora_config adapters(const char *targets)
{
    fsdp_lora_config c = FSDP_LORA_CONFIG_INIT;
    c.rank = 3, c.alpha = 12;
    snprintf(c.targets, sizeof c.targets, "%s", targets);
    return c;
}

static void a_base_in_8_bits_gives_the_same_bits_whatever_is_gathered_when(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 4};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        fsdp_lora_config lora = adapters(i == 1 ? "all-linear" : "");
        training t = training_default(i == 1 ? TRAIN_T5 : TRAIN_LLAMA, ranks[i]);
        t.lora = &lora;
        t.config.int8_frozen = true;
        t.config.param_dtype = i == 0 ? FSDP_F32 : FSDP_BF16;
        expect_same_bits(t, i == 1 ? "t5" : "llama");
    }
}

/* The blocks are the same however the model is cut: what differs is the order of sums. */
static void the_world_size_changes_rounding_only(void **state)
{
    (void)state;
    fsdp_lora_config lora = adapters("q_proj,o_proj,up_proj");
    training t = training_default(TRAIN_LLAMA, 1);
    t.lora = &lora;
    training_result plain = run(&t, "fp32");
    t.config.int8_frozen = true;
    training_result one = run(&t, "8 bits");
    assert_true(one.hash != plain.hash && fabs(one.loss[0] - plain.loss[0]) < 0.02);
    for (int ranks = 2; ranks <= 3; ranks++) {
        t.ranks = ranks;
        training_result r = run(&t, "8 bits");
        for (int i = 0; i < TRAINING_STEPS; i++)
            assert_true(fabs(r.loss[i] - one.loss[i]) < 1e-5);
    }
}

static void half_the_bytes_of_bf16_are_gathered(void **state)
{
    (void)state;
    fsdp_lora_config lora = adapters("q_proj");
    training t = training_default(TRAIN_LLAMA, 2);
    t.lora = &lora;
    t.config.param_dtype = FSDP_BF16;
    t.config.strategy = FSDP_FULL;
    training_result wide = run(&t, "bf16");
    t.config.int8_frozen = true;
    training_result narrow = run(&t, "8 bits");
    assert_true(narrow.planned_gathered < wide.planned_gathered * 4 / 5); /* embedding and head stay as they are */
    assert_true(narrow.memory < wide.memory);
}

/* ---- Values ---- */

enum { OUTPUTS = 48, INPUTS = 100, NUMEL = OUTPUTS * INPUTS, HIDDEN = OUTPUTS };
static const char weight[] = "model.layers.1.mlp.down_proj.weight", odd[] = "model.layers.1.self_attn.k_proj.weight";

static fsdp_status open_model(fsdp_world *w, bool int8, fsdp_model **out)
{
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    static const char *const all[] = {"*proj*"};
    fsdp_module *net;
    c.vocabulary = 60, c.hidden = HIDDEN, c.intermediate = INPUTS, c.layers = 2, c.heads = 4, c.kv_heads = 1,
    c.head_dim = 10, c.positions = 16; /* k and v have 480 elements, no multiple of 64 */
    config.wrap = fsdp_wrap_by_type("llama_block");
    config.int8_frozen = int8;
    config.freeze = all;
    config.n_freeze = 1;
    FSDP_TRY(fsdp_llama_new(&c, &net));
    fsdp_status status = fsdp_shard(w, net, &config, out);
    if (status != FSDP_OK)
        fsdp_module_free(net);
    return status;
}

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return error_set(FSDP_ERR_STATE, "line %d: %s", __LINE__, #condition);                                     \
    } while (0)

static fsdp_status check_values(fsdp_model *wide, fsdp_model *narrow)
{
    static float a[NUMEL], b[NUMEL], part[NUMEL];
    FSDP_TRY(fsdp_parameter_read(wide, weight, 0, NUMEL, a));
    FSDP_TRY(fsdp_parameter_read(narrow, weight, 0, NUMEL, b));
    int differ = 0;
    for (int i = 0; i < NUMEL; i++) {
        float largest = 0;
        for (int k = i / 64 * 64; k < i / 64 * 64 + 64; k++)
            largest = fmaxf(largest, fabsf(a[k]));
        EXPECT(fabsf(a[i] - b[i]) <= largest / 253);
        differ += a[i] != b[i];
    }
    EXPECT(differ > NUMEL / 2);
    FSDP_TRY(fsdp_parameter_read(narrow, weight, 61, 1001, part)); /* no whole blocks */
    EXPECT(memcmp(part, b + 61, 1001 * sizeof *part) == 0);
    FSDP_TRY(fsdp_parameter_read(wide, odd, 0, 10 * HIDDEN, a)); /* what has no whole blocks is kept as it is */
    FSDP_TRY(fsdp_parameter_read(narrow, odd, 0, 10 * HIDDEN, part));
    EXPECT(memcmp(a, part, 10 * HIDDEN * sizeof *a) == 0);
    /* What was read can be written, and is what it was; a part of a block cannot. */
    FSDP_TRY(fsdp_parameter_write(narrow, weight, 0, NUMEL, b));
    FSDP_TRY(fsdp_parameter_read(narrow, weight, 0, NUMEL, part));
    EXPECT(memcmp(part, b, sizeof b) == 0);
    EXPECT(fsdp_parameter_write(narrow, weight, 64, 65, b) == FSDP_ERR_UNSUPPORTED);
    EXPECT(strstr(fsdp_last_error(), weight) && strstr(fsdp_last_error(), "whole blocks"));
    return FSDP_OK;
}

static fsdp_status read_values(int rank, void *context)
{
    (void)rank, (void)context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_world *w;
    fsdp_model *wide = NULL, *narrow = NULL;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(open_model(w, false, &wide));
    FSDP_TRY(open_model(w, true, &narrow));
    fsdp_status status = check_values(wide, narrow);
    fsdp_model_free(wide);
    fsdp_model_free(narrow);
    fsdp_world_close(w);
    return status;
}

static void values_are_those_of_the_blocks_on_any_number_of_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2)
        assert_true(ranks_run(ranks, read_values, NULL));
}

static fsdp_status shard_trained(int rank, void *context)
{
    (void)rank, (void)context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_mlp_config c = FSDP_MLP_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    wc.device = "cpu", wc.threads = 1;
    config.int8_frozen = true;
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(fsdp_mlp_new(&c, &net));
    EXPECT(fsdp_shard(w, net, &config, &m) == FSDP_ERR_INPUT);
    EXPECT(strstr(fsdp_last_error(), "no frozen weight"));
    fsdp_module_free(net);
    fsdp_world_close(w);
    return FSDP_OK;
}

static void a_model_that_is_trained_whole_is_refused(void **state)
{
    (void)state;
    assert_true(ranks_run(1, shard_trained, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_base_in_8_bits_gives_the_same_bits_whatever_is_gathered_when),
        cmocka_unit_test(the_world_size_changes_rounding_only),
        cmocka_unit_test(half_the_bytes_of_bf16_are_gathered),
        cmocka_unit_test(values_are_those_of_the_blocks_on_any_number_of_ranks),
        cmocka_unit_test(a_model_that_is_trained_whole_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
