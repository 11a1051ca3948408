/* Token files (".bin"): tokens of many documents, one after the other, read at any place.
 * Making tokens is the tokenizers' job, choosing samples the data layer's.
 *
 * Layout, little endian, version 1:
 *
 *     byte  0   8 bytes   magic "FSDPTOKN"
 *           8   u32       version, 1
 *          12   u32       bytes of a token: 2 or 4
 *          16   u64       vocabulary size: every token is below it (at most 65536 for 2 bytes, 2^31 for 4)
 *          24   u64       number of tokens, T
 *          32   u64       number of documents, D
 *          40   u64       where the document index begins: after the tokens, rounded up to 8
 *          48   u64       checksum (XXH64, seed 0) of everything from byte 64 to the end
 *          56   u64       checksum (XXH64, seed 0) of bytes 0 to 55
 *          64             T tokens, then zeros up to the index
 *     index     D u64     for each document the number of tokens up to its end; never falling, the last one is T
 *
 * The file ends with the index. Every token belongs to a document. Documents may be empty. */
#ifndef FORMAT_TOKEN_TOKEN_FILE_H
#define FORMAT_TOKEN_TOKEN_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct token_file token_file;

/* Checks the header against the file's length; the document index and the tokens are checked as they are used, so that
 * opening does not depend on the size. The caller closes *out. */
fsdp_status token_file_open(const char *path, token_file **out);
void token_file_close(token_file *file); /* NULL is legal */

int64_t token_file_vocabulary(const token_file *file);
int64_t token_file_count(const token_file *file);     /* tokens */
int64_t token_file_documents(const token_file *file); /* documents */

/* Tokens first .. first + n - 1; a token outside the vocabulary is an error that says where. Safe from any thread. */
fsdp_status token_file_read(const token_file *file, int64_t first, int64_t n, int32_t *out);
/* Where document `index` begins, and how many tokens it has. */
fsdp_status token_file_document(const token_file *file, int64_t index, int64_t *first, int64_t *n);
/* Checks everything: the checksum, every token, the whole index. Reads the file once. */
fsdp_status token_file_verify(const token_file *file);

typedef struct token_writer token_writer;

/* Streams into a file that appears under `path` on commit. Tokens take 2 bytes where `vocabulary` permits, else 4.
 * The caller ends *out by commit or abort. One thread at a time. */
fsdp_status token_writer_create(const char *path, int64_t vocabulary, token_writer **out);
fsdp_status token_writer_append(token_writer *w, const int32_t *tokens, size_t n);
fsdp_status token_writer_end_document(token_writer *w);
/* Frees w, also on failure. Refuses when tokens follow the last end of a document. */
fsdp_status token_writer_commit(token_writer *w);
void token_writer_abort(token_writer *w); /* NULL is legal */

#endif
