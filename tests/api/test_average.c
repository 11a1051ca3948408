/* The average of the weights from a program of one's own: what it is, that it goes on from checkpoints at any number of
 * ranks, and that one which is saved before its first step is the weights and begins as if it had not been saved. */
#include "api/support_stack.h"

#include <ftw.h>
#include <math.h>
#include <unistd.h>

enum { HEAD = STACK_WIDTH, BEFORE = 3, AFTER = 3 };
static const float DECAY = 0.5f;

typedef struct job {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state;
} job;

typedef struct folders {
    char plain[64], early[64];
    bool offload;
    uint64_t average; /* out */
} folders;

static fsdp_status job_open(fsdp_world *w, const folders *f, const char *directory, float average, job *j)
{
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_state_config state = FSDP_STATE_CONFIG_INIT;
    config.wrap = fsdp_wrap_by_type("block");
    config.cpu_offload = f->offload;
    FSDP_TRY(fsdp_shard(w, stack_new(), &config, &j->model));
    adam.lr = 1e-2f;
    adam.average = average;
    FSDP_TRY(fsdp_optimizer_new(j->model, &adam, &j->optimizer));
    state.model = j->model;
    state.optimizer = j->optimizer;
    state.directory = directory;
    return fsdp_state_open(&state, &j->state);
}

static void job_close(job *j)
{
    fsdp_state_close(j->state);
    fsdp_optimizer_free(j->optimizer);
    fsdp_model_free(j->model);
}

static fsdp_status job_step(fsdp_world *w, const job *j, int step)
{
    FSDP_TRY(stack_backward(w, j->model, step, true));
    return fsdp_step(j->optimizer, NULL);
}

static fsdp_status read_bias(const job *j, float *out)
{
    return fsdp_parameter_read(j->model, "head.bias", 0, HEAD, out);
}

/* By hand, one parameter: the first step's weights, then the decay. Ends with its hash over all parameters. */
static fsdp_status follow_average(fsdp_world *w, const job *j, int first, uint64_t *hash)
{
    float wanted[HEAD], weights[HEAD], got[HEAD];
    for (int step = 0; step < AFTER; step++) {
        FSDP_TRY(job_step(w, j, first + step));
        FSDP_TRY(read_bias(j, weights));
        for (int i = 0; i < HEAD; i++)
            wanted[i] = step == 0 ? weights[i] : DECAY * wanted[i] + (1 - DECAY) * weights[i];
    }
    FSDP_TRY(fsdp_optimizer_swap_average(j->optimizer));
    FSDP_TRY(read_bias(j, got));
    for (int i = 0; i < HEAD; i++)
        EXPECT(w, fabsf(got[i] - wanted[i]) < 1e-6f);
    EXPECT(w, fsdp_save(j->state, 99) == FSDP_ERR_STATE); /* not while they are exchanged */
    FSDP_TRY(stack_hash_parameters(j->model, hash));
    return fsdp_optimizer_swap_average(j->optimizer);
}

static fsdp_status write_plain(fsdp_world *w, void *context)
{
    const folders *f = context;
    job j;
    FSDP_TRY(job_open(w, f, f->plain, 0, &j));
    for (int step = 0; step < BEFORE; step++)
        FSDP_TRY(job_step(w, &j, step));
    EXPECT(w, fsdp_optimizer_swap_average(j.optimizer) == FSDP_ERR_STATE);
    FSDP_TRY(fsdp_save(j.state, BEFORE));
    job_close(&j);
    return FSDP_OK;
}

/* Goes on from there with an average, after a copy is saved where one is wanted: no step has begun the average then. */
static fsdp_status go_on(fsdp_world *w, const folders *f, const char *from, const char *copy, uint64_t *hash)
{
    int64_t step;
    job j;
    FSDP_TRY(job_open(w, f, from, DECAY, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step == BEFORE);
    if (copy)
        FSDP_TRY(fsdp_save_as(j.state, copy, FSDP_CKPT_SHARDED, step));
    FSDP_TRY(follow_average(w, &j, (int)step, hash));
    job_close(&j);
    return FSDP_OK;
}

static fsdp_status begin_average(fsdp_world *w, void *context)
{
    folders *f = context;
    uint64_t hash;
    FSDP_TRY(go_on(w, f, f->plain, f->early, &hash));
    if (fsdp_world_rank(w) == 0)
        f->average = hash;
    return FSDP_OK;
}

static fsdp_status resume_average(fsdp_world *w, void *context)
{
    const folders *f = context;
    uint64_t hash;
    FSDP_TRY(go_on(w, f, f->early, NULL, &hash));
    EXPECT(w, fsdp_world_size(w) != 2 || hash == f->average);
    return FSDP_OK;
}

/* A checkpoint's weights and its average hold the same bits. */
static void expect_average_is_the_weights(const char *checkpoints)
{
    char folder[2][96];
    bool same = false;
    char *text = NULL;
    for (int i = 0; i < 2; i++) {
        fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
        snprintf(folder[i], sizeof folder[i], "%s/export-%d.pt", checkpoints, i);
        config.source = checkpoints;
        config.destination = folder[i];
        config.format = "pt";
        config.average = i == 1;
        if (fsdp_checkpoint_export(&config, &text) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        free(text);
    }
    assert_int_equal(fsdp_checkpoint_diff(folder[0], folder[1], 0, false, &same, &text), FSDP_OK);
    if (!same)
        fail_msg("%s", text);
    free(text);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void an_average_begins_with_a_step_and_goes_on_from_checkpoints(void **state)
{
    (void)state;
    for (int offload = 0; offload < 2; offload++) {
        folders *f = shared_memory(sizeof *f);
        f->offload = offload == 1;
        snprintf(f->plain, sizeof f->plain, "/tmp/fsdp_test_average_%d_plain", (int)getpid());
        snprintf(f->early, sizeof f->early, "/tmp/fsdp_test_average_%d_early", (int)getpid());
        assert_true(ranks_run(2, write_plain, f));
        assert_true(ranks_run(2, begin_average, f));
        expect_average_is_the_weights(f->early);
        assert_true(ranks_run(2, resume_average, f));
        assert_true(ranks_run(1, resume_average, f));
        assert_true(ranks_run(3, resume_average, f));
        nftw(f->plain, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        nftw(f->early, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_average_begins_with_a_step_and_goes_on_from_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
