/* Megatron's token files, written here as its builder writes them: every type, documents of several sequences, and what
 * is refused. */
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
#include "format/token/megatron_file.h"

static char path[4096], index_path[4096];

/* Sequences of 3, 0, 5 and 2 tokens, which are 7, 14, 21, ...; documents of the first two, and of one each. */
static void write_pair(const char *folder, uint8_t code, size_t width, int64_t largest)
{
    uint8_t tokens[80] = {0}, index[256] = "MMIDIDX";
    const uint64_t version = 1, n_sequences = 4, n_starts = 4;
    const int32_t lengths[] = {3, 0, 5, 2};
    const int64_t starts[] = {0, 2, 3, 4};
    int64_t places[4], at = 0;
    snprintf(path, sizeof path, "%s/x_text_document.bin", folder);
    snprintf(index_path, sizeof index_path, "%s/x_text_document.idx", folder);
    for (int i = 0; i < 10; i++) {
        int64_t token = i == 9 ? largest : 7 * (i + 1);
        memcpy(tokens + (size_t)i * width, &token, width);
    }
    for (int i = 0; i < 4; at += lengths[i++] * (int64_t)width)
        places[i] = at;
    memcpy(index + 9, &version, 8);
    index[17] = code;
    memcpy(index + 18, &n_sequences, 8);
    memcpy(index + 26, &n_starts, 8);
    memcpy(index + 34, lengths, sizeof lengths);
    memcpy(index + 50, places, sizeof places);
    memcpy(index + 82, starts, sizeof starts);
    assert_int_equal(file_write_atomic(path, tokens, 10 * width), FSDP_OK);
    assert_int_equal(file_write_atomic(index_path, index, 114), FSDP_OK);
}

static void tokens_of_every_type_are_read_with_their_documents(void **state)
{
    static const struct {
        uint8_t code;
        size_t width;
        int64_t largest;
    } types[] = {{1, 1, 255}, {2, 1, 127}, {3, 2, 32767}, {4, 4, 1 << 30}, {5, 8, 100000}, {8, 2, 65535}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        megatron_file *f;
        int32_t ids[10];
        int64_t first, n;
        write_pair(*state, types[i].code, types[i].width, types[i].largest);
        assert_true(megatron_file_is(path));
        if (megatron_file_open(path, 0, &f) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
        assert_int_equal(megatron_file_count(f), 10);
        assert_int_equal(megatron_file_vocabulary(f), types[i].largest + 1);
        assert_int_equal(megatron_file_read(f, 0, 10, ids), FSDP_OK);
        for (int k = 0; k < 10; k++)
            assert_int_equal(ids[k], k == 9 ? types[i].largest : 7 * (k + 1));
        assert_int_equal(megatron_file_read(f, 4, 2, ids), FSDP_OK);
        assert_int_equal(ids[0], 35);
        assert_int_equal(megatron_file_read(f, 9, 2, ids), FSDP_ERR_INPUT);
        static const int64_t firsts[] = {0, 3, 8}, lengths[] = {3, 5, 2};
        assert_int_equal(megatron_file_documents(f), 3);
        for (int64_t d = 0; d < 3; d++) {
            assert_int_equal(megatron_file_document(f, d, &first, &n), FSDP_OK);
            assert_true(first == firsts[d] && n == lengths[d]);
        }
        assert_int_equal(megatron_file_document(f, 3, &first, &n), FSDP_ERR_INPUT);
        megatron_file_close(f);
    }
}

/* Opens and reads everything; fails with a message that says `said`. */
static void refuses(int64_t vocabulary, const char *said)
{
    megatron_file *f;
    int32_t ids[10];
    fsdp_status status = megatron_file_open(path, vocabulary, &f);
    if (status == FSDP_OK)
        status = megatron_file_read(f, 0, megatron_file_count(f), ids);
    megatron_file_close(f);
    assert_int_equal(status, FSDP_ERR_INPUT);
    if (strstr(fsdp_last_error(), said) == NULL)
        fail_msg("\"%s\" is not in: %s", said, fsdp_last_error());
}

static void what_is_not_a_pair_of_files_is_refused(void **state)
{
    char *whole;
    size_t bytes;
    write_pair(*state, 5, 8, -1);
    refuses(0, "token 9 is -1");
    write_pair(*state, 8, 2, 500);
    refuses(500, "outside the vocabulary of 500");
    write_pair(*state, 7, 4, 1);
    refuses(0, "floating-point");
    write_pair(*state, 9, 4, 1);
    refuses(0, "unknown type (9)");
    write_pair(*state, 8, 2, 1);
    assert_int_equal(file_write_atomic(path, "eighteen of 20 byt", 18), FSDP_OK);
    refuses(0, "truncated");
    write_pair(*state, 8, 2, 1);
    assert_int_equal(file_read_at_most(index_path, 1 << 20, &whole, &bytes), FSDP_OK);
    for (size_t n = 0; n < bytes; n++) { /* cut anywhere */
        assert_int_equal(file_write_atomic(index_path, whole, n), FSDP_OK);
        refuses(0, "x_text_document");
    }
    whole[50 + 8 * 3] = 77; /* the last sequence begins elsewhere */
    assert_int_equal(file_write_atomic(index_path, whole, bytes), FSDP_OK);
    refuses(0, "sequence 3");
    free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_of_every_type_are_read_with_their_documents, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(what_is_not_a_pair_of_files_is_refused, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
