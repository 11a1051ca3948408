/* Messages over a connected socket that never keep the caller waiting: what cannot be sent now stays queued, what came
 * only in part stays until the rest is there. What messages mean is left to meeting.c and watchdog.c. */
#ifndef COMM_MEET_LINE_H
#define COMM_MEET_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed, with socket -1, it is a line without another end: all calls are legal and do nothing. One thread at a time
 * may send, one may receive. */
typedef struct line {
    int socket;
    char *out, *in;
    size_t out_bytes, out_room, in_bytes, in_room;
    size_t taken; /* of `in`: the message handed out last */
} line;

typedef enum line_state {
    LINE_NOTHING, /* no whole message is there */
    LINE_MESSAGE,
    LINE_BROKEN, /* the other end is gone, or sent something that is not a message */
} line_state;

void line_open(line *l, int socket); /* takes the socket */
void line_close(line *l);            /* drops what is queued */

/* Queues a message; false when there is no memory for it. */
bool line_queue(line *l, uint32_t kind, const void *body, size_t bytes);

/* Sends what the socket takes. False: the other end is gone. */
bool line_flush(line *l);

/* Until all that is queued is sent, the deadline (clock_seconds) has passed or the other end is gone. */
bool line_flush_until(line *l, double deadline);

/* The next message; *body is valid until the next call. Reads only what is there. */
line_state line_receive(line *l, uint32_t *kind, const void **body, size_t *bytes);

#endif
