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

/* Bytes of the slab of checkpointed layers, each of which ends with a product that adds to what it began with. */
static size_t checkpointed_layers(rig *r, fsdp_fp8 fp8, int n)
{
    enum { WIDTH = 64, INNER = 256, TOKENS = 128 };
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *x = fsdp_scale(t, tape_parameter(t, rig_parameter(r, DIMS(TOKENS, WIDTH))), 1);
    for (int i = 0; i < n; i++) {
        fsdp_parameter *up = rig_parameter(r, DIMS(INNER, WIDTH)), *down = rig_parameter(r, DIMS(WIDTH, INNER));
        up->fp8 = down->fp8 = fp8;
        fsdp_checkpoint_begin(t);
        fsdp_tensor *h = fsdp_silu(t, fsdp_linear(t, x, tape_parameter(t, up), NULL));
        x = fsdp_linear_add(t, h, tape_parameter(t, down), NULL, x);
        fsdp_checkpoint_end(t);
    }
    plan p = rig_compile(r, t, fsdp_sum(t, x), false);
    size_t bytes = p.slab_bytes;
    rig_free(r, &p);
    rig_clear(r);
    return bytes;
}

static void a_checkpointed_layer_keeps_no_more_than_without_8_bits(void **state)
{
    size_t more[2];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        fsdp_fp8 recipe = fp8 ? FSDP_FP8_HYBRID : FSDP_FP8_OFF;
        more[fp8] = checkpointed_layers(*state, recipe, 8) - checkpointed_layers(*state, recipe, 4);
    }
    assert_in_range(more[1], 1, more[0] + 4 * 256); /* and scales, of 256 bytes in the slab */
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

/* A layer of a transformer, whose norms, rotary embedding and swiglu leave magnitudes for the layers in 8 bits beside
 * them, or none: with a view between, a layer measures itself what it rounds. */
typedef struct route {
    bool views, layer_norms, checkpointed, recompute_cheap, read_twice;
} route;

enum { BATCH = 2, LENGTH = 24, WIDTH = 32, INNER = 80, HEAD = 16, Q_HEADS = 2, QKV = (Q_HEADS + 2) * HEAD };

static fsdp_tensor *seen(fsdp_tape *t, fsdp_tensor *x, const route *way)
{
    return way->views ? fsdp_reshape(t, x, x->n_dims, x->shape) : x;
}

static fsdp_tensor *normed(rig *r, fsdp_tape *t, fsdp_tensor *x, const route *way)
{
    fsdp_tensor *weight = tape_parameter(t, rig_parameter(r, DIMS(WIDTH)));
    fsdp_tensor *y = way->layer_norms
                         ? fsdp_layernorm(t, x, weight, tape_parameter(t, rig_parameter(r, DIMS(WIDTH))), 1e-5f)
                         : fsdp_rmsnorm(t, x, weight, 1e-5f);
    return seen(t, y, way);
}

static fsdp_tensor *in_8_bits(rig *r, fsdp_tape *t, fsdp_tensor *x, int64_t out, fsdp_tensor *residual)
{
    fsdp_parameter *weight = rig_parameter(r, DIMS(out, tensor_columns(x)));
    weight->fp8 = FSDP_FP8_HYBRID;
    fsdp_tensor *w = tape_parameter(t, weight);
    return residual ? fsdp_linear_add(t, x, w, NULL, residual) : fsdp_linear(t, x, w, NULL);
}

static fsdp_tensor *attended(rig *r, fsdp_tape *t, fsdp_tensor *qkv)
{
    float *tables = rig_constant(r, 2 * LENGTH * (HEAD / 2) * sizeof *tables);
    for (int i = 0; i < LENGTH * (HEAD / 2); i++) {
        tables[i] = cosf((float)i);
        tables[LENGTH * (HEAD / 2) + i] = sinf((float)i);
    }
    fsdp_tensor *cosine = tape_buffer(t, FSDP_F32, DIMS(LENGTH, HEAD / 2), tables);
    fsdp_tensor *sine = tape_buffer(t, FSDP_F32, DIMS(LENGTH, HEAD / 2), tables + LENGTH * (HEAD / 2));
    fsdp_tensor *turned = fsdp_rope(t, qkv, cosine, sine, Q_HEADS + 1, HEAD, 0);
    fsdp_attention_config a = {.q = {turned, 0},
                               .k = {turned, Q_HEADS * HEAD},
                               .v = {turned, (Q_HEADS + 1) * HEAD},
                               .q_heads = Q_HEADS,
                               .kv_heads = 1,
                               .head_dim = HEAD,
                               .scale = 0.25f,
                               .causal = true};
    return fsdp_attention(t, &a);
}

/* Gradients of all parameters; *measured: how many of the four layers found the magnitude of their gradient there. */
static float *transformer_layer(rig *r, const route *way, int64_t *n, int *measured)
{
    fsdp_tape *t = rig_tape(r);
    t->recompute_cheap = way->recompute_cheap;
    fsdp_tensor *x = tape_parameter(t, rig_parameter(r, DIMS(BATCH, LENGTH, WIDTH)));
    fsdp_tensor *outer = tape_parameter(t, rig_parameter(r, DIMS(BATCH, LENGTH, WIDTH)));
    if (way->checkpointed)
        fsdp_checkpoint_begin(t);
    fsdp_tensor *first = normed(r, t, x, way), *qkv = in_8_bits(r, t, first, QKV, NULL), *qkv_seen = seen(t, qkv, way);
    fsdp_tensor *out = in_8_bits(r, t, attended(r, t, qkv_seen), WIDTH, x), *carried = seen(t, out, way);
    fsdp_tensor *both = in_8_bits(r, t, normed(r, t, carried, way), 2 * INNER, NULL), *both_seen = seen(t, both, way);
    fsdp_tensor *down = in_8_bits(r, t, seen(t, fsdp_swiglu(t, both_seen), way), WIDTH, carried);
    fsdp_tensor *last = normed(r, t, seen(t, down, way), way);
    if (way->checkpointed)
        fsdp_checkpoint_end(t);
    fsdp_tensor *loss = fsdp_sum(t, fsdp_mul(t, last, outer));
    if (way->read_twice)
        loss = fsdp_add(t, loss,
                        fsdp_add(t, fsdp_sum(t, fsdp_mul(t, qkv_seen, qkv_seen)),
                                 fsdp_scale(t, fsdp_sum(t, fsdp_mul(t, both_seen, both_seen)), 100)));
    plan p = rig_compile(r, t, loss, false);
    *measured = qkv->grad_measured + out->grad_measured + both->grad_measured + down->grad_measured;
    assert_int_equal(first->producer->n_outputs, way->views ? 1 : way->layer_norms ? 4 : 3);
    rig_run(r, &p);
    float *gradients = rig_gradients(r, n);
    assert_true(all_finite(gradients, *n));
    rig_free(r, &p);
    rig_clear(r);
    return gradients;
}

static void a_magnitude_is_the_same_whoever_measures_it(void **state)
{
    for (int choice = 0; choice < 16; choice++) {
        route way = {.layer_norms = choice & 1,
                     .checkpointed = choice & 2,
                     .recompute_cheap = choice & 4,
                     .read_twice = choice & 8};
        int64_t n, m;
        int measured;
        float *fused = transformer_layer(*state, &way, &n, &measured);
        assert_int_equal(measured, 4);
        way.views = true;
        float *apart = transformer_layer(*state, &way, &m, &measured);
        assert_int_equal(measured, 0);
        assert_int_equal(n, m);
        assert_true(same_bits(fused, apart, n));
        free(fused);
        free(apart);
    }
}

/* Of two losses of one recording, one does not depend on who would have measured the gradient. */
static void a_program_without_the_one_that_measures_measures_itself(void **state)
{
    rig *r = *state;
    float *got[2];
    int64_t n;
    for (int views = 0; views < 2; views++) {
        route way = {.views = views};
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *x = tape_parameter(t, rig_parameter(r, DIMS(BATCH, LENGTH, WIDTH)));
        fsdp_tensor *y = in_8_bits(r, t, x, WIDTH, NULL), *carried = seen(t, y, &way);
        fsdp_output(t, fsdp_sum(t, normed(r, t, carried, &way)));
        fsdp_tensor *loss = fsdp_sum(t, fsdp_mul(t, carried, x));
        plan p = rig_compile(r, t, loss, false);
        assert_false(y->grad_measured);
        rig_run(r, &p);
        got[views] = rig_gradients(r, &n);
        rig_free(r, &p);
        rig_clear(r);
    }
    assert_true(same_bits(got[0], got[1], BATCH * LENGTH * WIDTH + WIDTH * WIDTH)); /* the norm's weight has none */
    free(got[0]);
    free(got[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_products_are_those_of_rounded_operands, rig_reset),
        cmocka_unit_test_teardown(a_shape_without_such_products_is_computed_as_it_was, rig_reset),
        cmocka_unit_test_teardown(computed_again_it_gives_the_same_bits_and_kept_it_takes_less, rig_reset),
        cmocka_unit_test_teardown(a_checkpointed_layer_keeps_no_more_than_without_8_bits, rig_reset),
        cmocka_unit_test_teardown(a_value_that_is_not_finite_reaches_result_and_gradients, rig_reset),
        cmocka_unit_test_teardown(a_magnitude_is_the_same_whoever_measures_it, rig_reset),
        cmocka_unit_test_teardown(a_program_without_the_one_that_measures_measures_itself, rig_reset),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
