/* What template_builtins.c and template_methods.c share: tables by name, arguments, text that is gathered. */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_BUILTINS_INTERNAL_H
#define TOKENIZER_TEMPLATE_TEMPLATE_BUILTINS_INTERNAL_H

#include "base/error.h"
#include "tokenizer/template/template_builtins.h"

typedef fsdp_status (*builtin)(const builtin_room *room, value subject, const arguments *args, value *out);

typedef struct named_builtin {
    const char *name;
    builtin call;
} named_builtin;

static inline builtin builtin_find(const named_builtin *table, value name)
{
    for (; table->name != NULL; table++)
        if (value_equal(name, value_literal(table->name)))
            return table->call;
    return NULL;
}

/* The index-th argument, or the one called `name`; undefined where there is neither. */
static inline value argument(const arguments *args, size_t index, const char *name)
{
    value v = {.kind = VALUE_UNDEFINED};
    if (index < args->n)
        return args->items[index];
    value_get(args->named, value_literal(name), &v);
    return v;
}

static inline fsdp_status want(value v, value_kind kind, const char *what)
{
    if (v.kind == kind)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s must be %s, it is %s", what, value_kind_name(kind), value_kind_name(v.kind));
}

/* What is gathered in a buffer, as a value; frees the buffer. */
static inline fsdp_status finish(const builtin_room *room, fsdp_status status, text_buffer *b, value *out)
{
    if (status == FSDP_OK)
        status = value_copy_string(room->arena, b->data, b->bytes, out);
    text_free(b);
    return status;
}

/* items() of a dict, and str.join with the rules of the join filter. */
fsdp_status builtin_dict_items(const builtin_room *room, value d, const arguments *args, value *out);
fsdp_status builtin_join(const builtin_room *room, value separator, value list, value attribute, bool only_strings,
                         value *out);

#endif
