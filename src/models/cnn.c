/* Image classifiers: the two-branch CNN of a first course on FSDP, and a plain MLP. */
#include <stdio.h>

#include <fsdp/models.h>

#include "base/error.h"
#include "base/sized.h"
#include "models/config.h"
#include "nn/module.h"

typedef struct cnn {
    fsdp_module base;
    fsdp_module *stacks[2], *heads[2]; /* convolutions and linear layers of each branch */
} cnn;

static fsdp_tensor *cnn_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    cnn *m = (cnn *)self;
    fsdp_tensor *branches[2];
    for (int i = 0; i < 2; i++)
        branches[i] = fsdp_call(m->heads[i], t, fsdp_call(m->stacks[i], t, x));
    return fsdp_add(t, branches[0], branches[1]);
}

static const fsdp_module_class cnn_class = {.type = "cnn", .forward = cnn_forward};

/* Appends to a sequence under its running number, as Hugging Face and PyTorch name them. */
static void then(fsdp_module *sequence, fsdp_module *layer)
{
    char name[16];
    if (!sequence)
        return;
    snprintf(name, sizeof name, "%d", sequence->n_children);
    fsdp_module_add(sequence, name, layer);
}

static fsdp_window window(int64_t kernel, int64_t stride, int64_t padding)
{
    return (fsdp_window){kernel, kernel, stride, stride, padding, padding};
}

/* A linear layer whose results are the model's. */
static fsdp_module *output_new(int64_t inputs, int64_t outputs)
{
    fsdp_module *layer = fsdp_linear_new(inputs, outputs, true);
    fsdp_parameter *weight = fsdp_module_weight(layer);
    if (weight)
        weight->output = true;
    return layer;
}

static void build_first_branch(cnn *m, const fsdp_cnn_config *c)
{
    fsdp_module *s = m->stacks[0] = fsdp_module_add(m, "cnn_stack1", fsdp_sequential_new());
    then(s, fsdp_conv2d_new(c->channels, c->first, window(3, 1, 1), true));
    then(s, fsdp_batchnorm2d_new(c->first, 1e-5f, 0.1f));
    then(s, fsdp_relu_new());
    then(s, fsdp_max_pool2d_new(window(2, 2, 0)));
    then(s, fsdp_conv2d_new(c->first, c->second, window(3, 1, 1), true));
    then(s, fsdp_relu_new());
    then(s, fsdp_max_pool2d_new(window(2, 2, 0)));
    fsdp_module *h = m->heads[0] = fsdp_module_add(m, "linear_stack1", fsdp_sequential_new());
    then(h, fsdp_flatten_new());
    then(h, fsdp_linear_new(c->second * (c->height / 2 / 2) * (c->width / 2 / 2), c->hidden, true));
    then(h, fsdp_relu_new());
    then(h, output_new(c->hidden, c->classes));
}

static void build_second_branch(cnn *m, const fsdp_cnn_config *c)
{
    fsdp_module *s = m->stacks[1] = fsdp_module_add(m, "cnn_stack2", fsdp_sequential_new());
    then(s, fsdp_conv2d_new(c->channels, c->branch, window(5, 2, 2), true));
    then(s, fsdp_relu_new());
    then(s, fsdp_avg_pool2d_new(window(2, 2, 0)));
    fsdp_module *h = m->heads[1] = fsdp_module_add(m, "linear_stack2", fsdp_sequential_new());
    then(h, fsdp_flatten_new());
    then(h, output_new(c->branch * ((c->height + 1) / 2 / 2) * ((c->width + 1) / 2 / 2), c->classes));
}

fsdp_status cnn_config_check(const fsdp_cnn_config *c)
{
    const config_size sizes[] = {{"channels", c->channels, MAX_HEADS}, {"height", c->height, MAX_HEADS},
                                 {"width", c->width, MAX_HEADS},       {"classes", c->classes, MAX_WIDTH},
                                 {"first", c->first, MAX_HEADS},       {"second", c->second, MAX_HEADS},
                                 {"branch", c->branch, MAX_HEADS},     {"hidden", c->hidden, MAX_WIDTH}};
    FSDP_TRY(config_check_sizes(sizes, sizeof sizes / sizeof sizes[0]));
    double pixels = (double)c->height * (double)c->width / 16, hidden = (double)c->hidden, classes = (double)c->classes;
    FSDP_TRY(config_check_parameters((double)c->second * pixels * hidden + hidden * classes +
                                     (double)c->branch * pixels * classes));
    if (c->height < 4 || c->width < 4)
        return error_set(FSDP_ERR_INPUT, "cnn: height %lld and width %lld; images of at least 4 x 4 are needed",
                         (long long)c->height, (long long)c->width);
    return FSDP_OK;
}

fsdp_status fsdp_cnn_new(const fsdp_cnn_config *config, fsdp_module **out)
{
    SIZED_READ(fsdp_cnn_config, FSDP_CNN_CONFIG_INIT, full, config);
    const fsdp_cnn_config *c = &full;
    FSDP_TRY(cnn_config_check(c));
    cnn *m = fsdp_module_new(&cnn_class, sizeof *m);
    if (!m)
        return FSDP_ERR_MEMORY;
    build_first_branch(m, c);
    build_second_branch(m, c);
    return model_finish(&m->base, &(model_config){.type = MODEL_CNN, .cnn = *c}, out);
}

fsdp_status mlp_config_check(const fsdp_mlp_config *c)
{
    const config_size sizes[] = {{"inputs", c->inputs, (int64_t)1 << 31},
                                 {"hidden", c->hidden, MAX_WIDTH},
                                 {"layers", c->layers, MAX_LAYERS},
                                 {"outputs", c->outputs, MAX_WIDTH}};
    FSDP_TRY(config_check_sizes(sizes, sizeof sizes / sizeof sizes[0]));
    double hidden = (double)c->hidden;
    return config_check_parameters(hidden * ((double)c->inputs + (double)c->outputs + hidden * (double)c->layers));
}

fsdp_status fsdp_mlp_new(const fsdp_mlp_config *config, fsdp_module **out)
{
    SIZED_READ(fsdp_mlp_config, FSDP_MLP_CONFIG_INIT, full, config);
    const fsdp_mlp_config *c = &full;
    FSDP_TRY(mlp_config_check(c));
    fsdp_module *m = fsdp_sequential_new();
    if (!m)
        return FSDP_ERR_MEMORY;
    for (int64_t i = 0; i < c->layers; i++) {
        then(m, fsdp_linear_new(i == 0 ? c->inputs : c->hidden, c->hidden, true));
        then(m, fsdp_relu_new());
    }
    then(m, output_new(c->hidden, c->outputs));
    return model_finish(m, &(model_config){.type = MODEL_MLP, .mlp = *c}, out);
}

fsdp_loss fsdp_classifier_loss(fsdp_module *m, fsdp_tape *t, fsdp_tensor *images, fsdp_tensor *classes)
{
    return fsdp_cross_entropy(t, fsdp_call(m, t, images), classes, FSDP_IGNORE);
}
