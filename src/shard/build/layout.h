/* Where every parameter lies: units cut into segments, segments into shards. Pure arithmetic, the same on every rank;
 * holds no memory and knows no device.
 *
 * A unit is a list of parameters that are gathered and released together. Its trainable parameters, its frozen ones,
 * and frozen ones that are kept as blocks of 8 bits form a segment each. In a segment parameters that take weight decay
 * come first, of those the ones that can be kept as codes of 8 bits, too (whether they are or not, so that this changes
 * no bit of what follows from an element's place), members of a group lie packed, groups begin on blocks of 64
 * elements, and the whole is padded so that each shard is whole blocks. */
#ifndef SHARD_BUILD_LAYOUT_H
#define SHARD_BUILD_LAYOUT_H

#include "nn/module.h"

#define LAYOUT_BLOCK 64 /* also INT8_BLOCK: a shard has whole blocks of either kind */
enum { LAYOUT_SEGMENTS = 3 };

typedef struct layout_slot {
    fsdp_parameter *parameter;
    int64_t offset; /* elements from the start of the segment */
} layout_slot;

typedef struct layout_segment {
    bool trainable;
    bool int8; /* kept and gathered as int8_block; full parameters are made of them before they are used */
    int n_slots;
    layout_slot *slots; /* by offset */
    int64_t coded_end;  /* elements before it are weights that are kept in 8 bits, too: a code each */
    int64_t decay_end;  /* elements before it take weight decay */
    int64_t numel;      /* end of the last parameter */
    int64_t padded;     /* numel and padding: the size of the full buffer */
    int n_shards;
    int64_t *cuts; /* (n_shards + 1): shard r is [cuts[r], cuts[r+1]) */
} layout_segment;

typedef struct layout_unit {
    char *name;
    int n_segments; /* at least 1; a trainable one comes first, one of 8 bits last */
    layout_segment segments[LAYOUT_SEGMENTS];
    bool whole;               /* every rank has all shards */
    int64_t parameters_numel; /* without padding */
} layout_unit;

/* How a unit is cut. */
typedef struct layout_cut {
    int n_shards;
    bool whole; /* every rank has all shards, and these are equal */
} layout_cut;

typedef struct layout {
    int n_units;
    layout_unit *units;
    int64_t parameters_numel, trainable_numel;
} layout;

/* Parameters name their unit (parameter->unit in 0 .. n_units-1), of which there are n_units names and cuts. `weights`
 * gives shards their relative sizes, a unit of fewer shards takes the first; NULL: equal. Names are copied. */
fsdp_status layout_build(const module_contents *contents, int n_units, const char *const *names, const layout_cut *cuts,
                         const int *weights, layout **out);
void layout_free(layout *l);

/* Elements of shard `rank`, or of the whole segment when rank < 0. */
int64_t layout_shard_numel(const layout_segment *s, int rank);

/* Bytes of elements as they are kept and gathered, `element` bytes each unless they are blocks of 8 bits. */
size_t layout_kept_bytes(const layout_segment *s, int64_t numel, size_t element);
/* The segment of 8 bits; NULL: the unit has none. */
const layout_segment *layout_int8_segment(const layout_unit *u);

/* When `size` ranks keep a segment among themselves, each has as many neighbouring shards of it: rank `rank` the
 * elements from ..._first on. `size` divides n_shards. */
int64_t layout_kept_first(const layout_segment *s, int size, int rank);
int64_t layout_kept_numel(const layout_segment *s, int size, int rank);

/* Changes when anything does that two ranks (or a checkpoint and a model) must agree on. */
uint64_t layout_hash(const layout *l);

/* The part of a parameter that lies in elements [first, end) of its segment: its own elements [*from, *from + *n), at
 * segment element *at. *n is 0 when none does. */
void layout_overlap(const layout_slot *place, int64_t first, int64_t end, int64_t *from, int64_t *n, int64_t *at);
/* The part of elements [first, end) of a segment that goes with slot `index`: its parameter's, and the padding that
 * follows. *n is 0 when there is none; otherwise it begins at segment element *at. */
void layout_extent(const layout_segment *s, int index, int64_t first, int64_t end, int64_t *at, int64_t *n);

#endif
