/* How the scale of an 8-bit operand follows from its largest magnitude; the same on every device. */
#ifndef DEVICE_FP8_SCALE_H
#define DEVICE_FP8_SCALE_H

#ifdef __CUDACC__
#define FP8_FUNCTION static __host__ __device__ __forceinline__
#else
#define FP8_FUNCTION static inline
#endif

/* Below this all is taken for this size: the quotient stays finite. */
#define FP8_SMALLEST 0x1p-100f

FP8_FUNCTION float fp8_magnitude(float largest)
{
    return largest > FP8_SMALLEST ? largest : FP8_SMALLEST;
}

/* What a value is multiplied by before rounding. */
FP8_FUNCTION float fp8_factor(float largest, float max)
{
    return max / fp8_magnitude(largest);
}

/* What a rounded value stands for, times this; NaN where the operand is not finite. */
FP8_FUNCTION float fp8_scale(float largest, float max)
{
    return (fp8_magnitude(largest) + (largest - largest)) / max;
}

/* Beyond the largest number by more than this factor, a value is cut off rather than rounded. */
#define FP8_BEYOND 1.0625f

#endif
