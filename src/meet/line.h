/* Messages over a connected socket that never keep the caller waiting: what cannot be sent now stays queued, what came
 * only in part stays until the rest is there. What messages mean is left to wire.h. */
#ifndef MEET_LINE_H
#define MEET_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Largest body of a message, of strangers and of those who have proved that they belong here; and how much may wait to
 * be sent to somebody who does not read. */
enum { LINE_STRANGER_BYTES = 1024, LINE_BODY_BYTES = 16 << 20, LINE_QUEUE_BYTES = 64 << 20 };

/* Zeroed, with socket -1, it is a line without another end: all calls are legal and do nothing. One thread at a time
 * may send, one may receive. */
typedef struct line {
    int socket;
    size_t limit; /* of a body that comes in; LINE_BODY_BYTES to begin with */
    char *out, *in;
    size_t out_bytes, out_room, in_bytes, in_room;
    size_t taken; /* of `in`: the message handed out last */
} line;

typedef enum line_state {
    LINE_NOTHING, /* no whole message is there */
    LINE_MESSAGE,
    LINE_BROKEN,  /* the other end is gone */
    LINE_GARBLED, /* it sent something that is not a message, or one that is too long */
} line_state;

void line_open(line *l, int socket); /* takes the socket */
void line_close(line *l);            /* drops what is queued */

/* Queues a message; false when there is no memory for it, or too much waits already. */
bool line_queue(line *l, uint32_t kind, const void *body, size_t bytes);

/* Sends what the socket takes. False: the other end is gone. */
bool line_flush(line *l);

/* Until all that is queued is sent, the deadline (clock_seconds) has passed or the other end is gone. */
bool line_flush_until(line *l, double deadline);

/* The next message; *body is valid until the next call. Reads only what is there. */
line_state line_receive(line *l, uint32_t *kind, const void **body, size_t *bytes);

#endif
