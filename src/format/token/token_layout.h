/* The header of a token file as it lies on disk; see token_file.h for what the fields mean. Shared by the reader and
 * the writer only. */
#ifndef FORMAT_TOKEN_TOKEN_LAYOUT_H
#define FORMAT_TOKEN_TOKEN_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

#define TOKEN_FILE_MAGIC "FSDPTOKN"
#define TOKEN_FILE_VERSION 1u

typedef struct token_header {
    char magic[8];
    uint32_t version;
    uint32_t token_bytes;
    uint64_t vocabulary;
    uint64_t n_tokens;
    uint64_t n_documents;
    uint64_t index_begin;
    uint64_t content_checksum;
    uint64_t header_checksum; /* of all fields before it */
} token_header;

_Static_assert(sizeof(token_header) == 64, "the header is 64 bytes on disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are used in place, as little endian");

static inline uint64_t token_header_checksum(const token_header *header)
{
    hash_stream stream;
    hash_stream_start(&stream);
    hash_stream_add(&stream, header, offsetof(token_header, header_checksum));
    return hash_stream_end(&stream);
}

#endif
