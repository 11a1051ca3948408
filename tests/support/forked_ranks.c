/* Forking, environment, waiting. */
#include "support/forked_ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX = 8 };

static void set_number(const char *name, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* cmocka's handlers would take a crash of this process for one of the test and go on with the other tests, here too. */
static void crash_plainly(void)
{
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        signal(signals[i], SIG_DFL);
}

static int run_rank(int rank, int ranks, int serial, fsdp_status (*body)(int rank, void *context), void *context)
{
    crash_plainly();
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_WORLD_SIZE", ranks);
    set_number("MASTER_PORT", 20000 + (getppid() * 7 + serial) % 12000); /* below those that connections are given */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("FSDP_JOB_TOKEN", serial * 100000 + getppid());
    fsdp_status status = body(rank, context);
    if (status != FSDP_OK)
        fprintf(stderr, "rank %d: %s\n", rank, fsdp_last_error());
    return status == FSDP_OK ? 0 : 1;
}

/* NCCL takes ranks for several hosts when they say so, and then lets them share a GPU. */
void forked_rank_share_gpu(int rank)
{
    char host[32];
    snprintf(host, sizeof host, "rank%d", rank);
    setenv("FSDP_GPU", "0", 1);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
}

bool forked_ranks_run(int ranks, fsdp_status (*body)(int rank, void *context), void *context)
{
    static int serial;
    pid_t processes[MAX];
    bool good = ranks <= MAX;
    serial++;
    fflush(NULL);
    for (int r = 0; good && r < ranks; r++) {
        processes[r] = fork();
        if (processes[r] == 0)
            exit(run_rank(r, ranks, serial, body, context));
    }
    for (int r = 0; ranks <= MAX && r < ranks; r++) {
        int state = 1;
        waitpid(processes[r], &state, 0);
        good &= state == 0;
    }
    return good;
}
