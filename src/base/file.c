/* Whole files: reading, mapping, directories, removal. Writing is in file_writer.c. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file_writer.h"

/* A path that does not lead anywhere, or that we may not use, was given by the user; the rest is the system's doing. */
fsdp_status file_error_kind(int number)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG:
    case EEXIST:
        return FSDP_ERR_INPUT;
    default:
        return FSDP_ERR_IO;
    }
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
                            : "no file";
}

static fsdp_status check_regular(const char *path, const struct stat *info, uint64_t most)
{
    if (!S_ISREG(info->st_mode))
        return error_set(FSDP_ERR_INPUT, "%s: is %s, a regular file is expected", path, kind_of(info->st_mode));
    if ((uint64_t)info->st_size > most)
        return error_set(FSDP_ERR_INPUT, "%s: has %lld bytes, at most %llu are read", path, (long long)info->st_size,
                         (unsigned long long)most);
    return FSDP_OK;
}

fsdp_status file_open_regular(const char *path, uint64_t most, int *fd, uint64_t *bytes)
{
    struct stat info;
    *fd = -1;
    /* Opening some devices does something, and opening a FIFO waits for a writer. So the kind is looked at before, and
     * again on what was opened, since the path may have changed hands in between. */
    if (stat(path, &info) != 0)
        return error_set_errno(file_error_kind(errno), "%s: cannot open", path);
    FSDP_TRY(check_regular(path, &info, most));
    int opened = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (opened < 0)
        return error_set_errno(file_error_kind(errno), "%s: cannot open", path);
    fsdp_status status = fstat(opened, &info) == 0 ? check_regular(path, &info, most)
                                                   : error_set_errno(FSDP_ERR_IO, "%s: cannot stat", path);
    if (status != FSDP_OK) {
        close(opened);
        return status;
    }
    *fd = opened;
    if (bytes)
        *bytes = (uint64_t)info.st_size;
    return FSDP_OK;
}

/* Reads to the end. The size is only a first guess: files of /proc do not tell it, and a file may grow. */
static fsdp_status read_all(int fd, const char *path, uint64_t guess, uint64_t most, char **text, size_t *bytes)
{
    size_t capacity = (size_t)guess + 1, length = 0;
    char *buffer = malloc(capacity);
    while (buffer) {
        ssize_t got = read(fd, buffer + length, capacity - length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(buffer);
            return error_set_errno(FSDP_ERR_IO, "%s: cannot read at byte %zu", path, length);
        }
        length += (size_t)got;
        if (length > most) {
            free(buffer);
            return error_set(FSDP_ERR_INPUT, "%s: has more than the %llu bytes that are read", path,
                             (unsigned long long)most);
        }
        if (got == 0)
            break;
        if (length == capacity) {
            size_t larger;
            char *moved = checked_mul(capacity, 2, &larger) ? NULL : realloc(buffer, larger + 4096);
            if (!moved)
                free(buffer);
            buffer = moved;
            capacity = larger + 4096;
        }
    }
    if (!buffer)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for its %zu bytes", path, capacity);
    buffer[length] = '\0'; /* a full buffer was enlarged above: there is room */
    *text = buffer;
    *bytes = length;
    return FSDP_OK;
}

fsdp_status file_read_at_most(const char *path, uint64_t most, char **text, size_t *bytes)
{
    int fd;
    uint64_t guess = 0;
    FSDP_TRY(file_open_regular(path, most, &fd, &guess));
    fsdp_status status = read_all(fd, path, guess, most, text, bytes);
    close(fd);
    return status;
}

fsdp_status file_read(const char *path, char **text, size_t *bytes)
{
    return file_read_at_most(path, (uint64_t)1 << 30, text, bytes);
}

fsdp_status file_map_open(const char *path, file_map *map)
{
    int fd;
    uint64_t bytes = 0;
    *map = (file_map){0};
    FSDP_TRY(file_open_regular(path, FILE_ANY_SIZE, &fd, &bytes));
    fsdp_status status = FSDP_OK;
    if (bytes > 0) {
        void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            status = error_set_errno(FSDP_ERR_IO, "%s: cannot map its %llu bytes", path, (unsigned long long)bytes);
        else
            *map = (file_map){.data = data, .bytes = bytes};
    }
    close(fd);
    return status;
}

void file_map_close(file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (file_map){0};
}

static fsdp_status make_one_directory(const char *path)
{
    if (mkdir(path, 0777) == 0 || file_is_directory(path))
        return FSDP_OK;
    return error_set_errno(file_error_kind(errno), "%s: cannot make this directory", path);
}

fsdp_status file_make_directories(const char *path)
{
    char *partial = strdup(path);
    if (!partial)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", path);
    fsdp_status status = FSDP_OK;
    for (char *slash = partial + 1; *partial && status == FSDP_OK && (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        status = make_one_directory(partial);
        *slash = '/';
    }
    if (status == FSDP_OK)
        status = make_one_directory(partial);
    free(partial);
    return status;
}

fsdp_status file_sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set_errno(file_error_kind(errno), "%s: cannot open this directory", path);
    fsdp_status status = FSDP_OK;
    /* Some file systems have nothing to sync for a directory and say EINVAL. */
    if (fsync(fd) != 0 && errno != EINVAL)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot sync this directory", path);
    close(fd);
    return status;
}

static int remove_visited(const char *path, const struct stat *info, int type, struct FTW *place)
{
    (void)info, (void)type, (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

fsdp_status file_remove_tree(const char *path)
{
    enum { OPEN_DIRECTORIES = 32 };
    /* Links are removed, never followed; contents before their directory. */
    if (nftw(path, remove_visited, OPEN_DIRECTORIES, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return FSDP_OK;
    return error_set_errno(file_error_kind(errno), "%s: cannot remove", path);
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_directory(const char *path)
{
    int number = errno;
    struct stat info;
    bool is = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    errno = number;
    return is;
}

char *file_join(const char *a, const char *b)
{
    size_t length = strlen(a);
    const char *separator = length && a[length - 1] != '/' ? "/" : "";
    char *joined;
    return asprintf(&joined, "%s%s%s", a, separator, b) < 0 ? NULL : joined;
}
