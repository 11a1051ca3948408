/* Saved at world N, loaded at world M, across ways of cutting: the same bits. Ranks are processes over shared memory.
 */
#include "ckpt/fixture.h"

#include <fsdp/checkpoint.h>

static const int worlds[] = {1, 2, 3, 4, 8};
enum { N_WORLDS = 5 };

typedef struct scenario {
    const char *directory;
    fsdp_checkpoint_kind kind;
    fixture_cut cut;
    int64_t step;
    bool callbacks;
    bool async;
} scenario;

static void save_rank(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(s->cut, rank, all->n, s->callbacks);
    fixture_fill(f, s->step);
    const uint8_t choices[] = {0, 255, 7, (uint8_t)rank};
    f->state.autotune = choices;
    f->state.autotune_bytes = sizeof choices;
    ckpt_save_config config = fixture_config(s->directory, s->kind, s->step);
    ckpt_save_result result = {0};
    if (s->async) {
        ckpt_saver *saver = NULL;
        RANK_CHECK(ckpt_saver_create(&f->state, s->kind == FSDP_CKPT_LOCAL, &saver) == FSDP_OK);
        RANK_CHECK(ckpt_saver_start(saver, &config, &f->state, comm_world(c)) == FSDP_OK);
        fixture_fill(f, s->step + 1000); /* training goes on */
        RANK_CHECK(ckpt_saver_wait(saver, comm_world(c), &result) == FSDP_OK);
        ckpt_saver_free(saver);
    } else {
        RANK_CHECK(ckpt_save(&config, &f->state, comm_world(c), &result) == FSDP_OK);
    }
    RANK_CHECK(strstr(result.path, "/step-") != NULL);
    fixture_free(f);
    comm_close(c);
}

static void load_rank(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(s->cut, rank, all->n, s->callbacks);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    RANK_CHECK(ckpt_resume(s->directory, &config, &f->state, comm_world(c), &result) == FSDP_OK);
    RANK_CHECK(result.step == s->step);
    RANK_CHECK(fixture_holds(f, s->step, CKPT_ROLES_ALL));
    RANK_CHECK(json_integer_value(json_object_get(result.extra, "data_position")) == s->step * 1000003);
    RANK_CHECK(json_real_value(json_object_get(json_object_get(result.extra, "scaler"), "scale")) == 65536.5);
    const uint8_t choices[] = {0, 255, 7, s->kind == FSDP_CKPT_LOCAL ? (uint8_t)rank : 0};
    RANK_CHECK(result.autotune_bytes == sizeof choices && memcmp(result.autotune, choices, sizeof choices) == 0);
    ckpt_load_result_free(&result);
    fixture_free(f);
    comm_close(c);
}

static void run(int n, rank_function function, const scenario *s)
{
    ranks all = ranks_make(n);
    if (!ranks_run(&all, function, (void *)(uintptr_t)s))
        fail_msg("world %d, cut %d, kind %s", n, (int)s->cut, ckpt_kind_name(s->kind));
    ranks_free(&all);
}

/* Saved once per N and kind; every M loads it by another cut, every other time through callbacks. */
static void check_all_worlds(fsdp_checkpoint_kind kind, bool async)
{
    for (int i = 0; i < N_WORLDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%d-%d", ckpt_kind_name(kind), worlds[i], async);
        scenario s = {.directory = scratch_path(name),
                      .kind = kind,
                      .cut = (fixture_cut)(i % CUT_COUNT),
                      .step = 20 + i,
                      .callbacks = i % 2 == 1,
                      .async = async};
        run(worlds[i], save_rank, &s);
        for (int k = 0; k < N_WORLDS; k++) {
            s.cut = (fixture_cut)((i + 2 * k) % CUT_COUNT);
            s.callbacks = (i + k) % 2 == 0;
            run(worlds[k], load_rank, &s);
        }
    }
}

static void sharded_checkpoints_load_at_any_world_and_cut(void **state)
{
    (void)state;
    check_all_worlds(FSDP_CKPT_SHARDED, false);
}

static void full_checkpoints_load_at_any_world_and_cut(void **state)
{
    (void)state;
    check_all_worlds(FSDP_CKPT_FULL, false);
}

static void asynchronous_saves_hold_what_was_there_at_their_start(void **state)
{
    (void)state;
    check_all_worlds(FSDP_CKPT_SHARDED, true);
}

static void every_cut_loads_every_other_cut(void **state)
{
    (void)state;
    for (int from = 0; from < CUT_COUNT; from++) {
        char name[64];
        snprintf(name, sizeof name, "cut-%d", from);
        scenario s = {.directory = scratch_path(name), .cut = (fixture_cut)from, .step = 7};
        run(4, save_rank, &s);
        for (int to = 0; to < CUT_COUNT; to++) {
            s.cut = (fixture_cut)to;
            run(2, load_rank, &s);
        }
    }
}

static void local_checkpoints_load_at_the_same_world(void **state)
{
    (void)state;
    for (int cut = 0; cut < CUT_COUNT; cut++) {
        char name[64];
        snprintf(name, sizeof name, "local-%d", cut);
        scenario s = {.directory = scratch_path(name),
                      .kind = FSDP_CKPT_LOCAL,
                      .cut = (fixture_cut)cut,
                      .step = 3,
                      .async = cut % 2 == 1};
        run(2, save_rank, &s);
        run(2, load_rank, &s);
    }
}

static void refuse_rank(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(s->cut, rank, all->n, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    char path[1300];
    snprintf(path, sizeof path, "%s/step-%08lld", s->directory, (long long)s->step);
    RANK_CHECK(ckpt_load(path, &config, &f->state, comm_world(c), &result) == FSDP_ERR_INPUT);
    RANK_CHECK(strstr(fsdp_last_error(), "local checkpoint") != NULL);
    fixture_free(f);
    comm_close(c);
}

static void a_local_checkpoint_of_another_world_is_refused(void **state)
{
    (void)state;
    scenario s = {.directory = scratch_path("local-other"), .kind = FSDP_CKPT_LOCAL, .cut = CUT_FLAT, .step = 3};
    run(4, save_rank, &s);
    run(2, refuse_rank, &s);
}

/* The newest step counts that all ranks have, when a job died while some had committed their own. */
static void local_ranks_resume_from_the_newest_step_that_all_have(void **state)
{
    (void)state;
    scenario s = {.directory = scratch_path("local-common"), .kind = FSDP_CKPT_LOCAL, .cut = CUT_FLAT, .step = 10};
    run(2, save_rank, &s);
    s.step = 20;
    run(2, save_rank, &s);
    char *newest = ckpt_directory_path(s.directory, 20, 1);
    assert_ok(file_remove_tree(newest));
    free(newest);
    s.step = 10;
    run(2, load_rank, &s);

    fsdp_checkpoint_prune_config prune = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    char *text;
    prune.directory = s.directory; /* keeping one means one that all have */
    assert_ok(fsdp_checkpoint_prune(&prune, &text));
    free(text);
    run(2, load_rank, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded_checkpoints_load_at_any_world_and_cut),
        cmocka_unit_test(full_checkpoints_load_at_any_world_and_cut),
        cmocka_unit_test(asynchronous_saves_hold_what_was_there_at_their_start),
        cmocka_unit_test(every_cut_loads_every_other_cut),
        cmocka_unit_test(local_checkpoints_load_at_the_same_world),
        cmocka_unit_test(a_local_checkpoint_of_another_world_is_refused),
        cmocka_unit_test(local_ranks_resume_from_the_newest_step_that_all_have),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
