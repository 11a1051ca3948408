/* Batches ahead of time: threads fill a ring of them in the order of the sampler, the training loop takes them. Where a
 * run stands is one number, the global position; starting at it, with any number of ranks, goes on exactly there. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "data/dataset.h"
#include "data/sampler.h"

typedef struct loader_config {
    size_t size; /* sizeof(loader_config) */
    int rank, world_size;
    int64_t global_batch; /* samples of all ranks together in one batch */
    uint64_t seed;
    bool shuffle;       /* ignored for data sets that are ordered */
    bool stop_at_epoch; /* the last batch of an epoch is smaller, instead of going on into the next */
    int64_t position;   /* where to start */
    int64_t end;        /* no samples from here on; 0: without end */
    int n_threads;      /* at least 1 */
    int n_prefetch;     /* batches ahead, at least 1 */
    double timeout;     /* seconds that loader_next waits at most */
} loader_config;

#define LOADER_CONFIG_INIT                                                                                             \
    {                                                                                                                  \
        .size = sizeof(loader_config), .world_size = 1, .global_batch = 1, .shuffle = true, .n_threads = 1,            \
        .n_prefetch = 4, .timeout = 600                                                                                \
    }

/* A rank's part of a global batch. Rows from n_rows up to max_rows are zeros, their labels DATASET_IGNORE. */
typedef struct loader_batch {
    int64_t position; /* of the global batch */
    int64_t n_global; /* its samples; the next one starts at position + n_global */
    int64_t epoch;
    int64_t first;    /* position of this rank's first sample */
    int64_t n_rows;   /* samples of this rank, 0 in the uneven end of an epoch at worst */
    int64_t max_rows; /* rows that the arrays have: the most that any batch gives this world */
    int64_t *samples; /* (n_rows) numbers in the data set */
    int32_t *ids, *labels, *mask, *decoder_ids; /* (max_rows, width or target_width), NULL where the kind has none */
    float *pixels;                              /* (max_rows, channels, height, width) */
    int32_t *classes;                           /* (max_rows) */
} loader_batch;

typedef struct loader loader;

/* Borrows the data set until freed. */
fsdp_status loader_create(const dataset *d, const loader_config *config, loader **out);
/* Stops and joins the threads; NULL is legal. */
void loader_free(loader *l);

/* The next batch, which stays until the next call; NULL in *out after the end. A sample that cannot be read is an
 * error here, at its turn. */
fsdp_status loader_next(loader *l, const loader_batch **out);

#endif
