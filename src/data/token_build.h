/* From files of text to tokens: documents are read in order, tokenized by several threads, and handed on in order, each
 * ended by the tokenizer's end token. The result does not depend on the number of threads. */
#ifndef DATA_TOKEN_BUILD_H
#define DATA_TOKEN_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/tokenizer.h>

#include "data/document.h"
#include "data/source.h"

/* Gets the tokens, on the calling thread. A document may come in several pieces. */
typedef struct token_sink {
    void *context;
    fsdp_status (*append)(void *context, const int32_t *ids, size_t n);
    fsdp_status (*end_document)(void *context);
    /* The tokens that follow are those of the document, or part of one, at this place; may be NULL. */
    fsdp_status (*begin)(void *context, const document_place *place);
} token_sink;

typedef struct token_build_options {
    const char *field;    /* of JSONL records */
    bool strict;          /* bad records are errors */
    int n_threads;        /* 0 or 1: the calling one */
    document_place start; /* where reading begins; zeros: with the first file */
    int64_t max_tokens;   /* stop after this many; the document then ends there. 0: all */
    void (*progress)(void *context, int64_t bytes, int64_t tokens, double part); /* may be NULL */
    int (*stop_requested)(void *context); /* other than 0 ends the work with FSDP_ERR_STATE; may be NULL */
    void *context;                        /* of both */
} token_build_options;

/* `result` may be NULL. */
fsdp_status token_build(const source_list *files, const fsdp_tokenizer *tokenizer, const token_build_options *options,
                        const token_sink *sink, fsdp_tokenize_result *result);

/* Streams into a token file that appears under `path` complete or not at all. */
fsdp_status token_build_file(const source_list *files, const fsdp_tokenizer *tokenizer,
                             const token_build_options *options, const char *path, fsdp_tokenize_result *result);

#endif
