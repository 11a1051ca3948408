/* Cuts a byte stream into lines. The buffer grows to the longest line met, never past the limit. */
#include "format/text_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/byte_stream.h"

enum { FIRST_BYTES = 256 << 10 };
static const size_t default_line_bytes = (size_t)64 << 20;

struct text_reader {
    byte_stream *stream;
    char *buffer; /* capacity + 1 bytes: room for the NUL behind a last line */
    size_t capacity, max_line_bytes;
    size_t at, searched, filled; /* the line begins at `at`; no newline before `searched` */
    int64_t number;              /* of the last line given out */
    bool ended;                  /* the stream has no more bytes */
    bool failed;
};

fsdp_status text_reader_open(const char *path, size_t max_line_bytes, text_reader **out)
{
    fsdp_status status;
    *out = NULL;
    text_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    reader->max_line_bytes = max_line_bytes ? max_line_bytes : default_line_bytes;
    reader->capacity = FIRST_BYTES;
    TRY_OR(fail, byte_stream_open(path, &reader->stream));
    reader->buffer = malloc(reader->capacity + 1);
    if (!reader->buffer) {
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
        goto fail;
    }
    *out = reader;
    return FSDP_OK;
fail:
    text_reader_close(reader);
    return status;
}

void text_reader_close(text_reader *reader)
{
    if (!reader)
        return;
    byte_stream_close(reader->stream);
    free(reader->buffer);
    free(reader);
}

const char *text_reader_path(const text_reader *reader)
{
    return byte_stream_path(reader->stream);
}

/* Makes room behind what is buffered: by moving the open line to the front, else by growing. */
static fsdp_status make_room(text_reader *r)
{
    if (r->at > 0) {
        memmove(r->buffer, r->buffer + r->at, r->filled - r->at);
        r->filled -= r->at;
        r->searched -= r->at;
        r->at = 0;
    }
    if (r->filled < r->capacity)
        return FSDP_OK;
    char *buffer = realloc(r->buffer, 2 * r->capacity + 1);
    if (!buffer)
        return error_set(FSDP_ERR_MEMORY, "%s: line %" PRId64 ": out of memory for a line of more than %zu bytes",
                         text_reader_path(r), r->number + 1, r->capacity);
    r->buffer = buffer;
    r->capacity *= 2;
    return FSDP_OK;
}

static fsdp_status read_more(text_reader *r)
{
    size_t got;
    if (r->filled == r->capacity)
        FSDP_TRY(make_room(r));
    fsdp_status status = byte_stream_read(r->stream, r->buffer + r->filled, r->capacity - r->filled, &got);
    if (status != FSDP_OK)
        return error_prefix(status, "line %" PRId64 ": ", r->number + 1);
    r->ended = got == 0;
    r->filled += got;
    return FSDP_OK;
}

/* Drops the rest of a line that is too long, without keeping it. */
static fsdp_status pass_over(text_reader *r)
{
    for (;;) {
        char *newline = memchr(r->buffer + r->at, '\n', r->filled - r->at);
        if (newline) {
            r->at = r->searched = (size_t)(newline - r->buffer) + 1;
            return FSDP_OK;
        }
        r->at = r->searched = r->filled = 0;
        if (r->ended)
            return FSDP_OK;
        FSDP_TRY(read_more(r));
    }
}

static fsdp_status refuse_long_line(text_reader *r)
{
    FSDP_TRY(pass_over(r));
    r->number++;
    return error_set(FSDP_ERR_INPUT, "%s: line %" PRId64 " is longer than %zu bytes", text_reader_path(r), r->number,
                     r->max_line_bytes);
}

static void give_out(text_reader *r, char *end, bool has_newline, text_line *line)
{
    *end = '\0';
    *line = (text_line){.text = r->buffer + r->at,
                        .bytes = (size_t)(end - r->buffer) - r->at,
                        .number = ++r->number,
                        .has_newline = has_newline};
    r->at = r->searched = (size_t)(end - r->buffer) + has_newline;
}

static fsdp_status next(text_reader *r, text_line *line, bool *more)
{
    for (;;) {
        char *newline = r->searched < r->filled ? memchr(r->buffer + r->searched, '\n', r->filled - r->searched) : NULL;
        size_t length = (newline ? (size_t)(newline - r->buffer) : r->filled) - r->at;
        *more = newline || length > 0 || !r->ended;
        if (length > r->max_line_bytes)
            return refuse_long_line(r);
        if (newline || r->ended) {
            if (*more)
                give_out(r, newline ? newline : r->buffer + r->filled, newline != NULL, line);
            return FSDP_OK;
        }
        r->searched = r->filled;
        FSDP_TRY(read_more(r));
    }
}

fsdp_status text_reader_next(text_reader *reader, text_line *line, bool *more)
{
    *line = (text_line){0};
    *more = false;
    if (reader->failed)
        return error_set(FSDP_ERR_STATE, "%s: reading went on after it had failed in line %" PRId64,
                         text_reader_path(reader), reader->number + 1);
    int64_t number = reader->number;
    fsdp_status status = next(reader, line, more);
    if (status != FSDP_OK && reader->number == number) { /* no line was passed over: the stream is broken */
        reader->failed = true;
        *more = false;
    }
    return status;
}
