/* Many cases: seeds one after another, on forked worlds of 1 to 3 ranks that each run a list of them; those that fail
 * are made smaller and printed. */
#ifndef TESTS_DIFFERENTIAL_SESSION_H
#define TESTS_DIFFERENTIAL_SESSION_H

#include "differential/support_engine.h"

typedef struct session {
    uint64_t first; /* seed */
    int n_cases;
    double seconds;    /* not 0: goes on with further cases until so much time has passed */
    int n_variants;    /* of each case, beside the plain one */
    bool shaken;       /* variants are shaken */
    bool comm_threads; /* collectives run on threads of their own */
} session;

/* Changes `s` by the command line: --seed N (that case alone), --first N, --cases N, --minutes N. False: something else
 * was given; what is known has been printed. */
bool session_parse(session *s, int argc, char **argv);

/* Runs it; returns how many cases failed. They have been printed. */
int session_run(const session *s);

#endif
