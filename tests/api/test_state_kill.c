/* Processes that are killed while they save: whatever the instant, another number of ranks goes on from a checkpoint
 * that has the bits of its step, and can save over what the dead left behind. */
#include "api/support_stack.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { STEPS = 6, TRIALS = 6 };

typedef struct story {
    char directory[64];
    int trial;
    bool killed;                /* one rank is to die */
    uint64_t hashes[STEPS + 1]; /* of all parameters after each step, when nobody dies */
} story;

typedef struct job {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state;
} job;

static fsdp_status job_open(fsdp_world *w, const story *s, job *j)
{
    static const fsdp_checkpoint_kind kinds[] = {FSDP_CKPT_SHARDED, FSDP_CKPT_FULL};
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_state_config state = FSDP_STATE_CONFIG_INIT;
    config.wrap = fsdp_wrap_by_type("block");
    FSDP_TRY(fsdp_shard(w, stack_new(), &config, &j->model));
    FSDP_TRY(fsdp_optimizer_new(j->model, &adam, &j->optimizer));
    state.model = j->model;
    state.optimizer = j->optimizer;
    state.directory = s->directory;
    state.kind = kinds[s->trial > 0 ? s->trial % 2 : 0];
    state.keep = 2;
    return fsdp_state_open(&state, &j->state);
}

static void job_close(job *j)
{
    fsdp_state_close(j->state);
    fsdp_optimizer_free(j->optimizer);
    fsdp_model_free(j->model);
}

static void *die_soon(void *microseconds)
{
    usleep(*(useconds_t *)microseconds);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Trains and saves every step, the first at once, so that there is one to go back to. */
static fsdp_status train(fsdp_world *w, void *context)
{
    story *s = context;
    static useconds_t delay;
    pthread_t killer;
    uint64_t hash;
    job j;
    FSDP_TRY(job_open(w, s, &j));
    for (int step = 1; step <= STEPS; step++) {
        FSDP_TRY(stack_backward(w, j.model, step, true));
        FSDP_TRY(fsdp_step(j.optimizer, NULL));
        FSDP_TRY(stack_hash_parameters(j.model, &hash));
        if (!s->killed && fsdp_world_rank(w) == 0)
            s->hashes[step] = hash;
        FSDP_TRY(step == 1 ? fsdp_save(j.state, step) : fsdp_save_async(j.state, step));
        if (s->killed && step == 2 && fsdp_world_rank(w) == s->trial / 2 % 2) {
            delay = (useconds_t)(s->trial * 1700);
            EXPECT(w, pthread_create(&killer, NULL, die_soon, &delay) == 0);
        }
    }
    while (s->killed && fsdp_world_rank(w) == s->trial / 2 % 2)
        pause(); /* the end may come late, but it comes */
    FSDP_TRY(fsdp_save_wait(j.state));
    job_close(&j);
    return FSDP_OK;
}

static fsdp_status go_on(fsdp_world *w, void *context)
{
    const story *s = context;
    int64_t step, again;
    uint64_t hash;
    char *text = NULL;
    job j;
    FSDP_TRY(job_open(w, s, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step >= 1 && step <= STEPS);
    FSDP_TRY(stack_hash_parameters(j.model, &hash));
    EXPECT(w, hash == s->hashes[step]);
    FSDP_TRY(fsdp_save(j.state, step + 1)); /* where the dead may have begun the same */
    FSDP_TRY(fsdp_resume(j.state, &again));
    EXPECT(w, again == step + 1);
    EXPECT(w, fsdp_checkpoint_verify(fsdp_state_path(j.state), false, &text) == FSDP_OK && text);
    free(text);
    FSDP_TRY(fsdp_checkpoint_show(s->directory, true, &text));
    EXPECT(w, text[0] == '{');
    free(text);
    job_close(&j);
    return FSDP_OK;
}

static void remove_folder(const char *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void another_world_goes_on_after_a_kill_in_a_save(void **state)
{
    (void)state;
    story *s = shared_memory(sizeof *s);
    for (s->trial = -1; s->trial < TRIALS; s->trial++) {
        strcpy(s->directory, "/tmp/fsdp-killed-XXXXXX");
        assert_non_null(mkdtemp(s->directory));
        s->killed = s->trial >= 0;
        if (ranks_run(2, train, s) == s->killed)
            fail_msg("trial %d: a job %s", s->trial, s->killed ? "whose rank was killed ended well" : "failed");
        if (s->killed && !ranks_run(1 + s->trial % 3, go_on, s))
            fail_msg("trial %d", s->trial);
        remove_folder(s->directory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(another_world_goes_on_after_a_kill_in_a_save)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
