/* Reads a file in blocks and passes them through zlib or libzstd. */
#include "format/byte_stream.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/file.h"

enum { INPUT_BYTES = 128 << 10 };
enum { GZIP_WINDOW = 15 + 16 }; /* largest window; gzip framing only */

typedef enum encoding { PLAIN, GZIP, ZSTD } encoding;

struct byte_stream {
    char *path;
    int fd;
    encoding encoding;
    bool input_ended;
    bool between; /* at the end of a gzip member or zstd frame: the file may end here */
    fsdp_status failed;
    z_stream gzip;
    bool gzip_ready;
    ZSTD_DStream *zstd;
    size_t at, filled; /* unread part of the input */
    uint8_t input[INPUT_BYTES];
};

/* Moves what is left to the front and fills up. */
static fsdp_status fill(byte_stream *s)
{
    memmove(s->input, s->input + s->at, s->filled - s->at);
    s->filled -= s->at;
    s->at = 0;
    while (!s->input_ended && s->filled < INPUT_BYTES) {
        ssize_t got = read(s->fd, s->input + s->filled, INPUT_BYTES - s->filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot read", s->path);
        s->filled += (size_t)got;
        s->input_ended = got == 0;
    }
    return FSDP_OK;
}

static bool name_ends_with(const char *name, const char *ending)
{
    size_t name_length = strlen(name), length = strlen(ending);
    return name_length >= length && strcmp(name + name_length - length, ending) == 0;
}

static bool is_gzip(const uint8_t *bytes, size_t n)
{
    return n >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

/* A frame, or a frame of user data that decoders skip. */
static bool is_zstd(const uint8_t *bytes, size_t n)
{
    return n >= 4 && ((bytes[0] == 0x28 && bytes[1] == 0xb5 && bytes[2] == 0x2f && bytes[3] == 0xfd) ||
                      ((bytes[0] & 0xf0) == 0x50 && bytes[1] == 0x2a && bytes[2] == 0x4d && bytes[3] == 0x18));
}

static fsdp_status choose_encoding(byte_stream *s)
{
    FSDP_TRY(fill(s));
    s->encoding = is_gzip(s->input, s->filled) ? GZIP : is_zstd(s->input, s->filled) ? ZSTD : PLAIN;
    if (name_ends_with(s->path, ".gz") && s->encoding != GZIP)
        return error_set(FSDP_ERR_INPUT, "%s: is named .gz but is not gzip data", s->path);
    if (name_ends_with(s->path, ".zst") && s->encoding != ZSTD)
        return error_set(FSDP_ERR_INPUT, "%s: is named .zst but is not zstd data", s->path);
    if (s->encoding == GZIP) {
        if (inflateInit2(&s->gzip, GZIP_WINDOW) != Z_OK)
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory for decompression", s->path);
        s->gzip_ready = true;
    }
    if (s->encoding == ZSTD && !(s->zstd = ZSTD_createDStream()))
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for decompression", s->path);
    return FSDP_OK;
}

fsdp_status byte_stream_open(const char *path, byte_stream **out)
{
    fsdp_status status;
    *out = NULL;
    byte_stream *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    }
    s->fd = -1;
    TRY_OR(fail, file_open_regular(path, FILE_ANY_SIZE, &s->fd, NULL));
    TRY_OR(fail, choose_encoding(s));
    *out = s;
    return FSDP_OK;
fail:
    byte_stream_close(s);
    return status;
}

void byte_stream_close(byte_stream *stream)
{
    if (!stream)
        return;
    if (stream->gzip_ready)
        inflateEnd(&stream->gzip);
    ZSTD_freeDStream(stream->zstd);
    if (stream->fd >= 0)
        close(stream->fd);
    free(stream->path);
    free(stream);
}

const char *byte_stream_path(const byte_stream *stream)
{
    return stream->path;
}

/* Between members: zeros that pad a file to a block are skipped, another member goes on, anything else is wrong. */
static fsdp_status next_gzip_member(byte_stream *s, bool *ended)
{
    for (;;) {
        while (s->at < s->filled && s->input[s->at] == 0)
            s->at++;
        if (s->filled - s->at >= 2 || s->input_ended)
            break;
        FSDP_TRY(fill(s));
    }
    *ended = s->at == s->filled;
    if (*ended)
        return FSDP_OK;
    if (!is_gzip(s->input + s->at, s->filled - s->at))
        return error_set(FSDP_ERR_INPUT, "%s: the compressed data is followed by something that is not gzip data",
                         s->path);
    inflateReset(&s->gzip);
    s->between = false;
    return FSDP_OK;
}

static fsdp_status read_gzip(byte_stream *s, uint8_t *out, size_t bytes, size_t *got)
{
    bool ended = false;
    uInt room = bytes < (1u << 30) ? (uInt)bytes : 1u << 30;
    while (*got == 0) {
        if (s->between)
            FSDP_TRY(next_gzip_member(s, &ended));
        if (ended)
            return FSDP_OK;
        if (s->at == s->filled)
            FSDP_TRY(fill(s));
        if (s->at == s->filled)
            return error_set(FSDP_ERR_INPUT, "%s: the compressed data ends too early: truncated", s->path);
        s->gzip.next_in = s->input + s->at;
        s->gzip.avail_in = (uInt)(s->filled - s->at);
        s->gzip.next_out = out;
        s->gzip.avail_out = room;
        int result = inflate(&s->gzip, Z_NO_FLUSH);
        s->at = s->filled - s->gzip.avail_in;
        *got = room - s->gzip.avail_out;
        if (result == Z_MEM_ERROR)
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory for decompression", s->path);
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
            return error_set(FSDP_ERR_INPUT, "%s: the compressed data is corrupt (%s)", s->path,
                             s->gzip.msg ? s->gzip.msg : "needs a dictionary");
        s->between = result == Z_STREAM_END;
    }
    return FSDP_OK;
}

static fsdp_status read_zstd(byte_stream *s, uint8_t *out, size_t bytes, size_t *got)
{
    ZSTD_outBuffer output = {out, bytes, 0};
    while (output.pos == 0) {
        if (s->at == s->filled)
            FSDP_TRY(fill(s));
        if (s->at == s->filled && s->between)
            return FSDP_OK;
        ZSTD_inBuffer input = {s->input, s->filled, s->at};
        bool starved = s->at == s->filled; /* a last call without input still gives out what was decoded */
        size_t result = ZSTD_decompressStream(s->zstd, &output, &input);
        s->at = input.pos;
        if (ZSTD_isError(result))
            return error_set(FSDP_ERR_INPUT, "%s: the compressed data is corrupt (%s)", s->path,
                             ZSTD_getErrorName(result));
        s->between = result == 0;
        if (starved && !s->between && output.pos == 0)
            return error_set(FSDP_ERR_INPUT, "%s: the compressed data ends too early: truncated", s->path);
    }
    *got = output.pos;
    return FSDP_OK;
}

static fsdp_status read_plain(byte_stream *s, uint8_t *out, size_t bytes, size_t *got)
{
    if (s->at == s->filled)
        FSDP_TRY(fill(s));
    *got = s->filled - s->at < bytes ? s->filled - s->at : bytes;
    memcpy(out, s->input + s->at, *got);
    s->at += *got;
    return FSDP_OK;
}

fsdp_status byte_stream_read(byte_stream *stream, void *out, size_t bytes, size_t *got)
{
    static fsdp_status (*const readers[])(byte_stream *, uint8_t *, size_t,
                                          size_t *) = {[PLAIN] = read_plain, [GZIP] = read_gzip, [ZSTD] = read_zstd};
    *got = 0;
    if (stream->failed != FSDP_OK)
        return error_set(stream->failed, "%s: reading failed before", stream->path);
    stream->failed = readers[stream->encoding](stream, out, bytes, got);
    return stream->failed;
}

/* Back to the first byte, with the decoder as it was there. */
static fsdp_status rewind_to(byte_stream *s, int64_t offset)
{
    s->at = s->filled = 0;
    s->input_ended = s->between = false;
    if (s->encoding == GZIP)
        inflateReset(&s->gzip);
    if (s->encoding == ZSTD)
        ZSTD_DCtx_reset(s->zstd, ZSTD_reset_session_only);
    return lseek(s->fd, offset, SEEK_SET) == offset
               ? FSDP_OK
               : error_set_errno(FSDP_ERR_IO, "%s: cannot go to byte %lld", s->path, (long long)offset);
}

fsdp_status byte_stream_seek(byte_stream *stream, int64_t offset)
{
    uint8_t passed[16 << 10];
    struct stat info;
    size_t got = 1;
    if (stream->failed != FSDP_OK)
        return error_set(stream->failed, "%s: reading failed before", stream->path);
    FSDP_TRY(rewind_to(stream, stream->encoding == PLAIN ? offset : 0));
    bool inside = stream->encoding != PLAIN || (fstat(stream->fd, &info) == 0 && info.st_size >= offset);
    int64_t left = stream->encoding == PLAIN ? 0 : offset;
    for (; left > 0 && got > 0; left -= (int64_t)got)
        FSDP_TRY(byte_stream_read(stream, passed, left < (int64_t)sizeof passed ? (size_t)left : sizeof passed, &got));
    return inside && left == 0
               ? FSDP_OK
               : error_set(FSDP_ERR_INPUT, "%s: ends before byte %lld: it is not the file that was read", stream->path,
                           (long long)offset);
}
