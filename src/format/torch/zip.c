/* Reads the central directory at the end of an archive, then compares each entry with the header in front of its data.
 * Nothing is taken on trust: counts and offsets are compared with the bytes that are there. */
#include "format/torch/zip.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { END_BYTES = 22, LOCATOR_BYTES = 20, END64_BYTES = 56, CENTRAL_BYTES = 46, LOCAL_BYTES = 30 };
enum { MAX_COMMENT = 65535, ZIP64_FIELD = 1, ENCRYPTED = 1 };

typedef struct bytes_in {
    const char *name;
    const uint8_t *data;
    size_t bytes;
} bytes_in;

static uint64_t number(const uint8_t *at, int width)
{
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static fsdp_status broken(const bytes_in *in, const char *why)
{
    return error_set(FSDP_ERR_INPUT, "%s: not a whole zip archive: %s", in->name, why);
}

static bool lies_within(const bytes_in *in, uint64_t offset, uint64_t bytes)
{
    return offset <= in->bytes && bytes <= in->bytes - offset;
}

typedef struct directory {
    uint64_t n_entries, bytes, offset;
} directory;

/* Sizes and places that do not fit the old record are in one of zip64, which a locator names. */
static fsdp_status read_end64(const bytes_in *in, size_t end_at, directory *out)
{
    if (end_at < LOCATOR_BYTES || memcmp(in->data + end_at - LOCATOR_BYTES, "PK\6\7", 4) != 0)
        return broken(in, "the zip64 locator is missing");
    uint64_t at = number(in->data + end_at - LOCATOR_BYTES + 8, 8);
    if (!lies_within(in, at, END64_BYTES) || memcmp(in->data + at, "PK\6\6", 4) != 0)
        return broken(in, "the zip64 end of the directory is missing");
    out->n_entries = number(in->data + at + 32, 8);
    out->bytes = number(in->data + at + 40, 8);
    out->offset = number(in->data + at + 48, 8);
    return FSDP_OK;
}

static fsdp_status read_end(const bytes_in *in, directory *out)
{
    size_t at = in->bytes;
    bool found = false;
    for (size_t back = END_BYTES; !found && back <= in->bytes && back <= END_BYTES + MAX_COMMENT; back++) {
        at = in->bytes - back;
        found = memcmp(in->data + at, "PK\5\6", 4) == 0 && number(in->data + at + 20, 2) == back - END_BYTES;
    }
    if (!found)
        return broken(in, "the end of its directory is missing (is the file cut?)");
    *out = (directory){.n_entries = number(in->data + at + 10, 2),
                       .bytes = number(in->data + at + 12, 4),
                       .offset = number(in->data + at + 16, 4)};
    if (out->n_entries == 0xffff || out->bytes == 0xffffffff || out->offset == 0xffffffff)
        FSDP_TRY(read_end64(in, at, out));
    if (!lies_within(in, out->offset, out->bytes) || out->n_entries > out->bytes / CENTRAL_BYTES)
        return broken(in, "its directory does not fit the file");
    return FSDP_OK;
}

/* Replaces the fields that say 0xffffffff, in their order, by those of the zip64 field. */
static fsdp_status widen(const bytes_in *in, const uint8_t *extra, size_t extra_bytes, uint64_t *const *fields)
{
    for (size_t at = 0; at + 4 <= extra_bytes;) {
        size_t bytes = (size_t)number(extra + at + 2, 2), used = 0;
        if (bytes > extra_bytes - at - 4)
            break;
        for (int i = 0; number(extra + at, 2) == ZIP64_FIELD && i < 3; i++) {
            if (*fields[i] != 0xffffffff)
                continue;
            if (used + 8 > bytes)
                return broken(in, "a zip64 field is too short");
            *fields[i] = number(extra + at + 4 + used, 8);
            used += 8;
        }
        at += 4 + bytes;
    }
    return FSDP_OK;
}

/* One entry of the directory at `at`, of which `left` bytes are there; `*took` is its length. */
static fsdp_status read_entry(const bytes_in *in, const uint8_t *at, size_t left, arena *memory, zip_entry *out,
                              size_t *took)
{
    if (left < CENTRAL_BYTES || memcmp(at, "PK\1\2", 4) != 0)
        return broken(in, "its directory is damaged");
    size_t name_bytes = (size_t)number(at + 28, 2), extra_bytes = (size_t)number(at + 30, 2);
    uint64_t packed = number(at + 20, 4), bytes = number(at + 24, 4), local = number(at + 42, 4);
    *took = CENTRAL_BYTES + name_bytes + extra_bytes + (size_t)number(at + 32, 2);
    if (*took > left || memchr(at + CENTRAL_BYTES, '\0', name_bytes))
        return broken(in, "its directory is damaged");
    FSDP_TRY(widen(in, at + CENTRAL_BYTES + name_bytes, extra_bytes, (uint64_t *const[]){&bytes, &packed, &local}));
    if (!lies_within(in, local, LOCAL_BYTES) || memcmp(in->data + local, "PK\3\4", 4) != 0)
        return broken(in, "an entry's header is missing");
    uint64_t data = local + LOCAL_BYTES + number(in->data + local + 26, 2) + number(in->data + local + 28, 2);
    if (!lies_within(in, data, packed))
        return broken(in, "an entry's data does not fit the file");
    char *name = arena_alloc(memory, name_bytes + 1);
    if (!name)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for its directory", in->name);
    memcpy(name, at + CENTRAL_BYTES, name_bytes);
    bool stored = number(at + 10, 2) == 0 && !(number(at + 8, 2) & ENCRYPTED) && packed == bytes;
    *out = (zip_entry){.name = name, .data = stored ? in->data + data : NULL, .bytes = (size_t)bytes};
    return FSDP_OK;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const zip_entry *)left)->name, ((const zip_entry *)right)->name);
}

fsdp_status zip_read(const char *name, const void *data, size_t bytes, arena *memory, zip_archive *out)
{
    bytes_in in = {.name = name, .data = data, .bytes = bytes};
    directory where = {0};
    *out = (zip_archive){0};
    FSDP_TRY(read_end(&in, &where));
    out->entries = arena_alloc(memory, ((size_t)where.n_entries + 1) * sizeof *out->entries);
    if (!out->entries)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for its directory", name);
    size_t at = 0, took = 0;
    for (; out->n_entries < where.n_entries; at += took)
        FSDP_TRY(read_entry(&in, in.data + where.offset + at, (size_t)where.bytes - at, memory,
                            &out->entries[out->n_entries++], &took));
    qsort(out->entries, out->n_entries, sizeof *out->entries, by_name);
    for (size_t i = 1; i < out->n_entries; i++)
        if (strcmp(out->entries[i - 1].name, out->entries[i].name) == 0)
            return broken(&in, "two entries have one name");
    return FSDP_OK;
}

const zip_entry *zip_find(const zip_archive *zip, const char *name)
{
    zip_entry wanted = {.name = name};
    return zip->n_entries ? bsearch(&wanted, zip->entries, zip->n_entries, sizeof wanted, by_name) : NULL;
}
