/* LoRA: low-rank adapters beside the linear layers of a model. The model itself stays as it is; only the adapters are
 * trained, saved and exchanged, in the format of the peft library.
 *
 *     fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
 *     lora.rank = 16, lora.alpha = 32;
 *     FSDP_TRY(fsdp_model_from_config("folder", &net));
 *     FSDP_TRY(fsdp_lora(net, &lora));
 *     FSDP_TRY(fsdp_shard(world, net, &sharding, &model));
 *     FSDP_TRY(fsdp_weights_load(model, "folder", NULL, NULL));
 *     ...
 *     FSDP_TRY(fsdp_adapter_save(model, "adapter", "folder"));
 *
 * An adapted layer computes y = x W^T + scale (dropout(x) A^T) B^T, where scale is alpha / rank, with rslora alpha /
 * sqrt(rank). A begins with values as a linear layer's, B with zeros. */
#ifndef FSDP_LORA_H
#define FSDP_LORA_H

#include <fsdp/module.h>
#include <fsdp/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_LORA_TARGETS 8192

typedef struct fsdp_lora_config {
    size_t size;
    int64_t rank; /* 0: no adapters */
    double alpha;
    double dropout; /* of what goes into A, while training */
    bool rslora;
    /* Which linear layers: names separated by commas, each the last words of a layer's full name ("q_proj",
     * "mlp.down_proj") or a pattern of them ("*_proj"); "all-linear". "": those that peft adapts (q_proj and v_proj of
     * a LLaMA). */
    char targets[FSDP_LORA_TARGETS];
} fsdp_lora_config;

#define FSDP_LORA_CONFIG_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(fsdp_lora_config), .rank = 8, .alpha = 8                                                        \
    }

/* Puts adapters beside the chosen layers (those of fsdp_linear_new, and of the ready-made models all but the head) and
 * freezes everything else. Before fsdp_shard, once. */
FSDP_API fsdp_status fsdp_lora(fsdp_module *net, const fsdp_lora_config *config);

/* What the adapter in a folder of peft's was trained with. A field of adapter_config.json that would change the numbers
 * and is not implemented is refused by name. */
FSDP_API fsdp_status fsdp_adapter_config(const char *folder, fsdp_lora_config *config);
/* The values of that adapter, into a model whose fsdp_lora had its configuration. Collective. */
FSDP_API fsdp_status fsdp_adapter_load(fsdp_model *m, const char *folder);
/* Adds the adapter to the weights of a model that has none; several may be added one after another. Collective. */
FSDP_API fsdp_status fsdp_adapter_merge(fsdp_model *m, const char *folder);
/* Writes the model's adapters as peft does. `base` is what adapter_config.json says of the model below them; may be
 * NULL: the path that its weights were loaded from. The folder is made where absent; one that holds anything but an
 * adapter is refused. Collective. */
FSDP_API fsdp_status fsdp_adapter_save(fsdp_model *m, const char *folder, const char *base);

#ifdef __cplusplus
}
#endif
#endif
