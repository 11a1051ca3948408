/* Both sides of the copying: a request names a part, a file in it and a place in that file, so neither side keeps
 * anything between two of them. */
#include "meet/vault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/record/pulse.h"

enum { CHUNK_BYTES = 4 << 20, PATH_BYTES = 1024, MAX_FILES = 64 };

/* For one chunk: the other side has it in memory already. */
static const double chunk_seconds = 30;

/* Names are never paths: nothing outside the folder can be named. */
static bool is_name(const char *text)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return text[0] && text[0] != '.' && strspn(text, allowed) == strlen(text);
}

/* Chunks come one behind the other: a file has no holes, and so no more bytes than were sent. */
static fsdp_status write_at(const char *path, int64_t offset, const void *data, size_t bytes)
{
    struct stat info;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    fsdp_status status = fd < 0 ? error_set_errno(FSDP_ERR_IO, "%s: cannot be written", path) : FSDP_OK;
    if (status == FSDP_OK && (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || offset > info.st_size))
        status =
            error_set(FSDP_ERR_INPUT, "%s: %zu bytes at %lld have nothing before them", path, bytes, (long long)offset);
    for (const char *from = data; status == FSDP_OK && bytes > 0;) {
        ssize_t n = pwrite(fd, from, bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            status = error_set_errno(FSDP_ERR_IO, "%s: cannot write %zu bytes", path, bytes);
        else
            from += n, offset += n, bytes -= (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    return status;
}

static fsdp_status read_at(const char *path, int64_t offset, void *data, size_t room, size_t *bytes)
{
    int fd;
    FSDP_TRY(file_open_regular(path, FILE_ANY_SIZE, &fd, NULL));
    fsdp_status status = FSDP_OK;
    *bytes = 0;
    while (*bytes < room) {
        ssize_t n = pread(fd, (char *)data + *bytes, room - *bytes, offset + (int64_t)*bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = error_set_errno(FSDP_ERR_IO, "%s: cannot be read", path);
        if (n <= 0)
            break;
        *bytes += (size_t)n;
    }
    close(fd);
    return status;
}

typedef struct part_file {
    char name[WIRE_NAME_BYTES];
    int64_t bytes;
} part_file;

static fsdp_status list_files(const char *folder, const char *part, part_file *files, int *n)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.700s/%.200s", folder, part);
    DIR *all = opendir(path);
    struct stat info;
    *n = 0;
    if (!all)
        return error_set_errno(FSDP_ERR_IO, "%s: there is no such part of a snapshot", path);
    for (const struct dirent *e; (e = readdir(all));) {
        if (!is_name(e->d_name) || strlen(e->d_name) >= WIRE_NAME_BYTES || *n == MAX_FILES ||
            fstatat(dirfd(all), e->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(info.st_mode))
            continue;
        snprintf(files[*n].name, sizeof files[*n].name, "%.127s", e->d_name);
        files[(*n)++].bytes = info.st_size;
    }
    closedir(all);
    return FSDP_OK;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* "<name>.tmp-<id>" becomes "<name>"; what was there is removed, unless it is no part. */
static fsdp_status commit(const char *folder, const char *name, const char *id)
{
    char temporary[PATH_BYTES], final[PATH_BYTES], gone[PATH_BYTES];
    snprintf(temporary, sizeof temporary, "%.700s/%.200s.tmp-%.40s", folder, name, id);
    snprintf(final, sizeof final, "%.700s/%.200s", folder, name);
    snprintf(gone, sizeof gone, "%.700s/%.200s.gone-%.40s", folder, name, id);
    if (!is_folder(temporary) || (access(final, F_OK) == 0 && !is_folder(final)))
        return error_set(FSDP_ERR_INPUT, "%s: cannot become a part of a snapshot", temporary);
    bool replaced = rename(final, gone) == 0;
    if (rename(temporary, final) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot become a part of a snapshot", temporary);
    return replaced ? file_remove_tree(gone) : FSDP_OK;
}

/* ---- the launcher's side ---- */

typedef struct request {
    char part[WIRE_NAME_BYTES], id[WIRE_NAME_BYTES], file[WIRE_NAME_BYTES];
    int64_t offset;
    const void *data;
    size_t bytes;
} request;

static bool read_request(uint32_t kind, wire_reader *r, request *q)
{
    bool writes = kind == WIRE_PART_WRITE, reads = kind == WIRE_PART_READ;
    wire_get_text(r, q->part, sizeof q->part);
    wire_get_text(r, q->id, sizeof q->id);
    if (writes || reads) {
        wire_get_text(r, q->file, sizeof q->file);
        q->offset = wire_get_i64(r);
    }
    if (writes)
        q->data = wire_get_blob(r, &q->bytes, CHUNK_BYTES);
    return wire_done(r) && is_name(q->part) && is_name(q->id) && (!(writes || reads) || is_name(q->file)) &&
           q->offset >= 0;
}

static fsdp_status store_chunk(const char *folder, const request *q)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%.600s/%s.tmp-%s", folder, q->part, q->id);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot make this directory", path);
    snprintf(path + length, sizeof path - (size_t)length, "/%s", q->file);
    return write_at(path, q->offset, q->data, q->bytes);
}

static fsdp_status load_chunk(const char *folder, const request *q, wire_body *found)
{
    char path[PATH_BYTES];
    size_t bytes = 0;
    char *data = malloc(CHUNK_BYTES);
    snprintf(path, sizeof path, "%.600s/%s/%s", folder, q->part, q->file);
    fsdp_status status = data ? read_at(path, q->offset, data, CHUNK_BYTES, &bytes)
                              : error_set(FSDP_ERR_MEMORY, "no memory to read a part of a snapshot");
    if (status == FSDP_OK)
        wire_put_blob(found, data, bytes);
    free(data);
    return status;
}

static fsdp_status load_list(const char *folder, const request *q, wire_body *found)
{
    part_file files[MAX_FILES];
    int n;
    FSDP_TRY(list_files(folder, q->part, files, &n));
    wire_put_i32(found, n);
    for (int i = 0; i < n; i++) {
        wire_put_text(found, files[i].name);
        wire_put_i64(found, files[i].bytes);
    }
    return FSDP_OK;
}

bool vault_serve(void *context, uint32_t kind, const void *body, size_t bytes, wire_body *answer)
{
    const char *folder = context;
    wire_reader r = wire_read(body, bytes);
    wire_body found = {0};
    request q = {.offset = 0};
    if (kind < WIRE_PART_WRITE || kind > WIRE_PART_READ || !read_request(kind, &r, &q))
        return false;
    fsdp_status status = kind == WIRE_PART_WRITE    ? store_chunk(folder, &q)
                         : kind == WIRE_PART_COMMIT ? commit(folder, q.part, q.id)
                         : kind == WIRE_PART_LIST   ? load_list(folder, &q, &found)
                                                    : load_chunk(folder, &q, &found);
    wire_put_i32(answer, status);
    if (status != FSDP_OK)
        wire_put_text(answer, fsdp_last_error());
    else
        wire_put(answer, found.data, found.bytes);
    wire_free(&found);
    return true;
}

/* ---- the ranks' side ---- */

static void begin_request(wire_body *body, const char *part, const char *id)
{
    wire_put_text(body, part);
    wire_put_text(body, id);
}

static fsdp_status put_file(client *c, const char *folder, const char *part, const char *id, const part_file *file)
{
    char path[PATH_BYTES];
    fsdp_status status = FSDP_OK;
    char *data = malloc(CHUNK_BYTES);
    if (!data)
        return error_set(FSDP_ERR_MEMORY, "no memory to copy a part of a snapshot");
    snprintf(path, sizeof path, "%.700s/%.127s/%.127s", folder, part, file->name);
    for (int64_t at = 0; status == FSDP_OK && (at < file->bytes || at == 0);) {
        size_t bytes;
        wire_body body = {0};
        wire_reader answer;
        status = read_at(path, at, data, CHUNK_BYTES, &bytes);
        if (status != FSDP_OK)
            break;
        begin_request(&body, part, id);
        wire_put_text(&body, file->name);
        wire_put_i64(&body, at);
        wire_put_blob(&body, data, bytes);
        status = client_ask(c, WIRE_PART_WRITE, &body, chunk_seconds, part, &answer);
        at += (int64_t)bytes;
        pulse_go_on();
        if (bytes == 0)
            break;
    }
    free(data);
    return status;
}

fsdp_status vault_put(client *c, const char *folder, const char *name, const char *id)
{
    part_file files[MAX_FILES];
    wire_body body = {0};
    wire_reader answer;
    int n;
    FSDP_TRY(list_files(folder, name, files, &n));
    for (int i = 0; i < n; i++)
        FSDP_TRY(put_file(c, folder, name, id, &files[i]));
    begin_request(&body, name, id);
    return client_ask(c, WIRE_PART_COMMIT, &body, chunk_seconds, name, &answer);
}

static fsdp_status take_file(client *c, const char *temporary, const char *part, const char *id, const part_file *file)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.800s/%.127s", temporary, file->name);
    for (int64_t at = 0;;) {
        wire_body body = {0};
        wire_reader answer;
        size_t bytes = 0;
        begin_request(&body, part, id);
        wire_put_text(&body, file->name);
        wire_put_i64(&body, at);
        FSDP_TRY(client_ask(c, WIRE_PART_READ, &body, chunk_seconds, part, &answer));
        const void *data = wire_get_blob(&answer, &bytes, CHUNK_BYTES);
        if (!wire_done(&answer) || (bytes == 0 && at < file->bytes))
            return error_set(FSDP_ERR_PEER, "%s: %s came only in part", part, file->name);
        FSDP_TRY(write_at(path, at, data, bytes));
        at += (int64_t)bytes;
        if (at >= file->bytes)
            return FSDP_OK;
    }
}

static fsdp_status ask_for_list(client *c, const char *name, const char *id, part_file *files, int *n)
{
    wire_body body = {0};
    wire_reader answer;
    begin_request(&body, name, id);
    FSDP_TRY(client_ask(c, WIRE_PART_LIST, &body, chunk_seconds, name, &answer));
    *n = wire_get_i32(&answer);
    for (int i = 0; i < *n && i < MAX_FILES; i++) {
        wire_get_text(&answer, files[i].name, sizeof files[i].name);
        files[i].bytes = wire_get_i64(&answer);
        if (!is_name(files[i].name))
            answer.broken = true;
    }
    bool whole = wire_done(&answer) && *n >= 0 && *n <= MAX_FILES;
    return whole ? FSDP_OK : error_set(FSDP_ERR_PEER, "%s: its list of files makes no sense", name);
}

fsdp_status vault_take(client *c, const char *folder, const char *name, const char *id)
{
    part_file files[MAX_FILES];
    char temporary[PATH_BYTES];
    int n;
    FSDP_TRY(ask_for_list(c, name, id, files, &n));
    snprintf(temporary, sizeof temporary, "%.700s/%.127s.tmp-%.40s", folder, name, id);
    FSDP_TRY(file_make_directories(temporary));
    for (int i = 0; i < n; i++)
        FSDP_TRY(take_file(c, temporary, name, id, &files[i]));
    return commit(folder, name, id);
}
