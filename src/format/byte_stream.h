/* The bytes of a file, decompressed on the way: plain, gzip (.gz) or zstd (.zst), told apart by their first bytes; a
 * name that promises compression must keep it. Several gzip members or zstd frames in a row are one stream. Memory is
 * bounded whatever the file says (zstd windows above 128 MiB are refused). Lines are text_reader.h's. */
#ifndef FORMAT_BYTE_STREAM_H
#define FORMAT_BYTE_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct byte_stream byte_stream;

/* The caller closes *out. */
fsdp_status byte_stream_open(const char *path, byte_stream **out);
void byte_stream_close(byte_stream *stream); /* NULL is legal */

/* Up to `bytes` (more than 0) into `out`; *got is 0 only at the end of the stream. After a failure (a read error, a
 * stream that is truncated or corrupt) every further read fails likewise. */
fsdp_status byte_stream_read(byte_stream *stream, void *out, size_t bytes, size_t *got);

/* Goes to byte `offset` of the decompressed stream, which must have it. Plain files go there at once, compressed ones
 * are unpacked from their start. */
fsdp_status byte_stream_seek(byte_stream *stream, int64_t offset);

const char *byte_stream_path(const byte_stream *stream);

#endif
