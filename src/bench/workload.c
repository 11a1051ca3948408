/* The table of workloads, and models made from its rows. */
#include "bench/workload.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const bench_workload workloads[] = {
    {"cpu-512", "512 wide, 8 layers, 32000 tokens, 4 x 512", 512, 8, 8, 8, 1408, 32000, 4, 512, false,
     FSDP_CHECKPOINT_NONE},
    {"single", "1024 wide, 8 layers, 1 x 2048: bound by launches", 1024, 8, 16, 8, 4096, 32000, 1, 2048, false,
     FSDP_CHECKPOINT_NONE},
    {"1b-8k", "1B, 1 x 8192", 2048, 16, 32, 2, 8192, 32000, 1, 8192, false, FSDP_CHECKPOINT_NONE},
    {"1b-8k-ac", "1B, 1 x 8192, activation checkpointing", 2048, 16, 32, 2, 8192, 32000, 1, 8192, false,
     FSDP_CHECKPOINT_FULL},
    {"3.2-1b", "Llama 3.2 1B, 4 x 2048", 2048, 16, 32, 8, 8192, 128256, 4, 2048, true, FSDP_CHECKPOINT_NONE},
    {"3.2-1b-8", "Llama 3.2 1B, 8 x 2048", 2048, 16, 32, 8, 8192, 128256, 8, 2048, true, FSDP_CHECKPOINT_NONE},
    {"8b-4k-ac", "Llama 3.1 8B, 1 x 4096, activation checkpointing", 4096, 32, 32, 8, 14336, 128256, 1, 4096, false,
     FSDP_CHECKPOINT_FULL},
    {"tiny", "the tiny preset, 8 x 128: to try the commands", 192, 5, 6, 6, 512, 256, 8, 128, false,
     FSDP_CHECKPOINT_NONE},
};

enum { N_WORKLOADS = sizeof workloads / sizeof workloads[0] };

const char *fsdp_bench_workload(int index, const char **what)
{
    if (index < 0 || index >= N_WORKLOADS)
        return NULL;
    if (what)
        *what = workloads[index].what;
    return workloads[index].name;
}

fsdp_status bench_workload_find(const char *name, const bench_workload **out)
{
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < N_WORKLOADS; i++) {
        if (strcmp(workloads[i].name, name) == 0) {
            *out = &workloads[i];
            return FSDP_OK;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", workloads[i].name);
    }
    return error_set(FSDP_ERR_INPUT, "no workload is named \"%s\"; there are %s", name, names);
}

const bench_workload *bench_workload_for(const device *d)
{
    const bench_workload *w = NULL;
    (void)bench_workload_find(d->own_memory ? "3.2-1b" : "cpu-512", &w);
    return w;
}

model_config bench_workload_model(const bench_workload *w)
{
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    c.vocabulary = w->vocabulary;
    c.hidden = w->hidden;
    c.intermediate = w->intermediate;
    c.layers = w->layers;
    c.heads = w->heads;
    c.kv_heads = w->kv_heads;
    c.head_dim = w->hidden / w->heads;
    c.positions = w->width;
    c.tied = w->tied;
    c.rope_base = 500000;
    model_config model = model_config_default(MODEL_DECODER);
    model.decoder = c;
    return model;
}
