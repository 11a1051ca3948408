/* The short batch at the end of an epoch, which ranks share unevenly: the rows that pad it are no data, also for batch
 * norm, so the world size changes nothing but rounding. Whole jobs of the CNN over a folder of images. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/rng.h"
#include "training/support_ranks.h"
#include "shard/model.h"
#include "train/run.h"

enum { SIZE = 12, MAX_NUMBERS = 1 << 17 };

typedef struct outcome {
    double loss;
    int n; /* buffers (running statistics) first, then parameters */
    float scalars[MAX_NUMBERS];
} outcome;

typedef struct image_job {
    char folder[64];
    int ranks, global_batch;
    const char *strategy;
    outcome *results; /* shared, one a rank */
} image_job;

static void put_header(FILE *f, int n_dims, int n)
{
    const int dims[] = {n, SIZE, SIZE};
    const uint8_t magic[] = {0, 0, 8, (uint8_t)n_dims};
    fwrite(magic, 1, 4, f);
    for (int i = 0; i < n_dims; i++) {
        const uint8_t big_endian[] = {0, 0, (uint8_t)(dims[i] >> 8), (uint8_t)dims[i]};
        fwrite(big_endian, 1, 4, f);
    }
}

static void write_images(const char *folder, int n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", folder);
    FILE *images = fopen(path, "wb");
    snprintf(path, sizeof path, "%s/train-labels-idx1-ubyte", folder);
    FILE *labels = fopen(path, "wb");
    put_header(images, 3, n);
    put_header(labels, 1, n);
    for (int i = 0; i < n; i++) {
        fputc(i % 10, labels);
        for (int k = 0; k < SIZE * SIZE; k++)
            fputc((int)(rng_word(rng_key_make(4), (uint64_t)i, (uint64_t)k) % 256), images);
    }
    fclose(images);
    fclose(labels);
}

static fsdp_status keep(fsdp_model *m, float *from, int64_t n, const char *name, outcome *out)
{
    if (out->n + n > MAX_NUMBERS)
        return error_set(FSDP_ERR_STATE, "more numbers than the test keeps");
    fsdp_status status = name ? fsdp_parameter_read(m, name, 0, n, out->scalars + out->n)
                              : model_fetch(m, out->scalars + out->n, from, (size_t)n * sizeof *from);
    out->n += (int)n;
    return status;
}

static fsdp_status train(const fsdp_settings *settings, outcome *out)
{
    train_run run;
    fsdp_train_callbacks silent = FSDP_TRAIN_CALLBACKS_INIT;
    FSDP_TRY(run_open(settings, &silent, &run));
    fsdp_status status = run_steps(&run);
    const module_contents *c = &run.model->contents;
    out->loss = run.result.loss;
    for (int i = 0; i < c->n_buffers && status == FSDP_OK; i++)
        status = keep(run.model, c->buffers[i]->data, c->buffers[i]->numel, NULL, out);
    for (int i = 0; i < c->n_parameters && status == FSDP_OK; i++)
        status = keep(run.model, NULL, c->parameters[i]->numel, c->parameters[i]->name, out);
    run_close(&run);
    return status;
}

static fsdp_status run_rank(int rank, void *context)
{
    const image_job *j = context;
    char text[4][128];
    snprintf(text[0], sizeof text[0], "--dataset=%s", j->folder);
    snprintf(text[1], sizeof text[1], "--output_dir=%s/run", j->folder);
    snprintf(text[2], sizeof text[2], "--train_batch_size=%d", j->global_batch / j->ranks);
    snprintf(text[3], sizeof text[3], "--sharding_strategy=%s", j->strategy);
    char *argv[] = {text[0],
                    text[1],
                    text[2],
                    text[3],
                    "--model_type=cnn",
                    "--epochs=2",
                    "--device=cpu",
                    "--threads=1",
                    "--lr=0.01",
                    "--optimizer=sgd",
                    "--lr_decay_style=constant",
                    "--no_checkpoint_at_end",
                    "--overwrite"};
    fsdp_settings settings;
    fsdp_status status = fsdp_settings_init(&settings);
    if (status == FSDP_OK)
        status = fsdp_settings_parse(&settings, "train", sizeof argv / sizeof *argv, argv);
    if (status == FSDP_OK)
        status = train(&settings, &j->results[rank]);
    fsdp_settings_free(&settings);
    return status;
}

static void run(const image_job *j, outcome *out)
{
    memset(j->results, 0, sizeof *j->results * 3);
    assert_true(ranks_run(j->ranks, run_rank, (void *)(uintptr_t)j));
    *out = j->results[0];
    assert_true(out->n > 40 && isfinite(out->loss));
}

static void assert_close(const outcome *a, const outcome *b)
{
    assert_true(fabs(a->loss - b->loss) <= 2e-5 * fabs(b->loss));
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        assert_true(fabsf(a->scalars[i] - b->scalars[i]) <= 2e-5f * (1 + fabsf(b->scalars[i])));
}

/* The last batch of 13 images, 6 at a time, is one image: two of three ranks have none. Of 17, 12 at a time, 5 are
 * left. */
static void padding_rows_of_the_last_batch_count_for_nothing(void **state)
{
    (void)state;
    static const int cases[][2] = {{13, 6}, {17, 12}, {13, 12}};
    image_job j = {.strategy = "full"};
    j.results = mmap(NULL, sizeof *j.results * 3, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(j.results, MAP_FAILED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        outcome alone, shared, replicated;
        strcpy(j.folder, "/tmp/fsdp-uneven-XXXXXX");
        assert_non_null(mkdtemp(j.folder));
        write_images(j.folder, cases[i][0]);
        j.global_batch = cases[i][1];
        j.ranks = 1, j.strategy = "full";
        run(&j, &alone);
        for (j.ranks = 2; j.ranks <= 3; j.ranks++) {
            j.strategy = "full";
            run(&j, &shared);
            assert_close(&shared, &alone);
            j.strategy = "no_shard";
            run(&j, &replicated);
            assert_true(replicated.loss == shared.loss);
            assert_memory_equal(replicated.scalars, shared.scalars, sizeof shared.scalars);
        }
        char command[128];
        snprintf(command, sizeof command, "rm -rf '%s'", j.folder);
        assert_int_equal(system(command), 0);
    }
    munmap(j.results, sizeof *j.results * 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(padding_rows_of_the_last_batch_count_for_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
