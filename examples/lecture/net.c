/* The stacks of the two branches and the layers they consist of. */
#include "net.h"

#include <stdio.h>

/* Its parameters have the names and sizes of the command's cnn preset. */
typedef struct net {
    fsdp_module base;
    fsdp_module *cnn_stack1, *linear_stack1; /* a deep branch with batch norm ... */
    fsdp_module *cnn_stack2, *linear_stack2; /* ... and a shallow one with a larger window */
    fsdp_module *softmax_stack;
} net;

static fsdp_tensor *net_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    net *n = (net *)self;
    fsdp_tensor *deep = fsdp_call(n->linear_stack1, t, fsdp_call(n->cnn_stack1, t, x));    /* (N, CLASSES) */
    fsdp_tensor *shallow = fsdp_call(n->linear_stack2, t, fsdp_call(n->cnn_stack2, t, x)); /* (N, CLASSES) */
    return fsdp_call(n->softmax_stack, t, fsdp_add(t, deep, shallow));
}

static const fsdp_module_class net_class = {.type = "net", .forward = net_forward};

/* A layer without parameters of one's own. The logarithm of the softmax, not the softmax itself: cross-entropy takes it
 * as it is (a second softmax changes nothing), and no probability is too small for it. */
static fsdp_tensor *log_softmax_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    (void)self;
    return fsdp_log_softmax(t, x, -1);
}

static const fsdp_module_class log_softmax_class = {.type = "log_softmax", .forward = log_softmax_forward};

static fsdp_window window(int64_t kernel, int64_t stride, int64_t padding)
{
    return (fsdp_window){kernel, kernel, stride, stride, padding, padding};
}

static fsdp_module *stack(net *n, const char *name)
{
    return fsdp_module_add(n, name, fsdp_sequential_new());
}

/* Appends a layer, named 0, 1, 2, ... in its stack. */
static void then(fsdp_module *s, fsdp_module *layer)
{
    char name[16];
    snprintf(name, sizeof name, "%d", s ? s->n_children : 0);
    fsdp_module_add(s, name, layer);
}

fsdp_module *net_new(void)
{
    net *n = fsdp_module_new(&net_class, sizeof *n);
    if (!n)
        return NULL;
    fsdp_module *s = n->cnn_stack1 = stack(n, "cnn_stack1"); /* (N, 1, 28, 28) */
    then(s, fsdp_conv2d_new(1, 8, window(3, 1, 1), true));   /* (N, 8, 28, 28) */
    then(s, fsdp_batchnorm2d_new(8, 1e-5f, 0.1f));           /* over the pictures of all ranks */
    then(s, fsdp_relu_new());
    then(s, fsdp_max_pool2d_new(window(2, 2, 0)));          /* (N, 8, 14, 14) */
    then(s, fsdp_conv2d_new(8, 16, window(3, 1, 1), true)); /* (N, 16, 14, 14) */
    then(s, fsdp_relu_new());
    then(s, fsdp_max_pool2d_new(window(2, 2, 0))); /* (N, 16, 7, 7) */

    s = n->linear_stack1 = stack(n, "linear_stack1");
    then(s, fsdp_flatten_new());
    then(s, fsdp_linear_new(16 * 7 * 7, 32, true)); /* 25,120 parameters: by far the largest unit */
    then(s, fsdp_relu_new());
    then(s, fsdp_linear_new(32, CLASSES, true));

    s = n->cnn_stack2 = stack(n, "cnn_stack2");
    then(s, fsdp_conv2d_new(1, 4, window(5, 2, 2), true)); /* (N, 4, 14, 14) */
    then(s, fsdp_relu_new());
    then(s, fsdp_avg_pool2d_new(window(2, 2, 0))); /* (N, 4, 7, 7) */

    s = n->linear_stack2 = stack(n, "linear_stack2");
    then(s, fsdp_flatten_new());
    then(s, fsdp_linear_new(4 * 7 * 7, CLASSES, true));

    n->softmax_stack = stack(n, "softmax_stack");
    then(n->softmax_stack, fsdp_module_new(&log_softmax_class, sizeof(fsdp_module)));
    return &n->base;
}
