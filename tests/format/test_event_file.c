/* TensorBoard event files, taken apart by a decoder that shares no code with the writer: records, checksums, fields. */
#include "format/scratch.h"

#include <dirent.h>
#include <glob.h>
#include <math.h>
#include <time.h>

#include "format/crc32c.h"
#include "format/event_file.h"

/* CRC-32C by its definition, bit by bit. */
static uint32_t slow_crc32c(const uint8_t *data, size_t bytes)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static uint32_t slow_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* One field of a protocol buffer. */
typedef struct field {
    unsigned number, wire_type;
    uint64_t value;      /* wire types 0, 1, 5 */
    const uint8_t *data; /* wire type 2 */
    size_t bytes;
} field;

static uint64_t read_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 70);
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

static field read_field(const uint8_t **at, const uint8_t *end)
{
    field f = {0};
    uint64_t head = read_varint(at, end);
    f.number = (unsigned)(head >> 3);
    f.wire_type = head & 7;
    if (f.wire_type == 0) {
        f.value = read_varint(at, end);
        return f;
    }
    f.bytes = f.wire_type == 1 ? 8 : f.wire_type == 5 ? 4 : (size_t)read_varint(at, end);
    assert_true(f.wire_type == 1 || f.wire_type == 2 || f.wire_type == 5);
    assert_true(f.bytes <= (size_t)(end - *at));
    f.data = *at;
    if (f.wire_type != 2)
        memcpy(&f.value, *at, f.bytes);
    *at += f.bytes;
    return f;
}

/* The one field of that number; a zero field when there is none. */
static field find_field(const uint8_t *data, size_t bytes, unsigned number)
{
    field found = {0};
    for (const uint8_t *at = data, *end = data + bytes; at < end;) {
        field f = read_field(&at, end);
        if (f.number == number) {
            assert_int_equal(found.number, 0);
            found = f;
        }
    }
    return found;
}

static field inside(field outer, unsigned number)
{
    assert_int_equal(outer.wire_type, 2);
    return find_field(outer.data, outer.bytes, number);
}

static void assert_text_field(field f, const char *text)
{
    assert_int_equal(f.wire_type, 2);
    assert_int_equal(f.bytes, strlen(text));
    assert_memory_equal(f.data, text, f.bytes);
}

/* Cuts off the next record, checks its frame, and gives the event in it. */
static field next_record(const uint8_t **at, const uint8_t *end)
{
    field event = {.wire_type = 2};
    uint64_t length;
    uint32_t crc;
    assert_true(end - *at >= 12);
    memcpy(&length, *at, 8);
    memcpy(&crc, *at + 8, 4);
    assert_int_equal(crc, slow_mask(slow_crc32c(*at, 8)));
    assert_true(length + 16 <= (uint64_t)(end - *at));
    event.data = *at + 12;
    event.bytes = (size_t)length;
    memcpy(&crc, event.data + length, 4);
    assert_int_equal(crc, slow_mask(slow_crc32c(event.data, event.bytes)));
    *at += 16 + length;
    return event;
}

static double wall_time_of(field event)
{
    field f = inside(event, 1);
    double seconds;
    assert_int_equal(f.wire_type, 1);
    memcpy(&seconds, &f.value, 8);
    return seconds;
}

static void assert_scalar(field event, const char *tag, int64_t step, double wall_time, float value)
{
    field entry = inside(inside(event, 5), 1), simple = inside(entry, 2);
    float got;
    assert_true(wall_time_of(event) == wall_time);
    assert_int_equal((int64_t)inside(event, 2).value, step);
    assert_text_field(inside(entry, 1), tag);
    assert_int_equal(simple.wire_type, 5);
    memcpy(&got, simple.data, 4);
    assert_true(got == value || (isnan(got) && isnan(value)));
}

static void assert_text(field event, const char *tag, int64_t step, const char *text)
{
    field entry = inside(inside(event, 5), 1), tensor = inside(entry, 8), metadata = inside(entry, 9);
    assert_int_equal((int64_t)inside(event, 2).value, step);
    assert_text_field(inside(entry, 1), tag);
    assert_int_equal(inside(tensor, 1).value, 7); /* DT_STRING */
    assert_int_equal(inside(tensor, 2).bytes, 0);
    assert_text_field(inside(tensor, 8), text);
    assert_text_field(inside(inside(metadata, 1), 1), "text");
    assert_int_equal(inside(metadata, 4).value, 2); /* DATA_CLASS_TENSOR */
}

static void crc32c_gives_the_known_values(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32], rising[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        rising[i] = (uint8_t)i;
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(0, zeros, 32), 0x8a9136aau); /* these three: RFC 3720, B.4 */
    assert_int_equal(crc32c(0, ones, 32), 0x62a8ab43u);
    assert_int_equal(crc32c(0, rising, 32), 0x46dd794eu);
    assert_int_equal(crc32c(0, "", 0), 0);
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
}

/* How many event files `folder` has; `last` gets the path of one, where it is asked for. */
static size_t n_event_files(const char *folder, char *last)
{
    char pattern[1200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", scratch_path(folder));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    size_t n = found.gl_pathc;
    if (last)
        snprintf(last, 1200, "%s", found.gl_pathv[n - 1]);
    globfree(&found);
    return n;
}

static const char *only_file(const char *folder)
{
    static char path[1200];
    assert_int_equal(n_event_files(folder, path), 1);
    return path;
}

static void every_record_decodes_to_what_was_written(void **state)
{
    (void)state;
    event_file *file;
    size_t bytes;
    static char long_text[100000];
    memset(long_text, 'm', sizeof long_text - 1);
    double before = (double)time(NULL);
    assert_ok(event_file_open(scratch_path("runs/one"), &file));
    assert_ok(event_file_scalar(file, "loss", 1, 1234.5, 0.25));
    assert_ok(event_file_scalar(file, "loss", 0, 1235.5, (double)NAN));
    assert_ok(event_file_scalar(file,
                                "gr\xc3\xb6\xc3\x9f"
                                "e",
                                (int64_t)1 << 40, 1e9, -3e38));
    assert_ok(event_file_scalar(file, "", -1, 0, (double)INFINITY));
    assert_ok(event_file_text(file, "settings", 3, "| a | b |\n|---|---|"));
    assert_ok(event_file_text(file, "long", 0, long_text));
    assert_ok(event_file_text(file, "none", 0, ""));
    assert_ok(event_file_close(file));
    uint8_t *data = scratch_read(only_file("runs/one"), &bytes);
    const uint8_t *at = data, *end = data + bytes;
    field first = next_record(&at, end);
    assert_text_field(inside(first, 3), "brain.Event:2");
    assert_true(wall_time_of(first) >= before && wall_time_of(first) < before + 60);
    assert_scalar(next_record(&at, end), "loss", 1, 1234.5, 0.25f);
    assert_scalar(next_record(&at, end), "loss", 0, 1235.5, NAN);
    assert_scalar(next_record(&at, end),
                  "gr\xc3\xb6\xc3\x9f"
                  "e",
                  (int64_t)1 << 40, 1e9, -3e38f);
    assert_scalar(next_record(&at, end), "", -1, 0, INFINITY);
    assert_text(next_record(&at, end), "settings", 3, "| a | b |\n|---|---|");
    assert_text(next_record(&at, end), "long", 0, long_text);
    assert_text(next_record(&at, end), "none", 0, "");
    assert_ptr_equal(at, end);
    free(data);
}

static void flushed_events_can_be_read_while_the_file_is_open(void **state)
{
    (void)state;
    event_file *file;
    size_t bytes;
    assert_ok(event_file_open(scratch_path("live"), &file));
    for (int step = 0; step < 5000; step++) { /* more than the buffer holds: some is out before any flush */
        assert_ok(event_file_scalar(file, "x", step, step, step));
        if (step % 1000 == 999) {
            assert_ok(event_file_flush(file));
            uint8_t *data = scratch_read(only_file("live"), &bytes);
            const uint8_t *at = data, *end = data + bytes;
            next_record(&at, end);
            for (int i = 0; i <= step; i++)
                assert_scalar(next_record(&at, end), "x", i, i, (float)i);
            assert_ptr_equal(at, end);
            free(data);
        }
    }
    assert_ok(event_file_close(file));
    assert_ok(event_file_close(NULL));
}

static void two_writers_in_one_folder_do_not_share_a_file(void **state)
{
    (void)state;
    event_file *a, *b;
    assert_ok(event_file_open(scratch_path("shared"), &a));
    assert_ok(event_file_open(scratch_path("shared"), &b));
    assert_int_equal(n_event_files("shared", NULL), 2);
    assert_ok(event_file_close(a));
    assert_ok(event_file_close(b));
}

static void a_folder_that_cannot_be_is_refused(void **state)
{
    (void)state;
    event_file *file;
    scratch_write(scratch_path("plain"), "x", 1);
    assert_fails(FSDP_ERR_INPUT, event_file_open(scratch_path("plain/sub"), &file), "plain");
    assert_null(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_gives_the_known_values),
        cmocka_unit_test(every_record_decodes_to_what_was_written),
        cmocka_unit_test(flushed_events_can_be_read_while_the_file_is_open),
        cmocka_unit_test(two_writers_in_one_folder_do_not_share_a_file),
        cmocka_unit_test(a_folder_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
