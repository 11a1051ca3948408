/* One picture of a file: PNG (8 bits a sample, not interlaced) and binary PGM or PPM, which need no library beyond
 * zlib. JPEG and others are refused with the remedy. */
#ifndef FORMAT_IMAGE_PICTURE_H
#define FORMAT_IMAGE_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct picture {
    int channels; /* 1 or 3; an alpha channel is dropped, as converting to RGB does */
    int height, width;
    uint8_t *pixels; /* (channels, height, width) */
} picture;

/* Whether the name ends as pictures do, readable here or not. */
bool picture_is_named_so(const char *path);

/* The caller frees out->pixels. */
fsdp_status picture_read(const char *path, picture *out);

#endif
