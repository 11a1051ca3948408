/* From what the user names (files, globs, folders, hub names) to a sorted list of data files, each of a known kind. */
#ifndef DATA_SOURCE_H
#define DATA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef enum source_kind {
    SOURCE_TEXT,   /* plain text, also .gz and .zst: one document */
    SOURCE_JSONL,  /* a JSON object on every line, also .gz and .zst */
    SOURCE_TOKENS, /* a token file */
    SOURCE_TABLE,  /* safetensors with a tensor "data" of tokens */
    SOURCE_IMAGES, /* a folder of IDX files or CIFAR-10 batches */
} source_kind;

typedef enum source_part {
    SOURCE_ALL,
    SOURCE_TRAINING,   /* without files whose names say validation or test */
    SOURCE_VALIDATION, /* only files whose names say validation, else test */
} source_part;

typedef struct source_file {
    char *path;
    source_kind kind;
} source_file;

typedef struct source_list {
    source_file *files;
    size_t n_files, capacity;
} source_list;

/* Fills `out`. Parts are told apart by names in folders; a file or glob that is named itself is always taken, unless
 * the part is validation. No file at all is an error, except for SOURCE_VALIDATION: then the list is empty. */
fsdp_status source_list_make(const char *const *names, size_t n_names, const char *config, source_part part,
                             source_list *out);
/* Of all files together, as they are on disk. */
int64_t source_list_bytes(const source_list *list);
void source_list_free(source_list *list); /* legal on a zeroed list */

const char *source_kind_name(source_kind kind);

#endif
