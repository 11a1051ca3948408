/* The list of pieces that a rank writes after its data ("rank-00003.part.json"), as rank 0 reads it. */
#ifndef CKPT_SAVE_PART_H
#define CKPT_SAVE_PART_H

#include "ckpt/format/manifest.h"

typedef struct part_piece {
    int tensor, file; /* file: of this part's own list */
    int64_t first, count;
    uint64_t checksum;
} part_piece;

typedef struct part_list {
    int n_files;
    manifest_file *files;
    int n_pieces;
    part_piece *pieces;
} part_list;

/* Lives in `memory`. */
fsdp_status part_list_read(const char *path, arena *memory, part_list *out);

#endif
