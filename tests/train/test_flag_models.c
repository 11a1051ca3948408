/* Flags of T5, of the networks for images, of what stays frozen and of what a run leaves: each changes what it names.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "format/weights/model_folder.h"

#include "support_job.h"
#include "support/draw.h"

static void expect_ok(const job *j)
{
    if (j->status != FSDP_OK)
        fail_msg("%s", j->error);
}

/* Each row after `base` must finish and give another loss than `base` alone. */
static void expect_differences(job *j, const char *const *base, const char *const (*rows)[3], size_t n)
{
    const char *flags[32];
    int n_base = 0;
    for (; base[n_base]; n_base++)
        flags[n_base] = base[n_base];
    flags[n_base] = NULL;
    job_run(j, flags);
    expect_ok(j);
    double plain = j->steps[j->n_steps - 1].loss;
    job_run(j, flags);
    assert_true(j->steps[j->n_steps - 1].loss == plain);
    for (size_t i = 0; i < n; i++) {
        int at = n_base;
        for (int k = 0; k < 3 && rows[i][k]; k++)
            flags[at++] = rows[i][k];
        flags[at] = NULL;
        job_run(j, flags);
        if (j->status != FSDP_OK)
            fail_msg("%s: %s", rows[i][0], j->error);
        if (j->steps[j->n_steps - 1].loss == plain)
            fail_msg("%s changes nothing", rows[i][0]);
    }
}

static void flags_of_t5_reach_it(void **state)
{
    static const char *const rows[][3] = {
        {"--dropout=0.5"},
        {"--feed_forward=gated-gelu"},
        {"--num_decoder_layers=1"},
        {"--num_layers=1", "--num_decoder_layers=2"},
        {"--relative_attention_buckets=4"},
        {"--relative_attention_max_distance=4", "--relative_attention_buckets=4"},
        {"--no_tie_word_embeddings"},
        {"--source_prefix=summarize: "},
        {"--source_field=body"},
        {"--target_field=title"},
        {"--max_target_width=4"},
        {"--max_context_width=8"},
        {"--initializer_range=0.5"},
    };
    static const char *const base[] = {"--model_type=t5",
                                       "--dataset=@pairs.jsonl",
                                       "--max_target_width=12",
                                       "--max_context_width=24",
                                       "--dropout=0",
                                       "--max_steps=3",
                                       NULL};
    job *j = *state;
    char text[4096] = "";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"text\": \"the %d cats and %d dogs\", \"body\": \"%d other words\", \"summary\": \"%d pets\", "
                 "\"title\": \"number %d\"}\n",
                 i, i + 3, i * 7, 2 * i + 3, i);
    job_write(j, "pairs.jsonl", text);
    expect_differences(j, base, rows, sizeof rows / sizeof *rows);
}

static void put_be32(FILE *out, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        fputc((int)(value >> shift & 255), out);
}

static void write_images(const job *j, int n)
{
    char path[128];
    uint64_t state = 1;
    snprintf(path, sizeof path, "%s/images", j->folder);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/images/train-images-idx3-ubyte", j->folder);
    FILE *out = fopen(path, "w");
    put_be32(out, 0x803);
    put_be32(out, (uint32_t)n);
    put_be32(out, 28);
    put_be32(out, 28);
    for (int i = 0; i < n * 28 * 28; i++)
        fputc(draw_below(&state, 256), out);
    fclose(out);
    snprintf(path, sizeof path, "%s/images/train-labels-idx1-ubyte", j->folder);
    out = fopen(path, "w");
    put_be32(out, 0x801);
    put_be32(out, (uint32_t)n);
    for (int i = 0; i < n; i++)
        fputc(i % 10, out);
    fclose(out);
}

static void flags_of_image_networks_reach_them(void **state)
{
    static const char *const cnn_rows[][3] = {
        {"--conv1_channels=4"}, {"--conv2_channels=8"}, {"--branch_channels=2"},
        {"--hidden_width=24"},  {"--num_classes=12"},   {"--bf16"},
    };
    static const char *const mlp_rows[][3] = {{"--num_layers=3"}, {"--hidden_width=24"}, {"--num_classes=12"}};
    static const char *const cnn[] = {"--model_type=cnn", "--dataset=@images", "--train_batch_size=8", "--max_steps=2",
                                      NULL};
    static const char *const mlp[] = {"--model_type=mlp", "--dataset=@images", "--train_batch_size=8", "--max_steps=2",
                                      NULL};
    job *j = *state;
    write_images(j, 16);
    expect_differences(j, cnn, cnn_rows, sizeof cnn_rows / sizeof *cnn_rows);
    expect_differences(j, mlp, mlp_rows, sizeof mlp_rows / sizeof *mlp_rows);
    RUN(j, "--model_type=cnn", "--dataset=@images", "--image_height=32");
    assert_int_equal(j->status, FSDP_ERR_INPUT);
}

/* The values of a tensor of an exported folder. */
static void read_exported(const job *j, const char *folder, const char *name, float *out, int64_t n)
{
    char path[160];
    model_folder *f;
    snprintf(path, sizeof path, "%s/%s", j->folder, folder);
    assert_int_equal(model_folder_open(path, &f), FSDP_OK);
    const safetensors_tensor *t = model_folder_find(f, name);
    assert_non_null(t);
    assert_true(t->numel >= n);
    assert_int_equal(safetensors_read_f32(t, 0, n, out), FSDP_OK);
    model_folder_close(f);
}

static void frozen_parameters_keep_their_bits_and_the_others_move(void **state)
{
    job *j = *state;
    float still[64], frozen[64], moved[64];
    RUN(j, "--lr=0", "--export_dir=@still");
    expect_ok(j);
    RUN(j, "--freeze=model.embed_tokens.*,model.layers.0.*", "--export_dir=@frozen");
    expect_ok(j);
    static const struct {
        const char *name;
        bool frozen;
    } cases[] = {{"model.embed_tokens.weight", true},
                 {"model.layers.0.self_attn.q_proj.weight", true},
                 {"model.layers.1.self_attn.q_proj.weight", false},
                 {"lm_head.weight", false}};
    for (size_t i = 0; i < 4; i++) {
        read_exported(j, "still", cases[i].name, still, 64);
        read_exported(j, "frozen", cases[i].name, frozen, 64);
        if ((memcmp(still, frozen, sizeof still) == 0) != cases[i].frozen)
            fail_msg("%s %s", cases[i].name, cases[i].frozen ? "moved" : "stayed");
    }
    RUN(j, "--export_dir=@moved");
    read_exported(j, "moved", "model.embed_tokens.weight", moved, 64);
    assert_true(memcmp(still, moved, sizeof still) != 0);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

static void samples_at_validation_do_not_change_the_training(void **state)
{
    static const char heading[] = "A sample of what the model writes:\n\nabc";
    job *j = *state;
    float plain[64], sampled[64];
    RUN(j, "--max_steps=6", "--validation_split=0.2", "--validation_freq=2", "--sample_tokens=8", "--sample_prompt=abc",
        "--export_dir=@plain");
    expect_ok(j);
    assert_int_equal(count(j->said, heading), 1);
    RUN(j, "--max_steps=6", "--validation_split=0.2", "--validation_freq=2", "--sample_tokens=8", "--sample_prompt=abc",
        "--sample_at_validation", "--export_dir=@sampled");
    expect_ok(j);
    assert_int_equal(count(j->said, heading), 3); /* after steps 2 and 4, and at the end */
    read_exported(j, "plain", "model.embed_tokens.weight", plain, 64);
    read_exported(j, "sampled", "model.embed_tokens.weight", sampled, 64);
    assert_memory_equal(plain, sampled, sizeof plain);
}

static void a_run_leaves_what_was_asked_for(void **state)
{
    job *j = *state;
    RUN(j, "--max_steps=6", "--trace=@trace.json", "--trace_first=2", "--trace_steps=2", "--sample_tokens=8",
        "--sample_prompt=abc", "--checkpoint_freq=2", "--keep_checkpoints=2");
    expect_ok(j);
    char *text = job_file(j, "trace.json");
    json_t *trace = json_loads(text ? text : "", 0, NULL);
    assert_true(json_is_object(trace) || json_is_array(trace));
    json_decref(trace);
    free(text);
    assert_non_null(strstr(j->said, "A sample of what the model writes:\n\nabc"));
    assert_non_null(strstr(j->said, "Memory of each rank"));
    assert_null(job_file(j, "run/checkpoints/step-00000002/checkpoint.json"));
    for (int step = 4; step <= 6; step += 2) {
        char name[64];
        snprintf(name, sizeof name, "run/checkpoints/step-%08d/checkpoint.json", step);
        text = job_file(j, name);
        assert_non_null(text);
        free(text);
    }
    text = job_file(j, "run/rank-0.log");
    assert_non_null(text);
    free(text);
    RUN(j, "--no_memory_report");
    assert_null(strstr(j->said, "Memory of each rank"));
    RUN(j, "--threads=1");
    assert_non_null(strstr(j->said, " 1 thread"));
    RUN(j, "--products=portable");
    expect_ok(j);
    assert_non_null(strstr(j->said, "portable"));
}

static bool has_file(const job *j, const char *name)
{
    char *text = job_file(j, name);
    free(text);
    return text != NULL;
}

static bool has_checkpoint(const job *j, int step)
{
    char name[64];
    snprintf(name, sizeof name, "run/checkpoints/step-%08d/checkpoint.json", step);
    return has_file(j, name);
}

static void checkpoints_come_when_and_as_asked(void **state)
{
    job *j = *state;
    RUN(j, "--epochs=2", "--train_batch_size=10", "--checkpoint_epochs=1");
    expect_ok(j);
    assert_true(has_checkpoint(j, 5) && has_checkpoint(j, 10));
    assert_false(has_checkpoint(j, 6));
    RUN(j, "--max_steps=3", "--checkpoint_minutes=1e-9");
    assert_true(has_checkpoint(j, 1) && has_checkpoint(j, 2) && has_checkpoint(j, 3));
    RUN(j, "--max_steps=3", "--checkpoint_minutes=1000");
    assert_false(has_checkpoint(j, 1) || has_checkpoint(j, 3));
    RUN(j, "--max_steps=3", "--checkpoint_at_end");
    assert_true(has_checkpoint(j, 3) && !has_checkpoint(j, 2));
    RUN(j, "--max_steps=6", "--checkpoint_freq=1", "--keep_checkpoints=1", "--keep_every=4");
    assert_true(has_checkpoint(j, 4) && has_checkpoint(j, 6));
    assert_false(has_checkpoint(j, 3) || has_checkpoint(j, 5));
    RUN(j, "--max_steps=2", "--checkpoint_freq=2", "--checkpoint_kind=full");
    expect_ok(j);
    assert_true(has_file(j, "run/checkpoints/step-00000002/model.safetensors"));
    assert_true(has_file(j, "run/checkpoints/step-00000002/config.json"));
    RUN(j, "--max_steps=2", "--export_dir=@parts", "--export_part_size=20KB");
    expect_ok(j);
    assert_true(has_file(j, "parts/model.safetensors.index.json"));
    RUN(j, "--max_steps=2", "--export_dir=@whole");
    assert_false(has_file(j, "whole/model.safetensors.index.json"));
    RUN(j, "--max_steps=4", "--checkpoint_freq=2", "--async_checkpoint");
    expect_ok(j);
    assert_non_null(strstr(j->said, "in the background"));
    assert_true(has_checkpoint(j, 2) && has_checkpoint(j, 4));
    /* The next run goes on where the last one stood, and counts on. */
    RUN(j, "--max_steps=4", "--checkpoint_freq=2", "--checkpoint_dir=@going");
    double straight = j->steps[3].loss;
    RUN(j, "--max_steps=2", "--lr_decay_iters=4", "--checkpoint_freq=2", "--checkpoint_dir=@half");
    RUN(j, "--max_steps=4", "--resume_from_checkpoint=@half");
    assert_int_equal(j->n_steps, 2);
    assert_true(j->steps[1].loss == straight);
}

static void bad_records_are_named_and_passed_over(void **state)
{
    job *j = *state;
    char *text = job_file(j, "text.txt"), *records;
    assert_true(asprintf(&records, "{\"text\": \"%s\"}\n{\"text\": 5}\nnonsense\n", text) > 0);
    job_write(j, "bad.jsonl", records);
    RUN(j, "--dataset=@bad.jsonl");
    expect_ok(j);
    assert_non_null(strstr(j->said, "bad.jsonl:2: no string under \"text\""));
    assert_non_null(strstr(j->said, "bad.jsonl:3: not JSON"));
    RUN(j, "--dataset=@bad.jsonl", "--log_level=error");
    expect_ok(j);
    assert_null(strstr(j->said, "bad.jsonl:2"));
    RUN(j, "--dataset=@bad.jsonl", "--strict_data");
    assert_int_equal(j->status, FSDP_ERR_INPUT);
    assert_non_null(strstr(j->error, "bad.jsonl:2: no string under \"text\""));
    free(records);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_of_t5_reach_it),
        cmocka_unit_test(flags_of_image_networks_reach_them),
        cmocka_unit_test(frozen_parameters_keep_their_bits_and_the_others_move),
        cmocka_unit_test(a_run_leaves_what_was_asked_for),
        cmocka_unit_test(samples_at_validation_do_not_change_the_training),
        cmocka_unit_test(checkpoints_come_when_and_as_asked),
        cmocka_unit_test(bad_records_are_named_and_passed_over),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
