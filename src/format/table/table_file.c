/* Tells the kinds of table apart, and reads, bounds and unpacks for both. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/file.h"
#include "format/table/table_reader.h"

static const int64_t most_bytes = (int64_t)1 << 30;
enum { GZIP_OR_ZLIB = 15 + 32 };

/* --- the file ---------------------------------------------------------------------------------------------------- */

fsdp_status table_input_read(const table_input *in, int64_t offset, void *out, size_t bytes, const char *what)
{
    if (offset < 0 || offset > in->bytes || (int64_t)bytes > in->bytes - offset)
        return error_set(FSDP_ERR_INPUT, "%s: %s of %zu bytes at %lld lies outside the file of %lld: truncated?",
                         in->path, what, bytes, (long long)offset, (long long)in->bytes);
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(in->fd, (uint8_t *)out + done, bytes - done, (off_t)(offset + (int64_t)done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? error_set_errno(FSDP_ERR_IO, "%s: cannot read", in->path)
                           : error_set(FSDP_ERR_INPUT, "%s: became shorter while it was read", in->path);
        done += (size_t)got;
    }
    return FSDP_OK;
}

void table_input_close(table_input *in)
{
    if (in->fd >= 0)
        close(in->fd);
    free(in->path);
    in->fd = -1;
    in->path = NULL;
}

fsdp_status table_buffer_resize(const table_input *in, table_buffer *b, int64_t bytes, const char *what)
{
    if (bytes < 0 || bytes > most_bytes)
        return error_set(FSDP_ERR_INPUT, "%s: %s of %lld bytes; 1 GiB is the most", in->path, what, (long long)bytes);
    if ((size_t)bytes > b->capacity || b->data == NULL) {
        uint8_t *data = malloc((size_t)bytes + 1);
        if (data == NULL)
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %s of %lld bytes", in->path, what,
                             (long long)bytes);
        free(b->data);
        b->data = data;
        b->capacity = (size_t)bytes;
    }
    b->bytes = (size_t)bytes;
    return FSDP_OK;
}

/* --- codecs ------------------------------------------------------------------------------------------------------ */

/* A copy of `n` bytes from `back` bytes ago, which may overlap what it writes. */
static bool copy_back(table_buffer *out, size_t *at, size_t back, size_t n)
{
    if (back == 0 || back > *at || n > out->bytes - *at)
        return false;
    for (size_t i = 0; i < n; i++, (*at)++)
        out->data[*at] = out->data[*at - back];
    return true;
}

/* Snappy's block format: the length as a varint, then literals and copies. False: not such data. */
static bool unpack_snappy(const uint8_t *p, const uint8_t *end, table_buffer *out)
{
    uint64_t length = 0;
    size_t at = 0;
    for (int shift = 0;; shift += 7) {
        if (p == end || shift > 28)
            return false;
        length |= (uint64_t)(*p & 0x7f) << shift;
        if (*p++ < 0x80)
            break;
    }
    if (length != out->bytes)
        return false;
    while (p < end) {
        unsigned tag = *p++, kind = tag & 3;
        size_t extra = kind == 0 ? (tag >> 2 < 60 ? 0 : (tag >> 2) - 59) : kind == 3 ? 4 : kind, value = 0, n;
        if ((size_t)(end - p) < extra)
            return false;
        for (size_t i = 0; i < extra; i++)
            value |= (size_t)*p++ << (8 * i);
        if (kind == 0) {
            n = (extra > 0 ? value : tag >> 2) + 1;
            if (n > (size_t)(end - p) || n > out->bytes - at)
                return false;
            memcpy(out->data + at, p, n);
            at += n;
            p += n;
        } else if (kind == 1) {
            if (!copy_back(out, &at, (size_t)(tag >> 5) << 8 | value, 4 + (tag >> 2 & 7)))
                return false;
        } else if (!copy_back(out, &at, value, 1 + (tag >> 2))) {
            return false;
        }
    }
    return at == out->bytes;
}

static bool unpack_gzip(const uint8_t *packed, size_t bytes, table_buffer *out)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)packed, .avail_in = (uInt)bytes};
    z.next_out = out->data;
    z.avail_out = (uInt)out->bytes;
    if (inflateInit2(&z, GZIP_OR_ZLIB) != Z_OK)
        return false;
    int rc = inflate(&z, Z_FINISH);
    bool whole = rc == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return whole;
}

fsdp_status table_unpack(const table_input *in, table_codec codec, const uint8_t *packed, size_t bytes,
                         table_buffer *out)
{
    static const char *const names[] = {"plain", "snappy", "gzip", "zstd"};
    bool good = false;
    if (codec == TABLE_PLAIN)
        good = bytes == out->bytes;
    else if (codec == TABLE_SNAPPY)
        good = unpack_snappy(packed, packed + bytes, out);
    else if (codec == TABLE_GZIP)
        good = unpack_gzip(packed, bytes, out);
    else
        good = ZSTD_decompress(out->data, out->bytes, packed, bytes) == out->bytes;
    if (!good)
        return error_set(FSDP_ERR_INPUT, "%s: %zu bytes of %s data do not unpack to %zu: the file is damaged", in->path,
                         bytes, names[codec], out->bytes);
    if (codec == TABLE_PLAIN)
        memcpy(out->data, packed, bytes);
    return FSDP_OK;
}

/* --- tables ------------------------------------------------------------------------------------------------------ */

fsdp_status table_open(const char *path, const char *const *columns, int n_columns, table_file **out)
{
    uint8_t magic[8] = {0};
    uint64_t bytes = 0;
    table_input in = {.path = strdup(path), .fd = -1};
    *out = NULL;
    if (in.path == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    fsdp_status status =
        n_columns < 1 || n_columns > TABLE_MAX_COLUMNS
            ? error_set(FSDP_ERR_INPUT, "%s: %d columns; from 1 to %d are read", path, n_columns, TABLE_MAX_COLUMNS)
            : file_open_regular(path, FILE_ANY_SIZE, &in.fd, &bytes);
    in.bytes = (int64_t)bytes;
    if (status == FSDP_OK)
        status = table_input_read(&in, 0, magic, sizeof magic, "the beginning");
    if (status != FSDP_OK) {
        table_input_close(&in);
        return status;
    }
    if (memcmp(magic, "PAR1", 4) == 0)
        return parquet_open(in, columns, n_columns, out);
    if (memcmp(magic, "ARROW1", 6) == 0 || read_u32(magic) == UINT32_MAX)
        return arrow_open(in, columns, n_columns, out);
    status =
        memcmp(magic, "PARE", 4) == 0
            ? error_set(FSDP_ERR_UNSUPPORTED, "%s: is an encrypted Parquet file: decrypt it first", path)
        : memcmp(magic, "FEA1", 4) == 0
            ? error_set(FSDP_ERR_UNSUPPORTED, "%s: is a Feather file of version 1: write it again with version 2", path)
            : error_set(FSDP_ERR_INPUT, "%s: is neither a Parquet nor an Arrow file", path);
    table_input_close(&in);
    return status;
}

void table_close(table_file *t)
{
    if (t == NULL)
        return;
    table_input in = t->in;
    t->kind->close(t);
    table_input_close(&in);
}

fsdp_status table_next(table_file *t, table_text *values, bool *more)
{
    *more = false;
    return t->kind->next(t, values, more);
}

fsdp_status table_seek(table_file *t, int64_t row)
{
    return t->kind->seek(t, row);
}
