/* Starts the ranks of a job on this host and looks after them to their end, together with the launchers of other hosts:
 * what `fsdp run` does.
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

/* Which cores of this host a rank runs on. Near means: of the NUMA node of its GPU, else of its share of the cores. */
typedef enum fsdp_numa_binding {
    FSDP_NUMA_SHARES,       /* a share of all cores, neighbours together */
    FSDP_NUMA_NODE,         /* all that are near */
    FSDP_NUMA_SOCKET,       /* all of the socket that is near */
    FSDP_NUMA_EXCLUSIVE,    /* a share of those that are near */
    FSDP_NUMA_CORE_COMPLEX, /* those near that share one cache; each rank another, as far as there are enough */
} fsdp_numa_binding;

typedef struct fsdp_launch_config {
    size_t size;
    const char *const *command; /* program (found in PATH as by a shell) and arguments; NULL at the end */
    int n_ranks;                /* on this host: --nproc-per-node */
    int min_nodes, max_nodes;   /* launchers that make up the job */
    int node;                   /* which one this is; -1: in the order in which they come */
    const char *endpoint; /* "host[:port]" where all launchers meet, port 29400 if left out; NULL: this one is alone */
    const char *job_id;   /* tells this job from others at the same endpoint; NULL: a random one (alone), or "none" */
    const char *secret_file;     /* holds what proves that a launcher belongs to the job; NULL: FSDP_RDZV_SECRET, else a
                                    random one (alone), or none */
    const char *master_address;  /* of rank 0, for programs that ask; NULL: found out */
    int master_port;             /* likewise; 0: one that is free */
    const char *local_address;   /* of this host as others reach it; NULL: the one that the endpoint is reached from */
    double join_timeout_seconds; /* for enough launchers to come */
    double last_call_seconds;    /* how long enough launchers wait for more, up to max_nodes */
    int max_restarts;            /* how often all ranks may be restarted after one has failed */
    double restart_window_seconds; /* restarts longer ago do not count; 0: all count */
    double watchdog_seconds; /* a rank that has a core and makes no progress for so long is hung; 0: nobody looks */
    double monitor_seconds;  /* how often ranks are looked at */
    double grace_seconds;    /* between asking ranks to end (SIGTERM) and ending them (SIGKILL) */
    const char *log_dir;     /* for what is redirected; NULL: none */
    const char *redirects;   /* torchrun's: 0, 1 (out), 2 (err), 3 (both), or "0:1,1:3" by local rank; NULL: 0 */
    const char *tee;         /* the same, and shown, too */
    const char *shown_ranks; /* "0,2": local ranks whose output is shown; NULL: all */
    const char *report_file; /* where every failure is written down; NULL: report.jsonl in log_dir, if there is one */
    bool plain_first;        /* lines of rank 0 come without the prefix "[rank 0] " */
    bool share_cores;        /* let ranks use all cores instead of a share each */
    char *left; /* of `left_bytes`, filled in: the folder in which ranks of fsdp left what they did last, when the job
                   failed; "": none did. NULL: nobody asks */
    size_t left_bytes;
    const char *line_prefix; /* template of what stands before lines: ${rank}, ${local_rank}, ${hostname} and
                                ${role_name}; NULL: "[rank ${rank}] " */
    const char *signals;     /* "SIGTERM,SIGUSR1": those that are passed on to ranks; NULL: SIGINT, SIGTERM, SIGHUP,
                                SIGUSR1 and SIGUSR2 */
    bool virtual_local_rank; /* every rank is told LOCAL_RANK 0 and sees one GPU, its own */
    fsdp_numa_binding numa_binding;
} fsdp_launch_config;

#define FSDP_LAUNCH_CONFIG_INIT                                                                                        \
    {                                                                                                                  \
        .size = sizeof(fsdp_launch_config), .n_ranks = 1, .min_nodes = 1, .max_nodes = 1, .node = -1,                  \
        .join_timeout_seconds = 600, .last_call_seconds = 30, .monitor_seconds = 0.1, .grace_seconds = 30              \
    }

/* Runs the command once per rank, with torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
 * GROUP_RANK, GROUP_WORLD_SIZE, ROLE_*, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*), FSDP_RDZV_* (by which ranks of fsdp
 * find each other), FSDP_RESTART_COUNT, FSDP_FIRST_WORLD_SIZE, and OMP_NUM_THREADS when it is not set; returns when all
 * have ended. Their output comes out on this process's, line by line, with "[rank N] " in front. SIGINT, SIGTERM,
 * SIGHUP, SIGUSR1 and SIGUSR2 to this process, or those of `signals`, go to every rank (all but the last two once a
 * second at most: some senders send them twice); a second SIGINT, a second or more after the first, ends them at once.
 * When one rank fails, all others are ended, on all hosts, and started again where restarts are left: with as many
 * launchers as come, at least min_nodes. A launcher that comes while fewer than max_nodes take part joins the next
 * round, which begins at once. A rank that ended because of SIGINT, SIGTERM, SIGHUP, SIGQUIT or SIGUSR1, or with the
 * status 128 plus one of these, was asked to end: no restart follows. When this process dies, whatever the way, its
 * ranks are killed.
 *
 * *exit_code, always set, is what a command should exit with: 0, the status of the first rank that failed, 128 plus the
 * signal that killed it, 127 when the program was not found, 126 when it could not be run. FSDP_OK means 0; otherwise
 * the message says which rank ended how. Log lines (fsdp/log.h) tell of restarts.
 *
 * Blocks the signals above and SIGCHLD in the calling thread meanwhile: call it from a program with one thread. */
FSDP_API fsdp_status fsdp_launch(const fsdp_launch_config *config, int *exit_code);

/* GPUs that ranks of this host can use, without starting the driver: as CUDA_VISIBLE_DEVICES says, else as many as the
 * system has. For --nproc-per-node gpu. */
FSDP_API int fsdp_launch_count_gpus(void);
FSDP_API int fsdp_launch_count_cores(void); /* that this process may use: --nproc-per-node cpu */

#ifdef __cplusplus
}
#endif
#endif
