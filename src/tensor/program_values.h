/* What a program keeps in its slab, value by value: who makes it, how large it is and how long it lives. For plans that
 * show it; running a program needs none of this. */
#ifndef TENSOR_PROGRAM_VALUES_H
#define TENSOR_PROGRAM_VALUES_H

#include "tensor/program.h"

typedef enum value_role {
    VALUE_INPUT,      /* a batch's data on the device */
    VALUE_ACTIVATION, /* computed in forward */
    VALUE_RECOMPUTED, /* computed again in backward, or fetched from the host for it */
    VALUE_GRADIENT,   /* of an activation */
    VALUE_WORKSPACE,  /* scratch memory of one instruction */
} value_role;

enum { VALUE_NAME = 96 };

typedef struct program_value {
    value_role role;
    char name[VALUE_NAME]; /* "linear (8, 2048, 4096) bf16" */
    size_t bytes;
    int first, last; /* instructions, inclusive */
} program_value;

/* One entry per piece of the slab; the array is malloc'd. */
fsdp_status program_values(const program *p, program_value **out, int *n);

#endif
