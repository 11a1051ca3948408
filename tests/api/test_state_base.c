/* A state that leaves a frozen base out of its checkpoints: who may, what resumes beside what, and when it must not. */
#include "api/support_stack.h"

#include <unistd.h>

typedef struct run {
    char folder[128], weights[160], others[160];
    uint64_t after;
} run;

typedef struct job {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state;
} job;

static fsdp_status make_model(fsdp_world *w, bool adapted, uint64_t seed, job *j)
{
    fsdp_module *net = stack_new();
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config optimizer = FSDP_OPTIMIZER_CONFIG_INIT;
    config.wrap = fsdp_wrap_by_type("block");
    config.seed = seed;
    lora.rank = 2;
    snprintf(lora.targets, sizeof lora.targets, "up");
    if (adapted)
        FSDP_TRY(fsdp_lora(net, &lora));
    FSDP_TRY(fsdp_shard(w, net, &config, &j->model));
    optimizer.lr = 0.05f;
    return fsdp_optimizer_new(j->model, &optimizer, &j->optimizer);
}

static fsdp_status open_state(job *j, const char *directory, const char *base)
{
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    config.model = j->model;
    config.optimizer = j->optimizer;
    config.directory = directory;
    config.base = base;
    return fsdp_state_open(&config, &j->state);
}

static void close_job(job *j)
{
    fsdp_state_close(j->state);
    fsdp_optimizer_free(j->optimizer);
    fsdp_model_free(j->model);
}

static fsdp_status train(fsdp_world *w, job *j, int from, int to)
{
    for (int step = from; step < to; step++) {
        FSDP_TRY(stack_backward(w, j->model, step, true));
        FSDP_TRY(fsdp_step(j->optimizer, NULL));
    }
    return FSDP_OK;
}

/* Two bases as exports. */
static fsdp_status write_bases(fsdp_world *w, void *context)
{
    run *r = context;
    for (int i = 0; i < 2; i++) {
        job j = {0};
        FSDP_TRY(make_model(w, false, 7 + (uint64_t)i, &j));
        FSDP_TRY(open_state(&j, NULL, NULL));
        FSDP_TRY(fsdp_export(j.state, i ? r->others : r->weights));
        close_job(&j);
    }
    return FSDP_OK;
}

static fsdp_status open_adapted(fsdp_world *w, const run *r, const char *weights, job *j)
{
    FSDP_TRY(make_model(w, true, 3, j));
    FSDP_TRY(fsdp_weights_load(j->model, weights, NULL, NULL));
    return open_state(j, r->folder, "");
}

static fsdp_status save_adapters(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    FSDP_TRY(open_adapted(w, r, r->weights, &j));
    FSDP_TRY(train(w, &j, 0, 2));
    FSDP_TRY(fsdp_save_async(j.state, 2));
    FSDP_TRY(train(w, &j, 2, 4));
    FSDP_TRY(fsdp_save_wait(j.state));
    FSDP_TRY(stack_hash_parameters(j.model, &r->after));
    close_job(&j);
    return FSDP_OK;
}

static fsdp_status resume_adapters(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    int64_t step;
    uint64_t hash;
    FSDP_TRY(open_adapted(w, r, r->weights, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step == 2);
    FSDP_TRY(train(w, &j, 2, 4));
    FSDP_TRY(stack_hash_parameters(j.model, &hash));
    EXPECT(w, hash == r->after);
    close_job(&j);
    return FSDP_OK;
}

static fsdp_status refuse_others(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    int64_t step;
    FSDP_TRY(open_adapted(w, r, r->others, &j));
    EXPECT(w, fsdp_resume(j.state, &step) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "another base"));
    close_job(&j);
    j = (job){0}; /* the base that its seed made is no file's */
    FSDP_TRY(make_model(w, true, 3, &j));
    EXPECT(w, open_state(&j, r->folder, "") == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "fsdp_weights_load"));
    FSDP_TRY(open_state(&j, r->folder, NULL));
    EXPECT(w, fsdp_resume(j.state, &step) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "adapters alone"));
    close_job(&j);
    j = (job){0};
    FSDP_TRY(make_model(w, false, 3, &j));
    EXPECT(w, open_state(&j, r->folder, "") == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "adapters alone"));
    close_job(&j);
    return FSDP_OK;
}

/* A model without adapters takes the base of a checkpoint that refers to one, and no other in its place. */
static fsdp_status load_without_adapters(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    char path[200];
    fsdp_weights_config config = FSDP_WEIGHTS_CONFIG_INIT;
    snprintf(path, sizeof path, "%s/step-00000002", r->folder);
    config.strict = false;
    FSDP_TRY(make_model(w, false, 3, &j));
    FSDP_TRY(fsdp_weights_load(j.model, path, &config, NULL));
    config.base = r->others;
    EXPECT(w, fsdp_weights_load(j.model, path, &config, NULL) == FSDP_ERR_INPUT &&
                  strstr(fsdp_last_error(), "another base"));
    close_job(&j);
    return FSDP_OK;
}

/* What the caller writes into the base is in no file: from then on checkpoints hold it, and load beside any base. */
static fsdp_status write_into_the_base(fsdp_world *w, void *context)
{
    run *r = context;
    job j = {0};
    float changed = 2.5f, read = 0;
    int64_t step;
    FSDP_TRY(open_adapted(w, r, r->weights, &j));
    FSDP_TRY(fsdp_parameter_write(j.model, "b.down.weight", 3, 1, &changed));
    FSDP_TRY(fsdp_save(j.state, 9));
    close_job(&j);
    j = (job){0};
    FSDP_TRY(open_adapted(w, r, r->others, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    FSDP_TRY(fsdp_parameter_read(j.model, "b.down.weight", 3, 1, &read));
    EXPECT(w, step == 9 && read == changed);
    FSDP_TRY(fsdp_save(j.state, 10)); /* which therefore holds it, too */
    close_job(&j);
    j = (job){0};
    FSDP_TRY(open_adapted(w, r, r->weights, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    FSDP_TRY(fsdp_parameter_read(j.model, "b.down.weight", 3, 1, &read));
    EXPECT(w, step == 10 && read == changed);
    close_job(&j);
    return FSDP_OK;
}

static void adapters_resume_beside_their_base_and_no_other(void **state)
{
    (void)state;
    run *r = shared_memory(sizeof *r);
    char command[256];
    snprintf(r->folder, sizeof r->folder, "/tmp/fsdp_state_base_XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    snprintf(r->weights, sizeof r->weights, "%s/weights", r->folder);
    snprintf(r->others, sizeof r->others, "%s/others", r->folder);
    assert_true(ranks_run(1, write_bases, r));
    assert_true(ranks_run(2, save_adapters, r));
    assert_true(ranks_run(2, resume_adapters, r));
    assert_true(ranks_run(3, refuse_others, r));
    assert_true(ranks_run(2, load_without_adapters, r));
    assert_true(ranks_run(2, write_into_the_base, r));
    snprintf(command, sizeof command, "rm -rf '%s'", r->folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(adapters_resume_beside_their_base_and_no_other)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
