/* The weights of a Hugging Face model folder as one set of named tensors: model.safetensors or pytorch_model.bin, or
 * the parts that the index of either names. Reads no config.json: what a model needs is the model's knowledge. */
#ifndef FORMAT_WEIGHTS_MODEL_FOLDER_H
#define FORMAT_WEIGHTS_MODEL_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

#include "format/weights/safetensors.h"

typedef struct model_folder model_folder;

/* `path` is the folder, or a file of weights by itself (.safetensors, .pt, .pth, .bin). Safetensors come before files
 * of PyTorch, and a single file before an index. Parts that are missing, and names that their part does not have, are
 * listed in one error. Tensors of a part that the index does not name are left out. The caller closes *out. */
fsdp_status model_folder_open(const char *path, model_folder **out);
void model_folder_close(model_folder *folder); /* NULL is legal */

/* Whether a folder has files of weights, by their names. */
bool model_folder_has_weights(const char *path);

size_t model_folder_count(const model_folder *folder);
/* In the order of their names; `index` is below the count. */
const safetensors_tensor *model_folder_at(const model_folder *folder, size_t index);
/* NULL when there is no such tensor. */
const safetensors_tensor *model_folder_find(const model_folder *folder, const char *name);

#endif
