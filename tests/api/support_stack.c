/* The net, its batches, hashes. */
#include "api/support_stack.h"

#include <math.h>

typedef struct block {
    fsdp_module base;
    fsdp_module *up, *down;
} block;

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    block *b = (block *)self;
    return fsdp_add(t, x, fsdp_call(b->down, t, fsdp_relu(t, fsdp_call(b->up, t, x))));
}

static const fsdp_module_class block_class = {.type = "block", .forward = block_forward};

fsdp_module *stack_new(void)
{
    fsdp_module *net = fsdp_sequential_new();
    for (int i = 0; i < STACK_BLOCKS; i++) {
        block *b = fsdp_module_new(&block_class, sizeof *b);
        b->up = fsdp_module_add(b, "up", fsdp_linear_new(STACK_WIDTH, 2 * STACK_WIDTH, true));
        b->down = fsdp_module_add(b, "down", fsdp_linear_new(2 * STACK_WIDTH, STACK_WIDTH, true));
        fsdp_module_add(net, (const char *[]){"a", "b", "c"}[i], b);
    }
    fsdp_module_add(net, "head", fsdp_linear_new(STACK_WIDTH, STACK_WIDTH, true));
    return net;
}

fsdp_status stack_shard(fsdp_world *w, const fsdp_config *config, fsdp_model **model)
{
    fsdp_module *net = stack_new();
    fsdp_status status = fsdp_shard(w, net, config, model);
    if (status != FSDP_OK)
        fsdp_module_free(net);
    return status;
}

void stack_values(fsdp_world *w, int step, float *x)
{
    for (int i = 0; i < STACK_BATCH * STACK_WIDTH; i++)
        x[i] = (float)((i * 37 + step * 11 + fsdp_world_rank(w) * 5) % 41) / 41 - 0.5f;
}

fsdp_loss stack_loss(fsdp_tape *t, fsdp_tensor *out, int step)
{
    static float y[STACK_BATCH * STACK_WIDTH]; /* read when the step runs */
    const int64_t shape[] = {STACK_BATCH, STACK_WIDTH};
    for (int i = 0; i < STACK_BATCH * STACK_WIDTH; i++)
        y[i] = (float)((i * 17 + step) % 23) / 23;
    return fsdp_mse(t, fsdp_cast(t, out, FSDP_F32), fsdp_input(t, FSDP_F32, 2, shape, y));
}

fsdp_status stack_backward(fsdp_world *w, fsdp_model *m, int step, bool last)
{
    float x[STACK_BATCH * STACK_WIDTH];
    const int64_t shape[] = {STACK_BATCH, STACK_WIDTH};
    stack_values(w, step, x);
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *out = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x));
    return fsdp_backward(t, stack_loss(t, out, step), last);
}

int stack_names(const char *const **names)
{
    static const char *const all[] = {"a.up.weight",   "a.up.bias",     "a.down.weight", "a.down.bias", "b.up.weight",
                                      "b.up.bias",     "b.down.weight", "b.down.bias",   "c.up.weight", "c.up.bias",
                                      "c.down.weight", "c.down.bias",   "head.weight",   "head.bias"};
    *names = all;
    return (int)(sizeof all / sizeof *all);
}

uint64_t stack_hash(uint64_t hash, const void *data, size_t bytes)
{
    hash = hash ? hash : 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    return hash;
}

/* The norm is that of squares summed here. */
static fsdp_status add_one(void *context, const char *name, int n_dims, const int64_t *shape, const float *values)
{
    (void)name;
    outcome *o = context;
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= shape[i];
    for (int64_t i = 0; i < n; i++)
        o->norm += (double)values[i] * (double)values[i];
    o->parameters = stack_hash(o->parameters, values, (size_t)n * sizeof *values);
    return FSDP_OK;
}

fsdp_status stack_sum_up_parameters(fsdp_model *m, outcome *o)
{
    outcome mine = {0}; /* *o may be shared by ranks */
    FSDP_TRY(fsdp_summon(m, add_one, &mine));
    o->parameters = mine.parameters;
    o->norm = sqrt(mine.norm);
    return FSDP_OK;
}

fsdp_status stack_hash_parameters(fsdp_model *m, uint64_t *hash)
{
    outcome mine;
    FSDP_TRY(stack_sum_up_parameters(m, &mine));
    *hash = mine.parameters;
    return FSDP_OK;
}
