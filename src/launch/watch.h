/* The ranks of this launcher while they run: output and signals are passed on, those that end are reaped, those that do
 * not are ended. What follows from it is left to launch.c. */
#ifndef LAUNCH_WATCH_H
#define LAUNCH_WATCH_H

#include <poll.h>

#include "base/record/ring.h"
#include "launch/hold.h"
#include "launch/process.h"
#include "launch/strays.h"
#include "launch/team.h"

typedef struct launcher {
    attempt attempt;
    keeper keeper;
    strays strays;
    team team;
    hold hold;
    process *ranks;
    pulse *pulses;          /* (n) */
    ring *rings;            /* (n) what each did last; outlives it */
    bool *saved;            /* (n) the ring of this round lies in a file */
    int n, signals;         /* signals: a signalfd */
    struct pollfd *polls;   /* (2 n + 2) */
    int failed;             /* index of the first rank that failed, or -1 */
    long oom_kills;         /* of this host, when the round began; -1: unknown */
    int asked;              /* the last signal to end that came from outside; 0: none. No restart after it */
    double asked_at[NSIG];  /* when each was last passed on; 0: never */
    double deadline;        /* when ranks that were asked to end are killed; 0: nobody was asked */
    double blocked_seconds; /* spent waiting for whoever reads our output */
    bool unread;            /* given up: what ranks still say is dropped */
    double next_beat;       /* when the team is next told where the ranks are */
} launcher;

typedef struct saved_signals {
    sigset_t mask;
    struct sigaction child, broken_pipe;
} saved_signals;

fsdp_status watch_take_signals(launcher *l, saved_signals *saved);
void watch_give_signals_back(launcher *l, const saved_signals *saved);

/* Forgets the round before. */
void watch_begin(launcher *l);
void watch_signal_all(launcher *l, int signal_number, bool with_children);
/* Ranks that have not ended `grace` seconds from now (or from the first time they were asked) are killed. */
void watch_ask_to_end(launcher *l, int signal_number, double grace);
int watch_count_running(const launcher *l);
/* Waits for output, a signal, a word of the team or `seconds`, and passes on what came. A rank that writes without
 * pause is heard in turn with everything else. */
void watch_wait(launcher *l, double seconds);
/* The ranks have ended: takes what they still had to say. */
void watch_drain(launcher *l);
void watch_beat(launcher *l);   /* tells the team where the ranks are, if that is due */
void watch_attend(launcher *l); /* signals, ranks that have ended, and those that were asked to and did not */

/* How a rank that has failed came to its end, in words, with its last place; *exit_code as of fsdp_launch. */
void watch_describe_failure(const launcher *l, char *text, size_t bytes, int *exit_code);
/* The signal that asked a rank to end, whether it obeyed at once or saved first and said so by its status; 0: none. */
int watch_interrupted_by(int status);
/* A rank that ended so would end so again: it was asked to end, or its input is bad (status 2). No restart follows. */
bool watch_is_final(int status);
/* Writes the flight files of ranks that have not done it themselves, once a round: before the ranks are ended, or when
 * they have died. */
void watch_save_flights(launcher *l);
const char *watch_flights_folder(const launcher *l); /* ""; no rank has said where files go */
enum { WATCH_FLIGHTS_BYTES = 600 };
/* "; `fsdp debug DIR` says where every rank was"; "" where no rank has said where files go. */
void watch_describe_flights(const launcher *l, char *text, size_t bytes);
/* This rank hangs: it is made to say where, and ended. */
void watch_examine(launcher *l, int local_rank);

#endif
