/* Writes pickles of protocol 2, value by value, into memory: what torch.load(weights_only=True) reads. A failed
 * allocation is remembered and told at the end, so that writing reads like the value it writes. */
#ifndef FORMAT_TORCH_PICKLE_WRITER_H
#define FORMAT_TORCH_PICKLE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "format/torch/names.h"

typedef struct pickle_writer {
    char *data;
    size_t bytes, capacity;
    bool failed;
} pickle_writer;

void pickle_begin(pickle_writer *w);       /* on a zeroed one, or one that is to be used again */
fsdp_status pickle_end(pickle_writer *w);  /* FSDP_ERR_MEMORY when anything before failed */
void pickle_writer_free(pickle_writer *w); /* legal on a zeroed one */

void pickle_put(pickle_writer *w, const char *opcodes); /* as they stand: "(" "t" "}" "u" "R" "b" "N" ")" "]" "e" */
void pickle_put_all(pickle_writer *w, const pickle_writer *other); /* what another has, which failed where it did */
void pickle_put_text(pickle_writer *w, const char *text);
void pickle_put_int(pickle_writer *w, int64_t value);
void pickle_put_float(pickle_writer *w, double value);
void pickle_put_bool(pickle_writer *w, bool value);
void pickle_put_global(pickle_writer *w, const char *module, const char *name);
void pickle_put_size(pickle_writer *w, const int64_t *values, int n); /* torch.Size */
/* torch.float32, torch.FloatStorage: a dotted name. */
void pickle_put_dotted(pickle_writer *w, const char *name);
/* A row-major tensor over the whole storage `key` of the archive. */
void pickle_put_tensor(pickle_writer *w, const torch_element *element, const char *key, int n_dims,
                       const int64_t *shape);

#endif
