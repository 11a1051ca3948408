/* Data: sets of samples, the order in which they come, and batches of them for every rank, as `fsdp train` reads them.
 *
 * Where a run stands in its data is one number, the position: how many samples all ranks have consumed together.
 * Position p is place p % n of epoch p / n, every epoch another permutation of the n samples. So the same seed gives
 * the same samples in the same order on any number of ranks, and a run that goes on at a position, on as many ranks as
 * it likes, repeats and misses nothing. A stream (fsdp_dataset_config.stream_from_bytes) learns its n at its end, and
 * permutes windows of samples instead of all of them; the rest holds for it too.
 *
 *     static fsdp_status read_row(void *table, int64_t index, void *const *fields)
 *     {
 *         memcpy(fields[0], (const float *)table + index * 20, 20 * sizeof(float));
 *         return FSDP_OK;
 *     }
 *
 *     const fsdp_field row = {.name = "x", .dtype = FSDP_F32, .n_dims = 1, .shape = {20}};
 *     fsdp_dataset_source source = FSDP_DATASET_SOURCE_INIT;
 *     fsdp_loader_config batches = FSDP_LOADER_CONFIG_INIT;
 *     fsdp_dataset *rows;
 *     fsdp_loader *loader;
 *     fsdp_batch *b;
 *     source.read = read_row, source.context = values, source.count = n;
 *     source.fields = &row, source.n_fields = 1;
 *     FSDP_TRY(fsdp_dataset_from(&source, &rows));
 *     batches.batch = 64;                              // of all ranks together
 *     FSDP_TRY(fsdp_loader_new(world, rows, &batches, &loader));
 *     fsdp_loader_attach(loader, model);
 *     FSDP_TRY(fsdp_loader_next(loader, &b));
 *     while (b) {                                      // NULL ends an epoch
 *         fsdp_tape *t = fsdp_begin(model);
 *         fsdp_tensor *x = fsdp_batch_input(t, b, "x"); // (rows, 20)
 *         ...
 *         FSDP_TRY(fsdp_loader_next(loader, &b));
 *     }
 *     fsdp_loader_free(loader);
 *     fsdp_dataset_free(rows); */
#ifndef FSDP_DATA_H
#define FSDP_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/shard.h>
#include <fsdp/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Data sets: n samples, each at its number ---- */

typedef struct fsdp_dataset fsdp_dataset;

enum { FSDP_MAX_FIELDS = 16 };

/* The number of samples of a stream, whose length is not known before its end was read. */
#define FSDP_ENDLESS (INT64_MAX / 4)

/* One array of a sample: ids, labels, pixels. In a batch it has the rows in front: (rows, shape...). */
typedef struct fsdp_field {
    const char *name;
    fsdp_dtype dtype;
    int n_dims; /* 0: one value a sample */
    int64_t shape[FSDP_MAX_DIMS - 1];
    double padding; /* value of the rows that only pad a batch; FSDP_IGNORE for labels */
} fsdp_field;

typedef enum fsdp_dataset_kind {
    FSDP_DATASET_TEXT,   /* ids, labels: int32 (width); labels are what follows each token; documents, positions */
    FSDP_DATASET_PAIRS,  /* ids, mask: int32 (width); decoder_ids, labels: int32 (target_width) */
    FSDP_DATASET_IMAGES, /* pixels: fp32 (channels, height, image_width), 0 to 1; classes: int32 */
    FSDP_DATASET_OWN,    /* fields as the source says */
} fsdp_dataset_kind;

typedef enum fsdp_dataset_part {
    FSDP_PART_ALL,
    FSDP_PART_TRAINING,         /* without files whose names say validation or test */
    FSDP_PART_VALIDATION,       /* only files whose names say validation, else test, and that training leaves out */
    FSDP_PART_NAMED_VALIDATION, /* data named for validation: of a folder its validation or test files, if any */
} fsdp_dataset_part;

/* How documents become samples of text. */
typedef enum fsdp_packing {
    FSDP_PACK_ROW,      /* one after another, cut where a sample is full */
    FSDP_PACK_BEST_FIT, /* whole, each where it leaves the least room, and padded; only longer ones are cut */
} fsdp_packing;

typedef struct fsdp_dataset_config {
    size_t size;
    const char *const *names; /* files, globs, folders, hub names: text, JSONL, Parquet, Arrow, token files, images */
    size_t n_names;
    const fsdp_tokenizer *tokenizer; /* for text and pairs; borrowed while the data set is opened */
    int64_t width;        /* tokens of a sample, or of a pair's source. A table must have it; 0: the table's */
    int64_t target_width; /* tokens of a pair's target */
    bool pairs;           /* JSONL records and rows of tables are pairs */
    int32_t pad_id;       /* pairs: fills sources and targets; -1: the tokenizer's, 0 where it has none */
    int32_t start_id;     /* pairs: the decoder begins with it; -1: the padding token */
    const char *source_field, *target_field; /* of JSONL records, columns of tables */
    const char *source_prefix;               /* put before every source; may be NULL */
    const char *config_name;                 /* configuration of a hub data set; may be NULL */
    fsdp_dataset_part part;
    bool strict;         /* bad records are errors; otherwise they are logged and passed over */
    int64_t max_samples; /* 0: all */
    int threads;         /* that make tokens; 0: those of this process */
    /* Where the tokens of long texts are kept, made once and shared by the ranks of a host. NULL: FSDP_CACHE_DIR, else
     * the user's cache folder; "": in memory. */
    const char *cache_folder;
    int64_t cache_from_bytes; /* shorter texts are kept in memory all the same */
    void (*progress)(void *context, int64_t bytes, int64_t tokens, double part); /* of reading text; may be NULL */
    void *progress_context;
    /* Text of at least this many bytes, as it is on disk, is streamed: tokenized while it is trained on, shuffled
     * within windows of about half a million tokens. 0: never. Streams have no known length: loaders need stop_at_epoch
     * = false. */
    int64_t stream_from_bytes;
    /* Records are conversations ("messages", in JSONL or Parquet) or prompts with responses (or columns of a table),
     * rendered by the tokenizer's chat template: one a sample, labels only where the assistant responds. False: they
     * are where the first record has "messages" and no text. */
    bool chat;
    const char *chat_template; /* a file to take instead of the template of the tokenizer's folder; may be NULL */
    /* Tokens of files that do not say theirs (Megatron's) must lie below it; 0: they are read once to find out. */
    int64_t vocabulary;
    /* Samples have two more fields, documents and positions: int32 (width). Tokens of one document of a row have the
     * same number, from 0 on, -1 for padding; positions begin at 0 with each document. No label then lies in another
     * document than its token. Text and token files; they are streamed. */
    bool documents;
    fsdp_packing packing;  /* best fit implies documents */
    const double *weights; /* (n_names): each name is a source by itself, drawn by its weight; NULL: one data set */
    /* Names of the hub that are not here are fetched: text that is streamed file by file, when it is needed, the next
     * one while one is read; anything else before this returns. */
    bool download;
} fsdp_dataset_config;

#define FSDP_DATASET_CONFIG_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(fsdp_dataset_config), .target_width = 128, .pad_id = -1, .start_id = -1,                        \
        .source_field = "text", .target_field = "summary", .cache_from_bytes = 64 << 20                                \
    }

/* Opens what the names say. Fewer tokens than one sample needs is an error. With FSDP_PART_VALIDATION, *out is NULL
 * when there are no such files. The caller frees *out. Not collective, but with a cache folder the ranks of a host wait
 * for the one that makes the tokens. */
FSDP_API fsdp_status fsdp_dataset_open(const fsdp_dataset_config *config, fsdp_dataset **out);

/* Data of one's own: a number of samples and a function that reads one of them. */
typedef struct fsdp_dataset_source {
    size_t size;
    const char *name; /* for messages; NULL: "the data set" */
    int64_t count;    /* samples, at least 1; the same on every rank */
    int n_fields;     /* of a sample, at most FSDP_MAX_FIELDS */
    const fsdp_field *fields;
    /* Writes sample `index` (0 <= index < count) into fields[0 .. n_fields-1], each with room for its shape. Whatever
     * it does not write is undefined. Called from the threads of loaders, from several at once where they have several.
     * A failure says what is wrong with fsdp_fail; the loader reports it with the number of the sample. */
    fsdp_status (*read)(void *context, int64_t index, void *const *fields);
    void (*close)(void *context); /* called once, when the data set is freed; may be NULL */
    void *context;
    bool ordered; /* samples come in their own order, whatever loaders are told */
} fsdp_dataset_source;

#define FSDP_DATASET_SOURCE_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(fsdp_dataset_source)                                                                            \
    }

/* Copies names and fields. On success the data set owns the context and closes it; on failure the caller keeps it. */
FSDP_API fsdp_status fsdp_dataset_from(const fsdp_dataset_source *source, fsdp_dataset **out);

/* After the loaders that read it; NULL is legal. */
FSDP_API void fsdp_dataset_free(fsdp_dataset *d);

/* What is known of a data set once it is open. What its kind does not have is 0. */
typedef struct fsdp_dataset_info {
    size_t size;
    fsdp_dataset_kind kind;
    int64_t n_samples;
    int64_t width, target_width;           /* tokens */
    int64_t vocabulary;                    /* every token is below it */
    int64_t channels, height, image_width; /* images */
    int64_t n_classes;
    bool tokens;  /* the data was tokens already: no tokenizer made them */
    bool ordered; /* samples are meant to come in their own order: a table of steps */
    int n_fields;
    const fsdp_field *fields; /* the data set's */
    bool stream; /* a stream or a mix: read in order by loaders, not by fsdp_dataset_read; n_samples is FSDP_ENDLESS */
    bool documents;      /* samples have the fields documents and positions */
    int64_t n_truncated; /* pairs and conversations that were longer than the width and lost their end */
    int64_t n_skipped;   /* records that could not be used; of text from a token cache, and of streams, not known: 0 */
    bool chat;           /* samples are conversations, or prompts with responses */
    bool rendered;       /* by a chat template; otherwise the response follows its prompt */
} fsdp_dataset_info;

#define FSDP_DATASET_INFO_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_dataset_info)                                                                              \
    }

/* Fills *info, which begins as FSDP_DATASET_INFO_INIT. */
FSDP_API fsdp_status fsdp_dataset_describe(const fsdp_dataset *d, fsdp_dataset_info *info);
/* Number of samples. */
FSDP_API int64_t fsdp_dataset_count(const fsdp_dataset *d);

/* Takes the last `n_samples` away from `d` and makes a data set of them. Both are freed on their own, in any order. */
FSDP_API fsdp_status fsdp_dataset_hold_back(fsdp_dataset *d, int64_t n_samples, fsdp_dataset **out);

/* Reads sample `index` into fields[0 .. n_fields-1], in the order of fsdp_dataset_info.fields. From any thread. */
FSDP_API fsdp_status fsdp_dataset_read(const fsdp_dataset *d, int64_t index, void *const *fields);

/* ---- The sampler: which sample comes when, and who takes it; pure functions ---- */

typedef struct fsdp_sampler {
    int64_t n_samples; /* positive */
    uint64_t seed;
    bool shuffle; /* false: every epoch in the data's own order */
} fsdp_sampler;

/* The sample at a position >= 0, the same on every rank. */
FSDP_API int64_t fsdp_sampler_at(const fsdp_sampler *s, int64_t position);
/* The epoch that a position lies in, counted from 0. */
FSDP_API int64_t fsdp_sampler_epoch(const fsdp_sampler *s, int64_t position);
/* A rank's part of a batch of n samples: *count of them, from the batch's position + *first on. Parts are contiguous in
 * rank order, cover the batch, and differ by one sample at most. */
FSDP_API void fsdp_sampler_share(int64_t n, int rank, int world_size, int64_t *first, int64_t *count);

/* ---- Loaders: batches, prepared ahead of time by threads ---- */

typedef struct fsdp_loader fsdp_loader;

typedef struct fsdp_loader_config {
    size_t size;
    int64_t batch; /* samples of all ranks together in one batch; each rank gets its part */
    uint64_t seed;
    bool shuffle;       /* ignored for data sets that are ordered */
    bool stop_at_epoch; /* epochs end: the last batch of one is smaller, and after it comes NULL, once */
    bool drop_last;     /* what is left of an epoch and makes no whole batch is passed over */
    bool same_rows;     /* every batch has as many rows as the fullest, padded: one shape, one program */
    int64_t position;   /* where to start */
    int64_t end;        /* no samples from this position on: then comes NULL, for good; 0: without end */
    int threads;        /* at least 1 */
    int prefetch;       /* batches ahead, at least 1 */
    double timeout;     /* seconds that fsdp_loader_next waits at most */
} fsdp_loader_config;

#define FSDP_LOADER_CONFIG_INIT                                                                                        \
    {                                                                                                                  \
        .size = sizeof(fsdp_loader_config), .batch = 1, .shuffle = true, .stop_at_epoch = true, .threads = 1,          \
        .prefetch = 4, .timeout = 600                                                                                  \
    }

/* A rank's part of a batch. Rows from `counted` on hold the fields' padding: a rank has them where another has more
 * samples. It belongs to the loader. */
typedef struct fsdp_batch {
    int64_t n;            /* rows to record, the same on every rank */
    int64_t counted;      /* rows that are data, the first ones; may be 0 at the end of an epoch */
    int64_t first_sample; /* position of this rank's first sample */
    int64_t position;     /* of the batch: where rank 0's part begins */
    int64_t n_global;     /* samples of all ranks; the next batch begins at position + n_global */
    int64_t epoch;
    const int64_t *samples; /* (counted): their numbers in the data set; of n mixed sources: number * n + source */
    int n_fields;
    const fsdp_field *fields;
    void *const *data; /* (n_fields): (n, shape...) each */
} fsdp_batch;

/* Starts its threads. Borrows world and data set until freed. Every rank of the world makes one with the same
 * configuration; the calls wait for nobody. */
FSDP_API fsdp_status fsdp_loader_new(fsdp_world *w, fsdp_dataset *d, const fsdp_loader_config *config,
                                     fsdp_loader **out);
/* Stops and joins the threads; NULL is legal. */
FSDP_API void fsdp_loader_free(fsdp_loader *l);

/* The next batch, which stays until the next call on the loader; NULL in *out at the end of an epoch (stop_at_epoch;
 * the call after begins the next one) and at `end`. A sample that cannot be read is an error here, at its turn. */
FSDP_API fsdp_status fsdp_loader_next(fsdp_loader *l, fsdp_batch **out);

/* From now on every batch that fsdp_loader_next gives out tells `m` which samples it holds (fsdp_set_position) and how
 * many rows count (fsdp_set_counted_rows), so dropout and batch norm are the same on any number of ranks. Attach the
 * loader of the training data only. NULL detaches, which must come before the model is freed if the loader goes on. */
FSDP_API void fsdp_loader_attach(fsdp_loader *l, fsdp_model *m);

/* Samples that all ranks have been given together: where a resumed run goes on. */
FSDP_API int64_t fsdp_loader_position(const fsdp_loader *l);
/* What a loader has given out of source `index`, in the order of the names; one source where nothing is mixed. */
typedef struct fsdp_source_use {
    size_t size;
    double share;    /* of the samples, as drawn: the weight to the nearest 65536th */
    int64_t samples; /* of all ranks, up to the position */
    int64_t length;  /* samples of an epoch; 0: not known yet */
    double padding;  /* best fit: the part of tokens that only fills samples up, of what was packed so far; else 0 */
} fsdp_source_use;

#define FSDP_SOURCE_USE_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(fsdp_source_use)                                                                                \
    }

/* Fills *use, which begins as FSDP_SOURCE_USE_INIT. An index past the last source is FSDP_ERR_INPUT. */
FSDP_API fsdp_status fsdp_loader_source(const fsdp_loader *l, int index, fsdp_source_use *use);

/* Goes on at `position`, from any position, also one that a world of another size reached. In a stream, what lies
 * before a place that was not read yet is tokenized on the way; a state (<fsdp/state.h>) remembers where its
 * checkpoints stood. */
FSDP_API fsdp_status fsdp_loader_seek(fsdp_loader *l, int64_t position);

/* The array of a field, (n, shape...); NULL where there is no such field. */
FSDP_API void *fsdp_batch_field(const fsdp_batch *b, const char *name);
/* The same as an input of a recording; a name that does not exist is the tape's error. */
FSDP_API fsdp_tensor *fsdp_batch_input(fsdp_tape *t, const fsdp_batch *b, const char *name);

#ifdef __cplusplus
}
#endif
#endif
