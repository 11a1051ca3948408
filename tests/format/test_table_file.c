/* Tables that pyarrow wrote (tests/format/tables): every codec, page version and container gives the same rows, from
 * any row on; what is not read is refused by its name; a file cut anywhere is an error. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/scratch.h"
#include "format/table/table_file.h"

static const char *const columns[] = {"text", "summary"};
static const char *const readable[] = {"none.parquet", "snappy.parquet", "gzip.parquet",      "zstd.parquet",
                                       "stream.arrow", "file.arrow",     "stream-zstd.arrow", "file-zstd.arrow"};
enum { N_READABLE = sizeof readable / sizeof *readable, N_ROWS = 10 };

static const char *golden(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/../format/tables/%s", FSDP_GOLDEN_DEFAULT, name);
    return path;
}

/* What the third column holds; NULL: null. */
static const char *text_of(int64_t row)
{
    static char long_text[301];
    static const char *const texts[] = {"first",
                                        "",
                                        NULL,
                                        "zweites Dokument: Gr\xC3\xBC\xC3\x9F"
                                        "e",
                                        "first",
                                        "a line\nand another",
                                        "\xE6\xBC\xA2\xE5\xAD\x97",
                                        long_text,
                                        "first",
                                        NULL};
    memset(long_text, 'x', 300);
    return texts[row];
}

static void expect_rows(table_file *t, int64_t from)
{
    table_text values[2];
    char summary[16];
    bool more;
    for (int64_t row = from; row < N_ROWS; row++) {
        if (table_next(t, values, &more) != FSDP_OK)
            fail_msg("row %d: %s", (int)row, fsdp_last_error());
        assert_true(more);
        const char *text = text_of(row);
        assert_true((text == NULL) == (values[0].text == NULL));
        assert_int_equal(values[0].bytes, text == NULL ? 0 : strlen(text));
        assert_memory_equal(values[0].bytes ? values[0].text : "", text == NULL ? "" : text, values[0].bytes);
        snprintf(summary, sizeof summary, "s%d", (int)row);
        assert_int_equal(values[1].bytes, strlen(summary));
        assert_memory_equal(values[1].text, summary, strlen(summary));
    }
    assert_int_equal(table_next(t, values, &more), FSDP_OK);
    assert_false(more);
}

static void rows_are_those_that_pyarrow_wrote_from_any_row_on(void **state)
{
    (void)state;
    for (int i = 0; i < N_READABLE; i++) {
        table_file *t;
        if (table_open(golden(readable[i]), columns, 2, &t) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        expect_rows(t, 0);
        for (int64_t row = N_ROWS + 2; row >= 0; row--) {
            assert_int_equal(table_seek(t, row), FSDP_OK);
            expect_rows(t, row < N_ROWS ? row : N_ROWS);
        }
        table_close(t);
    }
}

/* Opens and reads all; the error must say `said`. */
static void refuses(const char *path, const char *column, const char *said)
{
    table_file *t;
    table_text value;
    bool more = true;
    fsdp_status status = table_open(path, &column, 1, &t);
    while (status == FSDP_OK && more)
        status = table_next(t, &value, &more);
    table_close(t);
    assert_int_not_equal(status, FSDP_OK);
    if (strstr(fsdp_last_error(), said) == NULL)
        fail_msg("%s: \"%s\" is not in: %s", path, said, fsdp_last_error());
}

static void what_is_not_read_is_refused_by_name(void **state)
{
    (void)state;
    refuses(golden("refused-brotli.parquet"), "text", "Brotli");
    refuses(golden("refused-delta.parquet"), "text", "DELTA_BYTE_ARRAY");
    refuses(golden("refused-lz4.arrow"), "text", "LZ4");
    refuses(golden("none.parquet"), "body", "no column \"body\"; it has id, words, text, label, summary");
    refuses(golden("file.arrow"), "body", "no column \"body\"; it has id, words, text, label, summary");
    refuses(golden("none.parquet"), "id", "holds int64, not text");
    refuses(golden("none.parquet"), "words", "lists or records");
    refuses(golden("file.arrow"), "words", "holds lists, not text");
    refuses(golden("file.arrow"), "label", "dictionary");
}

/* At every length: an error, or (a stream may end after a batch) a part of the rows, never anything else. */
static void files_that_are_cut_are_refused(void **state)
{
    for (int i = 0; i < N_READABLE; i++) {
        char path[4096], *whole;
        size_t bytes;
        snprintf(path, sizeof path, "%s/cut", (char *)*state);
        assert_int_equal(file_read_at_most(golden(readable[i]), 1 << 20, &whole, &bytes), FSDP_OK);
        for (size_t n = 0; n < bytes; n += 1 + n % 7) {
            table_file *t;
            table_text values[2];
            bool more = true;
            int64_t rows = 0;
            assert_int_equal(file_write_atomic(path, whole, n), FSDP_OK);
            fsdp_status status = table_open(path, columns, 2, &t);
            for (; status == FSDP_OK && more; rows += more)
                status = table_next(t, values, &more);
            table_close(t);
            assert_true(status != FSDP_OK ||
                        (strncmp(readable[i], "stream", 6) == 0 && (rows % 4 == 0 || rows == N_ROWS)));
        }
        free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_those_that_pyarrow_wrote_from_any_row_on),
        cmocka_unit_test(what_is_not_read_is_refused_by_name),
        cmocka_unit_test_setup_teardown(files_that_are_cut_are_refused, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
