/* Reader of safetensors files: a memory mapping whose header is checked completely before anything is used. It knows
 * names, types and bytes; what the tensors mean, and sets of several files, are for others (model_folder.h).
 *
 * The format: 8 bytes header length (little endian), a JSON object {name: {"dtype", "shape", "data_offsets": [begin,
 * end]}, "__metadata__": {text: text}}, then the data. Refused: a header that does not fit its file or is larger than
 * 100 MB, duplicate names, shapes whose product overflows or does not give the stated bytes, offsets out of bounds,
 * tensors that overlap, bytes that belong to none. Element types that we cannot compute with are listed by name and
 * refused only when read. Tensors need not be aligned in the file. */
#ifndef FORMAT_WEIGHTS_SAFETENSORS_H
#define FORMAT_WEIGHTS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/status.h>

#define SAFETENSORS_MAX_DIMS 8

typedef struct safetensors safetensors;

typedef struct safetensors_tensor {
    const char *name;
    const char *path;       /* the file, for messages */
    const char *dtype_name; /* as the file spells it: "BF16", "BOOL" */
    fsdp_dtype dtype;       /* FSDP_DTYPE_COUNT: none of ours, see dtype_name */
    int n_dims;             /* 0: a scalar */
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t numel;
    const uint8_t *data; /* little endian, any alignment; lives as long as the file is open */
    size_t bytes;
    size_t offset; /* of the data in the file, for who reads it there */
    /* (n_dims) elements from one index to the next; NULL: row-major. Files of PyTorch may have it otherwise
     * (torch/torch_file.h), and then only safetensors_read and safetensors_gather find an element. */
    const int64_t *strides;
} safetensors_tensor;

/* The caller closes *out. */
fsdp_status safetensors_open(const char *path, safetensors **out);
/* The same over memory that the caller keeps until close; `name` stands for the path in messages. */
fsdp_status safetensors_open_memory(const char *name, const void *data, size_t bytes, safetensors **out);
void safetensors_close(safetensors *file); /* NULL is legal */

size_t safetensors_count(const safetensors *file);
/* In the order of the data in the file; `index` is below the count. */
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index);
/* NULL when the file has no such tensor. */
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);
/* The same, as an error that names the file. */
fsdp_status safetensors_get(const safetensors *file, const char *name, const safetensors_tensor **out);

/* Elements first .. first + n - 1 of the tensor, flat, as `dtype`. Among fp64, fp32, bf16 and fp16 values are rounded
 * to nearest even (by way of fp32 where neither end is fp32); other types are read only as what they are. */
fsdp_status safetensors_read(const safetensors_tensor *tensor, int64_t first, int64_t n, fsdp_dtype dtype, void *out);
fsdp_status safetensors_read_f32(const safetensors_tensor *tensor, int64_t first, int64_t n, float *out);
/* From I64, I32 or U8. */
fsdp_status safetensors_read_i64(const safetensors_tensor *tensor, int64_t first, int64_t n, int64_t *out);

/* Elements first .. first + n - 1 in row-major order, as the file has them, of a tensor with strides. The caller has
 * checked that they are within it. */
void safetensors_gather(const safetensors_tensor *tensor, int64_t first, int64_t n, void *out);

/* "[2, 3]" into `text`, cut to fit; returns `text`. */
const char *safetensors_shape_text(int n_dims, const int64_t *shape, char *text, size_t bytes);

#endif
