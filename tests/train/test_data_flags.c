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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(validation_data_is_not_cut_to_max_samples),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
