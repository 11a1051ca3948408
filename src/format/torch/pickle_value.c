/* Looking at what a pickle held. */
#include <string.h>

#include "format/torch/pickle.h"

bool pickle_is(const pickle_value *value, pickle_kind kind)
{
    return value && value->kind == kind;
}

pickle_value *pickle_find(const pickle_value *dict, const char *key)
{
    pickle_value *found = NULL;
    for (size_t i = 0; pickle_is(dict, PICKLE_DICT) && i < dict->n_items; i += 2)
        if (dict->items[i]->kind == PICKLE_TEXT && strcmp(dict->items[i]->bytes, key) == 0)
            found = dict->items[i + 1];
    return found;
}

pickle_value *pickle_item(const pickle_value *tuple, size_t index)
{
    bool has_items = pickle_is(tuple, PICKLE_TUPLE) || pickle_is(tuple, PICKLE_LIST);
    return has_items && index < tuple->n_items ? tuple->items[index] : NULL;
}

const char *pickle_kind_text(const pickle_value *value)
{
    static const char *const texts[] = {
        [PICKLE_NONE] = "None",     [PICKLE_BOOL] = "a bool",      [PICKLE_INT] = "an int",
        [PICKLE_FLOAT] = "a float", [PICKLE_TEXT] = "a text",      [PICKLE_BYTES] = "bytes",
        [PICKLE_TUPLE] = "a tuple", [PICKLE_LIST] = "a list",      [PICKLE_DICT] = "a dict",
        [PICKLE_GLOBAL] = "a name", [PICKLE_OBJECT] = "an object", [PICKLE_PERSISTENT] = "a storage",
    };
    return value ? texts[value->kind] : "nothing";
}
