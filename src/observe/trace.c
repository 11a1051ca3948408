/* Pairs begins with ends while they come in, keeps what is complete in a ring, and writes it in the trace event format.
 * Every (lane, thread) with events is a row of the picture: two threads on one lane would otherwise overlap. */
#include "observe/trace.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hooks.h"

enum { DEFAULT_CAPACITY = 1 << 16, NAME_BYTES = 40, MAX_ROWS = 48, MAX_DEPTH = 16, N_LANES = 3 };

typedef struct trace_event {
    char name[NAME_BYTES], detail[NAME_BYTES];
    int64_t begin_ns, end_ns; /* equal for instants */
    int64_t bytes;            /* for memory: the sum so far */
    uint8_t kind, row;
    bool is_instant;
} trace_event;

/* A thread with events on a lane, and what it has begun and not ended. */
typedef struct trace_row {
    pthread_t thread;
    int lane;
    int depth;
    trace_event open[MAX_DEPTH];
} trace_row;

struct trace {
    pthread_mutex_t lock;
    int rank;
    bool listening;
    trace_event *ring;
    size_t capacity, count, next, dropped;
    int64_t memory_bytes;
    int n_rows;
    trace_row rows[MAX_ROWS];
};

/* Rows are few: when they run out, further threads share the last. */
static int row_of(trace *t, int lane)
{
    pthread_t self = pthread_self();
    for (int i = 0; i < t->n_rows; i++)
        if (t->rows[i].lane == lane && pthread_equal(t->rows[i].thread, self))
            return i;
    if (t->n_rows < MAX_ROWS)
        t->n_rows++;
    trace_row *row = &t->rows[t->n_rows - 1];
    row->thread = self;
    row->lane = lane;
    return t->n_rows - 1;
}

static void keep(trace *t, const trace_event *event)
{
    t->ring[t->next] = *event;
    t->next = (t->next + 1) % t->capacity;
    if (t->count < t->capacity)
        t->count++;
    else
        t->dropped++;
}

static void begin(trace *t, int row, const trace_event *event)
{
    trace_row *r = &t->rows[row];
    if (r->depth < MAX_DEPTH)
        r->open[r->depth++] = *event;
    else
        t->dropped++;
}

/* The innermost open event of this name on the row; -1 when there is none. */
static int find_open(const trace_row *row, const trace_event *event)
{
    for (int i = row->depth - 1; i >= 0; i--)
        if (strcmp(row->open[i].name, event->name) == 0 && strcmp(row->open[i].detail, event->detail) == 0)
            return i;
    return -1;
}

/* An end usually comes on the thread of its begin; a collective may end on another thread of its lane. */
static void end(trace *t, int row, const trace_event *event)
{
    int at = find_open(&t->rows[row], event), lane = t->rows[row].lane;
    for (int i = 0; at < 0 && i < t->n_rows; i++) {
        if (t->rows[i].lane != lane)
            continue;
        at = find_open(&t->rows[i], event);
        row = i;
    }
    if (at < 0)
        return; /* begun before we listened */
    trace_row *r = &t->rows[row];
    trace_event whole = r->open[at];
    memmove(&r->open[at], &r->open[at + 1], (size_t)(r->depth - at - 1) * sizeof *r->open);
    r->depth--;
    whole.end_ns = event->end_ns;
    whole.row = (uint8_t)row;
    if (event->bytes)
        whole.bytes = event->bytes;
    keep(t, &whole);
}

static void on_event(void *context, const hook_event *e)
{
    trace *t = context;
    trace_event event = {.begin_ns = e->time_ns, .end_ns = e->time_ns, .bytes = e->bytes, .kind = (uint8_t)e->kind};
    snprintf(event.name, sizeof event.name, "%s", e->name ? e->name : "");
    snprintf(event.detail, sizeof event.detail, "%s", e->detail ? e->detail : "");
    pthread_mutex_lock(&t->lock);
    int row = row_of(t, e->lane >= 0 && e->lane < N_LANES ? e->lane : 0);
    event.row = (uint8_t)row;
    if (e->kind == HOOK_MEMORY)
        event.bytes = t->memory_bytes += e->bytes;
    if (e->moment == HOOK_BEGIN) {
        begin(t, row, &event);
    } else if (e->moment == HOOK_END) {
        end(t, row, &event);
    } else {
        event.is_instant = true;
        keep(t, &event);
    }
    pthread_mutex_unlock(&t->lock);
}

fsdp_status trace_start(int rank, size_t capacity, trace **out)
{
    *out = NULL;
    trace *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a trace");
    t->rank = rank;
    t->capacity = capacity ? capacity : DEFAULT_CAPACITY;
    pthread_mutex_init(&t->lock, NULL);
    t->ring = calloc(t->capacity, sizeof *t->ring);
    fsdp_status status = t->ring ? hooks_add(on_event, t)
                                 : error_set(FSDP_ERR_MEMORY, "out of memory for %zu events of a trace", t->capacity);
    if (status != FSDP_OK) {
        trace_free(t);
        return status;
    }
    t->listening = true;
    *out = t;
    return FSDP_OK;
}

void trace_stop(trace *t)
{
    if (t->listening)
        hooks_remove(on_event, t);
    t->listening = false;
}

void trace_free(trace *t)
{
    if (!t)
        return;
    trace_stop(t);
    pthread_mutex_destroy(&t->lock);
    free(t->ring);
    free(t);
}

/* A file being written through a buffer; the first failure is kept. */
typedef struct sink {
    file_writer *writer;
    fsdp_status status;
    size_t used;
    char buffer[1 << 14];
} sink;

static void flush(sink *s)
{
    if (s->status == FSDP_OK && s->used)
        s->status = file_writer_write(s->writer, s->buffer, s->used);
    s->used = 0;
}

static void __attribute__((format(printf, 2, 3))) put(sink *s, const char *format, ...)
{
    if (sizeof s->buffer - s->used < 1024)
        flush(s);
    va_list arguments;
    va_start(arguments, format);
    s->used += (size_t)vsnprintf(s->buffer + s->used, sizeof s->buffer - s->used, format, arguments);
    va_end(arguments);
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

static void put_rows(sink *s, const trace *t)
{
    static const char *const lanes[N_LANES] = {"compute", "communication", "copies"};
    put(s, "[\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}", t->rank, t->rank);
    put(s, ",\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"trace\",\"args\":{\"events\":%zu,\"dropped\":%zu}}", t->rank,
        t->count, t->dropped);
    int seen[N_LANES] = {0};
    for (int i = 0; i < t->n_rows; i++) {
        int lane = t->rows[i].lane, number = ++seen[lane];
        char suffix[16] = "";
        if (number > 1)
            snprintf(suffix, sizeof suffix, " %d", number);
        put(s, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s%s\"}}", t->rank,
            i, lanes[lane], suffix);
        put(s, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
            t->rank, i, 100 * lane + number);
    }
}

static void put_event(sink *s, const trace *t, const trace_event *e)
{
    static const char *const categories[] = {"op", "memory", "collective", "unit", "phase", "wait"};
    char name[6 * NAME_BYTES + 8], detail[6 * NAME_BYTES + 8];
    escaped(e->name, name, sizeof name);
    escaped(e->detail, detail, sizeof detail);
    double begin_us = (double)e->begin_ns * 1e-3;
    if (e->kind == HOOK_MEMORY) {
        put(s, ",\n{\"ph\":\"C\",\"pid\":%d,\"name\":\"memory\",\"ts\":%.3f,\"args\":{\"bytes\":%lld}}", t->rank,
            begin_us, (long long)e->bytes);
        return;
    }
    put(s, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"cat\":\"%s\",\"name\":\"%s\",\"ts\":%.3f",
        e->is_instant ? "i" : "X", t->rank, e->row, categories[e->kind], name, begin_us);
    if (e->is_instant)
        put(s, ",\"s\":\"t\"");
    else
        put(s, ",\"dur\":%.3f", (double)(e->end_ns - e->begin_ns) * 1e-3);
    put(s, ",\"args\":{\"detail\":\"%s\",\"bytes\":%lld}}", detail, (long long)e->bytes);
}

fsdp_status trace_write(trace *t, const char *path)
{
    sink *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a trace", path);
    fsdp_status status = file_writer_create(path, &s->writer);
    if (status != FSDP_OK) {
        free(s);
        return status;
    }
    pthread_mutex_lock(&t->lock);
    put_rows(s, t);
    size_t oldest = (t->next + t->capacity - t->count) % t->capacity;
    for (size_t i = 0; i < t->count; i++)
        put_event(s, t, &t->ring[(oldest + i) % t->capacity]);
    pthread_mutex_unlock(&t->lock);
    put(s, "\n]\n");
    flush(s);
    status = s->status;
    if (status == FSDP_OK)
        status = file_writer_commit(s->writer);
    else
        file_writer_abort(s->writer);
    free(s);
    return status;
}
