/* Models, tokenizers and data sets from the Hugging Face hub: what `fsdp fetch` and --download do.
 *
 *     fsdp_fetch_config what = FSDP_FETCH_CONFIG_INIT;
 *     fsdp_fetch_result done = FSDP_FETCH_RESULT_INIT;
 *     what.name = "org/model";
 *     FSDP_TRY(fsdp_fetch(&what, &done));
 *     puts(done.path);
 *     free(done.path);
 *
 * Files go into the cache of the Hugging Face libraries, in their layout: blobs by hash, snapshots of links to them,
 * refs that name a snapshot. A download that was cut goes on where it stopped, every file is checked by its size and
 * hash before it gets its name, and one process of a host fetches while the others wait.
 *
 * HF_ENDPOINT, HF_TOKEN (or the file HF_HOME/token), HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT mean what they
 * mean there. The token goes to the endpoint's own host only.
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_FETCH_H
#define FSDP_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_fetch_kind {
    FSDP_FETCH_MODEL,     /* configuration, weights and tokenizer */
    FSDP_FETCH_TOKENIZER, /* of a model, only the files of its tokenizer */
    FSDP_FETCH_DATASET,
} fsdp_fetch_kind;

typedef struct fsdp_fetch_config {
    size_t size;
    fsdp_fetch_kind kind;
    const char *name;        /* of the hub: "org/name" */
    const char *config_name; /* data sets: only this folder; NULL: all */
    const char *include;     /* data sets: only files that one of these globs matches; commas between; NULL: all */
    const char *revision;    /* a branch, a tag or a commit; NULL: main */
    bool prefer_local;       /* what is here will do: a name that is a path, and the cache while the hub is away */
    /* Called as bytes come, with those of all files so far and in the end; may be NULL. */
    void (*progress)(void *context, const char *file, int64_t bytes, int64_t total);
    void *context;
} fsdp_fetch_config;

#define FSDP_FETCH_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_fetch_config)                                                                              \
    }

typedef struct fsdp_fetch_result {
    size_t size;
    char *path; /* the folder in the cache, the caller's to free(); NULL: a path was named, or the hub is away */
    int64_t n_files, bytes; /* there now, of what was asked for */
    int64_t downloaded;     /* bytes that were not there before */
} fsdp_fetch_result;

#define FSDP_FETCH_RESULT_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_fetch_result)                                                                              \
    }

/* result may be NULL. Afterwards the name stands for what was fetched wherever a hub name may be given; of another
 * revision than main, name the path. A name that the hub does not have is FSDP_ERR_INPUT, a hub that cannot be reached
 * FSDP_ERR_TIMEOUT. */
FSDP_API fsdp_status fsdp_fetch(const fsdp_fetch_config *config, fsdp_fetch_result *result);

#ifdef __cplusplus
}
#endif
#endif
