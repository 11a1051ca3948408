/* Full parameters of a unit by hand: the same with every strategy, written back for good, refused where ranks differ.
 */
#include "api/support_stack.h"

#include <math.h>

typedef struct job {
    fsdp_strategy strategy;
    fsdp_dtype dtype;
    bool offload;
    outcome out;
} job;

static fsdp_status open_model(fsdp_world *w, const job *j, fsdp_model **model)
{
    fsdp_config config = ranks_config();
    config.strategy = j->strategy;
    config.param_dtype = j->dtype;
    config.wrap = fsdp_wrap_by_type("block");
    config.cpu_offload = j->offload;
    config.shard_group_size = 1;
    config.cast_inputs = true;
    return stack_shard(w, &config, model);
}

/* Weights are clamped after every step; what the others read and compute with is what was written. */
static fsdp_status clamp(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_step_report report = {0};
    adam.lr = 0.02f;
    FSDP_TRY(open_model(w, j, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    for (int step = 0; step < 3; step++) {
        FSDP_TRY(stack_backward(w, model, step, true));
        FSDP_TRY(fsdp_step(optimizer, &report));
        j->out.values[step] = report.loss;
        for (int i = 0; i < fsdp_model_units(model); i++) {
            fsdp_unsharded *unit;
            const char *name;
            FSDP_TRY(fsdp_unshard(model, fsdp_model_unit_name(model, i), &unit));
            for (int k = 0; (name = fsdp_unsharded_name(unit, k)) != NULL; k++) {
                int64_t n;
                float *values = fsdp_unsharded_values(unit, name, &n);
                EXPECT(w, values != NULL);
                for (int64_t e = 0; e < n; e++)
                    values[e] = fminf(fmaxf(values[e], -0.125f), 0.125f);
            }
            EXPECT(w, !fsdp_unsharded_values(unit, "nobody", NULL) && strstr(fsdp_last_error(), "nobody"));
            FSDP_TRY(fsdp_reshard(unit, true));
        }
        EXPECT(w, !fsdp_model_unit_name(model, fsdp_model_units(model)));
        const char *const *names;
        int n = stack_names(&names);
        for (int i = 0; i < n; i++) {
            float values[STACK_WIDTH];
            FSDP_TRY(fsdp_parameter_read(model, names[i], 0, STACK_WIDTH, values));
            for (int k = 0; k < STACK_WIDTH; k++)
                EXPECT(w, fabsf(values[k]) <= 0.125f);
        }
    }
    FSDP_TRY(stack_sum_up_parameters(model, &j->out));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void what_is_written_is_what_all_strategies_train_on(void **state)
{
    (void)state;
    for (int dtype = FSDP_F32; dtype <= FSDP_BF16; dtype++) {
        enum { JOBS = 2 * FSDP_STRATEGY_COUNT };
        job *jobs = shared_memory(JOBS * sizeof *jobs);
        for (int i = 0; i < JOBS; i++)
            jobs[i] = (job){.strategy = (fsdp_strategy)(i / 2), .dtype = (fsdp_dtype)dtype, .offload = i % 2};
        assert_true(ranks_run_each(2, clamp, jobs, JOBS, sizeof *jobs));
        for (int i = 0; i < JOBS; i++) {
            if (jobs[i].strategy < FSDP_HYBRID)
                assert_true(
                    outcomes_agree(&jobs[i].out, &jobs[0].out, dtype == FSDP_F32 ? TOLERANCE_F32 : TOLERANCE_BF16));
        }
    }
}

static fsdp_status refused(fsdp_world *w, void *context)
{
    fsdp_model *model;
    fsdp_unsharded *unit;
    float before, after;
    FSDP_TRY(open_model(w, context, &model));
    EXPECT(w, fsdp_unshard(model, "d", &unit) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "\"d\""));
    FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 3, 1, &before));
    FSDP_TRY(fsdp_unshard(model, "b", &unit));
    fsdp_unsharded_values(unit, "b.up.bias", NULL)[3] = 7 + (float)fsdp_world_rank(w);
    EXPECT(w, fsdp_reshard(unit, true) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "rank 1 has other values"));
    FSDP_TRY(fsdp_unshard(model, "b", &unit));
    fsdp_unsharded_values(unit, "b.up.bias", NULL)[3] = 7;
    FSDP_TRY(fsdp_reshard(unit, false)); /* read only */
    FSDP_TRY(fsdp_reshard(NULL, true));
    FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 3, 1, &after));
    EXPECT(w, before == after);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void ranks_that_write_different_values_are_told_and_nothing_changes(void **state)
{
    (void)state;
    job j = {.strategy = FSDP_FULL};
    assert_true(ranks_run(2, refused, &j));
}

/* The same unit twice and another beside it, ended in another order than begun: what is written last stays. */
static fsdp_status overlap(fsdp_world *w, void *context)
{
    fsdp_model *model;
    fsdp_unsharded *first, *second, *other;
    float values[2];
    FSDP_TRY(open_model(w, context, &model));
    FSDP_TRY(fsdp_unshard(model, "b", &first));
    FSDP_TRY(fsdp_unshard(model, "c", &other));
    FSDP_TRY(fsdp_unshard(model, "b", &second));
    fsdp_unsharded_values(first, "b.up.bias", NULL)[3] = 5;
    fsdp_unsharded_values(second, "b.up.bias", NULL)[3] = 6;
    fsdp_unsharded_values(other, "c.up.bias", NULL)[3] = 7;
    FSDP_TRY(stack_backward(w, model, 0, true)); /* steps go on with what the model has */
    FSDP_TRY(fsdp_reshard(second, true));
    FSDP_TRY(fsdp_reshard(first, true));
    FSDP_TRY(fsdp_reshard(other, true));
    FSDP_TRY(fsdp_parameter_read(model, "b.up.bias", 3, 1, &values[0]));
    FSDP_TRY(fsdp_parameter_read(model, "c.up.bias", 3, 1, &values[1]));
    EXPECT(w, values[0] == 5 && values[1] == 7);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void several_may_be_open_and_end_in_any_order(void **state)
{
    (void)state;
    job jobs[FSDP_STRATEGY_COUNT] = {0};
    for (int strategy = 0; strategy < FSDP_STRATEGY_COUNT; strategy++)
        jobs[strategy].strategy = (fsdp_strategy)strategy;
    assert_true(ranks_run_each(2, overlap, jobs, FSDP_STRATEGY_COUNT, sizeof *jobs));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_what_all_strategies_train_on),
        cmocka_unit_test(several_may_be_open_and_end_in_any_order),
        cmocka_unit_test(ranks_that_write_different_values_are_told_and_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
