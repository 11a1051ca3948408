/* When units are gathered, released and reduced: a list of events between the instructions of a program, and the place
 * of every gathered unit and full gradient in memory. Follows from where the program uses parameters; the same for
 * every step, so pointers repeat. Pure planning: step/events.c carries it out. */
#ifndef SHARD_PLAN_SCHEDULE_H
#define SHARD_PLAN_SCHEDULE_H

#include <fsdp/shard.h>

#include "shard/build/layout.h"
#include "tensor/program.h"

/* Where a unit's full parameters are. */
typedef enum parameter_residency {
    RESIDENT_ALIAS,    /* replicated: always there, nothing to gather */
    RESIDENT_KEPT,     /* a full copy stays; gathered anew once after each optimizer step */
    RESIDENT_FORWARD,  /* gathered for forward, kept to the end of backward */
    RESIDENT_GATHERED, /* gathered for forward and again for backward */
} parameter_residency;

/* Where kernels write full gradients. */
typedef enum gradient_residency {
    GRADIENT_DIRECT,   /* straight into the accumulator: nothing to reduce */
    GRADIENT_BUFFERED, /* into a buffer that lives until it is reduced */
    GRADIENT_HELD,     /* into a buffer that stays, over micro-batches and programs, until the last is reduced */
} gradient_residency;

typedef enum schedule_action {
    /* In the order in which they happen before one instruction. */
    ACTION_REDUCE,    /* start reducing the unit's gradients */
    ACTION_REDUCED,   /* wait for that; the buffer is free after */
    ACTION_RELEASE,   /* release the full parameters */
    ACTION_REFRESH,   /* offloaded: the copy that is gathered has come from the host's last optimizer step */
    ACTION_GATHER,    /* start gathering */
    ACTION_AWAIT,     /* the full parameters are there */
    ACTION_WIDEN,     /* blocks of 8 bits become the full parameters that kernels read */
    ACTION_PRELOAD,   /* offloaded: the gradients of earlier micro-batches start on their way back */
    ACTION_GRADIENTS, /* a buffer for full gradients is taken */
    ACTION_COUNT
} schedule_action;

typedef struct schedule_event {
    int index; /* before this instruction; program length: at the end */
    schedule_action action;
    int unit;
    bool backward; /* of AWAIT, GATHER and WIDEN: which of the unit's two places */
} schedule_event;

typedef struct schedule_options {
    parameter_residency parameters;
    bool alias; /* one shard is all of it: gathers move nothing and take no memory, but keep their order */
    gradient_residency gradients;
    const bool *held; /* (n_units), or NULL: of BUFFERED gradients, those that have a place like HELD ones */
    size_t param_bytes, grad_bytes; /* of an element */
    int gather_buffers;
    bool forward_prefetch;
    fsdp_prefetch backward_prefetch;
    const bool *offloaded; /* (n_units), or NULL: none */
    /* By unit (n_units), or NULL: as above for all. RESIDENT_ALIAS: a unit that every rank has whole. */
    const parameter_residency *residencies;
    const size_t *unit_param_bytes, *unit_grad_bytes;
    const int *keep_groups; /* ranks that keep the unit among themselves between forward and backward; 0: none do */
    /* In forward and in backward (n_units, n_units): [u][v]: v is gathered when u begins, if it has not been needed
     * before; NULL, or no such u in the program: as gather_buffers says. */
    const bool *prefetches[2];
    size_t sum_bytes; /* of an element of a sum of gradients */
} schedule_options;

typedef struct schedule_unit {
    bool used, trained;
    bool coded; /* gathered as codes where there are any: the program reads nothing else of those weights */
    size_t forward_offset, backward_offset; /* in the gather arena; equal when the unit is gathered once */
    /* Of a segment of 8 bits, for forward and backward, likewise: where its blocks are gathered, and what they become.
     */
    size_t blocks_offset[2], wide_offset[2];
    bool kept; /* a smaller group keeps it after the forward stay: this rank's part lies at kept_offset, likewise */
    size_t kept_offset;
    size_t gradient_offset; /* in the gradient arena; held ones have it in programs that do not train the unit, too */
    size_t landing_offset;  /* offloaded: where this rank's sum lies before it leaves, likewise; the buffer itself when
                               gradients are direct */
} schedule_unit;

/* Something in the gather arena, and the instructions that it stays for. */
typedef struct schedule_life {
    int unit;
    bool backward; /* it comes for backward */
    size_t bytes;
    int first, last;
} schedule_life;

typedef struct schedule {
    schedule_event *events; /* by index, then action */
    int n_events;
    schedule_unit *units; /* (n_units) */
    schedule_life *lives; /* of all but copies that stay */
    int n_lives;
    size_t gather_bytes, gradient_bytes; /* of the arenas */
    int64_t gathers, reductions;         /* collectives a run */
} schedule;

fsdp_status schedule_build(const program *p, const layout *l, const schedule_options *options, schedule **out);
void schedule_free(schedule *s);

/* Bytes of a unit's full gradients, with elements of that size; and of what is gathered of all its segments but that of
 * blocks, each aligned. `coded`: as codes where there are any. */
size_t schedule_gradient_bytes(const layout_unit *u, size_t element_bytes);
size_t schedule_gathered_bytes(const layout_unit *u, size_t element_bytes, bool coded);
/* The place of a unit that stays gathered (RESIDENT_KEPT), the same for all programs: as values or as codes. */
size_t schedule_staying_bytes(const layout_unit *u, size_t element_bytes);
/* Where segment i of the unit begins in what is gathered. */
size_t schedule_segment_offset(const layout_unit *u, int segment, size_t element_bytes, bool coded);
/* Bytes of a segment's elements first .. first+n-1 as they are sent; of codes there is one for every element. */
size_t schedule_moved_bytes(const layout_segment *s, int64_t first, int64_t n, size_t element_bytes, bool coded);
/* Bytes of the codes of a segment that is gathered so; what has none follows them. */
size_t schedule_codes_bytes(const layout_segment *s);
/* The same of what one of `size` ranks keeps, with room for the largest part; segment n_segments: where it ends. */
size_t schedule_kept_offset(const layout_unit *u, int segment, size_t element_bytes, int size);
/* Bytes of its segment of 8 bits: the blocks, and what they become. 0: it has none. */
size_t schedule_blocks_bytes(const layout_unit *u);
size_t schedule_wide_bytes(const layout_unit *u, size_t element_bytes);
/* Room in which an offloaded unit's sum arrives: for the largest shard, so that all ranks make the same. */
size_t schedule_landing_bytes(const layout_unit *u, size_t element);
/* Whether the unit's full gradients have a place of their own, the same in all programs. */
bool schedule_holds(const schedule_options *o, int unit);

#endif
