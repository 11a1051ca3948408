/* The optimizer step on a flat fp32 range, in one pass: gradient in; parameter, moments and the low-precision copy out;
 * and what decides how that step scales its gradients. */
#include "device/cpu/simd/span.h"
#include "device/halves.h"
#include "device/stochastic.h"

#include <stdatomic.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#define STREAMED ((int64_t)4 << 20) /* elements; smaller ranges may stay in the caches until they are gathered */
#define PREFETCH 1024               /* elements ahead */

/* What a step does, with everything that does not depend on the element worked out beforehand. */
typedef struct update {
    const optimizer_args *args;
    fsdp_optimizer_kind kind;
    float lr, beta1, beta2, eps, momentum, gradient_scale;
    float keep;       /* AdamW, Muon, Adafactor: factor on the parameter */
    float l2;         /* Adam, SGD: share of the parameter added to the gradient */
    float step_size;  /* lr / bias_correction1 */
    float root_scale; /* 1 / sqrt(bias_correction2) */
    bool first;
    atomic_llong taken; /* elements that threads have taken */
} update;

static update update_prepare(const optimizer_args *a)
{
    const optimizer_scalars *n = a->scalars;
    float decay = a->grouped ? a->weight_decay : a->decay ? n->weight_decay : 0.0f;
    float lr = (a->grouped ? n->lr * a->lr_factor : n->lr) * (a->rate ? a->rate[0] : 1.0f);
    bool adamw = a->kind == FSDP_ADAMW || a->kind == FSDP_MUON || a->kind == FSDP_ADAFACTOR;
    return (update){
        .args = a,
        .kind = a->kind,
        .lr = lr,
        .beta1 = n->beta1,
        .beta2 = n->beta2,
        .eps = n->eps,
        .momentum = n->momentum,
        .gradient_scale = n->gradient_scale,
        .keep = adamw ? 1.0f - lr * decay : 1.0f,
        .l2 = adamw ? 0.0f : decay,
        .step_size = a->kind == FSDP_SGD ? lr : lr / n->bias_correction1,
        .root_scale = a->kind == FSDP_SGD ? 1.0f : 1.0f / sqrtf(n->bias_correction2),
        .first = n->bias_correction1 == 1.0f,
    };
}

/* What every element of a span reads, in registers. */
typedef struct adam_numbers {
    float beta1, beta2, rest1, rest2, scale, keep, l2, step, root, eps;
} adam_numbers;

static inline adam_numbers adam_prepare(const update *u)
{
    return (adam_numbers){.beta1 = u->beta1,
                          .beta2 = u->beta2,
                          .rest1 = 1.0f - u->beta1,
                          .rest2 = 1.0f - u->beta2,
                          .scale = u->gradient_scale,
                          .keep = u->keep,
                          .l2 = u->l2,
                          .step = u->step_size,
                          .root = u->root_scale,
                          .eps = u->eps};
}

static inline float adam_element(const adam_numbers *a, float p, float gradient, float *moment1, float *moment2)
{
    float g = simd_fma(a->l2, p, gradient * a->scale);
    float m = simd_fma(a->beta1, *moment1, a->rest1 * g);
    float v = simd_fma(a->beta2, *moment2, a->rest2 * g * g);
    *moment1 = m;
    *moment2 = v;
    return p * a->keep - a->step * (m / (sqrtf(v) * a->root + a->eps));
}

static void adam_wide(const update *u, int64_t n, float *restrict parameter, const float *restrict gradient,
                      float *restrict moment1, float *restrict moment2)
{
    const adam_numbers a = adam_prepare(u);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float m = moment1[i], v = moment2[i];
        parameter[i] = adam_element(&a, parameter[i], gradient[i], &m, &v);
        moment1[i] = m;
        moment2[i] = v;
    }
}

/* Moments of 16 bits are widened, updated and rounded again in registers. `place`: of the first element in its block of
 * random words, which all n elements lie in. */
static void adam_halves(const update *u, int64_t n, float *restrict parameter, const float *restrict gradient,
                        uint16_t *restrict moment1, uint16_t *restrict moment2, stochastic_numbers numbers,
                        uint32_t place)
{
    const adam_numbers a = adam_prepare(u);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float m = float_from_bf16(moment1[i]), v = float_from_bf16(moment2[i]);
        uint32_t word = stochastic_word(numbers, place + (uint32_t)i);
        parameter[i] = adam_element(&a, parameter[i], gradient[i], &m, &v);
        moment1[i] = (uint16_t)stochastic_bf16(float_bits_of(m), stochastic_bits1(word));
        moment2[i] = (uint16_t)stochastic_bf16(float_bits_of(v), stochastic_bits2(word));
    }
}

enum { BLOCK = 64, LINE = 64 }; /* elements that are updated at once; bytes that come from memory at once */

/* Four arrays are read at a time, which the processor's own look-ahead does not follow across pages. What lies behind
 * the end is fetched too, where there is something: that is the next span's, or harmless. */
static inline void prefetch(const void *array, fsdp_dtype dtype, int64_t first, bool written)
{
    int64_t size = dtype == FSDP_F32 ? 4 : 2;
    const char *at = (const char *)array + (first + PREFETCH) * size;
    for (int64_t line = 0; line < BLOCK * size; line += LINE) {
        if (written)
            __builtin_prefetch(at + line, 1, 2);
        else
            __builtin_prefetch(at + line, 0, 2);
    }
}

static void sgd_span(const update *u, int64_t n, float *restrict parameter, const float *restrict gradient,
                     float *restrict moment)
{
    float scale = u->gradient_scale, l2 = u->l2, lr = u->lr, momentum = u->first ? 0.0f : u->momentum;
    if (u->momentum == 0.0f || !moment) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            parameter[i] -= lr * simd_fma(l2, parameter[i], gradient[i] * scale);
    } else {
        bool first = u->first;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = simd_fma(l2, parameter[i], gradient[i] * scale);
            float m = first ? g : simd_fma(momentum, moment[i], g);
            moment[i] = m;
            parameter[i] -= lr * m;
        }
    }
}

static void muon_span(const update *u, int64_t n, float *restrict parameter, const uint16_t *restrict direction)
{
    float keep = u->keep, step = u->lr * u->args->direction_scale;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        parameter[i] = parameter[i] * keep - step * float_from_bf16(direction[i]);
}

static void adafactor_span(const update *u, int64_t n, float *restrict parameter, const float *restrict gradient)
{
    float keep = u->keep, step = u->lr * u->args->rate[1];
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        parameter[i] = parameter[i] * keep - step * gradient[i];
}

static void average_span(float decay, int64_t n, const float *restrict parameter, float *restrict average)
{
    float rest = 1.0f - decay;
    if (decay == 0.0f) { /* it begins, whatever was there */
        memcpy(average, parameter, (size_t)n * sizeof *average);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        average[i] = simd_fma(decay, average[i], rest * parameter[i]);
}

/* Past the caches; both 64-byte aligned. simd_stream_end makes it visible to other threads before what they do next. */
static void simd_stream(void *to, const void *from, size_t bytes)
{
    size_t done = 0;
#if defined(__AVX512F__)
    for (; done + 64 <= bytes; done += 64)
        _mm512_stream_si512((void *)((char *)to + done), _mm512_load_si512((const char *)from + done));
#elif defined(__SSE2__)
    for (; done + 16 <= bytes; done += 16)
        _mm_stream_si128((__m128i *)((char *)to + done), _mm_load_si128((const __m128i *)((const char *)from + done)));
#endif
    memcpy((char *)to + done, (const char *)from + done, bytes - done);
}

static void simd_stream_end(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* The copy of a large range goes past the caches: the next to read it is a transfer, a peer, or much later. */
static bool streams_copy(const optimizer_args *a)
{
    return a->copy.p && a->copy.dtype != FSDP_F32 && a->n >= STREAMED && (uintptr_t)a->copy.p % 64 == 0;
}

/* The copy of elements `first` on, to the beginning of `to`. */
static void write_copy(const optimizer_args *a, int64_t first, int64_t n, buffer to)
{
    const float *restrict parameter = a->parameter + first;
    uint16_t *restrict half = to.p;
    if (!a->copy_half) {
        span_write(to, 0, n, parameter, false);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t low;
        half[i] = (uint16_t)halves_split(float_bits_of(parameter[i]), &low);
    }
}

static void stream_copy(const optimizer_args *a, int64_t first, int64_t n)
{
    _Alignas(64) uint16_t converted[SPAN];
    write_copy(a, first, n, (buffer){converted, a->copy.dtype});
    simd_stream((uint16_t *)a->copy.p + first, converted, (size_t)n * sizeof *converted);
}

static void sgd_halves(const update *u, int64_t n, float *parameter, const float *gradient, uint16_t *moment,
                       stochastic_numbers numbers, uint32_t place)
{
    float wide[BLOCK];
    span_load((buffer){moment, FSDP_BF16}, 0, n, wide);
    sgd_span(u, n, parameter, gradient, wide);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = stochastic_word(numbers, place + (uint32_t)i);
        moment[i] = (uint16_t)stochastic_bf16(float_bits_of(wide[i]), stochastic_bits1(word));
    }
}

/* n <= BLOCK elements with moments of 16 bits, all in one block of random words. */
static void update_halves(const update *u, int64_t first, int64_t n, const float *gradient, stochastic_numbers numbers)
{
    const optimizer_args *a = u->args;
    uint32_t place = (uint32_t)((a->element + (uint64_t)first) % STOCHASTIC_BLOCK);
    float *parameter = a->parameter + first;
    uint16_t *moment1 = a->moment1 ? (uint16_t *)a->moment1 + first : NULL;
    if (u->kind != FSDP_SGD)
        adam_halves(u, n, parameter, gradient, moment1, (uint16_t *)a->moment2 + first, numbers, place);
    else if (moment1)
        sgd_halves(u, n, parameter, gradient, moment1, numbers, place);
    else
        sgd_span(u, n, parameter, gradient, NULL);
}

static void update_wide(const update *u, int64_t first, int64_t n, const float *gradient)
{
    const optimizer_args *a = u->args;
    float *moment1 = a->moment1 ? (float *)a->moment1 + first : NULL;
    if (u->kind == FSDP_SGD)
        sgd_span(u, n, a->parameter + first, gradient, moment1);
    else
        adam_wide(u, n, a->parameter + first, gradient, moment1, (float *)a->moment2 + first);
}

/* The next elements that are updated at once: a block, but not beyond `end` or the words' block. */
static int64_t next_block(const optimizer_args *a, int64_t first, int64_t end)
{
    int64_t words = STOCHASTIC_BLOCK - (int64_t)((a->element + (uint64_t)first) % STOCHASTIC_BLOCK);
    return min_i64(min_i64(BLOCK, end - first), words);
}

static void update_moments(const update *u, int64_t first, int64_t n)
{
    const optimizer_args *a = u->args;
    const buffer gradients = {(void *)(uintptr_t)a->gradient, a->gradient_dtype};
    bool halves = a->moment_dtype == FSDP_BF16;
    const rng_key key = {{a->key[0], a->key[1]}};
    stochastic_numbers numbers = {0, 0};
    float wide[BLOCK];
    for (int64_t i = first, length; i < first + n; i += length) {
        length = next_block(a, i, first + n);
        if (halves && (i == first || (a->element + (uint64_t)i) % STOCHASTIC_BLOCK == 0))
            numbers = stochastic_numbers_at(key, a->scalars->step, a->element + (uint64_t)i);
        prefetch(a->parameter, FSDP_F32, i, true);
        prefetch(a->gradient, a->gradient_dtype, i, false);
        if (a->moment1)
            prefetch(a->moment1, a->moment_dtype, i, true);
        if (a->moment2)
            prefetch(a->moment2, a->moment_dtype, i, true);
        const float *gradient = span_read(gradients, i, length, wide);
        if (halves)
            update_halves(u, i, length, gradient, numbers);
        else
            update_wide(u, i, length, gradient);
    }
}

/* Past the caches: nobody reads it unless the update is undone. */
static void keep_old(void *to, const void *from, fsdp_dtype dtype, int64_t first, int64_t n)
{
    size_t size = dtype == FSDP_F32 ? 4 : 2;
    char *at = (char *)to + (size_t)first * size;
    const char *old = (const char *)from + (size_t)first * size;
    if (((uintptr_t)at | (uintptr_t)old) % 64 == 0)
        simd_stream(at, old, (size_t)n * size);
    else
        memcpy(at, old, (size_t)n * size);
}

static void keep_all_old(const optimizer_args *a, int64_t first, int64_t n)
{
    keep_old(a->old_parameter, a->parameter, FSDP_F32, first, n);
    if (a->moment1)
        keep_old(a->old_moment1, a->moment1, a->moment_dtype, first, n);
    if (a->moment2)
        keep_old(a->old_moment2, a->moment2, a->moment_dtype, first, n);
    if (a->average)
        keep_old(a->old_average, a->average, FSDP_F32, first, n);
}

static void update_span(const update *u, int64_t first)
{
    const optimizer_args *a = u->args;
    int64_t n = min_i64(SPAN, a->n - first);
    if (a->old_parameter)
        keep_all_old(a, first, n);
    if (u->kind == FSDP_MUON)
        muon_span(u, n, a->parameter + first, a->direction + first);
    else if (u->kind == FSDP_ADAFACTOR)
        adafactor_span(u, n, a->parameter + first, (const float *)a->gradient + first);
    else
        update_moments(u, first, n);
    if (a->average)
        average_span(a->scalars->average_decay, n, a->parameter + first, a->average + first);
    if (streams_copy(a))
        stream_copy(a, first, n);
    else if (a->copy.p)
        write_copy(a, first, n, (buffer){element_address(a->copy, first), a->copy.dtype});
}

/* Threads take pieces as they come: one that the system holds up for a moment holds up nobody else. */
static void update_share(void *context, int rank, int size)
{
    enum { PIECE = 16 * SPAN };
    update *u = context;
    int64_t n = u->args->n;
    (void)rank, (void)size;
    for (int64_t first; (first = atomic_fetch_add_explicit(&u->taken, PIECE, memory_order_relaxed)) < n;) {
        int64_t end = min_i64(first + PIECE, n);
        for (; first < end; first += SPAN)
            update_span(u, first);
    }
    if (streams_copy(u->args) || u->args->old_parameter)
        simd_stream_end();
}

SIMD_KERNEL(optimizer, optimizer_args)
{
    if (!a->scalars->skip) {
        update u = update_prepare(a);
        parallel_team(cpu_threads(s), cpu_threads_for(s, a->n), update_share, &u);
    }
    span_raise_largest(a->copy.p ? a->copy : (buffer){a->parameter, FSDP_F32}, a->n, a->magnitude);
    return FSDP_OK;
}

static void direction_span(const void *context, int64_t first)
{
    const muon_direction_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float scale = a->scalars->gradient_scale, momentum = a->scalars->momentum, rest = 1.0f - momentum, values[SPAN];
    const float *restrict gradient = a->gradient + first;
    float *restrict moment = a->moment + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = rest * (gradient[i] * scale);
        float m = simd_fma(momentum, moment[i], g);
        moment[i] = m;
        values[i] = simd_fma(momentum, m, g);
    }
    span_write((buffer){a->direction, FSDP_BF16}, first, n, values, false);
}

SIMD_KERNEL(muon_direction, muon_direction_args)
{
    if (!a->scalars->skip)
        parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, direction_span, a);
    return FSDP_OK;
}

static float normalize_factor(const normalize_args *a)
{
    float norm = (float)sqrt(*a->squares);
    return 1.0f / (norm > a->least ? norm : a->least);
}

static void normalize_span(const void *context, int64_t first)
{
    const normalize_args *a = context;
    int64_t n = min_i64(SPAN, a->rows * a->columns - first);
    float factor = normalize_factor(a), x_scratch[SPAN], scratch[SPAN];
    const float *x = span_read(a->x, first, n, x_scratch);
    float *out = span_target(a->out, first, false, scratch);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * factor;
    span_write(a->out, first, n, out, false);
}

/* Columns `first` on of x are rows of out; of each square, x is read row by row. */
enum { SQUARE = 32 };

static void normalize_square(const void *context, int64_t first)
{
    const normalize_args *a = context;
    int64_t columns = min_i64(SQUARE, a->columns - first);
    float factor = normalize_factor(a), scratch[SQUARE], square[SQUARE][SQUARE], rounded[SQUARE];
    for (int64_t row = 0; row < a->rows; row += SQUARE) {
        int64_t rows = min_i64(SQUARE, a->rows - row);
        for (int64_t i = 0; i < rows; i++) {
            const float *x = span_read(a->x, (row + i) * a->columns + first, columns, scratch);
            for (int64_t j = 0; j < columns; j++)
                square[j][i] = x[j] * factor;
        }
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = (first + j) * a->rows + row;
            float *out = span_target(a->out, at, false, rounded);
            memcpy(out, square[j], (size_t)rows * sizeof *out);
            span_write(a->out, at, rows, out, false);
        }
    }
}

SIMD_KERNEL(normalize, normalize_args)
{
    int64_t n = a->rows * a->columns;
    if (a->transpose)
        parallel_for(cpu_threads_for(s, n), a->columns, SQUARE, normalize_square, a);
    else
        parallel_for(cpu_threads_for(s, n), n, SPAN, normalize_span, a);
    return FSDP_OK;
}

SIMD_KERNEL(loss_total, loss_total_args)
{
    (void)s;
    a->totals[0] = (a->add ? a->totals[0] : 0.0) + (double)*a->loss_sum;
    a->totals[1] = (a->add ? a->totals[1] : 0.0) + (double)*a->count;
    return FSDP_OK;
}

SIMD_KERNEL(clip, clip_args)
{
    (void)s;
    double count = a->totals[2], factor = a->unscale / (a->divisor > 0.0 ? a->divisor : count),
           norm = sqrt(a->totals[0]) * factor;
    bool skip = !isfinite(norm) || count == 0.0;
    double limit = (double)a->max_norm, clipped = limit > 0.0 ? limit / (norm + 1e-6) : 1.0;
    a->scalars->gradient_scale = (float)(factor * (clipped < 1.0 ? clipped : 1.0));
    a->scalars->skip = skip;
    a->report[0] = (float)norm;
    a->report[1] = (float)(a->totals[1] / count);
    a->report[2] = (float)count;
    a->report[3] = skip ? 1.0f : 0.0f;
    return FSDP_OK;
}
