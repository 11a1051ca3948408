/* A table of magic numbers, and the test that tells text from anything else: text has no NUL bytes. */
#include "format/signature.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

#define UNPACK "unpack it, or pack it again with gzip or zstd"
#define TO_TABLE "save token ids as the tensor \"data\" of a safetensors file, or text as JSONL"

typedef struct signature {
    const char *magic;
    size_t bytes, at;
    const char *kind, *remedy;
} signature;

#define MAGIC(text) text, sizeof(text) - 1

static const signature signatures[] = {
    {MAGIC("PAR1"), 0, "a Parquet file", "end its name in .parquet"},
    {MAGIC("ARROW1"), 0, "an Arrow file", "end its name in .arrow"},
    {MAGIC("\xFF\xFF\xFF\xFF"), 0, "an Arrow stream", "end its name in .arrow"},
    {MAGIC("\x93NUMPY"), 0, "a NumPy array", TO_TABLE},
    {MAGIC("\x89HDF\r\n\x1A\n"), 0, "an HDF5 file", TO_TABLE},
    {MAGIC("\x80\x02"), 0, "a Python pickle (or a PyTorch file)", TO_TABLE},
    {MAGIC("\x80\x03"), 0, "a Python pickle (or a PyTorch file)", TO_TABLE},
    {MAGIC("\x80\x04"), 0, "a Python pickle (or a PyTorch file)", TO_TABLE},
    {MAGIC("\x80\x05"), 0, "a Python pickle (or a PyTorch file)", TO_TABLE},
    {MAGIC("PK\x03\x04"), 0, "a zip archive (.zip, .npz, .pt)", "unpack it; " TO_TABLE},
    {MAGIC("PK\x05\x06"), 0, "an empty zip archive", "unpack it"},
    {MAGIC("BZh"), 0, "bzip2 data", UNPACK},
    {MAGIC("\xFD"
           "7zXZ\0"),
     0, "xz data", UNPACK},
    {MAGIC("\x04\x22\x4D\x18"), 0, "lz4 data", UNPACK},
    {MAGIC("7z\xBC\xAF\x27\x1C"), 0, "a 7-Zip archive", UNPACK},
    {MAGIC("Rar!\x1A\x07"), 0, "a RAR archive", UNPACK},
    {MAGIC("\x1F\x9D"), 0, "compress data (.Z)", UNPACK},
    {MAGIC("ustar"), 257, "a tar archive", "unpack it"},
    {MAGIC("\x1F\x8B"), 0, "gzip data", "end its name in .gz"},
    {MAGIC("\x28\xB5\x2F\xFD"), 0, "zstd data", "end its name in .zst"},
    {MAGIC("MMIDIDX\0\0"), 0, "a Megatron index", "name the .bin file beside it"},
    {MAGIC("FSDPTOKN"), 0, "a token file", "end its name in .bin"},
    {MAGIC("\x7F"
           "ELF"),
     0, "a program", "name files of text"},
    {MAGIC("%PDF-"), 0, "a PDF file", "extract its text, for example with pdftotext"},
    {MAGIC("\x89PNG\r\n"), 0, "a PNG image",
     "pictures are read from a folder for each class, or as IDX files or CIFAR batches"},
    {MAGIC("\xFF\xD8\xFF"), 0, "a JPEG image",
     "pictures are read from a folder for each class, or as IDX files or CIFAR batches"},
    {MAGIC("SQLite format 3"), 0, "an SQLite database", "export its text as JSONL"},
    {MAGIC("\xFF\xFE\0\0"), 0, "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8"},
    {MAGIC("\0\0\xFE\xFF"), 0, "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8"},
    {MAGIC("\xFF\xFE"), 0, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
    {MAGIC("\xFE\xFF"), 0, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
};

/* bzip2's magic is printable: what follows it must be a block size and the magic of a block. */
static bool is_bzip2(const char *bytes, size_t n)
{
    return n >= 10 && bytes[3] >= '1' && bytes[3] <= '9' &&
           (memcmp(bytes + 4, "1AY&SY", 6) == 0 || memcmp(bytes + 4, "\x17\x72\x45\x38\x50\x90", 6) == 0);
}

static bool matches(const signature *s, const char *bytes, size_t n)
{
    if (n < s->at + s->bytes || memcmp(bytes + s->at, s->magic, s->bytes) != 0)
        return false;
    return strcmp(s->kind, "bzip2 data") != 0 || is_bzip2(bytes, n);
}

/* Without a byte order mark: every other byte of Latin text is zero. */
static bool looks_like_utf16(const char *bytes, size_t n)
{
    size_t zeros[2] = {0};
    for (size_t i = 0; i < n; i++)
        zeros[i % 2] += bytes[i] == '\0';
    return n >= 4 && (zeros[0] == 0 || zeros[1] == 0) && zeros[0] + zeros[1] > n / 4;
}

fsdp_status signature_check_text(const char *path, const void *data, size_t n)
{
    const char *bytes = data;
    if (n > SIGNATURE_BYTES)
        n = SIGNATURE_BYTES;
    for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++)
        if (matches(&signatures[i], bytes, n))
            return error_set(FSDP_ERR_INPUT, "%s: is %s, not text: %s", path, signatures[i].kind, signatures[i].remedy);
    const char *zero = memchr(bytes, '\0', n);
    if (zero == NULL)
        return FSDP_OK;
    if (looks_like_utf16(bytes, n))
        return error_set(FSDP_ERR_INPUT, "%s: is UTF-16 text, it seems: convert it: iconv -f UTF-16LE -t UTF-8", path);
    return error_set(FSDP_ERR_INPUT, "%s: is not text: byte %zu is zero; give text, JSONL, a token file or a table",
                     path, (size_t)(zero - bytes));
}

fsdp_status signature_check_file(const char *path)
{
    char bytes[SIGNATURE_BYTES];
    size_t n = 0;
    int fd;
    FSDP_TRY(file_open_regular(path, FILE_ANY_SIZE, &fd, NULL));
    for (ssize_t got = 1; got != 0 && n < sizeof bytes;) {
        got = read(fd, bytes + n, sizeof bytes - n);
        if (got < 0 && errno != EINTR) {
            fsdp_status status = error_set_errno(FSDP_ERR_IO, "%s: cannot read", path);
            close(fd);
            return status;
        }
        n += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return signature_check_text(path, bytes, n);
}
