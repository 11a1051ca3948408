/* How much communication a step hides under compute: training steps of a LLaMA under full sharding, with prefetch and
 * without, taking turns in the same processes over shared memory.
 *
 * Every rank is bound to --cores cores of its own (default: one more than --threads, to spare for communication) and
 * computes with --threads threads. Communication is the time that collectives are at work, waiting for slower ranks
 * included; exposed is the time that the computing thread stands still for them. Figures are medians of steps, means
 * over the ranks. */
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/host/threads.h"
#include "bench.h"
#include "comm/world.h"
#include "launch/cores.h"
#include "observe/overlap.h"
#include "shard/model.h"

enum { MAX_RANKS = 16, MAX_ROUNDS = 64, WARMUP = 2, VOCABULARY = 8192 };

typedef struct options {
    bool inline_progress;
    int rounds, ranks, threads, cores, hidden, layers, width, batch;
} options;

/* Milliseconds, median of the rounds. */
typedef struct figures {
    double step, communication, exposed;
} figures;

enum { WITH_PREFETCH, WITHOUT_PREFETCH, N_MODES };

typedef struct contender {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    double step[MAX_ROUNDS], communication[MAX_ROUNDS], exposed[MAX_ROUNDS];
} contender;

static fsdp_status bind_to_cores(const options *o, int rank)
{
    core_list list;
    cpu_set_t set;
    FSDP_TRY(core_list_read(&list));
    CPU_ZERO(&set);
    if (list.n >= o->ranks * o->cores) {
        for (int i = 0; i < o->cores; i++)
            CPU_SET(list.cores[rank * o->cores + i], &set);
        sched_setaffinity(0, sizeof set, &set);
    } else if (rank == 0) {
        fprintf(stderr, "bench: %d ranks of %d cores do not fit on %d; nothing can overlap\n", o->ranks, o->cores,
                list.n);
    }
    core_list_free(&list);
    return FSDP_OK;
}

/* As fsdp_world_open does it, but with the progress that was asked for. */
static fsdp_status open_world(const options *o, int rank, fsdp_world *w)
{
    comm_config link = COMM_CONFIG_INIT;
    w->job = job_single();
    w->job.rank = w->job.local_rank = rank;
    w->job.world_size = w->job.local_world_size = o->ranks;
    snprintf(w->job.token, sizeof w->job.token, "overlap-%d", (int)getppid());
    w->threads = threads_set(o->threads, o->ranks);
    FSDP_TRY(device_open_cpu(CPU_GEMM_AUTO, &w->dev));
    FSDP_TRY(w->dev->stream_create(w->dev, 0, &w->compute));
    link.backend = "shm";
    link.job = w->job;
    link.device = w->dev;
    link.timeout_seconds = 60;
    link.progress = o->inline_progress ? COMM_PROGRESS_INLINE : COMM_PROGRESS_THREAD;
    return comm_open(&link, &w->comm);
}

static fsdp_status make_contender(const options *o, fsdp_world *w, int mode, contender *out)
{
    fsdp_llama_config net_config = FSDP_LLAMA_CONFIG_INIT;
    fsdp_optimizer_config optimizer = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_module *net;
    net_config.vocabulary = VOCABULARY, net_config.hidden = o->hidden, net_config.intermediate = o->hidden * 11 / 4,
    net_config.layers = o->layers, net_config.heads = net_config.kv_heads = o->hidden / 64, net_config.head_dim = 64,
    net_config.positions = o->width;
    config.wrap = fsdp_wrap_by_type("llama_block");
    if (mode == WITHOUT_PREFETCH) {
        config.forward_prefetch = false;
        config.backward_prefetch = FSDP_PREFETCH_NONE;
        config.gather_buffers = 1;
    }
    optimizer.clip = 1;
    FSDP_TRY(fsdp_llama_new(&net_config, &net));
    FSDP_TRY(fsdp_shard(w, net, &config, &out->model));
    return fsdp_optimizer_new(out->model, &optimizer, &out->optimizer);
}

static fsdp_status run_step(contender *c, const options *o, const int32_t *ids)
{
    int64_t shape[] = {o->batch, o->width};
    fsdp_tape *t = fsdp_begin(c->model);
    fsdp_loss loss = fsdp_llama_loss(fsdp_model_module(c->model), t, fsdp_input(t, FSDP_I32, 2, shape, ids),
                                     fsdp_input(t, FSDP_I32, 2, shape, ids));
    FSDP_TRY(fsdp_backward(t, loss, true));
    return fsdp_step(c->optimizer, NULL);
}

static fsdp_status take_turns(const options *o, fsdp_world *w, overlap_meter *meter, contender *c)
{
    int32_t *ids = malloc((size_t)(o->batch * o->width) * sizeof *ids);
    fsdp_status status = ids ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "no memory for a batch");
    for (int i = 0; status == FSDP_OK && i < o->batch * o->width; i++)
        ids[i] = (int32_t)(rng_word(rng_key_make(1), (uint64_t)w->job.rank, (uint64_t)i) % VOCABULARY);
    for (int round = -WARMUP; status == FSDP_OK && round < o->rounds; round++) {
        for (int mode = 0; status == FSDP_OK && mode < N_MODES; mode++) {
            status = comm_barrier(comm_world(w->comm), "start", 0);
            overlap_meter_take(meter);
            double start = clock_seconds();
            if (status == FSDP_OK)
                status = run_step(&c[mode], o, ids);
            double end = clock_seconds();
            overlap_times spent = overlap_meter_take(meter);
            if (round < 0)
                continue;
            c[mode].step[round] = (end - start) * 1e3;
            c[mode].communication[round] = (double)spent.communication_ns / 1e6;
            c[mode].exposed[round] = (double)spent.exposed_ns / 1e6;
        }
    }
    free(ids);
    return status;
}

static fsdp_status run_rank(const options *o, int rank, figures *out)
{
    fsdp_world *w = calloc(1, sizeof *w);
    contender *c = calloc(N_MODES, sizeof *c);
    overlap_meter *meter = NULL;
    fsdp_status status = w && c ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "no memory for a rank");
    if (status != FSDP_OK)
        goto done;
    TRY_OR(done, bind_to_cores(o, rank));
    TRY_OR(done, overlap_meter_start(&meter));
    TRY_OR(done, open_world(o, rank, w));
    for (int mode = 0; mode < N_MODES; mode++)
        TRY_OR(done, make_contender(o, w, mode, &c[mode]));
    TRY_OR(done, take_turns(o, w, meter, c));
    for (int mode = 0; mode < N_MODES; mode++)
        out[mode] = (figures){bench_median(c[mode].step, o->rounds), bench_median(c[mode].communication, o->rounds),
                              bench_median(c[mode].exposed, o->rounds)};
done:
    for (int mode = 0; c && mode < N_MODES; mode++) {
        fsdp_optimizer_free(c[mode].optimizer);
        fsdp_model_free(c[mode].model);
    }
    if (w)
        fsdp_world_close(w);
    overlap_meter_free(meter);
    free(c);
    return status;
}

static bool run_ranks(const options *o, figures *mean)
{
    size_t bytes = sizeof(figures) * MAX_RANKS * N_MODES;
    figures *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[MAX_RANKS];
    bool good = shared != MAP_FAILED;
    for (int rank = 0; good && rank < o->ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            fsdp_status status = run_rank(o, rank, &shared[rank * N_MODES]);
            if (status != FSDP_OK)
                fprintf(stderr, "bench: %s\n", fsdp_last_error());
            exit(status != FSDP_OK);
        }
    }
    for (int rank = 0; shared != MAP_FAILED && rank < o->ranks; rank++) {
        int status = 1;
        waitpid(pids[rank], &status, 0);
        good = good && status == 0;
    }
    for (int mode = 0; good && mode < N_MODES; mode++) {
        mean[mode] = (figures){0, 0, 0};
        for (int rank = 0; rank < o->ranks; rank++) {
            const figures *f = &shared[rank * N_MODES + mode];
            mean[mode].step += f->step / o->ranks;
            mean[mode].communication += f->communication / o->ranks;
            mean[mode].exposed += f->exposed / o->ranks;
        }
    }
    return good;
}

static void report(const options *o, const figures *f)
{
    static const char *const names[] = {"prefetch", "no prefetch"};
    bench_title("%d ranks, %d threads on %d cores each, progress %s; ms a step", o->ranks, o->threads, o->cores,
                o->inline_progress ? "inline" : "thread");
    for (int mode = 0; mode < N_MODES; mode++) {
        bench_text("mode", names[mode]);
        bench_number("step", 2, f[mode].step);
        bench_number("communication", 2, f[mode].communication);
        bench_number("exposed", 2, f[mode].exposed);
        bench_number("exposed/no prefetch", 3, f[mode].exposed / f[WITHOUT_PREFETCH].exposed);
        bench_row();
    }
}

static int run_overlap(int argc, char **argv)
{
    options o = {.rounds = 9, .ranks = 2, .threads = 1, .hidden = 512, .layers = 8, .width = 256, .batch = 2};
    const bench_option table[] = {{"inline", BENCH_SWITCH, &o.inline_progress, 0, 0},
                                  {"rounds", BENCH_INT, &o.rounds, 1, MAX_ROUNDS},
                                  {"ranks", BENCH_INT, &o.ranks, 1, MAX_RANKS},
                                  {"threads", BENCH_INT, &o.threads, 1, 1024},
                                  {"cores", BENCH_INT, &o.cores, 1, 1024},
                                  {"hidden", BENCH_INT, &o.hidden, 64, 65536},
                                  {"layers", BENCH_INT, &o.layers, 1, 1000},
                                  {"width", BENCH_INT, &o.width, 1, 1 << 20},
                                  {"batch", BENCH_INT, &o.batch, 1, 1 << 20},
                                  {NULL, BENCH_SWITCH, NULL, 0, 0}};
    figures mean[N_MODES];
    if (!bench_options(argc, argv, table))
        return 2;
    o.cores = o.cores ? o.cores : o.threads + 1;
    fflush(NULL);
    if (!run_ranks(&o, mean))
        return 1;
    report(&o, mean);
    return 0;
}

const bench_case case_overlap = {.name = "overlap",
                                 .summary = "communication that a step hides, with prefetch and without",
                                 .usage = "[--inline] [--rounds N] [--ranks N] [--threads N] [--cores N] [--hidden N] "
                                          "[--layers N] [--width N] [--batch N]",
                                 .run = run_overlap};
