/* The interpreter of pickle opcodes: a stack of values with marks, a memo, and a table of opcodes. What is not in the
 * table, or has no function there, is refused by name. */
#include "format/torch/pickle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { MAX_MARKS = 1000 };       /* tuples and dicts being filled at the same time */
enum { MAX_GLOBAL_BYTES = 200 }; /* of a module's name, or of a name in it */
enum { WIDEST_NUMBER = 64 };     /* bytes */
enum { MAX_VALUES = 32 << 20 };  /* of a pickle: a model of a million tensors has fewer */
enum { MAX_NAME_SHOWN = MAX_GLOBAL_BYTES * 2 + 2 };

typedef struct value_list {
    pickle_value **items;
    size_t n, capacity;
} value_list;

typedef struct reader {
    const char *name;
    const uint8_t *begin, *at, *end;
    const pickle_global *globals;
    arena *memory;
    value_list stack, memo;
    size_t marks[MAX_MARKS];
    size_t n_marks, n_values;
    bool stopped;
    const char *opcode; /* being run, for messages */
    const uint8_t *opcode_at;
} reader;

/* ---- Refusals ---- */

static fsdp_status refuse(const reader *r, const char *why)
{
    return error_set(FSDP_ERR_INPUT, "%s: pickle refused at byte %zu (%s): %s", r->name,
                     (size_t)(r->opcode_at - r->begin), r->opcode, why);
}

static fsdp_status out_of_memory(const reader *r)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading its pickle", r->name);
}

/* ---- Input ---- */

static fsdp_status take(reader *r, uint64_t n, const uint8_t **out)
{
    *out = NULL;
    if (n > (uint64_t)(r->end - r->at))
        return refuse(r, "it ends in the middle of a value");
    *out = r->at;
    r->at += n;
    return FSDP_OK;
}

/* A little-endian number of `width` bytes, up to 8. */
static fsdp_status take_number(reader *r, int width, uint64_t *out)
{
    const uint8_t *bytes;
    *out = 0;
    FSDP_TRY(take(r, (uint64_t)width, &bytes));
    for (int i = width - 1; i >= 0; i--)
        *out = *out << 8 | bytes[i];
    return FSDP_OK;
}

/* A line without its newline: the operands of GLOBAL. */
static fsdp_status take_line(reader *r, const char **text, size_t *length)
{
    *text = NULL, *length = 0;
    size_t left = (size_t)(r->end - r->at);
    const uint8_t *newline = memchr(r->at, '\n', left < MAX_GLOBAL_BYTES ? left : MAX_GLOBAL_BYTES);
    if (!newline)
        return refuse(r, "a name without an end");
    *text = (const char *)r->at;
    *length = (size_t)(newline - r->at);
    r->at = newline + 1;
    return FSDP_OK;
}

/* ---- Stack and memo ---- */

static fsdp_status list_add(const reader *r, value_list *list, pickle_value *value)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        pickle_value **items = realloc(list->items, capacity * sizeof *items);
        if (!items)
            return out_of_memory(r);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = value;
    return FSDP_OK;
}

static size_t floor_of(const reader *r)
{
    return r->n_marks ? r->marks[r->n_marks - 1] : 0;
}

static fsdp_status pop(reader *r, pickle_value **out)
{
    *out = NULL;
    if (r->stack.n <= floor_of(r))
        return refuse(r, "it takes a value from an empty stack");
    *out = r->stack.items[--r->stack.n];
    return FSDP_OK;
}

static fsdp_status top(reader *r, pickle_value **out)
{
    FSDP_TRY(pop(r, out));
    r->stack.n++;
    return FSDP_OK;
}

/* The values above the newest mark, which goes; they stay valid until the next push. */
static fsdp_status pop_mark(reader *r, pickle_value ***items, size_t *n)
{
    *items = NULL, *n = 0;
    if (r->n_marks == 0)
        return refuse(r, "it looks for a mark that it did not set");
    size_t first = r->marks[--r->n_marks];
    *items = r->stack.items + first;
    *n = r->stack.n - first;
    r->stack.n = first;
    return FSDP_OK;
}

static fsdp_status push_new(reader *r, pickle_kind kind, pickle_value **out)
{
    *out = NULL;
    if (++r->n_values > MAX_VALUES)
        return refuse(r, "it has too many values");
    pickle_value *value = arena_alloc(r->memory, sizeof *value);
    if (!value)
        return out_of_memory(r);
    value->kind = kind;
    *out = value;
    return list_add(r, &r->stack, value);
}

static fsdp_status push_int(reader *r, int64_t integer)
{
    pickle_value *value;
    FSDP_TRY(push_new(r, PICKLE_INT, &value));
    value->integer = integer;
    return FSDP_OK;
}

/* Adds to a list or dict in place. */
static fsdp_status extend(reader *r, pickle_value *value, pickle_value *const *items, size_t n)
{
    if (n == 0)
        return FSDP_OK;
    if (value->n_items + n > value->capacity) {
        size_t capacity = value->n_items + n > 2 * value->capacity ? value->n_items + n : 2 * value->capacity;
        pickle_value **grown = arena_alloc(r->memory, capacity * sizeof *grown);
        if (!grown)
            return out_of_memory(r);
        if (value->n_items > 0)
            memcpy(grown, value->items, value->n_items * sizeof *grown);
        value->items = grown;
        value->capacity = capacity;
    }
    memcpy(value->items + value->n_items, items, n * sizeof *items);
    value->n_items += n;
    return FSDP_OK;
}

/* `n` values that were on the stack become one. */
static fsdp_status push_many(reader *r, pickle_kind kind, pickle_value *const *items, size_t n)
{
    pickle_value made = {.kind = kind}, *value;
    FSDP_TRY(extend(r, &made, items, n)); /* before the push: items may be the stack's own */
    FSDP_TRY(push_new(r, kind, &value));
    *value = made;
    return FSDP_OK;
}

/* ---- Opcodes: the byte itself is given, for those that differ only in a width ---- */

typedef fsdp_status (*opcode_function)(reader *r, uint8_t code);

static fsdp_status do_proto(reader *r, uint8_t code)
{
    (void)code;
    uint64_t protocol;
    FSDP_TRY(take_number(r, 1, &protocol));
    return protocol >= 2 && protocol <= 5 ? FSDP_OK : refuse(r, "only protocols 2 to 5 are read");
}

static fsdp_status do_frame(reader *r, uint8_t code)
{
    (void)code;
    uint64_t bytes;
    FSDP_TRY(take_number(r, 8, &bytes));
    return bytes <= (uint64_t)(r->end - r->at) ? FSDP_OK : refuse(r, "a frame that is longer than the file");
}

static fsdp_status do_stop(reader *r, uint8_t code)
{
    (void)code;
    r->stopped = true;
    return FSDP_OK;
}

static fsdp_status do_mark(reader *r, uint8_t code)
{
    (void)code;
    if (r->n_marks == MAX_MARKS)
        return refuse(r, "it is nested too deeply");
    r->marks[r->n_marks++] = r->stack.n;
    return FSDP_OK;
}

static fsdp_status do_pop(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *value, **items;
    size_t n;
    if (r->n_marks && r->stack.n == floor_of(r)) /* Python: a POP may take a mark */
        return pop_mark(r, &items, &n);
    return pop(r, &value);
}

static fsdp_status do_pop_mark(reader *r, uint8_t code)
{
    (void)code;
    pickle_value **items;
    size_t n;
    return pop_mark(r, &items, &n);
}

static fsdp_status do_dup(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *value;
    FSDP_TRY(top(r, &value));
    return list_add(r, &r->stack, value);
}

static fsdp_status do_none(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *value;
    return push_new(r, PICKLE_NONE, &value);
}

static fsdp_status do_bool(reader *r, uint8_t code)
{
    pickle_value *value;
    FSDP_TRY(push_new(r, PICKLE_BOOL, &value));
    value->integer = code == 0x88;
    return FSDP_OK;
}

static fsdp_status do_binint(reader *r, uint8_t code)
{
    uint64_t bits;
    FSDP_TRY(take_number(r, code == 'K' ? 1 : code == 'M' ? 2 : 4, &bits));
    return push_int(r, code == 'J' ? (int32_t)(uint32_t)bits : (int64_t)bits);
}

/* Seeds and states of random numbers: larger than any number that is asked for here, so near enough will do. */
static fsdp_status push_wide(reader *r, size_t width)
{
    const uint8_t *bytes;
    pickle_value *value;
    FSDP_TRY(take(r, width, &bytes));
    FSDP_TRY(push_new(r, PICKLE_FLOAT, &value));
    value->number = bytes[width - 1] & 0x80 ? -1 : 0;
    for (size_t i = width; i-- > 0;)
        value->number = value->number * 256 + bytes[i];
    return FSDP_OK;
}

/* Any number of bytes, in two's complement. */
static fsdp_status do_long(reader *r, uint8_t code)
{
    uint64_t width, bits = 0;
    FSDP_TRY(take_number(r, code == 0x8a ? 1 : 4, &width));
    if (width > WIDEST_NUMBER)
        return refuse(r, "a number of more than 512 bits");
    if (width > 8)
        return push_wide(r, (size_t)width);
    FSDP_TRY(take_number(r, (int)width, &bits));
    if (width > 0 && width < 8 && (bits >> (8 * width - 1)))
        bits |= ~UINT64_C(0) << (8 * width);
    return push_int(r, (int64_t)bits);
}

static fsdp_status do_binfloat(reader *r, uint8_t code)
{
    (void)code;
    const uint8_t *bytes;
    uint64_t bits = 0;
    pickle_value *value;
    FSDP_TRY(take(r, 8, &bytes));
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    FSDP_TRY(push_new(r, PICKLE_FLOAT, &value));
    memcpy(&value->number, &bits, sizeof bits);
    return FSDP_OK;
}

/* Python 2 had one kind of string for texts and bytes: there, what has a NUL is bytes. */
static fsdp_status push_bytes(reader *r, pickle_kind kind, int length_width, bool python2)
{
    uint64_t n;
    const uint8_t *bytes;
    pickle_value *value;
    FSDP_TRY(take_number(r, length_width, &n));
    FSDP_TRY(take(r, n, &bytes));
    bool has_nul = kind == PICKLE_TEXT && memchr(bytes, '\0', (size_t)n);
    kind = has_nul && python2 ? PICKLE_BYTES : kind;
    if (has_nul && !python2)
        return refuse(r, "a text with a NUL byte");
    char *copy = arena_alloc(r->memory, (size_t)n + 1);
    if (!copy)
        return out_of_memory(r);
    memcpy(copy, bytes, (size_t)n);
    FSDP_TRY(push_new(r, kind, &value));
    value->bytes = copy;
    value->n_bytes = (size_t)n;
    return FSDP_OK;
}

static fsdp_status do_text(reader *r, uint8_t code)
{
    return push_bytes(r, PICKLE_TEXT,
                      code == 0x8c || code == 'U' ? 1
                      : code == 0x8d              ? 8
                                                  : 4,
                      code == 'U' || code == 'T');
}

static fsdp_status do_bytes(reader *r, uint8_t code)
{
    return push_bytes(r, PICKLE_BYTES, code == 'C' ? 1 : code == 'B' ? 4 : 8, false);
}

static fsdp_status do_empty(reader *r, uint8_t code)
{
    pickle_value *value;
    return push_new(r, code == ')' ? PICKLE_TUPLE : code == '}' ? PICKLE_DICT : PICKLE_LIST, &value);
}

/* TUPLE1, TUPLE2, TUPLE3 */
static fsdp_status do_short_tuple(reader *r, uint8_t code)
{
    size_t n = (size_t)(code - 0x84);
    if (r->stack.n - floor_of(r) < n)
        return refuse(r, "it takes a value from an empty stack");
    r->stack.n -= n;
    return push_many(r, PICKLE_TUPLE, r->stack.items + r->stack.n, n);
}

/* TUPLE, LIST, FROZENSET */
static fsdp_status do_marked(reader *r, uint8_t code)
{
    pickle_value **items;
    size_t n;
    FSDP_TRY(pop_mark(r, &items, &n));
    return push_many(r, code == 't' ? PICKLE_TUPLE : PICKLE_LIST, items, n);
}

static fsdp_status do_dict(reader *r, uint8_t code)
{
    (void)code;
    pickle_value **items;
    size_t n;
    FSDP_TRY(pop_mark(r, &items, &n));
    return n % 2 == 0 ? push_many(r, PICKLE_DICT, items, n) : refuse(r, "a key without a value");
}

static fsdp_status add_to(reader *r, pickle_kind kind, pickle_value *const *items, size_t n)
{
    pickle_value *value;
    FSDP_TRY(top(r, &value));
    if (value->kind != kind)
        return refuse(r, kind == PICKLE_DICT ? "it sets items of something that is no dict"
                                             : "it appends to something that is no list");
    return kind == PICKLE_DICT && n % 2 ? refuse(r, "a key without a value") : extend(r, value, items, n);
}

static fsdp_status do_append(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *item;
    FSDP_TRY(pop(r, &item));
    return add_to(r, PICKLE_LIST, &item, 1);
}

static fsdp_status do_setitem(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *pair[2];
    FSDP_TRY(pop(r, &pair[1]));
    FSDP_TRY(pop(r, &pair[0]));
    return add_to(r, PICKLE_DICT, pair, 2);
}

/* APPENDS, ADDITEMS, SETITEMS */
static fsdp_status do_add_marked(reader *r, uint8_t code)
{
    pickle_value **items;
    size_t n;
    FSDP_TRY(pop_mark(r, &items, &n));
    return add_to(r, code == 'u' ? PICKLE_DICT : PICKLE_LIST, items, n);
}

static fsdp_status do_get(reader *r, uint8_t code)
{
    uint64_t index;
    FSDP_TRY(take_number(r, code == 'h' ? 1 : 4, &index));
    if (index >= r->memo.n || r->memo.items[index] == NULL)
        return refuse(r, "a memo entry that was not made");
    return list_add(r, &r->stack, r->memo.items[index]);
}

/* Picklers count their memo up, Python 2's from 1; an index beyond its end would make memory of a few bytes. */
static fsdp_status do_put(reader *r, uint8_t code)
{
    uint64_t index = r->memo.n;
    pickle_value *value;
    if (code != 0x94)
        FSDP_TRY(take_number(r, code == 'q' ? 1 : 4, &index));
    FSDP_TRY(top(r, &value));
    if (index == 1 && r->memo.n == 0)
        FSDP_TRY(list_add(r, &r->memo, NULL));
    if (index > r->memo.n)
        return refuse(r, "a memo entry far beyond the last");
    if (index == r->memo.n)
        return list_add(r, &r->memo, value);
    r->memo.items[index] = value;
    return FSDP_OK;
}

/* ---- Names and calls ---- */

static fsdp_status push_global(reader *r, const char *module, size_t module_bytes, const char *name, size_t name_bytes)
{
    char full[MAX_NAME_SHOWN];
    pickle_value *value;
    if (module_bytes > MAX_GLOBAL_BYTES || name_bytes > MAX_GLOBAL_BYTES)
        return refuse(r, "a name that is too long");
    snprintf(full, sizeof full, "%.*s.%.*s", (int)module_bytes, module, (int)name_bytes, name);
    for (const pickle_global *global = r->globals; global->name; global++) {
        if (strcmp(global->name, full) != 0)
            continue;
        FSDP_TRY(push_new(r, PICKLE_GLOBAL, &value));
        value->global = global;
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT,
                     "%s: pickle refused at byte %zu (%s): it asks for %s; only tensors and plain containers are read, "
                     "and nothing in the file was run",
                     r->name, (size_t)(r->opcode_at - r->begin), r->opcode, full);
}

static fsdp_status do_global(reader *r, uint8_t code)
{
    (void)code;
    const char *module, *name;
    size_t module_bytes, name_bytes;
    FSDP_TRY(take_line(r, &module, &module_bytes));
    FSDP_TRY(take_line(r, &name, &name_bytes));
    return push_global(r, module, module_bytes, name, name_bytes);
}

static fsdp_status do_stack_global(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *name, *module;
    FSDP_TRY(pop(r, &name));
    FSDP_TRY(pop(r, &module));
    if (name->kind != PICKLE_TEXT || module->kind != PICKLE_TEXT)
        return refuse(r, "a name that is no text");
    return push_global(r, module->bytes, module->n_bytes, name->bytes, name->n_bytes);
}

/* dict() or dict([(key, value), ...]) */
static fsdp_status push_called_dict(reader *r, const pickle_value *arguments)
{
    pickle_value *dict;
    FSDP_TRY(push_new(r, PICKLE_DICT, &dict));
    const pickle_value *pairs = pickle_item(arguments, 0);
    if (arguments->n_items > 1 || (pairs && pairs->kind != PICKLE_LIST))
        return refuse(r, "a dict made of something else than pairs");
    for (size_t i = 0; pairs && i < pairs->n_items; i++) {
        const pickle_value *pair = pairs->items[i];
        if (!pickle_item(pair, 1) || pair->n_items != 2)
            return refuse(r, "a dict made of something else than pairs");
        if (++r->n_values > MAX_VALUES)
            return refuse(r, "it has too many values");
        FSDP_TRY(extend(r, dict, pair->items, 2));
    }
    return FSDP_OK;
}

/* The list itself: copies of it would let a few bytes make much memory. */
static fsdp_status push_called_list(reader *r, pickle_value *arguments)
{
    pickle_value *given = pickle_item(arguments, 0), *empty;
    if (arguments->n_items == 0)
        return push_new(r, PICKLE_LIST, &empty);
    if (arguments->n_items > 1 || (given->kind != PICKLE_LIST && given->kind != PICKLE_TUPLE))
        return refuse(r, "a set made of something else than a list");
    return list_add(r, &r->stack, given);
}

/* REDUCE, NEWOBJ */
static fsdp_status do_call(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *arguments, *callee, *object;
    FSDP_TRY(pop(r, &arguments));
    FSDP_TRY(pop(r, &callee));
    if (callee->kind != PICKLE_GLOBAL || !(callee->global->uses & PICKLE_CALLED))
        return refuse(r, "it calls something that is not to be called");
    if (arguments->kind != PICKLE_TUPLE)
        return refuse(r, "a call whose arguments are no tuple");
    if (callee->global->uses & PICKLE_IS_DICT)
        return push_called_dict(r, arguments);
    if (callee->global->uses & PICKLE_IS_LIST)
        return push_called_list(r, arguments);
    FSDP_TRY(push_new(r, PICKLE_OBJECT, &object));
    object->global = callee->global;
    object->arguments = arguments;
    return FSDP_OK;
}

/* The attributes of an OrderedDict (the `_metadata` of a state dict) say nothing about its tensors. */
static fsdp_status do_build(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *state, *object;
    FSDP_TRY(pop(r, &state));
    FSDP_TRY(top(r, &object));
    if (object->kind == PICKLE_DICT && state->kind == PICKLE_DICT)
        return FSDP_OK;
    if (object->kind != PICKLE_OBJECT || !(object->global->uses & PICKLE_STATE))
        return refuse(r, "it changes something that has no state");
    if (object->state)
        return refuse(r, "it changes the same object twice");
    object->state = state;
    return FSDP_OK;
}

static fsdp_status do_persistent(reader *r, uint8_t code)
{
    (void)code;
    pickle_value *id, *value;
    FSDP_TRY(pop(r, &id));
    FSDP_TRY(push_new(r, PICKLE_PERSISTENT, &value));
    value->id = id;
    return FSDP_OK;
}

/* ---- The table ---- */

static const struct opcode {
    const char *name;
    opcode_function run; /* NULL: refused */
} opcodes[256] = {
    [0x80] = {"PROTO", do_proto},
    [0x95] = {"FRAME", do_frame},
    ['.'] = {"STOP", do_stop},
    ['('] = {"MARK", do_mark},
    ['0'] = {"POP", do_pop},
    ['1'] = {"POP_MARK", do_pop_mark},
    ['2'] = {"DUP", do_dup},
    ['N'] = {"NONE", do_none},
    [0x88] = {"NEWTRUE", do_bool},
    [0x89] = {"NEWFALSE", do_bool},
    ['J'] = {"BININT", do_binint},
    ['K'] = {"BININT1", do_binint},
    ['M'] = {"BININT2", do_binint},
    [0x8a] = {"LONG1", do_long},
    [0x8b] = {"LONG4", do_long},
    ['G'] = {"BINFLOAT", do_binfloat},
    ['T'] = {"BINSTRING", do_text},
    ['U'] = {"SHORT_BINSTRING", do_text},
    ['X'] = {"BINUNICODE", do_text},
    [0x8c] = {"SHORT_BINUNICODE", do_text},
    [0x8d] = {"BINUNICODE8", do_text},
    ['B'] = {"BINBYTES", do_bytes},
    ['C'] = {"SHORT_BINBYTES", do_bytes},
    [0x8e] = {"BINBYTES8", do_bytes},
    [0x96] = {"BYTEARRAY8", do_bytes},
    [')'] = {"EMPTY_TUPLE", do_empty},
    ['}'] = {"EMPTY_DICT", do_empty},
    [']'] = {"EMPTY_LIST", do_empty},
    [0x8f] = {"EMPTY_SET", do_empty},
    [0x85] = {"TUPLE1", do_short_tuple},
    [0x86] = {"TUPLE2", do_short_tuple},
    [0x87] = {"TUPLE3", do_short_tuple},
    ['t'] = {"TUPLE", do_marked},
    ['l'] = {"LIST", do_marked},
    [0x91] = {"FROZENSET", do_marked},
    ['d'] = {"DICT", do_dict},
    ['a'] = {"APPEND", do_append},
    ['s'] = {"SETITEM", do_setitem},
    ['e'] = {"APPENDS", do_add_marked},
    [0x90] = {"ADDITEMS", do_add_marked},
    ['u'] = {"SETITEMS", do_add_marked},
    ['h'] = {"BINGET", do_get},
    ['j'] = {"LONG_BINGET", do_get},
    ['q'] = {"BINPUT", do_put},
    ['r'] = {"LONG_BINPUT", do_put},
    [0x94] = {"MEMOIZE", do_put},
    ['c'] = {"GLOBAL", do_global},
    [0x93] = {"STACK_GLOBAL", do_stack_global},
    ['R'] = {"REDUCE", do_call},
    [0x81] = {"NEWOBJ", do_call},
    ['b'] = {"BUILD", do_build},
    ['Q'] = {"BINPERSID", do_persistent},
    /* Of protocols 0 and 1, or without use for tensors. */
    ['I'] = {"INT", NULL},
    ['L'] = {"LONG", NULL},
    ['F'] = {"FLOAT", NULL},
    ['S'] = {"STRING", NULL},
    ['V'] = {"UNICODE", NULL},
    ['g'] = {"GET", NULL},
    ['p'] = {"PUT", NULL},
    ['P'] = {"PERSID", NULL},
    ['i'] = {"INST", NULL},
    ['o'] = {"OBJ", NULL},
    [0x82] = {"EXT1", NULL},
    [0x83] = {"EXT2", NULL},
    [0x84] = {"EXT4", NULL},
    [0x92] = {"NEWOBJ_EX", NULL},
    [0x97] = {"NEXT_BUFFER", NULL},
    [0x98] = {"READONLY_BUFFER", NULL},
};

static fsdp_status run(reader *r)
{
    while (!r->stopped) {
        r->opcode_at = r->at;
        r->opcode = "end";
        if (r->at == r->end)
            return refuse(r, "it ends without STOP: is the file cut?");
        uint8_t code = *r->at++;
        r->opcode = opcodes[code].name ? opcodes[code].name : "unknown";
        if (!opcodes[code].run)
            return refuse(r, opcodes[code].name ? "an opcode that torch.save does not write" : "no opcode of pickles");
        FSDP_TRY(opcodes[code].run(r, code));
    }
    if (r->n_marks != 0 || r->stack.n != 1)
        return refuse(r, "it leaves more than its result, or none");
    return FSDP_OK;
}

fsdp_status pickle_read(const char *name, const void *data, size_t bytes, const pickle_global *globals, arena *memory,
                        pickle_value **out, size_t *used)
{
    *out = NULL;
    reader *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading its pickle", name);
    *r = (reader){.name = name, .begin = data, .at = data, .globals = globals, .memory = memory};
    r->end = r->begin + bytes;
    fsdp_status status = run(r);
    if (status == FSDP_OK) {
        *out = r->stack.items[0];
        if (used)
            *used = (size_t)(r->at - r->begin);
    }
    free(r->stack.items);
    free(r->memo.items);
    free(r);
    return status;
}
