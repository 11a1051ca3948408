/* Recurrent cells, one step at a time, made of linear maps and gates. Weights are laid out and named as PyTorch's:
 * weight_ih (gates * hidden, in), weight_hh (gates * hidden, hidden), bias_ih, bias_hh. */
#include <math.h>

#include "nn/module.h"

typedef struct cell {
    fsdp_module base;
    fsdp_parameter *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    int64_t hidden;
} cell;

/* Columns of gate `i` out of x (N, gates * hidden). */
static fsdp_tensor *gate(fsdp_tape *t, const cell *c, fsdp_tensor *x, int i)
{
    return fsdp_slice(t, x, -1, i * c->hidden, c->hidden);
}

static fsdp_tensor *from_input(cell *c, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_linear(t, x, fsdp_use(t, c->weight_ih), fsdp_use(t, c->bias_ih));
}

static fsdp_tensor *from_state(cell *c, fsdp_tape *t, fsdp_tensor *h)
{
    return fsdp_linear(t, h, fsdp_use(t, c->weight_hh), fsdp_use(t, c->bias_hh));
}

/* r, z, n: h' = (1 - z) * n + z * h = n + z * (h - n), with n = tanh(x_n + r * h_n). */
static void gru_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out, int n_out)
{
    cell *c = (cell *)self;
    (void)n_in;
    (void)n_out;
    fsdp_tensor *h = in[1], *x_gates = from_input(c, t, in[0]), *h_gates = from_state(c, t, h);
    fsdp_tensor *r = fsdp_sigmoid(t, fsdp_add(t, gate(t, c, x_gates, 0), gate(t, c, h_gates, 0)));
    fsdp_tensor *z = fsdp_sigmoid(t, fsdp_add(t, gate(t, c, x_gates, 1), gate(t, c, h_gates, 1)));
    fsdp_tensor *n = fsdp_tanh(t, fsdp_add(t, gate(t, c, x_gates, 2), fsdp_mul(t, r, gate(t, c, h_gates, 2))));
    out[0] = fsdp_add(t, n, fsdp_mul(t, z, fsdp_sub(t, h, n)));
}

/* i, f, g, o: c' = f * c + i * g, h' = o * tanh(c'). */
static void lstm_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                         int n_out)
{
    cell *c = (cell *)self;
    (void)n_in;
    (void)n_out;
    fsdp_tensor *gates = fsdp_add(t, from_input(c, t, in[0]), from_state(c, t, in[1]));
    fsdp_tensor *i = fsdp_sigmoid(t, gate(t, c, gates, 0)), *f = fsdp_sigmoid(t, gate(t, c, gates, 1));
    fsdp_tensor *g = fsdp_tanh(t, gate(t, c, gates, 2)), *o = fsdp_sigmoid(t, gate(t, c, gates, 3));
    out[1] = fsdp_add(t, fsdp_mul(t, f, in[2]), fsdp_mul(t, i, g));
    out[0] = fsdp_mul(t, o, fsdp_tanh(t, out[1]));
}

static const fsdp_module_class gru_class = {.type = "gru_cell", .forward_list = gru_forward};
static const fsdp_module_class lstm_class = {.type = "lstm_cell", .forward_list = lstm_forward};

static fsdp_module *new_cell(const fsdp_module_class *module_class, int64_t gates, int64_t in_features, int64_t hidden)
{
    cell *c = fsdp_module_new(module_class, sizeof *c);
    int64_t input[] = {gates * hidden, in_features}, state[] = {gates * hidden, hidden};
    float bound = hidden > 0 ? 1 / sqrtf((float)hidden) : 0;
    if (!c)
        return NULL;
    c->hidden = hidden;
    c->weight_ih = fsdp_module_parameter(c, "weight_ih", 2, input, FSDP_INIT_UNIFORM, bound);
    c->weight_hh = fsdp_module_parameter(c, "weight_hh", 2, state, FSDP_INIT_UNIFORM, bound);
    c->bias_ih = fsdp_module_parameter(c, "bias_ih", 1, input, FSDP_INIT_UNIFORM, bound);
    c->bias_hh = fsdp_module_parameter(c, "bias_hh", 1, input, FSDP_INIT_UNIFORM, bound);
    return &c->base;
}

fsdp_module *fsdp_gru_cell_new(int64_t in_features, int64_t hidden)
{
    return new_cell(&gru_class, 3, in_features, hidden);
}

fsdp_module *fsdp_lstm_cell_new(int64_t in_features, int64_t hidden)
{
    return new_cell(&lstm_class, 4, in_features, hidden);
}
