/* Lines on a terminal or in a file: one line of progress that is rewritten in place, above it lines that stay. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

typedef struct terminal {
    FILE *out;
    bool live;   /* `out` is a terminal that can rewrite a line */
    int columns; /* 0 where it is none */
    bool shown;  /* a line of progress stands there now */
    bool passed; /* `out` leads to `fsdp run`, which has the terminal and shows lines that end with \r in place */
} terminal;

terminal terminal_open(FILE *out);
/* Replaces the line of progress; where there is no terminal, prints a line. */
void terminal_progress(terminal *t, const char *text);
/* "####....", so far as `part` (0 to 1) goes, into 25 bytes. */
void terminal_bar(char *cells, double part);
/* A line that stays. */
void terminal_line(terminal *t, const char *text);
/* Text that a model wrote: what is not UTF-8, and what a terminal would obey, is shown as U+FFFD. */
void terminal_text(FILE *out, const char *text, size_t bytes);
/* Leaves the last progress as it is and goes to a new line. */
void terminal_close(terminal *t);

#endif
