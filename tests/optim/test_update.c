/* AdamW, Adam with L2 and SGD against plain references in double precision, over several steps, with ranges that decay
 * and ranges that do not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "optim/update.h"

enum { N = 1003, RANGES = 3, STEPS = 7 };

/* Sizes and ends of what decays: some, all, nothing; odd. */
static const int64_t sizes[RANGES] = {N, 33, 17}, decays[RANGES] = {501, 33, 0};

typedef struct state {
    device *dev;
    stream *compute;
    float *parameter[RANGES], *gradient[RANGES];
    uint16_t *copy; /* bf16, of range 0 */
    double *wanted[RANGES], *moment1[RANGES], *moment2[RANGES];
} state;

static void *numbers(int64_t n, size_t bytes)
{
    void *memory = calloc((size_t)n, bytes);
    assert_non_null(memory);
    return memory;
}

static int open_state(void **out)
{
    static state s;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &s.dev), FSDP_OK);
    assert_int_equal(s.dev->stream_create(s.dev, 0, &s.compute), FSDP_OK);
    for (int i = 0; i < RANGES; i++) {
        s.parameter[i] = numbers(sizes[i], sizeof(float));
        s.gradient[i] = numbers(sizes[i], sizeof(float));
        s.wanted[i] = numbers(sizes[i], sizeof(double));
        s.moment1[i] = numbers(sizes[i], sizeof(double));
        s.moment2[i] = numbers(sizes[i], sizeof(double));
    }
    s.copy = numbers(N, sizeof *s.copy);
    *out = &s;
    return 0;
}

static int close_state(void **out)
{
    state *s = *out;
    for (int i = 0; i < RANGES; i++) {
        free(s->parameter[i]);
        free(s->gradient[i]);
        free(s->wanted[i]);
        free(s->moment1[i]);
        free(s->moment2[i]);
    }
    free(s->copy);
    s->dev->stream_free(s->compute);
    device_close(s->dev);
    return 0;
}

static void start_values(state *s)
{
    for (int i = 0; i < RANGES; i++) {
        rng_fill_normal(rng_key_make(30 + (uint64_t)i), 0, sizes[i], 0, 1, s->parameter[i]);
        for (int64_t k = 0; k < sizes[i]; k++) {
            s->wanted[i][k] = (double)s->parameter[i][k];
            s->moment1[i][k] = s->moment2[i][k] = 0;
        }
    }
}

/* One element, one step, as the papers write it. step counts from 1. */
static void reference(const fsdp_optimizer_config *c, double lr, int step, double g, bool decay, double *p, double *m,
                      double *v)
{
    double l2 = decay ? (double)c->weight_decay : 0, b1 = (double)c->beta1, b2 = (double)c->beta2,
           mu = (double)c->momentum;
    if (c->kind == FSDP_ADAMW)
        *p -= lr * l2 * *p;
    else
        g += l2 * *p;
    if (c->kind == FSDP_SGD) {
        *m = mu != 0 && step > 1 ? mu * *m + g : g;
        *p -= lr * *m;
        return;
    }
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    *p -= lr * (*m / (1 - pow(b1, step))) / (sqrt(*v / (1 - pow(b2, step))) + (double)c->eps);
}

static double bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return (double)x;
}

static void compare(const state *s, const fsdp_optimizer_config *c, int step)
{
    for (int i = 0; i < RANGES; i++) {
        for (int64_t k = 0; k < sizes[i]; k++) {
            double got = (double)s->parameter[i][k], wanted = s->wanted[i][k];
            if (fabs(got - wanted) > 2e-6 * step * (1 + fabs(wanted))) {
                print_error("kind %d, step %d, range %d, element %lld: %.9g, wanted %.9g\n", (int)c->kind, step, i,
                            (long long)k, got, wanted);
                fail();
            }
        }
    }
    for (int64_t k = 0; k < N; k++) { /* the copy is the rounded parameter */
        double p = (double)s->parameter[0][k];
        assert_true(fabs(bf16(s->copy[k]) - p) <= fabs(p) * 0x1p-8);
    }
}

/* The span that element k of a range lies in; NULL: ranges have none. */
static const update_span *span_of(update_span *spans, int64_t k)
{
    while (spans && k >= spans->end)
        spans++;
    return spans;
}

/* `spans`: of range 0; NULL: none. */
static void run_spans_against_reference(state *s, const fsdp_optimizer_config *c, update_span *spans, int n_spans)
{
    update_range ranges[RANGES];
    update *u;
    start_values(s);
    for (int i = 0; i < RANGES; i++)
        ranges[i] = (update_range){
            .parameter = s->parameter[i], .gradient = s->gradient[i], .n = sizes[i], .decay_end = decays[i]};
    ranges[0].copy = (buffer){s->copy, FSDP_BF16};
    ranges[0].spans = spans;
    ranges[0].n_spans = n_spans;
    assert_int_equal(
        update_create(&(update_memory){s->dev, s->compute, s->dev, MEMORY_DEVICE}, 1, c, ranges, RANGES, &u), FSDP_OK);
    for (int step = 1; step <= STEPS; step++) {
        double scale = step == 3 ? 0.25 : 1; /* a clipped step */
        float lr = c->lr / (float)step;
        optimizer_scalars n;
        update_scalars(u, lr, step, &n);
        n.gradient_scale = (float)scale;
        for (int i = 0; i < RANGES; i++) {
            rng_fill_normal(rng_key_make(100 * (uint64_t)step + (uint64_t)i), 0, sizes[i], 0, 1, s->gradient[i]);
            for (int64_t k = 0; k < sizes[i]; k++) {
                const update_span *span = i == 0 ? span_of(spans, k) : NULL;
                fsdp_optimizer_config own = *c;
                own.weight_decay = span ? span->weight_decay : c->weight_decay;
                reference(&own, (double)lr * (span ? (double)span->lr_factor : 1), step,
                          scale * (double)s->gradient[i][k], span || k < decays[i], &s->wanted[i][k], &s->moment1[i][k],
                          &s->moment2[i][k]);
            }
            assert_int_equal(update_apply(u, i, s->compute, &n), FSDP_OK);
        }
        compare(s, c, step);
    }
    update_free(u);
}

static void run_against_reference(state *s, const fsdp_optimizer_config *c)
{
    run_spans_against_reference(s, c, NULL, 0);
}

static void spans_have_rates_and_decays_of_their_own(void **out)
{
    static const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_ADAM, FSDP_SGD};
    update_span spans[] = {{.end = 7, .lr_factor = 0.5f, .weight_decay = 0.2f},
                           {.end = 501, .lr_factor = 1},
                           {.end = 502, .weight_decay = 0.3f},
                           {.end = N, .lr_factor = 3, .weight_decay = 0.01f}};
    for (int k = 0; k < 3; k++) {
        fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
        c.kind = kinds[k];
        c.momentum = 0.9f;
        c.weight_decay = 0.1f;
        c.lr = 0.01f;
        run_spans_against_reference(*out, &c, spans, 4);
    }
}

static void adamw_follows_the_reference(void **out)
{
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.weight_decay = 0.1f;
    c.lr = 0.01f;
    run_against_reference(*out, &c);
    c.beta1 = 0.8f;
    c.beta2 = 0.95f;
    c.eps = 1e-3f;
    c.weight_decay = 0;
    run_against_reference(*out, &c);
}

static void adam_adds_its_decay_to_the_gradient(void **out)
{
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.kind = FSDP_ADAM;
    c.weight_decay = 0.1f;
    c.lr = 0.01f;
    run_against_reference(*out, &c);
}

static void sgd_follows_the_reference_with_and_without_momentum(void **out)
{
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.kind = FSDP_SGD;
    c.weight_decay = 0.1f;
    c.lr = 0.05f;
    run_against_reference(*out, &c);
    c.momentum = 0.9f;
    run_against_reference(*out, &c);
}

static void a_skipped_step_changes_nothing(void **out)
{
    state *s = *out;
    static const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_ADAM, FSDP_SGD};
    for (int k = 0; k < 3; k++) {
        fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
        c.kind = kinds[k];
        c.momentum = 0.9f;
        c.weight_decay = 0.1f;
        update *u;
        float before[N];
        start_values(s);
        memcpy(before, s->parameter[0], sizeof before);
        update_range range = {.parameter = s->parameter[0], .gradient = s->gradient[0], .n = N, .decay_end = 500};
        assert_int_equal(
            update_create(&(update_memory){s->dev, s->compute, s->dev, MEMORY_DEVICE}, 1, &c, &range, 1, &u), FSDP_OK);
        for (int64_t i = 0; i < N; i++)
            s->gradient[0][i] = NAN;
        optimizer_scalars n;
        update_scalars(u, 0.1f, 1, &n);
        n.skip = 1;
        assert_int_equal(update_apply(u, 0, s->compute, &n), FSDP_OK);
        assert_memory_equal(before, s->parameter[0], sizeof before);
        const update_range *r = update_range_at(u, 0);
        for (int64_t i = 0; i < N; i++)
            assert_true(((float *)r->moment1)[i] == 0 && (!r->moment2 || ((float *)r->moment2)[i] == 0));
        update_free(u);
    }
}

static void moments_are_kept_where_the_optimizer_has_them(void **out)
{
    state *s = *out;
    const struct {
        fsdp_optimizer_kind kind;
        float momentum;
        int moments;
    } cases[] = {{FSDP_ADAMW, 0, 2}, {FSDP_ADAM, 0, 2}, {FSDP_SGD, 0, 0}, {FSDP_SGD, 0.9f, 1}};
    for (int i = 0; i < 4; i++) {
        fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
        c.kind = cases[i].kind;
        c.momentum = cases[i].momentum;
        update_range ranges[] = {{.parameter = s->parameter[0], .gradient = s->gradient[0], .n = N},
                                 {.parameter = s->parameter[1], .gradient = s->gradient[1], .n = 33}};
        update *u;
        assert_int_equal(
            update_create(&(update_memory){s->dev, s->compute, s->dev, MEMORY_DEVICE}, 1, &c, ranges, 2, &u), FSDP_OK);
        assert_int_equal(update_kept(&c), cases[i].moments);
        for (int k = 0; k < 2; k++) {
            const update_range *r = update_range_at(u, k);
            assert_int_equal((r->moment1 != NULL) + (r->moment2 != NULL), cases[i].moments);
            for (int64_t j = 0; r->moment1 && j < r->n; j++)
                assert_true(((float *)r->moment1)[j] == 0 && (!r->moment2 || ((float *)r->moment2)[j] == 0));
        }
        update_free(u);
    }
    update_free(NULL);
}

static void settings_out_of_range_are_refused(void **out)
{
    state *s = *out;
    for (int i = 0; i < 9; i++) {
        fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
        float *fields[] = {&c.beta1,        &c.beta1,    &c.beta2, &c.beta2, &c.eps,
                           &c.weight_decay, &c.momentum, &c.clip,  &c.beta1};
        const float values[] = {1, -0.1f, 1, -0.1f, 0, -0.1f, 1, -1, NAN};
        *fields[i] = values[i];
        update *u = NULL;
        assert_int_equal(update_create(&(update_memory){s->dev, s->compute, s->dev, MEMORY_DEVICE}, 1, &c, NULL, 0, &u),
                         FSDP_ERR_INPUT);
        assert_null(u);
    }
}

enum { LARGE = (4 << 20) + 1234, PIECE = 1 << 20 }; /* copies of the one go past the caches, of the other they do not */

typedef struct large_range {
    float *parameter, *moments[2];
    uint16_t *copy;
} large_range;

/* Updates LARGE elements `piece` at a time; the result is the caller's to free. */
static large_range update_in_pieces(state *s, const float *start, const float *gradient, fsdp_dtype dtype,
                                    int64_t piece)
{
    const optimizer_scalars n = {.lr = 0.01f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .bias_correction1 = 0.1f,
                                 .bias_correction2 = 0.05f,
                                 .gradient_scale = 0.5f};
    large_range r = {.parameter = numbers(LARGE, sizeof(float)), .copy = aligned_alloc(64, (LARGE + 32) / 32 * 64)};
    assert_non_null(r.copy);
    memcpy(r.parameter, start, LARGE * sizeof(float));
    for (int i = 0; i < 2; i++)
        r.moments[i] = numbers(LARGE, sizeof(float));
    for (int64_t first = 0; first < LARGE; first += piece) {
        optimizer_args a = {.kind = FSDP_ADAMW,
                            .n = first + piece < LARGE ? piece : LARGE - first,
                            .decay = true,
                            .parameter = r.parameter + first,
                            .gradient = (float *)(uintptr_t)gradient + first,
                            .moment1 = r.moments[0] + first,
                            .moment2 = r.moments[1] + first,
                            .copy = {r.copy + first, dtype},
                            .scalars = &n};
        assert_int_equal(s->dev->kernels->optimizer(s->compute, &a), FSDP_OK);
    }
    return r;
}

static void a_large_range_gets_the_bits_of_its_pieces(void **out)
{
    state *s = *out;
    float *start = numbers(LARGE, sizeof(float)), *gradient = numbers(LARGE, sizeof(float));
    rng_fill_normal(rng_key_make(50), 0, LARGE, 0, 1, start);
    rng_fill_normal(rng_key_make(51), 0, LARGE, 0, 1, gradient);
    for (int dtype = FSDP_BF16; dtype <= FSDP_F16; dtype++) {
        large_range whole = update_in_pieces(s, start, gradient, (fsdp_dtype)dtype, LARGE);
        large_range parts = update_in_pieces(s, start, gradient, (fsdp_dtype)dtype, PIECE);
        assert_memory_equal(whole.parameter, parts.parameter, LARGE * sizeof(float));
        assert_memory_equal(whole.moments[0], parts.moments[0], LARGE * sizeof(float));
        assert_memory_equal(whole.moments[1], parts.moments[1], LARGE * sizeof(float));
        assert_memory_equal(whole.copy, parts.copy, LARGE * sizeof(uint16_t));
        assert_memory_not_equal(whole.parameter, start, LARGE * sizeof(float));
        large_range both[] = {whole, parts};
        for (int i = 0; i < 2; i++) {
            free(both[i].parameter);
            free(both[i].moments[0]);
            free(both[i].moments[1]);
            free(both[i].copy);
        }
    }
    free(start);
    free(gradient);
}

/* One range is updated whole; the other, with the same numbers, in parts, whose old values are kept. */
static void any_cut_into_parts_gives_the_same_bits_and_keeps_what_was(void **out)
{
    state *s = *out;
    enum { CUTS = 5 };
    static const int64_t cuts[CUTS + 1] = {0, 1, 130, 501, 777, N};
    static float whole[N], cut[N], before[N], old[N], moments[2 * N];
    static uint16_t copies[2 * N];
    const update_memory memory = {.dev = s->dev, .s = s->compute, .home = s->dev, .kind = MEMORY_DEVICE};
    for (int variant = 0; variant < 4; variant++) {
        fsdp_optimizer_config config = FSDP_OPTIMIZER_CONFIG_INIT;
        update_range ranges[2];
        update *u;
        config.state_dtype = variant & 1 ? FSDP_BF16 : FSDP_F32;
        config.kind = variant & 2 ? FSDP_ADAM : FSDP_ADAMW;
        config.weight_decay = 0.1f;
        rng_fill_normal(rng_key_make(1), 0, N, 0, 1, whole);
        rng_fill_normal(rng_key_make(2), 0, N, 0, 1, s->gradient[0]);
        memcpy(cut, whole, sizeof cut);
        for (int i = 0; i < 2; i++)
            ranges[i] = (update_range){.parameter = i ? cut : whole,
                                       .gradient = s->gradient[0],
                                       .copy = {copies + (size_t)i * N, FSDP_BF16},
                                       .n = N,
                                       .decay_end = 501,
                                       .element = 65000,
                                       .key = {1, 2}};
        assert_int_equal(update_create(&memory, 1, &config, ranges, 2, &u), FSDP_OK);
        for (int64_t step = 1; step <= 3; step++) {
            optimizer_scalars scalars;
            update_scalars(u, 0.01f, step, &scalars);
            memcpy(before, cut, sizeof before);
            assert_int_equal(update_apply(u, 0, s->compute, &scalars), FSDP_OK);
            for (int k = CUTS - 1; k >= 0; k--) {
                update_part part = {.first = cuts[k], .end = cuts[k + 1]};
                part.old.parameter = old + cuts[k];
                part.old.moment1 = moments;
                part.old.moment2 = moments + N;
                assert_int_equal(update_apply_part(u, 1, &part, s->compute, &scalars), FSDP_OK);
            }
            assert_memory_equal(old, before, sizeof old);
        }
        assert_memory_equal(whole, cut, sizeof whole);
        assert_memory_equal(copies, copies + N, N * sizeof *copies);
        assert_memory_equal(update_range_at(u, 0)->moment2, update_range_at(u, 1)->moment2,
                            N * fsdp_dtype_size(config.state_dtype));
        update_free(u);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_the_reference),
        cmocka_unit_test(spans_have_rates_and_decays_of_their_own),
        cmocka_unit_test(adam_adds_its_decay_to_the_gradient),
        cmocka_unit_test(sgd_follows_the_reference_with_and_without_momentum),
        cmocka_unit_test(a_skipped_step_changes_nothing),
        cmocka_unit_test(moments_are_kept_where_the_optimizer_has_them),
        cmocka_unit_test(settings_out_of_range_are_refused),
        cmocka_unit_test(a_large_range_gets_the_bits_of_its_pieces),
        cmocka_unit_test(any_cut_into_parts_gives_the_same_bits_and_keeps_what_was),
    };
    return cmocka_run_group_tests_name("update", tests, open_state, close_state);
}
