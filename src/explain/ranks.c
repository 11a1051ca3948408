/* Starts the ranks, waits for them with a limit, and ends what is left of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "explain/rank.h"

static const double limit_seconds = 120;

static void set_number(const char *name, long value)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

/* What a launcher would say. The job's name is the process that tells, and the strategy it tells about. */
static void set_environment(int rank, int n_ranks, fsdp_strategy strategy)
{
    static const char *const others[] = {"FSDP_RDZV_ENDPOINT",
                                         "FSDP_RDZV_ID",
                                         "FSDP_RDZV_SECRET",
                                         "FSDP_RDZV_ROUND",
                                         "FSDP_SNAPSHOTS",
                                         "FSDP_FIRST_WORLD_SIZE",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "GROUP_RANK",
                                         "NNODES"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        unsetenv(others[i]);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", n_ranks);
    set_number("LOCAL_WORLD_SIZE", n_ranks);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", 20000 + ((long)getppid() * 7 + (long)strategy) % 12000);
    set_number("FSDP_JOB_TOKEN", (long)getppid() * 10 + (long)strategy);
}

static void be_rank(fsdp_strategy strategy, int rank, int n_ranks, rank_record *r)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_environment(rank, n_ranks, strategy);
    if (rank_run(strategy, rank, n_ranks, r) == FSDP_OK)
        r->done = true;
    else
        snprintf(r->error, sizeof r->error, "%s", fsdp_last_error());
    _exit(r->done ? 0 : 1);
}

/* True when all have ended; a rank that fails ends the others itself, by its goodbye to them. */
static bool await_all(pid_t *ranks, int n)
{
    double end = clock_seconds() + limit_seconds;
    int left = n;
    while (left > 0 && clock_seconds() < end) {
        for (int i = 0; i < n; i++) {
            if (ranks[i] > 0 && waitpid(ranks[i], NULL, WNOHANG) == ranks[i]) {
                ranks[i] = 0;
                left--;
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return left == 0;
}

static void end_all(const pid_t *ranks, int n)
{
    for (int i = 0; i < n; i++) {
        if (ranks[i] > 0) {
            kill(ranks[i], SIGKILL);
            waitpid(ranks[i], NULL, 0);
        }
    }
}

static fsdp_status judge(const rank_record *records, int n, bool ended)
{
    for (int i = 0; i < n; i++)
        if (records[i].error[0])
            return error_set(FSDP_ERR_PEER, "explain: %s", records[i].error);
    for (int i = 0; i < n; i++)
        if (!records[i].done)
            return error_set(FSDP_ERR_PEER,
                             ended ? "explain: rank %d died" : "explain: rank %d did not end in 2 minutes", i);
    return FSDP_OK;
}

fsdp_status records_take(fsdp_strategy strategy, int n_ranks, rank_record **out)
{
    pid_t ranks[64] = {0};
    size_t bytes = (size_t)n_ranks * sizeof **out;
    rank_record *records = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *out = NULL;
    if (records == MAP_FAILED)
        return error_set(FSDP_ERR_MEMORY, "explain: no memory for the events of %d ranks", n_ranks);
    fflush(NULL);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < n_ranks && status == FSDP_OK; i++) {
        ranks[i] = fork();
        if (ranks[i] == 0)
            be_rank(strategy, i, n_ranks, &records[i]);
        if (ranks[i] < 0)
            status = error_set(FSDP_ERR_STATE, "explain: cannot start rank %d", i);
    }
    bool ended = status == FSDP_OK && await_all(ranks, n_ranks);
    end_all(ranks, n_ranks);
    if (status == FSDP_OK)
        status = judge(records, n_ranks, ended);
    if (status == FSDP_OK)
        *out = records;
    else
        munmap(records, bytes);
    return status;
}

void records_free(rank_record *records, int n_ranks)
{
    if (records)
        munmap(records, (size_t)n_ranks * sizeof *records);
}
