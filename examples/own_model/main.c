/* A model of one's own, fully sharded: a residual network that learns a function of two numbers. Everything that FSDP
 * needs to know is the module tree and which modules are units; the rest is ordinary code for one device.
 *
 *     make PREFIX=/usr/local && fsdp run --standalone --nproc-per-node 2 ./own_model */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <fsdp/fsdp.h>

enum { INPUTS = 2, WIDTH = 64, BLOCKS = 4, BATCH = 128, STEPS = 300 };

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
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        fsdp_module_add(net, name, residual_new());
    }
    fsdp_module_add(net, "out", fsdp_linear_new(WIDTH, 1, true));
    return net;
}

/* Points of a square and what the function gives there; every rank and step has its own. */
static void make_batch(unsigned *state, float *x, float *y)
{
    for (int i = 0; i < BATCH; i++) {
        for (int k = 0; k < INPUTS; k++) {
            *state = *state * 1664525u + 1013904223u;
            x[INPUTS * i + k] = (float)(*state >> 8) / 8388608.0f - 1;
        }
        y[i] = sinf(4 * x[INPUTS * i]) * cosf(3 * x[INPUTS * i + 1]);
    }
}

static fsdp_status train(fsdp_world *world, fsdp_model *model, fsdp_optimizer *optimizer, double *loss)
{
    float x[BATCH * INPUTS], y[BATCH];
    unsigned state = 12345u + 977u * (unsigned)fsdp_world_rank(world);
    fsdp_lr_config schedule = FSDP_LR_CONFIG_INIT;
    schedule.decay = FSDP_DECAY_COSINE;
    schedule.lr = 3e-3;
    schedule.warmup = 20;
    schedule.total = STEPS;
    for (int step = 0; step < STEPS; step++) {
        make_batch(&state, x, y);
        fsdp_tape *t = fsdp_begin(model);
        fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, (int64_t[]){BATCH, INPUTS}, x);
        fsdp_tensor *target = fsdp_input(t, FSDP_F32, 2, (int64_t[]){BATCH, 1}, y);
        fsdp_tensor *out = fsdp_call(fsdp_model_module(model), t, in);
        FSDP_TRY(fsdp_backward(t, fsdp_mse(t, out, target), true));
        fsdp_step_report report;
        fsdp_optimizer_set_lr(optimizer, (float)fsdp_lr_at(&schedule, step));
        FSDP_TRY(fsdp_step(optimizer, &report));
        *loss = report.loss;
        if (fsdp_world_rank(world) == 0 && (step % 50 == 0 || step + 1 == STEPS))
            printf("step %3d  loss %.5f  gradient norm %.3f\n", step, report.loss, report.gradient_norm);
    }
    return FSDP_OK;
}

static fsdp_status run(fsdp_world *world, double *loss)
{
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_module *net = net_new();
    fsdp_status status = fsdp_module_check(net);
    config.strategy = FSDP_FULL;
    config.wrap = fsdp_wrap_by_type("residual");
    adam.clip = 1;
    if (status == FSDP_OK)
        status = fsdp_shard(world, net, &config, &model);
    if (status != FSDP_OK) {
        fsdp_module_free(net); /* the model takes it only when it comes into being */
        return status;
    }
    status = fsdp_optimizer_new(model, &adam, &optimizer);
    if (status == FSDP_OK) {
        if (fsdp_world_rank(world) == 0)
            printf("%lld parameters in %d units over %d ranks\n", (long long)fsdp_model_parameters(model),
                   fsdp_model_units(model), fsdp_world_size(world));
        status = train(world, model, optimizer, loss);
        fsdp_optimizer_free(optimizer);
    }
    fsdp_model_free(model);
    return status;
}

int main(void)
{
    const double wanted = 0.01;
    double loss = NAN;
    fsdp_world *world;
    fsdp_status status = fsdp_world_open(NULL, &world);
    if (status == FSDP_OK) {
        status = run(world, &loss);
        if (status != FSDP_OK)
            fsdp_world_abort(world);
    }
    if (status != FSDP_OK) {
        fprintf(stderr, "own_model: %s\n", fsdp_last_error());
        return fsdp_exit_code(status);
    }
    fsdp_world_close(world);
    if (!(loss < wanted)) {
        fprintf(stderr, "own_model: the loss is %g; it should have fallen below %g\n", loss, wanted);
        return 1;
    }
    return 0;
}
