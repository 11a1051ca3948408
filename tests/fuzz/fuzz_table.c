/* Any bytes as a Parquet or Arrow table: what opens is read to its end and again from the middle, with the same rows.
 * Built with clang -fsanitize=fuzzer it searches; otherwise it replays tests/fuzz/corpus/table. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "format/table/table_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MAX_ROWS = 10000 }; /* a few bytes can stand for any number of nulls */

static void require(int condition)
{
    if (!condition)
        abort();
}

/* A hash of the rows from here on, or 0 after an error. */
static uint64_t read_rows(table_file *t, int64_t skipped, int64_t *n)
{
    table_text values[2];
    bool more = true;
    uint64_t h = HASH_START;
    for (*n = skipped; *n < MAX_ROWS; ++*n) {
        if (table_next(t, values, &more) != FSDP_OK)
            return 0;
        if (!more)
            break;
        for (int i = 0; i < 2; i++) {
            h = hash_u64(h, values[i].text == NULL);
            h = hash_bytes(h, values[i].bytes ? values[i].text : "", values[i].bytes);
        }
    }
    return h;
}

static void read_table(const char *path)
{
    static const char *const columns[] = {"text", "summary"};
    table_file *t;
    int64_t n, again;
    if (table_open(path, columns, 2, &t) != FSDP_OK) {
        require(strlen(fsdp_last_error()) > 0);
        return;
    }
    uint64_t first = read_rows(t, 0, &n);
    if (first != 0) {
        require(table_seek(t, 0) == FSDP_OK && read_rows(t, 0, &again) == first && again == n);
        require(table_seek(t, n / 2) == FSDP_OK && read_rows(t, n / 2, &again) != 0 && again == n);
    }
    table_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    int fd = memfd_create("table", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_table(path);
    close(fd);
    return 0;
}
