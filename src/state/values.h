/* A caller's own named values, in its memory: to JSON for a checkpoint, and back. */
#ifndef STATE_VALUES_H
#define STATE_VALUES_H

#include <fsdp/status.h>

#include "base/json.h"

typedef enum value_kind { VALUE_NUMBER, VALUE_INTEGER, VALUE_BLOB } value_kind;

typedef struct named_value {
    char *name;
    value_kind kind;
    void *data; /* double, int64_t, or bytes: the caller's */
    size_t bytes;
} named_value;

typedef struct value_list {
    named_value *values;
    int n;
} value_list;

/* FSDP_ERR_INPUT for a name that is taken, empty or not UTF-8, or too many bytes. */
fsdp_status value_list_add(value_list *list, const char *name, value_kind kind, void *data, size_t bytes);
void value_list_free(value_list *list);

/* An object with a member per value; NULL when out of memory. The caller owns it. */
json_t *value_list_json(const value_list *list);
/* Every value of the list is there and of its kind; those that the list lacks are named in a warning. `path` is what
 * messages call the checkpoint. Changes nothing. */
fsdp_status value_list_check(const value_list *list, const char *path, const json_t *object);
/* What was checked, into the caller's memory. */
void value_list_take(const value_list *list, const json_t *object);

#endif
