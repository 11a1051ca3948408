/* The optimizer's arithmetic over flat ranges: moments, bias corrections, one pass per range. Knows nothing of units,
 * ranks or shards; the owner of the ranges decides when they may be written. */
#ifndef OPTIM_UPDATE_H
#define OPTIM_UPDATE_H

#include <fsdp/optim.h>

#include "device/device.h"
#include "tensor/parameter.h"

/* Elements up to `end` of a range, from where the last span ended, that share their options. */
typedef struct update_span {
    int64_t end;
    float lr_factor, weight_decay;
    /* Muon's and Adafactor's: part of one parameter, from its element `from` on. What lies behind `used` up to the end
     * is padding. */
    bool muon, factored;
    int64_t used, from;
    const fsdp_parameter *parameter;
    int64_t direction; /* Muon's: where the directions of its first element lie, in those of the unit */
    float direction_scale;
    const float *rate; /* Adafactor's: optimizer_args.rate */
    int64_t second;    /* all but Muon's and factored ones: where its second moments begin in the range's; set by
                          update_create */
} update_span;

/* Elements of a range whose largest magnitude the update raises *largest to, as they are stored for gathering. */
typedef struct update_magnitude {
    int64_t first, end;
    float *largest;
} update_magnitude;

typedef struct update_range {
    float *parameter;
    void *gradient;
    fsdp_dtype gradient_dtype;
    buffer copy;    /* low-precision copy to be kept in step; p NULL: none */
    bool copy_half; /* rounded as optimizer_args.copy_half says */
    uint16_t
        *low; /* low halves of the masters, whose high ones are the copy; parameter is then NULL (see halves_args) */
    int64_t n, decay_end;
    update_span *spans; /* borrowed; NULL: the optimizer's own options, with decay up to decay_end */
    int n_spans;
    const update_magnitude *magnitudes; /* borrowed; in order */
    int n_magnitudes;
    int place;               /* index of where it lies */
    uint32_t key[2];         /* of the random numbers by which 16-bit moments are rounded, */
    uint64_t element;        /* and where among them the range begins */
    void *moment1, *moment2; /* of the configuration's state_dtype; set by update_create where the optimizer has them;
                                the second of spans that have none are left out */
    float *average;          /* this one too */
} update_range;

/* Memory that ranges lie in, and who computes on it: a device on its own memory, or the CPU on host memory. */
typedef struct update_memory {
    device *dev; /* whose kernels */
    stream *s;   /* on which moments are cleared */
    device *home;
    memory_kind kind; /* moments are allocated from home, of this kind */
} update_memory;

enum { UPDATE_PLACES = 2 };

typedef struct update update;

/* Copies places (at most UPDATE_PLACES) and ranges, allocates the moments (zero). Borrows the devices. */
fsdp_status update_create(const update_memory *places, int n_places, const fsdp_optimizer_config *config,
                          const update_range *ranges, int n, update **out);
void update_free(update *u);

/* The learning rate of step `step` (counted from 1), where lr is the one that was set. */
double update_rate(const update *u, float lr, int64_t step);
/* The host's part of this step's numbers: rate and bias corrections of step `step` (counted from 1). */
void update_scalars(const update *u, float lr, int64_t step, optimizer_scalars *out);
/* One range, on a stream of its place; `numbers` is memory of that place, with gradient_scale and skip filled in. */
fsdp_status update_apply(update *u, int index, stream *s, const optimizer_scalars *scalars);

/* Elements `first` to `end` of a range, and where they lie while they are updated. */
typedef struct update_part {
    int64_t first, end;
    device *dev; /* which has them in its memory, at: (NULL: they are updated where the range lies) */
    float *parameter, *average;
    void *gradient, *moment1, *moment2;
    buffer copy;
    /* In host memory only: where the values from before the update are kept; parameter NULL: nowhere. */
    struct {
        float *parameter, *average;
        void *moment1, *moment2;
    } old;
} update_part;
/* One part of a range that has neither Muon's nor Adafactor's spans; any cut into parts gives the same bits. */
fsdp_status update_apply_part(update *u, int index, const update_part *part, stream *s,
                              const optimizer_scalars *scalars);

/* Muon's part of a range comes in two: directions from the gradients, to out[i] for its element i, and, once the
 * directions of whole matrices are orthogonal, the update by them. The second updates the rest of the range too. */
fsdp_status update_directions(update *u, int index, stream *s, const optimizer_scalars *scalars, uint16_t *out);
fsdp_status update_apply_directions(update *u, int index, stream *s, const optimizer_scalars *scalars,
                                    const uint16_t *directions);

/* Adafactor's part of a range comes in two as well: what is summed over ranks before the update is known, and the
 * update, which is left in the place of the gradients. `describe` fills in what belongs to a span's parameter. */
typedef void (*update_describer)(void *context, const update_span *span, adafactor_part *part);
fsdp_status update_factored(update *u, int index, stream *s, const optimizer_scalars *scalars, bool sums,
                            update_describer describe, void *context);

const update_range *update_range_at(const update *u, int index);
/* The second moment of an element of a range, where it has one. */
void *update_moment2_at(const update *u, int index, int64_t element);
int update_kept(const fsdp_optimizer_config *config);   /* most numbers kept per parameter: moments, the average */
int update_halves(const fsdp_optimizer_config *config); /* of those, how many have 16 bits; the others have 32 */
/* Whether Muon updates this parameter: a linear layer's weight that is not a model's output, or an adapter's matrix. */
bool update_is_muon(fsdp_optimizer_kind kind, const fsdp_parameter *p);
/* Whether Adafactor keeps means of rows and columns of this parameter. */
bool update_is_factored(fsdp_optimizer_kind kind, const fsdp_parameter *p);
/* Whether a range is updated from its own gradient alone, without other ranks: not with Muon and Adafactor. */
bool update_is_local(fsdp_optimizer_kind kind);
bool update_has_first(const fsdp_optimizer_config *config); /* moments; every parameter has them, or none has */
bool update_has_second(fsdp_optimizer_kind kind, const fsdp_parameter *p);

#endif
