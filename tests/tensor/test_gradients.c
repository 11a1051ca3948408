/* Every operation's gradient against finite differences, and the same bits however it is recorded: as parameters or
 * values, one variable trained or all, kept or computed again, run once or twice. The table is in gradient_cases.h. */
#include "tensor/gradient_cases.h"

#include <pthread.h>

#include "tensor/op.h"

static int small_chunks(void **state)
{
    rig_setup(state);
    rig *r = *state;
    r->dev->chunk_bytes = 16 * 17 * sizeof(float); /* linear_cross_entropy takes 16 rows at a time, the least it does */
    return 0;
}

/* Goes through the table, with fresh variables for each case; fails after naming all bad ones. */
static void for_every_case(rig *r, bool (*check)(rig *r, const gradient_case *c))
{
    int bad = 0;
    for (int i = 0; i < N_GRADIENT_CASES; i++) {
        rig_clear(r);
        if (!check(r, &gradient_cases[i])) {
            print_error("case %d: %s\n", i, gradient_cases[i].name);
            bad++;
        }
    }
    rig_clear(r);
    assert_int_equal(bad, 0);
}

static bool matches_differences(rig *r, const gradient_case *c)
{
    result plain = run_case(r, c, (recording_way){.values = false});
    function f = open_function(r, c, false);
    evaluate(&f);
    bool good = true;
    const float *gradient = plain.gradients;
    for (int i = 0; i < r->n_parameters; gradient += r->parameters[i++].numel)
        good &= check_parameter(&f, c->name, i, gradient);
    rig_free(r, &f.plan);
    free_result(&plain);
    return good;
}

static void gradients_match_finite_differences(void **state)
{
    for_every_case(*state, matches_differences);
}

static bool same_result(const result *a, const result *b, const char *name, const char *way)
{
    bool out = same_bits(a->out, b->out, a->n_out), gradients = same_bits(a->gradients, b->gradients, a->n_gradients);
    if (!out || !gradients)
        print_error("%s, %s: the %s other bits\n", name, way, out ? "gradient has" : "output has");
    return out && gradients;
}

static bool agrees_in_all_ways(rig *r, const gradient_case *c)
{
    static const struct {
        const char *name;
        recording_way way;
    } ways[] = {{"a second time", {.values = false}},
                {"inputs staged", {.staged = true}},
                {"parameters checkpointed", {.checkpointed = true}},
                {"as values", {.values = true}},
                {"values checkpointed", {.values = true, .checkpointed = true}},
                {"cheap ones computed again", {.values = true, .recompute_cheap = true}},
                {"all at once", {.values = true, .checkpointed = true, .recompute_cheap = true, .staged = true}}};
    result plain[] = {run_case(r, c, (recording_way){.values = false}),
                      run_case(r, c, (recording_way){.values = true})};
    bool good = all_finite(plain[0].out, plain[0].n_out) && all_finite(plain[0].gradients, plain[0].n_gradients);
    if (c->build != dropout_case && c->build != attention_dropout_case) /* what they drop: by place on the tape */
        good &= same_result(&plain[0], &plain[1], c->name, "as values");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        result other = run_case(r, c, ways[i].way);
        good &= same_result(&plain[ways[i].way.values], &other, c->name, ways[i].name);
        free_result(&other);
    }
    free_result(&plain[0]);
    free_result(&plain[1]);
    return good;
}

static void every_way_of_recording_gives_the_same_bits(void **state)
{
    for_every_case(*state, agrees_in_all_ways);
}

/* One variable trained: its gradient is the one it has among others, and no other gradient is touched. */
static bool alone_as_among_others(rig *r, const gradient_case *c, bool values)
{
    result all = run_case(r, c, (recording_way){.values = values});
    bool good = true;
    const float *wanted = all.gradients;
    for (int i = 0; i < r->n_parameters; wanted += r->parameters[i++].numel) {
        result alone = run_case(r, c, (recording_way){.values = values, .only = i + 1});
        const float *got = alone.gradients;
        for (int k = 0; k < r->n_parameters; got += r->parameters[k++].numel) {
            bool fits = k == i ? same_bits(got, wanted, r->parameters[k].numel) : isnan(got[0]);
            if (!fits)
                print_error("%s: only variable %d trained: gradient %d is wrong\n", c->name, i, k);
            good &= fits;
        }
        free_result(&alone);
    }
    free_result(&all);
    return good;
}

static bool parameters_alone(rig *r, const gradient_case *c)
{
    return alone_as_among_others(r, c, false);
}

static bool values_alone(rig *r, const gradient_case *c)
{
    return alone_as_among_others(r, c, true);
}

static void a_variable_trained_alone_has_the_same_gradient(void **state)
{
    for_every_case(*state, parameters_alone);
    for_every_case(*state, values_alone);
}

/* As values, what forward alone may overwrite, it does. */
static bool forward_alone_agrees(rig *r, const gradient_case *c)
{
    bool good = true;
    for (int values = 0; values < 2; values++) {
        result plain = run_case(r, c, (recording_way){.values = values});
        function f = open_function(r, c, values);
        evaluate(&f);
        float *out = rig_output(&f.plan, f.b.out);
        good &= same_bits(out, plain.out, plain.n_out);
        free(out);
        rig_free(r, &f.plan);
        free_result(&plain);
    }
    return good;
}

static void forward_alone_gives_the_same_output(void **state)
{
    for_every_case(*state, forward_alone_agrees);
}

static bool accumulates(rig *r, const gradient_case *c)
{
    builder b;
    record_case(&b, r, c, (recording_way){.values = false});
    plan p = rig_compile(r, b.t, b.root, false);
    rig_run(r, &p);
    int64_t n, again;
    float *once = rig_gradients(r, &n);
    program_run_args arguments = rig_arguments(r, &p);
    arguments.accumulate_parameters = true;
    memset(p.slab, 0xFF, p.slab_bytes);
    assert_ok(program_run(p.program, program_tape(p.program), &arguments));
    float *twice = rig_gradients(r, &again);
    for (int64_t i = 0; i < n; i++)
        once[i] *= 2;
    bool good = relative_distance(twice, once, n) < 1e-5;
    free(once);
    free(twice);
    rig_free(r, &p);
    return good;
}

static void a_second_micro_batch_adds_its_gradient(void **state)
{
    for_every_case(*state, accumulates);
}

/* Rounding to 16 bits has no useful differences; its gradient is the rounded gradient. */
static void a_cast_passes_the_rounded_gradient(void **state)
{
    rig *r = *state;
    static const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F16};
    for (int i = 0; i < 2; i++) {
        rig_clear(r);
        fsdp_tape *t = rig_tape(r);
        fsdp_parameter *p = rig_parameter(r, DIMS(3, 17));
        float *weights = rig_constant(r, 3 * 17 * sizeof *weights);
        rng_fill_normal(rng_key_make(3), 0, 3 * 17, 0, 1, weights);
        fsdp_tensor *low = fsdp_cast(t, tape_parameter(t, p), dtypes[i]);
        fsdp_tensor *y = fsdp_output(t, fsdp_cast(t, low, FSDP_F32)),
                    *w = fsdp_input(t, FSDP_F32, DIMS(3, 17), weights);
        plan compiled = rig_compile(r, t, fsdp_sum(t, fsdp_mul(t, y, w)), false);
        rig_run(r, &compiled);
        float *out = rig_output(&compiled, y);
        double unit = dtypes[i] == FSDP_BF16 ? 0x1p-8 : 0x1p-11;
        for (int k = 0; k < 3 * 17; k++) {
            const float x = ((float *)p->data)[k], g = ((float *)p->grad)[k];
            assert_true(fabs((double)out[k] - x) <= unit * fabs((double)x));
            assert_true(fabs((double)g - weights[k]) <= unit * fabs((double)weights[k]));
        }
        assert_ptr_equal(fsdp_cast(t, low, dtypes[i]), low);
        free(out);
        rig_free(r, &compiled);
    }
}

/* Dropout. */

static int64_t count_zeros(const float *x, int64_t n)
{
    int64_t zeros = 0;
    for (int64_t i = 0; i < n; i++)
        zeros += x[i] == 0;
    return zeros;
}

static void dropout_drops_its_share_anew_each_step_and_scales_the_rest(void **state)
{
    rig *r = *state;
    rig_clear(r);
    enum { N = 64 * 251 };
    const gradient_case c = {"dropout", dropout_case, {64, 251}};
    result first = run_case(r, &c, (recording_way){.values = true});
    const float *x = r->parameters[0].data;
    for (int64_t i = 0; i < N; i++) {
        double kept = (double)x[i] / 0.75; /* the output is its silu */
        assert_true(first.out[i] == 0 || fabs((double)first.out[i] - kept / (1 + exp(-kept))) < 1e-5);
    }
    double share = (double)count_zeros(first.out, N) / N;
    assert_true(fabs(share - 0.25) < 5 * sqrt(0.25 * 0.75 / N));
    r->scalars.step++;
    result next = run_case(r, &c, (recording_way){.values = true});
    r->scalars.step--;
    assert_false(same_bits(first.out, next.out, N));
    /* The same samples on another rank: what sample 12 loses here as the second, it loses there as the first. */
    r->scalars.first_sample++;
    result shifted = run_case(r, &c, (recording_way){.values = true});
    r->scalars.first_sample--;
    for (int64_t i = 0; i < N - 251; i++)
        assert_true((shifted.out[i] == 0) == (first.out[i + 251] == 0));
    free_result(&first);
    free_result(&next);
    free_result(&shifted);
}

static void dropout_does_nothing_in_evaluation(void **state)
{
    rig *r = *state;
    rig_clear(r);
    fsdp_tape *t = rig_tape(r);
    tape_reset(t, false);
    fsdp_tensor *x = tape_parameter(t, rig_parameter(r, DIMS(3, 17)));
    assert_ptr_equal(fsdp_dropout(t, x, 0.5f), x);
    tape_free(t);
}

/* Batch norm. */

static void batch_norm_moves_its_statistics_once_a_step_also_when_computed_again(void **state)
{
    rig *r = *state;
    const gradient_case c = {"batchnorm2d", batchnorm_case, {2, 3, 17, 3}};
    float moved[2][6];
    for (int i = 0; i < 2; i++) {
        rig_clear(r);
        result x = run_case(r, &c, (recording_way){.values = true, .checkpointed = i == 1});
        memcpy(moved[i], r->constants[0], 3 * sizeof(float));
        memcpy(moved[i] + 3, r->constants[1], 3 * sizeof(float));
        free_result(&x);
    }
    const int64_t area = 17 * 3, count = 2 * area;
    const float *x = r->parameters[0].data;
    for (int channel = 0; channel < 3; channel++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < count; i++) {
            double value = (double)x[(i / area * 3 + channel) * area + i % area];
            sum += value;
            squares += value * value;
        }
        double mean = sum / (double)count, variance = (squares - sum * mean) / (double)(count - 1);
        assert_true(fabs((double)moved[0][channel] - 0.1 * mean) < 1e-6);
        assert_true(fabs((double)moved[0][3 + channel] - (0.9 + 0.1 * variance)) < 1e-6);
    }
    assert_memory_equal(moved[0], moved[1], sizeof moved[0]);
}

/* Two ranks as two threads: each adds its sums to the other's. */
typedef struct rank_group {
    pthread_barrier_t meet;
    double *shown[2];
    int calls[2];
} rank_group;

typedef struct rank_state {
    rank_group *group;
    int rank;
    rig rig;
    float *out;
    fsdp_status status;
    const float *x, *weights; /* this rank's half */
    bool checkpointed;
} rank_state;

static fsdp_status sum_over_two(void *context, stream *s, double *values, int64_t n)
{
    (void)s;
    rank_state *me = context;
    double both[64];
    me->group->shown[me->rank] = values;
    me->group->calls[me->rank]++;
    pthread_barrier_wait(&me->group->meet);
    for (int64_t i = 0; i < n; i++)
        both[i] = me->group->shown[0][i] + me->group->shown[1][i];
    pthread_barrier_wait(&me->group->meet);
    memcpy(values, both, (size_t)n * sizeof *values);
    return FSDP_OK;
}

static const int64_t half_shape[] = {3, 3, 5, 7};
enum { HALF = 3 * 3 * 5 * 7, CHANNELS = 3 };

/* Records batch norm over `batch` images with weighted sum as loss; results stay in the rig. */
static float *run_batchnorm(rig *r, int64_t batch, const float *x, const float *weights, bool checkpointed)
{
    int64_t shape[] = {batch, half_shape[1], half_shape[2], half_shape[3]}, channels = CHANNELS;
    fsdp_tape *t = rig_tape(r);
    fsdp_parameter *input = rig_parameter(r, 4, shape), *scale = rig_parameter(r, 1, &channels),
                   *bias = rig_parameter(r, 1, &channels);
    memcpy(input->data, x, (size_t)input->numel * sizeof *x);
    float *mean = rig_constant(r, CHANNELS * sizeof *mean), *variance = rig_constant(r, CHANNELS * sizeof *variance);
    for (int i = 0; i < CHANNELS; i++) {
        mean[i] = 0;
        variance[i] = 1;
    }
    if (checkpointed)
        fsdp_checkpoint_begin(t);
    fsdp_tensor *y = fsdp_batchnorm2d(t, tape_parameter(t, input), tape_parameter(t, scale), tape_parameter(t, bias),
                                      tape_buffer(t, FSDP_F32, 1, &channels, mean),
                                      tape_buffer(t, FSDP_F32, 1, &channels, variance), 0.1f, 0.1f);
    y = fsdp_mul(t, y, y);
    if (checkpointed)
        fsdp_checkpoint_end(t);
    fsdp_output(t, y);
    plan p = rig_compile(r, t, fsdp_sum(t, fsdp_mul(t, y, fsdp_input(t, FSDP_F32, 4, shape, weights))), false);
    rig_run(r, &p);
    float *out = rig_output(&p, y);
    rig_free(r, &p);
    return out;
}

static void *run_rank(void *argument)
{
    rank_state *me = argument;
    const statistics_group group = {.sum = sum_over_two, .context = me, .size = 2};
    me->rig.statistics = &group;
    me->out = run_batchnorm(&me->rig, half_shape[0], me->x, me->weights, me->checkpointed);
    return NULL;
}

static void check_two_ranks(const rig *whole, const float *out, rank_state *ranks)
{
    float both[2 * HALF], sum[CHANNELS];
    memcpy(both, ranks[0].out, HALF * sizeof(float));
    memcpy(both + HALF, ranks[1].out, HALF * sizeof(float));
    assert_true(relative_distance(both, out, 2 * HALF) < 1e-5);
    memcpy(both, ranks[0].rig.parameters[0].grad, HALF * sizeof(float));
    memcpy(both + HALF, ranks[1].rig.parameters[0].grad, HALF * sizeof(float));
    assert_true(relative_distance(both, whole->parameters[0].grad, 2 * HALF) < 1e-5);
    for (int k = 1; k < 3; k++) { /* weight and bias: each rank has its part */
        for (int i = 0; i < CHANNELS; i++)
            sum[i] = ((float *)ranks[0].rig.parameters[k].grad)[i] + ((float *)ranks[1].rig.parameters[k].grad)[i];
        assert_true(relative_distance(sum, whole->parameters[k].grad, CHANNELS) < 1e-5);
    }
    for (int k = 0; k < 2; k++) {
        assert_memory_equal(ranks[0].rig.constants[k], ranks[1].rig.constants[k], CHANNELS * sizeof(float));
        assert_true(relative_distance(ranks[0].rig.constants[k], whole->constants[k], CHANNELS) < 1e-6);
    }
}

static void two_ranks_that_share_statistics_give_the_result_of_one_batch(void **state)
{
    rig *whole = *state;
    float x[2 * HALF], weights[2 * HALF];
    rng_fill_normal(rng_key_make(21), 0, 2 * HALF, 1, 2, x);
    rng_fill_normal(rng_key_make(22), 0, 2 * HALF, 0, 1, weights);
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        rig_clear(whole);
        float *out = run_batchnorm(whole, 2 * half_shape[0], x, weights, false);
        rank_group group = {.calls = {0, 0}};
        rank_state ranks[2];
        pthread_t threads[2];
        assert_int_equal(pthread_barrier_init(&group.meet, NULL, 2), 0);
        for (int i = 0; i < 2; i++) {
            ranks[i] = (rank_state){.group = &group,
                                    .rank = i,
                                    .x = x + i * HALF,
                                    .weights = weights + i * HALF,
                                    .checkpointed = checkpointed};
            rig_open(&ranks[i].rig);
            assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
        }
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        check_two_ranks(whole, out, ranks);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(group.calls[i], 2); /* forward and backward; a replay asks nobody */
            free(ranks[i].out);
            rig_close(&ranks[i].rig);
        }
        free(out);
        pthread_barrier_destroy(&group.meet);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(every_way_of_recording_gives_the_same_bits),
        cmocka_unit_test(a_variable_trained_alone_has_the_same_gradient),
        cmocka_unit_test(forward_alone_gives_the_same_output),
        cmocka_unit_test(a_second_micro_batch_adds_its_gradient),
        cmocka_unit_test(a_cast_passes_the_rounded_gradient),
        cmocka_unit_test(dropout_drops_its_share_anew_each_step_and_scales_the_rest),
        cmocka_unit_test(dropout_does_nothing_in_evaluation),
        cmocka_unit_test(batch_norm_moves_its_statistics_once_a_step_also_when_computed_again),
        cmocka_unit_test(two_ranks_that_share_statistics_give_the_result_of_one_batch),
    };
    return cmocka_run_group_tests_name("gradients", tests, small_chunks, rig_teardown);
}
