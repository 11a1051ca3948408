/* Moves pieces from their files to where slices want them, checking checksums on the way. Which pieces, and what a
 * failure means, is for load.c, verify.c and convert.c to say. */
#ifndef CKPT_LOAD_PIECES_H
#define CKPT_LOAD_PIECES_H

#include <stdatomic.h>

#include "ckpt/load/source.h"
#include "ckpt/format/state.h"

/* A piece and the part of it that a slice wants. */
typedef struct piece_transfer {
    const source_tensor *tensor;
    const source_piece *piece;
    const ckpt_slice *slice; /* NULL: nobody wants it, it is only checked */
    int64_t begin, end;      /* elements of the tensor that go to the slice */

    fsdp_status status; /* how it ended */
    char *message;      /* of a failure; NULL when there was no memory even for that */
    bool damaged;       /* the file is at fault: it cannot be read, or the checksum does not hold */
} piece_transfer;

typedef struct piece_list {
    int n_transfers, capacity;
    piece_transfer *transfers;
} piece_list;

fsdp_status piece_list_add(piece_list *list, const piece_transfer *transfer);
/* Every piece of the source: to be checked, or at least read where it has no checksum. */
fsdp_status piece_list_add_all(piece_list *list, const ckpt_source *source);
void piece_list_free(piece_list *list); /* legal on a zeroed one */

typedef struct piece_config {
    const ckpt_state *state;      /* of the slices; NULL when there are none */
    bool verify;                  /* compare checksums, for which a piece is read whole */
    atomic_uint_fast64_t *digest; /* what values of a base add up to (base.h), this rank's own; NULL: nobody asks */
    bool to_the_end;              /* go on after a failure; otherwise no new piece is begun */
} piece_config;

/* Does all transfers, on several threads when all slices are in host memory. The first failure in the order of the list
 * is returned, with its message. */
fsdp_status piece_list_run(piece_list *list, const piece_config *config);

#endif
