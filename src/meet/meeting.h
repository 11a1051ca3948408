/* Where the ranks of a job find each other, whichever backend they use: they come to the store of their launcher, or,
 * when something else started them (torchrun, srun, mpirun, a pod each), to one that rank 0 opens at the master's
 * address. There they gather small values, and may go on sending messages over it: a star with rank 0 in its middle. */
#ifndef MEET_MEETING_H
#define MEET_MEETING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/host/job.h"
#include "meet/client.h"

typedef struct meeting meeting;

/* Returns when the store is found (and, on rank 0, opened where that is its task). The caller owns *out. */
fsdp_status meeting_open(const job *j, double timeout_seconds, meeting **out);
/* Says goodbye. Rank 0 waits at most half a second for the others where the store is its own. NULL is legal. */
void meeting_close(meeting *m);

/* Every rank gives `bytes` under a name that it uses once, and gets everybody's, in the order of ranks. Fails at the
 * timeout naming those that did not come, and at once when a rank has ended. */
fsdp_status meeting_gather(meeting *m, const char *name, const void *mine, size_t bytes, client_parts *out);
/* The same with one size on all ranks: all[rank * bytes]. */
fsdp_status meeting_gather_equal(meeting *m, const char *name, const void *mine, size_t bytes, void *all);
/* Rank 0's `value` becomes everybody's. */
fsdp_status meeting_share(meeting *m, const char *name, void *value, size_t bytes);
fsdp_status meeting_barrier(meeting *m, const char *name);

/* Kinds that the meeting makes itself; those of its users begin at MEET_USER. */
enum meeting_kind {
    MEET_LEFT, /* the rank said goodbye and is gone */
    MEET_LOST, /* it is gone without a goodbye */
    MEET_USER,
};

typedef struct meeting_message {
    int rank; /* who sent it, or is gone; on all but rank 0 always 0 */
    uint32_t kind;
    const void *body;
    size_t bytes;
} meeting_message;

typedef void (*meeting_listener)(void *context, const meeting_message *message);

/* Queues a message: from rank 0 to all others but `except` (-1: to all), from the others to rank 0. Any thread; never
 * waits. */
void meeting_send(meeting *m, uint32_t kind, const void *body, size_t bytes, int except);
void meeting_flush(meeting *m, double seconds); /* waits at most that long for a socket that is full; any thread */

/* Waits up to `milliseconds` for messages and hands all that came to the listener, those of a rank in the order in
 * which it sent them. One thread at a time. */
void meeting_listen(meeting *m, int milliseconds, meeting_listener listener, void *context);

/* Tells hosts apart: ranks with the same number can map each other's memory. A container with its own network or
 * processes is a host of its own. */
uint64_t meeting_host_id(void);
uint64_t meeting_machine_id(void); /* of the kernel that runs here, whatever namespaces this process is in */

#endif
