/* Products in 8 bits through the API, on ranks whose batches have different shapes, also ones that are no multiple of
 * 16: shadow steps judge alike on all of them, and when weights are rounded makes no difference. */
#include <math.h>

#include "api/support_ranks.h"

enum { WIDTH = 16, MOST_ROWS = 32, STEPS = 4, NUMBERS = 2 * WIDTH * WIDTH };

static float spoiled; /* added to the first number of a batch */

static fsdp_loss record(fsdp_model *m, fsdp_tape *t, int64_t rows)
{
    static float x[MOST_ROWS * WIDTH], y[MOST_ROWS * WIDTH]; /* read when the step runs */
    const int64_t shape[] = {rows, WIDTH};
    for (int i = 0; i < MOST_ROWS * WIDTH; i++) {
        x[i] = (float)(i * 37 % 41) / 41 - 0.5f;
        y[i] = (float)(i * 17 % 23) / 23;
    }
    x[0] += spoiled;
    fsdp_tensor *out = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x));
    return fsdp_mse(t, fsdp_cast(t, out, FSDP_F32), fsdp_input(t, FSDP_F32, 2, shape, y));
}

static fsdp_module *make_net(void)
{
    fsdp_module *net = fsdp_sequential_new();
    fsdp_module_add(net, "up", fsdp_linear_new(WIDTH, 2 * WIDTH, true));
    fsdp_module_add(net, "down", fsdp_linear_new(2 * WIDTH, WIDTH, true));
    return net;
}

static void count_fallen(void *context, const fsdp_fp8_layer *layer)
{
    *(int *)context += layer->falls_back;
}

static fsdp_status check(fsdp_model *m, int64_t rows, int *fallen)
{
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT;
    bounds.error = 1e-6; /* that no layer keeps */
    *fallen = 0;
    fsdp_tape *t = fsdp_begin_shadow(m);
    return fsdp_fp8_check(t, record(m, t, rows), &bounds, count_fallen, fallen);
}

/* Rank 1 has so many rows, or none. */
static fsdp_status judge(fsdp_world *w, void *context)
{
    const int *rows = context;
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    int fallen;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_check = true;
    FSDP_TRY(fsdp_shard(w, make_net(), &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adamw, &optimizer));
    fsdp_tape *t = fsdp_begin(m);
    FSDP_TRY(fsdp_backward(t, record(m, t, MOST_ROWS), true));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    FSDP_TRY(check(m, fsdp_world_rank(w) == 0 ? MOST_ROWS : *rows, &fallen));
    EXPECT(w, fallen == 2);
    FSDP_TRY(check(m, MOST_ROWS, &fallen)); /* nothing is left, on either rank */
    EXPECT(w, fallen == 0);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void expect_usual_errors(void *context, const fsdp_fp8_layer *l)
{
    bool usual = l->output_error > 0.01 && l->output_error < 0.08 && l->gradient_error > 0.01 &&
                 l->gradient_error < 0.12 && !l->falls_back;
    for (int i = 0; i < 3; i++)
        usual &= l->flushed[i] < 0.5 && l->saturated[i] == 0;
    *(int *)context += usual;
}

static void expect_no_verdict(void *context, const fsdp_fp8_layer *l)
{
    *(int *)context += !l->falls_back && !isfinite(l->output_error);
}

/* Before any training, of batches with so many rows. */
static fsdp_status judge_first(fsdp_world *w, void *context)
{
    int64_t rows = *(int *)context;
    fsdp_model *m;
    fsdp_config config = ranks_config();
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT;
    int usual = 0, unknown = 0;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_check = true;
    FSDP_TRY(fsdp_shard(w, make_net(), &config, &m));
    fsdp_tape *t = fsdp_begin_shadow(m);
    FSDP_TRY(fsdp_fp8_check(t, record(m, t, rows), &bounds, expect_usual_errors, &usual));
    EXPECT(w, usual == 2);
    spoiled = fsdp_world_rank(w) == 0 ? INFINITY : 0;
    t = fsdp_begin_shadow(m);
    FSDP_TRY(fsdp_fp8_check(t, record(m, t, rows), &bounds, expect_no_verdict, &unknown));
    EXPECT(w, unknown == 2);
    spoiled = 0;
    fsdp_model_free(m);
    return FSDP_OK;
}

static void a_first_batch_of_any_number_of_rows_is_measured_and_a_bad_one_says_nothing(void **state)
{
    (void)state;
    for (int rows = 1; rows <= MOST_ROWS; rows += 3)
        assert_true(ranks_run(1 + rows % 2, judge_first, &rows));
}

static void take_last(void *context, const fsdp_fp8_layer *l)
{
    *(fsdp_fp8_layer *)context = *l;
}

/* Uses of one layer, with many rows and with one: only the last; both; both, where backward computes the first again;
 * or the first for nothing. */
typedef enum uses { LAST_ALONE, BOTH, FIRST_AGAIN, FIRST_FOR_NOTHING, WAYS } uses;

/* Most of the gradient vanishes beside one large number, and so does most of x where it has many rows. */
static fsdp_status judge_uses(fsdp_world *w, uses which, fsdp_fp8_layer *layer)
{
    static float x[(MOST_ROWS + 1) * WIDTH], y[(MOST_ROWS + 1) * WIDTH];
    const int64_t many[] = {MOST_ROWS, WIDTH}, one[] = {1, WIDTH};
    fsdp_model *m;
    fsdp_config config = ranks_config();
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_check = true;
    bounds.error = 1e9;
    for (int i = 0; i < (MOST_ROWS + 1) * WIDTH; i++)
        x[i] = ((float)(i * 37 % 41) - 20.5f) / 41 * (i < MOST_ROWS * WIDTH ? 1e-9f : 1);
    x[0] = 1;
    y[0] = y[MOST_ROWS * WIDTH] = 1e15f;
    FSDP_TRY(fsdp_shard(w, fsdp_linear_new(WIDTH, WIDTH, false), &config, &m));
    fsdp_tape *t = fsdp_begin_shadow(m);
    fsdp_tensor *parts[2], *targets = fsdp_input(t, FSDP_F32, 2, one, y + MOST_ROWS * WIDTH);
    int n = 0;
    if (which == FIRST_AGAIN)
        fsdp_checkpoint_begin(t);
    if (which != LAST_ALONE) {
        parts[n++] = fsdp_silu(t, fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, many, x)));
        fsdp_output(t, fsdp_sum(t, parts[0]));
    }
    if (which == FIRST_AGAIN) {
        fsdp_checkpoint_end(t);
        fsdp_checkpoint_begin(t);
    }
    if (which == FIRST_FOR_NOTHING)
        n = 0;
    parts[n++] = fsdp_silu(
        t, fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, one, x + (int64_t)MOST_ROWS * WIDTH)));
    if (which == FIRST_AGAIN)
        fsdp_checkpoint_end(t);
    if (n > 1) {
        const int64_t all[] = {MOST_ROWS + 1, WIDTH};
        targets = fsdp_input(t, FSDP_F32, 2, all, y);
    }
    fsdp_loss loss = fsdp_mse(t, fsdp_cast(t, fsdp_concat(t, parts, n, 0), FSDP_F32), targets);
    FSDP_TRY(fsdp_fp8_check(t, loss, &bounds, take_last, layer));
    fsdp_model_free(m);
    return FSDP_OK;
}

static bool same_forward(const fsdp_fp8_layer *a, const fsdp_fp8_layer *b)
{
    return a->output_error == b->output_error && a->flushed[0] == b->flushed[0] && a->flushed[1] == b->flushed[1];
}

static bool same_backward(const fsdp_fp8_layer *a, const fsdp_fp8_layer *b)
{
    return a->gradient_error == b->gradient_error && a->flushed[2] == b->flushed[2];
}

static fsdp_status judge_all_uses(fsdp_world *w, void *context)
{
    (void)context;
    fsdp_fp8_layer of[WAYS];
    for (uses i = 0; i < WAYS; i++)
        FSDP_TRY(judge_uses(w, i, &of[i]));
    EXPECT(w, of[LAST_ALONE].flushed[0] < 0.1 && of[LAST_ALONE].flushed[2] > 0.5);
    for (uses i = BOTH; i < WAYS; i++)
        EXPECT(w, same_forward(&of[i], &of[LAST_ALONE]));
    EXPECT(w, of[BOTH].flushed[2] > 0.9 && of[BOTH].flushed[2] <= 1);
    EXPECT(w, same_backward(&of[FIRST_AGAIN], &of[BOTH]));
    EXPECT(w, same_backward(&of[FIRST_FOR_NOTHING], &of[LAST_ALONE]));
    return FSDP_OK;
}

static void parts_of_a_weight_that_is_used_twice_are_parts_of_one_use(void **state)
{
    (void)state;
    assert_true(ranks_run(1, judge_all_uses, NULL));
    assert_true(ranks_run(2, judge_all_uses, NULL));
}

static void ranks_with_different_batches_judge_alike(void **state)
{
    (void)state;
    for (int rows = 0; rows < MOST_ROWS / 4; rows += MOST_ROWS / 4 - 1)
        assert_true(ranks_run(2, judge, &rows));
}

/* Three layers whose weights lie packed: two are used by themselves, with scales of their own, then all in one product.
 */
typedef struct packed {
    fsdp_module base;
    fsdp_parameter *weights[3];
} packed;

static fsdp_tensor *packed_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    fsdp_parameter *const *weights = ((packed *)self)->weights;
    x = fsdp_linear(t, x, fsdp_use(t, weights[0]), NULL);
    x = fsdp_linear(t, x, fsdp_use(t, weights[1]), NULL);
    x = fsdp_linear(t, x, fsdp_use_group(t, weights[0]), NULL);
    fsdp_tensor *first = fsdp_slice(t, x, 1, 0, WIDTH), *last = fsdp_slice(t, x, 1, 2 * WIDTH, WIDTH);
    return fsdp_add(t, fsdp_add(t, first, fsdp_slice(t, x, 1, WIDTH, WIDTH)), last);
}

static fsdp_module *make_packed(void)
{
    static const fsdp_module_class packed_class = {.type = "packed", .forward = packed_forward};
    static const char *const names[] = {"q", "k", "v"};
    packed *net = fsdp_module_new(&packed_class, sizeof *net);
    for (int i = 0; i < 3; i++)
        net->weights[i] = fsdp_module_weight(fsdp_module_add(net, names[i], fsdp_linear_new(WIDTH, WIDTH, false)));
    fsdp_parameter_group(net->weights, 3);
    return &net->base;
}

typedef struct kind {
    fsdp_module *(*make)(void);
    const char *written, *read;
    int64_t numel;
} kind;

/* Steps with writes and evaluations between them, the first without any rows on other ranks than the first; the weights
 * at the end. */
static fsdp_status train(fsdp_world *w, const kind *k, fsdp_strategy strategy, fsdp_fp8_weights weights, float *out)
{
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    int rank = fsdp_world_rank(w);
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_weights = weights;
    config.strategy = strategy;
    config.param_dtype = FSDP_BF16;
    config.cast_inputs = true;
    adamw.lr = 0.01f;
    FSDP_TRY(fsdp_shard(w, k->make(), &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adamw, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        const float large[] = {3 + (float)step, -2}; /* the scale changes */
        FSDP_TRY(fsdp_parameter_write(m, k->written, 5 * step, 2, large));
        fsdp_tape *t = fsdp_begin(m);
        FSDP_TRY(fsdp_backward(t, record(m, t, rank == 0 ? MOST_ROWS : 7 * step), true));
        FSDP_TRY(fsdp_step(optimizer, NULL));
        t = fsdp_begin_evaluation(m);
        (void)record(m, t, 3);
        FSDP_TRY(fsdp_evaluate(t));
    }
    FSDP_TRY(fsdp_parameter_read(m, k->written, 0, k->numel, out));
    FSDP_TRY(fsdp_parameter_read(m, k->read, 0, k->numel, out + k->numel));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static fsdp_status compare_modes(fsdp_world *w, void *context)
{
    static float each_use[2 * NUMBERS], other[2 * NUMBERS];
    FSDP_TRY(train(w, context, FSDP_FULL, FSDP_FP8_WEIGHTS_EACH_USE, each_use));
    for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++)
        for (int mode = FSDP_FP8_WEIGHTS_AUTO; mode <= FSDP_FP8_WEIGHTS_EACH_STEP; mode++) {
            FSDP_TRY(train(w, context, (fsdp_strategy)s, (fsdp_fp8_weights)mode, other));
            EXPECT(w, memcmp(each_use, other, sizeof other) == 0);
        }
    return FSDP_OK;
}

static void what_is_written_and_whatever_the_batches_all_modes_have_the_same_bits(void **state)
{
    (void)state;
    kind kinds[] = {{make_net, "up.weight", "down.weight", NUMBERS},
                    {make_packed, "v.weight", "q.weight", WIDTH * WIDTH},
                    {make_packed, "k.weight", "q.weight", WIDTH * WIDTH}};
    for (int ranks = 1; ranks <= 3; ranks++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            assert_true(ranks_run(ranks, compare_modes, &kinds[i]));
}

/* Where every layer is a unit, layouts are alike whatever is left out. */
static fsdp_status skip_other_layers(fsdp_world *w, void *context)
{
    const char *skipped = fsdp_world_rank(w) == 0 ? "up.*" : "down.*";
    fsdp_config config = ranks_config();
    fsdp_module *net = make_net();
    fsdp_model *m;
    (void)context;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_USE;
    config.wrap = fsdp_wrap_by_type("linear");
    config.fp8_skip = &skipped;
    config.n_fp8_skip = 1;
    EXPECT(w, fsdp_shard(w, net, &config, &m) == FSDP_ERR_PEER);
    EXPECT(w, strstr(fsdp_last_error(), "rank 1 has another strategy, precision or schedule"));
    fsdp_module_free(net);
    return FSDP_OK;
}

static void ranks_that_leave_out_different_layers_are_told(void **state)
{
    (void)state;
    assert_true(ranks_run(2, skip_other_layers, NULL));
}

/* Nothing is computed, nothing falls back, and training goes on. */
static fsdp_status misuse_shadow_steps(fsdp_world *w, void *context)
{
    fsdp_model *m, *other;
    fsdp_config config = ranks_config();
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT, nonsense = FSDP_FP8_BOUNDS_INIT;
    int fallen = 0;
    (void)context;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_check = true;
    nonsense.error = NAN;
    FSDP_TRY(fsdp_shard(w, make_net(), &config, &m));
    FSDP_TRY(fsdp_shard(w, make_net(), &config, &other));
    fsdp_loss others = record(other, fsdp_begin(other), MOST_ROWS);
    fsdp_tape *t = fsdp_begin_shadow(m);
    fsdp_loss loss = record(m, t, MOST_ROWS);
    EXPECT(w, fsdp_backward(t, loss, true) == FSDP_ERR_STATE && strstr(fsdp_last_error(), "shadow step"));
    EXPECT(w, fsdp_fp8_check(t, others, &bounds, count_fallen, &fallen) == FSDP_ERR_INPUT &&
                  strstr(fsdp_last_error(), "another recording"));
    EXPECT(w, fsdp_fp8_check(t, loss, &nonsense, count_fallen, &fallen) == FSDP_ERR_INPUT);
    t = fsdp_begin_shadow(m);
    loss.sum = fsdp_input(t, FSDP_F32, 2, (const int64_t[]){1, WIDTH}, (const float[WIDTH]){0});
    loss.count = loss.sum;
    EXPECT(w, fsdp_fp8_check(t, loss, &bounds, count_fallen, &fallen) == FSDP_ERR_INPUT &&
                  strstr(fsdp_last_error(), "16 elements instead of one"));
    EXPECT(w, fallen == 0);
    t = fsdp_begin(m);
    FSDP_TRY(fsdp_backward(t, record(m, t, MOST_ROWS), true));
    fsdp_model_free(other);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void a_shadow_step_of_no_loss_or_for_training_is_refused(void **state)
{
    (void)state;
    assert_true(ranks_run(2, misuse_shadow_steps, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_first_batch_of_any_number_of_rows_is_measured_and_a_bad_one_says_nothing),
        cmocka_unit_test(parts_of_a_weight_that_is_used_twice_are_parts_of_one_use),
        cmocka_unit_test(ranks_with_different_batches_judge_alike),
        cmocka_unit_test(what_is_written_and_whatever_the_batches_all_modes_have_the_same_bits),
        cmocka_unit_test(ranks_that_leave_out_different_layers_are_told),
        cmocka_unit_test(a_shadow_step_of_no_loss_or_for_training_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
