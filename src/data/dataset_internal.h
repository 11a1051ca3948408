/* What every kind of data set provides to dataset.c. */
#ifndef DATA_DATASET_INTERNAL_H
#define DATA_DATASET_INTERNAL_H

#include "data/dataset.h"

typedef struct dataset_source dataset_source;

/* A kind's functions; `read` may be called from several threads at once. */
typedef struct dataset_table {
    fsdp_status (*read)(const dataset_source *s, int64_t index, const dataset_row *row);
    void (*free)(dataset_source *s);
} dataset_table;

/* The first member of every kind's own struct. */
struct dataset_source {
    const dataset_table *table;
    dataset_info info;
};

fsdp_status dataset_tokens_open(const source_list *files, const dataset_options *options, dataset_source **out);
fsdp_status dataset_steps_open(const source_list *files, const dataset_options *options, dataset_source **out);
fsdp_status dataset_pairs_open(const source_list *files, const dataset_options *options, dataset_source **out);
fsdp_status dataset_images_open(const source_list *files, const dataset_options *options, dataset_source **out);

/* labels[i] = ids[i + 1], and nothing after the last. */
void dataset_label_next(const int32_t *ids, int64_t width, int32_t *labels);

#endif
