/* Finds the base that a checkpoint of adapters refers to and tells it from others. A manifest may be anyone's: the name
 * in it is followed to weights only, and what is found there counts only if its values are those of training. */
#include "ckpt/load/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "ckpt/load/names.h"
#include "format/hub/hub.h"

/* ---- Digests ---- */

/* A number of its own for every place, times the bits there: a sum of these can be cut anywhere. */
static uint64_t place_factor(uint64_t place)
{
    place *= 0x9e3779b97f4a7c15ull;
    place ^= place >> 32;
    place *= 0xd6e8feb86659fd93ull;
    return place ^ place >> 32;
}

uint64_t base_digest(const char *tensor, int64_t first, int64_t n, const float *values)
{
    uint64_t sum = 0, start = hash_text(HASH_START, tensor) + (uint64_t)first;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum += place_factor(start + (uint64_t)i) * ((uint64_t)bits + 1);
    }
    return sum;
}

bool base_refers(const ckpt_source *source, base_reference *out)
{
    const manifest *m = source_manifest(source);
    return m && base_reference_read(m->extra, out);
}

/* ---- Joining ---- */

static bool has_name(const json_t *names, const char *wanted)
{
    const json_t *name;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)names, i, name)
    {
        if (strcmp(json_string_value(name), wanted) == 0)
            return true;
    }
    return false;
}

static fsdp_status list_tensors(const ckpt_source *source, const ckpt_source *base, const json_t *names,
                                source_tensor *out)
{
    bool tied = !has_name(names, "lm_head.weight");
    const json_t *name;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)names, i, name)
    {
        const char *wanted = json_string_value(name);
        const source_tensor *found = source_find(base, CKPT_PARAMETER, names_find(base, CKPT_PARAMETER, tied, wanted));
        if (!found)
            return error_set(FSDP_ERR_INPUT, "%s: its base has a tensor %s, which %s does not have",
                             source_path(source), wanted, source_path(base));
        if (source_find(source, CKPT_PARAMETER, wanted))
            return error_set(FSDP_ERR_INPUT, "%s: holds %s, which it says is its base's", source_path(source), wanted);
        out[i] = *found;
        out[i].name = wanted;
        out[i].role = CKPT_PARAMETER;
    }
    return FSDP_OK;
}

static fsdp_status open_base(const ckpt_source *source, const base_reference *reference, const char *path,
                             ckpt_source **out)
{
    char *found = NULL;
    base_reference further;
    fsdp_status status = hub_find(HUB_MODEL, path ? path : reference->name, NULL, &found);
    if (status == FSDP_OK)
        status = source_open(found, out);
    free(found);
    if (status != FSDP_OK)
        return error_prefix(status,
                            "%s holds adapters alone; the base they were trained beside (%s) is needed, name its place "
                            "with --base: ",
                            source_path(source), reference->name);
    if (base_refers(*out, &further))
        return error_set(FSDP_ERR_INPUT, "%s: cannot be the base of %s: it refers to a base itself", source_path(*out),
                         source_path(source));
    return FSDP_OK;
}

fsdp_status base_join(ckpt_source *source, const char *path)
{
    base_reference reference;
    ckpt_source *base = NULL;
    if (!base_refers(source, &reference))
        return FSDP_OK;
    size_t n = json_array_size(reference.tensors);
    source_tensor *tensors = calloc(n, sizeof *tensors);
    fsdp_status status = tensors ? open_base(source, &reference, path, &base)
                                 : error_set(FSDP_ERR_MEMORY, "%s: out of memory", source_path(source));
    if (status == FSDP_OK)
        status = list_tensors(source, base, reference.tensors, tensors);
    if (status == FSDP_OK)
        status = source_adopt(source, base, tensors, (int)n);
    if (status != FSDP_OK)
        source_close(base);
    free(tensors);
    return status;
}

/* ---- Comparing ---- */

fsdp_status base_is_another(const char *path, const base_reference *reference, uint64_t digest)
{
    return error_set(FSDP_ERR_INPUT,
                     "%s was trained beside another base: %s with digest %016" PRIx64
                     ", not one with digest %016" PRIx64,
                     path, reference->name, reference->digest, digest);
}

fsdp_status base_verify(const ckpt_source *source)
{
    enum { AT_ONCE = 1 << 18 };
    base_reference reference;
    const json_t *name;
    uint64_t sum = 0;
    size_t i;
    if (!base_refers(source, &reference))
        return FSDP_OK;
    float *values = malloc(AT_ONCE * sizeof *values);
    fsdp_status status =
        values ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory for its base", source_path(source));
    json_array_foreach((json_t *)(uintptr_t)reference.tensors, i, name)
    {
        const source_tensor *t = source_find(source, CKPT_PARAMETER, json_string_value(name));
        for (int64_t first = 0, n; t && first < t->numel && status == FSDP_OK; first += n) {
            n = min_i64(AT_ONCE, t->numel - first);
            status = source_read(t, first, n, values);
            if (status == FSDP_OK)
                sum += base_digest(t->name, first, n, values);
        }
    }
    free(values);
    if (status == FSDP_OK && sum != reference.digest)
        status = base_is_another(source_path(source), &reference, sum);
    return status;
}
