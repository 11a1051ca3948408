/* JSON as values of jansson, with errors in our form: the file, the line, the field. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include <fsdp/status.h>

#include "base/text/json_parser.h"

/* `name` is what errors call the text (a path). The caller owns *out (json_decref). Duplicate keys are errors. */
fsdp_status json_parse(const char *name, const char *text, size_t bytes, json_t **out);
fsdp_status json_read_file(const char *path, json_t **out); /* a regular file of at most 256 MiB */
/* The same with other flags of json_parser.h than JSON_UNIQUE_KEYS. */
fsdp_status json_parse_as(const char *name, const char *text, size_t bytes, unsigned flags, json_t **out);
fsdp_status json_read_file_as(const char *path, unsigned flags, json_t **out);

fsdp_status json_write_file(const char *path, const json_t *value); /* atomic, indented, keys in their order */

/* Fields of an object, with the file and field named in the error when absent or of another type. */
fsdp_status json_get_int(const char *name, const json_t *object, const char *key, int64_t *out);
fsdp_status json_get_number(const char *name, const json_t *object, const char *key, double *out);
fsdp_status json_get_string(const char *name, const json_t *object, const char *key, const char **out);

/* The same with a default: absent or null leaves *out as it is, another type is an error. */
fsdp_status json_opt_int(const char *name, const json_t *object, const char *key, int64_t *out);
fsdp_status json_opt_number(const char *name, const json_t *object, const char *key, double *out);
fsdp_status json_opt_bool(const char *name, const json_t *object, const char *key, bool *out);
fsdp_status json_opt_string(const char *name, const json_t *object, const char *key, const char **out);

#endif
