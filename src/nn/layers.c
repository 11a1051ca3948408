/* Ready-made layers, initialised as PyTorch's of the same name are. */
#include <math.h>

#include "base/error.h"
#include "nn/lora.h"
#include "nn/module.h"

/* Layers with a weight and perhaps a bias. */
typedef struct layer {
    fsdp_module base;
    fsdp_parameter *weight, *bias;
    fsdp_buffer *running_mean, *running_var;
    fsdp_window window;
    int64_t groups;
    int64_t padding; /* of an embedding: its row takes no gradient; -1: none */
    float eps, momentum;
} layer;

static fsdp_tensor *linear_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return lora_project(t, x, l->weight, l->bias, NULL);
}

static fsdp_tensor *embedding_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *ids)
{
    layer *l = (layer *)self;
    return fsdp_embedding_padded(t, ids, fsdp_use(t, l->weight), l->padding);
}

static fsdp_tensor *rmsnorm_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_rmsnorm(t, x, fsdp_use(t, l->weight), l->eps);
}

static fsdp_tensor *rmsnorm_plus_one_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_rmsnorm_plus_one(t, x, fsdp_use(t, l->weight), l->eps);
}

static fsdp_tensor *layernorm_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_layernorm(t, x, fsdp_use(t, l->weight), fsdp_use(t, l->bias), l->eps);
}

static fsdp_tensor *conv2d_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_conv2d(t, x, fsdp_use(t, l->weight), l->bias ? fsdp_use(t, l->bias) : NULL, l->window);
}

static fsdp_tensor *conv2d_grouped_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_conv2d_grouped(t, x, fsdp_use(t, l->weight), l->bias ? fsdp_use(t, l->bias) : NULL, l->window,
                               l->groups);
}

static fsdp_tensor *conv1d_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_conv1d(t, x, fsdp_use(t, l->weight), l->bias ? fsdp_use(t, l->bias) : NULL, l->window.stride_w,
                       l->window.padding_w, l->groups);
}

static fsdp_tensor *group_norm_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_group_norm(t, x, l->groups, fsdp_use(t, l->weight), fsdp_use(t, l->bias), l->eps);
}

static fsdp_tensor *batchnorm2d_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    layer *l = (layer *)self;
    return fsdp_batchnorm2d(t, x, fsdp_use(t, l->weight), fsdp_use(t, l->bias), fsdp_use_buffer(t, l->running_mean),
                            fsdp_use_buffer(t, l->running_var), l->eps, l->momentum);
}

static fsdp_tensor *relu_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    (void)self;
    return fsdp_relu(t, x);
}

static fsdp_tensor *flatten_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    (void)self;
    int64_t shape[] = {fsdp_tensor_size(x, 0), -1};
    return fsdp_reshape(t, x, 2, shape);
}

static fsdp_tensor *max_pool2d_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_max_pool2d(t, x, ((layer *)self)->window);
}

static fsdp_tensor *avg_pool2d_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_avg_pool2d(t, x, ((layer *)self)->window);
}

static fsdp_tensor *sequential_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    for (int i = 0; i < self->n_children; i++)
        x = fsdp_call(self->children[i], t, x);
    return x;
}

static const fsdp_module_class linear_class = {.type = "linear", .forward = linear_forward};
static const fsdp_module_class embedding_class = {.type = "embedding", .forward = embedding_forward};
static const fsdp_module_class rmsnorm_class = {.type = "rmsnorm", .forward = rmsnorm_forward};
static const fsdp_module_class rmsnorm_plus_one_class = {.type = "rmsnorm", .forward = rmsnorm_plus_one_forward};
static const fsdp_module_class layernorm_class = {.type = "layernorm", .forward = layernorm_forward};
static const fsdp_module_class conv2d_class = {.type = "conv2d", .forward = conv2d_forward};
static const fsdp_module_class conv2d_grouped_class = {.type = "conv2d", .forward = conv2d_grouped_forward};
static const fsdp_module_class conv1d_class = {.type = "conv1d", .forward = conv1d_forward};
static const fsdp_module_class group_norm_class = {.type = "group_norm", .forward = group_norm_forward};
static const fsdp_module_class batchnorm2d_class = {.type = "batchnorm2d", .forward = batchnorm2d_forward};
static const fsdp_module_class relu_class = {.type = "relu", .forward = relu_forward};
static const fsdp_module_class flatten_class = {.type = "flatten", .forward = flatten_forward};
static const fsdp_module_class max_pool2d_class = {.type = "max_pool2d", .forward = max_pool2d_forward};
static const fsdp_module_class avg_pool2d_class = {.type = "avg_pool2d", .forward = avg_pool2d_forward};
static const fsdp_module_class sequential_class = {.type = "sequential", .forward = sequential_forward};

static layer *new_layer(const fsdp_module_class *module_class)
{
    return fsdp_module_new(module_class, sizeof(layer));
}

fsdp_module *fsdp_linear_new(int64_t in_features, int64_t out_features, bool bias)
{
    layer *l = new_layer(&linear_class);
    int64_t shape[] = {out_features, in_features};
    float bound = in_features > 0 ? 1 / sqrtf((float)in_features) : 0;
    if (!l)
        return NULL;
    l->weight = fsdp_module_parameter(l, "weight", 2, shape, FSDP_INIT_UNIFORM, bound);
    if (l->weight)
        l->weight->linear = LINEAR_OUTPUT_MAJOR;
    if (bias)
        l->bias = fsdp_module_parameter(l, "bias", 1, shape, FSDP_INIT_UNIFORM, bound);
    return &l->base;
}

fsdp_module *fsdp_embedding_new(int64_t vocabulary, int64_t columns)
{
    layer *l = new_layer(&embedding_class);
    int64_t shape[] = {vocabulary, columns};
    if (!l)
        return NULL;
    l->padding = -1;
    l->weight = fsdp_module_parameter(l, "weight", 2, shape, FSDP_INIT_NORMAL, 1);
    return &l->base;
}

void fsdp_embedding_set_padding(fsdp_module *embedding, int64_t padding)
{
    if (embedding && embedding->module_class == &embedding_class)
        ((layer *)embedding)->padding = padding;
}

fsdp_module *fsdp_rmsnorm_new(int64_t columns, float eps)
{
    layer *l = new_layer(&rmsnorm_class);
    if (!l)
        return NULL;
    l->eps = eps;
    l->weight = fsdp_module_parameter(l, "weight", 1, &columns, FSDP_INIT_ONE, 0);
    return &l->base;
}

fsdp_module *fsdp_rmsnorm_plus_one_new(int64_t columns, float eps)
{
    layer *l = new_layer(&rmsnorm_plus_one_class);
    if (!l)
        return NULL;
    l->eps = eps;
    l->weight = fsdp_module_parameter(l, "weight", 1, &columns, FSDP_INIT_ZERO, 0);
    return &l->base;
}

fsdp_module *fsdp_layernorm_new(int64_t columns, float eps)
{
    layer *l = new_layer(&layernorm_class);
    if (!l)
        return NULL;
    l->eps = eps;
    l->weight = fsdp_module_parameter(l, "weight", 1, &columns, FSDP_INIT_ONE, 0);
    l->bias = fsdp_module_parameter(l, "bias", 1, &columns, FSDP_INIT_ZERO, 0);
    return &l->base;
}

/* Any convolution: weight (out_channels, in_channels / groups, kernel...). */
static layer *new_conv(const fsdp_module_class *module_class, int64_t in_channels, int64_t out_channels,
                       fsdp_window window, int64_t groups, int n_dims, bool bias)
{
    layer *l = new_layer(module_class);
    int64_t shape[] = {out_channels, groups > 0 ? in_channels / groups : 0, window.kernel_h, window.kernel_w};
    int64_t fan_in = shape[1] * window.kernel_h * window.kernel_w;
    float bound = fan_in > 0 ? 1 / sqrtf((float)fan_in) : 0;
    if (!l)
        return NULL;
    if (n_dims == 3)
        shape[2] = window.kernel_w;
    l->window = window;
    l->groups = groups;
    l->weight = fsdp_module_parameter(l, "weight", n_dims, shape, FSDP_INIT_UNIFORM, bound);
    if (bias)
        l->bias = fsdp_module_parameter(l, "bias", 1, shape, FSDP_INIT_UNIFORM, bound);
    return l;
}

fsdp_module *fsdp_conv2d_new(int64_t in_channels, int64_t out_channels, fsdp_window window, bool bias)
{
    return (fsdp_module *)new_conv(&conv2d_class, in_channels, out_channels, window, 1, 4, bias);
}

static bool can_group(const char *what, int64_t in_channels, int64_t out_channels, int64_t groups)
{
    if (groups >= 1 && in_channels % groups == 0 && out_channels % groups == 0)
        return true;
    error_set(FSDP_ERR_INPUT, "%s: %lld groups do not divide %lld and %lld channels", what, (long long)groups,
              (long long)in_channels, (long long)out_channels);
    return false;
}

fsdp_module *fsdp_conv2d_grouped_new(int64_t in_channels, int64_t out_channels, fsdp_window window, int64_t groups,
                                     bool bias)
{
    if (!can_group("conv2d", in_channels, out_channels, groups))
        return NULL;
    return (fsdp_module *)new_conv(&conv2d_grouped_class, in_channels, out_channels, window, groups, 4, bias);
}

fsdp_module *fsdp_conv1d_new(int64_t in_channels, int64_t out_channels, int64_t kernel, int64_t stride, int64_t padding,
                             int64_t groups, bool bias)
{
    fsdp_window window = {1, kernel, 1, stride, 0, padding};
    if (!can_group("conv1d", in_channels, out_channels, groups))
        return NULL;
    return (fsdp_module *)new_conv(&conv1d_class, in_channels, out_channels, window, groups, 3, bias);
}

fsdp_module *fsdp_group_norm_new(int64_t groups, int64_t channels, float eps)
{
    if (!can_group("group_norm", channels, channels, groups))
        return NULL;
    layer *l = new_layer(&group_norm_class);
    if (!l)
        return NULL;
    l->groups = groups;
    l->eps = eps;
    l->weight = fsdp_module_parameter(l, "weight", 1, &channels, FSDP_INIT_ONE, 0);
    l->bias = fsdp_module_parameter(l, "bias", 1, &channels, FSDP_INIT_ZERO, 0);
    return &l->base;
}

fsdp_module *fsdp_batchnorm2d_new(int64_t channels, float eps, float momentum)
{
    layer *l = new_layer(&batchnorm2d_class);
    if (!l)
        return NULL;
    l->eps = eps;
    l->momentum = momentum;
    l->weight = fsdp_module_parameter(l, "weight", 1, &channels, FSDP_INIT_ONE, 0);
    l->bias = fsdp_module_parameter(l, "bias", 1, &channels, FSDP_INIT_ZERO, 0);
    l->running_mean = fsdp_module_buffer(l, "running_mean", 1, &channels, NULL, true);
    l->running_var = fsdp_module_buffer(l, "running_var", 1, &channels, NULL, true);
    if (l->running_var) {
        for (int64_t i = 0; i < channels; i++)
            l->running_var->initial[i] = 1;
    }
    return &l->base;
}

static fsdp_module *new_window_layer(const fsdp_module_class *module_class, fsdp_window window)
{
    layer *l = new_layer(module_class);
    if (!l)
        return NULL;
    l->window = window;
    return &l->base;
}

fsdp_module *fsdp_max_pool2d_new(fsdp_window window)
{
    return new_window_layer(&max_pool2d_class, window);
}

fsdp_module *fsdp_avg_pool2d_new(fsdp_window window)
{
    return new_window_layer(&avg_pool2d_class, window);
}

fsdp_module *fsdp_relu_new(void)
{
    return fsdp_module_new(&relu_class, sizeof(layer));
}

fsdp_module *fsdp_flatten_new(void)
{
    return fsdp_module_new(&flatten_class, sizeof(layer));
}

fsdp_module *fsdp_sequential_new(void)
{
    return fsdp_module_new(&sequential_class, sizeof(layer));
}

/* A layer of this file, or NULL: its parameters are at known places. */
static layer *as_layer(fsdp_module *m)
{
    static const fsdp_module_class *const known[] = {&linear_class,    &embedding_class,  &rmsnorm_class,
                                                     &layernorm_class, &conv2d_class,     &conv2d_grouped_class,
                                                     &conv1d_class,    &group_norm_class, &batchnorm2d_class};
    for (size_t i = 0; m && i < sizeof known / sizeof known[0]; i++) {
        if (m->module_class == known[i])
            return (layer *)m;
    }
    return NULL;
}

fsdp_parameter *fsdp_module_weight(fsdp_module *m)
{
    layer *l = as_layer(m);
    return l ? l->weight : NULL;
}

fsdp_parameter *fsdp_module_bias(fsdp_module *m)
{
    layer *l = as_layer(m);
    return l ? l->bias : NULL;
}
