/* Whole files and standard input, for the commands that read text. */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include <stdio.h>

/* Everything up to the end, with a NUL after it; malloc'd. NULL, with errno set, when it cannot be read. */
char *input_read(FILE *in, size_t *bytes);
/* The same from a path, "-" for standard input. */
char *input_read_path(const char *path, size_t *bytes);

#endif
