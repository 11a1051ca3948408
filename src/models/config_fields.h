/* The fields of config.json, by family: one row for each that is known, which says whether it is read into our struct,
 * accepted only where it changes nothing, or without effect on what is computed. A field that changes the numbers is
 * therefore implemented or refused by name; one that no row knows is named in a warning. */
#ifndef MODELS_CONFIG_FIELDS_H
#define MODELS_CONFIG_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

typedef enum field_kind {
    FIELD_SIZE,     /* read: int64_t, from 1 to 2^31 */
    FIELD_FLOAT,    /* read: float, finite */
    FIELD_SWITCH,   /* read: bool */
    FIELD_CODE,     /* read by config.c: it depends on other fields */
    FIELD_ONLY,     /* not implemented: `accepts` is true of values that change nothing, others are refused */
    FIELD_NO_EFFECT /* nothing that is computed here depends on it */
} field_kind;

typedef struct config_field {
    const char *name; /* NULL ends a table */
    field_kind kind;
    size_t offset; /* of FIELD_SIZE, _FLOAT and _SWITCH in the family's struct */
    bool required; /* absent is an error; otherwise absent and null leave the struct as it is */
    bool (*accepts)(const json_t *value);
    const char *wanted; /* FIELD_ONLY: what `accepts` takes, in words */
} config_field;

/* Reads the rows that the struct at `config` has. */
fsdp_status fields_read(const char *name, const json_t *object, const config_field *table, void *config);

/* Refuses what is not implemented, by all of `tables` (NULL ends the list). Fields that no row knows are named in one
 * warning when `warns`. `inside` is the object's own name with a dot, "" for the whole file. */
fsdp_status fields_check(const char *name, const char *inside, const json_t *object, const config_field *const *tables,
                         bool warns);

/* Sets the fields of the struct in `object`: all, or with `before` those that differ from it. False: out of memory. */
bool fields_write(json_t *object, const config_field *table, const void *config, const void *before);

enum { FIELD_TEXT = 64 };
/* A value for a message: JSON in ASCII, cut to fit. Returns `out`. */
const char *field_text(const json_t *value, char out[FIELD_TEXT]);

/* Rows of every family that transformers knows: its own bookkeeping, and how text is generated. */
extern const config_field common_fields[];
extern const config_field decoder_fields[], llama_fields[], mistral_fields[], qwen2_fields[], qwen3_fields[];
extern const config_field gemma3_fields[], gpt2_fields[], phi3_fields[], rope_fields[];
extern const config_field t5_fields[], cnn_fields[], mlp_fields[];

#endif
