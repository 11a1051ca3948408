/* Files that appear complete or not at all: written without a name where the file system can, else beside their own;
 * synced, renamed onto it, directory synced. A pipe, or a device of the system's, is written to as it is. */
#include "base/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

enum { BUFFER_BYTES = 256 << 10 };

struct file_writer {
    char *path;
    char *temporary; /* its name until it has its own */
    int fd;
    bool nameless;     /* a process that is killed leaves nothing */
    bool in_place;     /* a pipe or a device: bytes go there as they come */
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

char *file_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Where there is no /proc, a file without a name could not be given one. */
static int open_nameless(const char *path)
{
    char *folder = file_parent(path);
    int fd = -1;
    if (folder && access("/proc/self/fd", X_OK) == 0)
        fd = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
    free(folder);
    return fd;
}

/* A pipe that nobody reads would be waited for for ever. */
static fsdp_status open_in_place(file_writer *w)
{
    w->in_place = true;
    w->fd = open(w->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (w->fd < 0 && errno == ENXIO)
        return error_set(FSDP_ERR_INPUT, "%s: a pipe that nobody reads", w->path);
    if (w->fd < 0)
        return error_set_errno(file_error_kind(errno), "%s: cannot open", w->path);
    int flags = fcntl(w->fd, F_GETFL);
    if (flags < 0 || fcntl(w->fd, F_SETFL, flags & ~O_NONBLOCK) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot open", w->path);
    return FSDP_OK;
}

/* Whether the path's folder is one in which only the system makes names (/dev/shm is anyone's). */
static bool is_systems(const char *path)
{
    static const char *const folders[] = {"/dev", "/dev/fd", "/dev/pts", "/proc/self/fd"};
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (strlen(folders[i]) == n && strncmp(folders[i], path, n) == 0)
            return true;
    return false;
}

/* What is at a path decides how it is written. A folder may be a stranger's: a link in it is replaced, not followed,
 * and a device counts only where the system has its own, as in /dev/stdout, which is a link. */
static fsdp_status open_for_writing(file_writer *w)
{
    struct stat info;
    bool there = lstat(w->path, &info) == 0;
    bool systems = is_systems(w->path);
    if (there && S_ISLNK(info.st_mode)) {
        if (systems && stat(w->path, &info) == 0 && !S_ISBLK(info.st_mode) && !S_ISDIR(info.st_mode))
            return open_in_place(w);
        there = false;
    }
    if (there && (S_ISFIFO(info.st_mode) || (S_ISCHR(info.st_mode) && systems)))
        return open_in_place(w);
    if (there && !S_ISREG(info.st_mode))
        return error_set(FSDP_ERR_INPUT, "%s: is a %s, not a file", w->path,
                         S_ISDIR(info.st_mode) ? "folder" : "device");
    w->fd = open_nameless(w->path);
    w->nameless = w->fd >= 0;
    if (!w->nameless)
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return w->fd >= 0 ? FSDP_OK : error_set_errno(file_error_kind(errno), "%s: cannot create", w->path);
}

fsdp_status file_writer_create(const char *path, file_writer **out)
{
    file_writer *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a writer", path);
    w->fd = -1;
    w->path = strdup(path);
    if (!w->path || asprintf(&w->temporary, "%s.tmp.%ld", w->path, (long)getpid()) < 0) {
        w->temporary = NULL;
        writer_free(w);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", path);
    }
    fsdp_status status = open_for_writing(w);
    if (status != FSDP_OK) {
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
        ssize_t written = w->in_place ? write(w->fd, p, bytes) : pwrite(w->fd, p, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot write %zu bytes at byte %llu", w->path, bytes,
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
    if (w->in_place)
        return error_set(FSDP_ERR_INPUT, "%s: is no regular file, and this is not written from beginning to end",
                         w->path);
    return write_fully(w, offset, data, bytes);
}

fsdp_status file_sync_parent(const char *path)
{
    char *parent = file_parent(path);
    if (!parent)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", path);
    fsdp_status status = file_sync_directory(parent);
    free(parent);
    return status;
}

/* The bytes once more, in a file that has a name. */
static fsdp_status copy_to_name(file_writer *w)
{
    int nameless = w->fd;
    ssize_t n = 0;
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    w->nameless = w->fd < 0;
    fsdp_status status = w->fd < 0 ? error_set_errno(file_error_kind(errno), "%s: cannot create", w->path) : FSDP_OK;
    for (uint64_t at = 0; status == FSDP_OK && (n = pread(nameless, w->buffer, BUFFER_BYTES, (off_t)at)) > 0;
         at += (uint64_t)n)
        status = write_fully(w, at, w->buffer, (size_t)n);
    if (status == FSDP_OK && (n < 0 || fsync(w->fd) != 0))
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot write", w->path);
    close(nameless);
    return status;
}

/* What has the name that is given first is nobody's: it has this process's number. Some systems have files without a
 * name and cannot give them one. */
static fsdp_status give_name(file_writer *w)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", w->fd);
    int failed = linkat(AT_FDCWD, self, AT_FDCWD, w->temporary, AT_SYMLINK_FOLLOW);
    if (failed && errno == EEXIST && unlink(w->temporary) == 0)
        failed = linkat(AT_FDCWD, self, AT_FDCWD, w->temporary, AT_SYMLINK_FOLLOW);
    if (failed)
        return copy_to_name(w);
    w->nameless = false;
    return FSDP_OK;
}

/* Everything up to the rename, after which there is no temporary file any more. */
static fsdp_status put_in_place(file_writer *w)
{
    FSDP_TRY(flush(w));
    if (fsync(w->fd) != 0 && errno != EINVAL && errno != EROFS)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot sync", w->path);
    if (w->nameless)
        FSDP_TRY(give_name(w));
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot close", w->path);
    if (!w->in_place && rename(w->temporary, w->path) != 0)
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
    if (!w->in_place)
        status = file_sync_parent(w->path);
    writer_free(w);
    return status;
}

void file_writer_abort(file_writer *w)
{
    if (!w)
        return;
    if (!w->nameless && !w->in_place)
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
