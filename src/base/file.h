/* Files: whole reads, read-only mappings, and writes that appear under their name complete or not at all. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

/* Every file that is read is opened here: a regular one of at most `most` bytes. Anything else in its place (a FIFO, a
 * socket, a device, a directory) is FSDP_ERR_INPUT at once, before open could wait for it or have an effect. `bytes`
 * may be NULL; files of /proc say 0. The caller closes *fd. */
#define FILE_ANY_SIZE UINT64_MAX
fsdp_status file_open_regular(const char *path, uint64_t most, int *fd, uint64_t *bytes);

/* Reads the whole file, regular and of at most `most` bytes; `*text` is the caller's to free() and has a NUL after its
 * `*bytes`. */
fsdp_status file_read_at_most(const char *path, uint64_t most, char **text, size_t *bytes);
/* The same with a limit that no file read whole has a reason to pass: 1 GiB. */
fsdp_status file_read(const char *path, char **text, size_t *bytes);

/* A read-only mapping of a whole regular file. Zero bytes long is legal: data is then NULL. */
typedef struct file_map {
    const uint8_t *data;
    size_t bytes;
} file_map;

fsdp_status file_map_open(const char *path, file_map *map);
void file_map_close(file_map *map); /* legal on a zeroed map */

/* A file under construction: written as "<path>.tmp.<pid>", synced and renamed onto `path` by commit. */
typedef struct file_writer file_writer;

fsdp_status file_writer_create(const char *path, file_writer **out);
fsdp_status file_writer_write(file_writer *w, const void *data, size_t bytes);
fsdp_status file_writer_write_at(file_writer *w, uint64_t offset, const void *data, size_t bytes);
fsdp_status file_writer_commit(file_writer *w); /* frees w, also on failure; then nothing is left under either name */
void file_writer_abort(file_writer *w);         /* removes the temporary file and frees w; NULL is legal */
/* Commits if all that was written went well, aborts if not: then the status that it was given comes back. */
fsdp_status file_writer_finish(file_writer *w, fsdp_status so_far);

/* One call for small files. */
fsdp_status file_write_atomic(const char *path, const void *data, size_t bytes);

char *file_parent(const char *path);                 /* the folder that holds it, malloc'd; NULL: out of memory */
fsdp_status file_make_directories(const char *path); /* like mkdir -p */
fsdp_status file_sync_directory(const char *path);
fsdp_status file_sync_parent(const char *path); /* the directory that holds it */
fsdp_status file_remove_tree(const char *path); /* like rm -rf; an absent path is fine */
bool file_exists(const char *path);
bool file_is_directory(const char *path);

/* "<a>/<b>"; malloc'd, NULL when out of memory. */
char *file_join(const char *a, const char *b);

#endif
