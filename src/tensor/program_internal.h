/* The program's insides, shared by program.c (order and gradients), program_offload.c (what waits in host memory),
 * program_memory.c (storages and their packing), program_run.c (execution) and program_values.c (a list of what lies in
 * the slab). Nobody else includes this. */
#ifndef TENSOR_PROGRAM_INTERNAL_H
#define TENSOR_PROGRAM_INTERNAL_H

#include "tensor/program.h"

struct program {
    fsdp_tape *tape; /* owned; all of the below is in its memory unless said otherwise */
    fsdp_tensor *root;
    program_options options;
    bool replays; /* something is computed again in backward */

    instruction *list; /* malloc'd */
    int length, capacity, forward_length;

    storage **storages; /* malloc'd: the planned ones */
    int n_storages, storages_capacity;

    parameter_use *uses; /* malloc'd */
    int n_uses, uses_capacity;

    transfer *transfers; /* malloc'd */
    int n_transfers;
    device *events_of; /* whose events the transfers use; NULL before the first run */
    event *ready;      /* the compute stream has come to where a copy may start */

    size_t slab_bytes, host_bytes;
    size_t cleared_bytes; /* of the slab, from its beginning: zero before the first instruction */
};

/* The storage that a chain of sharing ends at. */
storage *storage_of(storage *s);

storage *program_new_storage(program *p, size_t bytes); /* NULL: out of memory */
storage *program_new_value(program *p, const fsdp_tensor *x); /* likewise: for x, forward's or a replay's */

/* Gives every value its forward storage; views and operations in place share. */
fsdp_status program_place_values(program *p);
/* True when backward finds x where forward left it; false: it is computed again. */
bool program_keeps(const program *p, const fsdp_tensor *x);
/* May output 0 of n use the memory of the input it can overwrite? Decided for forward; replays follow it. */
bool program_shares_in_place(const node *n);
/* Decides what waits in host memory and adds the instructions that move it; between emission and packing. */
fsdp_status program_offload(program *p);
/* Uses of all storages by the instructions. */
void program_note_lifetimes(program *p);
/* Their lifetimes, and offsets of everything. */
fsdp_status program_pack(program *p);

#endif
