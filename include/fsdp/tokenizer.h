/* Tokenizers: text to ids and back, exactly as Hugging Face's tokenizers library does from the same tokenizer.json.
 * A handle serves one thread at a time; fsdp_tokenizer_share gives another thread its own onto the same tables.
 *
 *     fsdp_tokenizer *tokenizer;
 *     const int32_t *ids;
 *     size_t n;
 *     FSDP_TRY(fsdp_tokenizer_load("models/llama", &tokenizer));
 *     FSDP_TRY(fsdp_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &n));
 *     ...                                       // ids are the tokenizer's, until its next encode
 *     fsdp_tokenizer_free(tokenizer); */
#ifndef FSDP_TOKENIZER_H
#define FSDP_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_tokenizer fsdp_tokenizer;

/* Loads a tokenizer.json, or the one in the folder `path`, or of a hub name ("org/model") that is on this machine. A
 * component that is not known here is an error that names it (FSDP_ERR_UNSUPPORTED), never a different result. Beside
 * the file, tokenizer_config.json and special_tokens_map.json, where present, say which tokens begin, end and pad. */
FSDP_API fsdp_status fsdp_tokenizer_load(const char *path, fsdp_tokenizer **out);

/* The built-in tokenizer: every byte is its own id, and id 0 ends a document. */
FSDP_API fsdp_status fsdp_tokenizer_byte(fsdp_tokenizer **out);

/* Another handle onto the same tables, for another thread; both are freed on their own, in any order. */
FSDP_API fsdp_status fsdp_tokenizer_share(const fsdp_tokenizer *tokenizer, fsdp_tokenizer **out);
/* NULL is legal. */
FSDP_API void fsdp_tokenizer_free(fsdp_tokenizer *tokenizer);

/* Text to ids. The ids belong to the tokenizer and stay until its next encode. Bytes that are not UTF-8 count as
 * U+FFFD, one for each maximal broken sequence. `add_special` puts in what the post-processor adds (a begin or end
 * token). It allocates only for texts longer than any before. */
FSDP_API fsdp_status fsdp_tokenizer_encode(fsdp_tokenizer *tokenizer, const char *text, size_t bytes, bool add_special,
                                           const int32_t **ids, size_t *n_ids);

/* Ids to text, which belongs to the tokenizer and stays until its next decode; a NUL follows its `*bytes` (`bytes` may
 * be NULL). Ids that no token has are skipped, as that library does. */
FSDP_API fsdp_status fsdp_tokenizer_decode(fsdp_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                                           bool skip_special, const char **text, size_t *bytes);

/* Rows that an embedding needs: one more than the highest id. */
FSDP_API int32_t fsdp_tokenizer_vocab_size(const fsdp_tokenizer *tokenizer);

/* The id of a token as tokenizer.json spells it, -1 when there is none. */
FSDP_API int32_t fsdp_tokenizer_id(const fsdp_tokenizer *tokenizer, const char *token);
/* The spelling of an id, NULL when no token has it. */
FSDP_API const char *fsdp_tokenizer_token(const fsdp_tokenizer *tokenizer, int32_t id);

/* Id of the token that begins a text; -1: none. */
FSDP_API int32_t fsdp_tokenizer_bos(const fsdp_tokenizer *tokenizer);
/* Id of the token that ends a text; -1: none. */
FSDP_API int32_t fsdp_tokenizer_eos(const fsdp_tokenizer *tokenizer);
/* Id of the token that pads a batch; -1: none. */
FSDP_API int32_t fsdp_tokenizer_pad(const fsdp_tokenizer *tokenizer);

/* Makes a token file of text: what `fsdp tokenize --output` does. */
typedef struct fsdp_tokenize_config {
    size_t size;               /* sizeof(fsdp_tokenize_config) */
    const char *const *inputs; /* files, globs, folders or hub names of text or JSONL, also .gz and .zst */
    size_t n_inputs;
    const char *config_name; /* configuration of a hub data set; may be NULL */
    const char *field;       /* of JSONL records */
    const char *output;      /* appears complete or not at all */
    int n_threads;           /* the result does not depend on it */
    bool strict;             /* bad records are errors; otherwise they are logged and skipped */
    bool jsonl;              /* every file holds records, whatever its name says */
    int64_t max_tokens;      /* stop there; 0: all */
    /* Called on the calling thread: bytes of text and tokens so far, and an estimate of the part done, 0 to 1. */
    void (*progress)(void *context, int64_t bytes, int64_t tokens, double part);
    /* Called now and then on the calling thread; any value but 0 ends the work with FSDP_ERR_STATE; may be NULL. */
    int (*stop_requested)(void *context);
    void *context;
} fsdp_tokenize_config;

#define FSDP_TOKENIZE_CONFIG_INIT                                                                                      \
    {                                                                                                                  \
        .size = sizeof(fsdp_tokenize_config), .field = "text", .n_threads = 1                                          \
    }

typedef struct fsdp_tokenize_result {
    int64_t n_documents, n_tokens, n_bytes, n_skipped; /* skipped: bad records */
    int64_t reserved[4];                               /* 0: room for what later versions add */
} fsdp_tokenize_result;

/* Every document ends with the tokenizer's end token. `result` may be NULL. */
FSDP_API fsdp_status fsdp_tokenize_files(const fsdp_tokenizer *tokenizer, const fsdp_tokenize_config *config,
                                         fsdp_tokenize_result *result);

#ifdef __cplusplus
}
#endif
#endif
