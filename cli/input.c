/* Reads a stream of unknown length to its end. */
#include "input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

char *input_read(FILE *in, size_t *bytes)
{
    char *text = NULL;
    size_t capacity = 0;
    *bytes = 0;
    do {
        if (capacity - *bytes < 65536) {
            capacity = 2 * capacity + 131072;
            char *grown = realloc(text, capacity);
            if (!grown) {
                free(text);
                errno = ENOMEM;
                return NULL;
            }
            text = grown;
        }
        *bytes += fread(text + *bytes, 1, capacity - *bytes - 1, in);
    } while (!feof(in) && !ferror(in));
    if (ferror(in)) {
        int reason = errno ? errno : EIO;
        free(text);
        errno = reason;
        return NULL;
    }
    text[*bytes] = 0;
    return text;
}

char *input_read_path(const char *path, size_t *bytes)
{
    if (strcmp(path, "-") == 0)
        return input_read(stdin, bytes);
    FILE *in = fopen(path, "r");
    if (!in)
        return NULL;
    char *text = input_read(in, bytes);
    int reason = errno;
    fclose(in);
    errno = reason;
    return text;
}
