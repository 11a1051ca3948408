/* Numbers as blocks of 8 bits, and back. */
#include "device/cpu/simd/span.h"

#include "device/int8_block.h"

static void narrow_block(const float *restrict x, int8_block *restrict block)
{
    uint32_t largest = 0;
    for (int i = 0; i < INT8_BLOCK; i++) {
        uint32_t magnitude = float_bits_of(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    float scale = block->scale = int8_scale(largest);
    for (int i = 0; i < INT8_BLOCK; i++)
        block->codes[i] = int8_code(x[i], scale);
}

static void narrow_span(const void *context, int64_t first)
{
    const int8_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float scratch[SPAN];
    const float *x = span_read(a->values, first, n, scratch);
    int8_block *blocks = (int8_block *)a->blocks + first / INT8_BLOCK;
    for (int64_t i = 0; i < n; i += INT8_BLOCK)
        narrow_block(x + i, &blocks[i / INT8_BLOCK]);
}

SIMD_KERNEL(narrow, int8_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, narrow_span, a);
    return FSDP_OK;
}

static void widen_span(const void *context, int64_t first)
{
    const int8_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float scratch[SPAN];
    float *x = span_target(a->values, first, false, scratch);
    const int8_block *blocks = (const int8_block *)a->blocks + first / INT8_BLOCK;
    for (int64_t k = 0; k < n / INT8_BLOCK; k++) {
        const int8_block *restrict block = &blocks[k];
        float *restrict out = x + k * INT8_BLOCK;
        for (int i = 0; i < INT8_BLOCK; i++)
            out[i] = (float)block->codes[i] * block->scale;
    }
    span_write(a->values, first, n, x, false);
}

SIMD_KERNEL(widen, int8_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, widen_span, a);
    return FSDP_OK;
}
