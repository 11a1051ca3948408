/* Linear layers in 8 bits against their definition in double precision: operands rounded with one scale each, products
 * of what they stand for; and what the op promises beside: x kept in half the memory, the same bits when it is computed
 * again, a NaN that is not lost. */
#include "tensor/rig.h"

#include "base/float_bits.h"

enum { ROWS = 32, IN = 48, OUT = 16 };

/* What x stands for after rounding. */
static void rounded(const float *x, int64_t n, const float8_format *format, double *out)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    for (int64_t i = 0; i < n; i++) {
        float code = float_bits_from_f8(float_bits_to_f8(x[i] * (format->max / largest), format), format);
        out[i] = (double)code * (double)(largest / format->max);
    }
}

/* out (m, n) = a (m, k) b, b as (n, k) when `turned`, else (k, n); a as (k, m) when `a_turned`. */
static void multiply(int m, int n, int k, const double *a, bool a_turned, const double *b, bool turned, float *out)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[a_turned ? l * m + i : i * k + l] * b[turned ? j * k + l : l * n + j];
            out[i * n + j] = (float)sum;
        }
}

typedef struct layer {
    fsdp_parameter *x, *weight, *bias, *residual, *outer; /* loss = sum(y * outer), so that dy is outer */
} layer;

static layer layer_make(rig *r, fsdp_fp8 fp8, int rows)
{
    layer l = {rig_parameter(r, DIMS(rows, IN)), rig_parameter(r, DIMS(OUT, IN)), rig_parameter(r, DIMS(OUT)),
               rig_parameter(r, DIMS(rows, OUT)), rig_parameter(r, DIMS(rows, OUT))};
    l.weight->fp8 = fp8;
    ((float *)l.x->data)[5] = 40; /* an outlier sets the scale */
    return l;
}

static fsdp_tensor *layer_record(fsdp_tape *t, const layer *l, fsdp_tensor **y)
{
    *y = fsdp_linear_add(t, tape_parameter(t, l->x), tape_parameter(t, l->weight), tape_parameter(t, l->bias),
                         tape_parameter(t, l->residual));
    fsdp_output(t, *y);
    return fsdp_sum(t, fsdp_mul(t, *y, tape_parameter(t, l->outer)));
}

/* As the layer rounds its weight, or with codes that are there. */
static void give_codes(fsdp_parameter *weight, uint8_t *codes, float *scale)
{
    const float *values = weight->data;
    scale[1] = 0;
    for (int i = 0; i < OUT * IN; i++)
        scale[1] = fmaxf(scale[1], fabsf(values[i]));
    for (int i = 0; i < OUT * IN; i++)
        codes[i] = float_bits_to_f8(values[i] * (float8_e4m3.max / scale[1]), &float8_e4m3);
    scale[0] = scale[1] / float8_e4m3.max;
    weight->coded = true;
    weight->codes = codes;
    weight->codes_scale = scale;
}

/* Everything the layer computes, against the definition; with codes its weight must not be read. */
static void expect_products(rig *r, fsdp_fp8 recipe, int rows, bool coded)
{
    layer l = layer_make(r, recipe, rows);
    double x[ROWS * IN], w[OUT * IN], dy[ROWS * OUT];
    float want_y[ROWS * OUT], want_dx[ROWS * IN], want_dw[OUT * IN];
    uint8_t codes[OUT * IN];
    _Alignas(16) float scale[4];
    rounded(l.x->data, rows * IN, &float8_e4m3, x);
    rounded(l.weight->data, OUT * IN, &float8_e4m3, w);
    rounded(l.outer->data, rows * OUT, recipe == FSDP_FP8_E4M3 ? &float8_e4m3 : &float8_e5m2, dy);
    multiply(rows, OUT, IN, x, false, w, true, want_y);
    multiply(rows, IN, OUT, dy, false, w, false, want_dx);
    multiply(OUT, IN, rows, dy, true, x, false, want_dw);
    for (int i = 0; i < rows * OUT; i++)
        want_y[i] += ((float *)l.bias->data)[i % OUT] + ((float *)l.residual->data)[i];
    void *values = l.weight->data;
    if (coded) {
        give_codes(l.weight, codes, scale);
        l.weight->data = NULL;
    }
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *y;
    fsdp_tensor *loss = layer_record(t, &l, &y);
    plan p = rig_compile(r, t, loss, false);
    rig_run(r, &p);
    l.weight->data = values;
    float *got = rig_output(&p, y);
    assert_true(relative_distance(got, want_y, rows * OUT) < 1e-5);
    assert_true(relative_distance(l.x->grad, want_dx, rows * IN) < 1e-5);
    assert_true(relative_distance(l.weight->grad, want_dw, OUT * IN) < 1e-5);
    assert_true(relative_distance(l.residual->grad, l.outer->data, rows * OUT) == 0); /* not rounded */
    free(got);
    rig_free(r, &p);
    rig_clear(r);
}

static void the_products_are_those_of_rounded_operands(void **state)
{
    static const int rows[] = {ROWS, ROWS - 1, 16, 7, 1};
    for (int recipe = FSDP_FP8_HYBRID; recipe <= FSDP_FP8_E4M3; recipe++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int coded = 0; coded < 2; coded++)
                expect_products(*state, (fsdp_fp8)recipe, rows[i], coded);
}

static void a_shape_without_such_products_is_computed_as_it_was(void **state)
{
    rig *r = *state;
    fsdp_parameter *x = rig_parameter(r, DIMS(ROWS, IN)), *w = rig_parameter(r, DIMS(OUT - 1, IN));
    float *results[2];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        w->fp8 = fp8 ? FSDP_FP8_HYBRID : FSDP_FP8_OFF;
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *y = fsdp_linear(t, tape_parameter(t, x), tape_parameter(t, w), NULL);
        fsdp_output(t, y);
        plan p = rig_compile(r, t, NULL, false);
        rig_run(r, &p);
        results[fp8] = rig_output(&p, y);
        rig_free(r, &p);
    }
    assert_true(same_bits(results[0], results[1], ROWS * (OUT - 1)));
    free(results[0]);
    free(results[1]);
}

/* A chain of layers: bytes of the slab, gradients. */
static size_t chain(rig *r, fsdp_fp8 fp8, bool checkpoint, float **gradients, int64_t *n)
{
    enum { WIDTH = 256, TOKENS = 512, LAYERS = 6 };
    fsdp_parameter *x = rig_parameter(r, DIMS(TOKENS, WIDTH));
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *y = tape_parameter(t, x);
    for (int i = 0; i < LAYERS; i++) {
        fsdp_parameter *w = rig_parameter(r, DIMS(WIDTH, WIDTH));
        for (int64_t k = 0; k < w->numel; k++)
            ((float *)w->data)[k] *= 0.06f;
        w->fp8 = fp8;
        if (checkpoint)
            fsdp_checkpoint_begin(t);
        y = fsdp_scale(t, fsdp_linear(t, y, tape_parameter(t, w), NULL), 0.5f);
        if (checkpoint)
            fsdp_checkpoint_end(t);
    }
    plan p = rig_compile(r, t, fsdp_sum(t, y), false);
    rig_run(r, &p);
    *gradients = rig_gradients(r, n);
    size_t bytes = p.slab_bytes;
    rig_free(r, &p);
    rig_clear(r);
    return bytes;
}

static void computed_again_it_gives_the_same_bits_and_kept_it_takes_less(void **state)
{
    rig *r = *state;
    float *plain, *kept, *again;
    int64_t n;
    size_t full = chain(r, FSDP_FP8_OFF, false, &plain, &n);
    size_t small = chain(r, FSDP_FP8_HYBRID, false, &kept, &n);
    chain(r, FSDP_FP8_HYBRID, true, &again, &n);
    assert_true(same_bits(kept, again, n));
    assert_false(same_bits(kept, plain, n));
    print_message("slab of six layers: %zu bytes in fp32, %zu with x kept in 8 bits\n", full, small);
    assert_true(small < full);
    free(plain);
    free(kept);
    free(again);
}

static void a_value_that_is_not_finite_reaches_result_and_gradients(void **state)
{
    rig *r = *state;
    for (int infinite = 0; infinite < 2; infinite++) {
        layer l = layer_make(r, FSDP_FP8_HYBRID, ROWS);
        ((float *)l.x->data)[100] = infinite ? INFINITY : NAN;
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *y, *loss = layer_record(t, &l, &y);
        plan p = rig_compile(r, t, loss, false);
        rig_run(r, &p);
        float *got = rig_output(&p, y);
        assert_false(isfinite(got[0]));
        assert_false(isfinite(((float *)l.weight->grad)[0]));
        free(got);
        rig_free(r, &p);
        rig_clear(r);
    }
}

/* gate and up, swiglu, down: gradients of all parameters. How swiglu is reached decides who measures what it writes: it
 * does itself, or the layers do because a view lies between, or another reader adds to the gradient. */
typedef enum route { DIRECT, BEHIND_A_VIEW, READ_TWICE, COMPUTED_AGAIN } route;

static float *feed_forward(rig *r, route way, int64_t *n)
{
    enum { TOKENS = 48, WIDTH = 32, INNER = 80 };
    fsdp_parameter *x = rig_parameter(r, DIMS(TOKENS, WIDTH)), *in = rig_parameter(r, DIMS(2 * INNER, WIDTH)),
                   *out = rig_parameter(r, DIMS(WIDTH, INNER)), *outer = rig_parameter(r, DIMS(TOKENS, WIDTH));
    in->fp8 = out->fp8 = FSDP_FP8_HYBRID;
    const int64_t same[] = {TOKENS, 2 * INNER}, narrow[] = {TOKENS, INNER};
    fsdp_tape *t = rig_tape(r);
    if (way == COMPUTED_AGAIN)
        fsdp_checkpoint_begin(t);
    fsdp_tensor *both = fsdp_linear(t, tape_parameter(t, x), tape_parameter(t, in), NULL);
    fsdp_tensor *gated = fsdp_swiglu(t, way == BEHIND_A_VIEW ? fsdp_reshape(t, both, 2, same) : both);
    if (way == BEHIND_A_VIEW)
        gated = fsdp_reshape(t, gated, 2, narrow);
    fsdp_tensor *y = fsdp_linear(t, gated, tape_parameter(t, out), NULL);
    if (way == COMPUTED_AGAIN)
        fsdp_checkpoint_end(t);
    fsdp_tensor *loss = fsdp_sum(t, fsdp_mul(t, y, tape_parameter(t, outer)));
    if (way == READ_TWICE)
        loss = fsdp_add(t, loss, fsdp_scale(t, fsdp_sum(t, fsdp_mul(t, both, both)), 100));
    plan p = rig_compile(r, t, loss, false);
    rig_run(r, &p);
    float *gradients = rig_gradients(r, n);
    rig_free(r, &p);
    rig_clear(r);
    return gradients;
}

static void a_magnitude_is_the_same_whoever_measures_it(void **state)
{
    int64_t n, m;
    float *direct = feed_forward(*state, DIRECT, &n), *viewed = feed_forward(*state, BEHIND_A_VIEW, &m),
          *again = feed_forward(*state, COMPUTED_AGAIN, &m);
    assert_int_equal(n, m);
    assert_true(same_bits(direct, viewed, n));
    assert_true(same_bits(direct, again, n));
    free(direct);
    free(viewed);
    free(again);
}

/* The gradient is then larger than what the gated activation writes, and must not be rounded by its magnitude. */
static void a_gradient_that_others_add_to_is_measured_whole(void **state)
{
    int64_t n;
    float *got = feed_forward(*state, READ_TWICE, &n);
    float largest = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]));
        largest = fmaxf(largest, fabsf(got[i]));
    }
    free(got);
    float *direct = feed_forward(*state, DIRECT, &n);
    float of_one = 0;
    for (int64_t i = 0; i < n; i++)
        of_one = fmaxf(of_one, fabsf(direct[i]));
    free(direct);
    assert_true(largest > 20 * of_one); /* saturated, it could not be */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_products_are_those_of_rounded_operands, rig_reset),
        cmocka_unit_test_teardown(a_shape_without_such_products_is_computed_as_it_was, rig_reset),
        cmocka_unit_test_teardown(computed_again_it_gives_the_same_bits_and_kept_it_takes_less, rig_reset),
        cmocka_unit_test_teardown(a_value_that_is_not_finite_reaches_result_and_gradients, rig_reset),
        cmocka_unit_test_teardown(a_magnitude_is_the_same_whoever_measures_it, rig_reset),
        cmocka_unit_test_teardown(a_gradient_that_others_add_to_is_measured_whole, rig_reset),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
