/* The manifest of a checkpoint directory (checkpoint.json) and its commit marker: which tensors there are, and in which
 * pieces they lie in which files. docs/checkpoint-format.md describes both. Reads no tensor data. */
#ifndef CKPT_FORMAT_MANIFEST_H
#define CKPT_FORMAT_MANIFEST_H

#include "base/arena.h"
#include "ckpt/format/state.h"

#define MANIFEST_VERSION 1
#define MANIFEST_NAME "checkpoint.json"
#define MARKER_NAME "COMMIT"

/* Counts of steps, samples and batches stay below this, so that sums and products of theirs cannot overflow. */
#define MANIFEST_MAX_COUNT ((int64_t)1 << 48)
#define MANIFEST_MAX_WORLD (1 << 20)

/* A piece has one checksum. Slices are cut into pieces of at most this many elements (16 MiB), so that a reader who
 * wants a part of a tensor need not read all of it to be sure. */
#define MANIFEST_PIECE_NUMEL ((int64_t)4 << 20)

typedef struct manifest_file {
    const char *name; /* within the directory */
    int64_t bytes;
} manifest_file;

/* A small file that is not tensor data: config.json, the index, the tokenizer's. */
typedef struct manifest_beside {
    const char *name;
    int64_t bytes;
    uint64_t checksum; /* XXH64 of all of it */
} manifest_beside;

typedef struct manifest_piece {
    int file;
    int64_t first, count;
    uint64_t checksum; /* XXH64 of its bytes in the file */
} manifest_piece;

typedef struct manifest_tensor {
    const char *name;
    ckpt_role role;
    int n_dims;
    int64_t shape[CKPT_MAX_DIMS];
    int64_t numel;
    int n_pieces;
    manifest_piece *pieces; /* by first; kinds sharded and full: they tile the tensor */
} manifest_tensor;

typedef struct manifest {
    arena *memory; /* of everything below but the JSON */
    fsdp_checkpoint_kind kind;
    int64_t step;
    uint64_t save;   /* which save wrote it, the same on all ranks; 0: a manifest of an earlier version */
    int64_t commit;  /* commits in its directory count from 1: the highest is the newest; 0: of an earlier version */
    const char *run; /* the run that wrote it; "": not known */
    int world_size;
    int rank;                                   /* kind local: whose; else -1 */
    const char *strategy, *created, *tokenizer; /* "" when not known */
    int n_files;
    manifest_file *files;
    int n_beside; /* -1: a manifest from before they were listed */
    manifest_beside *beside;
    int n_tensors;
    manifest_tensor *tensors;
    json_t *extra;           /* object */
    const uint8_t *autotune; /* NULL: none */
    size_t autotune_bytes;
} manifest;

fsdp_status manifest_create(manifest **out); /* empty; rank -1 */
void manifest_free(manifest *m);             /* NULL is legal */

/* False for what cannot be the name of a file in the directory. */
bool manifest_is_file_name(const char *name);

/* Checks everything that does not need the other files; `name` stands for the path in messages. */
fsdp_status manifest_parse(const char *name, const char *text, size_t bytes, manifest **out);
/* The caller frees *text. */
fsdp_status manifest_print(const manifest *m, char **text, size_t *bytes);

/* Sorts pieces, and refuses (FSDP_ERR_STATE as `status` says) overlaps and holes, naming the tensor. */
fsdp_status manifest_check_pieces(const char *name, fsdp_status refusal, manifest *m);

/* Both files of a directory: write puts the marker last; read refuses a directory without marker, or whose marker is of
 * another manifest, and files that are absent or have another size. */
fsdp_status manifest_write(const char *folder, const manifest *m);
fsdp_status manifest_read(const char *folder, manifest **out);

/* The name of a piece's tensor in its file. `text` has room for strlen(name) + 64 bytes. */
const char *manifest_key(fsdp_checkpoint_kind kind, ckpt_role role, const char *name, int64_t first, char *text,
                         size_t bytes);

#endif
