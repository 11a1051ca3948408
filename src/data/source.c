/* Walks folders, expands globs and sorts what it finds by path, so that every rank sees the same order. */
#include "data/source.h"

#include <ctype.h>
#include <dirent.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "format/hub/hub.h"
#include "tokenizer/text/text_buffer.h"
#include "format/image/image_file.h"
#include "format/signature.h"

enum { DEEPEST_FOLDER = 64 };

typedef struct suffix_kind {
    const char *suffix;
    source_kind kind;
} suffix_kind;

/* May be followed by .gz or .zst; case does not matter. Other files are text when the user names them, and are skipped
 * in folders. */
static const suffix_kind suffixes[] = {
    {".jsonl", SOURCE_JSONL},  {".json", SOURCE_JSONL}, {".ndjson", SOURCE_JSONL}, {".txt", SOURCE_TEXT},
    {".text", SOURCE_TEXT},    {".md", SOURCE_TEXT},    {".rst", SOURCE_TEXT},     {".c", SOURCE_TEXT},
    {".h", SOURCE_TEXT},       {".cu", SOURCE_TEXT},    {".py", SOURCE_TEXT},      {".sh", SOURCE_TEXT},
    {".tex", SOURCE_TEXT},     {".html", SOURCE_TEXT},  {".cmake", SOURCE_TEXT},   {".log", SOURCE_TEXT},
    {".parquet", SOURCE_ROWS}, {".arrow", SOURCE_ROWS}, {".feather", SOURCE_ROWS}, {".safetensors", SOURCE_TABLE},
    {".bin", SOURCE_TOKENS},
};

const char *source_kind_name(source_kind kind)
{
    static const char *const names[] = {"text", "JSONL", "a table of text", "tokens", "a table of tokens", "images"};
    return names[kind];
}

static bool ends_with(const char *text, size_t bytes, const char *suffix)
{
    size_t n = strlen(suffix);
    return bytes >= n && strncasecmp(text + bytes - n, suffix, n) == 0;
}

/* The length of a name without .gz or .zst. */
static size_t unpacked_length(const char *path)
{
    size_t bytes = strlen(path);
    return bytes - (ends_with(path, bytes, ".gz") ? 3 : ends_with(path, bytes, ".zst") ? 4 : 0);
}

static bool kind_of_name(const char *path, source_kind *kind)
{
    size_t bytes = unpacked_length(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (ends_with(path, bytes, suffixes[i].suffix)) {
            *kind = suffixes[i].kind;
            return true;
        }
    }
    return false;
}

static void free_file(source_file *file)
{
    arrival_release(file->from);
    free(file->path);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* --- walking ----------------------------------------------------------------------------------------------------- */

typedef struct file_id {
    uint64_t device, inode;
    bool used;
} file_id;

/* One name of the user's, and what was met below it. */
typedef struct walk {
    source_list *list;
    bool download;
    size_t inner;  /* of the files found */
    file_id *seen; /* folders and files, open addressing */
    size_t n_seen, n_slots;
    char *unread; /* the first file that looks like data but is of a kind that is not read; NULL: none */
} walk;

static file_id *slot_of(file_id *slots, size_t n_slots, uint64_t device, uint64_t inode)
{
    size_t i = (size_t)((inode * 0x9E3779B97F4A7C15ull) ^ device) & (n_slots - 1);
    while (slots[i].used && (slots[i].device != device || slots[i].inode != inode))
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

/* Whether this folder or file was met before; it has been, from now on. */
static fsdp_status meet(walk *w, const struct stat *info, bool *before)
{
    if (2 * w->n_seen >= w->n_slots) {
        size_t larger = w->n_slots ? 2 * w->n_slots : 256;
        file_id *slots = calloc(larger, sizeof *slots);
        if (slots == NULL)
            return error_set(FSDP_ERR_MEMORY, "out of memory");
        for (size_t i = 0; i < w->n_slots; i++)
            if (w->seen[i].used)
                *slot_of(slots, larger, w->seen[i].device, w->seen[i].inode) = w->seen[i];
        free(w->seen);
        w->seen = slots;
        w->n_slots = larger;
    }
    file_id *slot = slot_of(w->seen, w->n_slots, (uint64_t)info->st_dev, (uint64_t)info->st_ino);
    *before = slot->used;
    w->n_seen += !slot->used;
    *slot = (file_id){(uint64_t)info->st_dev, (uint64_t)info->st_ino, true};
    return FSDP_OK;
}

static fsdp_status add_file(walk *w, const char *path, source_kind kind, bool named)
{
    source_list *list = w->list;
    if (list->n_files == list->capacity)
        FSDP_TRY(array_grow((void **)&list->files, &list->capacity, list->n_files + 1, sizeof *list->files));
    char *copy = strdup(path);
    if (copy == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    list->files[list->n_files++] = (source_file){.path = copy, .kind = kind, .named = named, .inner = w->inner};
    return FSDP_OK;
}

/* Files that describe a data set, or that come with every download: not data to train on. */
static bool describes(const char *name)
{
    static const char *const names[] = {"README.md",         "README.txt",         "README.rst",
                                        "dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                                        "state.json",        "LICENSE.txt",        "LICENSE.md"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Kinds of data that are common and not read: a folder of them is not empty, it must be converted. */
static bool looks_like_data(const char *name)
{
    static const char *const endings[] = {".npy", ".npz", ".pt", ".pth", ".pkl", ".zip",
                                          ".tar", ".bz2", ".xz", ".lz4", ".csv", ".tsv"};
    size_t bytes = unpacked_length(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (ends_with(name, bytes, endings[i]))
            return true;
    return false;
}

/* Byte by byte: alphasort and glob sort as the locale does, which need not be the same on every host. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static fsdp_status add_path(walk *w, const char *path, bool named, int depth);

static fsdp_status add_folder(walk *w, const char *path, int depth)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    if (image_folder_has(path, true) || image_folder_has(path, false))
        return add_file(w, path, SOURCE_IMAGES, depth == 0);
    if (depth > DEEPEST_FOLDER)
        return error_set(FSDP_ERR_INPUT, "%s: more than %d folders inside each other; name the inner one", path,
                         DEEPEST_FOLDER);
    int n = scandir(path, &entries, NULL, by_name);
    if (n < 0)
        return error_set_errno(FSDP_ERR_INPUT, "%s: the folder cannot be read", path);
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.' && status == FSDP_OK) {
            char *inner = file_join(path, entries[i]->d_name);
            status = inner == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory") : add_path(w, inner, false, depth + 1);
            free(inner);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* A file found in a folder. */
static fsdp_status add_found(walk *w, const char *path, const struct stat *info)
{
    source_kind kind;
    bool before = false;
    if (!kind_of_name(path, &kind)) {
        if (w->unread == NULL && looks_like_data(path))
            w->unread = strdup(path);
        return FSDP_OK;
    }
    if (describes(base_name(path)))
        return FSDP_OK;
    if (!S_ISREG(info->st_mode)) {
        log_write(FSDP_LOG_WARNING, "%s: is not a regular file; skipped", path);
        return FSDP_OK;
    }
    FSDP_TRY(meet(w, info, &before));
    if (before) {
        log_write(FSDP_LOG_WARNING, "%s: is a link to a file that is read already; skipped", path);
        return FSDP_OK;
    }
    return add_file(w, path, kind, false);
}

static fsdp_status add_path(walk *w, const char *path, bool named, int depth)
{
    source_kind kind = SOURCE_TEXT;
    struct stat info;
    bool before = false;
    if (stat(path, &info) != 0) {
        if (named || kind_of_name(path, &kind))
            return error_set_errno(FSDP_ERR_INPUT, "%s: cannot be read", path);
        return FSDP_OK;
    }
    if (S_ISDIR(info.st_mode)) {
        FSDP_TRY(meet(w, &info, &before));
        return before ? FSDP_OK : add_folder(w, path, depth);
    }
    if (!named)
        return add_found(w, path, &info);
    kind_of_name(path, &kind);
    return add_file(w, path, kind, true);
}

static fsdp_status add_matches(walk *w, const char *pattern)
{
    glob_t matches;
    fsdp_status status = FSDP_OK;
    if (glob(pattern, GLOB_BRACE | GLOB_NOSORT, NULL, &matches) != 0)
        return error_set(FSDP_ERR_INPUT, "%s: no file matches", pattern);
    qsort(matches.gl_pathv, matches.gl_pathc, sizeof *matches.gl_pathv, by_path);
    const char *wild = strpbrk(pattern, "*?[{");
    for (const char *p = pattern; p < wild; p++)
        if (*p == '/')
            w->inner = (size_t)(p - pattern) + 1;
    for (size_t i = 0; i < matches.gl_pathc && status == FSDP_OK; i++)
        status = add_path(w, matches.gl_pathv[i], true, 0);
    globfree(&matches);
    return status;
}

/* Megatron calls its data X where X.bin and X.idx lie. malloc'd; NULL: there is no such pair. */
static char *megatron_pair(const char *name)
{
    char *index = malloc(2 * (strlen(name) + 5)), *tokens = index + strlen(name) + 5;
    if (index == NULL)
        return NULL;
    sprintf(index, "%s.idx", name);
    sprintf(tokens, "%s.bin", name);
    bool found = !file_exists(name) && file_exists(index) && file_exists(tokens);
    memmove(index, tokens, strlen(tokens) + 1);
    if (!found) {
        free(index);
        return NULL;
    }
    return index;
}

/* --- what comes from the hub --- */

/* No part of the path below the data set's folder is hidden. */
static bool is_hidden(const char *inner)
{
    return inner[0] == '.' || strstr(inner, "/.") != NULL;
}

/* As folders are walked: name by name, so that a slash comes before every letter. */
static int by_walk(const void *left, const void *right)
{
    const unsigned char *a = (const unsigned char *)((const source_file *)left)->path,
                        *b = (const unsigned char *)((const source_file *)right)->path;
    while (*a && *a == *b)
        a++, b++;
    return (*a == '/' ? 1 : *a) - (*b == '/' ? 1 : *b);
}

/* The same blob under an earlier name. */
static bool is_repeated(const source_file *files, size_t n, const hub_files *hub, size_t at)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(hub_files_at(hub, files[i].at)->hash, hub_files_at(hub, at)->hash) == 0)
            return true;
    return false;
}

/* Text can come file by file; of anything else, all of it is fetched and found as if it had always been here. */
static fsdp_status add_coming(walk *w, arrival *a, bool *added)
{
    hub_files *hub = arrival_files(a);
    size_t n = hub_files_count(hub), inner = strlen(hub_files_folder(hub)), first = w->list->n_files, kept = first;
    *added = true;
    w->inner = inner;
    for (size_t i = 0; i < n && *added; i++) {
        const char *path = hub_files_at(hub, i)->path;
        source_kind kind;
        if (is_hidden(path + inner + 1) || describes(base_name(path)))
            continue;
        *added = kind_of_name(path, &kind) && kind <= SOURCE_ROWS;
        if (!*added)
            break;
        FSDP_TRY(add_file(w, path, kind, false));
        w->list->files[w->list->n_files - 1].from = arrival_share(a);
        w->list->files[w->list->n_files - 1].at = i;
    }
    for (size_t i = 0; i < n && !*added; i++)
        FSDP_TRY(hub_files_fetch(hub, i, NULL));
    qsort(w->list->files + first, w->list->n_files - first, sizeof *w->list->files, by_walk);
    for (size_t i = first; i < w->list->n_files; i++) {
        source_file *file = &w->list->files[i];
        if (*added && !is_repeated(w->list->files + first, kept - first, hub, file->at))
            w->list->files[kept++] = *file;
        else
            free_file(file);
    }
    w->list->n_files = kept;
    return FSDP_OK;
}

static fsdp_status add_remote(walk *w, const char *name, const char *config, bool *added)
{
    arrival *a = NULL;
    *added = false;
    fsdp_status status = arrival_open(name, config, &a);
    if (status == FSDP_OK && a != NULL)
        status = add_coming(w, a, added);
    arrival_release(a);
    return status;
}

static fsdp_status add_name(walk *w, const char *name, const char *config)
{
    bool added = false;
    char *path = megatron_pair(name);
    if (path != NULL) {
        w->inner = (size_t)(base_name(path) - path);
        fsdp_status status = add_file(w, path, SOURCE_TOKENS, true);
        free(path);
        return status;
    }
    if (!file_exists(name) && strpbrk(name, "*?[") != NULL)
        return add_matches(w, name);
    if (w->download && hub_is_remote(name))
        FSDP_TRY(add_remote(w, name, config, &added));
    if (added)
        return FSDP_OK;
    FSDP_TRY(hub_find(HUB_DATASET, name, config, &path));
    w->inner = file_is_directory(path) ? strlen(path) : (size_t)(base_name(path) - path);
    fsdp_status status = add_path(w, path, true, 0);
    free(path);
    return status;
}

/* --- parts ------------------------------------------------------------------------------------------------------- */

typedef enum part { PART_UNSAID, PART_TRAIN, PART_VALIDATION, PART_TEST } part;

static const struct {
    const char *word;
    part part;
} part_words[] = {
    {"validation", PART_VALIDATION},
    {"valid", PART_VALIDATION},
    {"val", PART_VALIDATION},
    {"dev", PART_VALIDATION},
    {"train", PART_TRAIN},
    {"training", PART_TRAIN},
    {"test", PART_TEST},
    {"testing", PART_TEST},
    {"eval", PART_TEST},
    {"evaluation", PART_TEST},
};

/* The part that a word of letters names. */
static part part_of_word(const char *word, size_t bytes)
{
    for (size_t i = 0; i < sizeof part_words / sizeof part_words[0]; i++)
        if (strlen(part_words[i].word) == bytes && strncasecmp(word, part_words[i].word, bytes) == 0)
            return part_words[i].part;
    return PART_UNSAID;
}

/* The last of the words in a name that names a part: "test_train.jsonl" is for training. */
static part part_of_name(const char *name, const char *end)
{
    part last = PART_UNSAID;
    for (const char *at = name; at < end;) {
        const char *word = at;
        while (at < end && isalpha((unsigned char)*at))
            at++;
        part p = part_of_word(word, (size_t)(at - word));
        last = p != PART_UNSAID ? p : last;
        at += at < end; /* what ended the word */
    }
    return last;
}

/* Only data files say which part they are; "train" in the name of a source file means nothing. */
static bool may_be_part(const source_file *file)
{
    size_t bytes = unpacked_length(file->path);
    return file->kind != SOURCE_TEXT || ends_with(file->path, bytes, ".txt") || ends_with(file->path, bytes, ".text");
}

static part part_of(const source_file *file)
{
    const char *name = base_name(file->path), *inner = file->path + file->inner;
    if (file->kind == SOURCE_IMAGES || !may_be_part(file))
        return PART_UNSAID;
    part own = part_of_name(name, name + strlen(name));
    while (own == PART_UNSAID && name > inner) { /* folders, from the file outwards */
        const char *end = name - 1, *start = end;
        while (start > inner && start[-1] != '/')
            start--;
        own = part_of_word(start, (size_t)(end - start));
        name = start;
    }
    return own;
}

/* What the names of a list say, counted. */
typedef struct said {
    part *parts; /* of each file */
    size_t n[PART_TEST + 1], n_found[PART_TEST + 1];
    bool leaves_some_out; /* some files are for training, so those that say validation or test are not */
} said;

static fsdp_status ask_names(const source_list *list, said *out)
{
    *out = (said){.parts = calloc(list->n_files + 1, sizeof *out->parts)};
    if (out->parts == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < list->n_files; i++) {
        out->parts[i] = part_of(&list->files[i]);
        out->n[out->parts[i]]++;
        out->n_found[out->parts[i]] += !list->files[i].named;
    }
    /* A single file is meant, whatever it is called. */
    out->leaves_some_out = list->n_files > 1 && out->n[PART_TRAIN] + out->n[PART_UNSAID] > 0;
    return FSDP_OK;
}

static bool is_wanted(const said *names, size_t index, const source_file *file, fsdp_dataset_part wanted)
{
    part own = names->parts[index];
    bool found = wanted == FSDP_PART_NAMED_VALIDATION; /* then files that are named themselves do not count */
    const size_t *n = found ? names->n_found : names->n;
    part held_out = n[PART_VALIDATION] > 0 ? PART_VALIDATION : PART_TEST;
    switch (wanted) {
    case FSDP_PART_TRAINING:
        return !names->leaves_some_out || own == PART_UNSAID || own == PART_TRAIN;
    case FSDP_PART_VALIDATION:
        return file->kind == SOURCE_IMAGES ? image_folder_has(file->path, false)
                                           : names->leaves_some_out && own == held_out;
    case FSDP_PART_NAMED_VALIDATION:
        return file->named || own == held_out || n[held_out] == 0;
    case FSDP_PART_ALL:
        break;
    }
    return true;
}

static fsdp_status select_part(source_list *list, fsdp_dataset_part wanted)
{
    said names;
    size_t kept = 0;
    FSDP_TRY(ask_names(list, &names));
    for (size_t i = 0; i < list->n_files; i++) {
        if (is_wanted(&names, i, &list->files[i], wanted))
            list->files[kept++] = list->files[i];
        else
            free_file(&list->files[i]);
    }
    list->n_files = kept;
    free(names.parts);
    return FSDP_OK;
}

/* --- the whole list ---------------------------------------------------------------------------------------------- */

static fsdp_status check_kinds(const source_list *list)
{
    const source_file *first = list->files;
    for (size_t i = 1; i < list->n_files; i++) {
        const source_file *file = &list->files[i];
        if ((file->kind <= SOURCE_ROWS) != (first->kind <= SOURCE_ROWS) ||
            (first->kind > SOURCE_ROWS && file->kind != first->kind))
            return error_set(FSDP_ERR_INPUT, "%s holds %s, but %s holds %s: one data set must be of one kind",
                             first->path, source_kind_name(first->kind), file->path, source_kind_name(file->kind));
    }
    return FSDP_OK;
}

/* Text has no structure to recognise it by, so its first bytes are checked. Compressed files are checked when they are
 * unpacked, those that come when they are here. */
static fsdp_status check_content(const source_file *file)
{
    bool plain = file->kind <= SOURCE_JSONL && unpacked_length(file->path) == strlen(file->path);
    return plain ? signature_check_file(file->path) : FSDP_OK;
}

static fsdp_status check_contents(const source_list *list)
{
    for (size_t i = 0; i < list->n_files; i++) {
        if (list->files[i].from == NULL)
            FSDP_TRY(check_content(&list->files[i]));
    }
    return FSDP_OK;
}

static fsdp_status refuse_empty(const char *const *names, size_t n_names, const char *unread)
{
    if (n_names == 0)
        return error_set(FSDP_ERR_INPUT, "no data set is named");
    if (unread != NULL)
        return error_set(FSDP_ERR_INPUT,
                         "%s: there are no data files that can be read; %s must be converted to JSONL first", names[0],
                         unread);
    return error_set(FSDP_ERR_INPUT,
                     "%s: there are no data files (text, .jsonl, .json.gz, .jsonl.zst, .parquet, .arrow, .bin, "
                     ".safetensors, images)",
                     names[0]);
}

fsdp_status source_list_make(const char *const *names, size_t n_names, const char *config, fsdp_dataset_part wanted,
                             bool download, source_list *out)
{
    fsdp_status status = FSDP_OK;
    char *unread = NULL;
    *out = (source_list){0};
    for (size_t i = 0; i < n_names && status == FSDP_OK; i++) {
        walk w = {.list = out, .download = download, .unread = unread};
        status = add_name(&w, names[i], config);
        unread = w.unread;
        free(w.seen);
    }
    if (status == FSDP_OK)
        status = select_part(out, wanted);
    if (status == FSDP_OK && out->n_files == 0 && wanted != FSDP_PART_VALIDATION)
        status = refuse_empty(names, n_names, unread);
    if (status == FSDP_OK && unread != NULL && out->n_files > 0 && wanted != FSDP_PART_VALIDATION)
        log_write(FSDP_LOG_WARNING, "%s: files of this kind are not read; skipped", unread);
    if (status == FSDP_OK)
        status = check_kinds(out);
    if (status == FSDP_OK)
        status = check_contents(out);
    if (status != FSDP_OK)
        source_list_free(out);
    free(unread);
    return status;
}

int64_t source_file_bytes(const source_file *file)
{
    struct stat info;
    if (file->from != NULL)
        return hub_files_at(arrival_files(file->from), file->at)->bytes;
    return stat(file->path, &info) == 0 ? (int64_t)info.st_size : 0;
}

bool source_list_comes(const source_list *list)
{
    for (size_t i = 0; i < list->n_files; i++)
        if (list->files[i].from != NULL)
            return true;
    return false;
}

fsdp_status source_list_await(const source_list *list, size_t index)
{
    const source_file *file = &list->files[index], *next = index + 1 < list->n_files ? file + 1 : NULL;
    if (file->from != NULL) {
        FSDP_TRY(arrival_await(file->from, file->at, list->stop));
        FSDP_TRY(check_content(file));
    }
    if (next != NULL && next->from != NULL)
        arrival_expect(next->from, next->at);
    return FSDP_OK;
}

fsdp_status source_list_await_all(const source_list *list)
{
    for (size_t i = 0; i < list->n_files; i++)
        FSDP_TRY(source_list_await(list, i));
    return FSDP_OK;
}

int64_t source_list_moves(const source_list *list)
{
    int64_t moves = 0;
    for (size_t i = 0; i < list->n_files; i++)
        if (list->files[i].from != NULL)
            moves += arrival_moves(list->files[i].from);
    return moves;
}

int64_t source_list_bytes(const source_list *list)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < list->n_files; i++)
        bytes += source_file_bytes(&list->files[i]);
    return bytes;
}

void source_list_free(source_list *list)
{
    for (size_t i = 0; i < list->n_files; i++)
        free_file(&list->files[i]);
    free(list->files);
    *list = (source_list){0};
}
