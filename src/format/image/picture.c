/* PNG: chunks, of which IHDR, PLTE and IDAT count; inflated rows are unfiltered in place. Checksums are zlib's: a
 * damaged file fails there. PNM: a header of numbers, then the samples. */
#include "format/image/picture.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <zlib.h>

#include "base/error.h"
#include "base/file.h"

enum { MAX_SIDE = 1 << 14, LARGEST_FILE = 256 << 20 };

bool picture_is_named_so(const char *path)
{
    static const char *const endings[] = {".png",  ".ppm", ".pgm",  ".jpg", ".jpeg",
                                          ".webp", ".bmp", ".tiff", ".tif", ".pnm"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot != NULL && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

static fsdp_status check_size(const char *path, uint64_t width, uint64_t height)
{
    if (width > 0 && height > 0 && width <= MAX_SIDE && height <= MAX_SIDE)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: a picture of %llu x %llu is not read; at most %d each way", path,
                     (unsigned long long)width, (unsigned long long)height, MAX_SIDE);
}

/* Pixels as they stand in rows, `step` samples each, to channels one behind the other; `palette` (may be NULL) says
 * what a sample stands for. */
static fsdp_status arrange(const char *path, const uint8_t *rows, int step, size_t row_bytes, const uint8_t *palette,
                           picture *out)
{
    size_t n = (size_t)out->height * (size_t)out->width;
    out->pixels = malloc(n * (size_t)out->channels);
    if (out->pixels == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a picture", path);
    for (int y = 0; y < out->height; y++) {
        const uint8_t *row = rows + (size_t)y * row_bytes;
        for (int x = 0; x < out->width; x++) {
            size_t at = (size_t)y * (size_t)out->width + (size_t)x;
            const uint8_t *sample = palette != NULL ? palette + 3 * row[x] : row + x * step;
            for (int c = 0; c < out->channels; c++)
                out->pixels[(size_t)c * n + at] = sample[c];
        }
    }
    return FSDP_OK;
}

/* --- PNG --------------------------------------------------------------------------------------------------------- */

typedef struct png {
    const char *path;
    int colour; /* 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha */
    int step;   /* bytes of a pixel */
    uint8_t palette[3 * 256];
    z_stream inflate;
    uint8_t *rows; /* (height, 1 + width * step): a filter in front of each row */
    size_t bytes;
} png;

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static fsdp_status read_header(png *p, const uint8_t *data, size_t bytes, picture *out)
{
    static const int steps[] = {1, 0, 3, 1, 2, 0, 4};
    if (bytes != 13)
        return error_set(FSDP_ERR_INPUT, "%s: not a PNG file: its header has %zu bytes", p->path, bytes);
    FSDP_TRY(check_size(p->path, big_endian(data), big_endian(data + 4)));
    p->colour = data[9];
    p->step = p->colour <= 6 ? steps[p->colour] : 0;
    if (data[8] != 8 || p->step == 0 || data[12] != 0)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: PNG with %d bits a sample, colour type %d%s is not read; convert it to 8 bits, not "
                         "interlaced",
                         p->path, data[8], p->colour, data[12] != 0 ? ", interlaced" : "");
    out->width = (int)big_endian(data);
    out->height = (int)big_endian(data + 4);
    out->channels = p->colour == 0 || p->colour == 4 ? 1 : 3;
    p->bytes = (size_t)out->height * (1 + (size_t)out->width * (size_t)p->step);
    p->rows = malloc(p->bytes);
    if (p->rows == NULL || inflateInit(&p->inflate) != Z_OK)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a picture", p->path);
    p->inflate.next_out = p->rows;
    p->inflate.avail_out = (uInt)p->bytes;
    return FSDP_OK;
}

static fsdp_status read_chunk(png *p, const uint8_t *type, const uint8_t *data, size_t bytes, picture *out)
{
    if (memcmp(type, "IHDR", 4) == 0 && p->rows == NULL)
        return read_header(p, data, bytes, out);
    if (p->rows == NULL)
        return error_set(FSDP_ERR_INPUT, "%s: not a PNG file: it does not begin with its header", p->path);
    if (memcmp(type, "PLTE", 4) == 0 && bytes <= sizeof p->palette)
        memcpy(p->palette, data, bytes);
    if (memcmp(type, "IDAT", 4) != 0)
        return FSDP_OK;
    p->inflate.next_in = (uint8_t *)(uintptr_t)data;
    p->inflate.avail_in = (uInt)bytes;
    int rc = inflate(&p->inflate, Z_NO_FLUSH);
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return error_set(FSDP_ERR_INPUT, "%s: the picture is damaged: %s", p->path,
                         p->inflate.msg != NULL ? p->inflate.msg : "it does not decompress");
    return FSDP_OK;
}

static uint8_t paeth(int a, int b, int c)
{
    int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
    return (uint8_t)(pa <= pb && pa <= pc ? a : pb <= pc ? b : c);
}

static fsdp_status unfilter(const png *p, const picture *out)
{
    size_t row_bytes = (size_t)out->width * (size_t)p->step, step = (size_t)p->step;
    for (int y = 0; y < out->height; y++) {
        uint8_t *row = p->rows + (size_t)y * (row_bytes + 1) + 1;
        const uint8_t *above = y > 0 ? row - row_bytes - 1 : NULL;
        for (size_t i = 0; i < row_bytes; i++) {
            int a = i >= step ? row[i - step] : 0, b = above != NULL ? above[i] : 0;
            int c = i >= step && above != NULL ? above[i - step] : 0;
            switch (row[-1]) {
            case 0:
                break;
            case 1:
                row[i] = (uint8_t)(row[i] + a);
                break;
            case 2:
                row[i] = (uint8_t)(row[i] + b);
                break;
            case 3:
                row[i] = (uint8_t)(row[i] + (a + b) / 2);
                break;
            case 4:
                row[i] = (uint8_t)(row[i] + paeth(a, b, c));
                break;
            default:
                return error_set(FSDP_ERR_INPUT, "%s: the picture is damaged: filter %d", p->path, row[-1]);
            }
        }
    }
    return FSDP_OK;
}

static fsdp_status read_png(const char *path, const uint8_t *data, size_t bytes, picture *out)
{
    png p = {.path = path};
    fsdp_status status = FSDP_OK;
    for (size_t at = 8; status == FSDP_OK && bytes - at >= 12;) {
        size_t length = big_endian(data + at);
        if (length > bytes - at - 12)
            break;
        status = read_chunk(&p, data + at + 4, data + at + 8, length, out);
        at += length + 12;
    }
    if (status == FSDP_OK && (p.rows == NULL || p.inflate.avail_out > 0))
        status = error_set(FSDP_ERR_INPUT, "%s: the picture ends early: truncated?", path);
    if (status == FSDP_OK)
        status = unfilter(&p, out);
    if (status == FSDP_OK)
        status = arrange(path, p.rows + 1, p.step, (size_t)out->width * (size_t)p.step + 1,
                         p.colour == 3 ? p.palette : NULL, out);
    if (p.rows != NULL)
        inflateEnd(&p.inflate);
    free(p.rows);
    return status;
}

/* --- PGM and PPM ------------------------------------------------------------------------------------------------- */

/* The next number of the header, behind blanks and comments; false when there is none. */
static bool next_number(const uint8_t *data, size_t bytes, size_t *at, uint32_t *out)
{
    bool comment = false;
    *out = 0;
    while (*at < bytes && (comment || data[*at] == '#' || data[*at] <= ' ')) {
        comment = data[*at] == '#' || (comment && data[*at] != '\n');
        ++*at;
    }
    size_t start = *at;
    for (; *at < bytes && data[*at] >= '0' && data[*at] <= '9' && *out < 1000000; ++*at)
        *out = *out * 10 + (uint32_t)(data[*at] - '0');
    return *at > start;
}

static fsdp_status read_pnm(const char *path, const uint8_t *data, size_t bytes, picture *out)
{
    uint32_t width, height, most;
    size_t at = 2;
    out->channels = data[1] == '5' ? 1 : 3;
    if (!next_number(data, bytes, &at, &width) || !next_number(data, bytes, &at, &height) ||
        !next_number(data, bytes, &at, &most) || most != 255)
        return error_set(FSDP_ERR_INPUT, "%s: a PGM or PPM file must state width, height and 255", path);
    FSDP_TRY(check_size(path, width, height));
    out->width = (int)width;
    out->height = (int)height;
    at++; /* one blank behind the header */
    if (at > bytes || bytes - at < (size_t)width * height * (size_t)out->channels)
        return error_set(FSDP_ERR_INPUT, "%s: the picture ends early: truncated?", path);
    return arrange(path, data + at, out->channels, (size_t)width * (size_t)out->channels, NULL, out);
}

fsdp_status picture_read(const char *path, picture *out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = (picture){0};
    FSDP_TRY(file_read_at_most(path, LARGEST_FILE, &text, &bytes));
    const uint8_t *data = (const uint8_t *)text;
    fsdp_status status;
    if (bytes > 8 && memcmp(data, "\x89PNG\r\n\x1A\n", 8) == 0)
        status = read_png(path, data, bytes, out);
    else if (bytes > 2 && data[0] == 'P' && (data[1] == '5' || data[1] == '6'))
        status = read_pnm(path, data, bytes, out);
    else
        status =
            error_set(FSDP_ERR_UNSUPPORTED,
                      "%s: pictures are read as PNG, PGM or PPM; convert others (with ImageMagick: mogrify -format "
                      "png '*.jpg')",
                      path);
    free(text);
    if (status != FSDP_OK) {
        free(out->pixels);
        *out = (picture){0};
    }
    return status;
}
