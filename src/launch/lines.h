/* Output of ranks: whole lines, each with the rank in front, never two mixed in one. */
#ifndef LAUNCH_LINES_H
#define LAUNCH_LINES_H

#include <stdbool.h>
#include <stddef.h>

enum { LINE_BYTES = 1 << 16, LINE_PREFIX_BYTES = 256 };

/* One stream of one rank. Zeroed but for the first four fields to begin with. */
typedef struct line_pipe {
    int from;                       /* read end; -1 when it is over */
    int to;                         /* where lines go; -1: nowhere */
    int file;                       /* where they go as they came, too; -1: nowhere */
    char prefix[LINE_PREFIX_BYTES]; /* "[rank 3] ", or "" */
    size_t bytes;                   /* of a line that has not ended */
    bool rewrites; /* lines that end with \r are shown in place; else \r is a character like any other */
    bool *live;    /* of all pipes: such a line stands on the terminal now */
    int refused;   /* errno of the first write that failed otherwise than by a closed pipe; 0: none did */
    char line[LINE_BYTES];
} line_pipe;

/* Waits until `fd` takes output and looks after other things meanwhile; false: give it up, drop what is to be written.
 * After true, `fd` takes as much as a pipe writes in one piece (PIPE_BUF). */
typedef bool (*line_patience)(void *context, int fd);

/* Takes what is there, at most LINE_BYTES of it, and passes complete lines on; a line longer than LINE_BYTES goes out
 * in pieces. The end of the stream (what was left of a line goes out, with a newline) closes `from` and `file`. */
void line_pipe_drain(line_pipe *p, line_patience wait, void *context);

#endif
