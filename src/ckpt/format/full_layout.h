/* Where every tensor lies in the files of a full checkpoint or an export. Computed from the list of tensors alone, so
 * all ranks come to the same result and write into the same files without talking. */
#ifndef CKPT_FORMAT_FULL_LAYOUT_H
#define CKPT_FORMAT_FULL_LAYOUT_H

#include "ckpt/format/state.h"

typedef struct full_file {
    char *name;   /* "model-00001-of-00003.safetensors" */
    char *header; /* its length, its text, padding: what the file begins with */
    int64_t header_bytes;
    int64_t bytes; /* of the whole file */
} full_file;

typedef struct full_place {
    int file;       /* -1: this tensor is not written */
    int64_t offset; /* of its data in the file */
} full_place;

typedef struct full_layout {
    fsdp_dtype dtype; /* of the model's tensors; optimizer state has its own */
    int n_files, n_model_files;
    full_file *files;   /* those of the model first */
    full_place *places; /* (n_tensors) */
    int64_t bytes;      /* of all files */
} full_layout;

/* Tensors whose role is in `roles`, in the order of the state, model and optimizer in files of their own; a new file
 * is begun when the present one would grow beyond max_file_bytes. */
fsdp_status full_layout_create(const ckpt_state *state, unsigned roles, fsdp_dtype dtype, int64_t max_file_bytes,
                               full_layout **out);
void full_layout_free(full_layout *l); /* NULL is legal */

fsdp_dtype full_layout_dtype(const full_layout *l, const ckpt_tensor *tensor);

/* Makes the files in `folder`, at their full size, with their headers; the data are holes as yet. */
fsdp_status full_layout_make_files(const full_layout *l, const char *folder);

/* model.safetensors.index.json; nothing when the model is one file. */
fsdp_status full_layout_write_index(const full_layout *l, const ckpt_state *state, const char *folder);

#endif
