/* Looks names up: the file system, $FSDP_DATA/<name>, then the Hugging Face cache, whose folders are called
 * datasets--org--name or models--org--name and hold snapshots/<revision>/ and refs/main. */
#include "format/hub/hub.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "base/file.h"

enum { LONGEST_PATH = 4096 };

/* The folder of the configuration is there, or none is asked for. */
static bool has_config(const char *path, const char *config)
{
    char *inner = config == NULL || config[0] == '\0' ? NULL : file_join(path, config);
    bool has = config == NULL || config[0] == '\0' || (inner != NULL && file_is_directory(inner));
    free(inner);
    return has;
}

/* "org/name" with nothing that could mean a path. */
static bool is_hub_name(const char *name)
{
    const char *slash = strchr(name, '/');
    if (name[0] == '\0' || name[0] == '/' || name[0] == '.' || name[0] == '~')
        return false;
    if (slash == NULL) /* "squad" may be one, "notes.txt" is a file that is not there */
        return strchr(name, '.') == NULL;
    return slash[1] != '\0' && strchr(slash + 1, '/') == NULL;
}

/* Where the Hugging Face libraries keep their cache; their variables, in their order. */
void hub_cache_folder(char *out, size_t bytes)
{
    const char *cache = environment_text("HF_HUB_CACHE"), *home;
    if (cache == NULL)
        cache = environment_text("HUGGINGFACE_HUB_CACHE");
    if (cache != NULL)
        snprintf(out, bytes, "%s", cache);
    else if ((home = environment_text("HF_HOME")) != NULL)
        snprintf(out, bytes, "%s/hub", home);
    else if ((home = environment_text("XDG_CACHE_HOME")) != NULL)
        snprintf(out, bytes, "%s/huggingface/hub", home);
    else
        snprintf(out, bytes, "%s/.cache/huggingface/hub", (home = environment_text("HOME")) ? home : ".");
}

/* The snapshot that refs/main names. */
static bool main_snapshot(const char *entry, char *out)
{
    char path[LONGEST_PATH], revision[128] = "";
    if (snprintf(path, sizeof path, "%s/refs/main", entry) >= LONGEST_PATH)
        return false;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    bool read = fscanf(file, "%127[0-9a-zA-Z_.-]", revision) == 1;
    fclose(file);
    return read && snprintf(out, LONGEST_PATH, "%s/snapshots/%s", entry, revision) < LONGEST_PATH &&
           file_is_directory(out);
}

static bool newest_snapshot(const char *entry, char *out)
{
    char folder[LONGEST_PATH], path[LONGEST_PATH];
    struct timespec newest = {0};
    bool found = false;
    if (snprintf(folder, sizeof folder, "%s/snapshots", entry) >= LONGEST_PATH)
        return false;
    DIR *snapshots = opendir(folder);
    for (struct dirent *e; snapshots != NULL && (e = readdir(snapshots)) != NULL;) {
        struct stat info;
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= LONGEST_PATH ||
            stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
            continue;
        if (!found || info.st_mtim.tv_sec > newest.tv_sec ||
            (info.st_mtim.tv_sec == newest.tv_sec && info.st_mtim.tv_nsec > newest.tv_nsec) ||
            (memcmp(&info.st_mtim, &newest, sizeof newest) == 0 && strcmp(path, out) > 0)) {
            newest = info.st_mtim;
            snprintf(out, LONGEST_PATH, "%s", path);
            found = true;
        }
    }
    if (snapshots != NULL)
        closedir(snapshots);
    return found;
}

static bool in_cache(hub_kind kind, const char *name, const char *cache, char *out)
{
    char entry[LONGEST_PATH];
    const char *slash = strchr(name, '/');
    int n = slash == NULL
                ? snprintf(entry, sizeof entry, "%s/%s--%s", cache, kind == HUB_DATASET ? "datasets" : "models", name)
                : snprintf(entry, sizeof entry, "%s/%s--%.*s--%s", cache, kind == HUB_DATASET ? "datasets" : "models",
                           (int)(slash - name), name, slash + 1);
    return n < LONGEST_PATH && (main_snapshot(entry, out) || newest_snapshot(entry, out));
}

/* The folder of the configuration inside `path`, when one is asked for and there is one. */
static fsdp_status with_config(const char *path, const char *config, char **out)
{
    char *inner = config == NULL || config[0] == '\0' ? NULL : file_join(path, config);
    if (inner != NULL && file_is_directory(inner)) {
        *out = inner;
        return FSDP_OK;
    }
    free(inner);
    *out = strdup(path);
    return *out != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory");
}

fsdp_status hub_find(hub_kind kind, const char *name, const char *config, char **path)
{
    char found[LONGEST_PATH], cache[LONGEST_PATH];
    const char *what = kind == HUB_DATASET ? "data set" : "model", *data = environment_text("FSDP_DATA");
    if (file_exists(name))
        return with_config(name, config, path);
    if (!is_hub_name(name))
        return error_set(FSDP_ERR_INPUT, "%s: there is no such file or folder", name);
    if (data != NULL && snprintf(found, sizeof found, "%s/%s", data, name) < LONGEST_PATH && file_exists(found))
        return with_config(found, config, path);
    hub_cache_folder(cache, sizeof cache);
    /* A cache may hold some of the configurations: another one is not what was asked for. */
    if (in_cache(kind, name, cache, found) && has_config(found, config))
        return with_config(found, config, path);
    return error_set(FSDP_ERR_INPUT,
                     "%s: there is no such %s: not as a path, not in %s%s, not in the Hugging Face cache %s; "
                     "to fetch it: add --download, or: fsdp fetch %s%s%s%s",
                     name, what, data == NULL ? "$FSDP_DATA (not set)" : "$FSDP_DATA = ", data == NULL ? "" : data,
                     cache, kind == HUB_DATASET ? "--dataset " : "", name,
                     config == NULL ? "" : " --dataset_config_name ", config == NULL ? "" : config);
}

bool hub_is_name(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
    return is_hub_name(name) && name[strspn(name, allowed)] == '\0';
}

bool hub_is_remote(const char *name)
{
    char path[LONGEST_PATH];
    const char *data = environment_text("FSDP_DATA");
    if (file_exists(name) || !hub_is_name(name))
        return false;
    return data == NULL || snprintf(path, sizeof path, "%s/%s", data, name) >= LONGEST_PATH || !file_exists(path);
}
