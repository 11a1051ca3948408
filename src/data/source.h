/* From what the user names (files, globs, folders, hub names) to a sorted list of data files, each of a known kind. */
#ifndef DATA_SOURCE_H
#define DATA_SOURCE_H

#include <fsdp/data.h>

#include "data/arrival.h"

typedef enum source_kind {
    SOURCE_TEXT,   /* plain text, also .gz and .zst: one document */
    SOURCE_JSONL,  /* a JSON object on every line, also .gz and .zst */
    SOURCE_ROWS,   /* a Parquet or Arrow table with columns of text */
    SOURCE_TOKENS, /* a token file */
    SOURCE_TABLE,  /* safetensors with a tensor "data" of tokens */
    SOURCE_IMAGES, /* a folder of IDX files, CIFAR batches or classes of pictures */
} source_kind;

typedef struct source_file {
    char *path;
    source_kind kind;
    bool named;    /* by the user, or by a glob of theirs; false: found in a folder */
    size_t inner;  /* where in `path` the names begin that the user did not choose */
    arrival *from; /* it comes from there when it is awaited; NULL: it is here */
    size_t at;     /* its index there */
} source_file;

typedef struct source_list {
    source_file *files;
    size_t n_files, capacity;
    const atomic_bool *stop; /* while it is true, waits for files end with FSDP_ERR_STATE; NULL: never. Borrowed */
} source_list;

/* Fills `out`. Which part a file belongs to is said by a word of its own name ("c4-train.00000-of-01024.json.gz"), else
 * by a folder inside what the user named that is called so ("val/"); the names of outer folders say nothing. A single
 * file is all there is and is trained on whatever it is called. In folders, files that are no data (README.md,
 * dataset_info.json, ...) and files of unknown names are skipped, links that lead back are not followed, and a
 * file that several links lead to is read once. Files of text whose first bytes are not text are refused. No file at
 * all is an error, except for FSDP_PART_VALIDATION: then the list is empty. */
/* `download`: text of the hub that is not here is listed all the same, as if it were, and comes when it is awaited. */
fsdp_status source_list_make(const char *const *names, size_t n_names, const char *config, fsdp_dataset_part part,
                             bool download, source_list *out);
/* Returns when the file is here; then the one after it is fetched in the background. */
fsdp_status source_list_await(const source_list *list, size_t index);
fsdp_status source_list_await_all(const source_list *list);
int64_t source_list_moves(const source_list *list); /* grows while bytes of its files come */
bool source_list_comes(const source_list *list);    /* some file may not be here */
int64_t source_file_bytes(const source_file *file); /* as it is, or will be, on disk */
/* Of all files together, as they are on disk. */
int64_t source_list_bytes(const source_list *list);
void source_list_free(source_list *list); /* legal on a zeroed list */

const char *source_kind_name(source_kind kind);

#endif
