/* Data sets: n samples, each at its number, read from any thread. A sample is a row of tokens (text packed to the
 * context width), a pair of texts, or an image. Which samples come when is sampler.h's, batches are loader.h's. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/tokenizer.h>

#include "data/source.h"

#define DATASET_IGNORE (-100) /* a label that counts for nothing */

typedef enum dataset_kind { DATASET_TEXT, DATASET_PAIRS, DATASET_IMAGES } dataset_kind;

typedef struct dataset_options {
    size_t size;                     /* sizeof(dataset_options) */
    const fsdp_tokenizer *tokenizer; /* for text and pairs; borrowed while the data set is opened */
    int64_t width;        /* tokens of a sample, or of a pair's source. A table must have it; 0: the table's */
    int64_t target_width; /* tokens of a pair's target */
    bool pairs;           /* JSONL records are pairs */
    int32_t pad_id;       /* pairs: fills sources and targets; -1: the tokenizer's, 0 where it has none */
    int32_t start_id;     /* pairs: the decoder begins with it; -1: the padding token */
    const char *source_field, *target_field;
    const char *source_prefix; /* put before every source; may be NULL */
    const char *config_name;   /* configuration of a hub data set; may be NULL */
    source_part part;
    bool strict;              /* bad records are errors */
    int64_t max_samples;      /* 0: all */
    int n_threads;            /* that make tokens */
    const char *cache_folder; /* where the tokens of text are kept; NULL: in memory */
    int64_t cache_from_bytes; /* smaller texts are kept in memory all the same */
    void (*progress)(void *context, int64_t bytes, int64_t tokens, double part); /* of reading text; may be NULL */
    void *progress_context;
} dataset_options;

#define DATASET_OPTIONS_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(dataset_options), .width = 0, .target_width = 128, .pad_id = -1, .start_id = -1,                \
        .source_field = "text", .target_field = "summary", .n_threads = 1                                              \
    }

typedef struct dataset dataset;

/* What is known of a data set once it is open. */
typedef struct dataset_info {
    dataset_kind kind;
    int64_t n_samples;
    int64_t width, target_width;           /* tokens */
    int64_t vocabulary;                    /* every token is below it */
    int64_t channels, height, image_width; /* images */
    int64_t n_classes;
    bool tokens;  /* the data was tokens already: no tokenizer made them */
    bool ordered; /* samples are meant to come in their own order: a table of steps */
} dataset_info;

/* Opens what `names` say: files, globs, folders, hub names. Fewer tokens than one sample needs is an error. With
 * SOURCE_VALIDATION, *out is NULL when there are no such files. The caller frees *out. */
fsdp_status dataset_open(const char *const *names, size_t n_names, const dataset_options *options, dataset **out);
void dataset_free(dataset *d);

dataset_info dataset_describe(const dataset *d);

/* Takes the last `n_samples` away from `d` and makes a data set of them. Both are freed on their own. */
fsdp_status dataset_hold_back(dataset *d, int64_t n_samples, dataset **out);

/* Room for one sample; members that its kind does not have are not touched. */
typedef struct dataset_row {
    int32_t *ids;         /* text, pairs: (width) */
    int32_t *labels;      /* text: (width), what follows each token; pairs: (target_width) */
    int32_t *mask;        /* pairs: (width), 1 for tokens and 0 for padding */
    int32_t *decoder_ids; /* pairs: (target_width), the labels one place later, the start token first */
    float *pixels;        /* images: (channels, height, image_width), 0 to 1 */
    int32_t *image_class; /* images: one */
} dataset_row;

/* Fills `row` with sample `index`. Safe from any thread. */
fsdp_status dataset_read(const dataset *d, int64_t index, const dataset_row *row);

#endif
