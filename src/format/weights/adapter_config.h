/* adapter_config.json of the peft library: what of it we know, read and written. */
#ifndef FORMAT_WEIGHTS_ADAPTER_CONFIG_H
#define FORMAT_WEIGHTS_ADAPTER_CONFIG_H

#include <fsdp/lora.h>

#include "base/json.h"

/* Where config.json of a checkpoint says which adapters are among its tensors. */
#define ADAPTER_KEY "fsdp_adapter"

typedef struct adapter_config {
    fsdp_lora_config lora; /* targets: names separated by commas; "": an expression, and the weights say which layers */
    bool input_major;      /* peft's fan_in_fan_out: the weights beside the adapters are stored (inputs, outputs) */
} adapter_config;

/* `name` is what errors call the object. A field that has a value and is not implemented is refused by name. */
fsdp_status adapter_config_parse(const char *name, const json_t *object, adapter_config *out);

/* What peft reads. `task` is its task_type ("CAUSAL_LM"), `base` the model's name; both may be NULL. The caller owns
 * the result; NULL: out of memory. */
json_t *adapter_config_json(const adapter_config *config, const char *task, const char *base);

#endif
