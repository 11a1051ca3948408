/* Reads Python pickles (protocols 2 to 5) as data. Nothing is imported, called or run: a call in the file becomes a
 * value that says which of the known names was called with what, and its reader decides what that means. A name that
 * is not in the caller's table is refused, and so are the opcodes that torch.save has no use for.
 *
 * Memory is bounded by the input: an opcode makes one value at most, counts are compared with the bytes that are there,
 * and the memo grows by one entry at a time. Values may share parts and even contain themselves, as in Python; whoever
 * walks them bounds the walk. */
#ifndef FORMAT_TORCH_PICKLE_H
#define FORMAT_TORCH_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/arena.h"

enum {
    PICKLE_CALLED = 1 << 0,  /* may be called: REDUCE, NEWOBJ */
    PICKLE_IS_DICT = 1 << 1, /* a call of it is a dict */
    PICKLE_IS_LIST = 1 << 2, /* a call of it is the list that it is given: set, frozenset */
    PICKLE_STATE = 1 << 3,   /* what its call gives may be given a state: BUILD */
};

/* A name that files may use. */
typedef struct pickle_global {
    const char *name; /* "collections.OrderedDict" */
    unsigned uses;
    int tag; /* the caller's */
} pickle_global;

typedef enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT,
    PICKLE_TEXT,
    PICKLE_BYTES,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,
    PICKLE_GLOBAL,     /* a known name by itself: a class, an element type */
    PICKLE_OBJECT,     /* what a call of a known name would give */
    PICKLE_PERSISTENT, /* something outside the pickle, by its id */
} pickle_kind;

typedef struct pickle_value pickle_value;

struct pickle_value {
    pickle_kind kind;
    union {
        int64_t integer; /* BOOL too */
        double number;
        struct {
            const char *bytes; /* TEXT: without NUL inside, one after it */
            size_t n_bytes;
        };
        struct {
            pickle_value **items; /* DICT: keys and values in turn */
            size_t n_items;
            size_t capacity;
        };
        struct {
            const pickle_global *global; /* GLOBAL, OBJECT */
            pickle_value *arguments;     /* OBJECT: a tuple */
            pickle_value *state;         /* OBJECT: NULL when it was given none */
        };
        pickle_value *id;
    };
};

/* The first pickle in `data`; its values lie in `memory` and borrow nothing. `globals` ends with a NULL name. `name`
 * stands for the file in messages. *used (may be NULL): bytes that the pickle takes. */
fsdp_status pickle_read(const char *name, const void *data, size_t bytes, const pickle_global *globals, arena *memory,
                        pickle_value **out, size_t *used);

/* The value of a text key; NULL: absent, or `dict` is NULL or no dict. The last one counts, as in Python. */
pickle_value *pickle_find(const pickle_value *dict, const char *key);
/* NULL: `tuple` is no tuple or list, or shorter. */
pickle_value *pickle_item(const pickle_value *tuple, size_t index);
bool pickle_is(const pickle_value *value, pickle_kind kind); /* false for NULL */

/* "a tuple", for messages; "nothing" for NULL. */
const char *pickle_kind_text(const pickle_value *value);

#endif
