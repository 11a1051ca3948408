/* A model that is stepped on random tokens, for who measures it. */
#ifndef BENCH_STEPPING_H
#define BENCH_STEPPING_H

#include <fsdp/bench.h>

#include "comm/world.h"
#include "observe/memory.h"
#include "observe/overlap.h"
#include "plan/assemble.h"

typedef struct stepping {
    fsdp_world *world;
    model_config model;
    assembled_sharding sharding;
    fsdp_model *sharded;
    fsdp_optimizer *optimizer;
    fsdp_memory_meter *meter;
    overlap_meter *overlap;
    int64_t batch, width, micro_batches;
    fsdp_dtype state_dtype; /* of the moments */
    int32_t *ids, *labels;
} stepping;

/* `b` is zeros; ended by stepping_close, also after a failure. A workload of NULL: the settings' own model. */
fsdp_status stepping_open(stepping *b, const fsdp_settings *s, const fsdp_bench_config *c);
void stepping_close(stepping *b);       /* frees b, which was calloc'd */
void stepping_close_model(stepping *b); /* its memory is free; the world stays */

/* One optimizer step, with data of its own. */
fsdp_status stepping_run(stepping *b, int step, double *loss);

/* The shapes of its steps, for plans. */
workload stepping_workload(const stepping *b, const fsdp_settings *s);

/* Bytes of host memory that AdamW reads and writes a parameter: parameter and two moments in and out, gradient in, and
 * the low-precision copy out. */
static inline double stepping_update_bytes(const stepping *b)
{
    double low = b->sharding.config.param_dtype == FSDP_F32 ? 0 : 2;
    return 8 + (double)fsdp_dtype_size(b->sharding.config.gradient_dtype) +
           4 * (double)fsdp_dtype_size(b->state_dtype) + low;
}

#endif
