/* Data files for tests: plain, gzip and zstd text, IDX images, in the scratch folder of the test. */
#ifndef TESTS_DATA_FILES_H
#define TESTS_DATA_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>
#include <zstd.h>

#include <fsdp/data.h>

#include "base/file.h"

/* "<folder>/<name>", whose folders exist afterwards; in a buffer that lives until the eighth call after. */
static inline const char *files_path(const char *folder, const char *name)
{
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (file_make_directories(path) != FSDP_OK)
        abort();
    *slash = '/';
    return path;
}

static inline const char *files_write(const char *folder, const char *name, const void *data, size_t bytes)
{
    const char *path = files_path(folder, name);
    if (file_write_atomic(path, data, bytes) != FSDP_OK)
        abort();
    return path;
}

static inline const char *files_text(const char *folder, const char *name, const char *text)
{
    return files_write(folder, name, text, strlen(text));
}

static inline const char *files_gzip(const char *folder, const char *name, const char *text)
{
    const char *path = files_path(folder, name);
    gzFile file = gzopen(path, "wb");
    if (file == NULL || gzwrite(file, text, (unsigned)strlen(text)) != (int)strlen(text) || gzclose(file) != Z_OK)
        abort();
    return path;
}

static inline const char *files_zstd(const char *folder, const char *name, const char *text)
{
    size_t room = ZSTD_compressBound(strlen(text));
    char *packed = malloc(room);
    size_t bytes = ZSTD_compress(packed, room, text, strlen(text), 3);
    const char *path = files_write(folder, name, packed, bytes);
    free(packed);
    return path;
}

/* Opens what `names` say with `options`, whose own names are not looked at. */
static inline fsdp_status files_open(const char *const *names, size_t n, const fsdp_dataset_config *options,
                                     fsdp_dataset **out)
{
    fsdp_dataset_config c = *options;
    c.names = names;
    c.n_names = n;
    return fsdp_dataset_open(&c, out);
}

static inline fsdp_dataset_info files_describe(const fsdp_dataset *d)
{
    fsdp_dataset_info info = FSDP_DATASET_INFO_INIT;
    if (fsdp_dataset_describe(d, &info) != FSDP_OK)
        abort();
    return info;
}

#endif
