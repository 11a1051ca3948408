/* Methods of strings and dicts, and what all containers answer. Strings follow Python's str, by code points, except
 * that only the case of ASCII letters is changed: templates change that of roles and keywords. */
#include <string.h>

#include "tokenizer/template/template_builtins_internal.h"
#include "tokenizer/text/utf8.h"

/* --- strings ----------------------------------------------------------------------------------------------------- */

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Whether the code point at text[0..length) is stripped: one of `set`, or white where that is no string. */
static bool is_stripped(const char *text, size_t length, value set)
{
    size_t n;
    return set.kind == VALUE_STRING ? memmem(set.text, set.bytes, text, length) != NULL
                                    : is_space(utf8_decode(text, &n));
}

static value strip(value s, value set, bool left, bool right)
{
    size_t start = 0, end = s.bytes;
    while (left && start < end) {
        size_t n = utf8_length((uint8_t)s.text[start]);
        if (!is_stripped(s.text + start, n, set))
            break;
        start += n;
    }
    while (right && end > start) {
        size_t n = utf8_last_length(s.text, end);
        if (!is_stripped(s.text + end - n, n, set))
            break;
        end -= n;
    }
    return value_string(s.text + start, end - start);
}

static fsdp_status str_strip(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    *out = strip(s, argument(args, 0, "chars"), true, true);
    return FSDP_OK;
}

static fsdp_status str_lstrip(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    *out = strip(s, argument(args, 0, "chars"), true, false);
    return FSDP_OK;
}

static fsdp_status str_rstrip(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    *out = strip(s, argument(args, 0, "chars"), false, true);
    return FSDP_OK;
}

typedef enum letter_case { CASE_LOWER, CASE_UPPER, CASE_CAPITAL, CASE_TITLE } letter_case;

static fsdp_status change_case(const builtin_room *room, value s, letter_case how, value *out)
{
    bool inside = false; /* a word */
    FSDP_TRY(value_copy_string(room->arena, s.text, s.bytes, out));
    char *text = (char *)(uintptr_t)out->text;
    for (size_t i = 0; i < s.bytes; i++) {
        bool lower = text[i] >= 'a' && text[i] <= 'z', upper = text[i] >= 'A' && text[i] <= 'Z';
        bool raise = how == CASE_UPPER || (how == CASE_CAPITAL && i == 0) || (how == CASE_TITLE && !inside);
        if ((uint8_t)text[i] >= 0x80)
            return error_set(FSDP_ERR_UNSUPPORTED, "the case of letters beyond ASCII is not changed here");
        if (raise ? lower : upper)
            text[i] ^= 0x20;
        inside = lower || upper;
    }
    return FSDP_OK;
}

static fsdp_status str_upper(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)args;
    return change_case(room, s, CASE_UPPER, out);
}

static fsdp_status str_lower(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)args;
    return change_case(room, s, CASE_LOWER, out);
}

static fsdp_status str_capitalize(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)args;
    return change_case(room, s, CASE_CAPITAL, out);
}

static fsdp_status str_title(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)args;
    return change_case(room, s, CASE_TITLE, out);
}

/* Whether `s` begins, or ends, with a string or one of a list of them. */
static fsdp_status has_affix(value s, value affix, bool front, value *out)
{
    if (affix.kind == VALUE_LIST) {
        *out = value_bool(false);
        for (size_t i = 0; i < affix.list->n && !out->boolean; i++)
            FSDP_TRY(has_affix(s, affix.list->items[i], front, out));
        return FSDP_OK;
    }
    FSDP_TRY(want(affix, VALUE_STRING, "the argument of startswith or endswith"));
    *out = value_bool(affix.bytes <= s.bytes &&
                      memcmp(front ? s.text : s.text + s.bytes - affix.bytes, affix.text, affix.bytes) == 0);
    return FSDP_OK;
}

static fsdp_status str_startswith(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    return has_affix(s, argument(args, 0, "prefix"), true, out);
}

static fsdp_status str_endswith(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    return has_affix(s, argument(args, 0, "suffix"), false, out);
}

static fsdp_status remove_affix(value s, value affix, bool front, value *out)
{
    value has;
    FSDP_TRY(has_affix(s, affix, front, &has));
    *out = has.boolean ? value_string(s.text + (front ? affix.bytes : 0), s.bytes - affix.bytes) : s;
    return FSDP_OK;
}

static fsdp_status str_removeprefix(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    return remove_affix(s, argument(args, 0, "prefix"), true, out);
}

static fsdp_status str_removesuffix(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    return remove_affix(s, argument(args, 0, "suffix"), false, out);
}

static fsdp_status append_piece(const builtin_room *room, value s, size_t start, size_t end, value list)
{
    return value_append(room->arena, list, value_string(s.text + start, end - start));
}

/* split() without a separator: runs of white characters part, none are left at the ends. */
static fsdp_status split_blanks(const builtin_room *room, value s, int64_t most, value *out)
{
    size_t at = 0;
    value none = {.kind = VALUE_UNDEFINED};
    for (;;) {
        value rest = strip(value_string(s.text + at, s.bytes - at), none, true, false);
        at = (size_t)(rest.text - s.text);
        if (rest.bytes == 0)
            return FSDP_OK;
        if (most >= 0 && (int64_t)out->list->n == most)
            return append_piece(room, s, at, s.bytes, *out);
        size_t end = at, n;
        while (end < s.bytes && !is_space(utf8_decode(s.text + end, &n)))
            end += n;
        FSDP_TRY(append_piece(room, s, at, end, *out));
        at = end;
    }
}

static fsdp_status str_split(const builtin_room *room, value s, const arguments *args, value *out)
{
    value separator = argument(args, 0, "sep"), limit = argument(args, 1, "maxsplit");
    int64_t most = limit.kind == VALUE_INTEGER ? limit.integer : -1;
    size_t start = 0;
    FSDP_TRY(value_new_list(room->arena, out));
    if (separator.kind == VALUE_UNDEFINED || separator.kind == VALUE_NONE)
        return split_blanks(room, s, most, out);
    FSDP_TRY(want(separator, VALUE_STRING, "the separator of split"));
    if (separator.bytes == 0)
        return error_set(FSDP_ERR_INPUT, "split by an empty string");
    while (most < 0 || (int64_t)out->list->n < most) {
        const char *found = memmem(s.text + start, s.bytes - start, separator.text, separator.bytes);
        if (found == NULL)
            break;
        FSDP_TRY(append_piece(room, s, start, (size_t)(found - s.text), *out));
        start = (size_t)(found - s.text) + separator.bytes;
    }
    return append_piece(room, s, start, s.bytes, *out);
}

static fsdp_status str_splitlines(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)args;
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t start = 0, end; start < s.bytes; start = end + 1) {
        end = start;
        while (end < s.bytes && s.text[end] != '\n' && s.text[end] != '\r')
            end++;
        FSDP_TRY(append_piece(room, s, start, end, *out));
        if (end + 1 < s.bytes && s.text[end] == '\r' && s.text[end + 1] == '\n')
            end++;
    }
    return FSDP_OK;
}

static fsdp_status str_replace(const builtin_room *room, value s, const arguments *args, value *out)
{
    value from = argument(args, 0, "old"), with = argument(args, 1, "new"), limit = argument(args, 2, "count");
    int64_t left = limit.kind == VALUE_INTEGER ? limit.integer : -1;
    text_buffer b = {.limit = (size_t)64 << 20};
    fsdp_status status = FSDP_OK;
    FSDP_TRY(want(from, VALUE_STRING, "the first argument of replace"));
    FSDP_TRY(want(with, VALUE_STRING, "the second argument of replace"));
    if (from.bytes == 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "replace of an empty string is not supported");
    for (size_t i = 0; i < s.bytes && status == FSDP_OK;) {
        bool found = left != 0 && s.bytes - i >= from.bytes && memcmp(s.text + i, from.text, from.bytes) == 0;
        status = text_append(&b, found ? with.text : s.text + i, found ? with.bytes : 1);
        i += found ? from.bytes : 1;
        left -= found;
    }
    return finish(room, status, &b, out);
}

static fsdp_status str_find(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    value what = argument(args, 0, "sub");
    FSDP_TRY(want(what, VALUE_STRING, "the argument of find"));
    const char *found = memmem(s.text, s.bytes, what.text, what.bytes);
    *out = value_integer(found == NULL ? -1 : (int64_t)value_count_points(s.text, (size_t)(found - s.text)));
    return FSDP_OK;
}

static fsdp_status str_count(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    value what = argument(args, 0, "sub");
    int64_t n = 0;
    FSDP_TRY(want(what, VALUE_STRING, "the argument of count"));
    const char *at = s.text, *end = s.text + s.bytes, *found;
    for (; what.bytes > 0 && (found = memmem(at, (size_t)(end - at), what.text, what.bytes)) != NULL; n++)
        at = found + what.bytes;
    *out = value_integer(n);
    return FSDP_OK;
}

/* separator.join(list), or list | join(separator). */
fsdp_status builtin_join(const builtin_room *room, value separator, value list, value attribute, bool only_strings,
                         value *out)
{
    value items;
    text_buffer b = {.limit = (size_t)64 << 20};
    fsdp_status status = FSDP_OK;
    FSDP_TRY(builtin_items(room, list, &items));
    for (size_t i = 0; i < items.list->n && status == FSDP_OK; i++) {
        value item = items.list->items[i];
        if (attribute.kind == VALUE_STRING)
            status = builtin_attribute(item, attribute, &item);
        if (status == FSDP_OK && only_strings)
            status = want(item, VALUE_STRING, "what is joined");
        if (status == FSDP_OK && i > 0 && separator.kind == VALUE_STRING)
            status = text_append(&b, separator.text, separator.bytes);
        if (status == FSDP_OK)
            status = value_print(item, &b);
    }
    return finish(room, status, &b, out);
}

static fsdp_status str_join(const builtin_room *room, value s, const arguments *args, value *out)
{
    return builtin_join(room, s, argument(args, 0, "iterable"), value_none(), true, out);
}

static fsdp_status str_isdigit(const builtin_room *room, value s, const arguments *args, value *out)
{
    (void)room;
    (void)args;
    *out = value_bool(s.bytes > 0);
    for (size_t i = 0; i < s.bytes; i++)
        out->boolean = out->boolean && s.text[i] >= '0' && s.text[i] <= '9';
    return FSDP_OK;
}

static const named_builtin string_methods[] = {
    {"strip", str_strip},
    {"lstrip", str_lstrip},
    {"rstrip", str_rstrip},
    {"upper", str_upper},
    {"lower", str_lower},
    {"capitalize", str_capitalize},
    {"title", str_title},
    {"startswith", str_startswith},
    {"endswith", str_endswith},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"replace", str_replace},
    {"find", str_find},
    {"count", str_count},
    {"join", str_join},
    {"isdigit", str_isdigit},
    {NULL, NULL},
};

/* --- dicts and lists --------------------------------------------------------------------------------------------- */

fsdp_status builtin_dict_items(const builtin_room *room, value d, const arguments *args, value *out)
{
    (void)args;
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t i = 0; i < d.dict->n; i++) {
        value pair;
        FSDP_TRY(value_new_list(room->arena, &pair));
        pair.list->is_tuple = true;
        FSDP_TRY(value_append(room->arena, pair, d.dict->keys[i]));
        FSDP_TRY(value_append(room->arena, pair, d.dict->values[i]));
        FSDP_TRY(value_append(room->arena, *out, pair));
    }
    return FSDP_OK;
}

static fsdp_status dict_keys(const builtin_room *room, value d, const arguments *args, value *out)
{
    (void)args;
    return builtin_items(room, d, out);
}

static fsdp_status dict_values(const builtin_room *room, value d, const arguments *args, value *out)
{
    (void)args;
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t i = 0; i < d.dict->n; i++)
        FSDP_TRY(value_append(room->arena, *out, d.dict->values[i]));
    return FSDP_OK;
}

static fsdp_status dict_get(const builtin_room *room, value d, const arguments *args, value *out)
{
    (void)room;
    value otherwise = argument(args, 1, "default");
    if (!value_get(d.dict, argument(args, 0, "key"), out))
        *out = otherwise.kind == VALUE_UNDEFINED ? value_none() : otherwise;
    return FSDP_OK;
}

static const named_builtin dict_methods[] = {
    {"items", builtin_dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"get", dict_get}, {NULL, NULL},
};

fsdp_status builtin_method(const builtin_room *room, value object, value name, const arguments *args, value *out)
{
    builtin call = NULL;
    if (object.kind == VALUE_STRING)
        call = builtin_find(string_methods, name);
    else if (object.kind == VALUE_DICT)
        call = builtin_find(dict_methods, name);
    if (call == NULL)
        return error_set(FSDP_ERR_UNSUPPORTED, "the method \"%.*s\" of %s is not supported", (int)name.bytes, name.text,
                         value_kind_name(object.kind));
    return call(room, object, args, out);
}

fsdp_status builtin_attribute(value object, value name, value *out)
{
    *out = (value){.kind = VALUE_UNDEFINED};
    if (object.kind == VALUE_DICT)
        value_get(object.dict, name, out);
    if (object.kind == VALUE_UNDEFINED)
        return error_set(FSDP_ERR_INPUT, "\"%.*s\" of what is undefined", (int)name.bytes, name.text);
    return FSDP_OK;
}

fsdp_status builtin_items(const builtin_room *room, value v, value *list)
{
    if (v.kind == VALUE_LIST) {
        *list = v;
        return FSDP_OK;
    }
    FSDP_TRY(value_new_list(room->arena, list));
    if (v.kind == VALUE_STRING) {
        for (size_t i = 0, n; i < v.bytes; i += n) {
            n = utf8_length((uint8_t)v.text[i]);
            FSDP_TRY(append_piece(room, v, i, i + n, *list));
        }
        return FSDP_OK;
    }
    for (size_t i = 0; v.kind == VALUE_DICT && i < v.dict->n; i++)
        FSDP_TRY(value_append(room->arena, *list, v.dict->keys[i]));
    if (v.kind == VALUE_DICT || v.kind == VALUE_UNDEFINED)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s has no items", value_kind_name(v.kind));
}

fsdp_status builtin_contains(value container, value item, bool *out)
{
    value ignored;
    *out = false;
    switch (container.kind) {
    case VALUE_STRING:
        FSDP_TRY(want(item, VALUE_STRING, "what is looked for in a string"));
        *out = memmem(container.text, container.bytes, item.text, item.bytes) != NULL;
        return FSDP_OK;
    case VALUE_DICT:
        *out = value_get(container.dict, item, &ignored);
        return FSDP_OK;
    case VALUE_LIST:
        for (size_t i = 0; i < container.list->n && !*out; i++)
            *out = value_equal(container.list->items[i], item);
        return FSDP_OK;
    case VALUE_UNDEFINED:
        return FSDP_OK;
    default:
        return error_set(FSDP_ERR_INPUT, "nothing is in %s", value_kind_name(container.kind));
    }
}
