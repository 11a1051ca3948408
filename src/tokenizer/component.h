/* Reading the components of a tokenizer.json: every one is an object with a "type". */
#ifndef TOKENIZER_COMPONENT_H
#define TOKENIZER_COMPONENT_H

#include <stdbool.h>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/model/vocabulary.h"
#include "tokenizer/pattern.h"

/* A kind of component by name; tables of them end with a NULL type. */
typedef struct component_kind {
    const char *type;
    int kind;
} component_kind;

/* Which of `kinds` the object is. `role` is what errors call it: "normalizer". Another type is FSDP_ERR_UNSUPPORTED. */
fsdp_status component_find(const char *name, const char *role, const json_t *object, const component_kind *kinds,
                           int *kind);

/* Refuses chains that are longer than any tokenizer has a use for. */
fsdp_status component_count(const char *name, const char *role, size_t n_before);

/* The string under `key`, NULs inside allowed. */
fsdp_status component_text(const char *name, const json_t *object, const char *key, const char **text, size_t *bytes);

/* The single character under `key`. */
fsdp_status component_character(const char *name, const json_t *object, const char *key, char out[4], size_t *bytes);

/* The array under `key`. */
fsdp_status component_array(const char *name, const json_t *object, const char *key, json_t **out);

/* The vocabulary under "vocab", an object from tokens to ids; the caller frees it, also on failure. */
fsdp_status component_vocabulary(const char *name, const json_t *object, vocabulary **out);

/* {"String": text} or {"Regex": text} under `key`. */
fsdp_status component_pattern(const char *name, const json_t *object, const char *key, const unicode *u, pattern **out);

#endif
