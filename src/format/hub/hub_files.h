/* The files of a data set of the hub, which come one at a time, when they are needed. Until the last of those that were
 * asked for is there, they lie beside the snapshots: a snapshot that lacks files would be taken for the whole. */
#ifndef FORMAT_HUB_HUB_FILES_H
#define FORMAT_HUB_HUB_FILES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct hub_files hub_files;

typedef struct hub_file {
    char *path;    /* where it is, or will be; a link to its blob */
    int64_t bytes; /* as the hub has it */
    char hash[65]; /* of what it holds; the name of the blob */
} hub_file;

/* Asks the hub for the list. `config` names a folder of the data set; may be NULL. *out is NULL when the hub cannot be
 * reached and the cache has the data set: then hub_find does. The caller closes it. */
fsdp_status hub_files_open(const char *name, const char *config, hub_files **out);
void hub_files_close(hub_files *f); /* NULL is legal; nobody fetches any more */

size_t hub_files_count(const hub_files *f);
const hub_file *hub_files_at(const hub_files *f, size_t index); /* by path */
const char *hub_files_folder(const hub_files *f);               /* that all paths begin with */

/* Returns when the file is there, whole and with the hub's hash. Any thread may call it. While *stop is true, it ends
 * soon with FSDP_ERR_STATE; NULL: never. */
fsdp_status hub_files_fetch(hub_files *f, size_t index, const atomic_bool *stop);
/* Grows while bytes of any of them come, be it to this process or to another that this one waits for. */
int64_t hub_files_moves(const hub_files *f);

#endif
