/* What a template can call: filters, tests, methods of strings and dicts, functions. An unknown one is refused by name.
 * Errors say what, the caller adds where. */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_BUILTINS_H
#define TOKENIZER_TEMPLATE_TEMPLATE_BUILTINS_H

#include "tokenizer/template/template_value.h"

/* Arguments of a call: by place, then by name. */
typedef struct arguments {
    const value *items;
    size_t n;
    const value_dict *named; /* never NULL */
} arguments;

/* What a call needs beside its arguments. */
typedef struct builtin_room {
    arena *arena;
    int64_t now; /* for strftime_now, seconds since 1970; 0: the clock's */
} builtin_room;

fsdp_status builtin_filter(const builtin_room *room, value name, value subject, const arguments *args, value *out);
fsdp_status builtin_test(const builtin_room *room, value name, value subject, const arguments *args, bool *out);
fsdp_status builtin_method(const builtin_room *room, value object, value name, const arguments *args, value *out);
/* *known is false for a name that is no function. */
fsdp_status builtin_function(const builtin_room *room, value name, const arguments *args, bool *known, value *out);

/* a operator b, by one of == != < <= > >=. */
fsdp_status builtin_compare(const char *operator, value a, value b, bool *out);

/* a.name or a["name"] of a dict or of anything else: undefined where it has none, an error where `a` is undefined. */
fsdp_status builtin_attribute(value object, value name, value *out);

/* The items that a loop over the value sees, as a list. */
fsdp_status builtin_items(const builtin_room *room, value v, value *list);

/* Whether `item` is in a list, dict or string. */
fsdp_status builtin_contains(value container, value item, bool *out);

#endif
