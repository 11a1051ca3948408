/* Output of ranks: whole lines, each with the rank in front, never two mixed in one. */
#ifndef LAUNCH_LINES_H
#define LAUNCH_LINES_H

#include <stdbool.h>
#include <stddef.h>

enum { LINE_BYTES = 1 << 16 };

/* One stream of one rank. Zeroed but for the first three fields to begin with. */
typedef struct line_pipe {
    int from;        /* read end; -1 when it is over */
    int to;          /* where lines go */
    char prefix[32]; /* "[rank 3] ", or "" */
    size_t bytes;    /* of a line that has not ended */
    char line[LINE_BYTES];
} line_pipe;

/* Takes what is there without waiting and passes complete lines on; a line longer than LINE_BYTES goes out in pieces.
 * False when the stream has ended (what was left of a line went out, with a newline); `from` is then closed. */
bool line_pipe_drain(line_pipe *p);

#endif
