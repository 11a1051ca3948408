/* A state that follows a loader: the data goes on where the checkpoint was made, on any number of ranks. */
#include "api/support_ranks.h"

#include <unistd.h>

#include <fsdp/data.h>

enum { SAMPLES = 40, BATCH = 6 };

static fsdp_status read_number(void *context, int64_t index, void *const *fields)
{
    (void)context;
    *(float *)fields[0] = (float)index;
    return FSDP_OK;
}

typedef struct job {
    fsdp_dataset *data;
    fsdp_loader *loader;
    fsdp_model *model;
    fsdp_state *state;
} job;

static fsdp_status open_job(fsdp_world *w, const char *folder, job *j)
{
    const fsdp_field fields[] = {{.name = "x", .dtype = FSDP_F32, .n_dims = 1, .shape = {1}}};
    fsdp_dataset_source source = FSDP_DATASET_SOURCE_INIT;
    fsdp_loader_config loader = FSDP_LOADER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    fsdp_state_config state = FSDP_STATE_CONFIG_INIT;
    source.count = SAMPLES;
    source.n_fields = 1;
    source.fields = fields;
    source.read = read_number;
    loader.batch = BATCH;
    loader.seed = 5;
    FSDP_TRY(fsdp_dataset_from(&source, &j->data));
    FSDP_TRY(fsdp_loader_new(w, j->data, &loader, &j->loader));
    FSDP_TRY(fsdp_shard(w, fsdp_linear_new(1, 1, true), &config, &j->model));
    state.model = j->model;
    state.loader = j->loader;
    state.directory = folder;
    return fsdp_state_open(&state, &j->state);
}

static void close_job(job *j)
{
    fsdp_state_close(j->state);
    fsdp_model_free(j->model);
    fsdp_loader_free(j->loader);
    fsdp_dataset_free(j->data);
}

/* A number a batch, for the next n batches, that tells which samples all ranks have in it. */
static fsdp_status take(fsdp_world *w, job *j, int n, double *sums)
{
    for (int i = 0; i < n; i++) {
        fsdp_batch *b;
        FSDP_TRY(fsdp_loader_next(j->loader, &b));
        sums[i] = 0;
        for (int64_t k = 0; b && k < b->counted; k++)
            sums[i] += (double)((i + 1) * b->samples[k] * b->samples[k]);
        FSDP_TRY(fsdp_world_all_reduce(w, NULL, FSDP_REDUCE_SUM, &sums[i], 1));
    }
    return FSDP_OK;
}

typedef struct run {
    char folder[128];
    double expected[4];
} run;

static fsdp_status save_in_an_epoch(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    double before[3], sums[4];
    FSDP_TRY(open_job(w, r->folder, &j));
    FSDP_TRY(take(w, &j, 3, before));
    FSDP_TRY(fsdp_save(j.state, 3));
    FSDP_TRY(take(w, &j, 4, sums)); /* the last of the epoch is short */
    memcpy(r->expected, sums, sizeof sums);
    close_job(&j);
    return FSDP_OK;
}

static fsdp_status resume_in_an_epoch(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    int64_t step;
    double sums[4];
    FSDP_TRY(open_job(w, r->folder, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step == 3 && fsdp_loader_position(j.loader) == 3 * BATCH);
    FSDP_TRY(take(w, &j, 4, sums));
    EXPECT(w, memcmp(sums, r->expected, sizeof sums) == 0);
    close_job(&j);
    return FSDP_OK;
}

static void the_data_goes_on_where_the_checkpoint_was_made(void **state)
{
    (void)state;
    run *r = shared_memory(sizeof *r);
    char command[256];
    snprintf(r->folder, sizeof r->folder, "/tmp/fsdp_state_loader_XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    assert_true(ranks_run(2, save_in_an_epoch, r));
    assert_true(r->expected[3] > 0);
    for (int ranks = 1; ranks <= 4; ranks++)
        assert_true(ranks_run(ranks, resume_in_an_epoch, r));
    snprintf(command, sizeof command, "rm -rf '%s'", r->folder);
    assert_int_equal(system(command), 0);
}

static fsdp_status follow_two(fsdp_world *w, void *context)
{
    (void)context;
    job j = {0};
    fsdp_state *none = NULL;
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    FSDP_TRY(open_job(w, NULL, &j));
    config.model = j.model;
    config.loader = j.loader;
    config.position.get = (int64_t(*)(void *))fsdp_loader_position;
    EXPECT(w, fsdp_state_open(&config, &none) == FSDP_ERR_INPUT && !none);
    EXPECT(w, strstr(fsdp_last_error(), "not both"));
    close_job(&j);
    return FSDP_OK;
}

static void a_state_follows_one_thing(void **state)
{
    (void)state;
    assert_true(ranks_run(1, follow_two, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_data_goes_on_where_the_checkpoint_was_made),
        cmocka_unit_test(a_state_follows_one_thing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
