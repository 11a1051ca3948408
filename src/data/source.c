/* Walks folders, expands globs and sorts what it finds by path, so that every rank sees the same order. */
#include "data/source.h"

#include <dirent.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "data/hub.h"
#include "data/text_buffer.h"

enum { DEEPEST_FOLDER = 16 };

typedef struct suffix_kind {
    const char *suffix;
    source_kind kind;
} suffix_kind;

/* Behind these, .gz and .zst may follow. Names that are not in the list are text when the user names them, and are
 * passed over in folders. */
static const suffix_kind suffixes[] = {
    {".jsonl", SOURCE_JSONL},
    {".json", SOURCE_JSONL},
    {".ndjson", SOURCE_JSONL},
    {".txt", SOURCE_TEXT},
    {".text", SOURCE_TEXT},
    {".md", SOURCE_TEXT},
    {".rst", SOURCE_TEXT},
    {".c", SOURCE_TEXT},
    {".h", SOURCE_TEXT},
    {".cu", SOURCE_TEXT},
    {".py", SOURCE_TEXT},
    {".sh", SOURCE_TEXT},
    {".tex", SOURCE_TEXT},
    {".html", SOURCE_TEXT},
    {".cmake", SOURCE_TEXT},
    {".log", SOURCE_TEXT},
    {".safetensors", SOURCE_TABLE},
    {".bin", SOURCE_TOKENS},
};

const char *source_kind_name(source_kind kind)
{
    static const char *const names[] = {"text", "JSONL", "tokens", "a table of tokens", "images"};
    return names[kind];
}

static bool ends_with(const char *text, size_t bytes, const char *suffix)
{
    size_t n = strlen(suffix);
    return bytes >= n && memcmp(text + bytes - n, suffix, n) == 0;
}

static bool kind_of_name(const char *path, source_kind *kind)
{
    size_t bytes = strlen(path);
    if (ends_with(path, bytes, ".gz"))
        bytes -= 3;
    else if (ends_with(path, bytes, ".zst"))
        bytes -= 4;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (ends_with(path, bytes, suffixes[i].suffix)) {
            *kind = suffixes[i].kind;
            return true;
        }
    }
    return false;
}

static fsdp_status add_file(source_list *list, const char *path, source_kind kind)
{
    if (list->n_files == list->capacity)
        FSDP_TRY(array_grow((void **)&list->files, &list->capacity, list->n_files + 1, sizeof *list->files));
    char *copy = strdup(path);
    if (copy == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    list->files[list->n_files++] = (source_file){copy, kind};
    return FSDP_OK;
}

/* IDX and CIFAR folders are recognised by the names of their files; the label files say it for both parts. */
static bool is_image_folder(const char *path)
{
    static const char *const names[] = {"train-images-idx3-ubyte", "train-images-idx3-ubyte.gz",
                                        "train-images.idx3-ubyte", "train-images.idx3-ubyte.gz",
                                        "data_batch_1.bin",        "cifar-10-batches-bin"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *file = file_join(path, names[i]);
        bool there = file != NULL && file_exists(file);
        free(file);
        if (there)
            return true;
    }
    return false;
}

static fsdp_status add_path(source_list *list, const char *path, bool named, int depth);

static fsdp_status add_folder(source_list *list, const char *path, int depth)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    if (is_image_folder(path))
        return add_file(list, path, SOURCE_IMAGES);
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return error_set_errno(FSDP_ERR_INPUT, "%s: the folder cannot be read", path);
    for (int i = 0; i < n; i++) {
        char *inner = entries[i]->d_name[0] == '.' || status != FSDP_OK ? NULL : file_join(path, entries[i]->d_name);
        if (inner != NULL)
            status = add_path(list, inner, false, depth + 1);
        free(inner);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static fsdp_status add_path(source_list *list, const char *path, bool named, int depth)
{
    source_kind kind = SOURCE_TEXT;
    if (file_is_directory(path))
        return depth > DEEPEST_FOLDER ? FSDP_OK : add_folder(list, path, depth);
    if (!kind_of_name(path, &kind) && !named)
        return FSDP_OK;
    return add_file(list, path, kind);
}

static fsdp_status add_name(source_list *list, const char *name, const char *config)
{
    char *path = NULL;
    glob_t matches;
    if (!file_exists(name) && strpbrk(name, "*?[") != NULL) {
        int rc = glob(name, GLOB_BRACE, NULL, &matches);
        if (rc != 0)
            return error_set(FSDP_ERR_INPUT, "%s: no file matches", name);
        fsdp_status status = FSDP_OK;
        for (size_t i = 0; i < matches.gl_pathc && status == FSDP_OK; i++)
            status = add_path(list, matches.gl_pathv[i], true, 0);
        globfree(&matches);
        return status;
    }
    FSDP_TRY(hub_find(HUB_DATASET, name, config, &path));
    fsdp_status status = add_path(list, path, true, 0);
    free(path);
    return status;
}

/* Only data files say which part they are; "train" in the path of a source file means nothing. */
static bool may_be_part(const source_file *file)
{
    size_t bytes = strlen(file->path);
    if (file->kind != SOURCE_TEXT)
        return true;
    bytes -= ends_with(file->path, bytes, ".gz") ? 3 : ends_with(file->path, bytes, ".zst") ? 4 : 0;
    return ends_with(file->path, bytes, ".txt") || ends_with(file->path, bytes, ".text");
}

/* What a path says of its part: 'v' validation, 't' test, 'r' training, 0 nothing. Looks at the last two names. */
static char part_of(const source_file *file)
{
    const char *path = file->path;
    if (!may_be_part(file))
        return '\0';
    const char *last = strrchr(path, '/'), *from = path;
    for (const char *p = path; last != NULL && p < last; p++)
        if (*p == '/')
            from = p + 1;
    if (strstr(from, "valid") != NULL || strstr(from, "-val") != NULL || strstr(from, "_val") != NULL ||
        strncmp(from, "val", 3) == 0)
        return 'v';
    if (strstr(from, "train") != NULL)
        return 'r';
    return strstr(from, "test") != NULL ? 't' : '\0';
}

static void keep(source_list *list, const char *parts)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->n_files; i++) {
        char part = part_of(&list->files[i]);
        if (list->files[i].kind == SOURCE_IMAGES || strchr(parts, part == '\0' ? '0' : part) != NULL)
            list->files[kept++] = list->files[i];
        else
            free(list->files[i].path);
    }
    list->n_files = kept;
}

static bool has_part(const source_list *list, char part)
{
    for (size_t i = 0; i < list->n_files; i++)
        if (part_of(&list->files[i]) == part)
            return true;
    return false;
}

/* Selection applies only where several files were found: a single file that is named is meant. */
static void select_part(source_list *list, source_part part)
{
    if (part == SOURCE_TRAINING && list->n_files > 1 && (has_part(list, 'r') || has_part(list, '\0')))
        keep(list, has_part(list, 'r') && !has_part(list, '\0') ? "r" : "r0");
    else if (part == SOURCE_VALIDATION)
        keep(list, has_part(list, 'v') ? "v" : "t");
}

fsdp_status source_list_make(const char *const *names, size_t n_names, const char *config, source_part part,
                             source_list *out)
{
    fsdp_status status = FSDP_OK;
    *out = (source_list){0};
    for (size_t i = 0; i < n_names && status == FSDP_OK; i++)
        status = add_name(out, names[i], config);
    if (status == FSDP_OK)
        select_part(out, part);
    if (status == FSDP_OK && out->n_files == 0 && part != SOURCE_VALIDATION)
        status =
            error_set(FSDP_ERR_INPUT,
                      "%s: there are no data files (text, .jsonl, .json.gz, .jsonl.zst, .bin, .safetensors, images)",
                      n_names == 0 ? "no data set is named" : names[0]);
    for (size_t i = 1; i < out->n_files && status == FSDP_OK; i++)
        if ((out->files[i].kind <= SOURCE_JSONL) != (out->files[0].kind <= SOURCE_JSONL) ||
            (out->files[0].kind > SOURCE_JSONL && out->files[i].kind != out->files[0].kind))
            status = error_set(FSDP_ERR_INPUT, "%s holds %s, but %s holds %s: one data set must be of one kind",
                               out->files[0].path, source_kind_name(out->files[0].kind), out->files[i].path,
                               source_kind_name(out->files[i].kind));
    if (status != FSDP_OK)
        source_list_free(out);
    return status;
}

int64_t source_list_bytes(const source_list *list)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < list->n_files; i++) {
        struct stat info;
        bytes += stat(list->files[i].path, &info) == 0 ? (int64_t)info.st_size : 0;
    }
    return bytes;
}

void source_list_free(source_list *list)
{
    for (size_t i = 0; i < list->n_files; i++)
        free(list->files[i].path);
    free(list->files);
    *list = (source_list){0};
}
