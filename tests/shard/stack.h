/* A tree to lay out and schedule: an embedding-like layer, equal blocks with a group, and a norm; recorded without
 * data, since plans need shapes only. */
#ifndef TESTS_SHARD_STACK_H
#define TESTS_SHARD_STACK_H

#include "shard/build/layout.h"
#include "shard/plan/schedule.h"
#include "shard/build/wrap.h"
#include "tensor/rig.h"

enum { STACK_WIDTH = 24, STACK_ROWS = 4 };

typedef struct block {
    fsdp_module base;
    fsdp_parameter *gate, *up, *down, *scale;
} block;

static inline fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    block *b = (block *)self;
    fsdp_tensor *h = fsdp_rmsnorm(t, x, fsdp_use(t, b->scale), 1e-5f);
    h = fsdp_swiglu(t, fsdp_linear(t, h, fsdp_use_group(t, b->gate), NULL));
    return fsdp_add(t, x, fsdp_linear(t, h, fsdp_use(t, b->down), NULL));
}

static const fsdp_module_class block_class = {.type = "block", .forward = block_forward};

static inline fsdp_module *block_new(int64_t hidden)
{
    block *b = fsdp_module_new(&block_class, sizeof *b);
    b->scale = fsdp_module_parameter(b, "scale", DIMS(STACK_WIDTH), FSDP_INIT_ONE, 0);
    b->gate = fsdp_module_parameter(b, "gate", DIMS(hidden, STACK_WIDTH), FSDP_INIT_NORMAL, 0.02f);
    b->up = fsdp_module_parameter(b, "up", DIMS(hidden, STACK_WIDTH), FSDP_INIT_NORMAL, 0.02f);
    b->down = fsdp_module_parameter(b, "down", DIMS(STACK_WIDTH, hidden), FSDP_INIT_NORMAL, 0.02f);
    fsdp_parameter_group((fsdp_parameter *const[]){b->gate, b->up}, 2);
    return &b->base;
}

typedef struct stack {
    fsdp_module *root;
    module_contents contents;
} stack;

/* "first", "blocks.0" .. , "norm". */
static inline void stack_open(stack *s, int n_blocks, int64_t hidden)
{
    s->root = fsdp_sequential_new();
    fsdp_module_add(s->root, "first", fsdp_linear_new(STACK_WIDTH, STACK_WIDTH, true));
    for (int i = 0; i < n_blocks; i++) {
        char name[24];
        snprintf(name, sizeof name, "blocks.%d", i);
        fsdp_module_add(s->root, name, block_new(hidden));
    }
    fsdp_module_add(s->root, "norm", fsdp_rmsnorm_new(STACK_WIDTH, 1e-5f));
    assert_ok(module_finish(s->root, &s->contents));
}

static inline void stack_close(stack *s)
{
    module_contents_free(&s->contents);
    fsdp_module_free(s->root);
}

static inline layout *stack_layout(stack *s, const fsdp_wrap *policy, int n_shards, const int *weights)
{
    wrap_result wrapped;
    layout *l;
    layout_cut cuts[32];
    assert_ok(wrap_assign(s->root, &s->contents, policy, 0, &wrapped));
    assert_true(wrapped.n_units <= 32);
    for (int i = 0; i < wrapped.n_units; i++)
        cuts[i] = (layout_cut){.n_shards = n_shards};
    assert_ok(layout_build(&s->contents, wrapped.n_units, (const char *const *)wrapped.names, cuts, weights, &l));
    wrap_result_free(&wrapped);
    return l;
}

/* A stack of blocks, laid out and compiled with a loss: what schedules are made for. With peers, values are gathered
 * across two ranks before the loss. */
enum { PLANNED_BLOCKS = 6 };

typedef struct planned {
    rig r;
    stack s;
    layout *l;
    program *p;
} planned;

/* x->s is open. */
static inline void planned_compile(planned *x, int n_shards, const int *weights, bool peers)
{
    const fsdp_wrap by_block = {.kind = FSDP_WRAP_TYPE, .type = "block"};
    rig_open(&x->r);
    for (int i = 0; i < x->s.contents.n_parameters; i++)
        x->s.contents.parameters[i]->dtype = x->s.contents.parameters[i]->grad_dtype = FSDP_F32;
    x->l = stack_layout(&x->s, &by_block, n_shards, weights);
    fsdp_tape *t = rig_tape(&x->r);
    t->peers = peers ? 2 : 1;
    fsdp_tensor *out = fsdp_call(x->s.root, t, fsdp_input(t, FSDP_F32, DIMS(STACK_ROWS, STACK_WIDTH), NULL));
    if (peers)
        out = fsdp_all_gather(t, out);
    fsdp_loss loss = fsdp_mse(t, out, fsdp_input(t, FSDP_F32, DIMS(STACK_ROWS * t->peers, STACK_WIDTH), NULL));
    program_options options = {.backward = true};
    assert_ok(fsdp_tape_status(t));
    assert_ok(program_compile(t, loss.sum, &options, &x->p));
}

static inline void planned_open(planned *x, int n_shards, const int *weights, bool peers)
{
    stack_open(&x->s, PLANNED_BLOCKS, 20);
    planned_compile(x, n_shards, weights, peers);
}

static inline void planned_close(planned *x)
{
    program_free(x->p);
    layout_free(x->l);
    stack_close(&x->s);
    rig_close(&x->r);
}

#endif
