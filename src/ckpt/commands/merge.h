/* The adapters that an export adds to the weights they belong to: those among a checkpoint's own tensors, and those in
 * folders of peft's. */
#ifndef CKPT_COMMANDS_MERGE_H
#define CKPT_COMMANDS_MERGE_H

#include "ckpt/load/source.h"
#include "format/weights/adapter.h"

typedef struct merge {
    int n;
    adapter **list;
} merge;

/* `model` is the source's config.json, which says whether there are adapters among its tensors; may be NULL. `folders`
 * are further ones, separated by commas; may be NULL. Every layer that they name is in the source. */
fsdp_status merge_open(const ckpt_source *source, const json_t *model, const char *folders, merge *out);
/* That the layers of the checkpoint's own adapters are there, its base's included. */
fsdp_status merge_check_own(const merge *m, const ckpt_source *source, const json_t *model);
void merge_close(merge *m);

/* The tensor is part of an adapter, not of the model below it. */
bool merge_hides(const merge *m, const source_tensor *tensor);
/* Elements first .. first+n-1 of the tensor: what the adapters make of them. */
fsdp_status merge_add(const merge *m, const source_tensor *tensor, int64_t first, int64_t n, float *values);

/* The checkpoint's own adapter; NULL: it has none. */
const adapter *merge_own(const merge *m, const json_t *model);

#endif
