/* Lines of a text file, plain or compressed, with their numbers, or the values of JSON that is not cut into lines.
 * Memory is bounded by the longest line permitted. What a line or value holds is the caller's business. A byte order
 * mark at the start of a file is skipped. */
#ifndef FORMAT_TEXT_READER_H
#define FORMAT_TEXT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct text_reader text_reader;

typedef struct text_line {
    const char *text; /* without its newline, a NUL after it; valid until the next call */
    size_t bytes;     /* the line itself may hold NULs, and a carriage return at its end */
    int64_t number;   /* from 1 */
    bool has_newline; /* false only for a last line that ends with the file */
} text_line;

/* `max_line_bytes` 0: 64 MiB. The caller closes *out. */
fsdp_status text_reader_open(const char *path, size_t max_line_bytes, text_reader **out);
void text_reader_close(text_reader *reader); /* NULL is legal */

/* The next line; *more is false at the end. On failure the message names file and line, and *more says whether reading
 * can go on: true for a line that is too long, which was skipped; false when the rest cannot be read. */
fsdp_status text_reader_next(text_reader *reader, text_line *line, bool *more);

/* What comes next, without taking it: *first is the first byte that is not blank, 0 when there is none; *alone says
 * whether it stands alone on its line. On failure reading cannot go on. */
fsdp_status text_reader_peek(text_reader *reader, char *first, bool *alone);

/* The next JSON value, from its first byte to its last by brackets and quotes alone; blanks and commas around it are
 * passed over. A '[' that stands where a value could is entered when `enter` says so, and its elements are the values
 * then; *more is false at its end, or at the end of the file. Lines may follow. `value` has no NUL after it. On
 * failure (the file ends within a value, or a value is too long) reading cannot go on. */
fsdp_status text_reader_next_value(text_reader *reader, bool enter, text_line *value, bool *more);

/* Where the next line begins, in bytes of the decompressed file, and how many lines came before it; and the way back
 * there. */
int64_t text_reader_offset(const text_reader *reader);
int64_t text_reader_lines(const text_reader *reader);
fsdp_status text_reader_seek(text_reader *reader, int64_t offset, int64_t lines);

#endif
