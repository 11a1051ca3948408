/* Finds a model's tensors in files that name them a little differently. */
#include "ckpt/load/names.h"

#include <string.h>

/* Where a model's own weights begin in files of the whole; files of the part below the head leave it out. */
static const char *const prefixes[] = {"model.", "transformer."};

/* Names under which files keep the embedding, those of it alone first. */
static const char *const embeddings[] = {
    "shared.weight", "model.embed_tokens.weight",   "embed_tokens.weight",         "transformer.wte.weight",
    "wte.weight",    "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"};

const source_tensor *names_embedding(const ckpt_source *source)
{
    const source_tensor *found = NULL;
    for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings && !found; i++)
        found = source_find(source, CKPT_PARAMETER, embeddings[i]);
    return found;
}

static bool is_embedding(const char *name)
{
    for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings; i++) {
        if (strcmp(name, embeddings[i]) == 0)
            return true;
    }
    return false;
}

const char *names_find(const ckpt_source *source, ckpt_role role, bool tied, const char *name)
{
    if (!source || source_find(source, role, name))
        return name;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) == 0 && source_find(source, role, name + n))
            return name + n;
    }
    bool head = strcmp(name, "lm_head.weight") == 0;
    for (size_t i = 0; !head && is_embedding(name) && i < sizeof embeddings / sizeof *embeddings; i++) {
        if ((tied || strcmp(embeddings[i], "lm_head.weight") != 0) && source_find(source, role, embeddings[i]))
            return embeddings[i];
    }
    return name;
}
