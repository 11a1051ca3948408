/* What fetching a repository of the hub is made of, for fsdp_fetch and for files that come one at a time (hub_files.h).
 */
#ifndef FORMAT_HUB_HUB_FETCH_H
#define FORMAT_HUB_HUB_FETCH_H

#include <fsdp/fetch.h>

#include <jansson.h>
#include <limits.h>

#include "format/hub/http.h"

typedef struct fetch {
    const fsdp_fetch_config *config;
    fsdp_fetch_result *result;
    bool is_dataset;
    const char *name, *config_name, *revision;
    char endpoint[512];
    double api_timeout, download_timeout;
    char folder[PATH_MAX / 2]; /* of the repository, in the cache */
    char commit[80];           /* "" before its files are listed */
    http *http;
    int pass;
    const char *file;             /* being downloaded */
    int64_t total, finished, had; /* bytes of all files that are missing; of those done; of `file` before this run */
    int lock;                     /* of this host, while it is held; -1 */
    double stamped;               /* when the lock was last told that bytes come */
    atomic_llong *moves; /* counts that bytes came, to this process or to the one that is waited for; or NULL */
} fetch;

/* As fsdp_fetch; while *stop (may be NULL) is true, it ends within a second or so, with FSDP_ERR_STATE. */
fsdp_status hub_fetch(const fsdp_fetch_config *config, fsdp_fetch_result *result, const atomic_bool *stop);

/* Borrows both; refuses names that cannot be the hub's. */
fsdp_status fetch_begin(fetch *f, const fsdp_fetch_config *config, fsdp_fetch_result *result);
/* Opens f->http, which the caller closes. */
fsdp_status fetch_connect(fetch *f);
/* What the hub says of the repository; the caller frees it. */
fsdp_status fetch_list(fetch *f, json_t **listed);

/* Every file of the list that is wanted, with its size and hash, after all names were checked. Sets f->commit. */
typedef fsdp_status (*fetch_visitor)(void *context, const char *name, const char *hash, int64_t bytes);
fsdp_status fetch_visit(fetch *f, const json_t *listed, fetch_visitor visit, void *context);

/* One process of a host at a time, until fetch_unlock. `stop` (may be NULL) ends the wait. Whoever has the lock stamps
 * it while bytes come, so that those who wait see it. */
fsdp_status fetch_lock(fetch *f, const atomic_bool *stop);
void fetch_unlock(fetch *f); /* legal without the lock */
bool fetch_has(const fetch *f, const char *hash);
/* Into blobs/, unless it is there. Under the lock. */
fsdp_status fetch_blob(fetch *f, const char *name, const char *hash, int64_t bytes);
/* PLACE/COMMIT/NAME in the repository's folder, a link to the blob, be that there or not. */
fsdp_status fetch_link(const fetch *f, const char *place, const char *name, const char *hash);
/* The snapshot is complete from now on: hub_find looks at refs/main. A commit needs no name. */
fsdp_status fetch_name_commit(const fetch *f);
/* The hub was not reached, which `status` says: FSDP_OK, with a warning, where the cache has the repository. */
fsdp_status fetch_use_cache(const fetch *f, fsdp_status status);

#endif
