/* Element types, described once: size, name, and the name that safetensors files use. */
#ifndef FSDP_DTYPE_H
#define FSDP_DTYPE_H

#include <stddef.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_dtype {
    FSDP_F32 = 0,
    FSDP_BF16,
    FSDP_F16,
    FSDP_F64,
    FSDP_I32,
    FSDP_I64,
    FSDP_U8,
    FSDP_E4M3, /* 8-bit floats, for operands of matrix products only: range 448, 3 bits of mantissa */
    FSDP_E5M2, /* range 57344, 2 bits */
    FSDP_DTYPE_COUNT
} fsdp_dtype;

/* Bytes of one element. */
FSDP_API size_t fsdp_dtype_size(fsdp_dtype dtype);
FSDP_API const char *fsdp_dtype_name(fsdp_dtype dtype);             /* "fp32", "bf16", ... */
FSDP_API const char *fsdp_dtype_safetensors_name(fsdp_dtype dtype); /* "F32", "BF16", ... */

/* Accepts both spellings and torch's ("float32", "bfloat16", "torch.bfloat16"). */
FSDP_API fsdp_status fsdp_dtype_parse(const char *name, fsdp_dtype *dtype);

#ifdef __cplusplus
}
#endif
#endif
