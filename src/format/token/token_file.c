/* Reads token files. The header is checked against the file at open, so every later access needs only its own range
 * compared with the counts. Files are read, not mapped: one that shrinks while it is used is an error with its name,
 * where a mapping would kill the process; and a read of a few thousand tokens costs what a page fault does. */
#include "format/token/token_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/token/token_layout.h"

enum { CHUNK_TOKENS = 8192 }; /* read at a time where they must be widened */

struct token_file {
    int fd;
    char *path;
    uint64_t bytes; /* of the file when it was opened */
    token_header header;
};

/* Bytes that the file had when it was opened. */
static fsdp_status read_at(const token_file *file, uint64_t offset, void *out, size_t bytes)
{
    uint8_t *to = out;
    while (bytes > 0) {
        ssize_t got = pread(file->fd, to, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot read at byte %" PRIu64, file->path, offset);
        if (got == 0)
            return error_set(FSDP_ERR_IO,
                             "%s: ends at byte %" PRIu64 ", but had %" PRIu64
                             " bytes when it was opened: it was cut or written anew while it is used",
                             file->path, offset, file->bytes);
        to += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return FSDP_OK;
}

static fsdp_status refuse_field(const token_file *file, const char *field, uint64_t value)
{
    return error_set(FSDP_ERR_INPUT, "%s: token file with an impossible %s of %" PRIu64, file->path, field, value);
}

static fsdp_status check_sizes(const token_file *file)
{
    const token_header *h = &file->header;
    size_t token_total, index_total, total;
    if (h->token_bytes != 2 && h->token_bytes != 4)
        return refuse_field(file, "token width", h->token_bytes);
    if (h->vocabulary < 1 || h->vocabulary > (h->token_bytes == 2 ? 1u << 16 : 1u << 31))
        return refuse_field(file, "vocabulary size", h->vocabulary);
    if (checked_mul(h->n_tokens, h->token_bytes, &token_total) || token_total > INT64_MAX / 2)
        return refuse_field(file, "number of tokens", h->n_tokens);
    if (checked_mul(h->n_documents, sizeof(uint64_t), &index_total) || index_total > INT64_MAX / 2 ||
        (h->n_documents == 0 && h->n_tokens > 0))
        return refuse_field(file, "number of documents", h->n_documents);
    if (h->index_begin != sizeof *h + round_up(token_total, 8))
        return refuse_field(file, "place of the document index", h->index_begin);
    if (checked_add(h->index_begin, index_total, &total) || total != file->bytes)
        return error_set(FSDP_ERR_INPUT,
                         "%s: %" PRIu64 " bytes long, but %" PRIu64 " tokens and %" PRIu64
                         " documents take %zu: truncated?",
                         file->path, file->bytes, h->n_tokens, h->n_documents, total);
    return FSDP_OK;
}

static fsdp_status check_header(token_file *file)
{
    uint64_t last = 0;
    if (file->bytes < sizeof file->header)
        return error_set(FSDP_ERR_INPUT, "%s: %" PRIu64 " bytes long, too short for a token file", file->path,
                         file->bytes);
    FSDP_TRY(read_at(file, 0, &file->header, sizeof file->header));
    if (memcmp(file->header.magic, TOKEN_FILE_MAGIC, sizeof file->header.magic) != 0)
        return error_set(FSDP_ERR_INPUT, "%s: not a token file (make one with `fsdp tokenize --output`)", file->path);
    if (file->header.version != TOKEN_FILE_VERSION)
        return error_set(FSDP_ERR_INPUT, "%s: token file of version %u; this program reads version %u", file->path,
                         file->header.version, TOKEN_FILE_VERSION);
    if (file->header.header_checksum != token_header_checksum(&file->header))
        return error_set(FSDP_ERR_INPUT, "%s: the header is damaged (its checksum does not fit)", file->path);
    FSDP_TRY(check_sizes(file));
    if (file->header.n_documents > 0)
        FSDP_TRY(read_at(file, file->bytes - sizeof last, &last, sizeof last));
    if (last != file->header.n_tokens)
        return error_set(FSDP_ERR_INPUT, "%s: the document index is damaged: the last document does not end at the end",
                         file->path);
    return FSDP_OK;
}

fsdp_status token_file_open(const char *path, token_file **out)
{
    fsdp_status status;
    *out = NULL;
    token_file *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    }
    file->fd = -1;
    TRY_OR(fail, file_open_regular(path, FILE_ANY_SIZE, &file->fd, &file->bytes));
    TRY_OR(fail, check_header(file));
    *out = file;
    return FSDP_OK;
fail:
    token_file_close(file);
    return status;
}

void token_file_close(token_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    free(file);
}

int64_t token_file_vocabulary(const token_file *file)
{
    return (int64_t)file->header.vocabulary;
}

int64_t token_file_count(const token_file *file)
{
    return (int64_t)file->header.n_tokens;
}

int64_t token_file_documents(const token_file *file)
{
    return (int64_t)file->header.n_documents;
}

/* Reads and widens; *largest is as unsigned: a negative token of 4 bytes is too large as well. */
static fsdp_status read_tokens(const token_file *file, int64_t first, int64_t n, int32_t *out, uint32_t *largest)
{
    uint16_t narrow[CHUNK_TOKENS];
    uint32_t most = 0, width = file->header.token_bytes;
    uint64_t offset = sizeof file->header + (uint64_t)first * width;
    if (width == 4)
        FSDP_TRY(read_at(file, offset, out, (size_t)n * 4));
    for (int64_t at = 0, now; at < n && width == 2; at += now) {
        now = min_i64(CHUNK_TOKENS, n - at);
        FSDP_TRY(read_at(file, offset + 2 * (uint64_t)at, narrow, 2 * (size_t)now));
        for (int64_t i = 0; i < now; i++)
            out[at + i] = narrow[i];
    }
    for (int64_t i = 0; i < n; i++)
        most = (uint32_t)out[i] > most ? (uint32_t)out[i] : most;
    *largest = most;
    return FSDP_OK;
}

fsdp_status token_file_read(const token_file *file, int64_t first, int64_t n, int32_t *out)
{
    int64_t count = token_file_count(file);
    uint32_t largest = 0;
    if (first < 0 || n < 0 || first > count || n > count - first)
        return error_set(FSDP_ERR_INPUT, "%s: has %" PRId64 " tokens; %" PRId64 " from %" PRId64 " on were asked for",
                         file->path, count, n, first);
    FSDP_TRY(read_tokens(file, first, n, out, &largest));
    if (n == 0 || largest < file->header.vocabulary)
        return FSDP_OK;
    int64_t at = 0;
    while ((uint32_t)out[at] < file->header.vocabulary)
        at++;
    return error_set(FSDP_ERR_INPUT, "%s: token %" PRId64 " is %u, outside the vocabulary of %" PRIu64, file->path,
                     first + at, (uint32_t)out[at], file->header.vocabulary);
}

fsdp_status token_file_document(const token_file *file, int64_t index, int64_t *first, int64_t *n)
{
    if (index < 0 || index >= token_file_documents(file))
        return error_set(FSDP_ERR_INPUT, "%s: has %" PRId64 " documents; number %" PRId64 " was asked for", file->path,
                         token_file_documents(file), index);
    uint64_t place = file->header.index_begin + (uint64_t)index * sizeof(uint64_t), begin = 0, end = 0;
    if (index > 0)
        FSDP_TRY(read_at(file, place - sizeof begin, &begin, sizeof begin));
    FSDP_TRY(read_at(file, place, &end, sizeof end));
    if (begin > end || end > file->header.n_tokens)
        return error_set(FSDP_ERR_INPUT, "%s: the document index is damaged at document %" PRId64, file->path, index);
    *first = (int64_t)begin;
    *n = (int64_t)(end - begin);
    return FSDP_OK;
}

static fsdp_status verify_contents(const token_file *file)
{
    uint8_t block[64 << 10];
    hash_stream stream;
    hash_stream_start(&stream);
    for (uint64_t at = sizeof file->header; at < file->bytes;) {
        size_t n = file->bytes - at < sizeof block ? (size_t)(file->bytes - at) : sizeof block;
        FSDP_TRY(read_at(file, at, block, n));
        hash_stream_add(&stream, block, n);
        at += n;
    }
    if (hash_stream_end(&stream) != file->header.content_checksum)
        return error_set(FSDP_ERR_INPUT, "%s: the contents are damaged (their checksum does not fit)", file->path);
    return FSDP_OK;
}

fsdp_status token_file_verify(const token_file *file)
{
    int32_t tokens[CHUNK_TOKENS];
    int64_t count = token_file_count(file), first, n;
    FSDP_TRY(verify_contents(file));
    for (int64_t at = 0; at < count; at += CHUNK_TOKENS)
        FSDP_TRY(token_file_read(file, at, min_i64(CHUNK_TOKENS, count - at), tokens));
    for (int64_t i = 0; i < token_file_documents(file); i++)
        FSDP_TRY(token_file_document(file, i, &first, &n));
    return FSDP_OK;
}
