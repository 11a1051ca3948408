/* Token files: what is written reads back from any place, and damage of any kind is found before it is used. */
#include "format/scratch.h"

#include <dirent.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/rng.h"
#include "format/token/token_file.h"

/* Documents of the given lengths; token i of the file is i * 31 % vocabulary. */
static void write_tokens(const char *path, int64_t vocabulary, const int *lengths, int n_documents)
{
    token_writer *w;
    int64_t at = 0;
    assert_ok(token_writer_create(path, vocabulary, &w));
    for (int d = 0; d < n_documents; d++) {
        int32_t *tokens = malloc(sizeof *tokens * (size_t)(lengths[d] + 1));
        for (int i = 0; i < lengths[d]; i++)
            tokens[i] = (int32_t)(at++ * 31 % vocabulary);
        int half = lengths[d] / 3;
        assert_ok(token_writer_append(w, tokens, (size_t)half));
        assert_ok(token_writer_append(w, tokens + half, (size_t)(lengths[d] - half)));
        assert_ok(token_writer_end_document(w));
        free(tokens);
    }
    assert_ok(token_writer_commit(w));
}

static void tokens_and_documents_read_back(int64_t vocabulary)
{
    static const int lengths[] = {5, 0, 1, 20011, 3, 0};
    const char *path = scratch_path("tokens.bin");
    token_file *file;
    static int32_t tokens[20020];
    write_tokens(path, vocabulary, lengths, 6);
    assert_ok(token_file_open(path, &file));
    assert_int_equal(token_file_vocabulary(file), vocabulary);
    assert_int_equal(token_file_count(file), 20020);
    assert_int_equal(token_file_documents(file), 6);
    int64_t expected = 0, first, n;
    for (int d = 0; d < 6; d++) {
        assert_ok(token_file_document(file, d, &first, &n));
        assert_int_equal(first, expected);
        assert_int_equal(n, lengths[d]);
        expected += n;
    }
    assert_ok(token_file_read(file, 3, 20015, tokens));
    for (int i = 0; i < 20015; i++)
        assert_int_equal(tokens[i], (i + 3) * 31 % vocabulary);
    assert_ok(token_file_verify(file));
    assert_ok(token_file_read(file, 20020, 0, tokens));
    token_file_close(file);
}

static void two_byte_tokens_read_back(void **state)
{
    (void)state;
    tokens_and_documents_read_back(65536);
    tokens_and_documents_read_back(256);
    tokens_and_documents_read_back(1);
}

static void four_byte_tokens_read_back(void **state)
{
    (void)state;
    tokens_and_documents_read_back(65537);
    tokens_and_documents_read_back(128256);
}

static void a_file_without_tokens_is_legal(void **state)
{
    (void)state;
    const char *path = scratch_path("empty.bin");
    token_file *file;
    int64_t first, n;
    write_tokens(path, 10, NULL, 0);
    assert_ok(token_file_open(path, &file));
    assert_int_equal(token_file_count(file), 0);
    assert_ok(token_file_verify(file));
    assert_fails(FSDP_ERR_INPUT, token_file_document(file, 0, &first, &n), path, "0 documents");
    token_file_close(file);
    token_file_close(NULL);
}

static void reads_out_of_range_are_refused(void **state)
{
    (void)state;
    static const int64_t slices[][2] = {
        {0, 9}, {8, 1}, {9, 0}, {-1, 1}, {0, -1}, {1, INT64_MAX}, {INT64_MAX, INT64_MAX}};
    const char *path = scratch_path("range.bin");
    token_file *file;
    int32_t tokens[16];
    int64_t first, n;
    write_tokens(path, 10, (int[]){8}, 1);
    assert_ok(token_file_open(path, &file));
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++)
        assert_fails(FSDP_ERR_INPUT, token_file_read(file, slices[i][0], slices[i][1], tokens), path, "8 tokens");
    assert_fails(FSDP_ERR_INPUT, token_file_document(file, 1, &first, &n), path);
    assert_fails(FSDP_ERR_INPUT, token_file_document(file, -1, &first, &n), path);
    token_file_close(file);
}

static void truncated_or_longer_files_are_refused(void **state)
{
    (void)state;
    const char *path = scratch_path("cut.bin");
    size_t bytes;
    token_file *file;
    write_tokens(path, 10, (int[]){3, 4}, 2);
    uint8_t *data = scratch_read(path, &bytes);
    data = realloc(data, bytes + 2);
    data[bytes] = 0;
    for (size_t cut = 0; cut <= bytes + 1; cut++) {
        if (cut == bytes)
            continue;
        scratch_write(path, data, cut);
        assert_fails(FSDP_ERR_INPUT, token_file_open(path, &file), path);
        assert_null(file);
    }
    free(data);
}

static void every_flipped_bit_is_found_by_open_or_verify(void **state)
{
    (void)state;
    const char *path = scratch_path("flipped.bin");
    size_t bytes;
    write_tokens(path, 10, (int[]){3, 4}, 2);
    uint8_t *data = scratch_read(path, &bytes);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        token_file *file;
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        scratch_write(path, data, bytes);
        if (token_file_open(path, &file) == FSDP_OK) {
            assert_true(bit / 8 >= 64); /* the header has its own checksum */
            int32_t tokens[7];
            int64_t first, n;
            (void)token_file_read(file, 0, 7, tokens);
            for (int64_t d = 0; d < 2; d++)
                if (token_file_document(file, d, &first, &n) == FSDP_OK)
                    assert_true(first >= 0 && n >= 0 && first + n <= 7);
            assert_fails(FSDP_ERR_INPUT, token_file_verify(file), path, "damaged");
            token_file_close(file);
        } else {
            assert_non_null(strstr(fsdp_last_error(), path));
        }
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(data);
}

/* Changes a field and makes the checksum of the header fit again: a lie, not damage. */
static void lie(uint8_t *data, size_t offset, uint64_t value, size_t width)
{
    hash_stream stream;
    memcpy(data + offset, &value, width);
    hash_stream_start(&stream);
    hash_stream_add(&stream, data, 56);
    uint64_t checksum = hash_stream_end(&stream);
    memcpy(data + 56, &checksum, 8);
}

static void lying_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t offset, width;
        uint64_t value;
        const char *reason;
    } lies[] = {
        {8, 4, 2, "version 2"},
        {12, 4, 3, "token width"},
        {12, 4, 0, "token width"},
        {12, 4, 4, "place of the document index"},
        {16, 8, 0, "vocabulary size"},
        {16, 8, 65537, "vocabulary size"},
        {24, 8, UINT64_MAX, "number of tokens"},
        {24, 8, UINT64_MAX / 2 + 8, "number of tokens"},
        {24, 8, 6, "does not end at the end"},
        {24, 8, 1u << 20, "place of the document index"},
        {32, 8, 0, "number of documents"},
        {32, 8, UINT64_MAX, "number of documents"},
        {32, 8, 1, "bytes long"},
        {32, 8, 3, "bytes long"},
        {40, 8, 0, "place of the document index"},
        {40, 8, UINT64_MAX - 7, "place of the document index"},
    };
    const char *path = scratch_path("lies.bin");
    size_t bytes;
    token_file *file;
    write_tokens(path, 10, (int[]){3, 4}, 2);
    uint8_t *data = scratch_read(path, &bytes), *copy = malloc(bytes);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(copy, data, bytes);
        lie(copy, lies[i].offset, lies[i].value, lies[i].width);
        scratch_write(path, copy, bytes);
        assert_fails(FSDP_ERR_INPUT, token_file_open(path, &file), path, lies[i].reason);
    }
    free(data);
    free(copy);
    scratch_write(path, "this is a text file, long enough to hold a header of sixty-four bytes", 68);
    assert_fails(FSDP_ERR_INPUT, token_file_open(path, &file), path, "not a token file");
}

static void tokens_outside_the_vocabulary_are_refused_both_ways(void **state)
{
    (void)state;
    const char *path = scratch_path("outside.bin");
    token_writer *w;
    token_file *file;
    size_t bytes;
    int32_t tokens[7];
    assert_ok(token_writer_create(path, 10, &w));
    assert_fails(FSDP_ERR_INPUT, token_writer_append(w, (int32_t[]){3, 10}, 2), path, "token 10");
    assert_fails(FSDP_ERR_INPUT, token_writer_append(w, (int32_t[]){-1}, 1), path, "token -1");
    token_writer_abort(w);
    write_tokens(path, 100000, (int[]){7}, 1);
    uint8_t *data = scratch_read(path, &bytes);
    memset(data + 64 + 4 * 5, 0xff, 4); /* token 5, as -1 */
    scratch_write(path, data, bytes);
    assert_ok(token_file_open(path, &file));
    assert_ok(token_file_read(file, 0, 5, tokens));
    assert_fails(FSDP_ERR_INPUT, token_file_read(file, 2, 5, tokens), path, "token 5 is 4294967295");
    token_file_close(file);
    free(data);
}

static void writers_refuse_what_cannot_be_and_leave_nothing(void **state)
{
    (void)state;
    token_writer *w;
    const char *folder = scratch_path("clean");
    assert_ok(file_make_directories(folder));
    char *path = file_join(folder, "t.bin");
    assert_fails(FSDP_ERR_INPUT, token_writer_create(path, 0, &w), path);
    assert_fails(FSDP_ERR_INPUT, token_writer_create(path, ((int64_t)1 << 31) + 1, &w), path);
    assert_ok(token_writer_create(path, 10, &w));
    assert_ok(token_writer_append(w, (int32_t[]){1, 2}, 2));
    assert_fails(FSDP_ERR_STATE, token_writer_commit(w), path, "2 tokens follow");
    token_writer_abort(NULL);
    DIR *listing = opendir(folder);
    for (struct dirent *entry; (entry = readdir(listing));)
        assert_int_equal(entry->d_name[0], '.');
    closedir(listing);
    free(path);
    assert_fails(FSDP_ERR_INPUT, token_writer_create(scratch_path("no/folder.bin"), 10, &w), "no/folder.bin");
}

static void the_same_tokens_give_the_same_bytes(void **state)
{
    (void)state;
    size_t a_bytes, b_bytes;
    const char *a = scratch_path("a.bin"), *b = scratch_path("b.bin");
    write_tokens(a, 1000, (int[]){9, 700, 1}, 3);
    write_tokens(b, 1000, (int[]){9, 700, 1}, 3);
    uint8_t *left = scratch_read(a, &a_bytes), *right = scratch_read(b, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(left, right, a_bytes);
    assert_int_equal(a_bytes, 64 + 1420 + 4 + 24); /* header, 710 tokens, padding, index */
    free(left);
    free(right);
}

/* Mapped, it would be SIGBUS. */
static void a_file_that_shrinks_while_it_is_open_is_an_error_with_its_name(void **state)
{
    static const int lengths[] = {70000, 1};
    static int32_t tokens[70001];
    (void)state;
    for (int64_t vocabulary = 1000; vocabulary <= 100000; vocabulary *= 100) {
        const char *path = scratch_path("shrinks.bin");
        token_file *file;
        int64_t first, n;
        write_tokens(path, vocabulary, lengths, 2);
        assert_ok(token_file_open(path, &file));
        assert_int_equal(truncate(path, 5000), 0);
        assert_ok(token_file_read(file, 0, 1000, tokens)); /* what is there is there */
        assert_fails(FSDP_ERR_IO, token_file_read(file, 60000, 100, tokens), path, "while it is used");
        assert_fails(FSDP_ERR_IO, token_file_read(file, 0, 70001, tokens), path, "while it is used");
        assert_fails(FSDP_ERR_IO, token_file_document(file, 1, &first, &n), path, "while it is used");
        assert_fails(FSDP_ERR_IO, token_file_verify(file), path, "while it is used");
        token_file_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_byte_tokens_read_back),
        cmocka_unit_test(four_byte_tokens_read_back),
        cmocka_unit_test(a_file_without_tokens_is_legal),
        cmocka_unit_test(reads_out_of_range_are_refused),
        cmocka_unit_test(truncated_or_longer_files_are_refused),
        cmocka_unit_test(every_flipped_bit_is_found_by_open_or_verify),
        cmocka_unit_test(lying_headers_are_refused),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused_both_ways),
        cmocka_unit_test(writers_refuse_what_cannot_be_and_leave_nothing),
        cmocka_unit_test(a_file_that_shrinks_while_it_is_open_is_an_error_with_its_name),
        cmocka_unit_test(the_same_tokens_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
