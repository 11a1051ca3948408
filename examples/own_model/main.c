/* A model of one's own, fully sharded: a residual network that learns a function of two numbers. Everything that FSDP
 * needs to know is the module tree and which modules are units; the rest is ordinary code for one device.
 *
 *     make PREFIX=/usr/local && fsdp run --standalone --nproc-per-node 2 ./own_model [CHECKPOINTS]
 *
 * With a folder for checkpoints it saves every 100 steps, and when it is started again goes on after the newest one:
 * the same bits as if it had never stopped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <fsdp/fsdp.h>

enum { INPUTS = 2, WIDTH = 64, BLOCKS = 4, BATCH = 128, STEPS = 300, SAVE_EVERY = 100 };

/* x + down(gelu(up(norm(x)))) */
typedef struct residual {
    fsdp_module base;
    fsdp_module *norm, *up, *down;
} residual;

static fsdp_tensor *residual_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    residual *r = (residual *)self;
    fsdp_tensor *y = fsdp_gelu(t, fsdp_call(r->up, t, fsdp_call(r->norm, t, x)));
    return fsdp_add(t, x, fsdp_call(r->down, t, y));
}

static const fsdp_module_class residual_class = {.type = "residual", .forward = residual_forward};

static fsdp_module *residual_new(void)
{
    residual *r = fsdp_module_new(&residual_class, sizeof *r);
    if (!r)
        return NULL;
    r->norm = fsdp_module_add(r, "norm", fsdp_layernorm_new(WIDTH, 1e-5f));
    r->up = fsdp_module_add(r, "up", fsdp_linear_new(WIDTH, 4 * WIDTH, true));
    r->down = fsdp_module_add(r, "down", fsdp_linear_new(4 * WIDTH, WIDTH, true));
    return &r->base;
}

static fsdp_module *net_new(void)
{
    fsdp_module *net = fsdp_sequential_new();
    if (!net)
        return NULL;
    fsdp_module_add(net, "in", fsdp_linear_new(INPUTS, WIDTH, true));
    for (int i = 0; i < BLOCKS; i++) {
        char name[24];
        snprintf(name, sizeof name, "block%d", i);
        fsdp_module_add(net, name, residual_new());
    }
    fsdp_module_add(net, "out", fsdp_linear_new(WIDTH, 1, true));
    return net;
}

/* Points of a square and what the function gives there. Every rank and step has its own, which follow from rank and
 * step alone: there is no other state to save. */
static void make_batch(int rank, int64_t step, float *x, float *y)
{
    unsigned state = 12345u + 977u * (unsigned)rank + 7919u * (unsigned)step;
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < INPUTS; k++) {
            state = state * 1664525u + 1013904223u;
            x[INPUTS * i + k] = (float)(state >> 8) / 8388608.0f - 1;
        }
        y[i] = sinf(4 * x[INPUTS * i]) * cosf(3 * x[INPUTS * i + 1]);
    }
}

/* What a rank has open. Zeroed, it can be closed at any time: NULL is legal in every function that frees. */
typedef struct job {
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state; /* NULL: no checkpoints */
    double loss;       /* of the last step; saved and loaded with the model */
} job;

static fsdp_status train_step(job *j, int64_t step)
{
    float x[BATCH * INPUTS], y[BATCH];
    make_batch(fsdp_world_rank(j->world), step, x, y);
    fsdp_tape *t = fsdp_begin(j->model);
    fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, (int64_t[]){BATCH, INPUTS}, x);
    fsdp_tensor *target = fsdp_input(t, FSDP_F32, 2, (int64_t[]){BATCH, 1}, y);
    fsdp_tensor *out = fsdp_call(fsdp_model_module(j->model), t, in);
    FSDP_TRY(fsdp_backward(t, fsdp_mse(t, out, target), true));
    fsdp_step_report report;
    FSDP_TRY(fsdp_step(j->optimizer, &report));
    j->loss = report.loss;
    if (fsdp_world_rank(j->world) == 0 && (step % 50 == 0 || step + 1 == STEPS))
        printf("step %3lld  loss %.5f  gradient norm %.3f\n", (long long)step, report.loss, report.gradient_norm);
    return FSDP_OK;
}

static fsdp_status train(job *j)
{
    int64_t step = 0;
    fsdp_lr_config schedule = FSDP_LR_CONFIG_INIT;
    schedule.decay = FSDP_DECAY_COSINE;
    schedule.lr = 3e-3;
    schedule.warmup = 20;
    schedule.total = STEPS;
    if (j->state)
        FSDP_TRY(fsdp_resume(j->state, &step));
    if (step > 0 && fsdp_world_rank(j->world) == 0)
        printf("resumed after step %lld\n", (long long)step - 1);
    while (step < STEPS) {
        fsdp_optimizer_set_lr(j->optimizer, (float)fsdp_lr_at(&schedule, step));
        FSDP_TRY(train_step(j, step++));
        if (j->state && step % SAVE_EVERY == 0)
            FSDP_TRY(fsdp_save_async(j->state, step)); /* a thread writes it while training goes on */
    }
    return j->state ? fsdp_save_wait(j->state) : FSDP_OK;
}

static fsdp_status open_model(job *j)
{
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_module *net = net_new();
    fsdp_status status = fsdp_module_check(net);
    config.strategy = FSDP_FULL;
    config.wrap = fsdp_wrap_by_type("residual");
    if (status == FSDP_OK)
        status = fsdp_shard(j->world, net, &config, &j->model);
    if (status != FSDP_OK)
        fsdp_module_free(net); /* the model takes it only when it comes into being */
    return status;
}

static fsdp_status open_state(job *j, const char *checkpoints)
{
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    config.model = j->model;
    config.optimizer = j->optimizer;
    config.directory = checkpoints;
    config.keep = 2;
    FSDP_TRY(fsdp_state_open(&config, &j->state));
    return fsdp_state_number(j->state, "loss", &j->loss);
}

static fsdp_status run(job *j, const char *checkpoints)
{
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    adam.clip = 1;
    FSDP_TRY(fsdp_world_open(NULL, &j->world));
    FSDP_TRY(open_model(j));
    FSDP_TRY(fsdp_optimizer_new(j->model, &adam, &j->optimizer));
    if (checkpoints)
        FSDP_TRY(open_state(j, checkpoints));
    if (fsdp_world_rank(j->world) == 0)
        printf("%lld parameters in %d units over %d ranks\n", (long long)fsdp_model_parameters(j->model),
               fsdp_model_units(j->model), fsdp_world_size(j->world));
    return train(j);
}

int main(int argc, char **argv)
{
    const double wanted = 0.01;
    job j = {.loss = NAN};
    fsdp_status status = run(&j, argc > 1 ? argv[1] : NULL);
    if (status != FSDP_OK) {
        fprintf(stderr, "own_model: %s\n", fsdp_last_error());
        if (j.world)
            fsdp_world_abort(j.world); /* the others need not wait */
    }
    fsdp_state_close(j.state);
    fsdp_optimizer_free(j.optimizer);
    fsdp_model_free(j.model);
    fsdp_world_close(j.world);
    if (status == FSDP_OK && !(j.loss < wanted)) {
        fprintf(stderr, "own_model: the loss is %g; it should have fallen below %g\n", j.loss, wanted);
        return 1;
    }
    return fsdp_exit_code(status);
}
