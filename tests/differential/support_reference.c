/* Forward, backward and update of a case, written to be read. */
#include "differential/support_reference.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A tape over matrices ---- */

typedef struct value {
    int rows, columns;
    double *v, *g;
} value;

typedef enum operation {
    OP_EMBED,
    OP_LINEAR, /* a (rows, k) times b transposed (n, k), plus bias c */
    OP_ADD,
    OP_RMSNORM,
    OP_LAYERNORM,
    OP_GELU,
    OP_SILU,
    OP_RELU,
    OP_SWIGLU,
    OP_CROSS_ENTROPY, /* sum, and count in attribute */
    OP_SQUARED_ERROR,
} operation;

typedef struct node {
    operation op;
    value *a, *b, *c, *out;
    const int32_t *ids;
    const float *data;
} node;

enum { MAX_NODES = 64, MAX_VALUES = 128, MEMORY = 1 << 20 };

typedef struct tape {
    node nodes[MAX_NODES];
    value values[MAX_VALUES];
    int n_nodes, n_values;
    size_t used;
    double memory[MEMORY];
} tape;

static double *take(tape *t, size_t n)
{
    double *memory = t->memory + t->used;
    t->used += n;
    if (t->used > MEMORY)
        abort();
    memset(memory, 0, n * sizeof *memory);
    return memory;
}

static value *add_value(tape *t, int rows, int columns)
{
    if (t->n_values == MAX_VALUES)
        abort();
    value *x = &t->values[t->n_values++];
    *x = (value){rows, columns, take(t, (size_t)rows * (size_t)columns), take(t, (size_t)rows * (size_t)columns)};
    return x;
}

static value *record(tape *t, node n, int rows, int columns)
{
    if (t->n_nodes == MAX_NODES)
        abort();
    n.out = add_value(t, rows, columns);
    t->nodes[t->n_nodes++] = n;
    return n.out;
}

static const double eps = 1e-5;

/* What a row is multiplied by, and its mean (0 for rmsnorm). */
static double row_scale(const node *n, const double *x, double *mean)
{
    int k = n->a->columns;
    double squares = 0;
    *mean = 0;
    for (int j = 0; n->op == OP_LAYERNORM && j < k; j++)
        *mean += x[j] / k;
    for (int j = 0; j < k; j++)
        squares += (x[j] - *mean) * (x[j] - *mean) / k;
    return 1 / sqrt(squares + eps);
}

static void norm(const node *n, bool backward)
{
    int k = n->a->columns;
    for (int i = 0; i < n->a->rows; i++) {
        const double *x = n->a->v + i * k, *w = n->b->v, *dy = n->out->g + i * k;
        double mean, s = row_scale(n, x, &mean), dot = 0, sum = 0;
        for (int j = 0; !backward && j < k; j++)
            n->out->v[i * k + j] = (x[j] - mean) * s * w[j] + (n->c ? n->c->v[j] : 0);
        for (int j = 0; backward && j < k; j++) {
            double hat = (x[j] - mean) * s;
            n->b->g[j] += dy[j] * hat;
            if (n->c)
                n->c->g[j] += dy[j];
            dot += dy[j] * w[j] * hat / k;
            sum += n->op == OP_LAYERNORM ? dy[j] * w[j] / k : 0;
        }
        for (int j = 0; backward && j < k; j++)
            n->a->g[i * k + j] += s * (dy[j] * w[j] - sum - (x[j] - mean) * s * dot);
    }
}

static void linear(const node *n, bool backward)
{
    int k = n->a->columns, m = n->b->rows;
    for (int i = 0; i < n->a->rows; i++) {
        for (int j = 0; j < m; j++) {
            double *y = &n->out->v[i * m + j], dy = n->out->g[i * m + j];
            if (!backward)
                *y = n->c ? n->c->v[j] : 0;
            else if (n->c)
                n->c->g[j] += dy;
            for (int l = 0; l < k; l++) {
                if (!backward) {
                    *y += n->a->v[i * k + l] * n->b->v[j * k + l];
                } else {
                    n->a->g[i * k + l] += dy * n->b->v[j * k + l];
                    n->b->g[j * k + l] += dy * n->a->v[i * k + l];
                }
            }
        }
    }
}

static double activation(operation op, double x, double *slope)
{
    double sigmoid = 1 / (1 + exp(-x)), normal = 0.5 * (1 + erf(x / sqrt(2)));
    switch (op) {
    case OP_GELU:
        *slope = normal + x * exp(-x * x / 2) / sqrt(2 * M_PI);
        return x * normal;
    case OP_RELU:
        *slope = x > 0 ? 1 : 0;
        return x > 0 ? x : 0;
    default:
        *slope = sigmoid * (1 + x * (1 - sigmoid));
        return x * sigmoid;
    }
}

static void pointwise(const node *n, bool backward)
{
    int k = n->out->columns;
    bool gated = n->op == OP_SWIGLU;
    for (int i = 0; i < n->out->rows * k; i++) {
        int at = gated ? i / k * 2 * k + i % k : i;
        double slope, y = activation(n->op, n->a->v[at], &slope), up = gated ? n->a->v[at + k] : 1;
        if (!backward) {
            n->out->v[i] = y * up;
            continue;
        }
        n->a->g[at] += n->out->g[i] * slope * up;
        if (gated)
            n->a->g[at + k] += n->out->g[i] * y;
    }
}

static void cross_entropy(const node *n, bool backward)
{
    int k = n->a->columns;
    for (int i = 0; i < n->a->rows; i++) {
        const double *x = n->a->v + i * k;
        double most = x[0], sum = 0;
        if (n->ids[i] == IGNORED)
            continue;
        for (int j = 0; j < k; j++)
            most = x[j] > most ? x[j] : most;
        for (int j = 0; j < k; j++)
            sum += exp(x[j] - most);
        if (!backward)
            n->out->v[0] += log(sum) + most - x[n->ids[i]];
        for (int j = 0; backward && j < k; j++)
            n->a->g[i * k + j] += n->out->g[0] * (exp(x[j] - most) / sum - (j == n->ids[i]));
    }
}

static void run_node(const node *n, bool backward)
{
    int k = n->out->columns;
    switch (n->op) {
    case OP_EMBED:
        for (int i = 0; i < n->out->rows * k; i++) {
            int at = n->ids[i / k] * k + i % k;
            if (backward)
                n->a->g[at] += n->out->g[i];
            else
                n->out->v[i] = n->a->v[at];
        }
        return;
    case OP_ADD:
        for (int i = 0; i < n->out->rows * k; i++) {
            if (!backward) {
                n->out->v[i] = n->a->v[i] + (n->data ? (double)n->data[i] : n->b->v[i]);
                continue;
            }
            n->a->g[i] += n->out->g[i];
            if (!n->data)
                n->b->g[i] += n->out->g[i];
        }
        return;
    case OP_SQUARED_ERROR:
        for (int i = 0; i < n->a->rows * n->a->columns; i++) {
            double d = n->a->v[i] - (double)n->data[i];
            if (backward)
                n->a->g[i] += 2 * d * n->out->g[0];
            else
                n->out->v[0] += d * d;
        }
        return;
    case OP_LINEAR:
        linear(n, backward);
        return;
    case OP_RMSNORM:
    case OP_LAYERNORM:
        norm(n, backward);
        return;
    case OP_CROSS_ENTROPY:
        cross_entropy(n, backward);
        return;
    default:
        pointwise(n, backward);
    }
}

/* ---- The net ---- */

typedef struct parameter {
    case_parameter shape;
    bool frozen, decays;
    double *master, *gradient, *moment1, *moment2; /* (numel) */
} parameter;

typedef struct reference_state {
    const test_case *c;
    parameter list[MAX_PARAMETERS];
    int n;
    double loss, count; /* of the step so far */
    int updates;
    tape tape;
    case_data data;
} reference_state;

static double rounded(double x, fsdp_dtype dtype)
{
    int exponent;
    if (dtype == FSDP_F32 || x == 0 || !isfinite(x))
        return dtype == FSDP_F32 ? (double)(float)x : x;
    double unit = (frexp(x, &exponent), ldexp(1, exponent - (dtype == FSDP_BF16 ? 8 : 11)));
    return rint(x / unit) * unit;
}

static int index_of(const reference_state *r, const char *module, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", module, name);
    for (int i = 0; i < r->n; i++) {
        if (strcmp(r->list[i].shape.name, full) == 0)
            return i;
    }
    return -1;
}

/* The value of a parameter on the tape, which takes its gradient; one for all uses. */
static value *use(reference_state *r, value **used, const char *module, const char *name)
{
    int i = index_of(r, module, name);
    if (i < 0)
        return NULL;
    if (used[i])
        return used[i];
    const case_parameter *p = &r->list[i].shape;
    used[i] = add_value(&r->tape, (int)p->shape[0], p->n_dims > 1 ? (int)p->shape[1] : 1);
    for (int64_t k = 0; k < p->numel; k++)
        used[i]->v[k] = rounded(r->list[i].master[k], r->c->param_dtype);
    return used[i];
}

static value *block(reference_state *r, value **used, int index, value *x)
{
    static const operation kinds[] = {OP_GELU, OP_SILU, OP_RELU, OP_SWIGLU};
    const test_case *c = r->c;
    char norm_name[24], up[24], down[24];
    snprintf(norm_name, sizeof norm_name, "blocks.%d.norm", index);
    snprintf(up, sizeof up, "blocks.%d.up", index);
    snprintf(down, sizeof down, "blocks.%d.down", index);
    node n = {.op = c->layernorm ? OP_LAYERNORM : OP_RMSNORM,
              .a = x,
              .b = use(r, used, norm_name, "weight"),
              .c = use(r, used, norm_name, "bias")};
    value *h = record(&r->tape, n, x->rows, c->hidden);
    n = (node){.op = OP_LINEAR, .a = h, .b = use(r, used, up, "weight"), .c = use(r, used, up, "bias")};
    h = record(&r->tape, n, x->rows, n.b->rows);
    h = record(&r->tape, (node){.op = kinds[c->kinds[index]], .a = h}, x->rows, c->inner);
    n = (node){.op = OP_LINEAR, .a = h, .b = use(r, used, down, "weight"), .c = use(r, used, down, "bias")};
    h = record(&r->tape, n, x->rows, c->hidden);
    return record(&r->tape, (node){.op = OP_ADD, .a = x, .b = h}, x->rows, c->hidden);
}

typedef struct recorded {
    value *used[MAX_PARAMETERS];
    value *logits, *losses[2];
    double counts[2];
} recorded;

/* Forward over the data of one rank. */
static void forward(reference_state *r, const recording *what, int rank, recorded *out)
{
    const test_case *c = r->c;
    tape *t = &r->tape;
    t->n_nodes = t->n_values = 0;
    t->used = 0;
    *out = (recorded){.counts = {0, 0}};
    case_fill(c, what, rank, &r->data);
    int rows = r->data.rows;
    value *x = record(t, (node){.op = OP_EMBED, .a = use(r, out->used, "embed", "weight"), .ids = r->data.ids}, rows,
                      c->hidden);
    if (c->features)
        x = record(t, (node){.op = OP_ADD, .a = x, .data = r->data.features}, rows, c->hidden);
    for (int i = 0; i < c->n_blocks; i++) {
        if (what->blocks >> i & 1)
            x = block(r, out->used, i, x);
    }
    x = record(t, (node){.op = OP_RMSNORM, .a = x, .b = use(r, out->used, "norm", "weight")}, rows, c->hidden);
    value *head = use(r, out->used, c->tied ? "embed" : "head", "weight");
    out->logits = record(t, (node){.op = OP_LINEAR, .a = x, .b = head}, rows, c->vocabulary);
    out->losses[0] = record(t, (node){.op = OP_CROSS_ENTROPY, .a = out->logits, .ids = r->data.labels}, 1, 1);
    node second = {
        .op = OP_LINEAR, .a = x, .b = use(r, out->used, "second", "weight"), .c = use(r, out->used, "second", "bias")};
    value *y = record(t, second, rows, TARGETS);
    out->losses[1] = record(t, (node){.op = OP_SQUARED_ERROR, .a = y, .data = r->data.targets}, 1, 1);
    for (int i = 0; i < rows; i++)
        out->counts[0] += r->data.labels[i] != IGNORED;
    out->counts[1] = rows * TARGETS;
    for (int i = 0; i < t->n_nodes; i++)
        run_node(&t->nodes[i], false);
}

/* ---- The program ---- */

static void look_at(reference_state *r, look how, const recording *what, int step, int micro, outcome *out)
{
    recorded now;
    forward(r, what, 0, &now);
    int at = 0;
    for (int i = 0; i < 2; i++)
        outcome_add(out, (entry){ENTRY_SEEN, step, micro, at++, now.losses[i]->v[0]});
    bool logits = how == LOOK_EVALUATION && !r->c->fused_loss;
    for (int i = 0; logits && i < now.logits->rows * now.logits->columns; i++)
        outcome_add(out, (entry){ENTRY_SEEN, step, micro, at++, now.logits->v[i]});
}

static void micro_step(reference_state *r, const case_micro *m)
{
    for (int rank = 0; rank < r->c->ranks; rank++) {
        recorded now;
        if (m->nothing[rank])
            continue;
        forward(r, &m->work, rank, &now);
        r->loss += now.losses[m->loss]->v[0];
        r->count += now.counts[m->loss];
        now.losses[m->loss]->g[0] = 1;
        for (int i = r->tape.n_nodes; i-- > 0;)
            run_node(&r->tape.nodes[i], true);
        for (int i = 0; i < r->n; i++) {
            for (int64_t k = 0; now.used[i] && !r->list[i].frozen && k < r->list[i].shape.numel; k++)
                r->list[i].gradient[k] += now.used[i]->g[k];
        }
    }
}

static void update(reference_state *r, parameter *p, double lr, double scale)
{
    const test_case *c = r->c;
    double decay = p->decays ? (double)c->weight_decay : 0, beta1 = 0.9, beta2 = 0.95;
    for (int64_t k = 0; k < p->shape.numel; k++) {
        double g = p->gradient[k] * scale, *x = &p->master[k];
        if (c->optimizer != FSDP_ADAMW)
            g += decay * *x;
        if (c->optimizer == FSDP_SGD) {
            p->moment1[k] = (double)c->momentum * p->moment1[k] + g;
            *x -= lr * p->moment1[k];
            continue;
        }
        p->moment1[k] = beta1 * p->moment1[k] + (1 - beta1) * g;
        p->moment2[k] = beta2 * p->moment2[k] + (1 - beta2) * g * g;
        double m = p->moment1[k] / (1 - pow(beta1, r->updates)), v = p->moment2[k] / (1 - pow(beta2, r->updates));
        if (c->optimizer == FSDP_ADAMW)
            *x -= lr * decay * *x;
        *x -= lr * m / (sqrt(v) + 1e-2);
    }
}

/* Squares of a matrix as means of its rows and columns (moment1, moment2), of a vector as they are (moment2). Steps
 * have one size, whatever the gradient's: false where one was made of less than `least`, of what rounding leaves when
 * gradients cancel out. */
static bool update_adafactor(reference_state *r, parameter *p, double lr, double scale, double least)
{
    bool noise = false;
    bool vector = p->shape.n_dims < 2;
    int64_t n = p->shape.numel, rows = vector ? 1 : p->shape.shape[0], columns = n / rows;
    double beta = 1 - pow(r->updates, -0.8), mean = 0, of_update = 0, of_value = 0;
    for (int64_t i = 0; i < rows; i++)
        p->moment1[i] *= beta;
    for (int64_t i = 0; i < columns; i++)
        p->moment2[i] *= beta;
    for (int64_t i = 0; i < n; i++) {
        double square = pow(p->gradient[i] * scale, 2) + 1e-30;
        p->moment1[i / columns] += (1 - beta) * square / (double)columns;
        p->moment2[i % columns] += (1 - beta) * square / (double)rows;
        of_value += p->master[i] * p->master[i] / (double)n;
    }
    for (int64_t i = 0; i < rows; i++)
        mean += p->moment1[i] / (double)rows;
    for (int64_t i = 0; i < n; i++) {
        double square = (vector ? 1 : p->moment1[i / columns] / mean) * p->moment2[i % columns];
        bool small = fabs(p->gradient[i] * scale) < least;
        p->gradient[i] *= scale / sqrt(square); /* the update from here on */
        noise |= small && fabs(p->gradient[i]) > 1e-3;
        of_update += p->gradient[i] * p->gradient[i] / (double)n;
    }
    lr *= fmax(1e-3, sqrt(of_value));
    for (int64_t i = 0; i < n; i++)
        p->master[i] -= lr * ((p->decays ? (double)r->c->weight_decay * p->master[i] : 0) +
                              p->gradient[i] / fmax(1, sqrt(of_update)));
    return !noise;
}

/* False where the update comes out of noise. Muon makes that of a matrix without full rank as large as the rest. */
static bool update_parameter(reference_state *r, parameter *p, double lr, double scale, double norm)
{
    if (r->c->optimizer == FSDP_ADAFACTOR)
        return update_adafactor(r, p, lr, scale, 1e-5 * norm);
    update(r, p, lr, scale);
    return r->c->optimizer != FSDP_MUON;
}

static double gradient_norm(const reference_state *r)
{
    double squares = 0;
    for (int i = 0; i < r->n; i++) {
        for (int64_t k = 0; k < r->list[i].shape.numel; k++)
            squares += r->list[i].gradient[k] * r->list[i].gradient[k];
    }
    return sqrt(squares) / r->count;
}

static void scale_gradients(reference_state *r, int step, outcome *out)
{
    double factor = (double)r->c->steps[step].scales;
    if (factor == 0)
        return;
    outcome_add(out, (entry){ENTRY_GRADIENT, step, -1, 0, gradient_norm(r)});
    for (int i = 0; i < r->n; i++) {
        parameter *p = &r->list[i];
        for (int64_t k = 0; fnmatch(CASE_SCALED, p->shape.name, 0) == 0 && k < p->shape.numel; k++)
            p->gradient[k] *= factor;
    }
}

static void close_step(reference_state *r, int step, outcome *out)
{
    const test_case *c = r->c;
    scale_gradients(r, step, out);
    double norm_of = gradient_norm(r), scale = 1 / r->count;
    bool skipped = !isfinite(norm_of);
    if (c->clip > 0 && norm_of > (double)c->clip)
        scale *= (double)c->clip / (norm_of + 1e-6);
    outcome_add(out, (entry){ENTRY_LOSS, step, -1, 0, r->loss / r->count});
    outcome_add(out, (entry){ENTRY_NORM, step, -1, 0, norm_of});
    outcome_add(out, (entry){ENTRY_COUNT, step, -1, 0, r->count});
    outcome_add(out, (entry){ENTRY_SKIPPED, step, -1, 0, skipped});
    r->updates += !skipped;
    for (int i = 0; i < r->n; i++) {
        parameter *p = &r->list[i];
        if (!skipped && !p->frozen && !update_parameter(r, p, (double)c->steps[step].lr, scale, norm_of))
            out->followed = out->n < out->followed ? out->n : out->followed;
        memset(p->gradient, 0, (size_t)p->shape.numel * sizeof *p->gradient);
    }
    r->loss = r->count = 0;
}

static void list_parameter(const reference_state *r, int index, entry_kind kind, int step, outcome *out)
{
    for (int64_t k = 0; k < r->list[index].shape.numel; k++)
        outcome_add(out, (entry){kind, step, index, k, r->list[index].master[k]});
}

static void open_parameters(reference_state *r, const outcome *engine, outcome *out)
{
    case_parameter shapes[MAX_PARAMETERS];
    r->n = case_parameters(r->c, shapes);
    for (int i = 0; i < r->n; i++) {
        parameter *p = &r->list[i];
        size_t n = (size_t)shapes[i].numel;
        p->shape = shapes[i];
        p->frozen = case_freezes(r->c, shapes[i].name);
        p->decays = shapes[i].n_dims > 1 || r->c->decay_vectors;
        p->master = calloc(4 * n, sizeof *p->master);
        if (!p->master)
            abort();
        p->gradient = p->master + n;
        p->moment1 = p->gradient + n;
        p->moment2 = p->moment1 + n;
    }
    for (int i = 0; i < engine->n && engine->list[i].kind == ENTRY_FIRST; i++)
        r->list[engine->list[i].which].master[engine->list[i].at] = engine->list[i].value;
    for (int i = 0; i < r->n; i++)
        list_parameter(r, i, ENTRY_FIRST, 0, out);
}

void reference_run(const test_case *c, const outcome *engine, outcome *out)
{
    reference_state *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->c = c;
    outcome_clear(out);
    open_parameters(r, engine, out);
    for (int i = 0; i < c->n_steps; i++) {
        const case_step *s = &c->steps[i];
        for (int k = 0; k < s->n_micro; k++) {
            if (s->micro[k].before != LOOK_NONE)
                look_at(r, s->micro[k].before, &s->micro[k].seen, i, k, out);
            micro_step(r, &s->micro[k]);
        }
        close_step(r, i, out);
        if (s->reads >= 0)
            list_parameter(r, s->reads, ENTRY_READ, i, out);
        for (int64_t k = 0; s->halves >= 0 && k < r->list[s->halves].shape.numel; k++)
            r->list[s->halves].master[k] /= 2;
        if (s->after != LOOK_NONE)
            look_at(r, s->after, &s->seen, i, -1, out);
    }
    for (int i = 0; i < r->n; i++)
        list_parameter(r, i, ENTRY_READ, c->n_steps, out);
    for (int i = 0; i < r->n; i++)
        free(r->list[i].master);
    free(r);
}

/* ---- Comparing ---- */

/* How far a number may be off, of itself and at least. Low precision rounds values that the reference keeps; what it is
 * for here is gradients that are lost, counted twice or mixed up, which is far more. (Seed 2780, a net of 8 columns, is
 * off by 10.7 % in one norm in bf16 and by less than 0.1 % in fp16.) */
static double allowed(const test_case *c, const entry *e)
{
    bool low = c->param_dtype != FSDP_F32 || c->reduce_dtype != FSDP_F32 || c->state_dtype != FSDP_F32;
    if (e->kind == ENTRY_COUNT || e->kind == ENTRY_SKIPPED)
        return 0;
    if (e->kind == ENTRY_FIRST)
        return 0;
    if (e->kind == ENTRY_NORM || e->kind == ENTRY_GRADIENT)
        return low ? 0.1 * fabs(e->value) + 2e-2 : 5e-4 * fabs(e->value) + 1e-5;
    return low ? 0.15 * (1 + fabs(e->value)) : 2e-4 * (1 + fabs(e->value));
}

const char *reference_differs(const test_case *c, const outcome *reference, const outcome *engine, char *text,
                              size_t bytes)
{
    char what[128];
    for (int i = 0; i < reference->n && i < engine->n; i++) {
        const entry *e = &reference->list[i];
        double x = e->value, y = engine->list[i].value;
        bool followed = i < reference->followed || e->kind == ENTRY_COUNT || e->kind == ENTRY_SKIPPED;
        if (!followed || (!isfinite(x) && !isfinite(y)) || fabs(x - y) <= allowed(c, e))
            continue;
        entry_describe(c, e, what, sizeof what);
        snprintf(text, bytes, "%s: %.9g where the reference has %.9g", what, y, x);
        return text;
    }
    if (reference->n == engine->n)
        return NULL;
    snprintf(text, bytes, "%d numbers where the reference has %d", engine->n, reference->n);
    return text;
}
