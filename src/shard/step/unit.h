/* A unit at run time: a state machine for its parameters and one for its gradients, its resident memory, and its
 * collectives. What happens when is the schedule's; this carries it out and refuses every other order. */
#ifndef SHARD_STEP_UNIT_H
#define SHARD_STEP_UNIT_H

#include "comm/comm.h"
#include "shard/build/layout.h"

typedef enum parameter_state { PARAMETERS_SHARDED, PARAMETERS_GATHERING, PARAMETERS_FULL } parameter_state;
typedef enum gradient_state { GRADIENTS_NONE, GRADIENTS_FULL, GRADIENTS_REDUCING, GRADIENTS_SHARDED } gradient_state;

/* This rank's part of one segment, resident between steps. Elements: the shard's, or all when the unit is replicated.
 * Of an offloaded unit master, gradient and host_copy are host memory, and copy is device memory of its own. */
typedef struct unit_segment {
    const layout_segment *layout;
    int64_t first, numel; /* the part: elements first .. first+numel-1 of the segment */
    float *master;        /* fp32 parameters; NULL when they are kept as halves, or frozen and not of fp32 */
    uint16_t *low;        /* the masters' low halves (device.halves); the high ones are the copy */
    void *copy;           /* what is gathered: the parameters in param_dtype, master itself when that is fp32; or blocks
                             of 8 bits */
    uint8_t *codes;       /* its weights in 8 bits, element by element, which are gathered in their place; NULL: none */
    void *host_copy;      /* offloaded: where the host writes what `copy` is refreshed from; NULL: not offloaded */
    void *gradient;       /* accumulator of gradient_dtype; NULL when frozen */
    int64_t *counts;      /* elements of each shard, for collectives; of 8 bits: bytes */
    int64_t *keep_counts; /* the same of what a smaller group keeps between forward and backward */
    int64_t *rest_counts; /* elements of each shard that have no codes */
    fsdp_dtype dtype;     /* of copy, or of what its blocks become: param_dtype */
    fsdp_dtype gradient_dtype;
} unit_segment;

/* Element `index` of a gradient, which lies at `gradient`. */
static inline void *unit_gradient_at(const unit_segment *s, const void *gradient, int64_t index)
{
    return (uint8_t *)(uintptr_t)gradient + (size_t)index * fsdp_dtype_size(s->gradient_dtype);
}

/* Where what is gathered goes: full parameters (param_dtype, one segment after another; of a coded one the codes, then
 * what has none), and blocks of 8 bits. */
typedef struct unit_places {
    uint8_t *memory, *blocks;
} unit_places;

typedef struct unit {
    const layout_unit *layout;
    int n_segments;
    unit_segment segments[LAYOUT_SEGMENTS];
    parameter_state parameters;
    gradient_state gradients;
    int64_t gradient_bytes; /* of the buffer for full gradients; 0: kernels write into the accumulator */
    bool stale;             /* replicated parameters that the optimizer has changed since they were gathered */
    bool coded;             /* weights that have codes are, or were last, gathered as those */
    bool early;             /* the gather under way is one of early.h, */
    unit_places early_at;   /* to this place */
    bool replicating;       /* the sum over replicas of this step has been started */
    comm_request gather, keep, reduce, replicate; /* keep: gathers what a smaller group keeps */
    comm_span gather_spans[2 * LAYOUT_SEGMENTS], keep_spans[LAYOUT_SEGMENTS], reduce_span, replicate_span;
} unit;

/* The legal moves; any other is FSDP_ERR_STATE naming the unit and both states. Emits HOOK_UNIT. */
fsdp_status unit_move_parameters(unit *u, parameter_state to);
fsdp_status unit_move_gradients(unit *u, gradient_state to);

/* Gathering: start, wait, release. `coded`: as codes where there are any. */
fsdp_status unit_gather(unit *u, comm_group *g, unit_places to, bool coded, int64_t step, stream *s);
fsdp_status unit_await(unit *u, fsdp_dtype dtype, uint8_t *memory, stream *s);
fsdp_status unit_release(unit *u);
/* The blocks of 8 bits at `blocks` (NULL: this rank's, which are all of them) become full parameters at `wide`. */
fsdp_status unit_widen(unit *u, const uint8_t *blocks, uint8_t *wide, device *d, stream *s);
/* A smaller group keeps what was gathered: this rank its part, at `kept` (one segment after another, as large as
 * schedule_kept_offset says); and gathers it again from there. */
fsdp_status unit_keep(unit *u, comm_group *g, unit_places from, uint8_t *kept, device *d, stream *s);
fsdp_status unit_gather_kept(unit *u, comm_group *g, uint8_t *kept, unit_places to, int64_t step, stream *s);
/* Points the parameters, except those of 8 bits, at resident memory that holds all of them. */
void unit_point_at_copy(unit *u, fsdp_dtype dtype);

/* Points the gradients at `memory` (grad_dtype, the trainable segment); NULL: at the accumulator. */
fsdp_status unit_take_gradients(unit *u, fsdp_dtype dtype, uint8_t *memory);
/* Sums the full gradients at `memory` over the group into `sum` (added to it when `add`): each rank its shard, or
 * everything everywhere when it holds the unit whole. */
fsdp_status unit_reduce(unit *u, comm_group *g, fsdp_dtype dtype, uint8_t *memory, void *sum, bool add, int64_t step,
                        stream *s);
/* Hybrid: sums over the groups, in place, what each group has summed. */
fsdp_status unit_replicate(unit *u, comm_group *g, void *sum, int64_t step, stream *s);
fsdp_status unit_reduced(unit *u, stream *s);

#endif
