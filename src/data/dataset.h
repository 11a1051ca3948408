/* Data sets from inside (fsdp/data.h is the public face): what every kind provides to dataset.c. Which samples come
 * when is sampler.h's, batches are loader.h's. */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include <fsdp/data.h>

#include "data/source.h"

typedef struct dataset_source dataset_source;

/* A kind's functions; `read` may be called from several threads at once. */
typedef struct dataset_table {
    fsdp_status (*read)(const dataset_source *s, int64_t index, void *const *fields);
    void (*free)(dataset_source *s);
} dataset_table;

/* The first member of every kind's own struct. Kinds that the library reads leave the fields to dataset.c. */
struct dataset_source {
    const dataset_table *table;
    fsdp_dataset_info info;
    fsdp_field fields[FSDP_MAX_FIELDS];
};

/* Where the fields of the kinds stand that the library reads. */
enum { TEXT_IDS, TEXT_LABELS, TEXT_FIELDS, TEXT_DOCUMENTS = TEXT_FIELDS, TEXT_POSITIONS, TEXT_ALL_FIELDS };
enum { PAIRS_IDS, PAIRS_MASK, PAIRS_DECODER_IDS, PAIRS_LABELS, PAIRS_FIELDS };
enum { IMAGES_PIXELS, IMAGES_CLASSES, IMAGES_FIELDS };

fsdp_status dataset_tokens_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out);
fsdp_status dataset_steps_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out);
fsdp_status dataset_pairs_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out);
/* Whether the files are conversations: said so, or their first record has "messages" and no text. */
fsdp_status dataset_chat_is(const source_list *files, const fsdp_dataset_config *options, bool *is);
fsdp_status dataset_chat_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out);
fsdp_status dataset_images_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out);

/* Text that is tokenized while it is read: samples come from stream.h, through a loader. */
typedef struct stream_set stream_set;
fsdp_status dataset_stream_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out);
const stream_set *dataset_stream_set(const dataset_source *source); /* NULL: not a stream */

/* Sources that are drawn by weight: n data sets, which the mix owns, and who is drawn when (mix.h). */
typedef struct mix mix;
fsdp_status dataset_mix_open(const fsdp_dataset_config *options, dataset_source **out);
int dataset_mix_parts(const dataset_source *source, fsdp_dataset *const **parts, const mix **order); /* 0: no mix */

const dataset_source *dataset_source_of(const fsdp_dataset *d);

/* A user's own. The context stays the caller's until it is taken: from then on freeing the source closes it. */
fsdp_status dataset_own_open(const fsdp_dataset_source *source, dataset_source **out);
void dataset_own_take_context(dataset_source *s, void (*close)(void *context));

/* labels[i] = ids[i + 1], and nothing after the last. */
void dataset_label_next(const int32_t *ids, int64_t width, int32_t *labels);

/* Values and bytes of a field in one sample. */
int64_t field_numel(const fsdp_field *f);
size_t field_bytes(const fsdp_field *f);

#endif
