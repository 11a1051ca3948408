/* A long row of tokens, read at any place: token files one after another, or tokens made from text, kept in
 * memory or in a token file of a cache folder that ranks share. */
#ifndef DATA_TOKEN_STORE_H
#define DATA_TOKEN_STORE_H

#include "data/token_build.h"

typedef struct token_store token_store;

/* Token files, and Megatron's, whose tokens must lie below `below`; 0: they are read once to find theirs. */
fsdp_status token_store_open(const source_list *files, int64_t below, token_store **out);

/* Text and JSONL. With `cache_folder`, the tokens of the same files, tokenizer and options are made once and then
 * read; processes that ask for the same wait for the one that makes them. */
fsdp_status token_store_build(const source_list *files, const fsdp_tokenizer *tokenizer,
                              const token_build_options *options, const char *cache_folder, token_store **out);
void token_store_free(token_store *s);

int64_t token_store_count(const token_store *s);
int64_t token_store_vocabulary(const token_store *s); /* every token is below it */
int64_t token_store_skipped(const token_store *s);    /* records that could not be used; of a cache not known: 0 */

/* Tokens first .. first + n - 1, which the store has. Safe from any thread. */
fsdp_status token_store_read(const token_store *s, int64_t first, int64_t n, int32_t *out);

/* Of token files: how many documents there are, and where document `index` lies: in which file, from which token on. */
int64_t token_store_documents(const token_store *s);
fsdp_status token_store_document(const token_store *s, int64_t index, int64_t *part, int64_t *first, int64_t *n);

#endif
