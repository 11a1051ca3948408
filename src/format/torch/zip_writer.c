/* Headers are written behind their data's back: sizes are known before, checksums only after. */
#include "format/torch/zip_writer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/checked.h"
#include "base/error.h"

enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, END64_BYTES = 56, LOCATOR_BYTES = 20 };
enum { ALIGNMENT = 64, FIELD_HEADER = 4, LOCAL_FIELD64 = FIELD_HEADER + 16, CENTRAL_FIELD64 = FIELD_HEADER + 24 };
enum { ZIP64_FIELD = 1, PADDING_FIELD = 0x4246, MAX_EXTRA = LOCAL_FIELD64 + FIELD_HEADER + ALIGNMENT };
enum { VERSION = 45 }; /* of the format, the first with zip64 */
#define DATE_1980 0x21 /* January 1: the same calls give the same bytes */
#define OVER_32_BITS UINT32_MAX

typedef struct entry {
    char *name;
    uint64_t header, bytes; /* the header's place is counted from the archive's begin */
    uint32_t checksum;
    size_t padding; /* of the local header */
} entry;

struct zip_writer {
    file_writer *file;
    uint64_t begin, at; /* next byte of the file */
    entry *entries;
    size_t n_entries, capacity;
    uint64_t left; /* bytes of the last entry that are to come */
};

/* A header under construction. */
typedef struct record {
    uint8_t bytes[CENTRAL_BYTES + 2 * MAX_EXTRA];
    size_t n;
} record;

static void put(record *r, int width, uint64_t value)
{
    for (int i = 0; i < width; i++)
        r->bytes[r->n++] = (uint8_t)(value >> (8 * i));
}

static uint64_t short_size(uint64_t value)
{
    return value >= OVER_32_BITS ? OVER_32_BITS : value;
}

fsdp_status zip_writer_create(file_writer *file, uint64_t begin, zip_writer **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return error_set(FSDP_ERR_MEMORY, "out of memory for an archive");
    **out = (zip_writer){.file = file, .begin = begin, .at = begin};
    return FSDP_OK;
}

void zip_writer_free(zip_writer *zip)
{
    if (!zip)
        return;
    for (size_t i = 0; i < zip->n_entries; i++)
        free(zip->entries[i].name);
    free(zip->entries);
    free(zip);
}

/* What both kinds of header have in the middle. */
static void put_common(record *r, const entry *e)
{
    put(r, 2, 0); /* flags */
    put(r, 2, 0); /* stored */
    put(r, 2, 0);
    put(r, 2, DATE_1980);
    put(r, 4, e->checksum);
    put(r, 4, short_size(e->bytes));
    put(r, 4, short_size(e->bytes));
    put(r, 2, strlen(e->name));
}

static size_t local_field64(const entry *e)
{
    return e->bytes >= OVER_32_BITS ? LOCAL_FIELD64 : 0;
}

static fsdp_status write_local(const zip_writer *zip, const entry *e)
{
    record r = {.n = 0};
    put(&r, 4, 0x04034b50);
    put(&r, 2, VERSION);
    put_common(&r, e);
    put(&r, 2, local_field64(e) + FIELD_HEADER + e->padding);
    uint64_t at = zip->begin + e->header;
    FSDP_TRY(file_writer_write_at(zip->file, at, r.bytes, r.n));
    FSDP_TRY(file_writer_write_at(zip->file, at + r.n, e->name, strlen(e->name)));
    at += r.n + strlen(e->name);
    r.n = 0;
    if (local_field64(e)) {
        put(&r, 2, ZIP64_FIELD);
        put(&r, 2, LOCAL_FIELD64 - FIELD_HEADER);
        put(&r, 8, e->bytes);
        put(&r, 8, e->bytes);
    }
    put(&r, 2, PADDING_FIELD);
    put(&r, 2, e->padding);
    for (size_t i = 0; i < e->padding; i++)
        put(&r, 1, 'Z');
    return file_writer_write_at(zip->file, at, r.bytes, r.n);
}

static fsdp_status add_entry(zip_writer *zip, const char *name, uint64_t bytes)
{
    if (zip->n_entries == zip->capacity) {
        size_t capacity = zip->capacity ? 2 * zip->capacity : 64;
        entry *entries = realloc(zip->entries, capacity * sizeof *entries);
        if (!entries)
            return error_set(FSDP_ERR_MEMORY, "out of memory for an archive of %zu files", capacity);
        zip->entries = entries;
        zip->capacity = capacity;
    }
    entry *e = &zip->entries[zip->n_entries];
    *e = (entry){.name = strdup(name), .header = zip->at - zip->begin, .bytes = bytes};
    if (!e->name)
        return error_set(FSDP_ERR_MEMORY, "out of memory for an archive");
    zip->n_entries++;
    uint64_t data = e->header + LOCAL_BYTES + strlen(name) + local_field64(e) + FIELD_HEADER;
    e->padding = round_up((size_t)data, ALIGNMENT) - (size_t)data;
    zip->at = zip->begin + data + e->padding;
    zip->left = bytes;
    return bytes == 0 ? write_local(zip, e) : FSDP_OK;
}

fsdp_status zip_writer_start(zip_writer *zip, const char *name, uint64_t bytes)
{
    if (zip->left > 0)
        return error_set(FSDP_ERR_STATE, "%s begins before %s is whole", name, zip->entries[zip->n_entries - 1].name);
    return add_entry(zip, name, bytes);
}

fsdp_status zip_writer_write(zip_writer *zip, const void *data, size_t bytes)
{
    entry *e = zip->n_entries ? &zip->entries[zip->n_entries - 1] : NULL;
    if (!e || bytes > zip->left)
        return error_set(FSDP_ERR_STATE, "more bytes for a file of an archive than it was to have");
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(file_writer_write_at(zip->file, zip->at, data, bytes));
    e->checksum = (uint32_t)crc32_z(e->checksum, data, bytes);
    zip->at += bytes;
    zip->left -= bytes;
    return zip->left == 0 ? write_local(zip, e) : FSDP_OK;
}

fsdp_status zip_writer_add(zip_writer *zip, const char *name, const void *data, size_t bytes)
{
    FSDP_TRY(zip_writer_start(zip, name, bytes));
    return zip_writer_write(zip, data, bytes);
}

/* ---- The directory ---- */

static fsdp_status append(zip_writer *zip, const void *data, size_t bytes)
{
    FSDP_TRY(file_writer_write_at(zip->file, zip->at, data, bytes));
    zip->at += bytes;
    return FSDP_OK;
}

static fsdp_status write_central(zip_writer *zip, const entry *e)
{
    record r = {.n = 0}, field = {.n = 0};
    bool large = e->bytes >= OVER_32_BITS, far = e->header >= OVER_32_BITS;
    if (large || far) {
        put(&field, 2, ZIP64_FIELD);
        put(&field, 2, (large ? 16 : 0) + (far ? 8 : 0));
        for (int i = 0; i < 2 && large; i++)
            put(&field, 8, e->bytes);
        if (far)
            put(&field, 8, e->header);
    }
    put(&r, 4, 0x02014b50);
    put(&r, 2, VERSION);
    put(&r, 2, VERSION);
    put_common(&r, e);
    put(&r, 2, field.n);
    put(&r, 2, 0); /* comment */
    put(&r, 2, 0); /* disk */
    put(&r, 2, 0); /* attributes */
    put(&r, 4, 0);
    put(&r, 4, short_size(e->header));
    FSDP_TRY(append(zip, r.bytes, r.n));
    FSDP_TRY(append(zip, e->name, strlen(e->name)));
    return append(zip, field.bytes, field.n);
}

static void put_end64(record *r, uint64_t n_entries, uint64_t bytes, uint64_t offset)
{
    put(r, 4, 0x06064b50);
    put(r, 8, END64_BYTES - 12);
    put(r, 2, VERSION);
    put(r, 2, VERSION);
    put(r, 4, 0);
    put(r, 4, 0);
    put(r, 8, n_entries);
    put(r, 8, n_entries);
    put(r, 8, bytes);
    put(r, 8, offset);
    put(r, 4, 0x07064b50); /* the locator of this record */
    put(r, 4, 0);
    put(r, 8, offset + bytes);
    put(r, 4, 1);
}

fsdp_status zip_writer_finish(zip_writer *zip, uint64_t *end)
{
    record r = {.n = 0};
    uint64_t offset = zip->at - zip->begin, n = zip->n_entries;
    if (zip->left > 0)
        return error_set(FSDP_ERR_STATE, "an archive is closed before its last file is whole");
    for (size_t i = 0; i < zip->n_entries; i++)
        FSDP_TRY(write_central(zip, &zip->entries[i]));
    uint64_t bytes = zip->at - zip->begin - offset;
    bool wide = n >= UINT16_MAX || bytes >= OVER_32_BITS || offset >= OVER_32_BITS;
    if (wide)
        put_end64(&r, n, bytes, offset);
    put(&r, 4, 0x06054b50);
    put(&r, 2, 0);
    put(&r, 2, 0);
    put(&r, 2, wide ? UINT16_MAX : n);
    put(&r, 2, wide ? UINT16_MAX : n);
    put(&r, 4, wide ? OVER_32_BITS : bytes);
    put(&r, 4, wide ? OVER_32_BITS : offset);
    put(&r, 2, 0);
    FSDP_TRY(append(zip, r.bytes, r.n));
    *end = zip->at;
    return FSDP_OK;
}
