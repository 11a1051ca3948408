/* The small files of a checkpoint or model folder that are not weights: config.json, the index, the tokenizer's. */
#ifndef CKPT_SAVE_FOLDER_FILES_H
#define CKPT_SAVE_FOLDER_FILES_H

#include <fsdp/dtype.h>

#include "ckpt/load/source.h"

/* config.json in `folder`. `model` is written as it is, with dtype and torch_dtype (its older name) set to what the
 * weights beside it have; NULL (a model of the user's own) gives one that names us and the number of parameters. */
fsdp_status folder_write_config(const char *folder, const json_t *model, fsdp_dtype dtype, int64_t parameters_numel);

/* config.json of `folder`, an object; NULL in *out where there is none. The caller owns it. */
fsdp_status folder_read_config(const char *folder, json_t **out);

/* Copies those tokenizer files that the folder `from` has, or the tokenizer.json that it is; nothing that is not what
 * its name says. NULL, "" and a path that is not there (built-in tokenizers have names, no files): nothing is done.
 * `strange`: the folder is a checkpoint that anyone may have made. Links in it are refused, as is a file that is not
 * what its name says; in a folder that the user named, links are followed, and such a file is left out with a warning.
 */
fsdp_status folder_copy_tokenizer(const char *from, bool strange, const char *to);
/* Whether it has any file of that kind, be it only generation_config.json. */
bool folder_has_tokenizer(const char *folder);

/* Lists the files of this kind that lie in `folder`, with their checksums, in the manifest. */
fsdp_status folder_list_beside(const char *folder, manifest *m);

/* FSDP_ERR_INPUT, naming the file: one that was written with the checkpoint is gone or not as it was, or config.json
 * cannot be of the tensors there. */
fsdp_status folder_check_beside(const ckpt_source *source);

#endif
