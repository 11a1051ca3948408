/* Reads token files. The header is checked against the file at open, so every later access needs only its own range
 * compared with the counts. */
#include "format/token_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/token_layout.h"

struct token_file {
    file_map map;
    char *path;
    token_header header;   /* a copy, so that a file that changes under us cannot change the bounds */
    const uint8_t *tokens; /* at byte 64 of a mapping: aligned */
    const uint64_t *ends;  /* document ends */
};

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
    if (checked_add(h->index_begin, index_total, &total) || total != file->map.bytes)
        return error_set(FSDP_ERR_INPUT,
                         "%s: %zu bytes long, but %" PRIu64 " tokens and %" PRIu64 " documents take %zu: truncated?",
                         file->path, file->map.bytes, h->n_tokens, h->n_documents, total);
    return FSDP_OK;
}

static fsdp_status check_header(token_file *file)
{
    if (file->map.bytes < sizeof file->header)
        return error_set(FSDP_ERR_INPUT, "%s: %zu bytes long, too short for a token file", file->path, file->map.bytes);
    memcpy(&file->header, file->map.data, sizeof file->header);
    if (memcmp(file->header.magic, TOKEN_FILE_MAGIC, sizeof file->header.magic) != 0)
        return error_set(FSDP_ERR_INPUT, "%s: not a token file (make one with `fsdp tokenize --output`)", file->path);
    if (file->header.version != TOKEN_FILE_VERSION)
        return error_set(FSDP_ERR_INPUT, "%s: token file of version %u; this program reads version %u", file->path,
                         file->header.version, TOKEN_FILE_VERSION);
    if (file->header.header_checksum != token_header_checksum(&file->header))
        return error_set(FSDP_ERR_INPUT, "%s: the header is damaged (its checksum does not fit)", file->path);
    FSDP_TRY(check_sizes(file));
    file->tokens = file->map.data + sizeof file->header;
    file->ends = (const uint64_t *)(const void *)(file->map.data + file->header.index_begin);
    if (file->header.n_documents > 0 && file->ends[file->header.n_documents - 1] != file->header.n_tokens)
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
    TRY_OR(fail, file_map_open(path, &file->map));
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
    file_map_close(&file->map);
    free(file->path);
    free(file);
}

const char *token_file_path(const token_file *file)
{
    return file->path;
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

/* Widens and returns the largest token, as unsigned: a negative one of 4 bytes is too large as well. */
static uint32_t widen(const token_file *file, int64_t first, int64_t n, int32_t *out)
{
    uint32_t largest = 0;
    if (file->header.token_bytes == 2) {
        const uint16_t *tokens = (const uint16_t *)(const void *)file->tokens + first;
        for (int64_t i = 0; i < n; i++) {
            out[i] = tokens[i];
            largest = tokens[i] > largest ? tokens[i] : largest;
        }
    } else {
        const uint32_t *tokens = (const uint32_t *)(const void *)file->tokens + first;
        for (int64_t i = 0; i < n; i++) {
            out[i] = (int32_t)tokens[i];
            largest = tokens[i] > largest ? tokens[i] : largest;
        }
    }
    return largest;
}

fsdp_status token_file_read(const token_file *file, int64_t first, int64_t n, int32_t *out)
{
    int64_t count = token_file_count(file);
    if (first < 0 || n < 0 || first > count || n > count - first)
        return error_set(FSDP_ERR_INPUT, "%s: has %" PRId64 " tokens; %" PRId64 " from %" PRId64 " on were asked for",
                         file->path, count, n, first);
    if (n == 0 || widen(file, first, n, out) < file->header.vocabulary)
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
    uint64_t begin = index ? file->ends[index - 1] : 0, end = file->ends[index];
    if (begin > end || end > file->header.n_tokens)
        return error_set(FSDP_ERR_INPUT, "%s: the document index is damaged at document %" PRId64, file->path, index);
    *first = (int64_t)begin;
    *n = (int64_t)(end - begin);
    return FSDP_OK;
}

fsdp_status token_file_verify(const token_file *file)
{
    enum { CHUNK = 4096 };
    int32_t tokens[CHUNK];
    int64_t count = token_file_count(file), first, n;
    hash_stream stream;
    hash_stream_start(&stream);
    hash_stream_add(&stream, file->tokens, file->map.bytes - sizeof file->header);
    if (hash_stream_end(&stream) != file->header.content_checksum)
        return error_set(FSDP_ERR_INPUT, "%s: the contents are damaged (their checksum does not fit)", file->path);
    for (int64_t at = 0; at < count; at += CHUNK)
        FSDP_TRY(token_file_read(file, at, min_i64(CHUNK, count - at), tokens));
    for (int64_t i = 0; i < token_file_documents(file); i++)
        FSDP_TRY(token_file_document(file, i, &first, &n));
    return FSDP_OK;
}
