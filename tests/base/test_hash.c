/* Hashes against published values; streams give the same in any pieces. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/hash.h"

static uint64_t xxh64(const void *data, size_t bytes)
{
    hash_stream s;
    hash_stream_start(&s);
    hash_stream_add(&s, data, bytes);
    return hash_stream_end(&s);
}

static void xxh64_gives_the_published_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = {
        {"", 0xEF46DB3751D8E999ull},
        {"a", 0xD24EC4F1A98C6E5Bull},
        {"abc", 0x44BC2CF5AD770999ull},
        {"xxhash", 0x32DD38952C4BC720ull},
        {"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1ull},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(xxh64(known[i].text, strlen(known[i].text)) == known[i].hash);
}

static void pieces_do_not_change_the_checksum(void **state)
{
    (void)state;
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * i + 3);
    for (size_t bytes = 0; bytes <= sizeof data; bytes += 37) {
        uint64_t whole = xxh64(data, bytes);
        for (size_t piece = 1; piece <= 97; piece += 8) {
            hash_stream s;
            hash_stream_start(&s);
            for (size_t at = 0; at < bytes; at += piece)
                hash_stream_add(&s, data + at, piece < bytes - at ? piece : bytes - at);
            hash_stream_add(&s, NULL, 0);
            assert_true(hash_stream_end(&s) == whole);
        }
    }
}

/* Streams of different lengths, begun at different offsets, in every number up to more than go abreast. */
static void streams_side_by_side_give_what_each_gives_alone(void **state)
{
    (void)state;
    enum { MAX = HASH_ABREAST + 3 };
    static unsigned char data[MAX][4096];
    for (size_t i = 0; i < MAX; i++)
        for (size_t k = 0; k < sizeof data[0]; k++)
            data[i][k] = (unsigned char)(k * k + k / 251 + 7 * i);
    for (int n = 0; n <= MAX; n++) {
        hash_stream streams[MAX], *pointers[MAX];
        const void *parts[MAX];
        size_t bytes[MAX], done[MAX];
        for (int i = 0; i < n; i++) {
            pointers[i] = &streams[i];
            done[i] = (size_t)i * 5 % 33;
            hash_stream_start(&streams[i]);
            hash_stream_add(&streams[i], data[i], done[i]);
        }
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < n; i++) {
                parts[i] = data[i] + done[i];
                bytes[i] = round == 2 && i == 1 ? 0 : (size_t)(300 + 97 * i - 61 * round);
                done[i] += bytes[i];
            }
            hash_streams_add(pointers, parts, bytes, n);
        }
        for (int i = 0; i < n; i++)
            assert_true(hash_stream_end(&streams[i]) == xxh64(data[i], done[i]));
    }
}

static void one_flipped_bit_changes_the_checksum(void **state)
{
    (void)state;
    unsigned char data[77] = {0};
    uint64_t plain = xxh64(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_true(xxh64(data, sizeof data) != plain);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void fnv_gives_the_published_values(void **state)
{
    (void)state;
    assert_true(hash_text(HASH_START, "") == 0xCBF29CE484222325ull);
    assert_true(hash_text(HASH_START, "a") == 0xAF63DC4C8601EC8Cull);
    assert_true(hash_text(HASH_START, "foobar") == 0x85944171F73967E8ull);
    assert_true(hash_text(hash_text(HASH_START, "foo"), "bar") == hash_text(HASH_START, "foobar"));
    static const unsigned char little_endian[8] = {8, 7, 6, 5, 4, 3, 2, 1};
    assert_true(hash_u64(HASH_START, 0x0102030405060708ull) == hash_bytes(HASH_START, little_endian, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xxh64_gives_the_published_values),
        cmocka_unit_test(pieces_do_not_change_the_checksum),
        cmocka_unit_test(streams_side_by_side_give_what_each_gives_alone),
        cmocka_unit_test(one_flipped_bit_changes_the_checksum),
        cmocka_unit_test(fnv_gives_the_published_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
