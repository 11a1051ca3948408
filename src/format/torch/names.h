/* The names that PyTorch's files may use, and what each is to us. A pickle that asks for any other is refused. */
#ifndef FORMAT_TORCH_NAMES_H
#define FORMAT_TORCH_NAMES_H

#include <fsdp/dtype.h>

#include "format/torch/pickle.h"

enum {
    TORCH_OTHER, /* kept as it stands, read by nobody */
    TORCH_TENSOR_V1,
    TORCH_TENSOR_V2,
    TORCH_TENSOR_V3,
    TORCH_PARAMETER,
    TORCH_SIZE,
    TORCH_ELEMENTS, /* an element type or a storage of it: TORCH_ELEMENTS + index into torch_elements */
};

typedef struct torch_element {
    const char *dtype;   /* "torch.float32" */
    const char *storage; /* "torch.FloatStorage"; NULL: has none */
    const char *name;    /* as safetensors files spell it */
    fsdp_dtype ours;     /* FSDP_DTYPE_COUNT: none */
    int bytes;
} torch_element;

extern const pickle_global torch_globals[];

/* NULL: the value is no element type and no storage class. */
const torch_element *torch_element_of(const pickle_value *value);
/* The row of one of our types: fp32, bf16, fp16 or fp64. */
const torch_element *torch_element_find(fsdp_dtype dtype);

#endif
