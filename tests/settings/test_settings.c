/* Settings: every spelling of a flag, where defaults come from, what flags imply, and what is refused with which words.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/models.h>
#include <fsdp/settings.h>

#define PARSE(settings, ...) parse(settings, (const char *[]){__VA_ARGS__, NULL})

static fsdp_status parse_for(fsdp_settings *s, const char *command, const char **words)
{
    int n = 0;
    while (words[n])
        n++;
    assert_int_equal(fsdp_settings_init(s), FSDP_OK);
    return fsdp_settings_parse(s, command, n, (char *const *)words);
}

static fsdp_status parse(fsdp_settings *s, const char **words)
{
    return parse_for(s, "train", words);
}

static void assert_refused(const char *expected, const char **words)
{
    fsdp_settings s;
    assert_int_equal(parse(&s, words), FSDP_ERR_INPUT);
    if (!strstr(fsdp_last_error(), expected))
        fail_msg("'%s' does not say '%s'", fsdp_last_error(), expected);
    fsdp_settings_free(&s);
}

#define REFUSED(expected, ...) assert_refused(expected, (const char *[]){__VA_ARGS__, NULL})

static void both_spellings_of_a_value_are_read(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--num_layers=3", "--hidden-width", "96", "--lr", "1e-3", "--max-training-steps=7",
                           "--min_num_params", "1e8"),
                     FSDP_OK);
    assert_int_equal(s.num_layers, 3);
    assert_int_equal(s.hidden_width, 96);
    assert_true(s.lr == 1e-3);
    assert_int_equal(s.max_steps, 7);
    assert_int_equal(s.min_num_params, 100000000);
    assert_true(fsdp_settings_given(&s, "max_steps"));
    assert_false(fsdp_settings_given(&s, "epochs"));
    fsdp_settings_free(&s);
}

static void switches_take_all_their_forms(void **state)
{
    (void)state;
    static const struct {
        const char *words[4];
        bool expected;
    } cases[] = {{{"--deterministic"}, true},      {{"--deterministic=1"}, true},
                 {{"--deterministic=true"}, true}, {{"--deterministic", "1"}, true},
                 {{"--no_deterministic"}, false},  {{"--no-deterministic"}, false},
                 {{"--deterministic=0"}, false},   {{"--deterministic", "false"}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_settings s;
        assert_int_equal(parse(&s, (const char **)cases[i].words), FSDP_OK);
        assert_int_equal(s.deterministic, cases[i].expected);
        assert_true(fsdp_settings_given(&s, "deterministic"));
        fsdp_settings_free(&s);
    }
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--no_limit_all_gathers", "--offload_activations", "--seed", "3"), FSDP_OK);
    assert_false(s.limit_all_gathers);
    assert_true(s.offload_activations);
    assert_int_equal(s.seed, 3);
    fsdp_settings_free(&s);
    REFUSED("--deterministic=maybe", "--deterministic=maybe");
    REFUSED("takes no value", "--no_deterministic=1");
}

static void a_switch_does_not_swallow_the_next_flag(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--bf16", "--activation_checkpointing", "--lr", "0.5"), FSDP_OK);
    assert_true(s.bf16);
    assert_int_equal(s.activation_checkpointing, FSDP_CHECKPOINT_FULL);
    assert_true(s.lr == 0.5);
    fsdp_settings_free(&s);
    assert_int_equal(PARSE(&s, "--activation_checkpointing", "selective"), FSDP_OK);
    assert_int_equal(s.activation_checkpointing, FSDP_CHECKPOINT_SELECTIVE);
    fsdp_settings_free(&s);
    assert_int_equal(PARSE(&s, "--activation_checkpointing=1"), FSDP_OK);
    assert_int_equal(s.activation_checkpointing, FSDP_CHECKPOINT_FULL);
    fsdp_settings_free(&s);
}

static void names_from_other_tools_are_understood(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        int expected;
    } cases[] = {{"--sharding_strategy=FULL_SHARD", FSDP_FULL},
                 {"--sharding_strategy=zero3", FSDP_FULL},
                 {"--sharding_strategy=SHARD_GRAD_OP", FSDP_SHARD_GRAD_OP},
                 {"--sharding_strategy=zero2", FSDP_SHARD_GRAD_OP},
                 {"--sharding_strategy=zero1", FSDP_SHARD_OP},
                 {"--sharding_strategy=NO_SHARD", FSDP_NO_SHARD},
                 {"--sharding_strategy=ddp", FSDP_NO_SHARD},
                 {"--sharding_strategy=HYBRID_SHARD", FSDP_HYBRID},
                 {"--sharding_strategy=_HYBRID_SHARD_ZERO2", FSDP_HYBRID_ZERO2},
                 {"--sharding_strategy=auto", FSDP_STRATEGY_AUTO}};
    fsdp_settings s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(PARSE(&s, cases[i].word), FSDP_OK);
        assert_int_equal(s.sharding_strategy, cases[i].expected);
        fsdp_settings_free(&s);
    }
    assert_int_equal(PARSE(&s, "--backward_prefetch", "BACKWARD_POST", "--param_dtype=torch.bfloat16"), FSDP_OK);
    assert_int_equal(s.backward_prefetch, FSDP_PREFETCH_POST);
    assert_int_equal(s.param_dtype, FSDP_BF16);
    fsdp_settings_free(&s);
}

static void the_well_known_1b_command_line_is_read(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--max_context_width=8192", "--num_key_value_heads=2", "--intermediate_size=8192",
                           "--hidden_width=2048", "--num_layers=16", "--num_heads=32", "--model_type=llama_v3",
                           "--tokenizer=hf-internal-testing/llama-tokenizer", "--checkpoint_freq=5000",
                           "--validation_freq=500", "--max_steps=5000", "--checkpoint_dir=./checkpoints",
                           "--dataset=allenai/c4", "--dataset_config_name=en", "--resume_from_checkpoint=./checkpoints",
                           "--train_batch_size=1", "--val_batch_size=1", "--sharding_strategy=full",
                           "--offload_activations=1"),
                     FSDP_OK);
    assert_int_equal(s.head_dim, 64);
    assert_int_equal(s.num_key_value_heads, 2);
    assert_string_equal(s.tokenizer, "hf-internal-testing/llama-tokenizer");
    assert_int_equal(s.dataset.n, 1);
    assert_string_equal(s.dataset.items[0], "allenai/c4");
    assert_int_equal(s.activation_checkpointing, FSDP_CHECKPOINT_FULL);
    fsdp_settings_free(&s);
}

static void lists_are_cut_at_commas(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--freeze=*.norm.*,embed*", "--shard_weights", "2,1,1,"), FSDP_OK);
    assert_int_equal(s.freeze.n, 2);
    assert_string_equal(s.freeze.items[1], "embed*");
    assert_int_equal(s.shard_weights.n, 3);
    fsdp_settings_free(&s);
    REFUSED("--shard_weights: 'x'", "--shard_weights=2,x");
    REFUSED("--shard_weights: '0'", "--shard_weights=2,0");
}

static void sizes_have_units(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(
        parse_for(&s, "plan", (const char *[]){"--preset=tiny", "--fit", "80GB", "--export_part_size=1.5GiB", NULL}),
        FSDP_OK);
    assert_int_equal(s.fit, 80000000000);
    assert_int_equal(s.export_part_size, 3LL << 29);
    fsdp_settings_free(&s);
    REFUSED("belongs to `fsdp plan`", "--fit=80GB");
    REFUSED("a size such as", "--export_part_size=5 apples");
}

static void the_nearest_name_is_suggested(void **state)
{
    (void)state;
    REFUSED("unknown flag --num_layer; did you mean --num_layers?", "--num_layer=3");
    REFUSED("did you mean --max_steps?", "--max_step=3");
    REFUSED("did you mean --hidden_width?", "--hiden-width=3");
    REFUSED("did you mean --lr?", "-lr", "3");
    REFUSED("unknown flag --qqqqqqqq; --help lists", "--qqqqqqqq");
    REFUSED("one of adamw, adam, sgd, muon, adafactor is expected; did you mean adamw?", "--optimizer=adamv");
    REFUSED("did you mean llama3_2_1b?", "--preset=llama32_1b");
    REFUSED("one of auto, cpu, cuda, h200, h100, a100 is expected", "--device=tpu");
}

static void wrong_values_name_the_flag(void **state)
{
    (void)state;
    REFUSED("--num_layers=two: a whole number is expected", "--num_layers=two");
    REFUSED("--num_layers=2.5: a whole number is expected", "--num_layers", "2.5");
    REFUSED("--num_layers=0: must be at least 1", "--num_layers=0");
    REFUSED("--lr=fast: a number is expected", "--lr=fast");
    REFUSED("--lr=nan: a number is expected", "--lr=nan");
    REFUSED("--dropout=1: must be at most", "--dropout=1");
    REFUSED("--num_layers wants a value", "--num_layers");
    REFUSED("--num_layers wants a value", "--num_layers", "--lr=1");
    REFUSED("unexpected word 'data.txt'", "data.txt");
    REFUSED("must be whole", "--warmup=1.5");
}

static void contradictions_name_both_flags(void **state)
{
    (void)state;
    REFUSED("--bf16=true and --fp16=true contradict", "--bf16", "--fp16");
    REFUSED("--bf16=true and --param_dtype=fp32", "--bf16", "--param_dtype=fp32");
    REFUSED("--offload_activations=true and --activation_checkpointing=none", "--offload_activations=1",
            "--no_activation_checkpointing");
    REFUSED("--shard_group_size=2 and --sharding_strategy=full", "--shard_group_size=2", "--sharding_strategy=full");
    REFUSED("--gather_buffers=3 and --limit_all_gathers=false", "--gather_buffers=3", "--limit_all_gathers=0");
    REFUSED("--min_num_params=512 and --wrap_policy=none", "--min_num_params=512", "--wrap_policy=none");
    REFUSED("--lr=0.001 and --min_lr=0.01", "--lr=1e-3", "--min_lr=1e-2");
    REFUSED("--validation_split=0.1 and --validation_dataset=x", "--validation_split=0.1", "--validation_dataset=x");
    REFUSED("--hidden_width=100 and --num_heads=12", "--hidden_width=100");
    REFUSED("--num_heads=12 and --num_key_value_heads=5", "--num_key_value_heads=5");
    REFUSED("--preset=t5-small and --model_type=mistral", "--preset=t5-small", "--model_type=mistral");
    REFUSED("--warmup=20 and --max_steps=10", "--warmup=20", "--max_steps=10");
    REFUSED("--optimizer=adafactor and --optimizer_state=bf16", "--optimizer=adafactor", "--optimizer_state=bf16");
    REFUSED("--optimizer=muon and --gradient_dtype=bf16", "--optimizer=muon", "--gradient_dtype=bf16");
    REFUSED("--preset=tiny and --model_config=c.json", "--preset=tiny", "--model_config=c.json");
}

static void warmup_below_one_is_a_fraction(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--warmup=0.1"), FSDP_OK);
    assert_int_equal(fsdp_settings_warmup_steps(&s, 250), 25);
    fsdp_settings_free(&s);
    assert_int_equal(PARSE(&s, "--warmup=12"), FSDP_OK);
    assert_int_equal(fsdp_settings_warmup_steps(&s, 250), 12);
    fsdp_settings_free(&s);
    assert_int_equal(PARSE(&s, "--warmup=1"), FSDP_OK);
    assert_int_equal(fsdp_settings_warmup_steps(&s, 250), 1);
    fsdp_settings_free(&s);
}

static void min_num_params_alone_means_the_size_policy(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--min_num_params=512"), FSDP_OK);
    assert_int_equal(s.wrap_policy, FSDP_WRAP_SIZE);
    fsdp_settings_free(&s);
}

static void a_preset_lies_under_what_is_given(void **state)
{
    (void)state;
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--num_layers=2", "--preset", "llama3_2_1b", "--max_context_width=128"), FSDP_OK);
    assert_int_equal(s.num_layers, 2);
    assert_int_equal(s.max_context_width, 128);
    assert_int_equal(s.hidden_width, 2048);
    assert_int_equal(s.vocab_size, 128256);
    assert_int_equal(s.rope_scaling, FSDP_ROPE_LLAMA3);
    assert_true(s.rope_factor == 32);
    assert_true(s.tie_word_embeddings);
    assert_int_equal(s.param_dtype, FSDP_BF16);
    assert_false(fsdp_settings_given(&s, "hidden_width"));
    fsdp_settings_free(&s);
    assert_int_equal(PARSE(&s, "--preset=llama2_7b", "--param_dtype=fp32"), FSDP_OK);
    assert_int_equal(s.param_dtype, FSDP_F32);
    fsdp_settings_free(&s);
}

/* Parameters of a LLaMA of this shape, embeddings and norms included. */
static int64_t llama_parameters(const fsdp_settings *s)
{
    int64_t h = s->hidden_width, q = s->num_heads * s->head_dim, kv = s->num_key_value_heads * s->head_dim;
    int64_t block = h * (q + 2 * kv) + q * h + 3 * h * s->intermediate_size + 2 * h;
    return s->num_layers * block + h + s->vocab_size * h * (s->tie_word_embeddings ? 1 : 2);
}

static void preset_shapes_have_the_published_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t parameters;
    } cases[] = {{"llama3_2_1b", 1235814400}, {"llama3_2_3b", 3212749824}, {"llama3_1_8b", 8030261248},
                 {"llama2_7b", 6738415616},   {"llama2_13b", 13015864320}, {"llama3_1_70b", 70553706496},
                 {"mistral_7b", 7241732096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_settings s;
        assert_int_equal(PARSE(&s, "--preset", cases[i].preset), FSDP_OK);
        assert_int_equal(llama_parameters(&s), cases[i].parameters);
        fsdp_settings_free(&s);
    }
}

static void every_preset_passes_its_own_check(void **state)
{
    (void)state;
    const fsdp_flag *preset = fsdp_flags_find(fsdp_settings_flags(), "preset");
    int n = 0;
    for (const fsdp_choice *c = preset->choices; c->name; c++, n++) {
        fsdp_settings s;
        assert_int_equal(PARSE(&s, "--preset", c->name), FSDP_OK);
        assert_int_equal(s.preset, c->value);
        fsdp_settings_free(&s);
    }
    assert_int_equal(n, FSDP_PRESET_COUNT);
}

static void write_file(char *path, const char *text)
{
    strcpy(path, "/tmp/fsdp-settings-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void the_command_line_wins_over_a_file_of_lines(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "# a comment\n\nnum-layers = 5   # five\nlr=0.25\n tokenizer = \"a # b\"\nbf16 = true\nfreeze = "
                     "a,b\nfit = 80GB\n");
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--lr=0.5", "--config", path), FSDP_OK);
    assert_int_equal(s.num_layers, 5);
    assert_true(s.lr == 0.5);
    assert_string_equal(s.tokenizer, "a # b");
    assert_int_equal(s.param_dtype, FSDP_BF16);
    assert_int_equal(s.freeze.n, 2);
    assert_true(fsdp_settings_given(&s, "num_layers"));
    fsdp_settings_free(&s);
    unlink(path);
}

static void a_json_file_is_read_with_its_types(void **state)
{
    (void)state;
    char path[64];
    write_file(
        path,
        "{\"num_layers\": 5, \"lr\": 0.1, \"shuffle\": false, \"dataset\": [\"a,b\", \"c\"], \"preset\": \"tiny\","
        "\"shard_weights\": [2, 1], \"metrics\": null}");
    fsdp_settings s;
    assert_int_equal(PARSE(&s, "--config", path, "--num_layers", "4"), FSDP_OK);
    assert_int_equal(s.num_layers, 4);
    assert_true(s.lr == 0.1);
    assert_false(s.shuffle);
    assert_int_equal(s.dataset.n, 2);
    assert_string_equal(s.dataset.items[0], "a,b");
    assert_string_equal(s.shard_weights.items[0], "2");
    assert_int_equal(s.hidden_width, 192);
    assert_null(s.metrics);
    fsdp_settings_free(&s);
    unlink(path);
}

static void bad_files_are_refused_with_file_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {{"lr = 1\nnum_layer = 2\n", ":2: unknown setting num_layer; did you mean num_layers?"},
                 {"lr = 1\nlr = 2\n", ":2: lr is set twice"},
                 {"lr 1\n", ":1: 'lr 1' is no \"key = value\""},
                 {"lr = x\n", ":1: --lr=x: a number is expected"},
                 {"{\"lr\": {}}", "lr: an object is no value"},
                 {"{\"lr\": [1]}", "lr takes one value, not a list"},
                 {"{\"lr\": ", "fsdp-settings-"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        write_file(path, cases[i].text);
        REFUSED(cases[i].expected, "--config", path);
        REFUSED(path, "--config", path);
        unlink(path);
    }
    REFUSED("/nowhere/at-all", "--config=/nowhere/at-all");
}

static void settings_as_used_can_be_used_again(void **state)
{
    (void)state;
    fsdp_settings s, again;
    assert_int_equal(PARSE(&s, "--preset=cnn", "--lr=0.1234567890123", "--dataset=a,b", "--no_shuffle",
                           "--offload_activations", "--no_limit_all_gathers"),
                     FSDP_OK);
    char *text, *text_again, path[64];
    assert_int_equal(fsdp_settings_json(&s, &text), FSDP_OK);
    write_file(path, text);
    assert_int_equal(PARSE(&again, "--config", path), FSDP_OK);
    again.config = NULL;
    assert_int_equal(fsdp_settings_json(&again, &text_again), FSDP_OK);
    assert_string_equal(text, text_again);
    assert_true(again.lr == 0.1234567890123);
    unlink(path);
    free(text);
    free(text_again);
    fsdp_settings_free(&s);
    fsdp_settings_free(&again);
}

static void a_list_that_was_emptied_stays_empty_when_settings_are_used_again(void **state)
{
    (void)state;
    fsdp_settings first, again;
    char *text = NULL, path[] = "/tmp/fsdp-settings-XXXXXX";
    assert_int_equal(PARSE(&first, "--preset=tiny", "--dataset="), FSDP_OK);
    assert_int_equal(first.dataset.n, 0); /* the preset has one */
    assert_int_equal(fsdp_settings_json(&first, &text), FSDP_OK);
    write_file(path, text);
    assert_int_equal(PARSE(&again, "--config", path), FSDP_OK);
    assert_int_equal(again.dataset.n, 0);
    unlink(path);
    free(text);
    fsdp_settings_free(&first);
    fsdp_settings_free(&again);
}

static void text_that_json_cannot_hold_is_refused(void **state)
{
    (void)state;
    REFUSED("not UTF-8", "--dataset=a,caf\xe9");
    REFUSED("--output_dir=caf\\xe9", "--output_dir=caf\xe9");
}

static void every_row_is_complete_and_its_default_is_legal(void **state)
{
    (void)state;
    const fsdp_flag *table = fsdp_settings_flags();
    int n = 0;
    for (const fsdp_flag *flag = table; flag->name; flag++, n++) {
        assert_non_null(flag->group);
        assert_non_null(flag->help);
        assert_true(strlen(flag->help) > 5 && flag->help[strlen(flag->help) - 1] != '.');
        assert_true(flag->offset < sizeof(fsdp_settings));
        assert_true(flag->unit || flag->choices || flag->type == FSDP_FLAG_SWITCH);
        assert_ptr_equal(fsdp_flags_find(table, flag->name), flag);
        for (const fsdp_flag *other = table; other != flag; other++)
            assert_false(other->offset == flag->offset);
    }
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_of_a_value_are_read),
        cmocka_unit_test(switches_take_all_their_forms),
        cmocka_unit_test(a_switch_does_not_swallow_the_next_flag),
        cmocka_unit_test(names_from_other_tools_are_understood),
        cmocka_unit_test(the_well_known_1b_command_line_is_read),
        cmocka_unit_test(lists_are_cut_at_commas),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(the_nearest_name_is_suggested),
        cmocka_unit_test(wrong_values_name_the_flag),
        cmocka_unit_test(contradictions_name_both_flags),
        cmocka_unit_test(warmup_below_one_is_a_fraction),
        cmocka_unit_test(min_num_params_alone_means_the_size_policy),
        cmocka_unit_test(a_preset_lies_under_what_is_given),
        cmocka_unit_test(preset_shapes_have_the_published_sizes),
        cmocka_unit_test(every_preset_passes_its_own_check),
        cmocka_unit_test(the_command_line_wins_over_a_file_of_lines),
        cmocka_unit_test(a_json_file_is_read_with_its_types),
        cmocka_unit_test(bad_files_are_refused_with_file_and_line),
        cmocka_unit_test(settings_as_used_can_be_used_again),
        cmocka_unit_test(a_list_that_was_emptied_stays_empty_when_settings_are_used_again),
        cmocka_unit_test(text_that_json_cannot_hold_is_refused),
        cmocka_unit_test(every_row_is_complete_and_its_default_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
