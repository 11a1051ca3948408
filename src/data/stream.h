/* Text that is read while it is trained on: step 1 waits for one window of tokens, not for the whole set.
 *
 * The order: documents lie one after another as in the files, their tokens are cut into samples of `width`, and
 * `window` samples in a row are a window. Every epoch takes the windows in order, each in a permutation of its own that
 * depends on seed, epoch and window only. So a position has one sample, whatever the world, the threads and the number
 * of stops. With best fit, documents are put whole into the samples of a window, and the first that finds no room
 * begins the next window. The length is known once the end was reached; position p then is place p % length of epoch p
 * / length. */
#ifndef DATA_STREAM_H
#define DATA_STREAM_H

#include <jansson.h>

#include "data/document.h"
#include "data/source.h"
#include "data/token_store.h"

/* What a file was when the set was opened. */
typedef struct stream_stamp {
    int64_t bytes, seconds, nanoseconds;
} stream_stamp;

/* What is streamed. It does not change while it is read: a file that does is an error. */
typedef struct stream_set {
    source_list files;
    stream_stamp *stamps; /* of each file */
    fsdp_tokenizer *tokenizer;
    char *field;
    bool strict;
    int64_t max_samples; /* 0: all */
    int64_t width, window;
    fsdp_packing packing;
    token_store *store; /* of token files, whose documents are streamed as they are; NULL: text */
} stream_set;

/* What a token of a sample is. */
enum { STREAM_GOES_ON, STREAM_BEGINS, STREAM_PADDING };

typedef struct stream stream;

/* Borrows `set` until closed. `threads` make tokens, ahead of the reader. */
fsdp_status stream_open(const stream_set *set, uint64_t seed, bool shuffle, int threads, stream **out);
void stream_close(stream *s); /* NULL is legal */

/* Waits for the sample at `position` and copies its tokens; *kinds are the STREAM_* of each, until the next call. One
 * caller at a time. */
fsdp_status stream_read(stream *s, int64_t position, int64_t *sample, int32_t *ids, const uint8_t **kinds);
/* Ends a wait in stream_read with FSDP_ERR_STATE; false: reads may begin again. */
void stream_interrupt(stream *s, bool interrupted);

/* Grows while bytes come of files that are not here yet. */
int64_t stream_moves(const stream *s);
/* Samples of an epoch; 0: not known yet. */
int64_t stream_length(stream *s);
/* The part of tokens that is padding, of all windows made so far. */
double stream_padding(stream *s);

/* What a checkpoint keeps beside the position, so that a resumed run neither tokenizes what came before nor goes on
 * with other files: malloc'd JSON, NULL when out of memory. */
json_t *stream_describe(stream *s, int64_t position);
/* The other way, before the first read; `path` is the checkpoint's. */
fsdp_status stream_restore(stream *s, const char *path, const json_t *described);

/* stream_set.c */
fsdp_status stream_set_check(const stream_set *set, size_t file);
json_t *stream_set_describe(const stream_set *set); /* NULL when out of memory */
fsdp_status stream_set_compare(const stream_set *set, const char *path, const json_t *described);

#endif
