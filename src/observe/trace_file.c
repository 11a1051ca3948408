/* Writes events as JSON through a buffer. */
#include "observe/trace_file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

/* Of kinds that are drawn. */
static const char *const categories[TRACE_KINDS] = {
    "op", "memory", "collective", "unit", "phase", "wait", [TRACE_KERNEL] = "kernel", [TRACE_COPY] = "copy"};

/* The longest piece is a name, each character of which may take six. */
enum { LINE_BYTES = 2048 };

struct trace_file {
    file_writer *writer;
    fsdp_status status;
    bool begun;
    size_t used;
    char buffer[1 << 16];
};

fsdp_status trace_file_create(const char *path, trace_file **out)
{
    trace_file *f = *out = calloc(1, sizeof *f);
    if (!f)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a trace", path);
    fsdp_status status = file_writer_create(path, &f->writer);
    if (status != FSDP_OK) {
        free(f);
        *out = NULL;
    }
    return status;
}

static void flush(trace_file *f)
{
    if (f->status == FSDP_OK && f->used)
        f->status = file_writer_write(f->writer, f->buffer, f->used);
    f->used = 0;
}

static char *make_room(trace_file *f)
{
    if (sizeof f->buffer - f->used < LINE_BYTES)
        flush(f);
    return f->buffer + f->used;
}

static void __attribute__((format(printf, 2, 3))) put(trace_file *f, const char *format, ...)
{
    make_room(f);
    va_list arguments;
    va_start(arguments, format);
    f->used += (size_t)vsnprintf(f->buffer + f->used, sizeof f->buffer - f->used, format, arguments);
    va_end(arguments);
}

/* Events are many: numbers and names are put by hand, at a fifth of what printf takes. Each piece is shorter than
 * LINE_BYTES. */
static void put_text(trace_file *f, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(make_room(f), text, bytes);
    f->used += bytes;
}

/* With `least` digits at least. */
static void put_digits(trace_file *f, uint64_t number, int least)
{
    char digits[24], *at = digits + sizeof digits;
    for (; number > 0 || least > 0; number /= 10, least--)
        *--at = (char)('0' + number % 10);
    size_t bytes = (size_t)(digits + sizeof digits - at);
    memcpy(make_room(f), at, bytes);
    f->used += bytes;
}

static void put_number(trace_file *f, int64_t number)
{
    if (number < 0)
        put_text(f, "-");
    put_digits(f, number < 0 ? -(uint64_t)number : (uint64_t)number, 1);
}

/* Microseconds with three decimals. */
static void put_microseconds(trace_file *f, int64_t ns)
{
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    if (ns < 0)
        put_text(f, "-");
    put_digits(f, size / 1000, 1);
    put_text(f, ".");
    put_digits(f, size % 1000, 3);
}

/* Names are ours, but a unit's comes from the user's model. */
static void put_name(trace_file *f, const char *text)
{
    char *out = make_room(f);
    size_t n = 0;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            out[n++] = '\\';
        if (c < 0x20)
            n += (size_t)sprintf(out + n, "\\u%04x", c);
        else
            out[n++] = (char)c;
    }
    f->used += n;
}

/* Begins an event's object. */
static void put_head(trace_file *f, const char *phase, int rank)
{
    put_text(f, f->begun ? ",\n{\"ph\":\"" : "[\n{\"ph\":\"");
    put_text(f, phase);
    put_text(f, "\",\"pid\":");
    put_number(f, rank);
    f->begun = true;
}

static void put_about(trace_file *f, int rank, const trace_event *e)
{
    put_head(f, "M", rank);
    put(f, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", rank);
    put_head(f, "M", rank);
    put(f, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", rank);
    put_head(f, "M", rank);
    put(f, ",\"name\":\"trace\",\"args\":{\"events\":%lld,\"dropped\":%u}}", (long long)e->bytes, e->flow);
}

static void put_row(trace_file *f, int rank, const trace_event *e)
{
    static const char *const lanes[TRACE_LANES] = {"compute", "communication", "copies", "stream"};
    char stream[24] = "";
    if (e->lane == TRACE_DEVICE_LANE)
        snprintf(stream, sizeof stream, " %lld", (long long)e->bytes);
    put_head(f, "M", rank);
    put(f, ",\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s%s\"}}", e->row, lanes[e->lane], stream);
    put_head(f, "M", rank);
    put(f, ",\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}", e->row, 100 * e->lane + e->row);
}

static void put_row_and_begin(trace_file *f, const trace_event *e, int64_t offset_ns)
{
    put_text(f, ",\"tid\":");
    put_number(f, e->row);
    put_text(f, ",\"ts\":");
    put_microseconds(f, e->begin_ns - offset_ns);
}

/* An arrow begins inside the gather, whose end may be later than the operation's begin by the clock's grain. Its id is
 * a number that no other rank has: Perfetto knows no texts there. */
static void put_flow(trace_file *f, int rank, const trace_event *e, int64_t offset_ns)
{
    bool from = e->lane == 1;
    put_head(f, from ? "s" : "f", rank);
    put_row_and_begin(f, e, offset_ns);
    put_text(f, ",\"cat\":\"gather\",\"name\":\"use\",\"id\":");
    put_digits(f, (uint64_t)rank << 32 | e->flow, 1);
    put_text(f, from ? "}" : ",\"bp\":\"e\"}");
}

static void put_counter(trace_file *f, int rank, const trace_event *e, int64_t offset_ns)
{
    put_head(f, "C", rank);
    put_text(f, ",\"ts\":");
    put_microseconds(f, e->begin_ns - offset_ns);
    put_text(f, ",\"name\":\"memory: ");
    put_name(f, e->name);
    put_text(f, "\",\"args\":{\"bytes\":");
    put_number(f, e->bytes);
    put_text(f, "}}");
}

static void put_arguments(trace_file *f, const trace_event *e)
{
    put_text(f, ",\"args\":{\"detail\":\"");
    put_name(f, e->detail);
    put_text(f, "\",\"bytes\":");
    put_number(f, e->bytes);
    if (e->sequence) {
        put_text(f, ",\"number\":");
        put_number(f, e->sequence);
    }
    if (e->where[0]) {
        put_text(f, ",\"where\":\"");
        put_name(f, e->where);
        put_text(f, "\"");
    }
    put_text(f, "}}");
}

static void put_event(trace_file *f, int rank, const trace_event *e, int64_t offset_ns)
{
    bool instant = e->form == TRACE_INSTANT;
    if (e->form == TRACE_COUNTER) {
        put_counter(f, rank, e, offset_ns);
        return;
    }
    put_head(f, instant ? "i" : "X", rank);
    put_row_and_begin(f, e, offset_ns);
    put_text(f, instant ? ",\"s\":\"t\"" : ",\"dur\":");
    if (!instant)
        put_microseconds(f, e->end_ns - e->begin_ns);
    put_text(f, ",\"cat\":\"");
    put_text(f, categories[e->kind]);
    put_text(f, "\",\"name\":\"");
    put_name(f, e->name);
    put_text(f, "\"");
    put_arguments(f, e);
    if (e->flow)
        put_flow(f, rank, e, offset_ns);
}

/* Events come from other ranks, of the same program. */
static bool is_sound(const trace_event *e)
{
    return memchr(e->name, 0, sizeof e->name) && memchr(e->detail, 0, sizeof e->detail) &&
           memchr(e->where, 0, sizeof e->where) && e->lane < TRACE_LANES && e->kind < TRACE_KINDS &&
           categories[e->kind];
}

void trace_file_add(trace_file *f, int rank, int64_t offset_ns, const trace_event *events, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const trace_event *e = &events[i];
        if (!is_sound(e))
            continue;
        if (e->form == TRACE_ABOUT)
            put_about(f, rank, e);
        else if (e->form == TRACE_ROW)
            put_row(f, rank, e);
        else
            put_event(f, rank, e, offset_ns);
    }
}

void trace_file_abort(trace_file *f)
{
    if (f)
        file_writer_abort(f->writer);
    free(f);
}

fsdp_status trace_file_close(trace_file *f)
{
    if (!f)
        return FSDP_OK;
    put(f, f->begun ? "\n]\n" : "[]\n");
    flush(f);
    fsdp_status status = file_writer_finish(f->writer, f->status);
    free(f);
    return status;
}
