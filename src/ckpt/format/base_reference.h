/* What a checkpoint of adapters says of the frozen base that they were trained beside: `base` of the manifest's extra.
 */
#ifndef CKPT_FORMAT_BASE_REFERENCE_H
#define CKPT_FORMAT_BASE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

#define BASE_KEY "base"

typedef struct base_reference {
    const char *name;      /* a folder, a file or a name of the hub */
    uint64_t digest;       /* of its values (ckpt/load/base.h) */
    const json_t *tensors; /* their names in the model */
} base_reference;

/* False: the checkpoint holds everything. *out borrows from extra, which may be NULL. */
bool base_reference_read(const json_t *extra, base_reference *out);
/* What is wrong with `base` of extra; NULL: nothing. */
const char *base_reference_fault(const json_t *extra);
/* What `base` of extra is to be; NULL when out of memory. Takes `tensors`. */
json_t *base_reference_json(const char *name, uint64_t digest, json_t *tensors);

#endif
