/* Loaders from inside (fsdp/data.h is the public face): threads fill a ring of batches in the order of the sampler, the
 * training loop takes them. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "data/dataset.h"
#include "data/sampler.h"

/* What fsdp_loader_new does, for rank `rank` of a world that need not be open. */
fsdp_status loader_create(const fsdp_dataset *d, int rank, int world_size, const fsdp_loader_config *config,
                          fsdp_loader **out);

#endif
