/* One rank as a process: its environment, its cores, its pipes, its start. */
#ifndef LAUNCH_PROCESS_H
#define LAUNCH_PROCESS_H

#include <signal.h>
#include <sys/types.h>

#include <fsdp/launch.h>

#include "base/host/core_wait.h"
#include "base/record/pulse.h"
#include "launch/cores.h"
#include "launch/lines.h"
#include "launch/numa.h"
#include "launch/outputs.h"
#include "meet/endpoint.h"
#include "meet/rounds.h"

/* What all ranks of one round have in common. */
typedef struct attempt {
    const fsdp_launch_config *config;
    const core_list *cores;
    rank_cores *bound; /* (n_ranks) where they are bound otherwise than to shares; NULL: they are not */
    const outputs *outputs;
    round_place place;
    char rendezvous[ENDPOINT_TEXT_BYTES]; /* where they find each other, as what job and by which secret */
    const char *job, *secret;
    const char *snapshots; /* the folder of hold.h */
    int pulses;            /* file of their pulses, and after them their rings */
    sigset_t mask;         /* the signals blocked before we came */
    int columns;           /* of the terminal that standard output is; 0: it is none */
    bool *live;            /* a line that is rewritten in place stands there now */
} attempt;

/* A rank runs in a process group of its own, so that its children can be ended with it. */
typedef struct process {
    int rank;  /* of the world */
    pid_t pid; /* 0: none */
    bool running;
    int status; /* of waitpid, when it has ended */
    core_watch core;
    line_pipe out, err;
} process;

/* *error is errno of a failed exec (ENOENT: no such program), 0 otherwise; the status tells too. */
fsdp_status process_start(const attempt *a, int local_rank, process *p, int *error);
void process_signal(const process *p, int signal_number, bool with_children);

/* A helper that kills all ranks and removes their snapshots when this process dies without a word: it waits at the far
 * end of a pipe. */
typedef struct keeper {
    pid_t pid;
    int pipe;
    pid_t *groups; /* (n) in shared memory; 0: none */
    int n;
    const char *snapshots; /* a folder, which may not exist */
} keeper;

fsdp_status keeper_start(int n, const char *snapshots, keeper *k); /* borrows the path */
void keeper_stop(keeper *k);                                       /* legal on a zeroed keeper */

#endif
