/* Inputs in the precision that the model computes in, and what gradients are divided by. */
#include "api/support_stack.h"

#include <math.h>

enum { STEPS = 3 };

typedef struct job {
    fsdp_strategy strategy;
    fsdp_dtype dtype;
    bool cast_inputs;
    fsdp_checkpointing checkpointing;
    double divisor;
    bool differ; /* between ranks */
    /* Out: */
    fsdp_step_report reports[STEPS];
    uint64_t parameters;
} job;

/* Without cast_inputs the batch is cast by hand. */
static fsdp_status backward(fsdp_world *w, fsdp_model *m, const job *j, int step)
{
    float x[STACK_BATCH * STACK_WIDTH];
    const int64_t shape[] = {STACK_BATCH, STACK_WIDTH};
    if (j->cast_inputs)
        return stack_backward(w, m, step, true);
    stack_values(w, step, x);
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *in = fsdp_cast(t, fsdp_input(t, FSDP_F32, 2, shape, x), j->dtype);
    return fsdp_backward(t, stack_loss(t, fsdp_call(fsdp_model_module(m), t, in), step), true);
}

static fsdp_status train(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    config.strategy = j->strategy;
    config.param_dtype = j->dtype;
    config.cast_inputs = j->cast_inputs;
    config.checkpointing = j->checkpointing;
    config.gradient_divisor = j->divisor + (j->differ ? fsdp_world_rank(w) : 0);
    config.wrap = fsdp_wrap_by_type("block");
    FSDP_TRY(stack_shard(w, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        fsdp_step_report report;
        double norm;
        FSDP_TRY(backward(w, model, j, step));
        FSDP_TRY(fsdp_gradient_norm(model, "*", &norm));
        FSDP_TRY(fsdp_step(optimizer, &report));
        EXPECT(w, fabs(norm - report.gradient_norm) <= 1e-6 * norm);
        if (fsdp_world_rank(w) == 0)
            j->reports[step] = report;
    }
    FSDP_TRY(stack_hash_parameters(model, &j->parameters));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void inputs_cast_by_the_library_are_inputs_cast_by_hand(void **state)
{
    (void)state;
    enum { VARIANTS = 2 * FSDP_HYBRID };
    job *jobs = shared_memory((size_t)(2 * VARIANTS) * sizeof *jobs);
    for (int i = 0; i < 2 * VARIANTS; i++)
        jobs[i] = (job){.strategy = (fsdp_strategy)(i / 4),
                        .dtype = FSDP_BF16,
                        .checkpointing = i / 2 % 2 ? FSDP_CHECKPOINT_FULL : FSDP_CHECKPOINT_NONE,
                        .cast_inputs = i % 2};
    assert_true(ranks_run_each(2, train, jobs, 2 * VARIANTS, sizeof *jobs));
    for (int i = 0; i < 2 * VARIANTS; i += 2)
        assert_true(jobs[i].parameters == jobs[i + 1].parameters);
}

static void gradients_are_divided_by_what_was_asked_for(void **state)
{
    (void)state;
    job *means = shared_memory(FSDP_HYBRID * sizeof *means);
    job *divided = shared_memory((size_t)(2 * FSDP_HYBRID) * sizeof *divided);
    for (int i = 0; i < FSDP_HYBRID; i++)
        means[i] = (job){.strategy = (fsdp_strategy)i, .dtype = FSDP_F32, .cast_inputs = true};
    assert_true(ranks_run_each(2, train, means, FSDP_HYBRID, sizeof *means));
    for (int i = 0; i < 2 * FSDP_HYBRID; i++)
        divided[i] = (job){.strategy = (fsdp_strategy)(i / 2),
                           .dtype = FSDP_F32,
                           .cast_inputs = true,
                           .divisor = (1 + i % 2) * means[i / 2].reports[0].count};
    assert_true(ranks_run_each(2, train, divided, 2 * FSDP_HYBRID, sizeof *divided));
    for (int i = 0; i < FSDP_HYBRID; i++) {
        const job *mean = &means[i], *same = &divided[2 * i], *half = &divided[2 * i + 1];
        assert_true(same->parameters == mean->parameters);
        assert_true(half->reports[0].gradient_norm * 2 == mean->reports[0].gradient_norm);
        assert_true(half->reports[0].loss == mean->reports[0].loss && half->reports[0].count == mean->reports[0].count);
    }
}

static fsdp_status refused(fsdp_world *w, void *context)
{
    EXPECT(w,
           train(w, context) != FSDP_OK && strstr(fsdp_last_error(), ((job *)context)->differ ? "rank 1" : "divisor"));
    return FSDP_OK;
}

static void a_divisor_that_is_wrong_or_differs_between_ranks_is_refused(void **state)
{
    (void)state;
    job wrong[] = {{.divisor = -1}, {.divisor = NAN}, {.divisor = INFINITY}};
    assert_true(ranks_run_each(1, refused, wrong, 3, sizeof *wrong));
    job j = {.divisor = 10, .differ = true};
    assert_true(ranks_run(2, refused, &j));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_cast_by_the_library_are_inputs_cast_by_hand),
        cmocka_unit_test(gradients_are_divided_by_what_was_asked_for),
        cmocka_unit_test(a_divisor_that_is_wrong_or_differs_between_ranks_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
