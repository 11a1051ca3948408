/* Post-processors of tokenizer.json: the special tokens that stand around the ids of a text. */
#ifndef TOKENIZER_POSTPROCESSOR_H
#define TOKENIZER_POSTPROCESSOR_H

#include "base/json.h"
#include "tokenizer/text/text_buffer.h"

/* Pieces in order: an id, or POSTPROCESSOR_TEXT where the text's ids go. Empty: the text alone. */
typedef struct postprocessor {
    id_vector pieces;
} postprocessor;

#define POSTPROCESSOR_TEXT (-1)

/* `object` may be NULL or null. */
fsdp_status postprocessor_create(const char *name, const json_t *object, postprocessor *out);
void postprocessor_free(postprocessor *p);

#endif
