/* all_gather and reduce_scatter of fp32 between processes of this host: ours through shared memory, Open MPI's, and
 * what the memory allows. All of them take turns in the same processes (started through mpirun where there is one), so
 * that other work on the machine hits them alike. `fsdp bench comm` measures a job's own collectives on any backend.
 *
 * A time is that from the moment the last rank is ready to the moment the last rank is done. Figures are GB/s: size of
 * the full buffer over time, best round and median.
 *
 * With a full buffer of B bytes and n ranks, all_gather makes a rank read and write B, as a copy of B does;
 * reduce_scatter makes it read B and write B/n, as a copy of (B + B/n) / 2 does. Two figures say what that costs when
 * nothing is exchanged: "memcpy" is that copy, at the same time on every rank, within its own memory in huge pages, by
 * memcpy or by non-temporal stores, whichever is faster (small ones stay in a core's own caches, which a collective
 * cannot); "memory" is the same number of bytes at the speed that copies of 128 MiB have there: the bound. The last
 * columns say how many times longer than the bound, and than memcpy, ours takes (best rounds). */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host/threads.h"
#include "bench.h"
#include "comm/comm.h"
#include "comm/reduce.h"

#ifdef FSDP_WITH_MPI
#include <mpi.h>
#endif

enum { MAX_SIZES = 8, MAX_RANKS = 64, MIN_ROUNDS = 5, MEMORY_ROUNDS = 8 };

static const size_t memory_bytes = (size_t)128 << 20;

/* What takes turns. */
typedef enum contest {
    OURS_ALL_GATHER,
    MPI_ALL_GATHER,
    COPY_ALL_GATHER,
    STREAM_ALL_GATHER,
    OURS_REDUCE_SCATTER,
    MPI_REDUCE_SCATTER,
    COPY_REDUCE_SCATTER,
    STREAM_REDUCE_SCATTER,
    N_CONTESTS
} contest;

typedef struct options {
    bool no_mpi;
    double seconds; /* for each size and number of ranks */
    int mib[MAX_SIZES], n_sizes;
    const char *sizes;        /* the same as text */
    const char *under_mpirun; /* started by start_under_mpirun: the token of the job; NULL: not */
} options;

/* Of one size; a contender without samples was not measured. */
typedef struct times {
    bench_times contest[N_CONTESTS];
    double memory; /* seconds that a copy of one byte takes on every rank at once, out of the caches */
} times;

typedef struct rank_bench {
    comm *comm;
    comm_group *world;
    int n;
    int64_t part;         /* elements of a rank */
    float *shared;        /* full buffer, reached by peers */
    float *shard;         /* in shared memory */
    float *private, *out; /* full buffers */
} rank_bench;

static void run_ours(rank_bench *b, bool gather)
{
    comm_span piece = {.send = {gather ? b->shard : b->shared, FSDP_F32}, .recv = {b->out, FSDP_F32}, .count = b->part};
    comm_op op = {.unit = "bench", .n_spans = 1, .spans = &piece};
    comm_request r = COMM_REQUEST_INIT;
    fsdp_status status = gather ? comm_all_gather(b->world, &op, &r) : comm_reduce_scatter(b->world, &op, &r);
    if (status != FSDP_OK || comm_wait(&r, NULL) != FSDP_OK)
        bench_fail("collective");
}

static void run_openmpi(rank_bench *b, bool gather)
{
#ifdef FSDP_WITH_MPI
    int part = (int)b->part;
    if (gather)
        MPI_Allgather(b->private, part, MPI_FLOAT, b->out, part, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Reduce_scatter_block(b->private, b->out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
#else
    (void)b, (void)gather;
#endif
}

static void run_contest(rank_bench *b, contest what)
{
    size_t full = (size_t)(b->part * b->n) * sizeof(float), moved = (full + full / (size_t)b->n) / 2;
    switch (what) {
    case OURS_ALL_GATHER:
    case OURS_REDUCE_SCATTER:
        run_ours(b, what == OURS_ALL_GATHER);
        break;
    case MPI_ALL_GATHER:
    case MPI_REDUCE_SCATTER:
        run_openmpi(b, what == MPI_ALL_GATHER);
        break;
    case COPY_ALL_GATHER:
    case STREAM_ALL_GATHER:
        copy_bytes(b->out, b->private, full, what == STREAM_ALL_GATHER, 1);
        break;
    case COPY_REDUCE_SCATTER:
    case STREAM_REDUCE_SCATTER:
        copy_bytes(b->out, b->private, moved, what == STREAM_REDUCE_SCATTER, 1);
        break;
    case N_CONTESTS:
        break;
    }
}

/* The clock is the host's: the same for all ranks. A run before the timed one leaves in the caches what a contest
 * leaves there itself, not what the one before it did. */
static double time_contest(rank_bench *b, contest what)
{
    run_contest(b, what);
    double span[] = {clock_seconds(), 0}; /* ready, done */
    comm_barrier(b->world, "start", 0);
    run_contest(b, what);
    span[1] = clock_seconds();
    if (comm_all_reduce_f64(b->world, "time", 0, FSDP_REDUCE_MAX, span, 2) != FSDP_OK)
        bench_fail("time");
    return span[1] - span[0];
}

/* Rounds until the time is up; the first is for getting warm. */
static void take_turns(const options *o, rank_bench *b, times *out)
{
    double begun = clock_seconds(), spent = 0;
    for (int round = -1; round < BENCH_SAMPLES && (round < MIN_ROUNDS || spent < o->seconds); round++) {
        for (int c = 0; c < N_CONTESTS; c++) {
            bool openmpi = c == MPI_ALL_GATHER || c == MPI_REDUCE_SCATTER;
            if (openmpi && !o->under_mpirun)
                continue;
            double seconds = time_contest(b, (contest)c);
            if (round >= 0)
                bench_add(&out->contest[c], seconds, seconds);
        }
        spent = clock_seconds() - begun;
        if (comm_all_reduce_f64(b->world, "time", 0, FSDP_REDUCE_MAX, &spent, 1) != FSDP_OK)
            bench_fail("time");
    }
}

/* Seconds that copying a byte takes while all ranks copy much. */
static double time_memory(rank_bench *b)
{
    double best = 1e9;
    b->part = (int64_t)(memory_bytes / sizeof(float)) / b->n;
    b->private = bench_take(memory_bytes);
    b->out = bench_take(memory_bytes);
    for (int round = 0; round < MEMORY_ROUNDS; round++) {
        double seconds = time_contest(b, round % 2 ? COPY_ALL_GATHER : STREAM_ALL_GATHER);
        best = seconds < best ? seconds : best;
    }
    bench_give_back(b->private, memory_bytes);
    bench_give_back(b->out, memory_bytes);
    return best / (double)memory_bytes;
}

/* ---- rows ---- */

static double rate(int mib, double seconds)
{
    return seconds > 0 ? mib * 1048576.0 / seconds * 1e-9 : NAN;
}

static void report_row(const char *name, int n, int mib, times *t, contest first)
{
    static const char *const columns[][2] = {{"shm", "median"}, {"Open MPI", "its median"}};
    bench_times *c = &t->contest[first];
    double full = mib * 1048576.0, moved = first == OURS_ALL_GATHER ? full : (full + full / n) / 2;
    double ours = bench_best(c[0].wall, c[0].n);
    double copy = fmin(bench_best(c[2].wall, c[2].n), bench_best(c[3].wall, c[3].n));
    double bound = full < (double)memory_bytes ? t->memory * moved : copy;
    bench_text("GB/s", name);
    bench_number("ranks", 0, n);
    bench_number("MiB", 0, mib);
    for (int i = 0; i < 2; i++) {
        bench_number(columns[i][0], 1, rate(mib, bench_best(c[i].wall, c[i].n)));
        bench_number(columns[i][1], 1, rate(mib, bench_median(c[i].wall, c[i].n)));
    }
    bench_number("memcpy", 1, rate(mib, copy));
    bench_number("memory", 1, rate(mib, bound));
    bench_number("over memory", 2, ours / bound);
    bench_number("over memcpy", 2, ours / copy);
    bench_row();
}

/* Rank 0 prints two rows a size. */
static int run_rank(const options *o, const char *token, int rank, int n)
{
    comm_config config = COMM_CONFIG_INIT;
    config.backend = "shm";
    config.job = job_single();
    config.job.rank = config.job.local_rank = rank;
    config.job.world_size = config.job.local_world_size = n;
    config.progress = COMM_PROGRESS_INLINE;
    snprintf(config.job.token, sizeof config.job.token, "bench-%s", token);
    threads_set(1, n); /* one core a rank, as the bound has it */
    rank_bench b = {.n = n};
    if (comm_open(&config, &b.comm) != FSDP_OK)
        bench_fail("open");
    b.world = comm_world(b.comm);
    double byte_seconds = time_memory(&b);
    for (int s = 0; s < o->n_sizes; s++) {
        size_t bytes = (size_t)o->mib[s] << 20;
        void *memory;
        if (comm_allocate(b.comm, bytes + bytes / (size_t)n, &memory) != FSDP_OK)
            bench_fail("allocate");
        memset(memory, 1, bytes + bytes / (size_t)n);
        b.part = (int64_t)(bytes / sizeof(float)) / n;
        b.shared = memory;
        b.shard = b.shared + b.part * n;
        b.private = bench_take(bytes);
        b.out = bench_take(bytes);
        times *t = calloc(1, sizeof *t);
        if (!t)
            bench_fail("no memory");
        t->memory = byte_seconds;
        take_turns(o, &b, t);
        if (rank == 0) {
            report_row("all_gather", n, o->mib[s], t, OURS_ALL_GATHER);
            report_row("reduce_scatter", n, o->mib[s], t, OURS_REDUCE_SCATTER);
        }
        free(t);
        bench_give_back(b.private, bytes);
        bench_give_back(b.out, bytes);
        comm_release(b.comm, memory);
    }
    comm_close(b.comm);
    return 0;
}

static int run_openmpi_rank(const options *o)
{
#ifdef FSDP_WITH_MPI
    int n, rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    run_rank(o, o->under_mpirun, rank, n);
    MPI_Finalize();
#else
    (void)o;
#endif
    return 0;
}

/* ---- the parent ---- */

/* n ranks of this program under mpirun. */
static int run_under_mpirun(const options *o, int n)
{
    char command[4096], program[2048];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    bool own_cores = sysconf(_SC_NPROCESSORS_ONLN) >= n;
    program[length > 0 ? length : 0] = '\0';
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", own_cores ? "0" : "1", 0);
    snprintf(command, sizeof command,
             "mpirun --oversubscribe --bind-to %s -n %d '%s' comm%s --under_mpirun %d --seconds %g --mib %s",
             own_cores ? "core" : "none", n, program, bench_is_json() ? " --json" : "", (int)getpid(), o->seconds,
             o->sizes);
    return system(command) == 0 ? 0 : 1;
}

static int run_forked(const options *o, int n)
{
    pid_t pids[MAX_RANKS];
    char token[32];
    int code = 0;
    snprintf(token, sizeof token, "%d", (int)getpid());
    fflush(NULL);
    for (int rank = 0; rank < n; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            exit(run_rank(o, token, rank, n));
    }
    for (int rank = 0; rank < n; rank++) {
        int status = 1;
        waitpid(pids[rank], &status, 0);
        code = status == 0 ? code : 1;
    }
    return code;
}

static bool has_mpi(const options *o)
{
#ifdef FSDP_WITH_MPI
    return !o->no_mpi && system("command -v mpirun >/dev/null 2>&1") == 0;
#else
    (void)o;
    return false;
#endif
}

static int run_comm(int argc, char **argv)
{
    options o = {.seconds = 5, .sizes = "1,16,128"};
    const char *counts = "2,4";
    const bench_option table[] = {{"no_mpi", BENCH_SWITCH, &o.no_mpi, 0, 0},
                                  {"seconds", BENCH_DOUBLE, &o.seconds, 0, 3600},
                                  {"ranks", BENCH_TEXT, &counts, 0, 0},
                                  {"mib", BENCH_TEXT, &o.sizes, 0, 0},
                                  {"under_mpirun", BENCH_TEXT, &o.under_mpirun, 0, 0},
                                  {NULL, BENCH_SWITCH, NULL, 0, 0}};
    int ranks[4], code = 0;
    bool good = bench_options(argc, argv, table);
    int n_ranks = bench_list(counts, ranks, 4);
    o.n_sizes = bench_list(o.sizes, o.mib, MAX_SIZES);
    for (int i = 0; i < n_ranks; i++)
        good = good && ranks[i] <= MAX_RANKS;
    if (!good || n_ranks == 0 || o.n_sizes == 0) {
        fprintf(stderr, "usage: bench comm %s\n", case_comm.usage);
        return 2;
    }
    if (o.under_mpirun)
        return run_openmpi_rank(&o);
    bool mpi = has_mpi(&o);
    for (int i = 0; i < n_ranks; i++)
        code |= mpi ? run_under_mpirun(&o, ranks[i]) : run_forked(&o, ranks[i]);
    return code;
}

const bench_case case_comm = {.name = "comm",
                              .summary = "collectives in shared memory, beside Open MPI's and plain copies",
                              .usage = "[--no_mpi] [--seconds S] [--ranks N,N...] [--mib M,M...]",
                              .run = run_comm};
