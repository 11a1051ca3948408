/* JSON text to jansson's values. Of our own because people's files hold what jansson refuses: integers of any size,
 * keys with NULs in them, and what Python's json writes beyond the standard. */
#ifndef BASE_TEXT_JSON_PARSER_H
#define BASE_TEXT_JSON_PARSER_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

enum {
    JSON_UNIQUE_KEYS = 1, /* a key that an object has twice is an error; otherwise the last one counts */
    /* What Python's json reads and writes: NaN, Infinity and numbers beyond double precision become null; half of a
     * surrogate pair (\ud800) stays in the string as the three bytes that UTF-8 would give it, which are not UTF-8:
     * whoever uses the string checks it. Without this, both are errors. */
    JSON_AS_PYTHON = 2,
    /* Fractions are rounded as Rust's serde_json does, up to a few units in the last place from the nearest double. */
    JSON_AS_SERDE = 4,
    JSON_WITH_NUL = 8, /* strings and keys may hold \u0000; otherwise that is an error */
};

typedef struct json_fault {
    int line; /* from 1 */
    bool out_of_memory;
    char text[160];
} json_fault;

/* The value that `text` is, blanks around it allowed; NULL with *fault filled in when it is none. Integers beyond 64
 * bits become reals. The caller owns the value. */
json_t *json_parser_read(const char *text, size_t bytes, unsigned flags, json_fault *fault);

#endif
