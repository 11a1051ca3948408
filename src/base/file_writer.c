/* Files that appear complete or not at all: written beside their name, synced, renamed onto it, directory synced. */
#include "base/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

enum { BUFFER_BYTES = 256 << 10 };

struct file_writer {
    char *path;
    char *temporary;
    int fd;
    uint64_t position; /* where the next sequential write begins, buffered bytes not counted */
    size_t buffered;
    uint8_t buffer[BUFFER_BYTES]; /* many callers write a few bytes at a time */
};

static void writer_free(file_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    free(w->temporary);
    free(w->path);
    free(w);
}

fsdp_status file_writer_create(const char *path, file_writer **out)
{
    file_writer *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a writer", path);
    w->fd = -1;
    w->path = strdup(path);
    if (!w->path || asprintf(&w->temporary, "%s.tmp.%ld", path, (long)getpid()) < 0) {
        w->temporary = NULL;
        writer_free(w);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", path);
    }
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        fsdp_status status = error_set_errno(file_error_kind(errno), "%s: cannot create", w->temporary);
        writer_free(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

static fsdp_status write_fully(const file_writer *w, uint64_t offset, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes > 0) {
        ssize_t written = pwrite(w->fd, p, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot write %zu bytes at byte %llu", w->temporary, bytes,
                                   (unsigned long long)offset);
        /* Large data starts on its way to the disk now, so the sync at commit has less to wait for. */
        if (written >= 1 << 20)
            (void)sync_file_range(w->fd, (off_t)offset, written, SYNC_FILE_RANGE_WRITE);
        p += written;
        bytes -= (size_t)written;
        offset += (uint64_t)written;
    }
    return FSDP_OK;
}

static fsdp_status flush(file_writer *w)
{
    FSDP_TRY(write_fully(w, w->position, w->buffer, w->buffered));
    w->position += w->buffered;
    w->buffered = 0;
    return FSDP_OK;
}

fsdp_status file_writer_write(file_writer *w, const void *data, size_t bytes)
{
    if (bytes == 0)
        return FSDP_OK;
    if (bytes > BUFFER_BYTES - w->buffered)
        FSDP_TRY(flush(w));
    if (bytes < BUFFER_BYTES) {
        memcpy(w->buffer + w->buffered, data, bytes);
        w->buffered += bytes;
        return FSDP_OK;
    }
    FSDP_TRY(write_fully(w, w->position, data, bytes));
    w->position += bytes;
    return FSDP_OK;
}

fsdp_status file_writer_write_at(file_writer *w, uint64_t offset, const void *data, size_t bytes)
{
    /* What was written before must not land on top of this later. */
    FSDP_TRY(flush(w));
    return write_fully(w, offset, data, bytes);
}

fsdp_status file_sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return file_sync_directory(".");
    char *parent = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!parent)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", path);
    fsdp_status status = file_sync_directory(parent);
    free(parent);
    return status;
}

/* Everything up to the rename, after which there is no temporary file any more. */
static fsdp_status put_in_place(file_writer *w)
{
    FSDP_TRY(flush(w));
    if (fsync(w->fd) != 0 && errno != EINVAL && errno != EROFS)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot sync", w->temporary);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot close", w->temporary);
    if (rename(w->temporary, w->path) != 0)
        return error_set_errno(file_error_kind(errno), "%s: cannot rename to %s", w->temporary, w->path);
    return FSDP_OK;
}

fsdp_status file_writer_commit(file_writer *w)
{
    fsdp_status status = put_in_place(w);
    if (status != FSDP_OK) {
        file_writer_abort(w);
        return status;
    }
    status = file_sync_parent(w->path);
    writer_free(w);
    return status;
}

void file_writer_abort(file_writer *w)
{
    if (!w)
        return;
    unlink(w->temporary);
    writer_free(w);
}

fsdp_status file_writer_finish(file_writer *w, fsdp_status so_far)
{
    if (so_far == FSDP_OK)
        return file_writer_commit(w);
    file_writer_abort(w);
    return so_far;
}

fsdp_status file_write_atomic(const char *path, const void *data, size_t bytes)
{
    file_writer *w;
    FSDP_TRY(file_writer_create(path, &w));
    return file_writer_finish(w, file_writer_write(w, data, bytes));
}
