/* What flags about data do to whole jobs: which samples are trained on and validated with, and for how long. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/weights/safetensors_writer.h"
#include "train/support_job.h"

static void expect_ok(const job *j)
{
    if (j->status != FSDP_OK)
        fail_msg("%s", j->error);
}

/* --max_samples limits what is trained on; validation sees all of its data. */
static void validation_data_is_not_cut_to_max_samples(void **state)
{
    enum { KEPT = 8 };
    job *j = *state;
    char *text = job_file(j, "text.txt");
    assert_non_null(text);
    memset(text + (JOB_SAMPLES - 10) * JOB_WIDTH, '!', 8 * JOB_WIDTH); /* behind the first samples all is different */
    job_write(j, "held.txt", text);
    free(text);
    RUN(j, "--max_samples=8", "--validation_dataset=@held.txt", "--no_shuffle");
    expect_ok(j);
    double few = j->result.validation_loss, loss = j->result.loss;
    text = job_file(j, "text.txt");
    text[KEPT * JOB_WIDTH] = '\0';
    job_write(j, "first.txt", text);
    free(text);
    RUN(j, "--dataset=@first.txt", "--validation_dataset=@held.txt", "--no_shuffle");
    expect_ok(j);
    assert_true(j->result.loss == loss); /* the same samples were trained on */
    assert_true(j->result.validation_loss == few);
}

/* Samples x 16 tokens, all below `vocabulary`. */
static void write_table(const job *j, const char *name, int64_t samples, int32_t vocabulary)
{
    char path[256];
    safetensors_writer *w;
    size_t index;
    int32_t ids[64][JOB_WIDTH];
    assert_true(samples <= 64);
    for (int64_t i = 0; i < samples * JOB_WIDTH; i++)
        ids[i / JOB_WIDTH][i % JOB_WIDTH] = (int32_t)((i * 7 + i / JOB_WIDTH) % vocabulary);
    snprintf(path, sizeof path, "%s/%s", j->folder, name);
    assert_int_equal(safetensors_writer_create(path, &w), FSDP_OK);
    assert_int_equal(safetensors_writer_add(w, "data", FSDP_I32, 2, (const int64_t[]){samples, JOB_WIDTH}, &index),
                     FSDP_OK);
    assert_int_equal(safetensors_writer_begin(w), FSDP_OK);
    assert_int_equal(safetensors_writer_write(w, index, 0, ids, (size_t)samples * sizeof ids[0]), FSDP_OK);
    assert_int_equal(safetensors_writer_commit(w), FSDP_OK);
}

static int64_t samples_seen(const job *j)
{
    int64_t n = 0;
    for (int i = 0; i < j->n_steps; i++)
        n += j->steps[i].samples;
    return n;
}

/* A table is read as often as --epochs or --max_steps say, to its last sample. */
static void tables_of_tokens_are_read_as_long_as_asked(void **state)
{
    job *j = *state;
    write_table(j, "table.safetensors", 7, 300);
    RUN(j, "--dataset=@table.safetensors", "--epochs=1");
    expect_ok(j);
    assert_int_equal(j->n_steps, 4);
    assert_int_equal(samples_seen(j), 7);
    RUN(j, "--dataset=@table.safetensors", "--epochs=3");
    expect_ok(j);
    assert_int_equal(j->n_steps, 12);
    assert_int_equal(samples_seen(j), 21);
    RUN(j, "--dataset=@table.safetensors", "--max_steps=11");
    expect_ok(j);
    assert_int_equal(j->n_steps, 11);
    assert_int_equal(samples_seen(j), 22);
}

/* The bytes of a text are 256 tokens; tokens are as many as they are. */
static void token_data_trains_models_of_fewer_than_256_tokens(void **state)
{
    job *j = *state;
    write_table(j, "few.safetensors", 8, 20);
    RUN(j, "--dataset=@few.safetensors", "--vocab_size=20", "--sample_tokens=8");
    expect_ok(j);
    assert_int_equal(j->n_steps, 4);
    RUN(j, "--dataset=@few.safetensors", "--vocab_size=19");
    assert_int_equal(j->status, FSDP_ERR_INPUT);
    assert_non_null(strstr(j->error, "20 tokens"));
    RUN(j, "--vocab_size=255"); /* text */
    assert_int_equal(j->status, FSDP_ERR_INPUT);
    RUN(j, "--dataset=@few.safetensors", "--vocab_size=20", "--validation_dataset=@text.txt");
    assert_int_equal(j->status, FSDP_ERR_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_data_is_not_cut_to_max_samples),
        cmocka_unit_test(tables_of_tokens_are_read_as_long_as_asked),
        cmocka_unit_test(token_data_trains_models_of_fewer_than_256_tokens),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
