/* The book that rank 0 keeps of what every rank calls: finds ranks that call different things, and knows who has not
 * come to a collective that others wait in. Plain bookkeeping: how calls get here is left to watchdog.c. */
#ifndef COMM_WATCH_LEDGER_H
#define COMM_WATCH_LEDGER_H

#include <stdbool.h>

#include "comm/signature.h"

typedef struct ledger ledger;

/* One rank's call of one collective, or that it has freed the group. A group is known by the split that made it (a
 * number that is never used again) and its first member; its collectives are numbered from 0, the same on all its
 * ranks. Plain data that travels between ranks. */
typedef struct ledger_call {
    int32_t serial, first;
    uint32_t sequence;
    uint32_t frees; /* not 0: `what` means nothing, no more calls of this rank come */
    signature what;
} ledger_call;

ledger *ledger_new(int world_size); /* NULL: no memory */
void ledger_free(ledger *l);        /* NULL is legal */

/* The members (ranks of the world) of a group whose calls will come. A group that is known already is left as it is. */
fsdp_status ledger_add_group(ledger *l, int serial, const int32_t *members, int n);

/* `rank` makes its next call in a group, or frees it (the last one to do so closes its book), at the time `now`
 * (seconds). FSDP_ERR_PEER, naming both ranks and what they called, when another rank called something else there, or
 * left for good. */
fsdp_status ledger_add(ledger *l, int rank, const ledger_call *call, double now);

/* `rank` makes no more calls. FSDP_ERR_PEER when others wait for one. */
fsdp_status ledger_leave(ledger *l, int rank);

/* FSDP_ERR_TIMEOUT when a collective has waited for its last ranks for longer than `timeout`: names it and them. */
fsdp_status ledger_check(ledger *l, double now, double timeout);

int ledger_count(const ledger *l); /* groups whose books are open */

/* Where a rank was last, as signature_place. */
const char *ledger_place(const ledger *l, int rank, char *text, size_t bytes);

#endif
