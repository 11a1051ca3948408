/* Writes events as JSON through a buffer. */
#include "observe/trace_file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

/* Of kinds that are drawn. */
static const char *const categories[TRACE_KINDS] = {
    "op", "memory", "collective", "unit", "phase", "wait", [TRACE_KERNEL] = "kernel", [TRACE_COPY] = "copy"};

/* The longest line has three names, each character of which may take six. */
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

static void __attribute__((format(printf, 2, 3))) put(trace_file *f, const char *format, ...)
{
    if (sizeof f->buffer - f->used < LINE_BYTES)
        flush(f);
    va_list arguments;
    va_start(arguments, format);
    f->used += (size_t)vsnprintf(f->buffer + f->used, sizeof f->buffer - f->used, format, arguments);
    va_end(arguments);
}

/* Begins an event's object. */
static void put_head(trace_file *f, const char *phase, int rank)
{
    put(f, "%s{\"ph\":\"%s\",\"pid\":%d", f->begun ? ",\n" : "[\n", phase, rank);
    f->begun = true;
}

/* Names are ours, but a unit's comes from the user's model. */
static const char *escaped(const char *text, char *out, size_t bytes)
{
    size_t n = 0;
    for (; *text && n + 7 < bytes; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            out[n++] = '\\';
        if (c < 0x20)
            n += (size_t)sprintf(out + n, "\\u%04x", c);
        else
            out[n++] = (char)c;
    }
    out[n] = 0;
    return out;
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

/* Microseconds with three decimals; printf's doubles would cost as much as all the rest of a line. */
static const char *microseconds(int64_t ns, char text[24])
{
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    snprintf(text, 24, "%s%" PRIu64 ".%03u", ns < 0 ? "-" : "", size / 1000, (unsigned)(size % 1000));
    return text;
}

/* An arrow begins inside the gather, whose end may be later than the operation's begin by the clock's grain. Its id is
 * a number that no other rank has: Perfetto knows no texts there. */
static void put_flow(trace_file *f, int rank, const trace_event *e, const char *begin)
{
    bool from = e->lane == 1;
    put_head(f, from ? "s" : "f", rank);
    uint64_t id = (uint64_t)rank << 32 | e->flow;
    put(f, ",\"tid\":%d,\"cat\":\"gather\",\"name\":\"use\",\"id\":%" PRIu64 ",\"ts\":%s%s}", e->row, id, begin,
        from ? "" : ",\"bp\":\"e\"");
}

static void put_event(trace_file *f, int rank, const trace_event *e, int64_t offset_ns)
{
    char began[24], took[24];
    const char *begin = microseconds(e->begin_ns - offset_ns, began);
    char name[6 * TRACE_NAME_BYTES + 8], detail[6 * TRACE_DETAIL_BYTES + 8], where[6 * TRACE_WHERE_BYTES + 8];
    escaped(e->name, name, sizeof name);
    if (e->form == TRACE_COUNTER) {
        put_head(f, "C", rank);
        put(f, ",\"name\":\"memory: %s\",\"ts\":%s,\"args\":{\"bytes\":%lld}}", name, begin, (long long)e->bytes);
        return;
    }
    put_head(f, e->form == TRACE_INSTANT ? "i" : "X", rank);
    put(f, ",\"tid\":%d,\"cat\":\"%s\",\"name\":\"%s\",\"ts\":%s", e->row, categories[e->kind], name, begin);
    if (e->form == TRACE_INSTANT)
        put(f, ",\"s\":\"t\"");
    else
        put(f, ",\"dur\":%s", microseconds(e->end_ns - e->begin_ns, took));
    put(f, ",\"args\":{\"detail\":\"%s\",\"bytes\":%lld", escaped(e->detail, detail, sizeof detail),
        (long long)e->bytes);
    if (e->sequence)
        put(f, ",\"number\":%u", e->sequence);
    if (e->where[0])
        put(f, ",\"where\":\"%s\"", escaped(e->where, where, sizeof where));
    put(f, "}}");
    if (e->flow)
        put_flow(f, rank, e, begin);
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
