/* Any messages to the vault of snapshots: nothing crashes, nothing is written outside its folder, no file grows past
 * what was sent, and every answer is one that a client can read. Built with clang -fsanitize=fuzzer it searches;
 * otherwise it replays tests/fuzz/corpus/vault.
 *
 * An input is records: a byte for the kind, one for the length, and as many bytes of body. A kind above 127 makes a
 * body that is well formed, of words from a small set, so that parts are written, committed, listed and read. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "meet/vault.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

static const char *const words[] = {"step-00000001.rank-00000", "vault", "a", "..", "a/b", "", ".hidden", "a.tmp-a"};

static const char *word(uint8_t byte)
{
    return words[byte % 8];
}

static void make_body(uint32_t kind, const uint8_t *data, size_t bytes, wire_body *body)
{
    static const int64_t offsets[] = {0, 1, 3, 200, -1, INT64_MAX, INT64_MAX - 2, 1 << 20};
    uint8_t choice[4] = {0};
    memcpy(choice, data, bytes < 4 ? bytes : 4);
    wire_put_text(body, word(choice[0]));
    wire_put_text(body, word(choice[1]));
    if (kind == WIRE_PART_WRITE || kind == WIRE_PART_READ) {
        wire_put_text(body, word(choice[2]));
        wire_put_i64(body, offsets[choice[3] % 8]);
    }
    if (kind == WIRE_PART_WRITE)
        wire_put_blob(body, data + (bytes < 4 ? bytes : 4), bytes < 4 ? 0 : bytes - 4);
}

static void check_answer(uint32_t kind, const wire_body *answer)
{
    wire_reader r = wire_read(answer->data, answer->bytes);
    char text[WIRE_TEXT_BYTES];
    size_t n;
    if (wire_get_i32(&r) != FSDP_OK) {
        wire_get_text(&r, text, sizeof text);
    } else if (kind == WIRE_PART_LIST) {
        for (int32_t files = wire_get_i32(&r); files > 0; files--) {
            wire_get_text(&r, text, sizeof text);
            require(wire_get_i64(&r) >= 0 && !strchr(text, '/'));
        }
    } else if (kind == WIRE_PART_READ) {
        (void)wire_get_blob(&r, &n, SIZE_MAX);
    }
    require(wire_done(&r));
}

/* Bytes of all files; nothing but folders and plain files may lie there. */
static uint64_t weigh(const char *folder)
{
    uint64_t total = 0;
    DIR *all = opendir(folder);
    require(all != NULL);
    for (const struct dirent *e; (e = readdir(all));) {
        char path[2048];
        struct stat info;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        require(lstat(path, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)));
        total += S_ISDIR(info.st_mode) ? weigh(path) : (uint64_t)info.st_size;
    }
    closedir(all);
    return total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char outside[] = "/dev/shm/fsdp-fuzz-vault-XXXXXX", folder[64], address[96];
    require(mkdtemp(outside) != NULL);
    snprintf(folder, sizeof folder, "%s/folder", outside);
    snprintf(address, sizeof address, "%s/vault", folder);
    require(mkdir(folder, 0700) == 0 && file_write_atomic(address, "here", 4) == FSDP_OK);
    uint64_t sent = 4;
    for (size_t at = 0; at + 2 <= bytes;) {
        uint8_t first = data[at];
        size_t left = bytes - at - 2, length = data[at + 1] < left ? data[at + 1] : left;
        bool formed = first > 127;
        uint32_t kind = formed ? WIRE_PART_WRITE + first % 4 : first % (WIRE_KINDS + 2);
        wire_body body = {0}, answer = {0};
        at += 2;
        if (formed)
            make_body(kind, data + at, length, &body);
        bool served = vault_serve(folder, kind, formed ? body.data : (const void *)(data + at),
                                  formed ? body.bytes : length, &answer);
        if (served)
            check_answer(kind, &answer);
        sent += length;
        at += length;
        wire_free(&answer);
        wire_free(&body);
    }
    char *said = NULL;
    size_t n = 0;
    require(weigh(outside) <= sent);
    require(file_read(address, &said, &n) == FSDP_OK && n == 4); /* the launcher's own file is nobody's part */
    free(said);
    require(rmdir(outside) != 0 && file_remove_tree(outside) == FSDP_OK);
    return 0;
}
