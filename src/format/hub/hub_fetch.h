/* Fetches models, tokenizers and data sets from the Hugging Face hub into the cache that hub.h looks into, in the
 * layout of the Hugging Face libraries: blobs by hash, snapshots of links to them, refs that name a snapshot. A
 * download that was cut goes on where it stopped, every file is checked by its size and hash before it gets its name,
 * and one process of a host fetches while the others wait.
 *
 * HF_ENDPOINT, HF_TOKEN (or the file HF_HOME/token), HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT mean what they
 * mean there. The token goes to the endpoint's own host only. */
#ifndef FORMAT_HUB_HUB_FETCH_H
#define FORMAT_HUB_HUB_FETCH_H

#include "format/hub/hub.h"

typedef enum hub_part { HUB_ALL, HUB_TOKENIZER } hub_part; /* of a model: all that is read, or its tokenizer only */

/* Afterwards hub_find finds `name`, complete. `config` (may be NULL) names the folder of a data set that is wanted.
 * Where the hub cannot be reached, what the cache has is used, with a warning. */
fsdp_status hub_fetch(hub_kind kind, const char *name, const char *config, hub_part part);

#endif
