/* A LoRA adapter in host memory: pairs of small matrices by the names of the layers they belong to. Read from and
 * written to folders as the peft library has them (adapter_config.json, adapter_model.safetensors), and added to the
 * weights of those layers. */
#ifndef FORMAT_WEIGHTS_ADAPTER_H
#define FORMAT_WEIGHTS_ADAPTER_H

#include "format/weights/adapter_config.h"

typedef struct adapter_pair {
    char *layer; /* "model.layers.0.self_attn.q_proj" */
    int64_t inputs, outputs;
    float *a, *b; /* (rank, inputs), (outputs, rank) */
} adapter_pair;

typedef struct adapter {
    adapter_config config;
    int n_pairs;
    adapter_pair *pairs; /* by name of the layer */
} adapter;

/* The caller frees *out. An empty one, to which pairs are added. */
fsdp_status adapter_create(const adapter_config *config, adapter **out);
void adapter_free(adapter *a); /* NULL is legal */
/* Copies the layer's name; a and b have room for their values. Pointers to pairs end with the next call. */
fsdp_status adapter_add_pair(adapter *a, const char *layer, int64_t inputs, int64_t outputs, adapter_pair **out);

/* The caller frees *out. Tensors without a partner, of other shapes or of another kind are named. */
fsdp_status adapter_open(const char *folder, adapter **out);
/* The folder is made where absent; one that holds anything but an adapter is refused. */
fsdp_status adapter_write(const adapter *a, const char *folder, const char *task, const char *base);

/* Of a tensor's name: the layer whose adapter it is of ("X" of "X.lora_A.weight"), and which of the two. False: it is
 * of none. */
bool adapter_layer_of(const char *tensor, size_t *length, bool *is_b);
/* The pair for the layer whose weight that is ("X" of "X.weight"); NULL: none. */
const adapter_pair *adapter_find(const adapter *a, const char *weight);
/* values[i] += element first+i of scale B A, laid out as the weight (2 dimensions) is. */
fsdp_status adapter_add_product(const adapter *a, const adapter_pair *pair, const int64_t shape[2], int64_t first,
                                int64_t n, float *values);

#endif
