/* The rules of transformers: first what "added_tokens_decoder" lists, by id; then the tokens with a role, then the
 * extra special ones, each only where nothing listed it before. special_tokens_map.json counts only without the first.
 * A token that is listed again has the properties that it was listed with last; its id follows from the vocabulary
 * alone. */
#include "tokenizer/config_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
static const char *const extras[] = {"extra_special_tokens", "additional_special_tokens"};

typedef struct listing {
    const char *path; /* for errors */
    json_t *added;    /* of tokenizer.json */
    json_t *appended;
} listing;

static fsdp_status read_optional(const char *folder, const char *name, json_t **out)
{
    char *path = file_join(folder, name);
    fsdp_status status = path == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory") : FSDP_OK;
    *out = NULL;
    if (status == FSDP_OK && file_exists(path))
        status = json_read_file_as(path, JSON_AS_PYTHON | JSON_WITH_NUL, out);
    free(path);
    return status;
}

static bool is_listed(const listing *l, const json_t *content)
{
    json_t *entry;
    size_t i;
    json_array_foreach(l->added, i, entry) if (json_equal(json_object_get(entry, "content"), content)) return true;
    return false;
}

static fsdp_status append(listing *l, json_t *entry)
{
    if (entry != NULL && json_array_append(l->appended, entry) == 0 && json_array_append_new(l->added, entry) == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory", l->path);
}

/* A token is a string or an object; an object that does not say whether it is normalized is so unless it is special. */
static json_t *make_entry(const json_t *token, bool special)
{
    json_t *entry = json_is_object(token) ? json_deep_copy(token) : json_object();
    if (!json_is_object(token))
        json_object_set(entry, "content", (json_t *)(uintptr_t)token);
    if (special && !json_is_true(json_object_get(entry, "special")))
        json_object_set_new(entry, "special", json_true());
    if (json_object_get(entry, "normalized") == NULL)
        json_object_set_new(entry, "normalized", json_boolean(!json_is_true(json_object_get(entry, "special"))));
    return entry;
}

static fsdp_status add_special(listing *l, const json_t *token)
{
    const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
    if (token == NULL || json_is_null(token))
        return FSDP_OK;
    if (!json_is_string(content))
        return error_set(FSDP_ERR_INPUT, "%s: a special token must be a string or an object with \"content\"", l->path);
    return is_listed(l, content) ? FSDP_OK : append(l, make_entry(token, true));
}

typedef struct numbered {
    long long id;
    const json_t *token;
} numbered;

static int by_id(const void *a, const void *b)
{
    long long x = ((const numbered *)a)->id, y = ((const numbered *)b)->id;
    return x < y ? -1 : x > y;
}

static fsdp_status add_numbered(listing *l, json_t *decoder)
{
    const char *key;
    json_t *token = NULL;
    size_t n = 0;
    fsdp_status status = FSDP_OK;
    numbered *list = malloc((json_object_size(decoder) + 1) * sizeof *list);
    if (list == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", l->path);
    json_object_foreach(decoder, key, token)
    {
        char *end;
        list[n] = (numbered){strtoll(key, &end, 10), token};
        if (*end != '\0' || end == key || !json_is_string(json_object_get(token, "content"))) {
            status = error_set(FSDP_ERR_INPUT, "%s: \"added_tokens_decoder\": \"%s\" must be an id with a token",
                               l->path, key);
            break;
        }
        n++;
    }
    qsort(list, n, sizeof *list, by_id);
    for (size_t i = 0; i < n && status == FSDP_OK; i++) {
        json_t *entry = make_entry(list[i].token, false);
        json_object_set_new(entry, "id", json_integer(list[i].id));
        status = append(l, entry);
    }
    free(list);
    return status;
}

/* The extra tokens are a list, or an object from names to tokens. */
static fsdp_status add_extras(listing *l, json_t *tokens)
{
    json_t *token = NULL;
    const char *name;
    size_t i;
    json_array_foreach(tokens, i, token) FSDP_TRY(add_special(l, token));
    json_object_foreach(tokens, name, token) FSDP_TRY(add_special(l, token));
    return FSDP_OK;
}

static fsdp_status add_all(listing *l, const char *folder, json_t *config)
{
    json_t *decoder = json_object_get(config, "added_tokens_decoder"), *map = NULL;
    fsdp_status status = FSDP_OK;
    if (decoder != NULL)
        FSDP_TRY(add_numbered(l, decoder));
    else
        FSDP_TRY(read_optional(folder, "special_tokens_map.json", &map));
    if (map != NULL && json_object_update(config, map) != 0)
        status = error_set(FSDP_ERR_INPUT, "%s: special_tokens_map.json beside it is no object", l->path);
    json_decref(map);
    for (size_t i = 0; i < sizeof roles / sizeof *roles && status == FSDP_OK; i++)
        status = add_special(l, json_object_get(config, roles[i]));
    for (size_t i = 0; i < sizeof extras / sizeof *extras && status == FSDP_OK; i++)
        status = add_extras(l, json_object_get(config, extras[i]));
    return status;
}

fsdp_status config_tokens_add(const char *folder, json_t *root, json_t **appended)
{
    json_t *config = NULL;
    FSDP_TRY(read_optional(folder, "tokenizer_config.json", &config));
    *appended = json_array();
    listing l = {
        .path = "tokenizer_config.json", .added = json_object_get(root, "added_tokens"), .appended = *appended};
    config = config == NULL ? json_object() : config;
    fsdp_status status = *appended == NULL || config == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory") : FSDP_OK;
    if (status == FSDP_OK && !json_is_array(l.added)) {
        l.added = json_array();
        json_object_set_new(root, "added_tokens", l.added);
    }
    if (status == FSDP_OK && json_is_object(config))
        status = add_all(&l, folder, config);
    json_decref(config);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s: ", folder);
}
