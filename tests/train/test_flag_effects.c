/* Every flag reaches what it names: a knob that changes the numbers changes the loss, one that must not leaves every
 * bit of it and changes the plan instead; data, guard and report flags do what they say. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include <fsdp/plan.h>

#include "support_job.h"

static void expect_ok(const job *j)
{
    if (j->status != FSDP_OK)
        fail_msg("%s", j->error);
}

static void knobs_of_the_numbers_change_the_loss(void **state)
{
    static const char *const knobs[][3] = {
        {"--lr=0.02"},
        {"--grad_clip=0.01", "--optimizer=sgd"},
        {"--optimizer=sgd"},
        {"--optimizer=adam", "--weight_decay=1"},
        {"--optimizer=sgd", "--momentum=0.5"},
        {"--weight_decay=10"},
        {"--beta1=0.5"},
        {"--beta2=0.5"},
        {"--eps=0.1"},
        {"--seed=43"},
        {"--initializer_range=0.1"},
        {"--rotary_emb_base=10"},
        {"--norm_eps=0.5"},
        {"--param_dtype=bf16"},
        {"--bf16"},
        {"--fp16"},
        {"--reduce_dtype=bf16"},
        {"--buffer_dtype=bf16"},
        {"--gradient_accumulation_steps=2"},
        {"--train_batch_size=3"},
        {"--no_shuffle"},
        {"--max_samples=10"},
        {"--freeze=model.embed_tokens.*"},
        {"--warmup=3"},
        {"--tie_word_embeddings"},
        {"--attention_bias", "--seed=1"},
        {"--mlp_bias", "--seed=1"},
        {"--rope_scaling=linear", "--rope_factor=4"},
        {"--model_type=llama_v2"}, /* another base of its rotary positions */
        {"--num_key_value_heads=1"},
        {"--head_dim=4"},
        {"--vocab_size=300"},
    };
    job *j = *state;
    RUN(j, "--momentum=0.9");
    expect_ok(j);
    double plain = j->steps[3].loss;
    assert_true(isfinite(plain));
    RUN(j, "--momentum=0.9");
    assert_true(j->steps[3].loss == plain); /* the same flags, the same bits: what follows is not noise */
    RUN(j, "--optimizer=sgd");
    double sgd = j->steps[3].loss;
    RUN(j, "--seed=1");
    double seeded = j->steps[3].loss;
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        const char *const *k = knobs[i];
        job_run(j, k);
        if (j->status != FSDP_OK || j->n_steps != 4)
            fail_msg("%s: %s", k[0], j->error);
        double loss = j->steps[3].loss;
        if (loss == plain || !isfinite(loss))
            fail_msg("%s changes nothing", k[0]);
        if (k[1] && (loss == sgd || loss == seeded))
            fail_msg("%s does nothing beside %s", k[0], k[1]);
    }
}

static void knobs_of_the_schedule_keep_every_bit(void **state)
{
    static const char *const knobs[][2] = {
        {"--no_forward_prefetch"},
        {"--backward_prefetch=BACKWARD_POST"},
        {"--backward_prefetch=none"},
        {"--limit_all_gathers=0"},
        {"--gather_buffers=3"},
        {"--wrap_policy=none"},
        {"--min_num_params=100"},
        {"--activation_checkpointing"},
        {"--activation_checkpointing=selective"},
        {"--recompute_cheap"},
        {"--offload_activations=1"},
        {"--cpu_offload"},
        {"--bucket_mb=1"},
        {"--loader_threads=3"},
        {"--prefetch_batches=1"},
        {"--deterministic"},
        {"--comm_thread"},
        {"--comm_ctas=8"},
        {"--comm_memory=symmetric"},
        {"--reduce_accumulation=library"},
        {"--sharding_strategy=no_shard"},
        {"--logging_freq=2"},
        {"--sharding_strategy=ZERO2"},
        {"--log_level=error"},
    };
    job *j = *state;
    RUN(j, "--seed=42");
    expect_ok(j);
    double plain = j->steps[3].loss;
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++) {
        job_run(j, knobs[i]);
        if (j->status != FSDP_OK)
            fail_msg("%s: %s", knobs[i][0], j->error);
        if (j->steps[3].loss != plain)
            fail_msg("%s changes the loss from %.9g to %.9g", knobs[i][0], plain, j->steps[3].loss);
    }
}

/* A number of the plan of four ranks; `strategy` is where it stands in the list. */
static double planned(const char *key, const char *strategy, const char *const *flags)
{
    const char *argv[16] = {"--model_type=llama_v3",
                            "--vocab_size=300",
                            "--hidden_width=64",
                            "--num_layers=6",
                            "--num_heads=4",
                            "--world_size=4",
                            "--json",
                            "--ranks_per_node=2",
                            "--max_context_width=64",
                            "--intermediate_size=128",
                            "--sharding_strategy=full"};
    int argc = 11;
    for (; *flags; flags++)
        argv[argc++] = *flags;
    fsdp_settings s;
    char *text = NULL;
    assert_int_equal(fsdp_settings_init(&s), FSDP_OK);
    if (fsdp_settings_parse(&s, "plan", argc, (char *const *)argv) != FSDP_OK || fsdp_plan(&s, &text) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    json_t *o = json_loads(text, 0, NULL), *list = json_object_get(o, "strategies");
    double value = NAN;
    if (!strategy)
        value = json_number_value(json_object_get(o, key));
    for (size_t i = 0; strategy && i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(entry, "strategy")), strategy) == 0)
            value = json_number_value(json_object_get(entry, key));
    }
    json_decref(o);
    free(text);
    fsdp_settings_free(&s);
    assert_false(isnan(value));
    return value;
}

#define PLANNED(key, strategy, ...) planned(key, strategy, (const char *[]){__VA_ARGS__, NULL})

static void shapes_are_what_the_flags_say(void **state)
{
    (void)state;
    double plain = PLANNED("parameters", NULL, "--seed=1"), h = 64, block = 4 * h * h + 3 * h * 128 + 2 * h;
    assert_true(plain == 2 * 300 * h + 6 * block + h);
    assert_true(PLANNED("parameters", NULL, "--num_layers=7") == plain + block);
    assert_true(PLANNED("parameters", NULL, "--vocab_size=301") == plain + 2 * h);
    assert_true(PLANNED("parameters", NULL, "--intermediate_size=129") == plain + 6 * 3 * h);
    assert_true(PLANNED("parameters", NULL, "--tie_word_embeddings") == plain - 300 * h);
    assert_true(PLANNED("parameters", NULL, "--num_key_value_heads=2") == plain - 6 * h * h);
    assert_true(PLANNED("parameters", NULL, "--head_dim=8") == plain - 6 * 4 * h * h / 2);
    assert_true(PLANNED("parameters", NULL, "--attention_bias") > plain);
    assert_true(PLANNED("parameters", NULL, "--mlp_bias") > plain);
    double wide = 2 * 300 * 32 + 6 * (4 * 32 * 32 + 3 * 32 * 128 + 2 * 32) + 32;
    assert_true(PLANNED("parameters", NULL, "--hidden_width=32") == wide);
    assert_true(PLANNED("activations", "full", "--max_context_width=128") > PLANNED("activations", "full", "--seed=1"));
    assert_true(PLANNED("activations", "full", "--train_batch_size=8") > PLANNED("activations", "full", "--seed=1"));
}

static void sharding_flags_change_the_plan(void **state)
{
    (void)state;
    double gather = PLANNED("gather", "full", "--seed=1"), activations = PLANNED("activations", "full", "--seed=1");
    assert_true(PLANNED("units", NULL, "--wrap_policy=none") == 1);
    assert_true(PLANNED("units", NULL, "--wrap_policy=size", "--min_num_params=1000") >
                PLANNED("units", NULL, "--wrap_policy=size", "--min_num_params=100000"));
    assert_true(PLANNED("units", NULL, "--bucket_mb=1") < PLANNED("units", NULL, "--seed=1"));
    assert_true(PLANNED("units", NULL, "--wrap_types=linear") != PLANNED("units", NULL, "--seed=1"));
    assert_true(PLANNED("gather", "full", "--gather_buffers=4") > gather);
    assert_true(PLANNED("gather", "full", "--limit_all_gathers=0") > gather);
    assert_true(PLANNED("gather", "full", "--gather_buffers=1") < gather);
    assert_true(PLANNED("activations", "full", "--activation_checkpointing") < activations);
    assert_true(PLANNED("activations", "full", "--activation_checkpointing=selective") < activations);
    assert_true(PLANNED("activations", "full", "--offload_activations=1") < activations);
    assert_true(PLANNED("activations", "full", "--recompute_cheap") < activations);
    assert_true(PLANNED("copies", "full", "--bf16") > PLANNED("copies", "full", "--seed=1"));
    assert_true(PLANNED("gathered_bytes", "full", "--param_dtype=bf16") * 2 ==
                PLANNED("gathered_bytes", "full", "--seed=1"));
    assert_true(PLANNED("reduced_bytes", "full", "--reduce_dtype=bf16") * 2 ==
                PLANNED("reduced_bytes", "full", "--seed=1"));
    assert_true(PLANNED("optimizer", "full", "--optimizer=sgd") * 2 == PLANNED("optimizer", "full", "--seed=1"));
    /* shards are cut on blocks: not exactly twice */
    double halves = PLANNED("parameters", "hybrid", "--sharding_strategy=hybrid", "--shard_group_size=2");
    assert_true(fabs(halves / PLANNED("parameters", "full", "--seed=1") - 2) < 0.1);
}

/* Lines "step rank sample..." of --log_samples: how often each sample came. */
static int count_samples(const char *text, int *seen, int n)
{
    int total = 0;
    memset(seen, 0, (size_t)n * sizeof *seen);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        int used, step, rank;
        const char *at = line;
        assert_int_equal(sscanf(at, "%d %d%n", &step, &rank, &used), 2);
        at += used;
        for (int sample; *at != '\n' && sscanf(at, "%d%n", &sample, &used) == 1; at += used) {
            assert_true(sample >= 0 && sample < n);
            seen[sample]++;
            total++;
        }
    }
    return total;
}

static void samples_are_logged_once_an_epoch_and_limited(void **state)
{
    job *j = *state;
    int seen[JOB_SAMPLES];
    remove("samples");
    RUN(j, "--epochs=2", "--train_batch_size=7", "--log_samples=@run.samples");
    expect_ok(j);
    char *text = job_file(j, "run.samples");
    assert_int_equal(count_samples(text, seen, JOB_SAMPLES), 2 * JOB_SAMPLES);
    for (int i = 0; i < JOB_SAMPLES; i++)
        assert_int_equal(seen[i], 2);
    free(text);
    assert_int_equal(j->n_steps, 16);
    assert_int_equal(j->steps[7].samples, 1); /* 50 = 7 * 7 + 1 */
    RUN(j, "--epochs=1", "--train_batch_size=4", "--max_samples=10", "--log_samples=@ten.samples");
    text = job_file(j, "ten.samples");
    assert_int_equal(count_samples(text, seen, 10), 10);
    free(text);
}

static void a_split_is_held_back_and_validated(void **state)
{
    job *j = *state;
    int seen[JOB_SAMPLES];
    RUN(j, "--epochs=1", "--train_batch_size=5", "--validation_split=0.2", "--validation_freq=4",
        "--log_samples=@split.samples");
    expect_ok(j);
    char *text = job_file(j, "split.samples");
    assert_int_equal(count_samples(text, seen, JOB_SAMPLES), 40);
    for (int i = 40; i < JOB_SAMPLES; i++)
        assert_int_equal(seen[i], 0);
    free(text);
    text = job_file(j, "run/validation.jsonl");
    assert_non_null(text);
    assert_non_null(strstr(text, "{\"step\": 4, \"validation_loss\": "));
    assert_non_null(strstr(text, "{\"step\": 8, \"validation_loss\": "));
    assert_null(strstr(text, "\"step\": 6"));
    free(text);
    double whole = j->result.validation_loss;
    assert_non_null(strstr(j->said, "perplexity"));
    RUN(j, "--epochs=1", "--train_batch_size=5", "--validation_split=0.2", "--val_batch_size=3");
    assert_true(fabs(j->result.validation_loss - whole) < 1e-5); /* one mean, however it is cut */
    RUN(j, "--epochs=1", "--train_batch_size=5", "--validation_split=0.2", "--validation_batches=1");
    assert_true(fabs(j->result.validation_loss - whole) > 1e-6);
}

static void validation_files_are_found_where_they_are(void **state)
{
    job *j = *state;
    char path[128], *text = job_file(j, "text.txt");
    const char *const folders[] = {"c4", "c4/en"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", j->folder, folders[i]);
        mkdir(path, 0777);
    }
    char *record;
    assert_true(asprintf(&record, "{\"text\": \"%s\"}\n", text) > 0);
    job_write(j, "c4/en/c4-train.00000-of-00002.json", record);
    job_write(j, "c4/en/c4-validation.00000-of-00001.json", record);
    RUN(j, "--dataset=@c4", "--dataset_config_name=en", "--validation_freq=2", "--epochs=1");
    expect_ok(j);
    assert_true(isfinite(j->result.validation_loss));
    assert_int_equal(j->result.samples, JOB_SAMPLES); /* and they are no training data */
    RUN(j, "--validation_dataset=@c4/en/c4-validation.00000-of-00001.json");
    assert_true(isfinite(j->result.validation_loss));
    RUN(j, "--validation_freq=2");
    expect_ok(j);
    assert_true(isnan(j->result.validation_loss));
    assert_non_null(strstr(j->said, "nothing is validated"));
    free(record);
    free(text);
}

static void numbers_that_are_not_finite_stop_skip_or_roll_back(void **state)
{
    job *j = *state;
    /* Decay of this size multiplies the weights by a billion in every step. */
    RUN(j, "--lr=1e6", "--weight_decay=1000", "--max_steps=9");
    assert_int_equal(j->status, FSDP_ERR_NUMERIC);
    assert_non_null(strstr(j->error, "not finite"));
    assert_non_null(strstr(j->error, "--nan_policy skip"));
    RUN(j, "--lr=1e6", "--weight_decay=1000", "--max_steps=9", "--nan_policy=skip");
    expect_ok(j);
    assert_int_equal(j->result.steps, 9);
    assert_non_null(strstr(j->said, "the step was skipped"));
    RUN(j, "--lr=1e6", "--weight_decay=1000", "--max_steps=9", "--nan_policy=rollback");
    assert_int_equal(j->status, FSDP_ERR_NUMERIC); /* nothing to go back to */
    assert_non_null(strstr(j->error, "--checkpoint_freq"));
    /* The rate explodes in the second step only: back to the first, on with other samples, and again. */
    RUN(j, "--lr=1e-3", "--checkpoint_freq=1", "--max_steps=1", "--checkpoint_dir=@good");
    expect_ok(j);
    RUN(j, "--lr=1e6", "--weight_decay=1000", "--max_steps=9", "--nan_policy=rollback", "--checkpoint_dir=@good",
        "--resume_from_checkpoint=@good");
    assert_non_null(strstr(j->said, "back to "));
    /* Steps that were made again are in the file once, in their order. */
    char *metrics = job_file(j, "run/metrics.jsonl");
    assert_non_null(metrics);
    int last = 1;
    for (const char *at = metrics; (at = strstr(at, "\"step\": ")); at++, last++)
        assert_int_equal(atoi(at + strlen("\"step\": ")), last + 1);
    assert_true(last > 1);
    free(metrics);
}

/* A large head over tiny embeddings: the loss is finite, and gradients overflow in fp16 whatever the scale. */
static void overflows_that_no_loss_scale_helps_are_not_finite(void **state)
{
    job *j = *state;
#define OVERFLOWS                                                                                                      \
    "--fp16", "--initializer_range=1e-6", "--norm_eps=1e-14", "--lr_groups=lm_head.weight=10000,model.*=0",            \
        "--weight_decay=0", "--max_steps=60"
    RUN(j, OVERFLOWS);
    assert_int_equal(j->status, FSDP_ERR_NUMERIC);
    assert_int_equal(j->n_steps, 17); /* one, then sixteen that halve 65536 down to 1 */
    RUN(j, OVERFLOWS, "--nan_policy=skip");
    expect_ok(j);
    assert_non_null(strstr(j->said, "step 60: loss"));
    assert_null(strstr(j->said, "step 17: loss"));
}

static void flags_without_effect_are_named(void **state)
{
    static const char *const idle[][3] = {
        {"--fp8_skip=model.layers.0.*"},
        {"--fp8_weights=step"},
        {"--fp8_max_error=0.1"},
        {"--fp8_max_error=0.1", "--fp8"},
        {"--optimizer_state=bf16", "--optimizer=sgd", "--momentum=0"},
        {"--reduce_accumulation=library"},
        {"--loss_scale=8"},
        {"--cpu_offload_split"},
        {"--cpu_offload_ahead"},
        {"--cpu_offload_resident=auto"},
    };
    job *j = *state;
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        char wanted[64];
        const char *flags[] = {"--max_steps=1", idle[i][0], idle[i][1], idle[i][2], NULL};
        snprintf(wanted, sizeof wanted, "%.*s has no effect", (int)strcspn(idle[i][0], "="), idle[i][0]);
        job_run(j, flags);
        expect_ok(j);
        if (!strstr(j->said, wanted))
            fail_msg("%s: not said: %s", wanted, j->said);
    }
    RUN(j, "--max_steps=1", "--fp8", "--fp8_skip=model.layers.0.*", "--fp8_check=1", "--fp8_max_error=0.1",
        "--fp8_weights=use", "--optimizer_state=bf16", "--reduce_accumulation=library", "--reduce_dtype=bf16", "--fp16",
        "--loss_scale=8");
    expect_ok(j);
    assert_null(strstr(j->said, "no effect"));
    char *settings = job_file(j, "run/settings.json"); /* spells out every default */
    assert_non_null(settings);
    job_write(j, "settings.json", settings);
    RUN(j, "--max_steps=1", "--config=@settings.json");
    expect_ok(j);
    assert_null(strstr(j->said, "no effect"));
    free(settings);
}

static void weights_come_from_checkpoints_and_exported_folders(void **state)
{
    job *j = *state;
    RUN(j, "--checkpoint_freq=4", "--checkpoint_dir=@kept", "--export_dir=@exported", "--max_steps=4");
    expect_ok(j);
    RUN(j, "--max_steps=1", "--seed=7", "--no_shuffle");
    double fresh = j->steps[0].loss;
    RUN(j, "--max_steps=1", "--seed=7", "--no_shuffle", "--init_from=@kept");
    expect_ok(j);
    double newest = j->steps[0].loss;
    assert_true(newest < fresh - 0.01); /* weights of another run, not those of a seed */
    RUN(j, "--max_steps=1", "--seed=8", "--no_shuffle", "--init_from=@kept/step-00000004");
    expect_ok(j);
    assert_true(j->steps[0].loss == newest);
    RUN(j, "--max_steps=1", "--seed=8", "--no_shuffle", "--init_from=@exported");
    expect_ok(j);
    assert_true(j->steps[0].loss == newest);
    RUN(j, "--max_steps=1", "--seed=8", "--no_shuffle", "--init_from=@exported/model.safetensors");
    expect_ok(j);
    assert_true(j->steps[0].loss == newest);
    assert_int_equal(j->result.steps, 1); /* weights, not the run: no resume */
}

static void reports_come_as_often_as_asked(void **state)
{
    job *j = *state;
    RUN(j, "--max_steps=10", "--logging_freq=3", "--metrics=@more/metrics.jsonl", "--tensorboard_dir=@board");
    expect_ok(j);
    assert_int_equal(j->n_progress, 4); /* 3, 6, 9 and the last */
    assert_int_equal(j->n_steps, 10);   /* a line for every step all the same */
    assert_non_null(strstr(j->said, "Batch 3 Loss: "));
    assert_non_null(strstr(j->said, "% of peak)"));
    assert_non_null(strstr(j->said, "utilization "));
    char *here = job_file(j, "run/metrics.jsonl"), *there = job_file(j, "more/metrics.jsonl");
    assert_string_equal(here, there);
    assert_non_null(strstr(here, "\"utilization\": 0."));
    free(here);
    free(there);
    char path[128];
    snprintf(path, sizeof path, "%s/board", j->folder);
    DIR *folder = opendir(path);
    int n = 0;
    for (struct dirent *e; folder && (e = readdir(folder));)
        n += strncmp(e->d_name, "events.out.tfevents.", 20) == 0;
    closedir(folder);
    assert_int_equal(n, 1);
    here = job_file(j, "run/settings.json");
    assert_non_null(strstr(here, "\"logging_freq\": 3"));
    assert_non_null(strstr(here, "\"vocab_size\": 256")); /* the tokenizer's, filled in */
    free(here);
}

static void a_device_that_is_not_there_is_an_error(void **state)
{
    job *j = *state;
    RUN(j, "--device=cuda");
    if (j->status == FSDP_OK && strstr(j->said, "NVIDIA"))
        skip();
    assert_int_equal(j->status, FSDP_ERR_INPUT);
    assert_non_null(strstr(j->error, "--device auto takes the CPU where there is no GPU"));
    assert_int_equal(j->n_steps, 0);
    RUN(j, "--device=auto");
    expect_ok(j);
}

static void a_dry_run_says_plan_and_settings_and_leaves_nothing(void **state)
{
    job *j = *state;
    RUN(j, "--dry_run", "--preset=tiny", "--hidden_width=24");
    expect_ok(j);
    assert_int_equal(j->n_steps, 0);
    assert_null(job_file(j, "run/settings.json"));
    assert_non_null(strstr(j->said, "gathered units"));
    assert_non_null(strstr(j->said, "* hidden_width                     24                           flag"));
    assert_non_null(strstr(j->said, "* warmup                           0.1                          other settings"));
    assert_non_null(strstr(j->said, "  momentum                         0.9                          default"));
    assert_non_null(strstr(j->said, "* val_batch_size                   2                            other settings"));
    assert_non_null(strstr(j->said, "* sample_tokens                    400                          preset"));
    RUN(j, "--dry_run", "--json");
    json_t *o = json_loads(j->said, 0, NULL), *value;
    assert_non_null(o);
    value = json_object_get(json_object_get(o, "settings"), "vocab_size");
    assert_int_equal(json_integer_value(json_object_get(value, "value")), 256);
    assert_string_equal(json_string_value(json_object_get(value, "from")), "model or data");
    assert_true(json_array_size(json_object_get(json_object_get(o, "plan"), "strategies")) >= 4);
    json_decref(o);
}

static void the_guide_by_size_chooses_for_every_preset(void **state)
{
    static const struct {
        const char *preset, *strategy;
        bool offload;
    } cases[] = {
        {"tiny", "no_shard", false},
        {"t5-small", "no_shard", false},
        {"llama3_2_1b", "shard_grad_op", true},
        {"llama3_2_3b", "shard_grad_op", true},
        {"llama3_1_8b", "shard_grad_op", true},
        {"llama2_7b", "shard_grad_op", true},
        {"mistral_7b", "shard_grad_op", true},
        {"llama2_13b", "full", true},
        {"llama3_1_70b", "full", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char preset[64];
        const char *argv[] = {preset,         "--dry_run",  "--json",
                              "--device=cpu", "--dataset=", "--sharding_strategy=recommended"};
        job *j = *state;
        fsdp_settings s;
        fsdp_train_callbacks callbacks = FSDP_TRAIN_CALLBACKS_INIT;
        snprintf(preset, sizeof preset, "--preset=%s", cases[i].preset);
        j->said[0] = '\0';
        callbacks.context = j;
        callbacks.line = job_hear;
        assert_int_equal(fsdp_settings_init(&s), FSDP_OK);
        assert_int_equal(fsdp_settings_parse(&s, "train", 6, (char *const *)argv), FSDP_OK);
        if (fsdp_train(&s, &callbacks, NULL) != FSDP_OK)
            fail_msg("%s: %s", cases[i].preset, fsdp_last_error());
        json_t *o = json_loads(j->said, 0, NULL), *settings = json_object_get(o, "settings");
        const char *strategy =
            json_string_value(json_object_get(json_object_get(settings, "sharding_strategy"), "value"));
        const char *from = json_string_value(json_object_get(json_object_get(settings, "sharding_strategy"), "from"));
        bool offload = json_is_true(json_object_get(json_object_get(settings, "offload_activations"), "value"));
        if (!strategy || strcmp(strategy, cases[i].strategy) != 0 || strcmp(from, "model size") != 0)
            fail_msg("%s: strategy %s from %s", cases[i].preset, strategy, from);
        if (offload != cases[i].offload)
            fail_msg("%s: offload_activations is %d", cases[i].preset, offload);
        assert_non_null(strstr(json_string_value(json_object_get(o, "reason")), "recommended for"));
        json_decref(o);
        fsdp_settings_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knobs_of_the_numbers_change_the_loss),
        cmocka_unit_test(knobs_of_the_schedule_keep_every_bit),
        cmocka_unit_test(shapes_are_what_the_flags_say),
        cmocka_unit_test(sharding_flags_change_the_plan),
        cmocka_unit_test(samples_are_logged_once_an_epoch_and_limited),
        cmocka_unit_test(a_split_is_held_back_and_validated),
        cmocka_unit_test(validation_files_are_found_where_they_are),
        cmocka_unit_test(numbers_that_are_not_finite_stop_skip_or_roll_back),
        cmocka_unit_test(overflows_that_no_loss_scale_helps_are_not_finite),
        cmocka_unit_test(flags_without_effect_are_named),
        cmocka_unit_test(weights_come_from_checkpoints_and_exported_folders),
        cmocka_unit_test(reports_come_as_often_as_asked),
        cmocka_unit_test(a_device_that_is_not_there_is_an_error),
        cmocka_unit_test(a_dry_run_says_plan_and_settings_and_leaves_nothing),
        cmocka_unit_test(the_guide_by_size_chooses_for_every_preset),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
