/* Whole training steps on random tokens: forward, backward, clipping, AdamW, timed one by one. */
#include <fsdp/bench.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hooks.h"
#include "base/rng.h"
#include "observe/memory.h"
#include "plan/workload.h"
#include "train/assemble.h"
#include "train/optimizer.h"

typedef struct bench_workload {
    const char *name, *what;
    int64_t hidden, layers, heads, kv_heads, intermediate, vocabulary, batch, width;
    bool tied;
    fsdp_checkpointing checkpointing;
} bench_workload;

/* The shapes that PyTorch FSDP2 is measured on, too. */
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
};

enum { N_WORKLOADS = sizeof workloads / sizeof workloads[0], MAX_OPERATIONS = 96 };

const char *fsdp_bench_workloads(void)
{
    return "cpu-512    512 wide, 8 layers, 32000 tokens, 4 x 512\n"
           "single     1024 wide, 8 layers, 1 x 2048: bound by launches\n"
           "1b-8k      1B, 1 x 8192\n"
           "1b-8k-ac   1B, 1 x 8192, activation checkpointing\n"
           "3.2-1b     Llama 3.2 1B, 4 x 2048\n"
           "3.2-1b-8   Llama 3.2 1B, 8 x 2048\n"
           "8b-4k-ac   Llama 3.1 8B, 1 x 4096, activation checkpointing\n";
}

/* Time per kind of operation, heard through hooks. */
typedef struct stopwatch {
    struct {
        char name[64];
        int64_t total, count;
    } operations[MAX_OPERATIONS];
    int n;
    int64_t begun;
    device *dev;
    stream *s;
} stopwatch;

static void listen(void *context, const hook_event *e)
{
    stopwatch *w = context;
    char name[64];
    if (e->kind != HOOK_OP && !(e->kind == HOOK_PHASE && strcmp(e->name, "optimizer") == 0))
        return;
    w->dev->stream_synchronize(w->s);
    int64_t now = clock_nanoseconds();
    if (e->moment == HOOK_BEGIN) {
        w->begun = now;
        return;
    }
    snprintf(name, sizeof name, "%s%s%s", e->name, e->detail ? "." : "", e->detail ? e->detail : "");
    int i = 0;
    while (i < w->n && strcmp(w->operations[i].name, name) != 0)
        i++;
    if (i == MAX_OPERATIONS)
        return;
    if (i == w->n)
        snprintf(w->operations[w->n++].name, sizeof w->operations[0].name, "%s", name);
    w->operations[i].total += now - w->begun;
    w->operations[i].count++;
}

static int by_total(const void *a, const void *b)
{
    const int64_t *x = (const int64_t *)((const char *)a + 64), *y = (const int64_t *)((const char *)b + 64);
    return *x < *y ? 1 : *x > *y ? -1 : 0;
}

static void print_breakdown(stopwatch *w, int steps, char *text, size_t bytes)
{
    size_t used = 0;
    qsort(w->operations, (size_t)w->n, sizeof w->operations[0], by_total);
    for (int i = 0; i < w->n && used < bytes; i++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%-32s %9.3f ms  %5lld\n", w->operations[i].name,
                             (double)w->operations[i].total / 1e6 / steps, (long long)(w->operations[i].count / steps));
}

typedef struct bench {
    fsdp_world *world;
    model_config model;
    assembled_sharding sharding;
    fsdp_model *sharded;
    fsdp_optimizer *optimizer;
    memory_meter *meter;
    int64_t batch, width;
    int32_t *ids, *labels;
    stopwatch watch;
} bench;

static fsdp_status choose_workload(bench *b, const fsdp_settings *s, const char *name)
{
    FSDP_TRY(assemble_model(s, 0, NULL, &b->model));
    b->batch = s->train_batch_size;
    b->width = s->max_context_width;
    if (!name)
        return b->model.type == MODEL_LLAMA
                   ? FSDP_OK
                   : error_set(FSDP_ERR_INPUT, "bench step: only llama models have random data");
    for (int i = 0; i < N_WORKLOADS; i++) {
        const bench_workload *w = &workloads[i];
        if (strcmp(w->name, name) != 0)
            continue;
        fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
        c.vocabulary = w->vocabulary, c.hidden = w->hidden, c.intermediate = w->intermediate, c.layers = w->layers,
        c.heads = w->heads;
        c.kv_heads = w->kv_heads, c.head_dim = w->hidden / w->heads, c.positions = w->width, c.tied = w->tied,
        c.rope_base = 500000;
        b->model = model_config_default(MODEL_LLAMA);
        b->model.llama = c;
        b->batch = w->batch;
        b->width = w->width;
        b->sharding.config.checkpointing = w->checkpointing;
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT, "no workload named \"%s\"; there are:\n%s", name, fsdp_bench_workloads());
}

static fsdp_status open_bench(bench *b, const fsdp_settings *s, const char *workload_name)
{
    fsdp_world_config world;
    fsdp_module *net;
    int64_t n_parameters;
    FSDP_TRY(memory_meter_start(&b->meter));
    assemble_world(s, &world);
    FSDP_TRY(fsdp_world_open(&world, &b->world));
    FSDP_TRY(choose_workload(b, s, workload_name));
    fsdp_checkpointing checkpointing = b->sharding.config.checkpointing;
    FSDP_TRY(assemble_count(&b->model, &n_parameters));
    FSDP_TRY(assemble_sharding(s, &b->model, n_parameters, fsdp_world_size(b->world), &b->sharding));
    if (workload_name && !fsdp_settings_given(s, "activation_checkpointing"))
        b->sharding.config.checkpointing = checkpointing;
    FSDP_TRY(model_create(&b->model, &net));
    fsdp_status status = fsdp_shard(b->world, net, &b->sharding.config, &b->sharded);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    fsdp_optimizer_config optimizer = assemble_optimizer(s);
    FSDP_TRY(fsdp_optimizer_new(b->sharded, &optimizer, &b->optimizer));
    size_t n = (size_t)(b->batch * b->width);
    b->ids = malloc(n * sizeof *b->ids);
    b->labels = malloc(n * sizeof *b->labels);
    return b->ids && b->labels ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
}

static fsdp_status run_one(bench *b, int step, double *loss)
{
    fsdp_model *m = b->sharded;
    int64_t shape[] = {b->batch, b->width}, n = b->batch * b->width;
    rng_key key = rng_key_make(1234 + (uint64_t)fsdp_world_rank(b->world));
    for (int64_t i = 0; i < n; i++)
        b->ids[i] = (int32_t)(rng_word(key, (uint64_t)step, (uint64_t)i) % (uint32_t)b->model.llama.vocabulary);
    for (int64_t i = 0; i < n; i++)
        b->labels[i] = b->ids[i + 1 < n ? i + 1 : 0];
    fsdp_tape *t = fsdp_begin(m);
    fsdp_loss l = fsdp_llama_loss(fsdp_model_module(m), t, fsdp_input(t, FSDP_I32, 2, shape, b->ids),
                                  fsdp_input(t, FSDP_I32, 2, shape, b->labels));
    FSDP_TRY(fsdp_backward(t, l, true));
    fsdp_step_report r = {.loss = NAN};
    FSDP_TRY(fsdp_step(b->optimizer, &r));
    *loss = r.loss;
    return FSDP_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static fsdp_status measure(bench *b, const fsdp_bench_config *c, double start, fsdp_bench_result *out)
{
    double *times = calloc((size_t)c->steps, sizeof *times), loss = 0;
    fsdp_status status = times ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    for (int i = 0; i < c->warmup + c->steps && status == FSDP_OK; i++) {
        if (i == c->warmup && c->breakdown)
            status = hooks_add(listen, &b->watch);
        double begun = clock_seconds();
        if (status == FSDP_OK)
            status = run_one(b, i, &loss);
        if (i == 0)
            out->first_step_seconds = clock_seconds() - start;
        if (i < 3)
            out->first_losses[i] = loss;
        if (i >= c->warmup)
            times[i - c->warmup] = clock_seconds() - begun;
    }
    if (c->breakdown) {
        hooks_remove(listen, &b->watch);
        print_breakdown(&b->watch, c->steps, out->breakdown, sizeof out->breakdown);
    }
    if (status == FSDP_OK) {
        qsort(times, (size_t)c->steps, sizeof *times, ascending);
        out->milliseconds = times[c->steps / 2] * 1e3;
        out->fastest = times[0] * 1e3;
    }
    free(times);
    return status;
}

fsdp_status fsdp_bench_step(const fsdp_settings *settings, const fsdp_bench_config *config, fsdp_bench_result *result)
{
    double start = clock_seconds();
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    if (config->steps < 1 || config->warmup < 0) {
        free(b);
        return error_set(FSDP_ERR_INPUT, "bench: %d steps after %d of warmup", config->steps, config->warmup);
    }
    fsdp_status status = open_bench(b, settings, config->workload);
    if (status == FSDP_OK) {
        b->watch.dev = b->world->dev;
        b->watch.s = b->world->compute;
        status = measure(b, config, start, result);
    }
    if (status == FSDP_OK) {
        workload w = {.model = b->model, .batch = b->batch, .width = b->width};
        double seconds = result->milliseconds / 1e3;
        result->parameters = fsdp_model_parameters(b->sharded);
        result->world_size = fsdp_world_size(b->world);
        result->batch = b->batch;
        result->width = b->width;
        result->tokens_per_second = (double)(b->batch * b->width * result->world_size) / seconds;
        result->tflops = workload_flops(&w) / seconds / 1e12;
        result->memory_bytes = memory_meter_peak(b->meter);
    } else if (b->world) {
        fsdp_world_abort(b->world);
    }
    free(b->ids);
    free(b->labels);
    fsdp_optimizer_free(b->optimizer);
    fsdp_model_free(b->sharded);
    fsdp_world_close(b->world);
    memory_meter_free(b->meter);
    free(b);
    return status;
}
