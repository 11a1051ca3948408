/* Names of data sets and models: a path, or a hub name ("allenai/c4") that is looked up on this machine. Nothing is
 * downloaded (that is fsdp/fetch.h's): what is not here is an error that says where it was looked for and what would
 * fetch it. */
#ifndef FORMAT_HUB_HUB_H
#define FORMAT_HUB_HUB_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

typedef enum hub_kind { HUB_DATASET, HUB_MODEL } hub_kind;

/* Whether `name` is spelled as the hub's names are: "org/name" or "name". */
bool hub_is_name(const char *name);

/* Whether `name` can only be a name of the hub: it looks like one, and neither is a path nor lies under $FSDP_DATA. */
bool hub_is_remote(const char *name);

/* Where the Hugging Face libraries keep their cache. */
void hub_cache_folder(char *out, size_t bytes);

/* The path that `name` stands for: itself where it exists, else under $FSDP_DATA, else in the Hugging Face cache.
 * `config` (may be NULL) names the data set's configuration, a folder inside it. malloc'd. */
fsdp_status hub_find(hub_kind kind, const char *name, const char *config, char **path);

#endif
