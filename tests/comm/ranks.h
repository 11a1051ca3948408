/* Test ranks: forks processes that run one function each, waits for all, and keeps what they said. */
#ifndef TESTS_COMM_RANKS_H
#define TESTS_COMM_RANKS_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/ports.h"

enum { RANKS_MAX = 8, RANKS_TEXT = 1024, RANKS_LIMIT_SECONDS = 120 };

/* In a rank: ends the process with 1 and says where. */
#define RANK_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: rank %d: %s is false; last error: %s\n", __FILE__, __LINE__, ranks_self,           \
                    #condition, fsdp_last_error());                                                                    \
            fflush(stderr);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static int ranks_self __attribute__((unused));

typedef struct ranks_shared {
    char text[RANKS_MAX][RANKS_TEXT]; /* what each rank left */
    double seconds[RANKS_MAX];
    volatile int flags[RANKS_MAX];
    pid_t pids[RANKS_MAX];
} ranks_shared;

typedef struct ranks {
    int n;
    ranks_shared *shared;
    char token[64];
    int statuses[RANKS_MAX]; /* of waitpid */
    comm_progress progress;
    double timeout;
    const char *backend;
    int per_host; /* ucx: ranks of a node, which then counts as a host; 0: one each */
    bool turns;   /* rank 0 on the first node, 1 on the second, and so on around */
    int port;     /* free when the ranks were made */
} ranks;

typedef void (*rank_function)(ranks *all, int rank, void *context);

static inline ranks ranks_make(int n)
{
    static int serial;
    const char *backend = getenv("FSDP_TEST_BACKEND"), *per_host = getenv("FSDP_TEST_PER_HOST");
    ranks all = {.n = n,
                 .timeout = 20,
                 .progress = COMM_PROGRESS_INLINE,
                 .backend = backend ? backend : "shm",
                 .per_host = per_host ? atoi(per_host) : 0,
                 .port = free_port()};
    snprintf(all.token, sizeof all.token, "test-%d-%d", (int)getpid(), serial++);
    all.shared = mmap(NULL, sizeof *all.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return all;
}

static inline void ranks_free(ranks *all)
{
    munmap(all->shared, sizeof *all->shared);
}

static inline comm_config ranks_config(const ranks *all, int rank)
{
    comm_config config = COMM_CONFIG_INIT;
    config.backend = all->backend;
    config.job = job_single();
    config.job.rank = config.job.local_rank = rank;
    config.job.world_size = config.job.local_world_size = all->n;
    if (all->per_host) {
        int nodes = (all->n + all->per_host - 1) / all->per_host;
        config.job.n_nodes = nodes;
        config.job.node = all->turns ? rank % nodes : rank / all->per_host;
    }
    config.job.master_port = all->port;
    snprintf(config.job.token, sizeof config.job.token, "%s", all->token);
    config.timeout_seconds = all->timeout;
    config.progress = all->progress;
    config.staging_bytes = 64 << 10; /* the least there is: many chunks */
    return config;
}

static inline comm *ranks_open(const ranks *all, int rank)
{
    comm_config config = ranks_config(all, rank);
    comm *c = NULL;
    RANK_CHECK(comm_open(&config, &c) == FSDP_OK);
    return c;
}

static inline void ranks_start(ranks *all, rank_function function, void *context)
{
    fflush(NULL);
    for (int rank = 0; rank < all->n; rank++) {
        pid_t pid = fork();
        if (pid == 0) {
            /* cmocka's handlers would take a crash here for one of the test, and go on with the other tests. */
            signal(SIGSEGV, SIG_DFL);
            signal(SIGBUS, SIG_DFL);
            ranks_self = rank;
            function(all, rank, context);
            exit(0);
        }
        all->shared->pids[rank] = pid;
    }
}

/* Waits for all; ranks that hang are killed after RANKS_LIMIT_SECONDS, and then their status says so. */
static inline void ranks_join(ranks *all)
{
    double deadline = clock_seconds() + RANKS_LIMIT_SECONDS;
    int left = all->n;
    bool done[RANKS_MAX] = {false};
    while (left > 0) {
        for (int rank = 0; rank < all->n; rank++) {
            if (done[rank] ||
                waitpid(all->shared->pids[rank], &all->statuses[rank], WNOHANG) != all->shared->pids[rank])
                continue;
            done[rank] = true;
            left--;
        }
        for (int rank = 0; clock_seconds() > deadline && rank < all->n; rank++)
            if (!done[rank])
                kill(all->shared->pids[rank], SIGKILL);
        struct timespec pause = {.tv_nsec = 2000000};
        nanosleep(&pause, NULL);
    }
}

/* All at one instant: the first to go is not missed by the others, who would end by themselves. */
static inline void ranks_kill(ranks *all)
{
    static const int signals[] = {SIGSTOP, SIGKILL};
    for (int i = 0; i < 2; i++)
        for (int rank = 0; rank < all->n; rank++)
            kill(all->shared->pids[rank], signals[i]);
}

static inline bool ranks_run(ranks *all, rank_function function, void *context)
{
    ranks_start(all, function, context);
    ranks_join(all);
    for (int rank = 0; rank < all->n; rank++)
        if (all->statuses[rank] != 0)
            return false;
    return true;
}

static inline void ranks_say(ranks *all, int rank, const char *text)
{
    snprintf(all->shared->text[rank], RANKS_TEXT, "%s", text);
}

static inline void sleep_seconds(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

#endif
