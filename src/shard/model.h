/* A sharded model from inside: what build/ makes, plan/ schedules, step/ runs and values.c reads and writes. */
#ifndef SHARD_MODEL_H
#define SHARD_MODEL_H

#include <fsdp/shard.h>

#include "base/record/memory_use.h"
#include "comm/world.h"
#include "shard/build/layout.h"
#include "shard/step/recorded.h"
#include "shard/step/stream_laps.h"
#include "shard/plan/schedule.h"
#include "shard/build/sharding.h"
#include "shard/build/strategy.h"
#include "shard/step/unit.h"
#include "tensor/program.h"

/* Memory that grows when a new program needs more; the contents do not survive that, except gradients that are held. */
typedef struct model_arena {
    uint8_t *memory;
    size_t bytes;
    memory_kind kind;
    bool shared; /* peers read it: from comm_allocate */
    memory_use use;
} model_arena;

/* All that a program depends on apart from the configuration. */
typedef struct program_key {
    uint64_t signature; /* of the recording */
    int loss;           /* tensor of which gradients are computed, -1: none are */
} program_key;

typedef struct planned_program {
    program_key key;
    program *program;
    schedule *schedule;
    recorded_work whole; /* where one rank works alone */
    bool recordable;     /* as a whole: nothing in it must stay outside of graphs */
    int turn;            /* the first instruction of backward */
    const char *phase;   /* "forward" or "backward", while it runs and trains */
    inner_mark turns[2]; /* of `whole`: for the first micro-batch of a step, and for later ones */
    stretches stretches; /* where others take part */
    struct planned_program *next;
} planned_program;

/* Values that the device reads and writes during a step. */
typedef struct model_scalars {
    step_scalars step;
    float seed; /* gradient of the loss */
    float report[4];
    double totals[3]; /* sum of squares, loss, count */
    optimizer_scalars optimizer;
} model_scalars;

/* Copies to the device happen later: this many micro-batches may be on their way before the host waits. */
enum { MODEL_HOST_SCALARS = 64 };

/* Who carries what the close of a step exchanges between ranks, where that is not comm: the step is only being written
 * down (plan/script.h), on a device that computes nothing. Bytes are those that this rank receives. */
typedef struct step_carrier {
    fsdp_status (*sum)(void *context, int64_t n, size_t element); /* over all ranks; whoever called waits for it */
    /* The unit's directions, or what they became, go from every rank to every other; and whoever called waits. */
    fsdp_status (*gather)(void *context, int unit, bool results, int64_t n, int64_t received, size_t element);
    fsdp_status (*await)(void *context, int unit, bool results);
    fsdp_status (*gather_early)(void *context, int unit);    /* of early.h */
    fsdp_status (*await_reduction)(void *context, int unit); /* that backward has left under way */
    void *context;
} step_carrier;

struct fsdp_model {
    fsdp_world *world;
    const step_carrier *carrier; /* NULL: comm */
    device *dev;
    stream *compute;
    stream_laps *laps; /* NULL: the device has no time of its own */
    fsdp_config config;
    int *shard_weights; /* (n_shard_weights): own copy, or NULL */
    int n_shard_weights;
    fsdp_module *module;
    module_contents contents;
    layout *layout;

    int rank, n_ranks, ranks_per_node;

    unit *units;
    /* (n_units) each, before there are units: */
    int n_policies;
    fsdp_unit_policy *policies;
    unit_sharding *shardings;
    parameter_residency *residencies;
    size_t *param_bytes, *grad_bytes; /* of an element */
    bool *held;                       /* full gradients have a place of their own until reduced */
    int *keep_groups;           /* ranks that keep the unit among themselves between forward and backward; 0: none do */
    bool *prefetches[2];        /* forward, backward: (n_units, n_units), see schedule_options; NULL: no lists */
    bool *offloaded;            /* (n_units): masters, moments and gradients of the unit lie in host memory */
    uint8_t *resident, *shared; /* masters, copies, accumulators: private, and what peers read */
    uint8_t *host;              /* those of offloaded units */
    size_t resident_bytes, shared_bytes, host_bytes;
    struct offload *offload; /* NULL: no unit is offloaded */
    float *buffers;
    size_t buffers_bytes;
    fp8_figures *figures; /* of shadow steps: one a layer; NULL: none are made */
    size_t figures_bytes;
    float *scales; /* of weights that are kept as codes; NULL: none are */
    size_t scales_bytes;

    fsdp_tape *recording;
    planned_program *programs;
    planned_program *last_training;              /* the program of the last fsdp_backward */
    model_arena gather, gradient, slab, waiting; /* the last: activations in host memory */
    stream *transfers;                           /* their copies; NULL before there are any */

    model_scalars *scalars; /* device memory */
    model_scalars
        *host_scalars; /* (MODEL_HOST_SCALARS): what the host writes before it is copied, a place a micro-batch */
    double *norm_blocks, *norm_part; /* the latter: one sum that is on its way to the host */
    double *unit_squares;            /* (n_units) where units are offloaded */
    size_t norm_blocks_bytes;

    statistics_group statistics;
    peer_group peers;
    int64_t step;          /* optimizer steps begun */
    uint64_t micro_total;  /* micro-batches since the start: a random stream each */
    int micro;             /* micro-batches since the last optimizer step */
    int64_t first_sample;  /* set by fsdp_set_position; -1: not set */
    int64_t counted_rows;  /* set by fsdp_set_counted_rows; -1: all rows count */
    double expected_count; /* power of two that divides the loss, 0: not agreed yet */
    double loss_scale;
    bool settled;          /* model_settle_gradients has run in this step */
    float gradient_factor; /* what the accumulated sums are multiplied by to be gradients; 0: not known yet */
    bool memory_noted;     /* what its memory is for was told */
    bool autotune_shared;  /* what the device chose by timing is the same on all ranks */
    bool base_known;       /* the frozen weights beside adapters are as a file has them, */
    uint64_t base_digest;  /* which has this digest (ckpt/load/base.h), */
    char *base_name;       /* and lies here; NULL: not known */
};

/* How this strategy and world schedule a program; `last` counts only where gradients are held. */
schedule_options model_schedule_options(const fsdp_model *m);
/* How its programs are compiled. */
program_options model_program_options(const fsdp_model *m, bool backward);

/* What one run of a program does differently from another: all that its work, recorded or not, may depend on. */
typedef struct micro_batch {
    bool more;    /* earlier micro-batches of this step have left gradients */
    bool last;    /* of the step; told apart from the others only where something depends on it */
    bool nothing; /* no instructions run: full gradients are zero */
} micro_batch;

/* Full gradients are kept over the micro-batches of a step and reduced after the last. A rank that works alone has no
 * reductions to save: each micro-batch is added to the fp32 sum. */
static inline bool model_holds_gradients(const fsdp_model *m)
{
    return !m->config.sync_each_micro_batch && m->n_ranks > 1;
}

/* Nothing but the compute stream takes part in a step: all of it can be recorded as a graph. */
static inline bool model_works_alone(const fsdp_model *m)
{
    return m->n_ranks == 1 && !m->offload;
}

/* Every rank holds all of the unit. */
static inline bool model_has_whole(const fsdp_model *m, int index)
{
    return m->shardings[index].whole;
}

/* What is resident is what is used: gathers move nothing. */
static inline bool model_has_all_at_hand(const fsdp_model *m, int index)
{
    return m->shardings[index].n_shards == 1 || m->shardings[index].whole;
}

/* Every shard of the unit is held by several groups, whose gradients are summed. */
static inline bool model_has_replicas(const fsdp_model *m, int index)
{
    return m->shardings[index].n_replicas > 1;
}

/* Elements of a segment. */
typedef struct element_range {
    int64_t first, n;
} element_range;

/* What this rank holds of a segment of the unit. */
static inline element_range model_part(const fsdp_model *m, int index, const layout_segment *s)
{
    int shard = m->shardings[index].whole ? -1 : m->shardings[index].shard_rank;
    return (element_range){shard < 0 ? 0 : s->cuts[shard], layout_shard_numel(s, shard)};
}

/* What this rank counts in sums over all ranks, so that each element counts once: its shard, or the one that it would
 * have of a unit that it holds whole; nothing where an earlier group has the same. */
static inline element_range model_counted(const fsdp_model *m, int index, const layout_segment *s)
{
    const unit_sharding *h = &m->shardings[index];
    int64_t first = s->cuts[h->shard_rank];
    return (element_range){first, h->replica_rank == 0 ? s->cuts[h->shard_rank + 1] - first : 0};
}

/* What memory was taken for; of a step that is only written down none was. */
static inline void model_note_memory(const fsdp_model *m, memory_use use, int64_t bytes)
{
    if (!m->carrier)
        memory_use_note(use, bytes);
}

/* Graphs hold pointers and chosen kernels: when those change, they are recorded anew. */
void model_forget_graphs(fsdp_model *m);

/* autotune.c. Collective, after every optimizer step; does its work after the first: what rank 0's device chose by
 * timing is what all take. */
fsdp_status model_share_autotune(fsdp_model *m);

void planned_program_free(fsdp_model *m, planned_program *p);
void model_release_arena(fsdp_model *m, model_arena *a); /* an empty one is legal */

/* The module's parameters laid out in units, as config, rank, n_ranks and ranks_per_node say; calls no other rank and
 * allocates nothing on the device. */
fsdp_status model_make_layout(fsdp_model *m);

/* 8-bit products that were asked for and that no layer has, be it for its shape or for fp8_skip, are FSDP_ERR_INPUT,
 * not bf16 without a word. */
fsdp_status model_check_fp8(const fsdp_model *m, const fsdp_tape *recording);

/* Whether masters of a unit on the device are kept as halves (see halves_args). */
static inline bool model_splits_masters(const fsdp_model *m, fsdp_dtype dtype)
{
    return m->dev->halves && dtype == FSDP_BF16;
}

/* Some unit computes in fp16: the loss is scaled. */
static inline bool model_scales_loss(const fsdp_model *m)
{
    for (int i = 0; i < m->n_policies; i++) {
        if (m->policies[i].param_dtype == FSDP_F16)
            return true;
    }
    return false;
}

/* The place for the host's numbers of the present micro-batch. */
static inline model_scalars *model_host_scalars(fsdp_model *m)
{
    return &m->host_scalars[m->micro_total % MODEL_HOST_SCALARS];
}

/* fp8_check.c. A layer that fell back, by the name of its weight; names that the model lacks mean nothing. NULL: none
 * has, so far. */
void model_fp8_fall_back(fsdp_model *m, const char *name);
/* step.c. Whether a call with this recording can take its gradients. */
fsdp_status model_check_loss(const char *call, const fsdp_tape *t, fsdp_loss loss);
/* step.c. Runs a recording of fsdp_begin_shadow and forgets its gradients: the step has not begun. */
fsdp_status model_run_shadow(fsdp_model *m, fsdp_tape *t, fsdp_tensor *loss);

/* Device to host and back, waiting. */
fsdp_status model_fetch(fsdp_model *m, void *host, const void *dev, size_t bytes);
fsdp_status model_put(fsdp_model *m, void *dev, const void *host, size_t bytes);

/* gradients.c. After the last micro-batch, which there must have been: every gradient of the step is reduced, also of
 * units that the last micro-batch did not use, and summed over replicas. Not recorded: it depends on what each
 * micro-batch used. Once a step; further calls do nothing. No micro-batch may follow before the optimizer's step. */
fsdp_status model_settle_gradients(fsdp_model *m);
/* The same, but the last reductions of backward may still be under way. */
fsdp_status model_start_settling(fsdp_model *m);
/* All gradients are reduced whose reduction is under way. */
fsdp_status model_await_gradients(fsdp_model *m);
/* The same, and the totals {sum of squares, loss, count} over all ranks are in scalars->totals. */
fsdp_status model_finish_gradients(fsdp_model *m);
/* Refuses a micro-batch after the gradients of the step have been settled. */
fsdp_status model_may_accumulate(const fsdp_model *m);
/* Sum of squares of n elements of a gradient, added to *out; cut and summed the same way by every strategy. */
fsdp_status model_add_squares(fsdp_model *m, const void *gradient, int64_t n, double *out, bool add, stream *s);
/* Sum of squares of what this rank counts of a unit's gradient, which lies at `gradient`. */
fsdp_status model_squares(fsdp_model *m, int index, const void *gradient, double *out, bool add, stream *s);

/* What the optimizer works on: one flat range a unit. */
typedef struct model_range {
    const char *unit;
    float *parameter;
    void *gradient;    /* of the configuration's gradient_dtype */
    buffer copy;       /* p NULL: the master is what is gathered */
    uint16_t *low;     /* low halves; parameter is then NULL */
    int64_t first, n;  /* elements of the unit's trained segment */
    int64_t decay_end; /* of the range: elements before it take weight decay */
    bool offloaded;    /* all of it is host memory */
} model_range;
int model_ranges(const fsdp_model *m); /* units with something to train on this rank */
int model_range_unit(const fsdp_model *m, int index);
int model_unit_range(const fsdp_model *m, int which); /* -1: nothing of it is trained */
model_range model_range_at(const fsdp_model *m, int index);
/* Before the optimizer writes slice `index`: peers have read what they gathered. */
fsdp_status model_before_update(fsdp_model *m, int index);
/* After the optimizer: a new step begins. */
void model_after_update(fsdp_model *m);

/* state.c. This rank's parts of all parameters, in a fixed order: pieces of `parameter`, elements first..first+n-1. */
typedef struct model_slice {
    fsdp_parameter *parameter;
    int64_t first, n;
    const unit_segment *segment; /* this rank's, in which it lies */
    int range;                   /* of the optimizer, -1 when frozen */
    int64_t at;                  /* element within the part, and the slice */
    bool writes;                 /* this rank's copy is the one to save */
} model_slice;
/* Visits the overlap of every parameter with this rank's parts, in unit order. Stops at the first failure. */
typedef fsdp_status (*slice_visitor)(fsdp_model *m, const model_slice *slice, void *context);
fsdp_status model_for_each_slice(fsdp_model *m, slice_visitor visit, void *context);
int model_slices(const fsdp_model *m);
model_slice model_slice_at(const fsdp_model *m, int index);
/* The parameter of that name; FSDP_ERR_INPUT where it does not exist or does not have these elements. */
fsdp_status model_find_elements(const fsdp_model *m, const char *name, int64_t first, int64_t n, fsdp_parameter **out);
/* Host values of unit `index` of which every rank has its slices, and zeros elsewhere: all get all of them. */
fsdp_status model_join_slices(fsdp_model *m, int index, const char *label, float *values, int64_t n);
/* Masters of elements first .. first+n-1 of a piece, to and from host memory. */
fsdp_status model_read_slice(fsdp_model *m, const model_slice *p, int64_t first, int64_t n, float *out);
fsdp_status model_write_slice(fsdp_model *m, const model_slice *p, int64_t first, int64_t n, const float *in);

/* The values that training starts with: functions of the seed and the parameters' names. */
fsdp_status model_initialize(fsdp_model *m);
/* Before masters are overwritten outside of a step: the optimizer is done, and peers have read what they gathered. */
fsdp_status model_before_writes(fsdp_model *m);
/* The low-precision copies follow the masters. */
fsdp_status model_refresh_copies(fsdp_model *m);
fsdp_status model_refresh_unit(fsdp_model *m, int index); /* those of one unit */

#endif
