/* Lists a data set once, and fetches its files by index. */
#include "format/hub/hub_files.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "format/hub/hub_fetch.h"

#define PLACE ".fsdp.partial"

typedef struct listed_file {
    hub_file file;
    char *name;
} listed_file;

struct hub_files {
    fsdp_fetch_config config;
    fsdp_fetch_result result;
    fetch fetch; /* as after the list was read; every download works with a copy */
    char *name, *config_name, *folder;
    listed_file *files;
    size_t n;
    atomic_llong moves;
};

static fsdp_status out_of_memory(const hub_files *f)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory for the list of its files", f->name);
}

static fsdp_status add_file(void *context, const char *name, const char *hash, int64_t bytes)
{
    hub_files *f = context;
    listed_file *grown = realloc(f->files, (f->n + 1) * sizeof *grown);
    if (grown == NULL)
        return out_of_memory(f);
    f->files = grown;
    listed_file *file = &grown[f->n++];
    *file = (listed_file){.file = {.bytes = bytes}, .name = strdup(name)};
    snprintf(file->file.hash, sizeof file->file.hash, "%s", hash);
    if (file->name == NULL ||
        asprintf(&file->file.path, "%s/" PLACE "/%s/%s", f->fetch.folder, f->fetch.commit, name) < 0) {
        file->file.path = NULL;
        return out_of_memory(f);
    }
    return fetch_link(&f->fetch, PLACE, name, hash);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const listed_file *)a)->file.path, ((const listed_file *)b)->file.path);
}

/* When all are there, they become the snapshot. Under the lock. */
static fsdp_status complete(const hub_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        if (!fetch_has(&f->fetch, f->files[i].file.hash))
            return FSDP_OK;
    }
    for (size_t i = 0; i < f->n; i++)
        FSDP_TRY(fetch_link(&f->fetch, "snapshots", f->files[i].name, f->files[i].file.hash));
    return fetch_name_commit(&f->fetch);
}

static fsdp_status list_files(hub_files *f)
{
    json_t *listed = NULL;
    fsdp_status status = fetch_list(&f->fetch, &listed);
    if (status == FSDP_OK)
        status = fetch_lock(&f->fetch, NULL);
    if (status == FSDP_OK)
        status = fetch_visit(&f->fetch, listed, add_file, f);
    json_decref(listed);
    if (status == FSDP_OK && f->n > 0) {
        qsort(f->files, f->n, sizeof *f->files, by_path);
        status = complete(f);
    }
    fetch_unlock(&f->fetch);
    if (status != FSDP_OK || f->n > 0)
        return status;
    return error_set(FSDP_ERR_INPUT, "%s%s%s: the hub has no files of this kind there", f->name,
                     f->config_name ? ", " : "", f->config_name ? f->config_name : "");
}

static fsdp_status open_list(hub_files *f, const char *name, const char *config)
{
    f->config = (fsdp_fetch_config)FSDP_FETCH_CONFIG_INIT;
    f->name = strdup(name);
    f->config_name = config != NULL && config[0] ? strdup(config) : NULL;
    if (f->name == NULL || (config != NULL && config[0] && f->config_name == NULL))
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    f->config.kind = FSDP_FETCH_DATASET;
    f->config.name = f->name;
    f->config.config_name = f->config_name;
    FSDP_TRY(fetch_begin(&f->fetch, &f->config, &f->result));
    f->fetch.moves = &f->moves;
    fsdp_status status = fetch_connect(&f->fetch);
    if (status == FSDP_OK)
        status = list_files(f);
    http_close(f->fetch.http);
    f->fetch.http = NULL;
    FSDP_TRY(status);
    const char *inner = f->config_name ? f->config_name : "";
    if (asprintf(&f->folder, "%s/" PLACE "/%s%s%s", f->fetch.folder, f->fetch.commit, *inner ? "/" : "", inner) < 0) {
        f->folder = NULL;
        return out_of_memory(f);
    }
    return FSDP_OK;
}

fsdp_status hub_files_open(const char *name, const char *config, hub_files **out)
{
    *out = NULL;
    hub_files *f = calloc(1, sizeof *f);
    if (f == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    fsdp_status status = open_list(f, name, config);
    if (status == FSDP_OK) {
        *out = f;
        return FSDP_OK;
    }
    if (status == FSDP_ERR_TIMEOUT && f->fetch.commit[0] == '\0')
        status = fetch_use_cache(&f->fetch, status);
    hub_files_close(f);
    return status;
}

void hub_files_close(hub_files *f)
{
    if (f == NULL)
        return;
    for (size_t i = 0; i < f->n; i++) {
        free(f->files[i].file.path);
        free(f->files[i].name);
    }
    free(f->files);
    free(f->folder);
    free(f->config_name);
    free(f->name);
    free(f);
}

size_t hub_files_count(const hub_files *f)
{
    return f->n;
}

const hub_file *hub_files_at(const hub_files *f, size_t index)
{
    return &f->files[index].file;
}

const char *hub_files_folder(const hub_files *f)
{
    return f->folder;
}

int64_t hub_files_moves(const hub_files *f)
{
    return atomic_load(&f->moves);
}

fsdp_status hub_files_fetch(hub_files *f, size_t index, const atomic_bool *stop)
{
    const listed_file *file = &f->files[index];
    fsdp_fetch_result result = FSDP_FETCH_RESULT_INIT;
    fetch own = f->fetch;
    if (fetch_has(&own, file->file.hash))
        return FSDP_OK;
    own.result = &result;
    fsdp_status status = fetch_connect(&own);
    if (status == FSDP_OK) {
        http_stop_when(own.http, stop);
        status = fetch_lock(&own, stop);
    }
    if (status == FSDP_OK)
        status = fetch_blob(&own, file->name, file->file.hash, file->file.bytes);
    if (status == FSDP_OK)
        status = complete(f);
    fetch_unlock(&own);
    http_close(own.http);
    return status;
}
