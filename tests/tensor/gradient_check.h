/* Gradients against finite differences, for any function of parameters that can be recorded.
 * A case records its output through a builder, which hands out variables (parameters, or values computed from them) and
 * constants: the same ones each time the case is recorded again. The cases are in gradient_cases.h. */
#ifndef TESTS_TENSOR_GRADIENT_CHECK_H
#define TESTS_TENSOR_GRADIENT_CHECK_H

#include <float.h>

#include "tensor/rig.h"

typedef struct builder builder;

typedef struct gradient_case {
    const char *name;
    fsdp_tensor *(*build)(builder *b);
    int64_t size[6]; /* what they mean is the case's business */
} gradient_case;

/* How a case is recorded. The results must have the same bits in all of these ways. */
typedef struct recording_way {
    bool values;          /* variables are values, computed from parameters by an exact copy */
    bool checkpointed;    /* everything lies in one checkpointed region */
    bool recompute_cheap; /* what is cheap is computed again */
    bool staged;          /* inputs are copied into the slab */
    int only;             /* index + 1 of the only variable that takes a gradient; 0: all do */
} recording_way;

struct builder {
    rig *rig;
    fsdp_tape *t;
    const int64_t *size;
    recording_way way;
    int n_variables, n_constants;
    fsdp_tensor *out;  /* a function of what the case returned; a scalar itself */
    fsdp_tensor *root; /* the scalar that is differentiated: out itself, or its product with random weights */
};

typedef enum value_kind {
    NORMAL,
    AWAY_FROM_ZERO, /* further than any step of the differences: for functions with a kink at zero */
    DISTINCT,       /* no two closer than that: for maxima */
} value_kind;

static inline void fill_values(value_kind kind, rng_key key, int64_t n, float *out)
{
    rng_fill_normal(key, 0, n, 0, 1, out);
    for (int64_t i = 0; kind == AWAY_FROM_ZERO && i < n; i++)
        out[i] += out[i] < 0 ? -0.25f : 0.25f;
    for (int64_t i = 0; kind == DISTINCT && i < n; i++)
        out[i] = 0.125f * (float)((i * 29 + 7) % n - n / 2);
}

static inline fsdp_tensor *variable_of(builder *b, value_kind kind, int n_dims, const int64_t *shape)
{
    int index = b->n_variables++;
    if (index == b->rig->n_parameters) {
        fsdp_parameter *p = rig_parameter(b->rig, n_dims, shape);
        fill_values(kind, rng_key_fold(rng_key_make(b->rig->random_seed), (uint64_t)index), p->numel, p->data);
    }
    fsdp_parameter *p = &b->rig->parameters[index];
    p->trainable = b->way.only == 0 || b->way.only == index + 1;
    fsdp_tensor *x = tape_parameter(b->t, p);
    return b->way.values ? fsdp_scale(b->t, x, 1) : x;
}

#define VARIABLE(b, ...) variable_of(b, NORMAL, DIMS(__VA_ARGS__))
#define VARIABLE_AWAY_FROM_ZERO(b, ...) variable_of(b, AWAY_FROM_ZERO, DIMS(__VA_ARGS__))
#define VARIABLE_DISTINCT(b, ...) variable_of(b, DISTINCT, DIMS(__VA_ARGS__))

/* Memory of a constant, and whether it is to be filled. */
static inline void *constant_memory(builder *b, size_t bytes, bool *fresh)
{
    int index = b->n_constants++;
    *fresh = index == b->rig->n_constants;
    return *fresh ? rig_constant(b->rig, bytes) : b->rig->constants[index];
}

static inline int64_t numel_of(int n_dims, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= shape[i];
    return n;
}

/* Whole numbers low .. high. */
static inline fsdp_tensor *integers_of(builder *b, int32_t low, int32_t high, int n_dims, const int64_t *shape)
{
    bool fresh;
    int64_t n = numel_of(n_dims, shape);
    int32_t *values = constant_memory(b, (size_t)n * sizeof *values, &fresh);
    rng_key key = rng_key_fold(rng_key_make(b->rig->random_seed), 1000 + (uint64_t)b->n_constants);
    for (int64_t i = 0; fresh && i < n; i++)
        values[i] = low + (int32_t)(rng_word(key, 0, (uint64_t)i) % (uint32_t)(high - low + 1));
    return fsdp_input(b->t, FSDP_I32, n_dims, shape, values);
}

#define INTEGERS(b, low, high, ...) integers_of(b, low, high, DIMS(__VA_ARGS__))

static inline fsdp_tensor *weights_of(builder *b, int n_dims, const int64_t *shape)
{
    bool fresh;
    int64_t n = numel_of(n_dims, shape);
    float *values = constant_memory(b, (size_t)n * sizeof *values, &fresh);
    if (fresh)
        fill_values(AWAY_FROM_ZERO, rng_key_fold(rng_key_make(b->rig->random_seed), 2000), n, values);
    return fsdp_input(b->t, FSDP_F32, n_dims, shape, values);
}

/* An fp32 buffer that outlives steps, all elements `value`; *memory lets the case put something else there. */
static inline fsdp_tensor *buffer_of(builder *b, float value, float **memory, bool *fresh, int n_dims,
                                     const int64_t *shape)
{
    int64_t n = numel_of(n_dims, shape);
    *memory = constant_memory(b, (size_t)n * sizeof **memory, fresh);
    for (int64_t i = 0; *fresh && i < n; i++)
        (*memory)[i] = value;
    return tape_buffer(b->t, FSDP_F32, n_dims, shape, *memory);
}

static inline void record_case(builder *b, rig *r, const gradient_case *c, recording_way way)
{
    *b = (builder){.rig = r, .t = rig_tape(r), .size = c->size, .way = way};
    b->t->recompute_cheap = way.recompute_cheap;
    if (way.checkpointed)
        fsdp_checkpoint_begin(b->t);
    b->out = c->build(b);
    if (b->out && b->out->numel > 1)
        b->out = fsdp_silu(b->t, b->out); /* reads the case's result in backward: checkpointed, it is computed again */
    if (way.checkpointed)
        fsdp_checkpoint_end(b->t);
    assert_ok(fsdp_tape_status(b->t));
    assert_non_null(b->out);
    fsdp_output(b->t, b->out);
    b->root = b->out;
    if (b->out->numel > 1)
        b->root = fsdp_sum(b->t, fsdp_mul(b->t, b->out, weights_of(b, b->out->n_dims, b->out->shape)));
}

/* Bits of the output and of all gradients; `plan_out` may be NULL. */
typedef struct result {
    float *out, *gradients;
    int64_t n_out, n_gradients;
} result;

static inline result run_case(rig *r, const gradient_case *c, recording_way way)
{
    builder b;
    record_case(&b, r, c, way);
    plan p = rig_compile(r, b.t, b.root, way.staged);
    rig_run(r, &p);
    result out = {.out = rig_output(&p, b.out), .n_out = b.out->numel};
    out.gradients = rig_gradients(r, &out.n_gradients);
    rig_free(r, &p);
    return out;
}

static inline void free_result(result *x)
{
    free(x->out);
    free(x->gradients);
}

/* The forward pass alone, for differences. */
typedef struct function {
    rig *rig;
    builder b;
    plan plan;
    const float *weights; /* NULL: the output is the loss */
    double noise;         /* what rounding of the output may do to the loss */
} function;

static inline function open_function(rig *r, const gradient_case *c, bool values)
{
    function f = {.rig = r};
    record_case(&f.b, r, c, (recording_way){.values = values});
    f.weights = f.b.root == f.b.out ? NULL : f.b.rig->constants[f.b.n_constants - 1];
    f.plan = rig_compile(r, f.b.t, NULL, false);
    return f;
}

/* The loss, summed in double precision: only the output itself is rounded. */
static inline double evaluate(function *f)
{
    buffer out;
    double sum = 0, size = 0;
    program_run_args arguments = rig_arguments(f->rig, &f->plan);
    assert_ok(program_run(f->plan.program, program_tape(f->plan.program), &arguments));
    assert_ok(program_output(f->plan.program, f->b.out, f->plan.slab, &out));
    for (int64_t i = 0; i < f->b.out->numel; i++) {
        double term = (double)((float *)out.p)[i] * (f->weights ? (double)f->weights[i] : 1);
        sum += term;
        size += fabs(term);
    }
    f->noise = FLT_EPSILON * size;
    return sum;
}

/* Derivative along a direction (one coordinate, or all of them by signs), to fourth order in the step. */
#define DIFFERENCE_STEP (1.0 / 64)

static inline void shift(float *to, const float *from, const float *direction, int64_t n, double by)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(from[i] + by * (double)direction[i]);
}

static inline double difference(function *f, fsdp_parameter *p, const float *direction)
{
    double sum = 0;
    float *kept = malloc((size_t)p->numel * sizeof *kept);
    assert_non_null(kept);
    memcpy(kept, p->data, (size_t)p->numel * sizeof *kept);
    static const double factor[] = {1, -8, 8, -1}, at[] = {-2, -1, 1, 2};
    for (int i = 0; i < 4; i++) {
        shift(p->data, kept, direction, p->numel, at[i] * DIFFERENCE_STEP);
        sum += factor[i] * evaluate(f);
    }
    memcpy(p->data, kept, (size_t)p->numel * sizeof *kept);
    free(kept);
    return sum / (12 * DIFFERENCE_STEP);
}

static inline bool close_enough(const function *f, double got, double wanted, double scale)
{
    return fabs(got - wanted) <= 1e-3 * scale + 4 * f->noise / DIFFERENCE_STEP;
}

/* One parameter: up to 24 of its elements, and all of them at once along a random direction. */
static inline bool check_parameter(function *f, const char *name, int index, const float *gradient)
{
    fsdp_parameter *p = &f->rig->parameters[index];
    float *direction = calloc((size_t)p->numel, sizeof *direction);
    assert_non_null(direction);
    double largest = 0, along = 0, norm = 0;
    for (int64_t i = 0; i < p->numel; i++)
        largest = fmax(largest, fabs((double)gradient[i]));
    bool good = all_finite(gradient, p->numel);
    int64_t stride = p->numel / 24 + 1;
    for (int64_t i = 0; good && i < p->numel; i += stride) {
        direction[i] = 1;
        double wanted = difference(f, p, direction);
        direction[i] = 0;
        good = close_enough(f, gradient[i], wanted, largest);
        if (!good)
            print_error("%s: variable %d, element %lld: gradient %.7g, differences %.7g\n", name, index, (long long)i,
                        (double)gradient[i], wanted);
    }
    float unit = (float)(1 / sqrt((double)p->numel));
    for (int64_t i = 0; i < p->numel; i++) {
        direction[i] = rng_word(rng_key_make(5), 0, (uint64_t)i) & 1 ? unit : -unit;
        along += (double)direction[i] * gradient[i];
        norm += (double)gradient[i] * gradient[i];
    }
    double wanted = good ? difference(f, p, direction) : 0;
    if (good && !close_enough(f, along, wanted, sqrt(norm))) {
        print_error("%s: variable %d along a direction: gradient %.7g, differences %.7g\n", name, index, along, wanted);
        good = false;
    }
    free(direction);
    return good;
}

#endif
