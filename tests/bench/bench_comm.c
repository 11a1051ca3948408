/* Times all_gather and reduce_scatter of fp32 between processes of this host: ours through shared memory, Open MPI's,
 * and what the memory allows. All of them take turns in the same processes (started through mpirun where there is one),
 * so that other work on the machine hits them alike.
 *
 *     bench_comm [--json] [--seconds S] [--no_mpi] [--ranks N]... [--mib M]...
 *
 * A time is that from the moment the last rank is ready to the moment the last rank is done. Figures are GB/s: size of
 * the full buffer over time, best round and, in brackets, median.
 *
 * With a full buffer of B bytes and n ranks, all_gather makes a rank read and write B, as a copy of B does;
 * reduce_scatter makes it read B and write B/n, as a copy of (B + B/n) / 2 does. Two figures say what that costs when
 * nothing is exchanged: "memcpy" is that copy, at the same time on every rank, within its own memory in huge pages, by
 * memcpy or by non-temporal stores, whichever is faster (small ones stay in a core's own caches, which a collective
 * cannot); "memory" is the same number of bytes at the speed that copies of 128 MiB have there: the bound. The last
 * columns say how many times longer than the bound, and than memcpy, ours takes (best rounds). */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"
#include "comm/comm.h"
#include "comm/reduce.h"

#ifdef FSDP_WITH_MPI
#include <mpi.h>
#endif

enum { MAX_SIZES = 8, MAX_ROUNDS = 2000, MIN_ROUNDS = 5, MEMORY_ROUNDS = 8, HUGE_PAGE = 2 << 20 };

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
    bool json, no_mpi, under_mpirun;
    double seconds; /* for each size and number of ranks */
    int ranks[4], n_ranks, n_sizes;
    size_t mib[MAX_SIZES];
    const char *program, *token;
} options;

/* Seconds of the best and of the median round; 0: not measured. */
typedef struct times {
    double best[N_CONTESTS], median[N_CONTESTS];
    double memory; /* seconds that a copy of one byte takes on every rank at once, out of the caches */
} times;

static void fail(const char *what)
{
    fprintf(stderr, "bench_comm: %s: %s\n", what, fsdp_last_error());
    exit(1);
}

static float *take(size_t bytes)
{
    size_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory");
    madvise(memory, whole, MADV_HUGEPAGE);
    memset(memory, 1, whole);
    return memory;
}

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
        fail("collective");
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
        fail("time");
    return span[1] - span[0];
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Rounds until the time is up; the first is for getting warm. */
static void take_turns(const options *o, rank_bench *b, times *out)
{
    double *samples[N_CONTESTS], begun = clock_seconds(), spent = 0;
    int rounds = 0;
    for (int c = 0; c < N_CONTESTS; c++)
        if (!(samples[c] = calloc(MAX_ROUNDS, sizeof **samples)))
            fail("no memory");
    for (int round = -1; round < MAX_ROUNDS && (round < MIN_ROUNDS || spent < o->seconds); round++) {
        for (int c = 0; c < N_CONTESTS; c++) {
            bool openmpi = c == MPI_ALL_GATHER || c == MPI_REDUCE_SCATTER;
            double seconds = openmpi && !o->under_mpirun ? 0 : time_contest(b, (contest)c);
            if (round >= 0)
                samples[c][round] = seconds;
        }
        rounds = round + 1;
        spent = clock_seconds() - begun;
        if (comm_all_reduce_f64(b->world, "time", 0, FSDP_REDUCE_MAX, &spent, 1) != FSDP_OK)
            fail("time");
    }
    for (int c = 0; c < N_CONTESTS; c++) {
        qsort(samples[c], (size_t)rounds, sizeof **samples, ascending);
        out->best[c] = samples[c][0];
        out->median[c] = samples[c][rounds / 2];
        free(samples[c]);
    }
}

/* Seconds that copying a byte takes while all ranks copy much. */
static double time_memory(rank_bench *b)
{
    double best = 1e9;
    b->part = (int64_t)(memory_bytes / sizeof(float)) / b->n;
    b->private = take(memory_bytes);
    b->out = take(memory_bytes);
    for (int round = 0; round < MEMORY_ROUNDS; round++) {
        double seconds = time_contest(b, round % 2 ? COPY_ALL_GATHER : STREAM_ALL_GATHER);
        best = seconds < best ? seconds : best;
    }
    munmap(b->private, memory_bytes);
    munmap(b->out, memory_bytes);
    return best / (double)memory_bytes;
}

static void print_times(size_t mib, const times *t)
{
    printf("times %zu %.6g", mib, t->memory);
    for (int c = 0; c < N_CONTESTS; c++)
        printf(" %.9f %.9f", t->best[c], t->median[c]);
    printf("\n");
    fflush(stdout);
}

/* Rank 0 prints a line of times per size. */
static int run_rank(const options *o, int rank, int n)
{
    comm_config config = COMM_CONFIG_INIT;
    config.backend = "shm";
    config.job = job_single();
    config.job.rank = config.job.local_rank = rank;
    config.job.world_size = config.job.local_world_size = n;
    config.progress = COMM_PROGRESS_INLINE;
    snprintf(config.job.token, sizeof config.job.token, "bench-%s", o->token);
    threads_set(1, n); /* one core a rank, as the bound has it */
    rank_bench b = {.n = n};
    if (comm_open(&config, &b.comm) != FSDP_OK)
        fail("open");
    b.world = comm_world(b.comm);
    double byte_seconds = time_memory(&b);
    for (int s = 0; s < o->n_sizes; s++) {
        size_t bytes = o->mib[s] << 20;
        void *memory;
        if (comm_allocate(b.comm, bytes + bytes / (size_t)n, &memory) != FSDP_OK)
            fail("allocate");
        memset(memory, 1, bytes + bytes / (size_t)n);
        b.part = (int64_t)(bytes / sizeof(float)) / n;
        b.shared = memory;
        b.shard = b.shared + b.part * n;
        b.private = take(bytes);
        b.out = take(bytes);
        times t = {.memory = byte_seconds};
        take_turns(o, &b, &t);
        if (rank == 0)
            print_times(o->mib[s], &t);
        munmap(b.private, bytes);
        munmap(b.out, bytes);
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
    run_rank(o, rank, n);
    MPI_Finalize();
#else
    (void)o;
#endif
    return 0;
}

/* ---- the parent ---- */

#ifdef FSDP_WITH_MPI
/* The command that starts n ranks of this program; what they print is theirs. */
static FILE *start_under_mpirun(const options *o, int n)
{
    char command[4096];
    bool own_cores = sysconf(_SC_NPROCESSORS_ONLN) >= n;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", own_cores ? "0" : "1", 0);
    int at =
        snprintf(command, sizeof command, "mpirun --oversubscribe --bind-to %s -n %d %s --under_mpirun %d --seconds %g",
                 own_cores ? "core" : "none", n, o->program, (int)getpid(), o->seconds);
    for (int s = 0; s < o->n_sizes && at < 4000; s++)
        at += snprintf(command + at, sizeof command - (size_t)at, " --mib %zu", o->mib[s]);
    return popen(command, "r");
}
#endif

static FILE *start_forked(const options *o, int n, pid_t *pids)
{
    int ends[2];
    if (pipe(ends) < 0)
        fail("pipe");
    fflush(NULL);
    for (int rank = 0; rank < n; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            dup2(ends[1], STDOUT_FILENO);
            exit(run_rank(o, rank, n));
        }
    }
    close(ends[1]);
    return fdopen(ends[0], "r");
}

/* Returns how many sizes were measured. */
static int read_times(const options *o, FILE *from, times *out)
{
    int n = 0;
    size_t mib;
    while (n < o->n_sizes && fscanf(from, " times %zu %lf", &mib, &out[n].memory) == 2) {
        for (int c = 0; c < N_CONTESTS; c++)
            if (fscanf(from, "%lf %lf", &out[n].best[c], &out[n].median[c]) != 2)
                return n;
        n++;
    }
    return n;
}

static bool run(const options *o, int n, times *out)
{
    pid_t pids[64];
    bool good = true;
#ifdef FSDP_WITH_MPI
    if (!o->no_mpi) {
        FILE *from = start_under_mpirun(o, n);
        int measured = from ? read_times(o, from, out) : 0;
        if (from)
            pclose(from);
        if (measured == o->n_sizes)
            return true;
        fprintf(stderr, "bench_comm: mpirun did not run; without Open MPI then\n");
    }
#endif
    FILE *from = start_forked(o, n, pids);
    good = from && read_times(o, from, out) == o->n_sizes;
    for (int rank = 0; rank < n; rank++) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        good = good && status == 0;
    }
    if (from)
        fclose(from);
    return good;
}

/* ---- report ---- */

static double rate(size_t mib, double seconds)
{
    return seconds > 0 ? (double)(mib << 20) / seconds * 1e-9 : 0;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static void report_row(const options *o, const char *name, int n, size_t mib, const times *t, contest first)
{
    double full = (double)(mib << 20), moved = first == OURS_ALL_GATHER ? full : (full + full / n) / 2;
    double ours = t->best[first], median = t->median[first], copy = smaller(t->best[first + 2], t->best[first + 3]);
    double bound = mib << 20 < memory_bytes ? t->memory * moved : copy;
    if (o->json)
        printf("{\"collective\": \"%s\", \"ranks\": %d, \"mib\": %zu, \"shm\": %.2f, \"shm_median\": %.2f, "
               "\"openmpi\": %.2f, \"openmpi_median\": %.2f, \"memcpy\": %.2f, \"memory\": %.2f, "
               "\"over_memory\": %.3f, \"over_memcpy\": %.3f}\n",
               name, n, mib, rate(mib, ours), rate(mib, median), rate(mib, t->best[first + 1]),
               rate(mib, t->median[first + 1]), rate(mib, copy), rate(mib, bound), ours / bound, ours / copy);
    else
        printf("%-15s %5d %6zu MiB %7.1f (%5.1f) %7.1f (%5.1f) %8.1f %8.1f %12.2f %7.2f\n", name, n, mib,
               rate(mib, ours), rate(mib, median), rate(mib, t->best[first + 1]), rate(mib, t->median[first + 1]),
               rate(mib, copy), rate(mib, bound), ours / bound, ours / copy);
}

static void report(const options *o, int n, const times *t)
{
    for (int s = 0; s < o->n_sizes; s++) {
        report_row(o, "all_gather", n, o->mib[s], &t[s], OURS_ALL_GATHER);
        report_row(o, "reduce_scatter", n, o->mib[s], &t[s], OURS_REDUCE_SCATTER);
    }
    fflush(stdout);
}

static void parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--json") == 0)
            o->json = true;
        else if (strcmp(argv[i], "--no_mpi") == 0)
            o->no_mpi = true;
        else if (strcmp(argv[i], "--under_mpirun") == 0 && more)
            o->under_mpirun = true, o->token = argv[++i];
        else if (strcmp(argv[i], "--seconds") == 0 && more)
            o->seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--ranks") == 0 && more && o->n_ranks < 4)
            o->ranks[o->n_ranks++] = atoi(argv[++i]);
        else if (strcmp(argv[i], "--mib") == 0 && more && o->n_sizes < MAX_SIZES)
            o->mib[o->n_sizes++] = (size_t)atoi(argv[++i]);
    }
    if (o->n_ranks == 0)
        o->ranks[o->n_ranks++] = 2, o->ranks[o->n_ranks++] = 4;
    if (o->n_sizes == 0)
        o->mib[o->n_sizes++] = 1, o->mib[o->n_sizes++] = 16, o->mib[o->n_sizes++] = 128;
}

int main(int argc, char **argv)
{
    char token[32];
    snprintf(token, sizeof token, "%d", (int)getpid());
    options o = {.seconds = 5, .program = argv[0], .token = token};
    parse(&o, argc, argv);
    if (o.under_mpirun)
        return run_openmpi_rank(&o);
    if (!o.json)
        printf("%-15s %5s %10s %15s %15s %8s %8s %12s %7s\n", "GB/s", "ranks", "size", "shm", "Open MPI", "memcpy",
               "memory", "over memory", "memcpy");
    for (int i = 0; i < o.n_ranks; i++) {
        times t[MAX_SIZES];
        memset(t, 0, sizeof t);
        if (!run(&o, o.ranks[i], t))
            return 1;
        report(&o, o.ranks[i], t);
    }
    return 0;
}
