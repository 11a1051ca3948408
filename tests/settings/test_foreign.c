/* Files of DeepSpeed and accelerate as settings: which flag each key becomes, what is only said, what is refused, and
 * that flags come first. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/settings.h>

#include "settings/foreign/foreign.h"
#include "settings/foreign/yaml.h"

/* ---- Reading ---- */

/* Settings after the flags in `words` (name, value, ..., NULL) and the file. */
static fsdp_status read_as(fsdp_settings *s, const char *command, foreign_reader reader, const char *file,
                           const char *const *words)
{
    char *text = strdup(file);
    assert_int_equal(fsdp_settings_init(s), FSDP_OK);
    for (; words && *words; words += 2)
        assert_int_equal(fsdp_settings_set(s, words[0], words[1]), FSDP_OK);
    fsdp_status status = reader(s, command, "file", text, strlen(text));
    if (status == FSDP_OK)
        status = fsdp_settings_check(s);
    free(text);
    return status;
}

static void take(fsdp_settings *s, foreign_reader reader, const char *file, const char *const *words)
{
    if (read_as(s, "train", reader, file, words) != FSDP_OK)
        fail_msg("refused: %s", fsdp_last_error());
}

static void refused(foreign_reader reader, const char *file, const char *expected)
{
    fsdp_settings s;
    assert_int_equal(read_as(&s, "train", reader, file, NULL), FSDP_ERR_INPUT);
    if (!strstr(fsdp_last_error(), expected))
        fail_msg("'%s' does not say '%s'", fsdp_last_error(), expected);
    fsdp_settings_free(&s);
}

static bool noted(const fsdp_settings *s, const char *words)
{
    for (int i = 0; i < s->notes.n; i++)
        if (strstr(s->notes.items[i], words))
            return true;
    return false;
}

static int origin(const fsdp_settings *s, const char *name)
{
    const fsdp_flag *table = fsdp_settings_flags();
    return s->state.origin[fsdp_flags_find(table, name) - table];
}

static void four_ranks(void)
{
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
}

static int one_rank(void **state)
{
    (void)state;
    static const char *const names[] = {"RANK",        "WORLD_SIZE",  "LOCAL_RANK",  "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return 0;
}

/* ---- DeepSpeed ---- */

static void a_whole_deepspeed_file_becomes_settings(void **state)
{
    (void)state;
    fsdp_settings s;
    take(
        &s, deepspeed_read,
        "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 8, \"gradient_clipping\": 0.5,"
        " \"zero_optimization\": {\"stage\": 2, \"overlap_comm\": true, \"offload_optimizer\": {\"device\": \"cpu\"}},"
        " \"bf16\": {\"enabled\": true}, \"communication_data_type\": \"bfp16\","
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-4, \"betas\": [0.8, 0.97], \"eps\": 1e-6,"
        "   \"weight_decay\": 0.05}},"
        " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_max_lr\": 3e-4, \"warmup_num_steps\": 7,"
        "   \"warmup_type\": \"linear\", \"total_num_steps\": 90}},"
        " \"activation_checkpointing\": {\"partition_activations\": true, \"cpu_checkpointing\": true},"
        " \"tensorboard\": {\"enabled\": true, \"output_path\": \"tb\", \"job_name\": \"x\"}, \"steps_per_print\": 20}",
        NULL);
    assert_int_equal(s.train_batch_size, 2);
    assert_int_equal(s.gradient_accumulation_steps, 8);
    assert_true(s.grad_clip == 0.5);
    assert_int_equal(s.sharding_strategy, FSDP_SHARD_GRAD_OP);
    assert_true(s.cpu_offload);
    assert_int_equal(s.param_dtype, FSDP_BF16);
    assert_int_equal(s.reduce_dtype, FSDP_BF16);
    assert_int_equal(s.optimizer, FSDP_ADAMW);
    assert_true(s.lr == 3e-4); /* the scheduler's, as in DeepSpeed */
    assert_true(s.beta1 == 0.8 && s.beta2 == 0.97 && s.eps == 1e-6 && s.weight_decay == 0.05);
    assert_int_equal(s.lr_decay_style, FSDP_DECAY_LINEAR);
    assert_true(s.warmup == 7 && s.lr_decay_iters == 90 && s.min_lr == 0);
    assert_int_equal(s.activation_checkpointing, FSDP_CHECKPOINT_FULL);
    assert_true(s.offload_activations);
    assert_string_equal(s.tensorboard_dir, "tb/x");
    assert_int_equal(s.logging_freq, 20);
    assert_int_equal(origin(&s, "lr"), FSDP_FROM_DEEPSPEED);
    assert_true(noted(&s, "file: zero_optimization.overlap_comm has no meaning here"));
    fsdp_settings_free(&s);
}

static void stages_are_strategies(void **state)
{
    (void)state;
    static const int strategies[] = {FSDP_NO_SHARD, FSDP_SHARD_OP, FSDP_SHARD_GRAD_OP, FSDP_FULL};
    for (int stage = 0; stage < 4; stage++) {
        char file[80];
        fsdp_settings s;
        snprintf(file, sizeof file, "{\"zero_optimization\": {\"stage\": %d}}", stage);
        take(&s, deepspeed_read, file, NULL);
        assert_int_equal(s.sharding_strategy, strategies[stage]);
        fsdp_settings_free(&s);
    }
    fsdp_settings s;
    take(&s, deepspeed_read, "{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2}}", NULL);
    assert_int_equal(s.sharding_strategy, FSDP_HYBRID);
    assert_int_equal(s.shard_group_size, 2);
    fsdp_settings_free(&s);
    refused(deepspeed_read, "{\"zero_optimization\": {\"stage\": 4}}", "zero_optimization.stage: 4");
}

static void flags_come_before_the_file(void **state)
{
    (void)state;
    fsdp_settings s;
    const char *flags[] = {"lr", "0.5",          "fp16", "true", "sharding_strategy", "full", "train_batch_size",
                           "3",  "weight_decay", "0",    NULL};
    take(&s, deepspeed_read,
         "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 2},"
         " \"train_micro_batch_size_per_gpu\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-5}},"
         " \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_num_steps\": \"auto\", "
         "\"cos_min_ratio\": 0.1}}}",
         flags);
    assert_true(s.lr == 0.5 && s.min_lr == 0.05); /* the ratio is of the rate that counts */
    assert_int_equal(s.param_dtype, FSDP_F16);
    assert_int_equal(s.sharding_strategy, FSDP_FULL);
    assert_int_equal(s.shard_group_size, 0);
    assert_int_equal(s.train_batch_size, 3);
    assert_int_equal(origin(&s, "lr"), FSDP_FROM_COMMAND);
    assert_int_equal(origin(&s, "min_lr"), FSDP_FROM_DEEPSPEED);
    fsdp_settings_free(&s);
}

static void what_deepspeed_leaves_out_has_its_defaults(void **state)
{
    (void)state;
    fsdp_settings s;
    take(&s, deepspeed_read, "{\"optimizer\": {\"type\": \"Adam\"}}", NULL);
    assert_int_equal(s.optimizer, FSDP_ADAMW); /* adam_w_mode is on there */
    assert_true(s.lr == 1e-3 && s.weight_decay == 0 && s.beta2 == 0.999 && s.grad_clip == 0);
    fsdp_settings_free(&s);
    take(&s, deepspeed_read, "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}}", NULL);
    assert_int_equal(s.optimizer, FSDP_ADAM);
    fsdp_settings_free(&s);
    take(&s, deepspeed_read, "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"torch_adam\": true}}}", NULL);
    assert_true(s.weight_decay == 0.01);
    fsdp_settings_free(&s);
    take(&s, deepspeed_read, "{\"optimizer\": {\"type\": \"SGD\"}}", NULL);
    assert_true(s.optimizer == FSDP_SGD && s.momentum == 0);
    fsdp_settings_free(&s);
}

static void auto_leaves_a_setting_open(void **state)
{
    (void)state;
    fsdp_settings s;
    take(
        &s, deepspeed_read,
        "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_clipping\": "
        "\"auto\","
        " \"fp16\": {\"enabled\": \"auto\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\","
        " \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}}, \"scheduler\": {\"type\": \"WarmupLR\","
        " \"params\": {\"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"}}}",
        NULL);
    static const char *const open[] = {"lr",   "beta1", "eps", "weight_decay", "grad_clip", "train_batch_size",
                                       "fp16", "warmup"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (origin(&s, open[i]) != FSDP_FROM_DEFAULT)
            fail_msg("--%s is set", open[i]);
    assert_int_equal(s.lr_decay_style, FSDP_DECAY_CONSTANT);
    assert_true(noted(&s, "the warmup (--warmup) is linear here"));
    fsdp_settings_free(&s);
    take(&s, deepspeed_read,
         "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": \"auto\", \"warmup_type\": "
         "\"linear\"}}}",
         NULL);
    assert_false(noted(&s, "linear here"));
    fsdp_settings_free(&s);
}

static void the_ratio_of_offload_is_what_does_not_stay(void **state)
{
    (void)state;
    fsdp_settings s;
    take(&s, deepspeed_read,
         "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.7}}}", NULL);
    assert_true(s.cpu_offload);
    assert_int_equal(s.cpu_offload_resident, 30);
    fsdp_settings_free(&s);
    refused(deepspeed_read, "{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 1.5}}}", "ratio: 1.5");
}

static void the_global_batch_is_divided(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int micro, accumulation;
    } cases[] = {
        {"{\"train_batch_size\": 32}", 8, 1},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 2}", 2, 4},
        {"{\"train_batch_size\": 32, \"gradient_accumulation_steps\": 2}", 4, 2},
        {"{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2}", 4, 2},
    };
    four_ranks();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_settings s;
        take(&s, deepspeed_read, cases[i].file, NULL);
        assert_int_equal(s.train_batch_size, cases[i].micro);
        assert_int_equal(s.gradient_accumulation_steps, cases[i].accumulation);
        fsdp_settings_free(&s);
    }
    refused(deepspeed_read, "{\"train_batch_size\": 30}", "4 ranks");
    refused(deepspeed_read, "{\"train_batch_size\": 2}", "4 ranks");
    refused(deepspeed_read,
            "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1}",
            "train_batch_size 32 (all ranks) is not micro-batch 1 x accumulation 1 x 4 ranks");
    fsdp_settings s;
    const char *flags[] = {"train_batch_size", "1", "gradient_accumulation_steps", "1", NULL};
    take(&s, deepspeed_read, "{\"train_batch_size\": 32}", flags);
    assert_true(noted(&s, "train_batch_size 32 is not kept"));
    fsdp_settings_free(&s);
    const char *more[] = {"world_size", "8", NULL};
    assert_int_equal(read_as(&s, "plan", deepspeed_read, "{\"train_batch_size\": 32}", more), FSDP_OK);
    assert_int_equal(s.train_batch_size, 4);
    fsdp_settings_free(&s);
    const char *any[] = {"world_size", "auto", NULL};
    assert_int_equal(read_as(&s, "plan", deepspeed_read, "{\"train_batch_size\": 32}", any), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "--world_size"));
    fsdp_settings_free(&s);
}

static void what_would_change_the_result_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"zero_optimization\": {\"zero_quantized_gradients\": true}}", "zero_quantized_gradients=true"},
        {"{\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}}", "'nvme' is not supported"},
        {"{\"optimizer\": {\"type\": \"OneBitAdam\"}}", "'OneBitAdam' is not supported"},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"amsgrad\": true}}}", "optimizer.params.amsgrad=true"},
        {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": true}}}", "nesterov"},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"betas\": [0.9]}}}", "expected two numbers"},
        {"{\"scheduler\": {\"type\": \"OneCycle\"}}", "'OneCycle' is not supported"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}}}",
         "\"warmup_type\": \"linear\""},
        {"{\"scheduler\": {\"type\": \"WarmupLR\"}}", "--warmup 1000"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0.1}}}", "warmup_min_lr=0.1"},
        {"{\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}", "choose one"},
        {"{\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true}}", "master weights are fp32"},
        {"{\"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}}",
         "--optimizer_state bf16 keeps moments in bf16"},
        {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"fp32_optimizer_states\": false}}}",
         "--optimizer_state bf16 keeps moments in bf16"},
        {"{\"amp\": {\"enabled\": true}}", "amp is not supported"},
        {"{\"progressive_layer_drop\": {\"enabled\": true, \"theta\": 0.5}}", "progressive_layer_drop"},
        {"{\"data_efficiency\": {\"enabled\": true}}", "data_efficiency"},
        {"{\"sequence_parallel_size\": 2}", "sequence_parallel_size=2"},
        {"{\"tensor_parallel\": {\"autotp_size\": 4}}", "tensor_parallel"},
        {"{\"gradient_acumulation_steps\": 4}", "did you mean gradient_accumulation_steps?"},
        {"{\"zero_optimization\": {\"stge\": 3}}", "zero_optimization.stge"},
        {"{\"zero_optimization\": true}", "expected a section"},
        {"{\"communication_data_type\": \"fp16\", \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
         "make them equal"},
        {"{\"gradient_clipping\": \"a lot\"}", "'a lot' is not a number"},
        {"{\"gradient_clipping\": -1}", "--grad_clip"},
        {"{\"train_batch_size\": 0}", "expected 1 or more"},
        {"{\"train_batch_size\": 1.5}", "not a whole number"},
        {"{\"train_micro_batch_size_per_gpu\": [1]}", "expected one value"},
        {"{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 1000}}", "expected 0 to 64"},
        {"{\"bf16\": {\"enabled\": true}, \"bf16\": {}}", "file"},
        {"[1]", "file"},
        {"{", "file"},
        {"", "file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(deepspeed_read, cases[i][0], cases[i][1]);
}

static void what_is_turned_off_is_not_named(void **state)
{
    (void)state;
    fsdp_settings s;
    take(&s, deepspeed_read,
         "{\"wall_clock_breakdown\": false, \"amp\": {\"enabled\": false}, \"flops_profiler\": {\"enabled\": false, "
         "\"top\": 1},"
         " \"compression_training\": {}, \"zero_optimization\": {\"stage\": 1, \"zero_hpz_partition_size\": 1},"
         " \"scheduler\": null}",
         (const char *[]){"lr_decay_style", "constant", NULL});
    assert_int_equal(s.notes.n, 0);
    fsdp_settings_free(&s);
}

static void loss_scales_are_read(void **state)
{
    (void)state;
    fsdp_settings s;
    take(&s, deepspeed_read, "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": 12}}", NULL);
    assert_true(s.loss_scale == 4096 && s.param_dtype == FSDP_F16);
    fsdp_settings_free(&s);
    take(&s, deepspeed_read, "{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}", NULL);
    assert_true(s.loss_scale == 128 && noted(&s, "fp16.loss_scale"));
    fsdp_settings_free(&s);
    /* With fp16 from a flag, too, whatever the file says of it; not with another precision, nor against --loss_scale.
     */
    const char *file =
        "{\"fp16\": {\"enabled\": \"auto\", \"initial_scale_power\": 12}, \"bf16\": {\"enabled\": true}}";
    static const struct {
        const char *flags[5];
        double expected;
    } rows[] = {{{"fp16", "true"}, 4096},
                {{"param_dtype", "fp16"}, 4096},
                {{"fp16", "true", "loss_scale", "64"}, 64},
                {{"bf16", "true"}, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        take(&s, deepspeed_read, file, rows[i].flags);
        if (rows[i].expected ? s.loss_scale != rows[i].expected : origin(&s, "loss_scale") != FSDP_FROM_DEFAULT)
            fail_msg("--%s %s: loss scale %g", rows[i].flags[0], rows[i].flags[1], s.loss_scale);
        fsdp_settings_free(&s);
    }
}

/* ---- accelerate ---- */

#define FSDP1                                                                                                          \
    "# written by accelerate config\ncompute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: FSDP\n"       \
    "downcast_bf16: 'no'\nfsdp_config:\n  fsdp_activation_checkpointing: true\n"                                       \
    "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 2000000\n"                                       \
    "  fsdp_backward_prefetch: BACKWARD_POST\n  fsdp_forward_prefetch: false\n  fsdp_offload_params: true\n"           \
    "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_state_dict_type: FULL_STATE_DICT\n"                               \
    "  fsdp_use_orig_params: true # no matter\nmachine_rank: 0\nmain_training_function: main\n"                        \
    "mixed_precision: bf16\nnum_machines: 1\nnum_processes: 1\nrdzv_backend: static\nsame_network: true\n"             \
    "tpu_env: []\ntpu_use_cluster: false\nuse_cpu: false\n"

static void the_fsdp1_keys_of_accelerate_are_flags(void **state)
{
    (void)state;
    fsdp_settings s;
    take(&s, accelerate_read, FSDP1, NULL);
    assert_int_equal(s.sharding_strategy, FSDP_SHARD_GRAD_OP);
    assert_int_equal(s.wrap_policy, FSDP_WRAP_SIZE);
    assert_int_equal(s.min_num_params, 2000000);
    assert_int_equal(s.backward_prefetch, FSDP_PREFETCH_POST);
    assert_false(s.forward_prefetch);
    assert_true(s.cpu_offload);
    assert_int_equal(s.checkpoint_kind, FSDP_CKPT_FULL);
    assert_int_equal(s.activation_checkpointing, FSDP_CHECKPOINT_FULL);
    assert_int_equal(s.param_dtype, FSDP_BF16);
    assert_int_equal(origin(&s, "wrap_policy"), FSDP_FROM_ACCELERATE);
    assert_true(noted(&s, "fsdp_use_orig_params") && noted(&s, "--reduce_dtype bf16"));
    assert_false(noted(&s, "num_processes") || noted(&s, "tpu_env"));
    fsdp_settings_free(&s);
    const char *flags[] = {"sharding_strategy", "no_shard", "param_dtype", "fp32", "wrap_policy", "none", NULL};
    take(&s, accelerate_read, FSDP1, flags);
    assert_int_equal(s.sharding_strategy, FSDP_NO_SHARD);
    assert_int_equal(s.param_dtype, FSDP_F32);
    assert_int_equal(s.wrap_policy, FSDP_WRAP_NONE);
    fsdp_settings_free(&s);
}

static void the_fsdp2_keys_of_accelerate_are_flags(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int strategy, group;
    } cases[] = {
        {"distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n", FSDP_FULL, 0},
        {"distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n",
         FSDP_SHARD_GRAD_OP, 0},
        {"distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_forward: NO_SHARD\n", FSDP_NO_SHARD, 0},
        {"distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 4\n", FSDP_HYBRID, 0},
        {"distributed_type: FSDP\n", FSDP_FULL, 0},
        {"distributed_type: MULTI_GPU\n", FSDP_NO_SHARD, 0},
        {"distributed_type: FSDP\nparallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
         "  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 1\n",
         FSDP_HYBRID, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_settings s;
        take(&s, accelerate_read, cases[i].file, NULL);
        assert_int_equal(s.sharding_strategy, cases[i].strategy);
        assert_int_equal(s.shard_group_size, cases[i].group);
        fsdp_settings_free(&s);
    }
}

static void the_deepspeed_section_of_accelerate_is_read(void **state)
{
    (void)state;
    fsdp_settings s;
    take(&s, accelerate_read,
         "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_accumulation_steps: 4\n  gradient_clipping: 0.7\n"
         "  offload_optimizer_device: cpu\n  offload_param_device: none\n  zero3_init_flag: true\n  zero_stage: 3\n"
         "fsdp_config: {}\nmixed_precision: 'no'\nnum_processes: 8\n",
         NULL);
    assert_int_equal(s.sharding_strategy, FSDP_FULL);
    assert_int_equal(s.gradient_accumulation_steps, 4);
    assert_true(s.grad_clip == 0.7 && s.cpu_offload);
    assert_int_equal(s.param_dtype, FSDP_F32);
    assert_true(noted(&s, "num_processes 8, but this job has 1 rank"));
    fsdp_settings_free(&s);

    char path[] = "/tmp/fsdp-foreign-XXXXXX", file[200];
    int fd = mkstemp(path);
    static const char inner[] = "{\"zero_optimization\": {\"stage\": 1}, \"bf16\": {\"enabled\": \"auto\"}}";
    assert_true(fd >= 0 && write(fd, inner, sizeof inner - 1) == (ssize_t)sizeof inner - 1);
    close(fd);
    snprintf(file, sizeof file,
             "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  deepspeed_config_file: %s\n",
             path);
    take(&s, accelerate_read, file, NULL);
    unlink(path);
    assert_int_equal(s.sharding_strategy, FSDP_SHARD_OP);
    assert_int_equal(s.param_dtype, FSDP_BF16);
    assert_int_equal(origin(&s, "sharding_strategy"), FSDP_FROM_DEEPSPEED);
    fsdp_settings_free(&s);
    refused(accelerate_read, file, "deepspeed_config_file");
}

static void a_plan_takes_the_ranks_of_accelerate(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(read_as(&s, "plan", accelerate_read, "num_processes: 8\ndistributed_type: FSDP\n", NULL), FSDP_OK);
    assert_int_equal(s.world_size, 8);
    fsdp_settings_free(&s);
}

static void files_of_accelerate_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"distributed_type: MEGATRON_LM\n", "'MEGATRON_LM' is not supported"},
        {"mixed_precision: fp8\n", "--bf16 --fp8"},
        {"compute_environment: AMAZON_SAGEMAKER\n", "compute_environment=AMAZON_SAGEMAKER"},
        {"distributed_typ: FSDP\n", "did you mean distributed_type?"},
        {"distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SOME\n", "expected one of: FULL_SHARD"},
        {"distributed_type: FSDP\nfsdp_config:\n  fsdp_ignored_modules: head\n", "fsdp_ignored_modules"},
        {"distributed_type: DEEPSPEED\ndeepspeed_config:\n  offload_param_device: nvme\n", "'nvme'"},
        {"distributed_type: FSDP\nparallelism_config:\n  parallelism_config_tp_size: 2\n",
         "parallelism_config_tp_size=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(accelerate_read, cases[i][0], cases[i][1]);
}

/* ---- YAML ---- */

static void yaml_is_read_as_its_json(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a: 1\nb: -2.5\nc: 1e-5\nd: text with words\n",
         "{\"a\": 1, \"b\": -2.5, \"c\": 1e-5, \"d\": \"text with words\"}"},
        {"---\na: 'no'\nb: no\nc: \"x # y\"\nd: it''s\ne: 'it''s'\n",
         "{\"a\": \"no\", \"b\": false, \"c\": \"x # y\", \"d\": \"it''s\", \"e\": \"it's\"}"},
        {"a: null\nb: ~\nc:\nd: ''\n", "{\"a\": null, \"b\": null, \"c\": null, \"d\": \"\"}"},
        {"a:\n  b:\n    c: true\n  d: False\ne: {}\nf: []\n",
         "{\"a\": {\"b\": {\"c\": true}, \"d\": false}, \"e\": {}, \"f\": []}"},
        {"a:\n- 1\n- 'x'\n-\nb:\n  - y\nc: [1, 'two', three]\n",
         "{\"a\": [1, \"x\", null], \"b\": [\"y\"], \"c\": [1, \"two\", \"three\"]}"},
        {"# only\n\na: 10.0.0.1   # comment\nb: http://x:80/#y\n'c': \"q\\\"q\"\r\n",
         "{\"a\": \"10.0.0.1\", \"b\": \"http://x:80/#y\", \"c\": \"q\\\"q\"}"},
        {"  a: 1\n  b: 99999999999999999999\n", "{\"a\": 1, \"b\": 99999999999999999999.0}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = strdup(cases[i][0]);
        json_t *got = NULL, *expected = json_loads(cases[i][1], 0, NULL);
        assert_non_null(expected);
        if (yaml_parse("y", text, strlen(text), &got) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        if (!json_equal(got, expected))
            fail_msg("%s was read as %s", cases[i][0], json_dumps(got, 0));
        json_decref(got);
        json_decref(expected);
        free(text);
    }
}

static void yaml_that_is_not_understood_is_refused_with_its_line(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a: 1\na: 2\n", "y:2: a is set twice"},
        {"a: &x 1\n", "y:1: anchors"},
        {"a: *x\n", "y:1: anchors"},
        {"a: !!python/object:os.system x\n", "y:1: anchors"},
        {"a: |\n  text\n", "y:1: anchors"},
        {"a: {b: 1}\n", "y:1: anchors"},
        {"a:\n\tb: 1\n", "y:2: a tab"},
        {"a: 'x\n", "y:1: a quote"},
        {"a: 'x' y\n", "y:1: something follows"},
        {"a: \"\\n\"\n", "y:1: this escape"},
        {"a: b: c\n", "y:1: a key within a value"},
        {"a: 1\n  b: 2\n", "y:2: more indented"},
        {"  a: 1\nb: 2\n", "y:2: less indented"},
        {"a:\n  - b: 1\n", "y:2: a key within a value"},
        {"a: [1, 2\n", "y:1: a list is not closed"},
        {"a: [[1]]\n", "y:1: a list within a list"},
        {"just words\n", "y:1: no \"key: value\""},
        {"- 1\n", "y: a list, not settings"},
        {"a: 1\n---\nb: 2\n", "y:2: several documents"},
        {"%YAML 1.2\n", "y:1: several documents"},
        {"? a\n", "y:1: no \"key: value\""},
        {"", "y: nothing in it"},
        {"# x\n", "y: nothing in it"},
        {"a: \xff\n", "y:1: not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = strdup(cases[i][0]);
        json_t *got;
        if (yaml_parse("y", text, strlen(text), &got) == FSDP_OK)
            fail_msg("read: %s", cases[i][0]);
        if (!strstr(fsdp_last_error(), cases[i][1]))
            fail_msg("'%s' does not say '%s'", fsdp_last_error(), cases[i][1]);
        assert_null(got);
        free(text);
    }
}

static void deep_and_long_yaml_ends(void **state)
{
    (void)state;
    char *text = calloc(1, 1 << 17), *end = text;
    json_t *got;
    for (int depth = 0; depth < 100; depth++)
        end += sprintf(end, "%*sa:\n", depth, "");
    assert_int_equal(yaml_parse("y", text, strlen(text), &got), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "too many levels"));
    end = text;
    for (int i = 0; i < 10001; i++)
        end += sprintf(end, "k%d: 1\n", i);
    assert_int_equal(yaml_parse("y", text, strlen(text), &got), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "more lines"));
    free(text);
}

static void one_file_of_another_tool_is_enough(void **state)
{
    (void)state;
    fsdp_settings s;
    char *words[] = {"--deepspeed", "a.json", "--accelerate", "b.yaml"};
    assert_int_equal(fsdp_settings_init(&s), FSDP_OK);
    assert_int_equal(fsdp_settings_parse(&s, "train", 4, words), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "give one file"));
    fsdp_settings_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_deepspeed_file_becomes_settings),
        cmocka_unit_test(stages_are_strategies),
        cmocka_unit_test(flags_come_before_the_file),
        cmocka_unit_test(what_deepspeed_leaves_out_has_its_defaults),
        cmocka_unit_test(auto_leaves_a_setting_open),
        cmocka_unit_test_teardown(the_ratio_of_offload_is_what_does_not_stay, one_rank),
        cmocka_unit_test_teardown(the_global_batch_is_divided, one_rank),
        cmocka_unit_test(what_would_change_the_result_is_refused),
        cmocka_unit_test(what_is_turned_off_is_not_named),
        cmocka_unit_test(loss_scales_are_read),
        cmocka_unit_test(the_fsdp1_keys_of_accelerate_are_flags),
        cmocka_unit_test(the_fsdp2_keys_of_accelerate_are_flags),
        cmocka_unit_test(the_deepspeed_section_of_accelerate_is_read),
        cmocka_unit_test(a_plan_takes_the_ranks_of_accelerate),
        cmocka_unit_test(files_of_accelerate_are_refused_by_name),
        cmocka_unit_test(yaml_is_read_as_its_json),
        cmocka_unit_test(yaml_that_is_not_understood_is_refused_with_its_line),
        cmocka_unit_test(deep_and_long_yaml_ends),
        cmocka_unit_test(one_file_of_another_tool_is_enough),
    };
    one_rank(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
