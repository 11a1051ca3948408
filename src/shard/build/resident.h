/* The memory that a model holds between steps: this rank's parts of all units, buffers, and the numbers of norm,
 * scalars and 8-bit figures. */
#ifndef SHARD_BUILD_RESIDENT_H
#define SHARD_BUILD_RESIDENT_H

#include "shard/model.h"

/* Of the units, per kind. */
typedef struct resident_sizes {
    size_t master, copy, gradient; /* bytes on the device */
    size_t whole, half;            /* of one 32-bit and of one 16-bit number for every trained element there */
    size_t shared;                 /* of these, what peers gather: copies, and masters that have none */
    size_t host_gradient;          /* accumulators of offloaded units, in host memory */
    size_t host_whole, host_half;  /* of one 32-bit and of one 16-bit number for each of their trained elements */
    size_t host_low;               /* low-precision copies that their update writes */
    size_t host;                   /* the same with their masters, and what the copies are made from */
} resident_sizes;

/* For planning, too: they allocate nothing. */
resident_sizes resident_measure(const fsdp_model *m);
size_t resident_norm_bytes(const fsdp_model *m);    /* of the norm's partial sums */
size_t resident_figures_bytes(const fsdp_model *m); /* of what shadow steps measure */

/* Makes the units and places their parts from m->shared, m->resident and m->host on, of which nothing is read; and
 * undoes it. */
fsdp_status resident_place_units(fsdp_model *m);
void resident_forget_units(fsdp_model *m);

/* Allocates all of it and places everything; what failed half way is released alike. */
fsdp_status resident_allocate(fsdp_model *m);
void resident_release(fsdp_model *m);

#endif
