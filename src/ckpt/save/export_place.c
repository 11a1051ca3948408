/* Marks exports, and replaces an earlier one without touching what is not ours. */
#include "ckpt/save/export_place.h"

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
#include "base/json.h"
#include "base/log.h"
#include "ckpt/format/manifest.h"
#include "ckpt/save/owner.h"

#define MARK_FORMAT "fsdp-export"
#define MAX_MARK_BYTES ((uint64_t)16 << 20)

static fsdp_status out_of_memory(const char *folder)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory for the list of an export", folder);
}

/* ---- Entries of a folder ---- */

typedef fsdp_status (*entry_visitor)(const char *folder, const char *name, void *context);

static fsdp_status each_entry(const char *folder, entry_visitor visit, void *context)
{
    DIR *open = opendir(folder);
    if (!open)
        return error_set_errno(FSDP_ERR_INPUT, "%s: cannot list this folder", folder);
    fsdp_status status = FSDP_OK;
    for (struct dirent *entry; status == FSDP_OK && (entry = readdir(open));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = visit(folder, entry->d_name, context);
    closedir(open);
    return status;
}

static fsdp_status note_entry(const char *folder, const char *name, void *context)
{
    (void)folder, (void)name;
    *(bool *)context = true;
    return FSDP_OK;
}

/* The size of a regular file that is no link; -1: there is none. */
static int64_t size_of(const char *folder, const char *name)
{
    struct stat info;
    char *path = file_join(folder, name);
    bool there = path && lstat(path, &info) == 0 && S_ISREG(info.st_mode);
    free(path);
    return there ? info.st_size : -1;
}

static bool is_there(const char *folder, const char *name)
{
    struct stat info;
    char *path = file_join(folder, name);
    bool there = path && lstat(path, &info) == 0;
    free(path);
    return there;
}

/* ---- The mark: {"format": "fsdp-export", "files": {"config.json": 612, ...}} ---- */

static fsdp_status list_entry(const char *folder, const char *name, void *context)
{
    json_t *files = context;
    if (strcmp(name, OWNER_NAME) == 0)
        return FSDP_OK;
    if (json_object_set_new(files, name, json_integer(size_of(folder, name))) != 0)
        return out_of_memory(folder);
    return FSDP_OK;
}

static bool is_left_over(const char *path)
{
    char who[300], *owner = file_join(path, OWNER_NAME);
    bool named = owner && file_exists(owner);
    free(owner);
    return named && owner_is_gone(path, who, sizeof who);
}

static fsdp_status sweep_entry(const char *parent, const char *name, void *context)
{
    const char *prefix = context;
    char *path = strncmp(name, prefix, strlen(prefix)) == 0 ? file_join(parent, name) : NULL;
    if (path && file_is_directory(path) && is_left_over(path))
        (void)file_remove_tree(path);
    free(path);
    return FSDP_OK;
}

void export_place_sweep(const char *folder)
{
    char *parent = strdup(folder), *prefix = NULL;
    size_t n = parent ? strlen(parent) : 0;
    while (n > 1 && parent[n - 1] == '/')
        parent[--n] = '\0';
    char *slash = parent ? strrchr(parent, '/') : NULL;
    const char *name = slash ? slash + 1 : parent;
    if (parent && asprintf(&prefix, "%s.tmp-", name) >= 0) {
        if (slash)
            slash[slash == parent] = '\0';
        (void)each_entry(slash ? parent : ".", sweep_entry, prefix);
        free(prefix);
    }
    free(parent);
}

fsdp_status export_place_mark(const char *folder)
{
    json_t *files = json_object();
    fsdp_status status = files ? each_entry(folder, list_entry, files) : out_of_memory(folder);
    json_t *mark = json_pack("{s:s, s:i, s:o}", "format", MARK_FORMAT, "version", 1, "files", files);
    char *path = file_join(folder, EXPORT_MARK_NAME);
    if (status == FSDP_OK)
        status = mark && path ? json_write_file(path, mark) : out_of_memory(folder);
    free(path);
    json_decref(mark);
    return status;
}

/* The files that we wrote there, by name; the caller's. */
static fsdp_status read_mark(const char *folder, json_t **files)
{
    json_t *mark = NULL;
    const char *format = NULL;
    char *text = NULL, *path = file_join(folder, EXPORT_MARK_NAME);
    size_t bytes;
    fsdp_status status = path ? file_read_at_most(path, MAX_MARK_BYTES, &text, &bytes) : out_of_memory(folder);
    if (status == FSDP_OK)
        status = json_parse(path, text, bytes, &mark);
    if (status == FSDP_OK)
        status = json_get_string(path, mark, "format", &format);
    *files = json_object_get(mark, "files");
    if (status == FSDP_OK && (strcmp(format, MARK_FORMAT) != 0 || !json_is_object(*files)))
        status = error_set(FSDP_ERR_INPUT, "%s: is not the list of an export", path);
    *files = status == FSDP_OK ? json_incref(*files) : NULL;
    json_decref(mark);
    free(text);
    free(path);
    return status;
}

/* ---- Checking ---- */

/* What we wrote there is ours to remove while it is as we wrote it. */
static fsdp_status check_listed(const char *folder, json_t *files)
{
    const char *name;
    json_t *bytes;
    json_object_foreach(files, name, bytes)
    {
        if (!manifest_is_file_name(name))
            return error_set(FSDP_ERR_INPUT, "%s: " EXPORT_MARK_NAME " lists \"%s\", which no export has", folder,
                             name);
        if (is_there(folder, name) && size_of(folder, name) != json_integer_value(bytes))
            return error_set(FSDP_ERR_INPUT,
                             "%s: %s is not as the earlier export wrote it; choose another folder, or move it away",
                             folder, name);
    }
    return FSDP_OK;
}

fsdp_status export_place_check(const char *folder)
{
    struct stat info;
    bool filled = false;
    json_t *files = NULL;
    if (stat(folder, &info) != 0 && errno == ENOENT)
        return FSDP_OK;
    if (!file_is_directory(folder))
        return error_set(FSDP_ERR_INPUT, "%s: is there already and is no folder; choose another path", folder);
    FSDP_TRY(each_entry(folder, note_entry, &filled));
    if (!filled)
        return FSDP_OK;
    if (!is_there(folder, EXPORT_MARK_NAME))
        return error_set(FSDP_ERR_INPUT,
                         "%s: is not empty and not marked as an export of ours (" EXPORT_MARK_NAME
                         "); nothing there is replaced: choose another folder, or empty it",
                         folder);
    FSDP_TRY(read_mark(folder, &files));
    fsdp_status status = check_listed(folder, files);
    json_decref(files);
    return status;
}

/* ---- Replacing ---- */

typedef struct replacement {
    const char *final;
    json_t *ours; /* files of the earlier export */
} replacement;

static bool is_ours(const replacement *r, const char *name)
{
    return strcmp(name, EXPORT_MARK_NAME) == 0 || json_object_get(r->ours, name);
}

static fsdp_status refuse_taken(const char *temporary, const char *name, void *context)
{
    const replacement *r = context;
    (void)temporary;
    if (is_ours(r, name) || !is_there(r->final, name))
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "%s: %s is there and was not written by an export; choose another folder, or move it", r->final,
                     name);
}

/* From the earlier folder into the one that took its place. What cannot be moved stays where it is: none is removed. */
static fsdp_status move_over(const char *old, const char *name, void *context)
{
    const replacement *r = context;
    char *from = file_join(old, name), *to = file_join(r->final, name);
    if (!is_ours(r, name) && from && to && !is_there(r->final, name) && rename(from, to) != 0)
        log_write(FSDP_LOG_WARNING, "%s: cannot move to %s: %s", from, to, strerror(errno));
    free(to);
    free(from);
    return FSDP_OK;
}

/* Ours only, and never a tree: a folder that is not empty then is left, and said. */
static void remove_earlier(const char *old, json_t *ours)
{
    const char *name;
    json_t *bytes;
    char *mark = file_join(old, EXPORT_MARK_NAME);
    json_object_foreach(ours, name, bytes)
    {
        char *path = file_join(old, name);
        if (path)
            (void)unlink(path);
        free(path);
    }
    if (mark)
        (void)unlink(mark);
    free(mark);
    if (rmdir(old) != 0)
        log_write(FSDP_LOG_WARNING, "%s: holds what could not be moved into the new export: %s", old, strerror(errno));
}

/* Exchanges the two names, or renames twice where the file system has no exchange. *old: where the earlier one is then.
 */
static fsdp_status exchange(const char *temporary, const char *final, const char *id, char **old)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) == 0) {
        *old = strdup(temporary);
        return FSDP_OK;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot take the place of %s", temporary, final);
    if (asprintf(old, "%s.old-%s", final, id) < 0) {
        *old = NULL;
        return out_of_memory(final);
    }
    if (rename(final, *old) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", final, *old);
    if (rename(temporary, final) == 0)
        return FSDP_OK;
    fsdp_status status = error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", temporary, final);
    (void)rename(*old, final);
    return status;
}

static fsdp_status replace(const char *temporary, const char *final, const char *id, bool *placed)
{
    replacement r = {.final = final};
    char *old = NULL;
    fsdp_status status;
    TRY_OR(done, export_place_check(final));
    TRY_OR(done, read_mark(final, &r.ours));
    TRY_OR(done, each_entry(temporary, refuse_taken, &r));
    TRY_OR(done, exchange(temporary, final, id, &old));
    *placed = true;
    if (old) {
        (void)each_entry(old, move_over, &r);
        remove_earlier(old, r.ours);
    }
    status = file_sync_parent(final);
done:
    json_decref(r.ours);
    free(old);
    return status;
}

fsdp_status export_place_take(const char *temporary, const char *final, const char *id, bool *placed)
{
    if (rename(temporary, final) == 0) { /* onto nothing, or onto an empty folder */
        *placed = true;
        return file_sync_parent(final);
    }
    if (errno != ENOTEMPTY && errno != EEXIST)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", temporary, final);
    return replace(temporary, final, id, placed);
}
