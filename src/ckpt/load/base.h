/* The frozen base beside which adapters were trained. A checkpoint of adapters may leave it out and refer to it
 * (ckpt/format/base_reference.h): here it is found, joined with the checkpoint, and told from others. */
#ifndef CKPT_LOAD_BASE_H
#define CKPT_LOAD_BASE_H

#include "ckpt/format/base_reference.h"
#include "ckpt/load/source.h"

/* Of elements first .. first + n - 1 of a tensor. Digests of parts add up (modulo 2^64) to that of the whole, however
 * it is cut, and those of tensors to that of a model. Not for secrets: it tells models apart. */
uint64_t base_digest(const char *tensor, int64_t first, int64_t n, const float *values);

/* False: the checkpoint holds everything, or is none of ours. */
bool base_refers(const ckpt_source *source, base_reference *out);

/* Makes the source whole: the base's tensors, under the model's names, beside its own. `path` says where the base is
 * now; NULL: under its name. Nothing happens to a source that refers to none. Values are not compared. */
fsdp_status base_join(ckpt_source *source, const char *path);
/* Reads all of a base that was joined: FSDP_ERR_INPUT when it is another than that of training. */
fsdp_status base_verify(const ckpt_source *source);
/* The error for that: `path` refers to a base that has not this digest. */
fsdp_status base_is_another(const char *path, const base_reference *reference, uint64_t digest);

#endif
