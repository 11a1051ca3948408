/* Test data in gzip and zstd form, made with the libraries themselves. */
#ifndef TESTS_FORMAT_COMPRESS_H
#define TESTS_FORMAT_COMPRESS_H

#include "format/scratch.h"

#include <zlib.h>
#include <zstd.h>

/* One gzip member; free() it. */
static inline uint8_t *compress_gzip(const void *data, size_t bytes, size_t *packed_bytes)
{
    z_stream stream = {0};
    assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t capacity = deflateBound(&stream, (uLong)bytes) + 64;
    uint8_t *packed = malloc(capacity);
    stream.next_in = (Bytef *)(uintptr_t)data;
    stream.avail_in = (uInt)bytes;
    stream.next_out = packed;
    stream.avail_out = (uInt)capacity;
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *packed_bytes = capacity - stream.avail_out;
    deflateEnd(&stream);
    return packed;
}

/* One zstd frame, with a checksum; free() it. */
static inline uint8_t *compress_zstd(const void *data, size_t bytes, size_t *packed_bytes)
{
    size_t capacity = ZSTD_compressBound(bytes);
    uint8_t *packed = malloc(capacity);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    *packed_bytes = ZSTD_compress2(context, packed, capacity, data, bytes);
    assert_false(ZSTD_isError(*packed_bytes));
    ZSTD_freeCCtx(context);
    return packed;
}

#endif
