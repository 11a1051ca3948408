/* Times all_gather and reduce_scatter of fp32 between processes of this host: ours through shared memory, Open MPI's
 * (started through mpirun where there is one), and the memory alone: every rank moving the same bytes within its own
 * memory between two barriers.
 *
 *     bench_comm [--json] [--rounds R] [--ranks N]... [--mib M]...
 *
 * Figures are GB/s, size of the full buffer over the time of the slowest rank, best round (the machine may be shared).
 * --no_mpi leaves Open MPI out; its column then says 0. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/reduce.h"

#ifdef FSDP_WITH_MPI
#include <mpi.h>
#endif

enum { MAX_SIZES = 8, HUGE_PAGE = 2 << 20 };

/* Seconds of the best round. */
typedef struct figures {
    double all_gather, reduce_scatter, copy, sum;
} figures;

typedef struct options {
    bool json, no_mpi;
    int rounds, ranks[4], n_ranks, n_sizes;
    size_t mib[MAX_SIZES];
    const char *program;
} options;

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

/* Small buffers get more rounds, all sizes about the same time. */
static int rounds_for(const options *o, size_t bytes)
{
    size_t factor = ((size_t)128 << 20) / bytes;
    return o->rounds * (int)(factor < 1 ? 1 : factor > 40 ? 40 : factor);
}

static double smaller(double a, double b)
{
    return a > 0 && a < b ? a : b;
}

/* ---- ours, and the memory's ---- */

typedef struct rank_bench {
    comm *comm;
    comm_group *world;
    int n;
    int64_t part;        /* elements of a rank */
    float *shared;       /* full buffer, reached by peers */
    float *shard, *full; /* shard in shared memory, full private */
} rank_bench;

static double slowest(rank_bench *b, double seconds)
{
    if (comm_all_reduce_f64(b->world, "time", 0, COMM_MAX, &seconds, 1) != FSDP_OK)
        fail("time");
    return seconds;
}

static double time_all_gather(rank_bench *b)
{
    comm_piece piece = {.send = {b->shard, FSDP_F32}, .recv = {b->full, FSDP_F32}, .count = b->part};
    comm_op op = {.unit = "bench", .n_pieces = 1, .pieces = &piece};
    comm_request r = COMM_REQUEST_INIT;
    comm_barrier(b->world, "start", 0);
    double start = clock_seconds();
    if (comm_all_gather(b->world, &op, &r) != FSDP_OK || comm_wait(&r, NULL) != FSDP_OK)
        fail("all_gather");
    return slowest(b, clock_seconds() - start);
}

static double time_reduce_scatter(rank_bench *b)
{
    comm_piece piece = {.send = {b->shared, FSDP_F32}, .recv = {b->full, FSDP_F32}, .count = b->part};
    comm_op op = {.unit = "bench", .n_pieces = 1, .pieces = &piece};
    comm_request r = COMM_REQUEST_INIT;
    comm_barrier(b->world, "start", 0);
    double start = clock_seconds();
    if (comm_reduce_scatter(b->world, &op, &r) != FSDP_OK || comm_wait(&r, NULL) != FSDP_OK)
        fail("reduce_scatter");
    return slowest(b, clock_seconds() - start);
}

static double time_copy(rank_bench *b, bool streaming)
{
    comm_barrier(b->world, "start", 0);
    double start = clock_seconds();
    copy_bytes(b->full, b->shared, (size_t)(b->part * b->n) * sizeof(float), streaming);
    comm_barrier(b->world, "end", 0);
    return slowest(b, clock_seconds() - start);
}

static double time_sum(rank_bench *b)
{
    const void *sources[64];
    for (int i = 0; i < b->n; i++)
        sources[i] = b->shared + i * b->part;
    comm_barrier(b->world, "start", 0);
    double start = clock_seconds();
    reduce_ordered(&(reduce_args){.n_sources = b->n,
                                  .parts = b->n,
                                  .sources = sources,
                                  .from = FSDP_F32,
                                  .to = FSDP_F32,
                                  .n = b->part,
                                  .out = b->full,
                                  .streaming = b->part >= 1 << 20});
    comm_barrier(b->world, "end", 0);
    return slowest(b, clock_seconds() - start);
}

static void run_rank(const options *o, int rank, int n, figures *out)
{
    comm_config config = COMM_CONFIG_INIT;
    config.backend = "shm";
    config.job = job_single();
    config.job.rank = config.job.local_rank = rank;
    config.job.world_size = config.job.local_world_size = n;
    config.progress = COMM_PROGRESS_INLINE;
    snprintf(config.job.token, sizeof config.job.token, "bench-%d", (int)getppid());
    rank_bench b = {.n = n};
    if (comm_open(&config, &b.comm) != FSDP_OK)
        fail("open");
    b.world = comm_world(b.comm);
    for (int s = 0; s < o->n_sizes; s++) {
        size_t bytes = o->mib[s] << 20;
        void *memory;
        if (comm_allocate(b.comm, bytes * 2, &memory) != FSDP_OK)
            fail("allocate");
        memset(memory, 1, bytes * 2);
        b.part = (int64_t)(bytes / sizeof(float)) / n;
        b.shared = memory;
        b.shard = b.shared + b.part * n;
        b.full = take(bytes);
        figures f = {1e9, 1e9, 1e9, 1e9};
        int rounds = rounds_for(o, bytes);
        for (int round = 0; round < rounds; round++) {
            f.all_gather = smaller(time_all_gather(&b), f.all_gather);
            f.reduce_scatter = smaller(time_reduce_scatter(&b), f.reduce_scatter);
            f.copy = smaller(time_copy(&b, false), f.copy);
            f.copy = smaller(time_copy(&b, true), f.copy);
            f.sum = smaller(time_sum(&b), f.sum);
        }
        out[s] = f;
        munmap(b.full, bytes);
        comm_release(b.comm, memory);
    }
    comm_close(b.comm);
}

static bool run_ours(const options *o, int n, figures *out)
{
    figures *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[64];
    bool good = true;
    fflush(NULL);
    for (int rank = 0; rank < n; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            figures own[MAX_SIZES];
            run_rank(o, rank, n, rank == 0 ? shared : own);
            exit(0);
        }
    }
    for (int rank = 0; rank < n; rank++) {
        int status = 0;
        waitpid(pids[rank], &status, 0);
        good = good && status == 0;
    }
    memcpy(out, shared, sizeof *out * MAX_SIZES);
    munmap(shared, 4096);
    return good;
}

/* ---- Open MPI's ---- */

#ifdef FSDP_WITH_MPI
/* Under mpirun: rank 0 prints two numbers of seconds per size. */
static int run_openmpi_rank(const options *o)
{
    int n, rank;
    MPI_Init(NULL, NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int s = 0; s < o->n_sizes; s++) {
        size_t bytes = o->mib[s] << 20;
        int part = (int)(bytes / sizeof(float)) / n;
        float *send = take(bytes), *recv = take(bytes);
        double best[2] = {1e9, 1e9};
        int rounds = rounds_for(o, bytes);
        for (int round = 0; round < 2 * rounds; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = clock_seconds(), seconds, most;
            if (round % 2)
                MPI_Reduce_scatter_block(send, recv, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            else
                MPI_Allgather(send, part, MPI_FLOAT, recv, part, MPI_FLOAT, MPI_COMM_WORLD);
            seconds = clock_seconds() - start;
            MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            best[round % 2] = smaller(most, best[round % 2]);
        }
        if (rank == 0)
            printf("openmpi %zu %.9f %.9f\n", o->mib[s], best[0], best[1]);
        munmap(send, bytes);
        munmap(recv, bytes);
    }
    MPI_Finalize();
    return 0;
}
#endif

/* Leaves `out` as it is where there is no Open MPI to compare with. */
static void run_openmpi(const options *o, int n, figures *out)
{
#ifdef FSDP_WITH_MPI
    char command[4096], line[256];
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_mpi_yield_when_idle", sysconf(_SC_NPROCESSORS_ONLN) < n ? "1" : "0", 0);
    int at = snprintf(command, sizeof command, "mpirun --oversubscribe -n %d %s --openmpi --rounds %d", n, o->program,
                      o->rounds);
    for (int s = 0; s < o->n_sizes && at < 4000; s++)
        at += snprintf(command + at, sizeof command - (size_t)at, " --mib %zu", o->mib[s]);
    snprintf(command + at, sizeof command - (size_t)at, " 2>/dev/null");
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe)) {
        size_t mib;
        double gather, reduce;
        if (sscanf(line, "openmpi %zu %lf %lf", &mib, &gather, &reduce) != 3)
            continue;
        for (int s = 0; s < o->n_sizes; s++)
            if (o->mib[s] == mib)
                out[s].all_gather = gather, out[s].reduce_scatter = reduce;
    }
    if (pipe)
        pclose(pipe);
#else
    (void)o, (void)n, (void)out;
#endif
}

/* ---- report ---- */

static double rate(size_t mib, double seconds)
{
    return seconds > 0 ? (double)(mib << 20) / seconds * 1e-9 : 0;
}

static void report(const options *o, int n, const figures *ours, const figures *openmpi)
{
    for (int s = 0; s < o->n_sizes; s++) {
        size_t mib = o->mib[s];
        const struct {
            const char *name;
            double ours, openmpi, bound;
        } rows[] = {
            {"all_gather", rate(mib, ours[s].all_gather), rate(mib, openmpi[s].all_gather), rate(mib, ours[s].copy)},
            {"reduce_scatter", rate(mib, ours[s].reduce_scatter), rate(mib, openmpi[s].reduce_scatter),
             rate(mib, ours[s].sum)},
        };
        for (int i = 0; i < 2; i++) {
            if (o->json)
                printf("{\"collective\": \"%s\", \"ranks\": %d, \"mib\": %zu, \"shm\": %.2f, \"openmpi\": %.2f, "
                       "\"memory\": %.2f}\n",
                       rows[i].name, n, mib, rows[i].ours, rows[i].openmpi, rows[i].bound);
            else
                printf("%-15s %5d %6zu MiB %9.1f %9.1f %9.1f %11.2fx\n", rows[i].name, n, mib, rows[i].ours,
                       rows[i].openmpi, rows[i].bound, rows[i].bound / rows[i].ours);
        }
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    options o = {.rounds = 20, .program = argv[0]};
    bool openmpi = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            o.json = true;
        else if (strcmp(argv[i], "--no_mpi") == 0)
            o.no_mpi = true;
        else if (strcmp(argv[i], "--openmpi") == 0)
            openmpi = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            o.rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc && o.n_ranks < 4)
            o.ranks[o.n_ranks++] = atoi(argv[++i]);
        else if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc && o.n_sizes < MAX_SIZES)
            o.mib[o.n_sizes++] = (size_t)atoi(argv[++i]);
    }
    if (o.n_ranks == 0)
        o.ranks[o.n_ranks++] = 2, o.ranks[o.n_ranks++] = 4;
    if (o.n_sizes == 0)
        o.mib[o.n_sizes++] = 1, o.mib[o.n_sizes++] = 16, o.mib[o.n_sizes++] = 128;
#ifdef FSDP_WITH_MPI
    if (openmpi)
        return run_openmpi_rank(&o);
#endif
    (void)openmpi;
    if (!o.json)
        printf("%-15s %5s %10s %9s %9s %9s %12s\n", "GB/s", "ranks", "size", "shm", "Open MPI", "memory", "memory/shm");
    for (int i = 0; i < o.n_ranks; i++) {
        figures ours[MAX_SIZES], theirs[MAX_SIZES];
        if (!run_ours(&o, o.ranks[i], ours))
            return 1;
        memset(theirs, 0, sizeof theirs);
        if (!o.no_mpi)
            run_openmpi(&o, o.ranks[i], theirs);
        report(&o, o.ranks[i], ours, theirs);
    }
    return 0;
}
