/* Reads both files at the places that are asked for; the index is not held in memory, which it may well exceed. */
#include "format/token/megatron_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/token/token_layout.h"

enum { HEADER_BYTES = 34, CHUNK_TOKENS = 4096 };
#define INDEX_MAGIC "MMIDIDX\0"

typedef struct open_file {
    char *path;
    int fd;
    uint64_t bytes;
} open_file;

struct megatron_file {
    open_file tokens, index;
    int width; /* bytes of a token */
    bool is_signed;
    int64_t n_sequences, n_starts; /* of documents, with the end */
    int64_t count, vocabulary;
};

static fsdp_status read_at(const open_file *f, uint64_t offset, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(f->fd, (uint8_t *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? error_set_errno(FSDP_ERR_IO, "%s: cannot read", f->path)
                           : error_set(FSDP_ERR_INPUT, "%s: ends at byte %llu: truncated?", f->path,
                                       (unsigned long long)(offset + done));
        done += (size_t)got;
    }
    return FSDP_OK;
}

/* "X.idx" for "X.bin"; malloc'd, NULL for another name or when out of memory. */
static char *index_path(const char *path)
{
    size_t length = strlen(path);
    char *index = length > 4 && strcmp(path + length - 4, ".bin") == 0 ? strdup(path) : NULL;
    if (index != NULL)
        memcpy(index + length - 3, "idx", 3);
    return index;
}

bool megatron_file_is(const char *path)
{
    char magic[8] = "", *index = index_path(path);
    open_file f = {.path = (char *)(uintptr_t)path, .fd = -1};
    bool there =
        index != NULL && file_exists(index) && file_open_regular(path, FILE_ANY_SIZE, &f.fd, &f.bytes) == FSDP_OK;
    bool own = there && f.bytes >= sizeof magic && read_at(&f, 0, magic, sizeof magic) == FSDP_OK &&
               memcmp(magic, TOKEN_FILE_MAGIC, sizeof magic) == 0;
    if (f.fd >= 0)
        close(f.fd);
    free(index);
    return there && !own;
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

static fsdp_status take_type(megatron_file *f, int code)
{
    static const struct {
        int width;
        bool is_signed;
    } types[] = {
        [1] = {1, false}, [2] = {1, true}, [3] = {2, true}, [4] = {4, true}, [5] = {8, true}, [8] = {2, false}};
    if (code == 6 || code == 7)
        return error_set(FSDP_ERR_INPUT, "%s: holds floating-point numbers, not tokens", f->index.path);
    if (code < 1 || code > 8)
        return error_set(FSDP_ERR_INPUT, "%s: tokens of an unknown type (%d)", f->index.path, code);
    f->width = types[code].width;
    f->is_signed = types[code].is_signed;
    return FSDP_OK;
}

static fsdp_status read_number(const megatron_file *f, uint64_t place, int64_t *out)
{
    return read_at(&f->index, place, out, sizeof *out);
}

/* Where sequence `i` begins in the tokens; the one after the last begins at their end. */
static fsdp_status sequence_begin(const megatron_file *f, int64_t i, int64_t *token)
{
    int64_t place = (int64_t)f->tokens.bytes;
    if (i < f->n_sequences)
        FSDP_TRY(read_number(f, HEADER_BYTES + 4 * (uint64_t)f->n_sequences + 8 * (uint64_t)i, &place));
    if (i < 0 || i > f->n_sequences || place < 0 || place > (int64_t)f->tokens.bytes || place % f->width != 0)
        return error_set(FSDP_ERR_INPUT, "%s: sequence %lld does not begin within %s", f->index.path, (long long)i,
                         f->tokens.path);
    *token = place / f->width;
    return FSDP_OK;
}

static fsdp_status check_end(const megatron_file *f)
{
    int32_t length = 0;
    int64_t begin = 0, last = f->n_sequences - 1;
    if (f->n_sequences > 0) {
        FSDP_TRY(sequence_begin(f, last, &begin));
        FSDP_TRY(read_at(&f->index, HEADER_BYTES + 4 * (uint64_t)last, &length, sizeof length));
    }
    if (length < 0 || begin + length != f->count)
        return error_set(FSDP_ERR_INPUT, "%s has %lld tokens, but by %s its last sequence ends at %lld: truncated?",
                         f->tokens.path, (long long)f->count, f->index.path, (long long)(begin + length));
    return FSDP_OK;
}

static fsdp_status read_index(megatron_file *f)
{
    uint8_t header[HEADER_BYTES];
    uint64_t version, n[2];
    FSDP_TRY(read_at(&f->index, 0, header, sizeof header));
    memcpy(&version, header + 9, 8);
    memcpy(n, header + 18, 16);
    if (memcmp(header, INDEX_MAGIC, 9) != 0)
        return error_set(FSDP_ERR_INPUT, "%s: is not a Megatron index", f->index.path);
    if (version != 1)
        return error_set(FSDP_ERR_INPUT, "%s: a Megatron index of version %llu; version 1 is read", f->index.path,
                         (unsigned long long)version);
    FSDP_TRY(take_type(f, header[17]));
    uint64_t most = f->index.bytes / 8 + 1,
             wanted = HEADER_BYTES + 12 * (n[0] < most ? n[0] : most) + 8 * (n[1] < most ? n[1] : most);
    if (n[0] > most || n[1] > most || (f->index.bytes != wanted && f->index.bytes != wanted + n[0]))
        return error_set(FSDP_ERR_INPUT, "%s: %llu sequences and %llu documents do not fit its %llu bytes: truncated?",
                         f->index.path, (unsigned long long)n[0], (unsigned long long)n[1],
                         (unsigned long long)f->index.bytes);
    f->n_sequences = (int64_t)n[0];
    f->n_starts = (int64_t)n[1];
    f->count = (int64_t)(f->tokens.bytes / (uint64_t)f->width);
    if (f->tokens.bytes % (uint64_t)f->width != 0)
        return error_set(FSDP_ERR_INPUT, "%s: %llu bytes are no whole number of tokens of %d: truncated?",
                         f->tokens.path, (unsigned long long)f->tokens.bytes, f->width);
    return check_end(f);
}

static fsdp_status find_vocabulary(megatron_file *f)
{
    int32_t ids[CHUNK_TOKENS];
    int64_t largest = 0;
    f->vocabulary = INT32_MAX;
    for (int64_t at = 0; at < f->count; at += CHUNK_TOKENS) {
        int64_t n = min_i64(CHUNK_TOKENS, f->count - at);
        FSDP_TRY(megatron_file_read(f, at, n, ids));
        for (int64_t i = 0; i < n; i++)
            largest = max_i64(largest, ids[i]);
    }
    f->vocabulary = largest + 1;
    return FSDP_OK;
}

fsdp_status megatron_file_open(const char *path, int64_t vocabulary, megatron_file **out)
{
    fsdp_status status;
    *out = NULL;
    megatron_file *f = calloc(1, sizeof *f);
    if (f == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    f->tokens = (open_file){.path = strdup(path), .fd = -1};
    f->index = (open_file){.path = index_path(path), .fd = -1};
    f->vocabulary = vocabulary;
    if (f->tokens.path == NULL || f->index.path == NULL)
        TRY_OR(fail, error_set(FSDP_ERR_MEMORY, "%s: out of memory", path));
    TRY_OR(fail, file_open_regular(f->tokens.path, FILE_ANY_SIZE, &f->tokens.fd, &f->tokens.bytes));
    TRY_OR(fail, file_open_regular(f->index.path, FILE_ANY_SIZE, &f->index.fd, &f->index.bytes));
    TRY_OR(fail, read_index(f));
    if (vocabulary == 0)
        TRY_OR(fail, find_vocabulary(f));
    *out = f;
    return FSDP_OK;
fail:
    megatron_file_close(f);
    return status;
}

static void close_file(open_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
}

void megatron_file_close(megatron_file *f)
{
    if (f == NULL)
        return;
    close_file(&f->tokens);
    close_file(&f->index);
    free(f);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

int64_t megatron_file_vocabulary(const megatron_file *f)
{
    return f->vocabulary;
}

int64_t megatron_file_count(const megatron_file *f)
{
    return f->count;
}

int64_t megatron_file_documents(const megatron_file *f)
{
    return f->n_starts > 1 ? f->n_starts - 1 : f->n_sequences;
}

static int64_t token_at(const megatron_file *f, const uint8_t *p)
{
    uint64_t value = 0;
    memcpy(&value, p, (size_t)f->width);
    return f->width == 8   ? (int64_t)value
           : f->width == 4 ? (int32_t)value
           : f->width == 2 ? (f->is_signed ? (int16_t)value : (int64_t)value)
                           : (f->is_signed ? (int8_t)value : (int64_t)value);
}

fsdp_status megatron_file_read(const megatron_file *f, int64_t first, int64_t n, int32_t *out)
{
    uint8_t bytes[CHUNK_TOKENS * 8];
    if (first < 0 || n < 0 || first > f->count || n > f->count - first)
        return error_set(FSDP_ERR_INPUT, "%s: has %lld tokens; %lld from %lld on were asked for", f->tokens.path,
                         (long long)f->count, (long long)n, (long long)first);
    for (int64_t at = 0; at < n; at += CHUNK_TOKENS) {
        int64_t some = min_i64(CHUNK_TOKENS, n - at);
        FSDP_TRY(
            read_at(&f->tokens, (uint64_t)(first + at) * (uint64_t)f->width, bytes, (size_t)some * (size_t)f->width));
        for (int64_t i = 0; i < some; i++) {
            int64_t token = token_at(f, bytes + i * f->width);
            if (token < 0 || token >= f->vocabulary)
                return error_set(FSDP_ERR_INPUT, "%s: token %lld is %lld, outside the vocabulary of %lld",
                                 f->tokens.path, (long long)(first + at + i), (long long)token,
                                 (long long)f->vocabulary);
            out[at + i] = (int32_t)token;
        }
    }
    return FSDP_OK;
}

fsdp_status megatron_file_document(const megatron_file *f, int64_t index, int64_t *first, int64_t *n)
{
    int64_t sequences[2] = {index, index + 1}, end;
    uint64_t starts = HEADER_BYTES + 12 * (uint64_t)f->n_sequences;
    if (index < 0 || index >= megatron_file_documents(f))
        return error_set(FSDP_ERR_INPUT, "%s: has %lld documents; number %lld was asked for", f->tokens.path,
                         (long long)megatron_file_documents(f), (long long)index);
    if (f->n_starts > 1)
        FSDP_TRY(read_at(&f->index, starts + 8 * (uint64_t)index, sequences, sizeof sequences));
    FSDP_TRY(sequence_begin(f, sequences[0], first));
    FSDP_TRY(sequence_begin(f, sequences[1], &end));
    if (end < *first)
        return error_set(FSDP_ERR_INPUT, "%s: document %lld ends before it begins", f->index.path, (long long)index);
    *n = end - *first;
    return FSDP_OK;
}
