/* Elementary functions on fp32 that vectorise: no branches, no tables, no calls. Coefficients are Chebyshev fits of our
 * own; errors stand at each function. NaN goes in and comes out, so that an overflow upstream stays visible. */
#ifndef DEVICE_CPU_SIMD_FUNCTIONS_H
#define DEVICE_CPU_SIMD_FUNCTIONS_H

#include "device/cpu/simd/simd.h"

#include <math.h>

#include "base/float_bits.h"

/* e^x within 1.1 ulp for x up to 88 (a softmax never asks for more); 0 below -87.6. */
static inline float simd_exp(float x)
{
    float clamped = -88.0f > x ? -88.0f : x;
    /* Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. */
    float shifted = simd_fma(clamped, 1.44269504f, 12582912.0f);
    float n = shifted - 12582912.0f;
    float r = simd_fma(n, -0.693359375f, clamped);
    r = simd_fma(n, 2.12194440e-4f, r);
    float p = 0.001392692661f;
    p = simd_fma(p, r, 0.008363773874f);
    p = simd_fma(p, r, 0.04166655011f);
    p = simd_fma(p, r, 0.1666657338f);
    p = simd_fma(p, r, 0.5f);
    p = simd_fma(p, r * r, r) + 1.0f;
    /* 2^n; at n = -127 the exponent field runs empty and this is 0. */
    return p * float_bits_to((float_bits_of(shifted) << 23) + (127u << 23));
}

/* 1 / (1 + e^-x), by the side on which the exponential stays below 1. */
static inline float simd_sigmoid(float x)
{
    float e = simd_exp(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* erf within 7e-8: x + x P(x^2) below 1, 1 - e^(Q(|x|) - x^2) above, Q a fit of log(erfc(x)) + x^2 up to 4.1. */
static inline float simd_erf(float x)
{
    float s = x * x;
    float near = 7.875875063e-5f;
    near = simd_fma(near, s, -0.0008016864287f);
    near = simd_fma(near, s, 0.005189087423f);
    near = simd_fma(near, s, -0.02685421201f);
    near = simd_fma(near, s, 0.1128359472f);
    near = simd_fma(near, s, -0.3761262667f);
    near = simd_fma(near, s, 0.1283791658f);
    near = simd_fma(near, x, x);

    float size = fabsf(x);
    float t = size > 4.1f ? 4.1f : size;
    float q = 1.591706218e-6f;
    q = simd_fma(q, t, -4.518101704e-5f);
    q = simd_fma(q, t, 0.0005895989285f);
    q = simd_fma(q, t, -0.004726724977f);
    q = simd_fma(q, t, 0.0263302746f);
    q = simd_fma(q, t, -0.109924481f);
    q = simd_fma(q, t, 0.3680129341f);
    q = simd_fma(q, t, -1.13014146f);
    q = simd_fma(q, t, 0.0002979374622f);
    float far = copysignf(1.0f - simd_exp(q - t * t), x);
    return size < 1.0f ? near : (x != x ? x : far);
}

#endif
