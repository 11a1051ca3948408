/* The table of element types; every name and size of one is here. */
#include <fsdp/dtype.h>

#include <string.h>

#include "base/error.h"

typedef struct description {
    size_t size;
    const char *name;
    const char *safetensors_name;
    const char *torch_name;
} description;

static const description table[FSDP_DTYPE_COUNT] = {
    [FSDP_F32] = {4, "fp32", "F32", "float32"},
    [FSDP_BF16] = {2, "bf16", "BF16", "bfloat16"},
    [FSDP_F16] = {2, "fp16", "F16", "float16"},
    [FSDP_F64] = {8, "fp64", "F64", "float64"},
    [FSDP_I32] = {4, "int32", "I32", "int32"},
    [FSDP_I64] = {8, "int64", "I64", "int64"},
    [FSDP_U8] = {1, "uint8", "U8", "uint8"},
    [FSDP_E4M3] = {1, "e4m3", "F8_E4M3", "float8_e4m3fn"},
    [FSDP_E5M2] = {1, "e5m2", "F8_E5M2", "float8_e5m2"},
};

static const description *describe(fsdp_dtype dtype)
{
    static const description unknown = {0, "unknown", "unknown", "unknown"};
    return (size_t)dtype < FSDP_DTYPE_COUNT ? &table[dtype] : &unknown;
}

size_t fsdp_dtype_size(fsdp_dtype dtype)
{
    return describe(dtype)->size;
}

const char *fsdp_dtype_name(fsdp_dtype dtype)
{
    return describe(dtype)->name;
}

const char *fsdp_dtype_safetensors_name(fsdp_dtype dtype)
{
    return describe(dtype)->safetensors_name;
}

fsdp_status fsdp_dtype_parse(const char *name, fsdp_dtype *dtype)
{
    static const char torch_module[] = "torch.";
    const size_t module_bytes = sizeof torch_module - 1;
    const char *plain = strncmp(name, torch_module, module_bytes) == 0 ? name + module_bytes : name;
    for (int i = 0; i < FSDP_DTYPE_COUNT; i++) {
        const description *d = &table[i];
        if (strcmp(plain, d->torch_name) == 0 || strcmp(name, d->name) == 0 || strcmp(name, d->safetensors_name) == 0) {
            *dtype = (fsdp_dtype)i;
            return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_INPUT, "\"%s\" is not an element type; use fp32, bf16, fp16, fp64, int32, int64 or uint8",
                     name);
}
