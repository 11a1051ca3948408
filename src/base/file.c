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

static fsdp_status open_for_reading(const char *path, int *fd, struct stat *info)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return error_set_errno(file_error_kind(errno), "%s: cannot open", path);
    fsdp_status status = FSDP_OK;
    if (fstat(*fd, info) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot stat", path);
    else if (S_ISDIR(info->st_mode))
        status = error_set(FSDP_ERR_INPUT, "%s: is a directory, a file is wanted", path);
    if (status != FSDP_OK)
        close(*fd);
    return status;
}

/* Reads to the end. The size is only a first guess: pipes and /proc files do not tell it. */
static fsdp_status read_all(int fd, const char *path, size_t guess, char **text, size_t *bytes)
{
    size_t capacity = guess + 1, length = 0;
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

fsdp_status file_read(const char *path, char **text, size_t *bytes)
{
    int fd;
    struct stat info;
    FSDP_TRY(open_for_reading(path, &fd, &info));
    fsdp_status status = read_all(fd, path, (size_t)info.st_size, text, bytes);
    close(fd);
    return status;
}

fsdp_status file_map_open(const char *path, file_map *map)
{
    int fd;
    struct stat info;
    *map = (file_map){0};
    FSDP_TRY(open_for_reading(path, &fd, &info));
    fsdp_status status = FSDP_OK;
    if (!S_ISREG(info.st_mode)) {
        status = error_set(FSDP_ERR_INPUT, "%s: only a regular file can be mapped", path);
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            status = error_set_errno(FSDP_ERR_IO, "%s: cannot map its %lld bytes", path, (long long)info.st_size);
        else
            *map = (file_map){.data = data, .bytes = (size_t)info.st_size};
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
