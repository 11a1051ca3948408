/* Tokens that a folder's tokenizer_config.json or special_tokens_map.json lists and its tokenizer.json may lack. */
#ifndef TOKENIZER_CONFIG_TOKENS_H
#define TOKENIZER_CONFIG_TOKENS_H

#include <fsdp/status.h>

#include "base/json.h"

/* Appends them to "added_tokens" of `root`, a tokenizer.json, in the order in which transformers adds them. *appended
 * is a new array of what was added, for the caller to release. */
fsdp_status config_tokens_add(const char *folder, json_t *root, json_t **appended);

#endif
