/* Where tensors come from: a checkpoint of any kind, PyTorch's included, a Hugging Face folder, or a single file of
 * weights, seen alike as named tensors in pieces. Headers are read and checked at once, data when it is asked for: a
 * little by source_read from the mapping, much by pieces.h. */
#ifndef CKPT_LOAD_SOURCE_H
#define CKPT_LOAD_SOURCE_H

#include "ckpt/format/manifest.h"
#include "format/weights/safetensors.h"

typedef struct source_piece {
    int64_t first, count;             /* elements of the tensor */
    const safetensors_tensor *stored; /* what holds them */
    int64_t at;                       /* element of `stored` where they begin */
    bool has_checksum;
    uint64_t checksum;
} source_piece;

typedef struct source_tensor {
    const char *name;
    ckpt_role role; /* plain folders do not tell: parameter */
    int n_dims;
    int64_t shape[CKPT_MAX_DIMS];
    int64_t numel;
    int n_pieces;
    source_piece *pieces; /* by first */
} source_tensor;

typedef struct ckpt_source ckpt_source;

/* The caller closes *out. */
fsdp_status source_open(const char *path, ckpt_source **out);
void source_close(ckpt_source *s); /* NULL is legal */

const char *source_path(const ckpt_source *s);
const manifest *source_manifest(const ckpt_source *s); /* NULL: no checkpoint of ours */
const char *source_form(const ckpt_source *s);         /* "sharded", "model folder", "PyTorch checkpoint" */
/* What PyTorch's checkpoints say of their optimizer: steps done and the learning rate; false: they have none. */
bool source_optimizer(const ckpt_source *s, int64_t *steps, double *lr);
/* Adds n tensors of another source, listed by the caller under any names; on success `other` is closed with s. The
 * names live as long as s. */
fsdp_status source_adopt(ckpt_source *s, ckpt_source *other, const source_tensor *tensors, int n);
/* The average of the weights in the place of the weights; FSDP_ERR_INPUT when there is none. */
fsdp_status source_take_average(ckpt_source *s);
int source_count(const ckpt_source *s);
const source_tensor *source_at(const ckpt_source *s, int index); /* checkpoints: in the order of the manifest */
/* NULL when absent. A plain folder does not tell parameters from buffers, so neither does this. */
const source_tensor *source_find(const ckpt_source *s, ckpt_role role, const char *name);
bool source_has_role(const ckpt_source *s, ckpt_role role);

/* Where a piece lies in its file (stored->path), and how long it is there. */
int64_t source_piece_offset(const source_piece *piece);
int64_t source_piece_bytes(const source_piece *piece);
/* FSDP_ERR_INPUT, naming file and tensor: the piece's bytes are not those that were written. */
fsdp_status source_checksum_error(const source_tensor *tensor, const source_piece *piece);

/* Elements first .. first + n - 1 in fp32, from however many pieces. */
fsdp_status source_read(const source_tensor *tensor, int64_t first, int64_t n, float *out);

#endif
