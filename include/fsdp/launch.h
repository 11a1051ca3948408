/* Starts the ranks of a job on this host and looks after them to their end: what `fsdp run` does.
 *
 *     fsdp_launch_config job = FSDP_LAUNCH_CONFIG_INIT;
 *     int code;
 *     job.command = (const char *const[]){"build/lecture", "--epochs", "3", NULL};
 *     job.n_ranks = 2;
 *     fsdp_launch(&job, &code);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_LAUNCH_H
#define FSDP_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_launch_config {
    size_t size;
    const char *const *command; /* program (found in PATH as by a shell) and arguments; NULL at the end */
    int n_ranks;                /* on this host: --nproc-per-node */
    int n_nodes, node;          /* the job's hosts, and which one this is; 1 and 0: --standalone */
    const char *master_address; /* NULL: 127.0.0.1; needed with several nodes */
    int master_port;            /* 0: one that is free; needed with several nodes */
    const char *job_token;      /* NULL: FSDP_JOB_TOKEN, else a random one (one node) or none (several) */
    int max_restarts;           /* how often all ranks may be restarted after one has failed */
    double grace_seconds;       /* between asking ranks to end (SIGTERM) and ending them (SIGKILL) */
    bool plain_first;           /* lines of rank 0 come without the prefix "[rank 0] " */
    bool share_cores;           /* let ranks use all cores instead of a share each */
} fsdp_launch_config;

#define FSDP_LAUNCH_CONFIG_INIT                                                                                        \
    {                                                                                                                  \
        .size = sizeof(fsdp_launch_config), .n_ranks = 1, .n_nodes = 1, .grace_seconds = 30                            \
    }

/* Runs the command once per rank, with torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
 * GROUP_RANK, MASTER_ADDR, MASTER_PORT), FSDP_JOB_TOKEN, FSDP_RESTART_COUNT, and OMP_NUM_THREADS when it is not set;
 * returns when all have ended. Their output comes out on this process's, line by line, with "[rank N] " in front.
 * SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 to this process go to every rank (the first three once a second at most:
 * some senders send them twice); a second SIGINT, a second or more after the first, ends them at once.
 * When one rank fails, the others are ended. A rank that ended because of SIGINT, SIGTERM or SIGUSR1, or with the
 * status 128 plus one of these, was asked to end: no restart follows. When this process dies, whatever the way, they
 * are killed.
 *
 * *exit_code, always set, is what a command should exit with: 0, the status of the first rank that failed, 128 plus the
 * signal that killed it, 127 when the program was not found, 126 when it could not be run. FSDP_OK means 0; otherwise
 * the message says which rank ended how. Log lines (base/log.h) tell of restarts.
 *
 * Blocks the signals above and SIGCHLD in the calling thread meanwhile: call it from a program with one thread. */
FSDP_API fsdp_status fsdp_launch(const fsdp_launch_config *config, int *exit_code);

#ifdef __cplusplus
}
#endif
#endif
