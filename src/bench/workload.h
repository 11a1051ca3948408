/* The named workloads of the benches: shapes that PyTorch FSDP2 is measured on, too. */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <fsdp/bench.h>
#include <fsdp/shard.h>

#include "device/device.h"
#include "models/config.h"

typedef struct bench_workload {
    const char *name, *what;
    int64_t hidden, layers, heads, kv_heads, intermediate, vocabulary, batch, width;
    bool tied;
    fsdp_checkpointing checkpointing;
} bench_workload;

/* FSDP_ERR_INPUT, with all names, when there is none of this name. */
fsdp_status bench_workload_find(const char *name, const bench_workload **out);
/* The one that keeps the device busy for a while, not for long. */
const bench_workload *bench_workload_for(const device *d);
model_config bench_workload_model(const bench_workload *w);

#endif
