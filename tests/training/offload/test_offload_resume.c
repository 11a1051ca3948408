/* Offload with everything on (shared with the device, ahead of the norm, some units on the device) in jobs that are
 * killed at any instant while they save: whatever resumes, on as many ranks or on others, from a checkpoint or from a
 * hot snapshot, has the bits of a run that offloads nothing and was never killed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "shard/step/optimizer.h"
#include "state/state.h"
#include "training/offload/offload_job.h"
#include "training/support_ranks.h"

enum { RANKS = 2, MAX_RANKS = 3, EVERY = 2, MORE = 5, PILOT = 16, WITHOUT_END = 1 << 20 };

typedef struct result {
    uint64_t hash[MAX_RANKS]; /* of all parameters at the end */
    float norm[PILOT];
    int64_t resumed;       /* from which step */
    int64_t stood, redone; /* parameters whose update ran ahead */
    atomic_int reached;    /* steps that are done */
} result;

typedef struct life {
    char folder[32];
    bool offloaded;
    bool saves, resumes;
    bool hot;   /* snapshots in memory, not checkpoints */
    bool early; /* saved between the backward and the step, when updates may have run ahead */
    bool half;  /* moments of 16 bits */
    fsdp_strategy strategy;
    float clip;
    int64_t end; /* a step, or so many after the one resumed from */
    result *out; /* shared */
} life;

static fsdp_status open_state(const life *l, training_job *j, fsdp_state **state)
{
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_state_config sc = FSDP_STATE_CONFIG_INIT;
    char held[64];
    snprintf(held, sizeof held, "%s/held", l->folder);
    setenv("FSDP_SNAPSHOTS", held, 1);
    c.strategy = l->strategy;
    c.cpu_offload = c.cpu_offload_split = c.cpu_offload_ahead = l->offloaded;
    c.cpu_offload_resident = 20;
    oc.clip = l->clip, oc.weight_decay = 0.1f;
    oc.state_dtype = l->half ? FSDP_BF16 : FSDP_F32;
    FSDP_TRY(open_job_with(&c, &oc, j));
    sc.model = j->model, sc.optimizer = j->optimizer, sc.directory = l->folder, sc.keep = 2;
    FSDP_TRY(fsdp_state_open(&sc, state));
    return l->hot ? state_open_snapshots(*state, &j->world->job) : FSDP_OK;
}

static fsdp_status resume(const life *l, fsdp_state *state, int64_t *step)
{
    bool found;
    return l->hot ? state_resume_snapshot(state, &found, step) : fsdp_resume(state, step);
}

static fsdp_status save(const life *l, fsdp_state *state, int64_t step)
{
    if (!l->saves || step % EVERY != 0)
        return FSDP_OK;
    return l->hot ? state_snapshot(state, step) : fsdp_save_async(state, step);
}

static fsdp_status one_step(const life *l, training_job *j, fsdp_state *state, int64_t step)
{
    const struct timespec moment = {0, 1000000}; /* for the worker to run ahead; whether it does changes no bit */
    fsdp_step_report report;
    FSDP_TRY(backward(j, (int)step));
    if (l->offloaded)
        nanosleep(&moment, NULL);
    if (l->early)
        FSDP_TRY(save(l, state, step));
    FSDP_TRY(fsdp_step(j->optimizer, &report));
    if (!l->early)
        FSDP_TRY(save(l, state, step + 1));
    if (step < PILOT)
        l->out->norm[step] = (float)report.gradient_norm;
    atomic_store(&l->out->reached, (int)step + 1);
    return FSDP_OK;
}

static fsdp_status live(int rank, void *context)
{
    const life *l = context;
    training_job j;
    fsdp_state *state;
    int64_t first = 0;
    FSDP_TRY(open_state(l, &j, &state));
    if (l->resumes)
        FSDP_TRY(resume(l, state, &first));
    for (int64_t step = first; step < l->end + (l->resumes ? first : 0); step++)
        FSDP_TRY(one_step(l, &j, state, step));
    FSDP_TRY(hash_of(&j, &l->out->hash[rank]));
    if (rank == 0) {
        offload_figures f = offload_figures_of(j.model);
        l->out->resumed = first;
        l->out->stood += f.ahead;
        l->out->redone += f.redone;
    }
    fsdp_state_close(state);
    close_job(&j);
    return FSDP_OK;
}

static uint64_t run(const life *l, int ranks)
{
    if (!ranks_run(ranks, live, (void *)(uintptr_t)l))
        fail_msg("%s, %d ranks: a rank failed", l->offloaded ? "offloaded" : "plain", ranks);
    for (int rank = 1; rank < ranks; rank++)
        assert_true(l->out->hash[rank] == l->out->hash[0]);
    return l->out->hash[0];
}

/* Lets it live until it has made some steps and a moment of the next one. */
static void run_and_kill(life l, uint64_t seed)
{
    const struct timespec poll = {0, 500000};
    struct timespec moment = {0, (long)(rng_word(rng_key_make(seed), 0, 1) % 4000000)};
    int target = 5 + (int)(rng_word(rng_key_make(seed), 0, 0) % 8), waited = 0; /* from 5 on, one save is complete */
    l.saves = true;
    l.end = WITHOUT_END;
    atomic_store(&l.out->reached, 0);
    pid_t group = fork();
    if (group == 0) {
        setpgid(0, 0);
        (void)ranks_run(RANKS, live, &l);
        _exit(1);
    }
    setpgid(group, group); /* whoever comes first */
    for (; atomic_load(&l.out->reached) < target && waited < 60000; waited++)
        nanosleep(&poll, NULL);
    nanosleep(&moment, NULL);
    kill(-group, SIGKILL);
    waitpid(group, NULL, 0);
    assert_true(waited < 60000);
}

/* A clip that binds in about half of the steps. */
static float middle_norm(life l)
{
    float sorted[PILOT];
    l.offloaded = false;
    l.clip = 0;
    l.end = PILOT;
    (void)run(&l, RANKS);
    for (int i = 0; i < PILOT; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > l.out->norm[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = l.out->norm[i];
    }
    return (sorted[PILOT / 2 - 1] + sorted[PILOT / 2]) / 2;
}

/* From what the killed job left: with offload and without, on these ranks. Returns the step that they went on to. */
static int64_t resume_both_ways(life l, int ranks, uint64_t *hash)
{
    l.resumes = true;
    l.end = MORE;
    l.offloaded = false;
    *hash = run(&l, ranks);
    int64_t resumed = l.out->resumed;
    l.offloaded = true;
    if (run(&l, ranks) != *hash || l.out->resumed != resumed)
        fail_msg("resumed from step %lld on %d ranks: offload changed something", (long long)resumed, ranks);
    return resumed + MORE;
}

/* What a killed job left, resumed on as many ranks and on others, beside runs that were never killed. */
static void check(life l, uint64_t seed, int other_ranks)
{
    char command[64];
    uint64_t hash, elsewhere;
    strcpy(l.folder, "/tmp/fsdp_offload_XXXXXX");
    assert_non_null(mkdtemp(l.folder));
    run_and_kill(l, seed);
    l.end = resume_both_ways(l, RANKS, &hash);
    assert_true(l.end > MORE); /* something had been saved */
    (void)resume_both_ways(l, other_ranks, &elsewhere);
    snprintf(command, sizeof command, "rm -rf %s", l.folder);
    assert_int_equal(system(command), 0);
    if (run(&l, RANKS) != hash)
        fail_msg("seed %llu: the killed and resumed run differs from one with offload that was not",
                 (unsigned long long)seed);
    l.offloaded = false;
    if (run(&l, RANKS) != hash)
        fail_msg("seed %llu: the killed and resumed run differs from a plain one", (unsigned long long)seed);
    assert_int_equal(system(command), 0);
}

static void killed_and_resumed_offload_has_the_bits_of_a_plain_run(void **state)
{
    (void)state;
    static const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_NO_SHARD};
    result *out = mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(out, MAP_FAILED);
    life l = {.folder = "/tmp/fsdp_offload_XXXXXX", .strategy = FSDP_FULL, .out = out};
    assert_non_null(mkdtemp(l.folder));
    float middle = middle_norm(l);
    assert_int_equal(rmdir(l.folder), 0);
    l.offloaded = true;
    out->stood = out->redone = 0;
    for (int round = 0; round < 4 || (round < 20 && !(out->stood && out->redone)); round++) {
        l.strategy = strategies[round % 3];
        l.hot = round % 2;
        l.early = round / 2 % 2;
        l.clip = l.early ? 1e6f : middle; /* which never binds: updates run ahead in every step, also in saved ones */
        l.half = round % 4 == 3;
        check(l, (uint64_t)round, round % 2 ? 1 : 3);
    }
    assert_true(out->stood > 0 && out->redone > 0); /* both ways out of an update ahead of the norm */
    munmap(out, sizeof *out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_and_resumed_offload_has_the_bits_of_a_plain_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
