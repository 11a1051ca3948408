/* Copies of snapshot parts between nodes: they come whole or not at all, nothing outside the folder can be reached, and
 * ten thousand messages that make no sense, from members who know the secret, leave nothing behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "meet/client.h"
#include "meet/server.h"
#include "meet/vault.h"

static const secret key = {.bytes = "a secret", .n = 8};
static char root[64], here[96], there[96];

static int make_folders(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/fsdp-test-vault-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(here, sizeof here, "%s/here", root);
    snprintf(there, sizeof there, "%s/there", root);
    return mkdir(here, 0700) | mkdir(there, 0700);
}

static int remove_folders(void **state)
{
    (void)state;
    return file_remove_tree(root) == FSDP_OK ? 0 : -1;
}

static server *open_vault(bool (*serve)(void *, uint32_t, const void *, size_t, wire_body *))
{
    server_config config = {.at = {.host = "127.0.0.1"}, .key = &key, .job = "job", .serve = serve, .context = there};
    server *s;
    if (!secret_can_prove())
        skip(); /* nobody is let in over the network then */
    assert_int_equal(server_open(&config, &s), FSDP_OK);
    return s;
}

static client *visit(const server *s)
{
    client_config config = {.candidates = server_endpoint(s),
                            .n_candidates = 1,
                            .key = &key,
                            .job = "job",
                            .who = {.circle = "copies", .seat = 0, .seats = 1, .who = "rank 0"},
                            .timeout_seconds = 10};
    client *c;
    assert_int_equal(client_open(&config, &c), FSDP_OK);
    return c;
}

static void write_file(const char *folder, const char *part, const char *name, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, part);
    (void)mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", folder, part, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < bytes; i++)
        fputc((int)(i * 2654435761u >> 24), file);
    fclose(file);
}

static bool same_file(const char *part, const char *name)
{
    char command[600];
    snprintf(command, sizeof command, "cmp -s %s/%s/%s %s/%s/%s", here, part, name, there, part, name);
    return system(command) == 0;
}

static void parts_go_there_and_come_back_whole(void **state)
{
    (void)state;
    server *s = open_vault(vault_serve);
    client *c = visit(s);
    write_file(here, "step-1", "large", (9u << 20) + 7); /* more than two chunks */
    write_file(here, "step-1", "empty", 0);
    write_file(here, "step-1", "exact", 4u << 20);
    assert_int_equal(vault_put(c, here, "step-1", "first"), FSDP_OK);
    assert_true(same_file("step-1", "large") && same_file("step-1", "empty") && same_file("step-1", "exact"));
    write_file(here, "step-1", "large", 100); /* another in its place */
    assert_int_equal(vault_put(c, here, "step-1", "second"), FSDP_OK);
    assert_true(same_file("step-1", "large"));
    write_file(there, "step-2", "large", 5000);
    assert_int_equal(vault_take(c, here, "step-2", "third"), FSDP_OK);
    assert_true(same_file("step-2", "large"));
    assert_int_not_equal(vault_take(c, here, "step-3", "fourth"), FSDP_OK);
    assert_non_null(strstr(fsdp_last_error(), "no such part"));
    client_close(c);
    server_close(s, 1);
}

static bool serve(uint32_t kind, const wire_body *body, fsdp_status *status)
{
    wire_body answer = {0};
    bool served = vault_serve(there, kind, body->data, body->bytes, &answer);
    wire_reader r = wire_read(answer.data, answer.bytes);
    *status = served ? (fsdp_status)wire_get_i32(&r) : FSDP_ERR_INPUT;
    wire_free(&answer);
    return served;
}

static bool write_chunk(const char *part, const char *id, const char *file, int64_t offset, fsdp_status *status)
{
    wire_body body = {0};
    wire_put_text(&body, part);
    wire_put_text(&body, id);
    wire_put_text(&body, file);
    wire_put_i64(&body, offset);
    wire_put_blob(&body, "data", 4);
    bool served = serve(WIRE_PART_WRITE, &body, status);
    wire_free(&body);
    return served;
}

static bool commit_part(const char *part, const char *id, fsdp_status *status)
{
    wire_body body = {0};
    wire_put_text(&body, part);
    wire_put_text(&body, id);
    bool served = serve(WIRE_PART_COMMIT, &body, status);
    wire_free(&body);
    return served;
}

static void nothing_outside_the_folder_can_be_named(void **state)
{
    (void)state;
    static const char *const bad[] = {"..", ".", "", "a/b", "/etc", ".a", "a b", "a\nb", "\xff"};
    fsdp_status status;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(write_chunk(bad[i], "id", "file", 0, &status));
        assert_false(write_chunk("part", bad[i], "file", 0, &status));
        assert_false(write_chunk("part", "id", bad[i], 0, &status));
        assert_false(commit_part(bad[i], "id", &status));
    }
    assert_false(write_chunk("part", "id", "file", -1, &status));
    /* A link in the folder leads nowhere. */
    char link_path[256], target[128];
    snprintf(target, sizeof target, "%s/outside", root);
    assert_true(write_chunk("part", "id", "file", 0, &status));
    snprintf(link_path, sizeof link_path, "%s/part.tmp-id/link", there);
    assert_int_equal(symlink(target, link_path), 0);
    assert_true(write_chunk("part", "id", "link", 0, &status));
    assert_int_equal(status, FSDP_ERR_IO);
    assert_int_not_equal(access(target, F_OK), 0);
}

static void files_have_no_holes_and_what_is_no_part_stays(void **state)
{
    (void)state;
    static const int64_t beyond[] = {9, 1 << 30, INT64_MAX - 4, INT64_MAX}; /* of 8 bytes */
    fsdp_status status;
    assert_true(write_chunk("hole", "id", "file", 0, &status) && status == FSDP_OK);
    assert_true(write_chunk("hole", "id", "file", 4, &status) && status == FSDP_OK);
    for (size_t i = 0; i < 4; i++) {
        assert_true(write_chunk("hole", "id", "file", beyond[i], &status));
        assert_int_equal(status, FSDP_ERR_INPUT);
    }
    /* The launcher's own file is there under a name that a part could have. */
    char path[256];
    snprintf(path, sizeof path, "%s/vault", there);
    assert_int_equal(file_write_atomic(path, "address", 7), FSDP_OK);
    assert_true(write_chunk("vault", "id", "file", 0, &status) && status == FSDP_OK);
    assert_true(commit_part("vault", "id", &status));
    assert_int_equal(status, FSDP_ERR_INPUT);
    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    assert_string_equal(text, "address");
    free(text);
    assert_true(commit_part("never-written", "id", &status));
    assert_int_equal(status, FSDP_ERR_INPUT);
}

/* One of many ways to be wrong about parts, by number. */
static size_t make_hostile(uint64_t number, uint32_t *kind, uint8_t *out, size_t room)
{
    static const char *const texts[] = {"..", "../../x", "a/b", "", "/dev/shm", "vault", "step-1", "x"};
    rng_key seed = rng_key_make(number);
    wire_body body = {0};
    *kind = WIRE_PART_WRITE + (uint32_t)(rng_word(seed, 0, 0) % 6); /* the last two do not exist */
    for (uint64_t i = 0; i < 3; i++)
        wire_put_text(&body, texts[rng_word(seed, 1, i) % 8]);
    wire_put_i64(&body, number % 5 ? (int64_t)rng_word(seed, 0, 1) : INT64_MAX - (int64_t)(number % 8));
    wire_put_u32(&body, number % 3 ? (uint32_t)rng_word(seed, 0, 2) : 3); /* a length that lies, or not */
    wire_put(&body, "abc", 3);
    size_t n = body.bytes < room ? body.bytes : room;
    memcpy(out, body.data, n);
    wire_free(&body);
    if (number % 4 == 0) /* noise, or cut off anywhere */
        out[rng_word(seed, 0, 3) % n] ^= (uint8_t)(1 + number % 255);
    return number % 7 == 0 ? rng_word(seed, 0, 4) % n : n;
}

static long bytes_below(void)
{
    char command[128];
    long bytes = -1;
    snprintf(command, sizeof command, "du -s -b %s", root);
    FILE *told = popen(command, "r");
    assert_non_null(told);
    assert_int_equal(fscanf(told, "%ld", &bytes), 1);
    pclose(told);
    return bytes;
}

static void ten_thousand_hostile_members_leave_nothing(void **state)
{
    (void)state;
    enum { MESSAGES = 10000, EACH = 40 };
    server *s = open_vault(vault_serve);
    uint8_t message[512];
    int dropped = 0, answered = 0;
    write_file(there, "step-1", "kept", 1000);
    write_file(here, "step-1", "kept", 1000);
    long before = bytes_below();
    client *c = visit(s);
    for (int i = 0, n = 0; i < MESSAGES; i++, n++) {
        uint32_t kind;
        size_t bytes = make_hostile((uint64_t)i, &kind, message, sizeof message);
        wire_body body = {0};
        wire_reader answer;
        wire_put(&body, message, bytes);
        fsdp_status status = client_ask(c, kind, &body, 10, "parts", &answer);
        assert_int_not_equal(status, FSDP_ERR_TIMEOUT); /* answered, or dropped */
        answered += status != FSDP_ERR_PEER;
        dropped += status == FSDP_ERR_PEER;
        if (status == FSDP_ERR_PEER || n == EACH) {
            client_close(c);
            c = visit(s);
            n = 0;
        }
    }
    assert_true(dropped > 1000 && answered > 10);
    assert_true(bytes_below() - before < 1 << 20);
    assert_int_equal(vault_put(c, here, "step-1", "after"), FSDP_OK); /* those who make sense are served */
    assert_true(same_file("step-1", "kept"));
    client_close(c);
    server_close(s, 1);
}

/* A vault that lies, by the length of its list. */
static bool lie(void *context, uint32_t kind, const void *body, size_t bytes, wire_body *answer)
{
    (void)context, (void)body, (void)bytes;
    static int turn;
    static const int32_t counts[] = {-1, INT32_MIN, 65, INT32_MAX, 2, 1, 1};
    int32_t count = counts[turn % 7];
    wire_put_i32(answer, FSDP_OK);
    if (kind == WIRE_PART_READ) { /* less than it promised */
        wire_put_blob(answer, "", 0);
        return true;
    }
    wire_put_i32(answer, count);
    for (int i = 0; i < count && i < 65; i++) {
        wire_put_text(answer, turn == 5 ? "../../escape" : "file");
        wire_put_i64(answer, turn == 6 ? INT64_MAX : 10);
    }
    turn++;
    return true;
}

static void a_vault_that_lies_is_not_believed(void **state)
{
    (void)state;
    server *s = open_vault(lie);
    client *c = visit(s);
    for (int i = 0; i < 7; i++) {
        char part[32], path[160];
        snprintf(part, sizeof part, "lied-%d", i);
        assert_int_not_equal(vault_take(c, here, part, "id"), FSDP_OK);
        snprintf(path, sizeof path, "%s/%s", here, part);
        assert_int_not_equal(access(path, F_OK), 0); /* no part of what came */
    }
    client_close(c);
    server_close(s, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(parts_go_there_and_come_back_whole, make_folders, remove_folders),
        cmocka_unit_test_setup_teardown(nothing_outside_the_folder_can_be_named, make_folders, remove_folders),
        cmocka_unit_test_setup_teardown(files_have_no_holes_and_what_is_no_part_stays, make_folders, remove_folders),
        cmocka_unit_test_setup_teardown(ten_thousand_hostile_members_leave_nothing, make_folders, remove_folders),
        cmocka_unit_test_setup_teardown(a_vault_that_lies_is_not_believed, make_folders, remove_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
