/* Operations that a program defines itself: the bits of the library's own, in every strategy and under checkpointing;
 * memory they ask for; failures with their names. */
#include "api/support_ranks.h"

#include <dlfcn.h>
#include <math.h>

/* ---- Operands on the host ----
 *
 * The operations here compute on the host. On a GPU they fetch their operands and store their results by the driver,
 * which the process has loaded: what the library promises is the memory, the stream and the order, and that shows it.
 */

static int driver_call(const char *name, uint64_t a, uint64_t b, uint64_t c)
{
    int (*call)(uint64_t, uint64_t, uint64_t);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&call = driver ? dlsym(driver, name) : NULL;
    return call ? call(a, b, c) : -1;
}

static bool is_on_gpu(const fsdp_operation_run *r)
{
    return strcmp(r->device, "cuda") == 0;
}

/* The caller frees it. NULL: no memory, or the driver says no. */
static float *fetch(const fsdp_operation_run *r, const fsdp_operand *operand)
{
    size_t bytes = (size_t)operand->numel * sizeof(float);
    float *values = malloc(bytes);
    if (values && !is_on_gpu(r))
        memcpy(values, operand->data, bytes);
    else if (values && (driver_call("cuStreamSynchronize", (uintptr_t)r->stream, 0, 0) != 0 ||
                        driver_call("cuMemcpyDtoH_v2", (uintptr_t)values, (uintptr_t)operand->data, bytes) != 0)) {
        free(values);
        return NULL;
    }
    return values;
}

static bool store(const fsdp_operation_run *r, void *to, const float *values, int64_t n)
{
    size_t bytes = (size_t)n * sizeof(float);
    if (is_on_gpu(r)) /* the copy may return before the numbers have arrived, and r->stream does not wait for it */
        return driver_call("cuMemcpyHtoD_v2", (uintptr_t)to, (uintptr_t)values, bytes) == 0 &&
               driver_call("cuStreamSynchronize", 0, 0, 0) == 0;
    memcpy(to, values, bytes);
    return true;
}

/* x^3 by a factor, computed by hand. Saves a scaled copy of x as a second output, which backward reads. */
static size_t cube_workspace(const fsdp_operation_run *r, bool backward)
{
    return backward ? (size_t)r->inputs[0].numel * sizeof(float) : 0;
}

static fsdp_status cube_forward(const fsdp_operation_run *r)
{
    const float factor = *(const float *)r->attributes;
    int64_t n = r->outputs[0].numel;
    if (is_on_gpu(r) != ranks_are_on_gpu() || (!is_on_gpu(r) && r->threads < 1) || r->inputs[0].shape.n_dims != 2)
        return fsdp_fail(FSDP_ERR_STATE, "an operation that is not told where it runs");
    float *x = fetch(r, &r->inputs[0]), *y = malloc((size_t)n * sizeof *y), *kept = malloc((size_t)n * sizeof *kept);
    for (int64_t i = 0; x && y && kept && i < n; i++) {
        kept[i] = x[i] * factor;
        y[i] = x[i] * x[i] * x[i] * factor;
    }
    bool good = x && y && kept && store(r, r->outputs[0].data, y, n) && store(r, r->outputs[1].data, kept, n);
    free(kept);
    free(y);
    free(x);
    return good ? FSDP_OK : fsdp_fail(FSDP_ERR_STATE, "operands could not be copied");
}

static fsdp_status cube_backward(const fsdp_operation_run *r)
{
    const fsdp_operand *gradient = &r->input_gradients[0];
    int64_t n = r->inputs[0].numel;
    float *x = fetch(r, &r->inputs[0]), *kept = fetch(r, &r->outputs[1]), *dy = fetch(r, &r->output_gradients[0]);
    float *dx = fetch(r, gradient);
    bool good = x && kept && dy && dx;
    for (int64_t i = 0; good && i < n; i++)
        x[i] = 3 * kept[i] * x[i];
    good = good && store(r, r->workspace, x, n); /* the memory that was asked for is there */
    for (int64_t i = 0; good && i < n; i++)
        dx[i] = (gradient->add ? dx[i] : 0) + x[i] * dy[i];
    good = good && store(r, gradient->data, dx, n);
    free(dx);
    free(dy);
    free(kept);
    free(x);
    return good ? FSDP_OK : fsdp_fail(FSDP_ERR_STATE, "operands could not be copied");
}

static const fsdp_operation cube = {.size = sizeof cube,
                                    .name = "cube",
                                    .forward = cube_forward,
                                    .backward = cube_backward,
                                    .workspace = cube_workspace,
                                    .reads_inputs = 1,
                                    .reads_outputs = 2};

static fsdp_tensor *cube_of(fsdp_tape *t, fsdp_tensor *x, float factor)
{
    fsdp_shape shapes[] = {fsdp_shape_of(x), fsdp_shape_of(x)};
    fsdp_tensor *outputs[2];
    return fsdp_operation_record(t, &cube, 1, &x, 2, shapes, &factor, sizeof factor, outputs) ? outputs[0] : NULL;
}

enum { WIDTH = 24, BATCH = 6, BLOCKS = 3, STEPS = 4 };

typedef struct block {
    fsdp_module base;
    fsdp_module *up, *down;
} block;

static bool by_hand; /* as the job says that runs */

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    block *b = (block *)self;
    fsdp_tensor *h = fsdp_call(b->up, t, x);
    h = by_hand ? cube_of(t, h, 0.25f) : fsdp_scale(t, fsdp_mul(t, fsdp_mul(t, h, h), h), 0.25f);
    return fsdp_add(t, x, fsdp_call(b->down, t, h));
}

static const fsdp_module_class block_class = {.type = "block", .forward = block_forward};

static fsdp_module *block_new(void)
{
    block *b = fsdp_module_new(&block_class, sizeof *b);
    b->up = fsdp_module_add(b, "up", fsdp_linear_new(WIDTH, WIDTH, true));
    b->down = fsdp_module_add(b, "down", fsdp_linear_new(WIDTH, WIDTH, true));
    return &b->base;
}

typedef struct job {
    fsdp_strategy strategy;
    fsdp_checkpointing checkpointing;
    bool offload, by_hand;
    outcome out;
} job;

static fsdp_status train(fsdp_world *w, void *context)
{
    job *j = context;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_module *net = fsdp_sequential_new();
    float x[BATCH * WIDTH], y[BATCH * WIDTH];
    by_hand = j->by_hand;
    for (int i = 0; i < BLOCKS; i++)
        fsdp_module_add(net, (const char *[]){"a", "b", "c"}[i], block_new());
    config.strategy = j->strategy;
    config.wrap = fsdp_wrap_by_type("block");
    config.checkpointing = j->checkpointing;
    config.cpu_offload = j->offload;
    FSDP_TRY(fsdp_shard(w, net, &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        fsdp_step_report report;
        for (int i = 0; i < BATCH * WIDTH; i++) {
            x[i] = (float)((i * 37 + step * 11 + fsdp_world_rank(w) * 5) % 41) / 41 - 0.5f;
            y[i] = (float)((i * 17 + step) % 23) / 23;
        }
        fsdp_tape *t = fsdp_begin(model);
        const int64_t shape[] = {BATCH, WIDTH};
        fsdp_tensor *out = fsdp_call(fsdp_model_module(model), t, fsdp_input(t, FSDP_F32, 2, shape, x));
        FSDP_TRY(fsdp_backward(t, fsdp_mse(t, out, fsdp_input(t, FSDP_F32, 2, shape, y)), true));
        FSDP_TRY(fsdp_step(optimizer, &report));
        if (fsdp_world_rank(w) == 0)
            j->out.values[step] = report.loss;
    }
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return FSDP_OK;
}

static void own_operations_train_like_the_librarys_in_every_strategy(void **state)
{
    (void)state;
    const int checkpointings = FSDP_CHECKPOINT_SELECTIVE + 1;
    job *jobs = shared_memory((size_t)(2 * FSDP_STRATEGY_COUNT * checkpointings) * sizeof *jobs);
    int n = 0;
    for (int strategy = 0; strategy < FSDP_STRATEGY_COUNT; strategy++) {
        for (int c = FSDP_CHECKPOINT_NONE; c < checkpointings; c = ranks_next_variant(c, checkpointings)) {
            jobs[n] = (job){.strategy = (fsdp_strategy)strategy,
                            .checkpointing = (fsdp_checkpointing)c,
                            .offload = (strategy + c) % 2,
                            .by_hand = true};
            jobs[n + 1] = jobs[n];
            jobs[n + 1].by_hand = false;
            n += 2;
        }
    }
    assert_true(ranks_run_each(2, train, jobs, n, sizeof *jobs));
    for (int k = 0; k < n; k += 2) {
        const outcome *own = &jobs[k].out, *library = &jobs[k + 1].out;
        const double tolerance = ranks_are_on_gpu() ? TOLERANCE_F32 : 1e-6;
        for (int i = 0; i < STEPS; i++) {
            if (fabs(own->values[i] - library->values[i]) > tolerance * fabs(library->values[i]))
                fail_msg("strategy %d, step %d: %.9g instead of %.9g", (int)jobs[k].strategy, i, own->values[i],
                         library->values[i]);
        }
        assert_true(outcomes_agree(own, &jobs[0].out, TOLERANCE_F32)); /* whatever the strategy */
    }
}

static fsdp_status fails(const fsdp_operation_run *r)
{
    (void)r;
    return fsdp_fail(FSDP_ERR_INPUT, "the sky is %s", "falling");
}

static fsdp_status refuse(fsdp_world *w, void *context)
{
    (void)context;
    static const fsdp_operation broken = {.size = sizeof broken, .name = "broken", .forward = fails};
    static const fsdp_operation nameless = {.size = sizeof nameless, .forward = fails};
    fsdp_config config = ranks_config();
    fsdp_model *model;
    float x[4] = {0};
    fsdp_shape shape = {.dtype = FSDP_F32, .n_dims = 1, .sizes = {4}};
    fsdp_tensor *in, *out;
    FSDP_TRY(fsdp_shard(w, fsdp_linear_new(4, 4, false), &config, &model));
    fsdp_tape *t = fsdp_begin_evaluation(model);
    in = fsdp_input(t, FSDP_F32, 1, (int64_t[]){4}, x);
    EXPECT(w, fsdp_operation_record(t, &broken, 1, &in, 1, &shape, NULL, 0, &out) && out);
    EXPECT(w, fsdp_evaluate(t) == FSDP_ERR_INPUT);
    EXPECT(w, strstr(fsdp_last_error(), "broken") && strstr(fsdp_last_error(), "the sky is falling"));
    t = fsdp_begin_evaluation(model);
    in = fsdp_input(t, FSDP_F32, 1, (int64_t[]){4}, x);
    EXPECT(w, !fsdp_operation_record(t, &nameless, 1, &in, 1, &shape, NULL, 0, &out) && !out);
    EXPECT(w, fsdp_evaluate(t) == FSDP_ERR_INPUT);
    in = NULL;
    EXPECT(w, !fsdp_operation_record(t, &broken, 1, &in, 1, &shape, NULL, 0, &out));
    fsdp_model_free(model);
    return FSDP_OK;
}

static void failures_name_the_operation(void **state)
{
    (void)state;
    assert_true(ranks_run(1, refuse, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_operations_train_like_the_librarys_in_every_strategy),
        cmocka_unit_test(failures_name_the_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
