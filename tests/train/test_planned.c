/* What --dry_run says before a run is what the run takes, to the byte, whatever its model, data, precision and
 * validation; and the run's own plan says the same. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "support_job.h"

static void put_be32(FILE *out, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        fputc((int)(value >> shift & 255), out);
}

/* `n` images of 28 x 28 and their classes. */
static void write_images(const job *j, int n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/images", j->folder);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/images/train-images-idx3-ubyte", j->folder);
    FILE *out = fopen(path, "w");
    put_be32(out, 0x803), put_be32(out, (uint32_t)n), put_be32(out, 28), put_be32(out, 28);
    for (int i = 0; i < n * 28 * 28; i++)
        fputc(i * 7 & 255, out);
    fclose(out);
    snprintf(path, sizeof path, "%s/images/train-labels-idx1-ubyte", j->folder);
    out = fopen(path, "w");
    put_be32(out, 0x801), put_be32(out, (uint32_t)n);
    for (int i = 0; i < n; i++)
        fputc(i % 10, out);
    fclose(out);
}

static void write_pairs(const job *j)
{
    char text[4096] = "";
    for (int i = 0; i < 30; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "{\"text\": \"the %d cats and %d dogs\", \"summary\": \"%d pets\"}\n", i, i + 3, 2 * i + 3);
    job_write(j, "pairs.jsonl", text);
}

enum { MAX = 24 };

/* Of the setting that the run takes, device and host together: on a CPU they are one. */
static json_int_t planned_by_dry_run(job *j, const char **flags, int n)
{
    flags[n] = "--dry_run";
    flags[n + 1] = "--json";
    flags[n + 2] = NULL;
    job_run(j, flags);
    if (j->status != FSDP_OK)
        fail_msg("%s", j->error);
    json_t *o = json_loads(j->said, 0, NULL), *e;
    const char *strategy = json_string_value(
        json_object_get(json_object_get(json_object_get(o, "settings"), "sharding_strategy"), "value"));
    json_int_t bytes = 0;
    size_t i;
    json_array_foreach(json_object_get(json_object_get(o, "plan"), "strategies"), i,
                       e) if (strcmp(json_string_value(json_object_get(e, "strategy")), strategy) == 0) bytes =
        json_integer_value(json_object_get(e, "total")) + json_integer_value(json_object_get(e, "host"));
    json_decref(o);
    flags[n] = NULL;
    return bytes;
}

static const char *const bases[][5] = {
    {"--max_context_width=16"},
    {"--model_type=t5", "--dataset=@pairs.jsonl", "--max_target_width=12", "--max_context_width=24"},
    {"--model_type=cnn", "--dataset=@images", "--train_batch_size=8", "--grad_clip=0"},
    {"--model_type=mlp", "--dataset=@images", "--train_batch_size=8"},
};

static const char *const extras[][4] = {
    {"--sharding_strategy=full"},
    {"--bf16", "--validation_split=0.3", "--val_batch_size=64"},
    {"--validation_split=0.3", "--val_batch_size=10", "--sharding_strategy=auto"},
    {"--validation_split=0.5", "--val_batch_size=7", "--bf16", "--reduce_dtype=bf16"},
    {"--checkpoint_at_end", "--async_checkpoint", "--validation_split=0.1"},
    {"--checkpoint_at_end", "--async_checkpoint", "--checkpoint_kind=local", "--fp16"},
    {"--gradient_accumulation_steps=3", "--no_sync_each_micro_batch", "--optimizer=sgd", "--validation_split=0.2"},
    {"--activation_checkpointing=full", "--validation_split=0.4", "--val_batch_size=20"},
    {"--sharding_strategy=no_shard", "--recompute_cheap", "--bf16"},
};

static void a_dry_run_says_what_the_run_takes(void **state)
{
    job *j = *state;
    write_images(j, 64);
    write_pairs(j);
    for (size_t b = 0; b < sizeof bases / sizeof *bases; b++) {
        for (size_t x = 0; x < sizeof extras / sizeof *extras; x++) {
            const char *flags[MAX];
            int n = 0;
            for (int i = 0; i < 5 && bases[b][i]; i++)
                flags[n++] = bases[b][i];
            for (int i = 0; i < 4 && extras[x][i]; i++)
                flags[n++] = extras[x][i];
            json_int_t said = planned_by_dry_run(j, flags, n);
            job_run(j, flags);
            if (j->status != FSDP_OK)
                fail_msg("%s, %s: %s", bases[b][0], extras[x][0], j->error);
            if (said != j->result.peak_bytes || said != j->result.planned_bytes || said <= 0)
                fail_msg("%s, %s: %lld bytes said, %lld planned, %lld taken", bases[b][0], extras[x][0],
                         (long long)said, (long long)j->result.planned_bytes, (long long)j->result.peak_bytes);
        }
    }
}

/* The default is auto, and the reason is said. */
static void a_run_says_why_it_took_its_setting(void **state)
{
    job *j = *state;
    RUN(j, "--sharding_strategy=auto", "--max_steps=1");
    assert_int_equal(j->status, FSDP_OK);
    assert_non_null(
        strstr(j->said, "--sharding_strategy no_shard --activation_checkpointing none: the fastest that fits"));
    assert_non_null(strstr(j->said, "median step "));
    RUN(j, "--device=h200");
    assert_int_equal(j->status, FSDP_ERR_INPUT);
    assert_non_null(strstr(j->error, "is a description"));
    RUN(j, "--device=h200", "--dry_run");
    assert_int_equal(j->status, FSDP_OK);
    assert_non_null(strstr(j->said, "on NVIDIA H200"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dry_run_says_what_the_run_takes),
        cmocka_unit_test(a_run_says_why_it_took_its_setting),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
