/* What ranks leave behind. A rank's group is killed with it, but its children may have left that group: a daemon, a
 * helper in a session of its own. */
#ifndef LAUNCH_STRAYS_H
#define LAUNCH_STRAYS_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct strays {
    pid_t *others; /* children that were there before: not ours to end */
    int n_others;
    bool adopts; /* orphans come to us */
    bool before; /* they did before we began */
} strays;

/* From here on, processes whose parents die below us become our children. Where the system cannot do that or say who
 * our children are, strays stay alone: the job does not depend on them. */
void strays_begin(strays *s);

/* Kills and reaps them and what they have started. To be called when no rank runs: ranks are children too. */
void strays_end(const strays *s);

/* Orphans go where they went before; frees what `s` holds. One of zeros is fine. */
void strays_free(strays *s);

#endif
