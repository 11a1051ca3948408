/* CRC-32C (Castagnoli), as record files of TensorBoard frame their contents with. */
#ifndef FORMAT_CRC32C_H
#define FORMAT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* `crc` is 0, or the value for the bytes before: the data may come in pieces. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* The form in which record files store it: rotated and shifted, so that a checksum of checksums is not trivial. */
static inline uint32_t crc32c_mask(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

#endif
