/* Thrift's compact protocol, as far as Parquet's metadata needs it: a cursor over a struct's fields. Nothing is
 * trusted; a cursor that met nonsense stays failed and gives zeros. */
#ifndef FORMAT_TABLE_THRIFT_H
#define FORMAT_TABLE_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct thrift {
    const uint8_t *at, *end;
    bool failed;
    int depth;
} thrift;

typedef enum thrift_type {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_I8,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT,
} thrift_type;

/* A field of the struct that is read; the caller takes its value or skips it. */
typedef struct thrift_field {
    int id; /* of the field before, until it is read: begin with 0 */
    thrift_type type;
} thrift_field;

/* The next field; false at the end of the struct, or when reading failed. */
bool thrift_next(thrift *t, thrift_field *field);
int64_t thrift_int(thrift *t, thrift_type type); /* of any width; fails where `type` is another */
bool thrift_bool(thrift *t, thrift_type type);
const char *thrift_binary(thrift *t, thrift_type type, size_t *bytes); /* in the input */
/* A list's length; every element takes a byte at least, so that it cannot exceed the input. */
size_t thrift_list(thrift *t, thrift_type type, thrift_type *element);
void thrift_skip(thrift *t, thrift_type type);

#endif
