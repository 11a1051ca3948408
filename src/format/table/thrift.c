/* Reads varints, strings and headers of fields and lists, and passes over what nobody asked for. */
#include "format/table/thrift.h"

enum { DEEPEST = 32 };

static uint8_t next_byte(thrift *t)
{
    if (t->failed || t->at == t->end) {
        t->failed = true;
        return 0;
    }
    return *t->at++;
}

static uint64_t next_varint(thrift *t)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = next_byte(t);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    t->failed = true;
    return 0;
}

static int64_t next_zigzag(thrift *t)
{
    uint64_t value = next_varint(t);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static void pass(thrift *t, uint64_t bytes)
{
    if (t->failed || bytes > (uint64_t)(t->end - t->at))
        t->failed = true;
    else
        t->at += bytes;
}

bool thrift_next(thrift *t, thrift_field *field)
{
    uint8_t header = next_byte(t);
    field->type = (thrift_type)(header & 15);
    if (t->failed || field->type == THRIFT_STOP || field->type > THRIFT_STRUCT) {
        t->failed = t->failed || field->type != THRIFT_STOP;
        return false;
    }
    int64_t id = header >> 4 ? field->id + (header >> 4) : next_zigzag(t);
    t->failed = t->failed || id < 0 || id > INT16_MAX;
    field->id = (int)(t->failed ? 0 : id);
    return !t->failed;
}

int64_t thrift_int(thrift *t, thrift_type type)
{
    if (type < THRIFT_I8 || type > THRIFT_I64)
        t->failed = true;
    int64_t value = t->failed ? 0 : type == THRIFT_I8 ? (int8_t)next_byte(t) : next_zigzag(t);
    return t->failed ? 0 : value;
}

bool thrift_bool(thrift *t, thrift_type type)
{
    if (type != THRIFT_TRUE && type != THRIFT_FALSE)
        t->failed = true;
    return !t->failed && type == THRIFT_TRUE;
}

const char *thrift_binary(thrift *t, thrift_type type, size_t *bytes)
{
    uint64_t n = type == THRIFT_BINARY ? next_varint(t) : 0;
    const char *start = (const char *)t->at;
    t->failed = t->failed || type != THRIFT_BINARY;
    pass(t, n);
    *bytes = t->failed ? 0 : (size_t)n;
    return t->failed ? "" : start;
}

size_t thrift_list(thrift *t, thrift_type type, thrift_type *element)
{
    uint8_t header = next_byte(t);
    uint64_t n = header >> 4 == 15 ? next_varint(t) : header >> 4;
    *element = (thrift_type)(header & 15);
    if ((type != THRIFT_LIST && type != THRIFT_SET) || n > (uint64_t)(t->end - t->at) || *element > THRIFT_STRUCT)
        t->failed = true;
    return t->failed ? 0 : (size_t)n;
}

static void skip_struct(thrift *t)
{
    thrift_field f = {0, THRIFT_STOP};
    while (thrift_next(t, &f))
        thrift_skip(t, f.type);
}

/* In lists and maps, a truth value takes a byte; in a struct its header is all there is. */
static void skip_element(thrift *t, thrift_type type)
{
    if (type == THRIFT_TRUE || type == THRIFT_FALSE)
        pass(t, 1);
    else
        thrift_skip(t, type);
}

static void skip_map(thrift *t)
{
    uint64_t n = next_varint(t);
    uint8_t types = n > 0 ? next_byte(t) : 0;
    if (n > (uint64_t)(t->end - t->at))
        t->failed = true;
    for (; n > 0 && !t->failed; n--) {
        skip_element(t, (thrift_type)(types >> 4));
        skip_element(t, (thrift_type)(types & 15));
    }
}

void thrift_skip(thrift *t, thrift_type type)
{
    size_t bytes;
    thrift_type element;
    if (++t->depth > DEEPEST)
        t->failed = true;
    if (t->failed) {
        t->depth--;
        return;
    }
    if (type >= THRIFT_I8 && type <= THRIFT_I64)
        thrift_int(t, type);
    else if (type == THRIFT_DOUBLE)
        pass(t, 8);
    else if (type == THRIFT_BINARY)
        thrift_binary(t, type, &bytes);
    else if (type == THRIFT_LIST || type == THRIFT_SET)
        for (size_t n = thrift_list(t, type, &element); n > 0 && !t->failed; n--)
            skip_element(t, element);
    else if (type == THRIFT_MAP)
        skip_map(t);
    else if (type == THRIFT_STRUCT)
        skip_struct(t);
    else if (type != THRIFT_TRUE && type != THRIFT_FALSE)
        t->failed = true;
    t->depth--;
}
