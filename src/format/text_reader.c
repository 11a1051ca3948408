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
    char *buffer; /* capacity + 1 bytes: room for the NUL after a last line */
    size_t capacity, max_line_bytes;
    size_t at, searched, filled; /* the line begins at `at`; no newline before `searched` */
    int64_t number;              /* of the last line given out */
    int64_t taken;               /* bytes of the stream so far */
    bool begun;                  /* a byte order mark was looked for */
    bool in_array;               /* values are the elements of an array */
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

static const char *text_reader_path(const text_reader *reader)
{
    return byte_stream_path(reader->stream);
}

/* Makes room after what is buffered: by moving the open line to the front, else by growing. */
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
    r->taken += (int64_t)got;
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

static fsdp_status begin(text_reader *r)
{
    if (r->failed)
        return error_set(FSDP_ERR_STATE, "%s: reading went on after it had failed in line %" PRId64,
                         text_reader_path(r), r->number + 1);
    while (!r->begun && r->filled < 3 && !r->ended)
        FSDP_TRY(read_more(r));
    if (!r->begun && r->filled >= 3 && memcmp(r->buffer, "\xEF\xBB\xBF", 3) == 0)
        r->at = r->searched = 3;
    r->begun = true;
    return FSDP_OK;
}

fsdp_status text_reader_next(text_reader *reader, text_line *line, bool *more)
{
    *line = (text_line){0};
    *more = false;
    int64_t number = reader->number;
    fsdp_status status = begin(reader);
    if (status == FSDP_OK)
        status = next(reader, line, more);
    if (status != FSDP_OK && reader->number == number) { /* no line was skipped: the stream is broken */
        reader->failed = true;
        *more = false;
    }
    return status;
}

int64_t text_reader_offset(const text_reader *reader)
{
    return reader->taken - (int64_t)(reader->filled - reader->at);
}

int64_t text_reader_lines(const text_reader *reader)
{
    return reader->number;
}

fsdp_status text_reader_seek(text_reader *reader, int64_t offset, int64_t lines)
{
    reader->at = reader->searched = reader->filled = 0;
    reader->ended = false;
    reader->begun = offset > 0;
    reader->number = lines;
    reader->taken = offset;
    fsdp_status status = byte_stream_seek(reader->stream, offset);
    reader->failed = status != FSDP_OK;
    return status;
}

/* --- values ------------------------------------------------------------------------------------------------------ */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The byte `offset` after the present position; -1 at the end of the file. */
static fsdp_status byte_at(text_reader *r, size_t offset, int *byte)
{
    while (r->at + offset >= r->filled && !r->ended) {
        if (offset > r->max_line_bytes)
            return error_set(FSDP_ERR_INPUT, "%s: line %" PRId64 ": a value of more than %zu bytes",
                             text_reader_path(r), r->number + 1, r->max_line_bytes);
        r->searched = r->at; /* moving what is buffered must not lose count */
        FSDP_TRY(read_more(r));
    }
    *byte = r->at + offset < r->filled ? (unsigned char)r->buffer[r->at + offset] : -1;
    return FSDP_OK;
}

static void take_bytes(text_reader *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        r->number += r->buffer[r->at + i] == '\n';
    r->at += n;
    r->searched = r->at;
}

static fsdp_status peek(text_reader *r, char *first, bool *alone)
{
    size_t offset = 0;
    int byte = -1;
    FSDP_TRY(begin(r));
    do
        FSDP_TRY(byte_at(r, offset++, &byte));
    while (byte >= 0 && is_blank((char)byte));
    *first = byte < 0 ? '\0' : (char)byte;
    do
        FSDP_TRY(byte_at(r, offset++, &byte));
    while (byte == ' ' || byte == '\t' || byte == '\r');
    *alone = byte < 0 || byte == '\n';
    return FSDP_OK;
}

fsdp_status text_reader_peek(text_reader *reader, char *first, bool *alone)
{
    fsdp_status status = peek(reader, first, alone);
    reader->failed = status != FSDP_OK;
    return status;
}

/* The length of the value that begins where reading stands. */
static fsdp_status measure_value(text_reader *r, size_t *length)
{
    size_t depth = 0, i = 0;
    bool in_string = false, escaped = false;
    for (;; i++) {
        int c = -1;
        FSDP_TRY(byte_at(r, i, &c));
        if (c < 0 && (depth > 0 || in_string))
            return error_set(FSDP_ERR_INPUT, "%s: line %" PRId64 ": the file ends within this value: truncated?",
                             text_reader_path(r), r->number + 1);
        if (in_string) {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            if (!in_string && depth == 0)
                break;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            if (--depth == 0)
                break;
        } else if (depth == 0 && (c < 0 || c == ',' || c == ']' || c == '}' || is_blank((char)c))) {
            *length = i > 0 ? i : 1; /* what ends a number or a word is not part of it; a stray bracket is a value */
            return FSDP_OK;
        }
    }
    *length = i + 1;
    return FSDP_OK;
}

static fsdp_status next_value(text_reader *r, bool enter, text_line *value, bool *more)
{
    int c = -1;
    size_t length = 0;
    FSDP_TRY(begin(r));
    for (;;) {
        FSDP_TRY(byte_at(r, 0, &c));
        if (c < 0 && r->in_array)
            return error_set(FSDP_ERR_INPUT, "%s: the array ends without a ]: truncated?", text_reader_path(r));
        bool ends = c < 0 || (c == ']' && r->in_array), enters = c == '[' && enter && !r->in_array;
        if (!ends && !enters && c != ',' && !is_blank((char)c))
            break;
        if (c >= 0)
            take_bytes(r, 1);
        r->in_array = (r->in_array && !ends) || enters;
        enter = enter && !enters;
        if (ends)
            return FSDP_OK;
    }
    FSDP_TRY(measure_value(r, &length));
    *value = (text_line){.text = r->buffer + r->at, .bytes = length, .number = r->number + 1};
    *more = true;
    take_bytes(r, length);
    return FSDP_OK;
}

fsdp_status text_reader_next_value(text_reader *reader, bool enter, text_line *value, bool *more)
{
    *value = (text_line){0};
    *more = false;
    fsdp_status status = next_value(reader, enter, value, more);
    reader->failed = status != FSDP_OK;
    return status;
}
