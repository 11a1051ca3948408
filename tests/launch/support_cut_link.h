/* A link between a launcher and the store of its job that is cut at a chosen message: a process between the two that
 * passes whole messages on, counts them, and at the chosen one does what a cut network does. */
#ifndef TESTS_LAUNCH_SUPPORT_CUT_LINK_H
#define TESTS_LAUNCH_SUPPORT_CUT_LINK_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "meet/endpoint.h"

enum { TO_STORE, FROM_STORE, DIRECTIONS };

/* What follows the cut, during which nothing passes and nobody is told. */
typedef enum cut_kind {
    CUT_SHORT,    /* what was held up arrives */
    CUT_LONG,     /* TCP gives up on both sides; new connections are made */
    CUT_ONE_SIDE, /* TCP gives up on the launcher's side; the store hears nothing more, but its connections stay */
    CUT_FOR_GOOD, /* it never ends; both hosts believe that they are connected */
    CUT_KINDS,
} cut_kind;

/* Shared with the process. */
typedef struct cut_progress {
    atomic_int messages[DIRECTIONS]; /* so far */
    atomic_int kind;                 /* of the message at which the link was cut; 0: not yet */
} cut_progress;

typedef struct cut_link {
    pid_t pid;
    endpoint at; /* the launcher's side */
    cut_progress *progress;
} cut_link;

/* To the store at `store`. It is cut instead of passing message number `at` (from 1; 0: never) in
 * this direction, over all connections. */
void cut_link_open(cut_link *l, const endpoint *store, cut_kind kind, int direction, int at);
void cut_link_close(cut_link *l);

#endif
