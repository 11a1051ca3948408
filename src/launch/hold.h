/* Memory in which ranks leave their snapshots and which outlives them: a folder of the memory file system that is this
 * launcher's and goes with it. Once ranks use it, other nodes may put copies of theirs there (meet/vault.h). */
#ifndef LAUNCH_HOLD_H
#define LAUNCH_HOLD_H

#include "launch/team.h"

enum { HOLD_PATH_BYTES = 128 };

typedef struct hold {
    char path[HOLD_PATH_BYTES]; /* made by the first rank that keeps snapshots */
    struct server *server;      /* NULL: no rank does, or there is no other node */
    bool failed;
} hold;

fsdp_status hold_name(hold *h); /* a path that nobody else has */
/* Opens the vault when ranks have begun to use the folder, and leaves its address there (JOB_VAULT_NAME). Cheap. */
void hold_attend(hold *h, const team *t);
void hold_close(hold *h); /* legal when zeroed */

#endif
