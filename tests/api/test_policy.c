/* Units that differ: when they are resharded, what they compute in, what is offloaded, checkpointed, frozen and
 * gathered ahead, as a policy says. What does not touch the arithmetic keeps every bit. */
#include "api/support_stack.h"

enum { STEPS = 4 };

typedef struct job {
    fsdp_strategy strategy;
    fsdp_dtype dtype;
    bool cast_inputs, held, low_reduce;
    void (*policy)(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context);
    uint64_t draw; /* what the random policy does */
    int group;     /* of ranks that share parameters in hybrid strategies; 0: 1 */
    bool uneven;   /* shards of unequal sizes */
    int shards;    /* as many as share a unit; set by train */
    /* Out: */
    outcome out;
    int calls;
} job;

static int the_rank;

static fsdp_status train(fsdp_world *w, void *context)
{
    job *shared = context, j = *shared; /* the policy counts in this rank's copy */
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_model *model = NULL;
    fsdp_optimizer *optimizer = NULL;
    the_rank = fsdp_world_rank(w);
    config.strategy = j.strategy;
    config.param_dtype = j.dtype;
    config.cast_inputs = j.cast_inputs;
    config.reduce_dtype = j.low_reduce ? FSDP_BF16 : FSDP_F32;
    config.sync_each_micro_batch = !j.held;
    static const int weights[] = {3, 1, 2, 5};
    config.shard_group_size = j.group ? j.group : 1;
    config.shard_weights = j.uneven ? weights : NULL;
    j.shards = j.strategy >= FSDP_HYBRID ? config.shard_group_size : fsdp_world_size(w);
    config.wrap = fsdp_wrap_by_type("block");
    config.policy = j.policy;
    config.policy_context = &j;
    adam.lr = 0.01f;
    adam.clip = 0.5f;
    FSDP_TRY(stack_shard(w, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        fsdp_step_report report;
        FSDP_TRY(stack_backward(w, model, 2 * step, false));
        FSDP_TRY(stack_backward(w, model, 2 * step + 1, true));
        FSDP_TRY(fsdp_step(optimizer, &report));
        if (the_rank == 0)
            shared->out.values[step] = report.loss;
    }
    FSDP_TRY(stack_sum_up_parameters(model, &shared->out));
    if (the_rank == 0)
        shared->calls = j.calls;
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

/* The jobs with what they reached. */
static const job *run(const job *jobs, int n, int ranks)
{
    const job *shared = ranks_run_copies(ranks, train, jobs, n, sizeof *jobs);
    assert_non_null(shared);
    return shared;
}

/* ---- What keeps every bit ---- */

static unsigned drawn(uint64_t draw, const char *name, unsigned what, unsigned n)
{
    uint64_t h = stack_hash(stack_hash(draw + 1, name, strlen(name)), &what, sizeof what);
    return (unsigned)(h >> 33) % n;
}

static void anything(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    static const char *const lists[] = {"b", "b,c", "c,root", "a"};
    job *j = context;
    j->calls++;
    if (j->strategy != FSDP_NO_SHARD) {
        p->reshard = (fsdp_reshard_when)drawn(j->draw, name, 0, 3);
        const char *list = lists[drawn(j->draw, name, 1, 4)];
        if (!strstr(list, name) && drawn(j->draw, name, 2, 2))
            p->forward_prefetch = list;
        if (!strstr(list, name) && drawn(j->draw, name, 3, 2))
            p->backward_prefetch = list;
    }
    if (m->parent)
        p->checkpointing = (fsdp_checkpointing)drawn(j->draw, name, 4, 3);
    p->cpu_offload = drawn(j->draw, name, 5, 2);
    int size = 1 << drawn(j->draw, name, 6, 3); /* 1, 2 or 4 ranks that keep the unit */
    if (p->reshard == FSDP_RESHARD_AFTER_FORWARD && j->shards % size == 0 && drawn(j->draw, name, 7, 3))
        p->reshard_group_size = size;
}

enum { MAX_DRAWS = 12 };

/* `j` without its policy and with some of the `draws` that follow j.draw, in the first of `strategies` and more: all
 * reach the same. */
static void expect_policies_change_nothing(job j, int strategies, int draws, int ranks)
{
    job jobs[1 + MAX_DRAWS * FSDP_HYBRID] = {j};
    int n = 1;
    jobs[0].policy = NULL;
    for (int draw = 0; draw < draws; draw = ranks_next_variant(draw, draws)) {
        for (int i = 0; i < strategies; i = ranks_next_variant(i, strategies)) {
            jobs[n] = j;
            jobs[n].draw = j.draw + (uint64_t)draw * 977;
            jobs[n++].strategy = (fsdp_strategy)((int)j.strategy + i);
        }
    }
    const job *done = run(jobs, n, ranks);
    for (int i = 1; i < n; i++) {
        assert_int_equal(done[i].calls, STACK_BLOCKS + 1);
        if (!outcomes_agree(&done[i].out, &done[0].out, TOLERANCE_F32))
            fail_msg("held %d, policies %d, strategy %d, %d ranks", j.held, (int)done[i].draw, (int)done[i].strategy,
                     ranks);
    }
}

static void schedule_checkpointing_and_offload_by_unit_keep_every_bit(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++)
        expect_policies_change_nothing((job){.strategy = FSDP_FULL, .held = held, .policy = anything}, FSDP_HYBRID,
                                       MAX_DRAWS, 2);
    expect_policies_change_nothing((job){.strategy = FSDP_FULL, .policy = anything}, 1, 6, 1);
    expect_policies_change_nothing((job){.strategy = FSDP_HYBRID, .policy = anything}, 1, 6, 2);
}

/* Where four ranks shard a unit, two of them can keep it. */
static void in_pairs(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    const job *j = context;
    anything(m, name, p, context);
    if (drawn(j->draw, name, 8, 4) == 0)
        return;
    p->reshard = FSDP_RESHARD_AFTER_FORWARD;
    p->reshard_group_size = 2;
}

static void smaller_groups_that_keep_units_keep_every_bit(void **state)
{
    (void)state;
    static const struct {
        fsdp_strategy strategy;
        int ranks, group;
        bool uneven;
    } cases[] = {{FSDP_FULL, 4, 0, false},
                 {FSDP_FULL, 4, 0, true},
                 {FSDP_SHARD_OP, 4, 0, false},
                 {FSDP_HYBRID_ZERO2, 4, 2, false}};
    const int n = sizeof cases / sizeof cases[0];
    for (int i = 0; i < n; i++) {
        job j = {.strategy = cases[i].strategy,
                 .group = cases[i].group,
                 .uneven = cases[i].uneven,
                 .held = i % 2,
                 .policy = in_pairs,
                 .draw = 100};
        expect_policies_change_nothing(j, 1, 6, cases[i].ranks);
    }
}

/* ---- Precision ---- */

static void reduce_low(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    anything(m, name, p, context);
    p->reduce_dtype = FSDP_BF16;
}

static void reduce_b_low(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    anything(m, name, p, context);
    p->reduce_dtype = strcmp(name, "b") == 0 ? FSDP_BF16 : FSDP_F32;
}

static void a_unit_reduces_in_its_own_precision(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i = ranks_next_variant(i, 4)) {
        bool held = i % 2;
        job jobs[2 + 2 * FSDP_HYBRID] = {{.strategy = FSDP_FULL, .held = held},
                                         {.strategy = FSDP_FULL, .held = held, .low_reduce = true}};
        int n = 2;
        for (int strategy = 0; strategy < FSDP_HYBRID; strategy++) {
            job j = {.strategy = (fsdp_strategy)strategy, .held = held, .policy = reduce_low, .draw = 7};
            jobs[n++] = j;
            j.policy = reduce_b_low;
            jobs[n++] = j;
        }
        const job *done = run(jobs, n, 1 + i / 2), *whole = &done[0], *low = &done[1], *one = &done[3];
        assert_true(low->out.parameters != whole->out.parameters);
        for (int k = 2; k < n; k++)
            assert_true(outcomes_agree(&done[k].out, k % 2 ? &one->out : &low->out, TOLERANCE_BF16));
        assert_true(one->out.parameters != low->out.parameters && one->out.parameters != whole->out.parameters);
    }
}

static void everything_low(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    (void)m, (void)name;
    p->param_dtype = FSDP_BF16;
    anything(m, name, p, context);
}

static void mixed(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    anything(m, name, p, context);
    p->param_dtype = strcmp(name, "a") == 0 ? FSDP_BF16 : strcmp(name, "b") == 0 ? FSDP_F16 : FSDP_F32;
}

static void a_unit_computes_in_its_own_precision(void **state)
{
    (void)state;
    /* The root casts its input to the model's type first, so inputs have the same bits only where blocks do it. */
    job jobs[3 + 4 * FSDP_HYBRID] = {{.strategy = FSDP_FULL, .dtype = FSDP_BF16, .cast_inputs = true},
                                     {.strategy = FSDP_FULL, .cast_inputs = true, .policy = everything_low},
                                     {.strategy = FSDP_FULL}};
    int n = 3;
    for (int strategy = 0; strategy < FSDP_HYBRID; strategy++) {
        for (int draw = 0; draw < 4; draw = ranks_next_variant(draw, 4))
            jobs[n++] = (job){
                .strategy = (fsdp_strategy)strategy, .cast_inputs = true, .draw = (uint64_t)draw, .policy = mixed};
    }
    const job *done = run(jobs, n, 2), *bf16 = &done[0], *low = &done[1], *fp32 = &done[2], *first = &done[3];
    for (int i = 3; i < n; i++)
        assert_true(outcomes_agree(&done[i].out, &first->out, TOLERANCE_BF16));
    assert_true(first->out.parameters != bf16->out.parameters && first->out.parameters != fp32->out.parameters);
    assert_true(first->out.values[STEPS - 1] < first->out.values[0]);
    assert_true(outcomes_agree(&low->out, &bf16->out, TOLERANCE_BF16));
}

/* ---- Frozen ---- */

static void freeze_b(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    (void)m, (void)context;
    p->frozen = strcmp(name, "b") == 0;
}

static fsdp_status stays(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    float before[2][STACK_WIDTH], after[2][STACK_WIDTH];
    config.strategy = j->strategy;
    config.wrap = fsdp_wrap_by_type("block");
    config.policy = freeze_b;
    FSDP_TRY(stack_shard(w, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 0, STACK_WIDTH, before[0]));
    FSDP_TRY(fsdp_parameter_read(model, "c.up.bias", 0, STACK_WIDTH, before[1]));
    FSDP_TRY(stack_backward(w, model, 0, true));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 0, STACK_WIDTH, after[0]));
    FSDP_TRY(fsdp_parameter_read(model, "c.up.bias", 0, STACK_WIDTH, after[1]));
    EXPECT(w, memcmp(before[0], after[0], sizeof after[0]) == 0 && memcmp(before[1], after[1], sizeof after[1]) != 0);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void a_frozen_unit_stays_as_it_is(void **state)
{
    (void)state;
    job jobs[FSDP_HYBRID] = {0};
    for (int strategy = 0; strategy < FSDP_HYBRID; strategy++)
        jobs[strategy].strategy = (fsdp_strategy)strategy;
    assert_true(ranks_run_each(2, stays, jobs, FSDP_HYBRID, sizeof *jobs));
}

/* ---- Ignored ---- */

static void ignore_b(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    anything(m, name, p, context);
    p->ignored = strcmp(name, "b") == 0;
    if (p->ignored)
        p->reshard_group_size = 0;
}

static void freeze_b_of_anything(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    anything(m, name, p, context);
    p->frozen = strcmp(name, "b") == 0;
}

static void ignored_units_compute_as_frozen_ones(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i = ranks_next_variant(i, 3)) {
        job jobs[1 + FSDP_HYBRID] = {{.strategy = FSDP_FULL, .policy = freeze_b_of_anything}};
        for (int strategy = 0; strategy < FSDP_HYBRID; strategy++)
            jobs[1 + strategy] =
                (job){.strategy = (fsdp_strategy)strategy, .policy = ignore_b, .draw = (uint64_t)strategy * 31};
        const job *done = run(jobs, 1 + FSDP_HYBRID, i + 1);
        for (int k = 1; k <= FSDP_HYBRID; k++)
            assert_true(outcomes_agree(&done[k].out, &done[0].out, TOLERANCE_F32));
    }
}

typedef struct owned {
    fsdp_strategy strategy;
    char directory[40];
    float expected; /* of b.up.bias, after resuming; 0: save instead */
} owned;

static fsdp_status own_values(fsdp_world *w, void *context)
{
    const owned *o = context;
    job j = {.strategy = o->strategy, .draw = 3, .shards = fsdp_world_size(w)};
    fsdp_config config = ranks_config();
    fsdp_state_config saved = FSDP_STATE_CONFIG_INIT;
    fsdp_model *model;
    fsdp_state *state;
    float values[STACK_WIDTH], whole[STACK_WIDTH];
    int64_t step = 0;
    config.strategy = o->strategy;
    config.wrap = fsdp_wrap_by_type("block");
    config.policy = ignore_b;
    config.policy_context = &j;
    FSDP_TRY(stack_shard(w, &config, &model));
    saved.model = model;
    saved.directory = o->directory;
    FSDP_TRY(fsdp_state_open(&saved, &state));
    for (int i = 0; i < STACK_WIDTH; i++)
        values[i] = (float)(7 + fsdp_world_rank(w));
    if (o->expected == 0) {
        if (fsdp_world_rank(w) == 1) /* not collective */
            FSDP_TRY(fsdp_parameter_write(model, "b.up.bias", 0, STACK_WIDTH, values));
        if (fsdp_world_rank(w) == 0)
            FSDP_TRY(fsdp_parameter_write(model, "b.up.bias", 0, STACK_WIDTH, values));
        FSDP_TRY(fsdp_save(state, 1));
        FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 0, STACK_WIDTH, whole));
        EXPECT(w, memcmp(values, whole, sizeof whole) == 0);
        FSDP_TRY(stack_backward(w, model, 0, false)); /* what is written is what is used */
    } else {
        FSDP_TRY(fsdp_resume(state, &step));
        FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 0, STACK_WIDTH, whole));
        EXPECT(w, step == 1 && whole[0] == o->expected && whole[STACK_WIDTH - 1] == o->expected);
    }
    fsdp_state_close(state);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void ignored_parameters_are_each_ranks_own_and_checkpoints_have_those_of_rank_0(void **state)
{
    (void)state;
    static const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_OP, FSDP_NO_SHARD};
    owned all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = (owned){strategies[i], "/tmp/fsdp-ignored-XXXXXX", 0};
        assert_non_null(mkdtemp(all[i].directory));
    }
    assert_true(ranks_run_each(2, own_values, all, 3, sizeof *all));
    for (int i = 0; i < 3; i++)
        all[i].expected = 7;
    for (int i = 0; i < 3; i = ranks_next_variant(i, 3))
        assert_true(ranks_run_each(i + 1, own_values, all, 3, sizeof *all));
    for (int i = 0; i < 3; i++) {
        char command[64];
        snprintf(command, sizeof command, "rm -rf %s", all[i].directory);
        assert_int_equal(system(command), 0);
    }
}

/* ---- What is refused ---- */

static void wrongly(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    const job *j = context;
    switch (j->draw) {
    case 0:
        p->reshard_group_size = 2;
        break;
    case 1:
        p->param_dtype = FSDP_I32;
        break;
    case 2:
        p->checkpointing = m->parent ? FSDP_CHECKPOINT_NONE : FSDP_CHECKPOINT_FULL;
        break;
    case 3:
        p->forward_prefetch = "b,nowhere";
        break;
    case 4:
        p->backward_prefetch = name;
        break;
    case 5:
        p->reshard = (fsdp_reshard_when)7;
        break;
    case 6:
        p->reshard = FSDP_RESHARD_AFTER_FORWARD;
        break;
    case 7:
        p->reshard = the_rank ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AFTER_FORWARD;
        break;
    case 11:
        p->ignored = the_rank == 0;
        break;
    case 8:
        p->reshard_group_size = the_rank ? 1 : 2;
        break;
    case 9:
        p->reduce_dtype = the_rank ? FSDP_BF16 : FSDP_F32;
        break;
    default:
        p->cpu_offload = the_rank == 1;
    }
}

static fsdp_status refused(fsdp_world *w, void *context)
{
    static const char *const messages[] = {"smaller group",   "param_dtype",  "root module", "nowhere",
                                           "the unit itself", "reshard is 7", "no_shard",    "rank 1 has",
                                           "rank 1 has",      "rank 1 has",   "rank 1 has",  "rank 1 has"};
    job *j = context;
    if (j->draw == 6)
        j->strategy = FSDP_NO_SHARD;
    fsdp_status status = train(w, j);
    EXPECT(w, status != FSDP_OK);
    if (!strstr(fsdp_last_error(), messages[j->draw]))
        fprintf(stderr, "%s\n", fsdp_last_error());
    EXPECT(w, strstr(fsdp_last_error(), messages[j->draw]) != NULL);
    return FSDP_OK;
}

static void policies_that_cannot_be_or_differ_between_ranks_are_refused(void **state)
{
    (void)state;
    job jobs[12] = {0};
    for (uint64_t draw = 0; draw < 12; draw++)
        jobs[draw] = (job){.policy = wrongly, .draw = draw};
    assert_true(ranks_run_each(1, refused, jobs, 7, sizeof *jobs));
    assert_true(ranks_run_each(2, refused, jobs + 7, 5, sizeof *jobs));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_checkpointing_and_offload_by_unit_keep_every_bit),
        cmocka_unit_test(smaller_groups_that_keep_units_keep_every_bit),
        cmocka_unit_test(a_unit_reduces_in_its_own_precision),
        cmocka_unit_test(a_unit_computes_in_its_own_precision),
        cmocka_unit_test(a_frozen_unit_stays_as_it_is),
        cmocka_unit_test(ignored_units_compute_as_frozen_ones),
        cmocka_unit_test(ignored_parameters_are_each_ranks_own_and_checkpoints_have_those_of_rank_0),
        cmocka_unit_test(policies_that_cannot_be_or_differ_between_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
