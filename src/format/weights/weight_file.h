/* Named tensors in one file, of safetensors or of torch.save: told apart by the first bytes, and seen alike. */
#ifndef FORMAT_WEIGHTS_WEIGHT_FILE_H
#define FORMAT_WEIGHTS_WEIGHT_FILE_H

#include "format/weights/safetensors.h"

typedef struct weight_file weight_file;

/* The caller closes *out. */
fsdp_status weight_file_open(const char *path, weight_file **out);
void weight_file_close(weight_file *file); /* NULL is legal */

size_t weight_file_count(const weight_file *file);
/* `index` is below the count. */
const safetensors_tensor *weight_file_at(const weight_file *file, size_t index);
/* NULL when the file has no such tensor. */
const safetensors_tensor *weight_file_find(const weight_file *file, const char *name);

#endif
