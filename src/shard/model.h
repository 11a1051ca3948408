/* A sharded model from inside: what model.c builds, step.c runs, gradients.c closes and state.c reads and writes. */
#ifndef SHARD_MODEL_H
#define SHARD_MODEL_H

#include <fsdp/shard.h>

#include "comm/world.h"
#include "shard/layout.h"
#include "shard/recorded.h"
#include "shard/schedule.h"
#include "shard/strategy.h"
#include "shard/unit.h"
#include "tensor/program.h"

/* Memory that grows when a new program needs more; the contents do not survive that. */
typedef struct model_arena {
    uint8_t *memory;
    size_t bytes;
    bool shared; /* peers read it: from comm_allocate */
} model_arena;

typedef struct planned_program {
    program *program;
    schedule *schedule;
    recorded_work whole[2]; /* recorded where one rank works alone: gradients overwritten; added to */
    stretches stretches;    /* recorded where others take part */
    struct planned_program *next;
} planned_program;

/* Numbers that the device reads and writes during a step. */
typedef struct model_numbers {
    step_numbers step;
    float seed; /* gradient of the loss */
    float report[4];
    double totals[3]; /* sum of squares, loss, count */
    optimizer_numbers optimizer;
} model_numbers;

/* Copies to the device happen later: this many micro-batches may be on their way before the host waits. */
enum { MODEL_HOST_NUMBERS = 64 };

struct fsdp_model {
    fsdp_world *world;
    device *dev;
    stream *compute;
    fsdp_config config;
    int *shard_weights; /* own copy, or NULL */
    const strategy_traits *traits;
    fsdp_module *module;
    module_contents contents;
    layout *layout;

    comm_group *shard_group, *replica_group; /* replica NULL: none; freed unless they are the world */
    bool owns_groups;
    int n_ranks, n_shards, shard_rank;
    bool replicated; /* no_shard over several ranks: every rank holds everything */

    unit *units;
    uint8_t *resident, *shared; /* masters, copies, accumulators: private, and what peers read */
    size_t resident_bytes, shared_bytes;
    float *buffers;
    size_t buffers_bytes;

    fsdp_tape *recording;
    planned_program *programs;
    planned_program *last_training; /* the program of the last fsdp_backward */
    model_arena gather, gradient, slab;

    model_numbers *numbers; /* device memory */
    model_numbers
        *host_numbers; /* (MODEL_HOST_NUMBERS): what the host writes before it is copied, a place a micro-batch */
    double *norm_blocks, *norm_partials;
    size_t norm_blocks_bytes;

    statistics_group statistics;
    peer_group peers;
    int64_t step;         /* optimizer steps begun */
    uint64_t micro_total; /* micro-batches since the start: a random stream each */
    int micro;            /* micro-batches since the last optimizer step */
    int64_t first_sample;
    double expected_count; /* power of two that divides the loss, 0: not agreed yet */
    double loss_scale;
};

/* How this strategy and world schedule a program; `last` counts only where gradients are held. */
schedule_options model_schedule_options(const fsdp_model *m);

/* Nothing but the compute stream takes part in a step: all of it can be recorded as a graph. */
static inline bool model_works_alone(const fsdp_model *m)
{
    return m->n_ranks == 1;
}

/* Finds the program of a recording, or plans it and makes room. The model takes the recording when it is new. */
fsdp_status model_plan(fsdp_model *m, fsdp_tape *recording, fsdp_tensor *root, planned_program **out);

/* The module's parameters laid out in units, as config, n_shards and replicated say; talks to nobody and allocates
 * nothing on the device. */
fsdp_status model_make_layout(fsdp_model *m);

/* Resident memory that a model needs, per kind; for planning without allocating. */
typedef struct resident_sizes {
    size_t master, copy, gradient; /* bytes */
} resident_sizes;
resident_sizes model_resident_sizes(const fsdp_model *m);
size_t model_norm_bytes(const fsdp_model *m); /* of the norm's partial sums */

/* Whether masters are kept as halves (see halves_args). */
static inline bool model_splits_masters(const fsdp_model *m)
{
    return m->dev->halves && m->config.param_dtype == FSDP_BF16;
}

/* The place for the host's numbers of the present micro-batch. */
static inline model_numbers *model_host_numbers(fsdp_model *m)
{
    return &m->host_numbers[m->micro_total % MODEL_HOST_NUMBERS];
}

/* Device to host and back, waiting. */
fsdp_status model_fetch(fsdp_model *m, void *host, const void *dev, size_t bytes);
fsdp_status model_put(fsdp_model *m, void *dev, const void *host, size_t bytes);

/* gradients.c. After the last micro-batch: what is still under way is waited for, replicas are summed, and the totals
 * {sum of squares, loss, count} over all ranks stand in numbers->totals. */
fsdp_status model_finish_gradients(fsdp_model *m);

/* What the optimizer works on: one flat range a unit. */
typedef struct model_slice {
    const char *unit;
    float *parameter, *gradient;
    buffer copy;    /* p NULL: the master is what is gathered */
    uint16_t *rest; /* low halves; parameter is then NULL */
    int64_t n;
    int64_t decay_end; /* elements before it take weight decay */
} model_slice;
int model_slices(const fsdp_model *m); /* units with something to train on this rank */
model_slice model_slice_at(const fsdp_model *m, int index);
/* Before the optimizer writes slice `index`: peers have read what they gathered. */
fsdp_status model_before_update(fsdp_model *m, int index);
/* After the optimizer: a new step begins. */
void model_after_update(fsdp_model *m);

/* state.c. This rank's parts of all parameters, in a fixed order: pieces of `parameter`, elements first..first+n-1. */
typedef struct model_piece {
    fsdp_parameter *parameter;
    int64_t first, n;
    const unit_segment *part; /* this rank's, in which it lies */
    int slice;                /* of the optimizer, -1 when frozen */
    int64_t at;               /* element within the part, and the slice */
    bool writes;              /* this rank's copy is the one to save */
} model_piece;
int model_pieces(const fsdp_model *m);
model_piece model_piece_at(const fsdp_model *m, int index);
/* Masters of elements first .. first+n-1 of a piece, to and from host memory. */
fsdp_status model_read_piece(fsdp_model *m, const model_piece *p, int64_t first, int64_t n, float *out);
fsdp_status model_write_piece(fsdp_model *m, const model_piece *p, int64_t first, int64_t n, const float *in);

/* Fills the parameters from a source of named values, piece by piece, and refreshes what is gathered. */
typedef fsdp_status (*parameter_source)(void *context, const fsdp_parameter *p, int64_t first, int64_t n, float *out);
fsdp_status model_fill(fsdp_model *m, parameter_source source, void *context);
/* The values that training starts with: functions of the seed and the parameters' names. */
fsdp_status model_initialize(fsdp_model *m);
/* The low-precision copies follow the masters. */
fsdp_status model_refresh_copies(fsdp_model *m);

#endif
