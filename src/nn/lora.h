/* Low-rank adapters in a module tree: which layers get one, and the product of a layer that may have one. */
#ifndef NN_LORA_H
#define NN_LORA_H

#include <fsdp/lora.h>

#include "nn/module.h"

/* Puts adapters beside the linear layers that config->targets names, and freezes all else. On success config->targets
 * are the names that peft would find the same layers by. */
fsdp_status lora_apply(fsdp_module *root, fsdp_lora_config *config);

/* x (..., inputs) -> (..., outputs) by the group that `weight` heads, which is stored as weight->linear says; bias and
 * residual may be NULL. Members with an adapter have its product added to their columns. */
fsdp_tensor *lora_project(fsdp_tape *t, fsdp_tensor *x, fsdp_parameter *weight, fsdp_parameter *bias,
                          fsdp_tensor *residual);

#endif
