/* What kernel tests stand on: operands that live on a device and are known exactly on the host, and comparison with a
 * reference in double precision. Works for any device; the cases are in kernel_cases.h. */
#ifndef TESTS_DEVICE_KERNEL_CHECK_H
#define TESTS_DEVICE_KERNEL_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "support/draw.h"

#define CHECK_MAX_TAKEN 128

typedef struct kernel_check {
    device *device;
    stream *stream;
    fsdp_dtype dtype;          /* of activations and weights */
    fsdp_dtype gradient_dtype; /* of weight gradients */
    double slack;              /* factor on tolerances: 1 where arithmetic is fp32 throughout */
    double cancelled;          /* size of terms that may cancel to nothing but their rounding; 0: below the results' */
    bool rounds_twice;         /* a result may be rounded to its type once more before the last term is added */
    const char *name;          /* of the case, for messages */
    int64_t most_work;         /* sizes that multiply more numbers are left out; 0: none */
    uint64_t random;
    uint64_t hash; /* of every result's bits, in order */
    int n_taken, n_host;
    struct {
        void *p;
        size_t bytes;
    } taken[CHECK_MAX_TAKEN];
    void *host[CHECK_MAX_TAKEN];
} kernel_check;

/* n elements on the device; `host` holds exactly what was put there. */
typedef struct operand {
    int64_t n;
    fsdp_dtype dtype;
    double *host;
    void *device;
} operand;

static inline buffer operand_buffer(const operand *o)
{
    return (buffer){o->device, o->dtype};
}

/* --- dtypes, written for clarity: the kernels have their own --- */

static inline double half_value(uint16_t h)
{
    int exponent = (h >> 10) & 31, fraction = h & 1023;
    double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31)
        value = fraction ? NAN : INFINITY;
    return h & 0x8000 ? -value : value;
}

static inline uint16_t half_nearest(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    x = fabs(x);
    if (isnan(x))
        return 0x7E00;
    if (x >= 65520.0)
        return sign | 0x7C00;
    int exponent = x < ldexp(1, -14) ? -14 : ilogb(x);
    long units = lrint(ldexp(x, 10 - exponent)); /* ties to even */
    return (uint16_t)(sign | (units + ((long)(exponent + 14) << 10)));
}

static inline double bf16_value(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

static inline uint16_t bf16_nearest(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f))
        return (uint16_t)((bits >> 16) | 0x40);
    uint32_t kept = bits >> 16, rest = bits & 0xFFFF;
    return (uint16_t)(kept + (rest > 0x8000 || (rest == 0x8000 && (kept & 1))));
}

/* 8-bit floats by their definition: sign, exponent, fraction; E4M3 has one NaN and no infinity. */
static inline double fp8_value(fsdp_dtype dtype, uint8_t code)
{
    int bits = dtype == FSDP_E5M2 ? 2 : 3, bias = dtype == FSDP_E5M2 ? 15 : 7;
    int exponent = (code & 127) >> bits, fraction = code & ((1 << bits) - 1);
    double value =
        exponent == 0 ? ldexp(fraction, 1 - bias - bits) : ldexp((1 << bits) + fraction, exponent - bias - bits);
    if (dtype == FSDP_E5M2 && exponent == 31)
        value = fraction ? NAN : INFINITY;
    if (dtype == FSDP_E4M3 && (code & 127) == 127)
        value = NAN;
    return code & 128 ? -value : value;
}

/* The nearest code, of two the even one; beyond the largest number that one. */
static inline uint8_t fp8_nearest(fsdp_dtype dtype, double x)
{
    int bits = dtype == FSDP_E5M2 ? 2 : 3, bias = dtype == FSDP_E5M2 ? 15 : 7;
    uint8_t sign = signbit(x) ? 128 : 0;
    x = fabs(x);
    if (isnan(x))
        return sign | 127;
    if (x >= (dtype == FSDP_E5M2 ? 57344 : 448))
        return sign | (dtype == FSDP_E5M2 ? 0x7b : 0x7e);
    int exponent = x < ldexp(1, 1 - bias) ? 1 - bias : ilogb(x);
    long units = lrint(ldexp(x, bits - exponent)); /* ties to even */
    return (uint8_t)(sign | (units + ((long)(exponent + bias - 1) << bits)));
}

static inline double dtype_get(fsdp_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case FSDP_F32:
        return (double)((const float *)p)[i];
    case FSDP_F64:
        return ((const double *)p)[i];
    case FSDP_BF16:
        return bf16_value(((const uint16_t *)p)[i]);
    case FSDP_E4M3:
    case FSDP_E5M2:
        return fp8_value(dtype, ((const uint8_t *)p)[i]);
    default:
        return half_value(((const uint16_t *)p)[i]);
    }
}

static inline void dtype_put(fsdp_dtype dtype, void *p, int64_t i, double value)
{
    if (dtype == FSDP_F32)
        ((float *)p)[i] = (float)value;
    else if (dtype == FSDP_F64)
        ((double *)p)[i] = value;
    else if (dtype == FSDP_E4M3 || dtype == FSDP_E5M2)
        ((uint8_t *)p)[i] = fp8_nearest(dtype, value);
    else
        ((uint16_t *)p)[i] = dtype == FSDP_BF16 ? bf16_nearest(value) : half_nearest(value);
}

/* --- memory --- */

static inline void *check_host(kernel_check *c, size_t bytes)
{
    assert_true(c->n_host < CHECK_MAX_TAKEN);
    void *p = calloc(bytes ? bytes : 1, 1);
    assert_non_null(p);
    c->host[c->n_host++] = p;
    return p;
}

static inline double *check_doubles(kernel_check *c, int64_t n)
{
    return check_host(c, (size_t)n * sizeof(double));
}

static inline void *check_upload(kernel_check *c, const void *from, size_t bytes)
{
    void *p = NULL;
    assert_true(c->n_taken < CHECK_MAX_TAKEN);
    assert_int_equal(c->device->allocate(c->device, MEMORY_DEVICE, bytes, &p), FSDP_OK);
    assert_int_equal((uintptr_t)p % 256, 0);
    c->taken[c->n_taken].p = p;
    c->taken[c->n_taken++].bytes = bytes;
    assert_int_equal(c->device->copy(c->stream, p, from, bytes), FSDP_OK);
    assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
    return p;
}

/* Gives everything back: between the sizes of a case. */
static inline void check_clear(kernel_check *c)
{
    while (c->n_taken) {
        c->n_taken--;
        c->device->release(c->device, MEMORY_DEVICE, c->taken[c->n_taken].p, c->taken[c->n_taken].bytes);
    }
    while (c->n_host)
        free(c->host[--c->n_host]);
}

/* Filled with a pattern that reads as large numbers, so that nothing can rely on clean workspaces. */
static inline void *check_workspace(kernel_check *c, size_t bytes)
{
    void *pattern = check_host(c, bytes);
    memset(pattern, 0x6B, bytes);
    assert_true(bytes <= c->device->workspace_limit);
    return check_upload(c, pattern, bytes);
}

/* Whether a size of the case is too much for a brief run. */
static inline bool check_leaves_out(const kernel_check *c, int64_t work)
{
    return c->most_work > 0 && work > c->most_work;
}

/* --- operands --- */

static inline double check_uniform(kernel_check *c)
{
    return (double)(draw_state(&c->random) >> 40) / (double)(1 << 24);
}

static inline operand check_operand(kernel_check *c, fsdp_dtype dtype, int64_t n, const double *values)
{
    operand o = {.n = n, .dtype = dtype, .host = check_doubles(c, n)};
    size_t bytes = (size_t)n * fsdp_dtype_size(dtype);
    void *raw = check_host(c, bytes);
    for (int64_t i = 0; i < n; i++) {
        dtype_put(dtype, raw, i, values[i]);
        o.host[i] = dtype_get(dtype, raw, i);
    }
    o.device = check_upload(c, raw, bytes);
    return o;
}

/* Uniform in [-scale, scale). Also what outputs hold before a kernel writes them. */
static inline operand check_random(kernel_check *c, fsdp_dtype dtype, int64_t n, double scale)
{
    double *values = check_doubles(c, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = scale * (2.0 * check_uniform(c) - 1.0);
    return check_operand(c, dtype, n, values);
}

static inline int32_t *check_ints(kernel_check *c, const int32_t *values, int64_t n)
{
    return check_upload(c, values, (size_t)n * sizeof(int32_t));
}

/* --- comparison --- */

static inline double dtype_tolerance(fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 ? 4.2e-3 : dtype == FSDP_F16 ? 6e-4 : dtype == FSDP_F64 ? 2e-6 : 4e-6;
}

static inline void *check_download(kernel_check *c, const operand *o)
{
    size_t bytes = (size_t)o->n * fsdp_dtype_size(o->dtype);
    unsigned char *raw = check_host(c, bytes);
    assert_int_equal(c->device->copy(c->stream, raw, o->device, bytes), FSDP_OK);
    assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
    for (size_t i = 0; i < bytes; i++)
        c->hash = (c->hash ^ raw[i]) * 1099511628211u;
    return raw;
}

/* The operand now holds `expected`, or what it held before plus that. An element may be off by its dtype's rounding and
 * by a little of the largest element (sums cancel; operands are of order one). NAN in `expected`: anything goes. */
static inline void check_expect(kernel_check *c, const operand *o, const double *expected, bool add, const char *what)
{
    const void *raw = check_download(c, o);
    double largest = 0.0, tolerance = dtype_tolerance(o->dtype) * c->slack;
    for (int64_t i = 0; i < o->n; i++) {
        double size = fabs(expected[i]);
        largest = size > largest && size < INFINITY ? size : largest;
    }
    for (int64_t i = 0; i < o->n; i++) {
        double want = expected[i] + (add ? o->host[i] : 0.0), got = dtype_get(o->dtype, raw, i);
        double allowed = tolerance * fabs(want) + 4e-6 * c->slack * (largest + 0.05 + c->cancelled);
        if (c->rounds_twice && o->dtype != FSDP_F32)
            allowed += tolerance * largest;
        if (isnan(want) || got == want || fabs(got - want) <= allowed)
            continue;
        fail_msg("%s, %s, %s: element %lld of %lld is %.9g, expected %.9g (off by %.3g, allowed %.3g)", c->name,
                 fsdp_dtype_name(c->dtype), what, (long long)i, (long long)o->n, got, want, fabs(got - want), allowed);
    }
}

/* Every bit as given. */
static inline void check_exact(kernel_check *c, const operand *o, const double *expected, const char *what)
{
    const void *raw = check_download(c, o);
    for (int64_t i = 0; i < o->n; i++) {
        double got = dtype_get(o->dtype, raw, i);
        if (got != expected[i] && !(isnan(got) && isnan(expected[i])))
            fail_msg("%s, %s, %s: element %lld of %lld is %.9g, not %.9g", c->name, fsdp_dtype_name(c->dtype), what,
                     (long long)i, (long long)o->n, got, expected[i]);
    }
}

/* Runs a kernel and sees that it says it went well. */
#define CHECK_RUN(c, entry, args)                                                                                      \
    do {                                                                                                               \
        fsdp_status check_status_ = (c)->device->kernels->entry((c)->stream, args);                                    \
        if (check_status_ != FSDP_OK)                                                                                  \
            fail_msg("%s: %s: %s", (c)->name, #entry, fsdp_last_error());                                              \
    } while (0)

/* The same with workspace of exactly the size the kernel asks for. */
#define CHECK_RUN_WITH_WORKSPACE(c, entry, args)                                                                       \
    do {                                                                                                               \
        (args)->workspace = check_workspace(c, (c)->device->kernels->entry##_workspace((c)->device, args));            \
        CHECK_RUN(c, entry, args);                                                                                     \
    } while (0)

/* Two magnitudes to be raised, the second of which has a place to rise from. */
static inline operand check_magnitudes(kernel_check *c, double second)
{
    return check_operand(c, FSDP_F32, 2, (const double[]){0, second});
}

/* Exactly the largest of what was stored and what was there. */
static inline void check_magnitude(kernel_check *c, const operand *x, const operand *largest, int at)
{
    const void *raw = check_download(c, x);
    double want = largest->host[at];
    for (int64_t i = 0; i < x->n; i++)
        want = fmax(want, fabs(dtype_get(c->dtype, raw, i)));
    double got = (double)((const float *)check_download(c, largest))[at];
    if (got != want)
        fail_msg("the magnitude left is %.9g, that of what was there and what was written %.9g", got, want);
}

#endif
