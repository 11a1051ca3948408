/* Writes token files as a stream: tokens go straight to the file, document ends to a nameless file beside it until the
 * commit, so memory does not grow with the number of documents. The header, which holds the counts, is written last. */
#include "format/token/token_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/token/token_layout.h"

#define CHUNK 8192 /* tokens narrowed at a time */

struct token_writer {
    char *path;
    file_writer *file;
    FILE *ends; /* u64 per document; unlinked already */
    token_header header;
    hash_stream content;
    uint64_t ended; /* tokens up to the end of the last document */
};

static void writer_free(token_writer *w)
{
    if (w->ends)
        fclose(w->ends);
    free(w->path);
    free(w);
}

static fsdp_status open_ends(token_writer *w)
{
    char *name;
    if (asprintf(&name, "%s.index.XXXXXX", w->path) < 0)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", w->path);
    fsdp_status status = FSDP_OK;
    int fd = mkstemp(name);
    if (fd >= 0)
        unlink(name);
    if (fd < 0 || !(w->ends = fdopen(fd, "w+b"))) {
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot create this temporary file", name);
        if (fd >= 0)
            close(fd);
    }
    free(name);
    return status;
}

fsdp_status token_writer_create(const char *path, int64_t vocabulary, token_writer **out)
{
    fsdp_status status;
    const token_header empty = {.version = TOKEN_FILE_VERSION};
    *out = NULL;
    if (vocabulary < 1 || vocabulary > (int64_t)1 << 31)
        return error_set(FSDP_ERR_INPUT, "%s: a vocabulary of %" PRId64 " tokens cannot be written", path, vocabulary);
    token_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a writer", path);
    }
    w->header = empty;
    memcpy(w->header.magic, TOKEN_FILE_MAGIC, sizeof w->header.magic);
    w->header.token_bytes = vocabulary <= 1 << 16 ? 2 : 4;
    w->header.vocabulary = (uint64_t)vocabulary;
    hash_stream_start(&w->content);
    TRY_OR(fail, file_writer_create(path, &w->file));
    TRY_OR(fail, file_writer_write(w->file, &empty, sizeof empty)); /* its place; the magic comes with the rest */
    TRY_OR(fail, open_ends(w));
    *out = w;
    return FSDP_OK;
fail:
    token_writer_abort(w);
    return status;
}

static fsdp_status write_content(token_writer *w, const void *data, size_t bytes)
{
    hash_stream_add(&w->content, data, bytes);
    return file_writer_write(w->file, data, bytes);
}

fsdp_status token_writer_append(token_writer *w, const int32_t *tokens, size_t n)
{
    uint16_t narrow[CHUNK];
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint64_t)tokens[i] >= w->header.vocabulary)
            return error_set(FSDP_ERR_INPUT, "%s: token %d is outside the vocabulary of %" PRIu64, w->path, tokens[i],
                             w->header.vocabulary);
    if (w->header.token_bytes == 4) {
        FSDP_TRY(write_content(w, tokens, n * sizeof *tokens));
        w->header.n_tokens += n;
        return FSDP_OK;
    }
    for (size_t done = 0; done < n;) {
        size_t now = n - done < CHUNK ? n - done : CHUNK;
        for (size_t i = 0; i < now; i++)
            narrow[i] = (uint16_t)tokens[done + i];
        FSDP_TRY(write_content(w, narrow, now * sizeof *narrow));
        done += now;
        w->header.n_tokens += now;
    }
    return FSDP_OK;
}

fsdp_status token_writer_end_document(token_writer *w)
{
    if (fwrite(&w->header.n_tokens, sizeof w->header.n_tokens, 1, w->ends) != 1)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot write the document index", w->path);
    w->header.n_documents++;
    w->ended = w->header.n_tokens;
    return FSDP_OK;
}

static fsdp_status write_index(token_writer *w)
{
    uint8_t buffer[64 << 10];
    uint64_t copied = 0;
    size_t token_total = (size_t)w->header.n_tokens * w->header.token_bytes, got;
    static const uint8_t zeros[8];
    FSDP_TRY(write_content(w, zeros, round_up(token_total, 8) - token_total));
    w->header.index_begin = sizeof w->header + round_up(token_total, 8);
    if (fflush(w->ends) != 0 || fseek(w->ends, 0, SEEK_SET) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot read the document index back", w->path);
    while ((got = fread(buffer, 1, sizeof buffer, w->ends)) > 0) {
        FSDP_TRY(write_content(w, buffer, got));
        copied += got;
    }
    if (ferror(w->ends) || copied != w->header.n_documents * sizeof(uint64_t))
        return error_set_errno(FSDP_ERR_IO, "%s: cannot read the document index back", w->path);
    return FSDP_OK;
}

static fsdp_status finish(token_writer *w)
{
    if (w->ended != w->header.n_tokens)
        return error_set(FSDP_ERR_STATE, "%s: %" PRIu64 " tokens follow the end of the last document", w->path,
                         w->header.n_tokens - w->ended);
    FSDP_TRY(write_index(w));
    w->header.content_checksum = hash_stream_end(&w->content);
    w->header.header_checksum = token_header_checksum(&w->header);
    return file_writer_write_at(w->file, 0, &w->header, sizeof w->header);
}

fsdp_status token_writer_commit(token_writer *w)
{
    fsdp_status status = file_writer_finish(w->file, finish(w));
    writer_free(w);
    return status;
}

void token_writer_abort(token_writer *w)
{
    if (!w)
        return;
    file_writer_abort(w->file);
    writer_free(w);
}
