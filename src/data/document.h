/* Documents of text, JSONL files and tables, one after the other. Bad records are skipped with their file and line in
 * the log, or are errors when reading is strict. Making tokens of documents is token_build.c's and dataset_pairs.c's.
 */
#ifndef DATA_DOCUMENT_H
#define DATA_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include <fsdp/tokenizer.h>

#include "data/source.h"
#include "format/table/table_file.h"

typedef struct document_reader document_reader;

/* Where a document, or a part of one, begins: enough to read on from there. */
typedef struct document_place {
    int64_t file;   /* index in the list */
    int64_t offset; /* in bytes of the decompressed file; of a file whose records span lines 0 */
    int64_t record; /* lines, or such records, before it in the file */
    bool continues; /* a later part of its document */
} document_place;

typedef struct document {
    const char *text; /* valid until the next call */
    size_t bytes;
    const char *target; /* pairs only; NULL otherwise */
    size_t target_bytes;
    bool ends; /* the document ends here; long plain text comes in several parts, cut where the tokenizer permits */
    document_place place;
    json_t *record; /* the whole record, where no field was asked for; NULL otherwise */
} document;

/* `target_field` NULL: no pairs. `text_field` NULL: records as they are, without text. `tokenizer` says where plain
 * text may be cut. Borrows everything until closed. */
fsdp_status document_reader_open(const source_list *files, const char *text_field, const char *target_field,
                                 bool strict, fsdp_tokenizer *tokenizer, document_reader **out);
void document_reader_close(document_reader *r); /* NULL is legal */

/* The next document or part; *more is false after the last. */
fsdp_status document_reader_next(document_reader *r, document *out, bool *more);

/* The record that came last cannot be used: an error when reading is strict, else counted and logged with its place. */
fsdp_status document_reader_skip(document_reader *r, const char *why);

/* Goes on at a place that a document had. */
fsdp_status document_reader_seek(document_reader *r, const document_place *place);

/* A table whose rows are conversations: a list "messages" of records with role and content. */
fsdp_status document_open_messages(const char *path, table_file **out);

int64_t document_reader_skipped(const document_reader *r); /* bad records so far */
double document_reader_part(const document_reader *r);     /* of all files, 0 to 1; compressed ones are estimated */

#endif
