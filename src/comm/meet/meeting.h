/* Where the ranks of an NCCL job find each other: rank 0 listens at the master's address, the others come to it with
 * the job's token and get what rank 0 has to give (NCCL's unique id). The connections stay: a star over which the
 * ranks send messages beside NCCL. What they send is left to watchdog.c. */
#ifndef COMM_MEET_MEETING_H
#define COMM_MEET_MEETING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/job.h"

enum { MEET_PAYLOAD_BYTES = 128 };

typedef struct meeting meeting;

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

/* Returns when all ranks have come, or fails at the timeout naming those that did not. `payload` is read on rank 0 and
 * written on the others. The caller owns *out. */
fsdp_status meeting_open(const job *j, double timeout_seconds, void *payload, meeting **out);

/* The same at a socket that is open already and is taken: rank 0's listener, or another rank's connection to it. */
fsdp_status meeting_open_at(const job *j, int socket, double timeout_seconds, void *payload, meeting **out);

/* Sends what is queued, says goodbye, and waits at most half a second for that to reach the others. NULL is legal. */
void meeting_close(meeting *m);

/* Queues a message: from rank 0 to all others but `except` (-1: to all), from the others to rank 0. Any thread; never
 * waits. Sent by the next meeting_listen or meeting_flush. */
void meeting_send(meeting *m, uint32_t kind, const void *body, size_t bytes, int except);
void meeting_flush(meeting *m, double seconds); /* waits at most that long for sockets that are full; any thread */

/* Waits up to `milliseconds` for messages and hands all that came to the listener, those of a rank in the order in
 * which it sent them. One thread at a time. */
void meeting_listen(meeting *m, int milliseconds, meeting_listener listener, void *context);

#endif
