/* The small files of a model folder that are not weights: config.json and the tokenizer's. */
#ifndef CKPT_FOLDER_FILES_H
#define CKPT_FOLDER_FILES_H

#include <fsdp/dtype.h>

#include "base/json.h"

/* config.json in `folder`. `model` is written as it is, with torch_dtype set to what the weights beside it have; NULL
 * (a model of the user's own) gives one that names us and the number of parameters. */
fsdp_status folder_write_config(const char *folder, const json_t *model, fsdp_dtype dtype, int64_t parameters_numel);

/* config.json of `folder`, or NULL in *out where there is none. The caller owns it. */
fsdp_status folder_read_config(const char *folder, json_t **out);

/* Copies those tokenizer files that the folder `from` has, or the tokenizer.json that it is. NULL, "" and a path that
 * is not there (built-in tokenizers have names, no files): nothing is done. */
fsdp_status folder_copy_tokenizer(const char *from, const char *to);

#endif
