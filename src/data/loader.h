/* Loaders from inside (fsdp/data.h is the public face): threads fill a ring of batches in the order of the sampler, the
 * training loop takes them. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include <jansson.h>

#include "data/dataset.h"
#include "data/sampler.h"

/* What fsdp_loader_new does, for rank `rank` of a world that need not be open. */
fsdp_status loader_create(const fsdp_dataset *d, int rank, int world_size, const fsdp_loader_config *config,
                          fsdp_loader **out);

/* What a checkpoint keeps of the data beside the position; NULL in *out: nothing. And the other way: goes on at
 * `position` as the checkpoint `path` described it (NULL: it did not), or says what is different now. */
fsdp_status loader_describe(const fsdp_loader *l, json_t **out);
fsdp_status loader_restore(fsdp_loader *l, const char *path, const json_t *described, int64_t position);

/* Samples of an epoch; FSDP_ENDLESS: not known yet. */
int64_t loader_epoch_samples(const fsdp_loader *l);

#endif
