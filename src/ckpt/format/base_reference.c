/* Reads, checks and writes the reference to a base. */
#include "ckpt/format/base_reference.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *base_reference_json(const char *name, uint64_t digest, json_t *tensors)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, digest);
    return json_pack("{s:s, s:s, s:o}", "name", name, "digest", text, "tensors", tensors);
}

static bool read_digest(const json_t *base, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(base, "digest"));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

const char *base_reference_fault(const json_t *extra)
{
    uint64_t digest;
    const json_t *base = json_object_get(extra, BASE_KEY), *tensors = json_object_get(base, "tensors"), *name;
    size_t i;
    if (!base)
        return NULL;
    if (!json_is_string(json_object_get(base, "name")))
        return "has no name";
    if (!read_digest(base, &digest))
        return "has no digest of 16 hexadecimal digits";
    if (json_array_size(tensors) == 0)
        return "has no names of tensors";
    json_array_foreach((json_t *)(uintptr_t)tensors, i, name)
    {
        if (!json_is_string(name))
            return "has a tensor whose name is no text";
    }
    return NULL;
}

bool base_reference_read(const json_t *extra, base_reference *out)
{
    const json_t *base = json_object_get(extra, BASE_KEY);
    if (!base)
        return false;
    out->name = json_string_value(json_object_get(base, "name"));
    out->tensors = json_object_get(base, "tensors");
    return read_digest(base, &out->digest);
}
