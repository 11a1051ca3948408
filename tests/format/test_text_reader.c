/* Lines from plain, gzip and zstd files: the same lines whatever the packing; broken streams told with file and line.
 */
#include "format/compress.h"

#include <stdbool.h>

#include "base/rng.h"
#include "format/text_reader.h"

typedef uint8_t *(*packer)(const void *, size_t, size_t *);

static uint8_t *pack_not(const void *data, size_t bytes, size_t *packed_bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    *packed_bytes = bytes;
    return copy;
}

static const struct packing {
    packer pack;
    const char *name;
} packings[] = {{pack_not, "lines.txt"}, {compress_gzip, "lines.json.gz"}, {compress_zstd, "lines.jsonl.zst"}};

/* Lines of odd lengths, some empty, one with a NUL, one longer than any buffer at first; no newline at the end. */
static char *make_text(size_t *bytes, int n_lines)
{
    rng_key key = rng_key_make(1);
    size_t capacity = 4u << 20, used = 0;
    char *text = malloc(capacity);
    for (int i = 0; i < n_lines; i++) {
        size_t length = i == 7 ? 700001 : i % 5 == 0 ? 0 : rng_word(key, 0, (uint64_t)i) % 300;
        for (size_t k = 0; k < length; k++)
            text[used + k] = (char)('a' + rng_word(key, 1, used + k) % 26);
        used += length;
        if (i == 4 && length > 2)
            text[used - 2] = '\0';
        if (i + 1 < n_lines)
            text[used++] = '\n';
    }
    text[used++] = '!';
    *bytes = used;
    return text;
}

/* Reads everything and compares it with the text. */
static void assert_lines(const char *path, const char *text, size_t bytes)
{
    text_reader *reader;
    text_line line;
    bool more;
    int64_t number = 0;
    const char *at = text, *end = text + bytes;
    assert_ok(text_reader_open(path, 0, &reader));
    for (;;) {
        assert_ok(text_reader_next(reader, &line, &more));
        if (!more)
            break;
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        assert_int_equal(line.bytes, length);
        assert_memory_equal(line.text, at, length);
        assert_int_equal(line.text[length], '\0');
        assert_int_equal(line.number, ++number);
        assert_int_equal(line.has_newline, newline != NULL);
        at += length + (newline != NULL);
    }
    assert_ptr_equal(at, end);
    assert_ok(text_reader_next(reader, &line, &more)); /* the end stays the end */
    assert_false(more);
    text_reader_close(reader);
}

static void write_packed(const char *path, packer pack, const void *data, size_t bytes)
{
    size_t packed_bytes;
    uint8_t *packed = pack(data, bytes, &packed_bytes);
    scratch_write(path, packed, packed_bytes);
    free(packed);
}

static void all_packings_give_the_same_lines(void **state)
{
    (void)state;
    size_t bytes;
    char *text = make_text(&bytes, 9000);
    for (int i = 0; i < 3; i++) {
        const char *path = scratch_path(packings[i].name);
        write_packed(path, packings[i].pack, text, bytes);
        assert_lines(path, text, bytes);
        assert_int_equal(remove(path), 0);
    }
    free(text);
}

static void small_files_and_odd_endings_read_exactly(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n", "\n\n", "a", "a\n", "a\r\nb\r\n", "\na", "a\n\nb"};
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            const char *path = scratch_path(packings[i].name);
            write_packed(path, packings[i].pack, texts[k], strlen(texts[k]));
            assert_lines(path, texts[k], strlen(texts[k]));
        }
}

static void members_and_frames_in_a_row_are_one_stream(void **state)
{
    (void)state;
    size_t bytes;
    char *text = make_text(&bytes, 300);
    for (int i = 1; i < 3; i++) {
        const char *path = scratch_path(packings[i].name);
        uint8_t *all = malloc(3 * bytes + 100000);
        size_t used = 0, cuts[] = {0, 17, 17, bytes / 2, bytes}; /* one member is empty */
        for (int part = 0; part < 4; part++) {
            size_t packed_bytes;
            uint8_t *packed = packings[i].pack(text + cuts[part], cuts[part + 1] - cuts[part], &packed_bytes);
            memcpy(all + used, packed, packed_bytes);
            used += packed_bytes;
            free(packed);
        }
        scratch_write(path, all, used);
        assert_lines(path, text, bytes);
        if (i == 1) { /* gzip files may be padded with zeros */
            for (size_t zeros = 1; zeros < 5; zeros++) {
                memset(all + used, 0, zeros);
                scratch_write(path, all, used + zeros);
                assert_lines(path, text, bytes);
            }
        }
        free(all);
    }
    free(text);
}

static void compression_is_known_by_its_first_bytes_too(void **state)
{
    (void)state;
    const char *path = scratch_path("no_ending");
    for (int i = 1; i < 3; i++) {
        write_packed(path, packings[i].pack, "one\ntwo\n", 8);
        assert_lines(path, "one\ntwo\n", 8);
    }
    text_reader *reader;
    for (int i = 1; i < 3; i++) {
        const char *promised = scratch_path(packings[i].name);
        scratch_write(promised, "one\ntwo\n", 8);
        assert_fails(FSDP_ERR_INPUT, text_reader_open(promised, 0, &reader), promised, "is named");
        scratch_write(promised, "", 0);
        assert_fails(FSDP_ERR_INPUT, text_reader_open(promised, 0, &reader), promised, "is named");
    }
}

/* Reads to the end or to a failure that cannot be passed; returns its status. */
static fsdp_status read_all(const char *path, size_t max_line_bytes, int64_t *n_lines, int64_t *n_skipped)
{
    text_reader *reader;
    text_line line;
    bool more = true;
    *n_lines = *n_skipped = 0;
    FSDP_TRY(text_reader_open(path, max_line_bytes, &reader));
    fsdp_status status = FSDP_OK;
    while (more) {
        status = text_reader_next(reader, &line, &more);
        *n_lines += status == FSDP_OK && more;
        *n_skipped += status != FSDP_OK && more;
    }
    text_reader_close(reader);
    return status;
}

static void truncation_at_every_byte_is_told(void **state)
{
    (void)state;
    static const char text[] = "first line\nsecond line\nthird line\nfirst line again\n";
    int64_t n_lines, n_skipped;
    for (int i = 1; i < 3; i++) {
        const char *path = scratch_path(packings[i].name);
        size_t packed_bytes;
        uint8_t *packed = packings[i].pack(text, sizeof text - 1, &packed_bytes);
        for (size_t cut = 0; cut < packed_bytes; cut++) {
            scratch_write(path, packed, cut);
            assert_int_equal(read_all(path, 0, &n_lines, &n_skipped), FSDP_ERR_INPUT);
            assert_non_null(strstr(fsdp_last_error(), path));
        }
        assert_non_null(strstr(fsdp_last_error(), "truncated"));
        assert_non_null(strstr(fsdp_last_error(), "line "));
        free(packed);
    }
}

static void flipped_bytes_are_told_and_never_change_a_line_unseen(void **state)
{
    (void)state;
    static const char text[] = "first line\nsecond line\nthird line\nfirst line again\n";
    int64_t n_lines, n_skipped;
    for (int i = 1; i < 3; i++) {
        const char *path = scratch_path(packings[i].name);
        size_t packed_bytes, n_refused = 0;
        uint8_t *packed = packings[i].pack(text, sizeof text - 1, &packed_bytes);
        for (size_t at = 0; at < packed_bytes; at++) {
            packed[at] ^= 0x5a;
            scratch_write(path, packed, packed_bytes);
            if (read_all(path, 0, &n_lines, &n_skipped) == FSDP_OK)
                assert_lines(path, text, sizeof text - 1); /* a byte that means nothing: time, system */
            else
                n_refused++;
            packed[at] ^= 0x5a;
        }
        assert_true(n_refused + 8 >= packed_bytes);
        free(packed);
    }
}

static void corruption_in_the_middle_names_the_line(void **state)
{
    (void)state;
    size_t bytes, first_bytes, second_bytes;
    char *text = make_text(&bytes, 6);
    const char *path = scratch_path("middle.gz");
    uint8_t *first = compress_gzip("1\n2\n3\n", 6, &first_bytes), *second = compress_gzip("4\n", 2, &second_bytes);
    uint8_t *both = malloc(first_bytes + second_bytes);
    memcpy(both, first, first_bytes);
    memcpy(both + first_bytes, second, second_bytes);
    both[first_bytes + second_bytes - 6] ^= 1; /* the checksum of the second member */
    scratch_write(path, both, first_bytes + second_bytes);
    text_reader *reader;
    text_line line;
    bool more = true;
    assert_ok(text_reader_open(path, 0, &reader));
    fsdp_status status = FSDP_OK;
    while (status == FSDP_OK && more)
        status = text_reader_next(reader, &line, &more);
    assert_int_equal(status, FSDP_ERR_INPUT);
    assert_false(more);
    assert_non_null(strstr(fsdp_last_error(), path));
    assert_non_null(strstr(fsdp_last_error(), "line 4"));
    assert_fails(FSDP_ERR_STATE, text_reader_next(reader, &line, &more), path);
    assert_false(more);
    text_reader_close(reader);
    memcpy(both + first_bytes, "garbage", 7);
    scratch_write(path, both, first_bytes + 7);
    int64_t n_lines, n_skipped;
    assert_fails(FSDP_ERR_INPUT, read_all(path, 0, &n_lines, &n_skipped), path, "not gzip data");
    free(first);
    free(second);
    free(both);
    free(text);
}

static void lines_that_are_too_long_are_named_and_passed_over(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *path = scratch_path(packings[i].name);
        size_t long_bytes = 1000000, bytes = 3 + long_bytes + 1 + 6 + long_bytes;
        char *text = malloc(bytes);
        memset(text, 'x', bytes);
        memcpy(text, "ok\n", 3);
        memcpy(text + 3 + long_bytes, "\ngood\n", 6);
        write_packed(path, packings[i].pack, text, bytes);
        text_reader *reader;
        text_line line;
        bool more;
        assert_ok(text_reader_open(path, 1000, &reader));
        assert_ok(text_reader_next(reader, &line, &more));
        assert_string_equal(line.text, "ok");
        assert_fails(FSDP_ERR_INPUT, text_reader_next(reader, &line, &more), path, "line 2 is longer than 1000 bytes");
        assert_true(more);
        assert_ok(text_reader_next(reader, &line, &more));
        assert_string_equal(line.text, "good");
        assert_int_equal(line.number, 3);
        assert_fails(FSDP_ERR_INPUT, text_reader_next(reader, &line, &more), path, "line 4");
        assert_ok(text_reader_next(reader, &line, &more));
        assert_false(more);
        text_reader_close(reader);
        free(text);
    }
    const char *path = scratch_path("exact");
    int64_t n_lines, n_skipped;
    scratch_write(path, "1234\n12345\n1234", 15);
    assert_ok(read_all(path, 4, &n_lines, &n_skipped));
    assert_int_equal(n_lines, 2);
    assert_int_equal(n_skipped, 1);
}

static void absent_files_and_folders_are_refused(void **state)
{
    (void)state;
    text_reader *reader;
    assert_fails(FSDP_ERR_INPUT, text_reader_open(scratch_path("absent.gz"), 0, &reader), "absent.gz");
    assert_null(reader);
    assert_fails(FSDP_ERR_INPUT, text_reader_open(scratch_folder, 0, &reader), scratch_folder, "directory");
    text_reader_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_packings_give_the_same_lines),
        cmocka_unit_test(small_files_and_odd_endings_read_exactly),
        cmocka_unit_test(members_and_frames_in_a_row_are_one_stream),
        cmocka_unit_test(compression_is_known_by_its_first_bytes_too),
        cmocka_unit_test(truncation_at_every_byte_is_told),
        cmocka_unit_test(flipped_bytes_are_told_and_never_change_a_line_unseen),
        cmocka_unit_test(corruption_in_the_middle_names_the_line),
        cmocka_unit_test(lines_that_are_too_long_are_named_and_passed_over),
        cmocka_unit_test(absent_files_and_folders_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
