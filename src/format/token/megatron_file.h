/* Megatron's token files: X.bin has the tokens one after another, X.idx says of which type they are and where sequences
 * and documents begin (MMapIndexedDataset, version 1). Neither says the vocabulary.
 *
 * The index, little endian: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences S, u64 D, then S i32 lengths, S i64
 * places in X.bin in bytes, D i64 numbers of sequences at which documents begin (the last of them is S), and S i8 modes
 * if the data has several. */
#ifndef FORMAT_TOKEN_MEGATRON_FILE_H
#define FORMAT_TOKEN_MEGATRON_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct megatron_file megatron_file;

/* Whether `path` is such a .bin: its index lies beside it, and it does not call itself a token file. */
bool megatron_file_is(const char *path);

/* Tokens must lie below `vocabulary`; 0: all are read once to find it. The caller closes *out. */
fsdp_status megatron_file_open(const char *path, int64_t vocabulary, megatron_file **out);
void megatron_file_close(megatron_file *f); /* NULL is legal */

int64_t megatron_file_vocabulary(const megatron_file *f);
int64_t megatron_file_count(const megatron_file *f);     /* tokens */
int64_t megatron_file_documents(const megatron_file *f); /* documents */

/* As token_file_read and token_file_document. */
fsdp_status megatron_file_read(const megatron_file *f, int64_t first, int64_t n, int32_t *out);
fsdp_status megatron_file_document(const megatron_file *f, int64_t index, int64_t *first, int64_t *n);

#endif
