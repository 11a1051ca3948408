/* A strategy for each unit: no_shard and hybrid units beside sharded ones. Strategies over all ranks give the same bits
 * in every mix; a mix with hybrid units gives those that its groups give; and a checkpoint of one mix is the beginning
 * of any other, on any number of ranks. */
#include "api/support_stack.h"

#include <ftw.h>
#include <math.h>
#include <unistd.h>

enum { STEPS = 3, MAX_JOBS = 24, N_UNITS = STACK_BLOCKS + 1 };

/* Which strategies are drawn. */
typedef enum pool { POOL_WORLD, POOL_ANY } pool;

typedef struct job {
    fsdp_strategy strategy; /* the model's */
    bool mixed;             /* units draw theirs, otherwise all have the model's */
    pool pool;
    uint64_t draw;
    int group; /* hybrid: ranks a group, of all units; 0: drawn */
    bool held, offload, low, uneven;
    fsdp_optimizer_kind kind;
    double average;
    bool freeze_b;
    fsdp_strategy b; /* of unit b where units do not draw; FSDP_STRATEGY_COUNT: as it comes */
    int named;       /* how many of by_name are given */
    /* Out: */
    outcome out;
    double own_norm;    /* of unit b, by pattern */
    uint64_t gradients; /* hash of all gradients of the last step */
    uint64_t averages;
} job;

static unsigned drawn(uint64_t draw, const char *name, unsigned what, unsigned n)
{
    uint64_t h = stack_hash(stack_hash(draw + 1, name, strlen(name)), &what, sizeof what);
    return (unsigned)(h >> 33) % n;
}

static int ranks_of_world;
static const char *const by_name[] = {"b=no_shard", "[ab]=zero1", "root=hybrid"};

/* A divisor of the world. */
static int draw_group(const job *j, const char *name)
{
    int size = 1 << drawn(j->draw, name, 1, 3);
    return ranks_of_world % size == 0 ? size : 1;
}

static void choose(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    const job *j = context;
    bool is_b = strcmp(name, "b") == 0;
    (void)m;
    p->frozen = j->freeze_b && is_b;
    if (!j->mixed) {
        if (is_b && j->b < FSDP_STRATEGY_COUNT)
            p->strategy = j->b;
        return;
    }
    p->strategy = (fsdp_strategy)drawn(j->draw, name, 0, j->pool == POOL_WORLD ? FSDP_HYBRID : FSDP_STRATEGY_COUNT);
    p->shard_group_size = j->group ? j->group : draw_group(j, name);
    p->cpu_offload = j->offload && drawn(j->draw, name, 2, 2);
    if (p->strategy != FSDP_NO_SHARD && drawn(j->draw, name, 3, 3) == 0)
        p->reshard = (fsdp_reshard_when)drawn(j->draw, name, 4, 3);
}

static fsdp_status open_job(fsdp_world *w, job *j, fsdp_model **model, fsdp_optimizer **optimizer)
{
    static const int weights[] = {3, 1, 2, 5};
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    ranks_of_world = fsdp_world_size(w);
    config.strategy = j->strategy;
    config.shard_group_size = 1;
    config.sync_each_micro_batch = !j->held;
    config.param_dtype = j->low ? FSDP_BF16 : FSDP_F32;
    config.cast_inputs = true;
    config.shard_weights = j->uneven ? weights : NULL;
    config.wrap = fsdp_wrap_by_type("block");
    config.unit_strategies = by_name;
    config.n_unit_strategies = j->named;
    config.policy = choose;
    config.policy_context = j;
    adam.kind = j->kind;
    adam.lr = 0.01f;
    adam.clip = 0.5f;
    adam.average = (float)j->average;
    FSDP_TRY(stack_shard(w, &config, model));
    return fsdp_optimizer_new(*model, &adam, optimizer);
}

static fsdp_status train_step(fsdp_world *w, fsdp_model *m, fsdp_optimizer *o, int step, double *loss)
{
    fsdp_step_report report;
    FSDP_TRY(stack_backward(w, m, 2 * step, false));
    FSDP_TRY(stack_backward(w, m, 2 * step + 1, true));
    FSDP_TRY(fsdp_step(o, &report));
    *loss = report.loss;
    return FSDP_OK;
}

static fsdp_status hash_gradients(fsdp_model *m, bool without_b, uint64_t *out)
{
    const char *const *names;
    int n = stack_names(&names);
    float values[2 * STACK_WIDTH];
    *out = 0;
    for (int i = 0; i < n; i++) {
        if (without_b && names[i][0] == 'b')
            continue;
        int first = strstr(names[i], "bias") ? 0 : STACK_WIDTH; /* lies across shards in a weight */
        FSDP_TRY(fsdp_gradient_read(m, names[i], first, STACK_WIDTH, values));
        *out = stack_hash(*out, values, STACK_WIDTH * sizeof *values);
    }
    return FSDP_OK;
}

static fsdp_status train(fsdp_world *w, void *context)
{
    job *shared = context, j = *shared;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    FSDP_TRY(open_job(w, &j, &model, &optimizer));
    for (int step = 0; step < STEPS; step++)
        FSDP_TRY(train_step(w, model, optimizer, step, &j.out.values[step]));
    FSDP_TRY(stack_sum_up_parameters(model, &j.out));
    if (j.average > 0) {
        outcome average = {0};
        FSDP_TRY(fsdp_optimizer_swap_average(optimizer));
        FSDP_TRY(stack_sum_up_parameters(model, &average));
        FSDP_TRY(fsdp_optimizer_swap_average(optimizer));
        j.averages = average.parameters;
    }
    /* Gradients by hand, in one more step; with own clipping the norm follows. */
    double scaled;
    const char *pattern = j.freeze_b ? "a.*" : "b.*";
    FSDP_TRY(stack_backward(w, model, 77, true));
    FSDP_TRY(hash_gradients(model, j.freeze_b, &j.gradients));
    FSDP_TRY(fsdp_gradient_norm(model, pattern, &j.own_norm));
    FSDP_TRY(fsdp_gradient_scale(model, pattern, 0.5f));
    FSDP_TRY(fsdp_gradient_norm(model, pattern, &scaled));
    EXPECT(w, j.own_norm > 0 && scaled == j.own_norm / 2);
    fsdp_step_report report;
    FSDP_TRY(fsdp_step(optimizer, &report));
    j.out.values[STEPS] = report.gradient_norm;
    if (fsdp_world_rank(w) == 0)
        *shared = j;
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static const job *run(const job *jobs, int n, int ranks)
{
    const job *shared = ranks_run_copies(ranks, train, jobs, n, sizeof *jobs);
    assert_non_null(shared);
    return shared;
}

static bool agree(const job *a, const job *b)
{
    bool same = outcomes_agree(&a->out, &b->out, a->low ? TOLERANCE_BF16 : TOLERANCE_F32);
    if (ranks_are_on_gpu())
        return same;
    return same && a->own_norm == b->own_norm && a->gradients == b->gradients && a->averages == b->averages;
}

/* `j` with all units alike, and mixes of it: all reach the same. */
static void expect_mixes_agree(job j, int mixes, int ranks)
{
    job jobs[MAX_JOBS] = {j};
    int n = 1;
    jobs[0].b = FSDP_STRATEGY_COUNT;
    for (int i = 0; i < mixes && n < MAX_JOBS; i = ranks_next_variant(i, mixes)) {
        jobs[n] = j;
        jobs[n].mixed = true;
        jobs[n].strategy = (fsdp_strategy)((int)(j.strategy + (unsigned)i) % (j.uneven ? FSDP_NO_SHARD : FSDP_HYBRID));
        jobs[n++].draw = j.draw + (uint64_t)i * 131;
    }
    const job *done = run(jobs, n, ranks);
    for (int i = 1; i < n; i++)
        if (!agree(&done[i], &done[0]))
            fail_msg("%d ranks, mix %d of strategy %s", ranks, (int)done[i].draw, fsdp_strategy_name(done[i].strategy));
}

/* ---- The same bits ---- */

typedef struct mixing {
    job j;
    int mixes, ranks;
} mixing;

static void expect_all_agree(const mixing *list, int n)
{
    for (int i = 0; i < n; i = ranks_next_variant(i, n))
        expect_mixes_agree(list[i].j, list[i].mixes, list[i].ranks);
}

static void every_mix_of_strategies_over_all_ranks_has_the_bits_of_one(void **state)
{
    (void)state;
    static const mixing list[] = {{{.draw = 1}, 8, 2}, {{.draw = 2, .held = true}, 5, 2},
                                  {{.draw = 3}, 5, 4}, {{.draw = 5}, 3, 1},
                                  {{.draw = 6}, 3, 3}, {{.draw = 4, .held = true}, 4, 4}};
    expect_all_agree(list, sizeof list / sizeof *list);
}

static void offload_precision_averages_and_frozen_units_keep_them(void **state)
{
    (void)state;
    static const mixing list[] = {{{.draw = 11, .offload = true}, 5, 2},
                                  {{.draw = 12, .offload = true, .held = true, .average = 0.9}, 4, 2},
                                  {{.draw = 14, .freeze_b = true}, 4, 2},
                                  {{.draw = 15, .offload = true, .freeze_b = true}, 3, 4},
                                  {{.draw = 13, .low = true, .average = 0.5}, 4, 2}};
    expect_all_agree(list, sizeof list / sizeof *list);
}

static void muon_adafactor_and_sgd_keep_them(void **state)
{
    (void)state;
    static const mixing list[] = {
        {{.draw = 21, .kind = FSDP_MUON}, 4, 2},      {{.draw = 31, .kind = FSDP_MUON}, 3, 4},
        {{.draw = 23, .kind = FSDP_SGD}, 3, 2},       {{.draw = 32, .kind = FSDP_ADAFACTOR}, 3, 4},
        {{.draw = 22, .kind = FSDP_ADAFACTOR}, 4, 2},
    };
    expect_all_agree(list, sizeof list / sizeof *list);
}

/* ---- Hybrid ---- */

/* Groups of all ranks, or of one, are what no_shard and full are; those of two sum in another order. */
static void hybrid_units_follow_the_others(void **state)
{
    (void)state;
    job jobs[MAX_JOBS] = {{.b = FSDP_STRATEGY_COUNT}};
    int n = 1;
    for (int i = 0; i < 12; i = ranks_next_variant(i, 12))
        jobs[n++] = (job){.strategy = (fsdp_strategy)(i % FSDP_STRATEGY_COUNT),
                          .mixed = true,
                          .pool = POOL_ANY,
                          .draw = 41 + (uint64_t)i,
                          .held = i % 2,
                          .offload = i % 3 == 0,
                          .kind = i % 4 == 3 ? FSDP_MUON : FSDP_ADAMW};
    for (int i = 1; i < n; i++)
        if (jobs[i].kind == FSDP_MUON)
            jobs[i].offload = false;
    jobs[n] = jobs[0];
    jobs[n++].kind = FSDP_MUON;
    for (int ranks = ranks_are_on_gpu() ? 4 : 2; ranks <= 4; ranks += 2) {
        const job *done = run(jobs, n, ranks);
        for (int i = 1; i < n - 1; i++) {
            const job *like = done[i].kind == FSDP_MUON ? &done[n - 1] : &done[0];
            for (int k = 0; k < OUTCOME_VALUES; k++)
                if (!(fabs(done[i].out.values[k] - like->out.values[k]) <= 1e-4 * fabs(like->out.values[k])))
                    fail_msg("%d ranks, mix %d: value %d is %.9g instead of %.9g", ranks, (int)done[i].draw, k,
                             done[i].out.values[k], like->out.values[k]);
        }
    }
}

/* hybrid and hybrid_zero2 differ in when they gather, with the same groups. */
static void one_hybrid_unit_among_full_ones_and_the_reverse_keep_their_bits_when_gathered_otherwise(void **state)
{
    (void)state;
    static const fsdp_strategy pairs[][2] = {{FSDP_FULL, FSDP_HYBRID},
                                             {FSDP_SHARD_OP, FSDP_HYBRID_ZERO2},
                                             {FSDP_NO_SHARD, FSDP_HYBRID},
                                             {FSDP_SHARD_GRAD_OP, FSDP_HYBRID_ZERO2}};
    for (int reverse = ranks_are_on_gpu(); reverse < 2; reverse++) {
        job jobs[4];
        for (int i = 0; i < 4; i++)
            jobs[i] = (job){.strategy = pairs[i][reverse], .b = pairs[i][!reverse], .group = 2};
        const job *done = run(jobs, 4, 4);
        for (int i = 1; i < 4; i++)
            assert_true(agree(&done[i], &done[0]));
    }
}

/* ---- By name ---- */

static fsdp_status name_units(fsdp_world *w, void *context)
{
    static const char *const wrong[][2] = {{"b=hybrid", "policy of unit b: shard_group_size 3"},
                                           {"d=full", "no unit matches \"d\"; the units are a, b, c, root"},
                                           {"b:full", "is not GLOB=STRATEGY"},
                                           {"=full", "is not GLOB=STRATEGY"},
                                           {"b=half", "sharding strategy \"half\""}};
    (void)context;
    for (int i = 0; i < 5; i++) {
        fsdp_config config = ranks_config();
        fsdp_module *net = stack_new();
        fsdp_model *model;
        config.wrap = fsdp_wrap_by_type("block");
        config.shard_group_size = 3;
        config.unit_strategies = wrong[i];
        config.n_unit_strategies = 1;
        EXPECT(w, fsdp_shard(w, net, &config, &model) == FSDP_ERR_INPUT);
        if (!strstr(fsdp_last_error(), wrong[i][1]))
            fprintf(stderr, "%s\n", fsdp_last_error());
        EXPECT(w, strstr(fsdp_last_error(), wrong[i][1]));
        fsdp_module_free(net);
    }
    return FSDP_OK;
}

static void strategies_by_name_are_the_units_and_wrong_ones_are_refused(void **state)
{
    (void)state;
    const job jobs[] = {{.b = FSDP_STRATEGY_COUNT},
                        {.b = FSDP_STRATEGY_COUNT, .named = 1},
                        {.b = FSDP_STRATEGY_COUNT, .named = 2, .strategy = FSDP_SHARD_GRAD_OP}};
    const job *done = run(jobs, 3, 2);
    assert_true(agree(&done[1], &done[0]) && agree(&done[2], &done[0]));
    assert_true(ranks_run(2, name_units, NULL));
}

/* ---- Checkpoints ---- */

typedef struct journey {
    char directory[48];
    fsdp_checkpoint_kind kind;
    job saved, loaded;
    /* Out: */
    uint64_t at_save, after; /* of all parameters: as saved, and after two steps more */
    double losses[2];
} journey;

typedef struct opened {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state;
} opened;

static fsdp_status open_state(fsdp_world *w, journey *y, job *j, opened *o)
{
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    FSDP_TRY(open_job(w, j, &o->model, &o->optimizer));
    config.model = o->model;
    config.optimizer = o->optimizer;
    config.directory = y->directory;
    config.kind = y->kind;
    return fsdp_state_open(&config, &o->state);
}

static void close_state(opened *o)
{
    fsdp_state_close(o->state);
    fsdp_optimizer_free(o->optimizer);
    fsdp_model_free(o->model);
}

static fsdp_status go_on(fsdp_world *w, opened *o, journey *y)
{
    for (int step = 0; step < 2; step++)
        FSDP_TRY(train_step(w, o->model, o->optimizer, 2 + step, &y->losses[step]));
    return stack_hash_parameters(o->model, &y->after);
}

static fsdp_status save_mix(fsdp_world *w, void *context)
{
    journey *shared = context, y = *shared;
    double loss;
    opened o;
    FSDP_TRY(open_state(w, &y, &y.saved, &o));
    for (int step = 0; step < 2; step++)
        FSDP_TRY(train_step(w, o.model, o.optimizer, step, &loss));
    FSDP_TRY(fsdp_save(o.state, 2));
    FSDP_TRY(stack_hash_parameters(o.model, &y.at_save));
    FSDP_TRY(go_on(w, &o, &y));
    if (fsdp_world_rank(w) == 0)
        *shared = y;
    close_state(&o);
    return FSDP_OK;
}

static fsdp_status load_mix(fsdp_world *w, void *context)
{
    journey *shared = context, y = *shared;
    int64_t step = 0;
    opened o;
    uint64_t loaded;
    FSDP_TRY(open_state(w, &y, &y.loaded, &o));
    FSDP_TRY(fsdp_resume(o.state, &step));
    FSDP_TRY(stack_hash_parameters(o.model, &loaded));
    EXPECT(w, step == 2 && loaded == y.at_save);
    FSDP_TRY(go_on(w, &o, &y));
    if (fsdp_world_rank(w) == 0) {
        shared->after = y.after;
        memcpy(shared->losses, y.losses, sizeof y.losses);
    }
    close_state(&o);
    return FSDP_OK;
}

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *where)
{
    (void)s, (void)flag, (void)where;
    return remove(path);
}

static void a_checkpoint_of_one_mix_begins_any_other_on_any_number_of_ranks(void **state)
{
    (void)state;
    static const struct {
        fsdp_checkpoint_kind kind;
        int before, after;
    } cases[] = {{FSDP_CKPT_SHARDED, 2, 2}, {FSDP_CKPT_SHARDED, 4, 2}, {FSDP_CKPT_SHARDED, 1, 4},
                 {FSDP_CKPT_FULL, 2, 4},    {FSDP_CKPT_FULL, 4, 1},    {FSDP_CKPT_LOCAL, 2, 2},
                 {FSDP_CKPT_SHARDED, 4, 4}};
    const int n = sizeof cases / sizeof cases[0];
    for (int i = 0; i < n; i = ranks_next_variant(i, n)) {
        journey *y = shared_memory(sizeof *y);
        bool local = cases[i].kind == FSDP_CKPT_LOCAL;
        *y = (journey){.directory = "/tmp/fsdp-mix-XXXXXX",
                       .kind = cases[i].kind,
                       .saved = {.mixed = true, .draw = 51 + (uint64_t)i, .offload = i % 2, .average = 0.9},
                       .loaded = {.mixed = true, .draw = 61 + (uint64_t)i, .held = i % 2, .average = 0.9}};
        if (i == n - 1)
            y->saved.pool = POOL_ANY, y->saved.group = 2;
        if (local) /* the parts that each rank wrote are what it reads */
            y->loaded = y->saved;
        assert_non_null(mkdtemp(y->directory));
        assert_true(ranks_run_each(cases[i].before, save_mix, y, 1, sizeof *y));
        journey uninterrupted = *y;
        assert_true(ranks_run_each(cases[i].after, load_mix, y, 1, sizeof *y));
        if (cases[i].before == cases[i].after && y->saved.pool == POOL_WORLD && !ranks_are_on_gpu()) {
            assert_true(y->after == uninterrupted.after);
            assert_memory_equal(y->losses, uninterrupted.losses, sizeof y->losses);
        }
        assert_int_equal(nftw(y->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    }
}

/* ---- By hand ---- */

static fsdp_status write_by_hand(fsdp_world *w, void *context)
{
    job *shared = context, j = *shared;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    FSDP_TRY(open_job(w, &j, &model, &optimizer));
    for (int i = 0; i < N_UNITS; i++) {
        fsdp_unsharded *u;
        FSDP_TRY(fsdp_unshard(model, fsdp_model_unit_name(model, i), &u));
        for (int k = 0; fsdp_unsharded_name(u, k); k++) {
            int64_t n;
            float *values = fsdp_unsharded_values(u, fsdp_unsharded_name(u, k), &n);
            for (int64_t e = 0; e < n; e++)
                values[e] = (float)((e * 13 + k) % 31) / 31 - 0.5f;
        }
        FSDP_TRY(fsdp_reshard(u, true));
    }
    FSDP_TRY(train_step(w, model, optimizer, 0, &j.out.values[0]));
    float one = 0.25f, read[2];
    FSDP_TRY(fsdp_parameter_write(model, "b.up.weight", 99, 1, &one));
    FSDP_TRY(fsdp_parameter_read(model, "b.up.weight", 99, 2, read));
    EXPECT(w, read[0] == one && read[1] != one);
    FSDP_TRY(train_step(w, model, optimizer, 1, &j.out.values[1]));
    FSDP_TRY(stack_sum_up_parameters(model, &j.out));
    if (fsdp_world_rank(w) == 0)
        *shared = j;
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void units_are_unsharded_written_and_resharded_in_every_mix(void **state)
{
    (void)state;
    job *jobs = shared_memory(6 * sizeof *jobs);
    jobs[0] = (job){.b = FSDP_STRATEGY_COUNT};
    for (int i = 1; i < 6; i++)
        jobs[i] = (job){.mixed = true, .draw = 71 + (uint64_t)i, .offload = i % 2};
    assert_true(ranks_run_each(2, write_by_hand, jobs, 6, sizeof *jobs));
    for (int i = 1; i < 6; i++)
        assert_true(outcomes_agree(&jobs[i].out, &jobs[0].out, TOLERANCE_F32));
}

/* ---- Uneven shards ---- */

static void uneven_shards_and_whole_units_go_together(void **state)
{
    (void)state;
    job jobs[] = {{.strategy = FSDP_FULL, .uneven = true, .b = FSDP_NO_SHARD},
                  {.strategy = FSDP_SHARD_OP, .uneven = true, .b = FSDP_NO_SHARD},
                  {.strategy = FSDP_SHARD_GRAD_OP, .uneven = true, .b = FSDP_NO_SHARD, .held = false}};
    const job *done = run(jobs, 3, 4);
    assert_true(agree(&done[1], &done[0]) && agree(&done[2], &done[0]));
}

/* ---- What is refused ---- */

static void wrongly(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    const job *j = context;
    (void)m;
    if (strcmp(name, "b") != 0)
        return;
    switch (j->draw) {
    case 0:
        p->strategy = (fsdp_strategy)9;
        break;
    case 1:
        p->strategy = FSDP_HYBRID;
        p->shard_group_size = 3;
        break;
    case 2:
        p->strategy = FSDP_NO_SHARD;
        p->reshard = FSDP_RESHARD_AFTER_BACKWARD;
        break;
    case 3:
        p->strategy = FSDP_NO_SHARD;
        p->reshard_group_size = 2;
        break;
    case 4:
        p->strategy = FSDP_HYBRID;
        p->shard_group_size = 1;
        p->reshard_group_size = 2;
        break;
    default:
        p->strategy = j->kind ? FSDP_NO_SHARD : FSDP_FULL;
    }
}

static void names_a_whole_unit(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    (void)m, (void)context;
    if (strcmp(name, "a") == 0)
        p->forward_prefetch = "b";
    if (strcmp(name, "b") == 0)
        p->strategy = FSDP_NO_SHARD;
}

static fsdp_status refused(fsdp_world *w, void *context)
{
    static const char *const messages[] = {"strategy is 9",
                                           "shard_group_size 3 does not divide the 2 ranks",
                                           "no_shard every rank has all",
                                           "smaller group of 2 ranks",
                                           "smaller group of 2 ranks",
                                           "names b, of which no_shard gathers nothing",
                                           "rank 1 has another"};
    job j = *(const job *)context;
    fsdp_config config = ranks_config();
    fsdp_module *net = stack_new();
    fsdp_model *model;
    config.wrap = fsdp_wrap_by_type("block");
    config.policy = j.draw == 5 ? names_a_whole_unit : wrongly;
    config.policy_context = &j;
    if (j.draw == 6)
        j.kind = (fsdp_optimizer_kind)fsdp_world_rank(w); /* ranks differ */
    fsdp_status status = fsdp_shard(w, net, &config, &model);
    if (!strstr(fsdp_last_error(), messages[j.draw]))
        fprintf(stderr, "%s\n", fsdp_last_error());
    EXPECT(w, status != FSDP_OK && strstr(fsdp_last_error(), messages[j.draw]));
    EXPECT(w, j.draw == 6 || strstr(fsdp_last_error(), "unit b") || j.draw == 5);
    fsdp_module_free(net);
    return FSDP_OK;
}

static void strategies_that_cannot_be_are_refused_by_the_units_name(void **state)
{
    (void)state;
    job jobs[7] = {{.draw = 0}};
    for (int i = 0; i < 7; i++)
        jobs[i].draw = (uint64_t)i;
    assert_true(ranks_run_each(2, refused, jobs, 7, sizeof *jobs));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mix_of_strategies_over_all_ranks_has_the_bits_of_one),
        cmocka_unit_test(offload_precision_averages_and_frozen_units_keep_them),
        cmocka_unit_test(muon_adafactor_and_sgd_keep_them),
        cmocka_unit_test(hybrid_units_follow_the_others),
        cmocka_unit_test(one_hybrid_unit_among_full_ones_and_the_reverse_keep_their_bits_when_gathered_otherwise),
        cmocka_unit_test(strategies_by_name_are_the_units_and_wrong_ones_are_refused),
        cmocka_unit_test(a_checkpoint_of_one_mix_begins_any_other_on_any_number_of_ranks),
        cmocka_unit_test(units_are_unsharded_written_and_resharded_in_every_mix),
        cmocka_unit_test(uneven_shards_and_whole_units_go_together),
        cmocka_unit_test(strategies_that_cannot_be_are_refused_by_the_units_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
