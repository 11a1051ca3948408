/* Encodes TensorBoard events and frames them as records. A record is: u64 length, masked CRC-32C of the length, the
 * event, masked CRC-32C of the event. An event is a protocol buffer; the few fields used are encoded by hand here:
 *
 *     Event            1 double wall_time   2 int64 step   3 string file_version   5 Summary summary
 *     Summary          1 Value value
 *     Value            1 string tag   2 float simple_value   8 TensorProto tensor   9 SummaryMetadata metadata
 *     SummaryMetadata  1 PluginData plugin_data   4 enum data_class
 *     PluginData       1 string plugin_name
 *     TensorProto      1 enum dtype   2 TensorShapeProto tensor_shape   8 bytes string_val */
#include "format/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "format/crc32c.h"

enum { DATA_CLASS_TENSOR = 2, DT_STRING = 7, SESSION_START = 1 };
enum { FLUSH_BYTES = 64 << 10 };

typedef struct bytes_buffer {
    uint8_t *data;
    size_t bytes, capacity;
    bool failed; /* memory ran out: looked at once, when the message is complete */
} bytes_buffer;

struct event_file {
    char *path;
    int fd;
    bytes_buffer pending;         /* whole records, not yet written */
    bytes_buffer event, parts[3]; /* reused for every event: nesting is three deep */
};

static void put_bytes(bytes_buffer *b, const void *data, size_t bytes)
{
    if (b->failed || bytes > SIZE_MAX / 4) {
        b->failed = true;
        return;
    }
    if (b->capacity - b->bytes < bytes) {
        size_t capacity = 2 * (b->bytes + bytes) + 256;
        uint8_t *grown = realloc(b->data, capacity);
        if (!grown) {
            b->failed = true;
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    if (bytes)
        memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
}

static void put_varint(bytes_buffer *b, uint64_t value)
{
    uint8_t encoded[10];
    size_t n = 0;
    do {
        encoded[n++] = (uint8_t)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);
        value >>= 7;
    } while (value);
    put_bytes(b, encoded, n);
}

/* Field headers: number and wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes). */
static void put_number(bytes_buffer *b, unsigned field, uint64_t value)
{
    put_varint(b, field << 3);
    put_varint(b, value);
}

static void put_double(bytes_buffer *b, unsigned field, double value)
{
    put_varint(b, field << 3 | 1);
    put_bytes(b, &value, sizeof value);
}

static void put_float(bytes_buffer *b, unsigned field, float value)
{
    put_varint(b, field << 3 | 5);
    put_bytes(b, &value, sizeof value);
}

static void put_block(bytes_buffer *b, unsigned field, const void *data, size_t bytes)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, bytes);
    put_bytes(b, data, bytes);
}

static void put_message(bytes_buffer *b, unsigned field, const bytes_buffer *message)
{
    put_block(b, field, message->data, message->bytes);
    b->failed |= message->failed;
}

static void reset(bytes_buffer *b)
{
    b->bytes = 0;
    b->failed = false;
}

static void begin_event(event_file *f, double wall_time, int64_t step)
{
    reset(&f->event);
    for (int i = 0; i < 3; i++)
        reset(&f->parts[i]);
    put_double(&f->event, 1, wall_time);
    if (step != 0) /* zero is the default, and what readers take absence for */
        put_number(&f->event, 2, (uint64_t)step);
}

/* Tells readers which plugin shows the value. Scalars need none: simple_value says it. */
static void put_text_metadata(event_file *f, bytes_buffer *value)
{
    static const char plugin[] = "text";
    bytes_buffer *name = &f->parts[1], *metadata = &f->parts[2];
    reset(name);
    reset(metadata);
    put_block(name, 1, plugin, sizeof plugin - 1);
    put_message(metadata, 1, name);
    put_number(metadata, 4, DATA_CLASS_TENSOR);
    put_message(value, 9, metadata);
}

/* Frames the event and queues it; the buffer is undone if memory runs out halfway, so records stay whole. */
static fsdp_status end_event(event_file *f)
{
    size_t before = f->pending.bytes;
    uint64_t length = f->event.bytes;
    uint32_t length_crc = crc32c_mask(crc32c(0, &length, sizeof length));
    uint32_t event_crc = crc32c_mask(crc32c(0, f->event.data, f->event.bytes));
    put_bytes(&f->pending, &length, sizeof length);
    put_bytes(&f->pending, &length_crc, sizeof length_crc);
    put_bytes(&f->pending, f->event.data, f->event.bytes);
    put_bytes(&f->pending, &event_crc, sizeof event_crc);
    if (f->event.failed || f->pending.failed) {
        f->pending.bytes = before;
        f->pending.failed = false;
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for an event", f->path);
    }
    return f->pending.bytes >= FLUSH_BYTES ? event_file_flush(f) : FSDP_OK;
}

/* A summary of the one value in parts[0]. */
static fsdp_status end_summary(event_file *f)
{
    bytes_buffer *summary = &f->parts[1];
    reset(summary);
    put_message(summary, 1, &f->parts[0]);
    put_message(&f->event, 5, summary);
    return end_event(f);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Two files of one process in one second differ in the number. */
static fsdp_status create_file(event_file *f, const char *folder)
{
    char host[128] = "localhost", name[256];
    gethostname(host, sizeof host - 1);
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '-';
    for (int number = 0; number < 10000; number++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)time(NULL), host,
                 (long)getpid(), number);
        free(f->path);
        f->path = file_join(folder, name);
        if (!f->path)
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", folder);
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (f->fd >= 0)
            return FSDP_OK;
        if (errno != EEXIST)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot create", f->path);
    }
    return error_set(FSDP_ERR_IO, "%s: no free name for an event file", folder);
}

fsdp_status event_file_open(const char *folder, event_file **out)
{
    static const char version[] = "brain.Event:2";
    fsdp_status status;
    *out = NULL;
    event_file *f = calloc(1, sizeof *f);
    if (!f)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for an event file", folder);
    f->fd = -1;
    TRY_OR(fail, file_make_directories(folder));
    TRY_OR(fail, create_file(f, folder));
    begin_event(f, now(), 0);
    put_block(&f->event, 3, version, sizeof version - 1);
    TRY_OR(fail, end_event(f));
    TRY_OR(fail, event_file_flush(f));
    *out = f;
    return FSDP_OK;
fail:
    event_file_close(f);
    *out = NULL;
    return status;
}

fsdp_status event_file_session(event_file *file, int64_t step)
{
    bytes_buffer *session = &file->parts[0];
    begin_event(file, now(), step);
    put_number(session, 1, SESSION_START);
    put_message(&file->event, 7, session);
    return end_event(file);
}

fsdp_status event_file_scalar(event_file *file, const char *tag, int64_t step, double wall_time, double value)
{
    bytes_buffer *entry = &file->parts[0];
    begin_event(file, wall_time, step);
    put_block(entry, 1, tag, strlen(tag));
    put_float(entry, 2, (float)value);
    return end_summary(file);
}

fsdp_status event_file_text(event_file *file, const char *tag, int64_t step, const char *text)
{
    bytes_buffer *entry = &file->parts[0], *tensor = &file->parts[1];
    begin_event(file, now(), step);
    put_block(entry, 1, tag, strlen(tag));
    put_number(tensor, 1, DT_STRING);
    put_block(tensor, 2, "", 0); /* a shape without dimensions: one text */
    put_block(tensor, 8, text, strlen(text));
    put_message(entry, 8, tensor);
    put_text_metadata(file, entry);
    return end_summary(file);
}

fsdp_status event_file_flush(event_file *file)
{
    size_t done = 0;
    while (done < file->pending.bytes) {
        ssize_t written = write(file->fd, file->pending.data + done, file->pending.bytes - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            fsdp_status status = error_set_errno(FSDP_ERR_IO, "%s: cannot write", file->path);
            /* What is out is out: the rest goes on from there next time. */
            memmove(file->pending.data, file->pending.data + done, file->pending.bytes - done);
            file->pending.bytes -= done;
            return status;
        }
        done += (size_t)written;
    }
    file->pending.bytes = 0;
    return FSDP_OK;
}

fsdp_status event_file_close(event_file *file)
{
    if (!file)
        return FSDP_OK;
    fsdp_status status = file->fd >= 0 ? event_file_flush(file) : FSDP_OK;
    if (file->fd >= 0 && close(file->fd) != 0 && status == FSDP_OK)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot close", file->path);
    free(file->pending.data);
    free(file->event.data);
    for (int i = 0; i < 3; i++)
        free(file->parts[i].data);
    free(file->path);
    free(file);
    return status;
}
