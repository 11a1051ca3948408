/* Opens the manifest of a directory: its marker must vouch for it, and the files that it lists must be there. */
#include "ckpt/format/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

/* Some hundred bytes a piece: room for millions of pieces. */
#define MAX_MANIFEST_BYTES ((uint64_t)1 << 30)
enum { MAX_MARKER_BYTES = 4096 };

static fsdp_status out_of_memory(const char *name)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory for the manifest", name);
}

static fsdp_status check_marker(const char *folder, uint64_t checksum)
{
    char *path = file_join(folder, MARKER_NAME), *text = NULL, expected[64];
    size_t bytes = 0;
    if (!path)
        return out_of_memory(folder);
    fsdp_status status = FSDP_OK;
    snprintf(expected, sizeof expected, "fsdp-checkpoint %d %016" PRIx64 "\n", MANIFEST_VERSION, checksum);
    if (!file_exists(path))
        status = error_set(FSDP_ERR_INPUT, "%s: no commit marker: the save that wrote it did not finish", folder);
    else if ((status = file_read_at_most(path, MAX_MARKER_BYTES, &text, &bytes)) == FSDP_OK &&
             (bytes != strlen(expected) || memcmp(text, expected, bytes) != 0))
        status =
            error_set(FSDP_ERR_INPUT, "%s: %s is damaged, or belongs to another checkpoint: %s does not vouch for it",
                      folder, MANIFEST_NAME, MARKER_NAME);
    free(text);
    free(path);
    return status;
}

static fsdp_status check_files(const char *folder, const manifest *m)
{
    for (int i = 0; i < m->n_files; i++) {
        struct stat info;
        char *path = file_join(folder, m->files[i].name);
        if (!path)
            return out_of_memory(folder);
        int found = stat(path, &info);
        free(path);
        if (found != 0)
            return error_set_errno(FSDP_ERR_INPUT, "%s: %s is missing", folder, m->files[i].name);
        if (!S_ISREG(info.st_mode))
            return error_set(FSDP_ERR_INPUT, "%s: %s is not a regular file", folder, m->files[i].name);
        if (info.st_size != m->files[i].bytes)
            return error_set(FSDP_ERR_INPUT, "%s: %s has %lld bytes, not the %" PRId64 " that were written", folder,
                             m->files[i].name, (long long)info.st_size, m->files[i].bytes);
    }
    return FSDP_OK;
}

fsdp_status manifest_read(const char *folder, manifest **out)
{
    char *path = file_join(folder, MANIFEST_NAME), *text = NULL;
    size_t bytes;
    hash_stream hash;
    fsdp_status status;
    *out = NULL;
    if (!path)
        return out_of_memory(folder);
    TRY_OR(done, file_read_at_most(path, MAX_MANIFEST_BYTES, &text, &bytes));
    hash_stream_start(&hash);
    hash_stream_add(&hash, text, bytes);
    TRY_OR(done, check_marker(folder, hash_stream_end(&hash)));
    TRY_OR(done, manifest_parse(path, text, bytes, out));
    status = check_files(folder, *out);
    if (status != FSDP_OK) {
        manifest_free(*out);
        *out = NULL;
    }
done:
    free(text);
    free(path);
    return status;
}
