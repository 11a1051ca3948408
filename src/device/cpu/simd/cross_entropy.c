/* Softmax cross-entropy over long rows. A row is read once for its denominator (the maximum follows along, the sum is
 * rescaled when it moves) and once more, now in the cache, for its gradient. */
#include "device/cpu/simd/span.h"

#include "base/error.h"

/* sum over the row of exp(x - highest). The two stay apart: their logarithm would lose digits of large logits. */
typedef struct denominator {
    float highest, sum;
} denominator;

/* A float's bits as a signed number in the same order (and back): maxima of those vectorise on every compiler. */
static inline int32_t ordered(int32_t bits)
{
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

static float span_highest(const float *x, int64_t n, float so_far)
{
    int32_t top = ordered((int32_t)float_bits_of(so_far));
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        int32_t value = ordered((int32_t)float_bits_of(x[i]));
        top = value > top ? value : top;
    }
    return float_bits_to((uint32_t)ordered(top));
}

static denominator row_denominator(const cross_entropy_args *a, int64_t row)
{
    float scratch[SPAN], highest = -INFINITY, sum = 0.0f;
    for (int64_t first = 0; first < a->vocabulary; first += SPAN) {
        int64_t n = min_i64(SPAN, a->vocabulary - first);
        const float *x = span_read(a->logits, row * a->stride + first, n, scratch);
        float top = span_highest(x, n, highest), part = 0.0f;
        /* Rows of -infinity so far: no scale to subtract yet. */
        float base = top == -INFINITY ? 0.0f : top;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < n; i++)
            part += simd_exp(x[i] - base);
        sum = (highest == -INFINITY ? sum : sum * simd_exp(highest - base)) + part;
        highest = top;
    }
    return (denominator){highest, sum};
}

static void row_gradient(const cross_entropy_args *a, int64_t row, denominator softmax, float seed)
{
    float x_scratch[SPAN], scratch[SPAN];
    int64_t label = a->labels[row];
    float highest = softmax.highest, factor = seed / softmax.sum;
    for (int64_t first = 0; first < a->vocabulary; first += SPAN) {
        int64_t at = row * a->stride + first, n = min_i64(SPAN, a->vocabulary - first);
        const float *x = span_read(a->logits, at, n, x_scratch);
        float *dx = span_target(a->d_logits, at, a->add_logits, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = simd_exp(x[i] - highest) * factor;
        if (label >= first && label < first + n)
            dx[label - first] -= seed;
        span_write(a->d_logits, at, n, dx, a->add_logits);
    }
}

static void row_without_gradient(const cross_entropy_args *a, int64_t row)
{
    size_t element = a->d_logits.dtype == FSDP_F32 ? 4 : 2;
    if (!a->add_logits)
        memset(element_address(a->d_logits, row * a->stride), 0, (size_t)a->vocabulary * element);
}

static fsdp_status check_labels(const cross_entropy_args *a)
{
    for (int64_t row = 0; row < a->rows; row++) {
        int32_t label = a->labels[row];
        if (label != a->ignore && (label < 0 || label >= a->vocabulary))
            return error_set(FSDP_ERR_INPUT, "cross-entropy: label %d of row %lld is outside the vocabulary of %lld",
                             label, (long long)row, (long long)a->vocabulary);
    }
    return FSDP_OK;
}

SIMD_WORKSPACE(cross_entropy_forward, cross_entropy_args)
{
    (void)d;
    return (size_t)a->rows * sizeof(float);
}

static void forward_row(const void *context, int64_t row)
{
    const cross_entropy_args *a = context;
    float *loss = (float *)a->workspace + row;
    *loss = 0.0f;
    if (a->labels[row] == a->ignore) {
        if (a->d_logits.p)
            row_without_gradient(a, row);
        return;
    }
    denominator softmax = row_denominator(a, row);
    float logit = element_read(a->logits, row * a->stride + a->labels[row]);
    *loss = softmax.highest - logit + logf(softmax.sum);
    if (a->d_logits.p)
        row_gradient(a, row, softmax, *a->seed);
}

SIMD_KERNEL(cross_entropy_forward, cross_entropy_args)
{
    FSDP_TRY(check_labels(a));
    parallel_for(cpu_threads_for(s, a->rows * a->vocabulary), a->rows, 1, forward_row, a);
    const float *losses = a->workspace; /* (rows) */
    double total = 0.0;
    int64_t count = 0;
    for (int64_t row = 0; row < a->rows; row++) {
        total += losses[row];
        count += a->labels[row] != a->ignore;
    }
    *a->loss_sum = (float)((a->add_loss ? (double)*a->loss_sum : 0.0) + total);
    *a->count = (a->add_loss ? *a->count : 0.0f) + (float)count;
    return FSDP_OK;
}

static void backward_row(const void *context, int64_t row)
{
    const cross_entropy_args *a = context;
    if (a->labels[row] == a->ignore)
        row_without_gradient(a, row);
    else
        row_gradient(a, row, row_denominator(a, row), *a->seed);
}

SIMD_KERNEL(cross_entropy_backward, cross_entropy_args)
{
    FSDP_TRY(check_labels(a));
    parallel_for(cpu_threads_for(s, a->rows * a->vocabulary), a->rows, 1, backward_row, a);
    return FSDP_OK;
}

/* True when another class is likelier than the label: a higher logit, as high a one before it, or no number. */
static bool is_beaten(const count_right_args *a, int64_t row, int64_t label)
{
    float scratch[SPAN], mine = element_read(a->logits, row * a->stride + label);
    int beaten = mine != mine;
    for (int64_t first = 0; first < a->vocabulary && !beaten; first += SPAN) {
        int64_t n = min_i64(SPAN, a->vocabulary - first);
        const float *x = span_read(a->logits, row * a->stride + first, n, scratch);
#pragma omp simd reduction(| : beaten)
        for (int64_t i = 0; i < n; i++)
            beaten |= !(x[i] < mine) & !((x[i] == mine) & (first + i >= label));
    }
    return beaten != 0;
}

typedef struct right_rows {
    const count_right_args *args;
    int64_t *n;
} right_rows;

static void right_row(const void *context, int64_t row)
{
    const right_rows *r = context;
    int32_t label = r->args->labels[row];
    if (label != r->args->ignore && label >= 0 && label < r->args->vocabulary && !is_beaten(r->args, row, label))
        __atomic_fetch_add(r->n, 1, __ATOMIC_RELAXED);
}

SIMD_KERNEL(count_right, count_right_args)
{
    int64_t n = 0;
    right_rows rows = {a, &n};
    parallel_for(cpu_threads_for(s, a->rows * a->vocabulary), a->rows, 1, right_row, &rows);
    *a->right = (a->add ? *a->right : 0.0f) + (float)n;
    return FSDP_OK;
}
