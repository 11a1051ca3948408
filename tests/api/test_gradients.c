/* Gradients by name between backward and the step: what the optimizer applies, with every strategy; own clipping. */
#include "api/support_stack.h"

#include <math.h>

enum { MAX = 2 * STACK_WIDTH * STACK_WIDTH };

typedef struct job {
    fsdp_strategy strategy;
    bool offload, held;
    bool halves; /* gradients of 16 bits, one micro-batch a step */
    int group;
    float clip; /* by the library, or by hand */
    bool by_hand;
    /* Out: */
    outcome out;
} job;

static fsdp_status open_model(fsdp_world *w, const job *j, fsdp_model **model)
{
    fsdp_config config = ranks_config();
    config.strategy = j->strategy;
    config.wrap = fsdp_wrap_by_type("block");
    config.cpu_offload = j->offload;
    config.shard_group_size = j->group;
    config.sync_each_micro_batch = !j->held;
    config.reduce_dtype = config.gradient_dtype = j->halves ? FSDP_BF16 : FSDP_F32;
    return stack_shard(w, &config, model);
}

/* lr 1 and nothing else: what is read is exactly what is subtracted. */
static fsdp_status subtract(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config sgd = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_step_report report;
    const char *const *names;
    int n = stack_names(&names);
    static float before[16][MAX], gradient[16][MAX], after[MAX];
    sgd.kind = FSDP_SGD;
    sgd.lr = 1;
    FSDP_TRY(open_model(w, j, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &sgd, &optimizer));
    for (int step = 0; step < 3; step++) {
        double all = 0, squares = 0, blocks = 0, part;
        if (!j->halves)
            FSDP_TRY(stack_backward(w, model, 2 * step, false));
        FSDP_TRY(stack_backward(w, model, 2 * step + 1, true));
        for (int i = 0; i < n; i++) {
            int64_t numel = strstr(names[i], "bias")   ? (strstr(names[i], "up") ? 2 : 1) * STACK_WIDTH
                            : strstr(names[i], "head") ? MAX / 2
                                                       : MAX;
            FSDP_TRY(fsdp_parameter_read(model, names[i], 0, numel, before[i]));
            FSDP_TRY(fsdp_gradient_read(model, names[i], 0, 3, gradient[i])); /* in two pieces */
            FSDP_TRY(fsdp_gradient_read(model, names[i], 3, numel - 3, gradient[i] + 3));
            for (int64_t k = 0; k < numel; k++)
                squares += (double)gradient[i][k] * (double)gradient[i][k];
        }
        FSDP_TRY(fsdp_gradient_norm(model, "*", &all));
        for (int i = 0; i < STACK_BLOCKS; i++) {
            FSDP_TRY(fsdp_gradient_norm(model, (const char *[]){"a.*", "b.*", "c.*"}[i], &part));
            if (fsdp_world_rank(w) == 0)
                j->out.values[i] = part;
            blocks += part * part;
        }
        FSDP_TRY(fsdp_gradient_norm(model, "head.*", &part));
        EXPECT(w, fabs(sqrt(blocks + part * part) - all) < 1e-6 * all);
        EXPECT(w, fabs(sqrt(squares) - all) < 1e-6 * all);
        FSDP_TRY(fsdp_step(optimizer, &report));
        EXPECT(w, fabs(report.gradient_norm - all) < 1e-6 * all && all > 1e-3);
        for (int i = 0; i < n; i++) {
            int64_t numel = strstr(names[i], "bias") ? STACK_WIDTH : MAX / 2;
            FSDP_TRY(fsdp_parameter_read(model, names[i], 0, numel, after));
            for (int64_t k = 0; k < numel; k++)
                EXPECT(w, after[k] == before[i][k] - gradient[i][k]);
        }
    }
    FSDP_TRY(stack_sum_up_parameters(model, &j->out));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void gradients_are_what_the_optimizer_applies_with_every_strategy(void **state)
{
    (void)state;
    job *jobs = shared_memory((size_t)(3 * FSDP_STRATEGY_COUNT) * sizeof *jobs);
    int n = 0, grouped = 0;
    for (int strategy = 0; strategy < FSDP_STRATEGY_COUNT; strategy++) {
        grouped = strategy == FSDP_HYBRID ? n : grouped;
        for (int variant = 0; variant < 3; variant = ranks_next_variant(variant, 3))
            jobs[n++] =
                (job){.strategy = (fsdp_strategy)strategy, .offload = variant == 1, .held = variant == 2, .group = 2};
    }
    assert_true(ranks_run_each(2, subtract, jobs, grouped, sizeof *jobs));
    assert_true(ranks_run_each(4, subtract, jobs + grouped, n - grouped, sizeof *jobs));
    for (int i = 0; i < grouped; i++) {
        if (!jobs[i].held) /* otherwise another order of sums */
            assert_true(outcomes_agree(&jobs[i].out, &jobs[0].out, TOLERANCE_F32));
    }
    job *alone = shared_memory(sizeof *alone);
    assert_true(ranks_run(1, subtract, alone));
}

static void gradients_of_16_bits_are_what_the_optimizer_applies(void **state)
{
    (void)state;
    enum { JOBS = 2 * FSDP_STRATEGY_COUNT, IN_PAIRS = 2 * FSDP_HYBRID };
    job *jobs = shared_memory(JOBS * sizeof *jobs);
    for (int i = 0; i < JOBS; i++)
        jobs[i] = (job){.strategy = (fsdp_strategy)(i / 2), .offload = i % 2, .halves = true, .group = 2};
    assert_true(ranks_run_each(2, subtract, jobs, IN_PAIRS, sizeof *jobs));
    assert_true(ranks_run_each(4, subtract, jobs + IN_PAIRS, JOBS - IN_PAIRS, sizeof *jobs));
    for (int i = 0; i < IN_PAIRS; i++)
        assert_true(outcomes_agree(&jobs[i].out, &jobs[0].out, TOLERANCE_BF16));
    job *alone = shared_memory(sizeof *alone);
    *alone = (job){.halves = true};
    assert_true(ranks_run(1, subtract, alone));
}

static fsdp_status accumulate_halves(fsdp_world *w, void *context)
{
    const job *j = context;
    fsdp_model *model;
    FSDP_TRY(open_model(w, j, &model));
    FSDP_TRY(stack_backward(w, model, 0, false));
    EXPECT(w, stack_backward(w, model, 1, true) == FSDP_ERR_STATE);
    EXPECT(w, strstr(fsdp_last_error(), "gradient_dtype fp32") != NULL);
    fsdp_model_free(model);
    fsdp_config config = FSDP_CONFIG_INIT; /* the reduction in fp32 would be rounded after the fact */
    config.gradient_dtype = FSDP_BF16;
    fsdp_module *net = stack_new();
    EXPECT(w, fsdp_shard(w, net, &config, &model) == FSDP_ERR_INPUT);
    fsdp_module_free(net);
    return FSDP_OK;
}

static void gradients_of_16_bits_are_never_added_to(void **state)
{
    (void)state;
    job *j = shared_memory(sizeof *j);
    for (int held = 0; held < 2; held++) {
        *j = (job){.halves = true, .held = held};
        assert_true(ranks_run(1, accumulate_halves, j));
        assert_true(ranks_run(2, accumulate_halves, j));
    }
}

static fsdp_status clipped(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config sgd = FSDP_OPTIMIZER_CONFIG_INIT;
    sgd.kind = FSDP_SGD;
    sgd.lr = 0.5f;
    sgd.clip = j->by_hand ? 0 : j->clip;
    FSDP_TRY(open_model(w, j, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &sgd, &optimizer));
    for (int step = 0; step < 3; step++) {
        fsdp_step_report report;
        double norm;
        FSDP_TRY(stack_backward(w, model, step, true));
        if (j->by_hand) {
            FSDP_TRY(fsdp_gradient_norm(model, "*", &norm));
            FSDP_TRY(fsdp_gradient_scale(model, "*", (float)((double)j->clip / (norm + 1e-6))));
        }
        FSDP_TRY(fsdp_step(optimizer, &report));
        if (j->by_hand)
            EXPECT(w, fabs(report.gradient_norm - (double)j->clip) < 1e-4 * (double)j->clip);
        if (fsdp_world_rank(w) == 0)
            j->out.values[step] = report.loss;
    }
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void clipping_by_hand_is_clipping(void **state)
{
    (void)state;
    enum { VARIANTS = 2 * FSDP_STRATEGY_COUNT };
    const double tolerance = ranks_are_on_gpu() ? TOLERANCE_F32 : 1e-6;
    job *jobs = shared_memory((size_t)(2 * VARIANTS) * sizeof *jobs);
    for (int i = 0; i < 2 * VARIANTS; i++)
        jobs[i] = (job){
            .strategy = (fsdp_strategy)(i / 4), .offload = i / 2 % 2, .group = 1, .clip = 0.01f, .by_hand = i % 2 == 0};
    assert_true(ranks_run_each(2, clipped, jobs, 2 * VARIANTS, sizeof *jobs));
    for (int k = 0; k < 2 * VARIANTS; k += 2) {
        const double *own = jobs[k].out.values, *library = jobs[k + 1].out.values;
        for (int i = 0; i < 3; i++)
            assert_true(fabs(own[i] - library[i]) < tolerance * library[i]);
    }
}

/* The norm of one step, of a model with a frozen block in bf16; that block may be read before the step. */
static fsdp_status norm_of_step(fsdp_world *w, bool reads, double *norm)
{
    static const char *const frozen[] = {"a.*"};
    static float values[MAX];
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_step_report report;
    fsdp_config config = ranks_config();
    config.wrap = fsdp_wrap_by_type("block");
    config.param_dtype = FSDP_BF16;
    config.cast_inputs = true;
    config.cpu_offload = true;
    config.freeze = frozen;
    config.n_freeze = 1;
    FSDP_TRY(stack_shard(w, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adamw, &optimizer));
    FSDP_TRY(stack_backward(w, model, 0, true));
    if (reads)
        FSDP_TRY(fsdp_parameter_read(model, "a.up.weight", 0, MAX, values));
    FSDP_TRY(fsdp_step(optimizer, &report));
    *norm = report.gradient_norm;
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static fsdp_status reads_before_step(fsdp_world *w, void *context)
{
    (void)context;
    double plain, read;
    FSDP_TRY(norm_of_step(w, false, &plain));
    FSDP_TRY(norm_of_step(w, true, &read));
    EXPECT(w, plain > 0 && read == plain);
    return FSDP_OK;
}

static void reading_a_parameter_before_the_step_leaves_the_norm_alone(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++)
        assert_true(ranks_run(ranks, reads_before_step, NULL));
}

/* The norm of a step in fp16 that comes after so many which overflowed. */
static fsdp_status norm_after(fsdp_world *w, float loss_scale, int overflows, double *norm)
{
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_step_report report;
    fsdp_config config = ranks_config();
    config.param_dtype = FSDP_F16;
    config.cast_inputs = true;
    config.loss_scale = loss_scale;
    FSDP_TRY(stack_shard(w, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adamw, &optimizer));
    for (int i = 0; i < overflows; i++) {
        FSDP_TRY(stack_backward(w, model, 0, true));
        for (int k = 0; k < 2; k++)
            FSDP_TRY(fsdp_gradient_scale(model, "*", 3e38f));
        FSDP_TRY(fsdp_step(optimizer, &report));
        EXPECT(w, report.skipped);
    }
    FSDP_TRY(stack_backward(w, model, 0, true));
    FSDP_TRY(fsdp_step(optimizer, &report));
    EXPECT(w, !report.skipped);
    *norm = report.gradient_norm;
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static fsdp_status overflow_often(fsdp_world *w, void *context)
{
    (void)context;
    double at_one, later;
    FSDP_TRY(norm_after(w, 1, 0, &at_one));
    FSDP_TRY(norm_after(w, 65536, 80, &later));
    EXPECT(w, at_one > 0 && later == at_one);
    return FSDP_OK;
}

static void gradients_are_there_again_after_many_steps_that_overflowed(void **state)
{
    (void)state;
    assert_true(ranks_run(1, overflow_often, NULL));
}

static bool fails(fsdp_status status, fsdp_status wanted, const char *part)
{
    bool as_wanted = status == wanted && strstr(fsdp_last_error(), part);
    if (!as_wanted)
        fprintf(stderr, "status %d: %s\n", (int)status, status == FSDP_OK ? "ok" : fsdp_last_error());
    return as_wanted;
}

static fsdp_status refused(fsdp_world *w, void *context)
{
    (void)context;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    const char *frozen[] = {"a.*"};
    float values[4];
    double norm;
    config.wrap = fsdp_wrap_by_type("block");
    config.freeze = frozen;
    config.n_freeze = 1;
    FSDP_TRY(stack_shard(w, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    EXPECT(w, fails(fsdp_gradient_read(model, "head.bias", 0, 4, values), FSDP_ERR_STATE, "no fsdp_backward"));
    FSDP_TRY(stack_backward(w, model, 0, true));
    EXPECT(w, fails(fsdp_gradient_read(model, "tail.bias", 0, 4, values), FSDP_ERR_INPUT, "tail.bias"));
    EXPECT(w,
           fails(fsdp_gradient_read(model, "head.bias", STACK_WIDTH - 3, 4, values), FSDP_ERR_INPUT, "which has 20"));
    EXPECT(w, fails(fsdp_gradient_read(model, "head.bias", 1, INT64_MAX, values), FSDP_ERR_INPUT, "which has 20"));
    EXPECT(w, fails(fsdp_gradient_read(model, "a.up.bias", 0, 4, values), FSDP_ERR_INPUT, "frozen"));
    EXPECT(w, fails(fsdp_gradient_norm(model, "a.*", &norm), FSDP_ERR_INPUT, "frozen"));
    EXPECT(w, fails(fsdp_gradient_norm(model, "z.*", &norm), FSDP_ERR_INPUT, "no parameter matches"));
    EXPECT(w, fails(fsdp_gradient_scale(model, "*", NAN), FSDP_ERR_INPUT, "finite"));
    FSDP_TRY(stack_backward(w, model, 1, true)); /* nothing has been read yet */
    FSDP_TRY(fsdp_gradient_norm(model, "*", &norm));
    EXPECT(w, fails(stack_backward(w, model, 2, true), FSDP_ERR_STATE, "fsdp_step"));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    FSDP_TRY(stack_backward(w, model, 2, true));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

/* Replicas are summed while the last micro-batch runs: another one would be summed with sums. */
static fsdp_status one_too_many(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    FSDP_TRY(open_model(w, j, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    FSDP_TRY(stack_backward(w, model, 0, true));
    EXPECT(w, fails(stack_backward(w, model, 1, true), FSDP_ERR_STATE, "after the last of this step"));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    FSDP_TRY(stack_backward(w, model, 1, false)); /* never told which is the last: summed at the step */
    FSDP_TRY(stack_backward(w, model, 2, false));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void a_micro_batch_after_the_last_is_refused_with_replicas(void **state)
{
    (void)state;
    job jobs[] = {{.strategy = FSDP_HYBRID, .group = 2}, {.strategy = FSDP_HYBRID, .group = 2, .held = true}};
    assert_true(ranks_run_each(4, one_too_many, jobs, 2, sizeof *jobs));
}

static void what_has_no_gradient_is_refused(void **state)
{
    (void)state;
    assert_true(ranks_run(2, refused, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_what_the_optimizer_applies_with_every_strategy),
        cmocka_unit_test(gradients_of_16_bits_are_what_the_optimizer_applies),
        cmocka_unit_test(gradients_of_16_bits_are_never_added_to),
        cmocka_unit_test(clipping_by_hand_is_clipping),
        cmocka_unit_test(gradients_are_there_again_after_many_steps_that_overflowed),
        cmocka_unit_test(reading_a_parameter_before_the_step_leaves_the_norm_alone),
        cmocka_unit_test(what_has_no_gradient_is_refused),
        cmocka_unit_test(a_micro_batch_after_the_last_is_refused_with_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
