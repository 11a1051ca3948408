/* Finds the weights in what people save: a state dict, or a dict of training with one inside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/log.h"
#include "format/torch/torch_file.h"

/* Where frameworks put the model's state dict, most telling first. */
static const char *const model_keys[] = {"model_state_dict", "state_dict", "model", "module", "model_state", "params"};

static const char *const wrappers[] = {"_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod."};

#define DATA_PARALLEL "module."

void torch_clean_name(char *name)
{
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++) {
        size_t length = strlen(wrappers[i]);
        for (char *found = strstr(name, wrappers[i]); found; found = strstr(found, wrappers[i]))
            memmove(found, found + length, strlen(found + length) + 1);
    }
}

static bool has_tensors(const pickle_value *dict)
{
    for (size_t i = 0; pickle_is(dict, PICKLE_DICT) && i < dict->n_items; i += 2)
        if (dict->items[i]->kind == PICKLE_TEXT && torch_is_tensor(dict->items[i + 1]))
            return true;
    return false;
}

/* The names of all but the state dict, cut to fit. */
static void list_keys(const pickle_value *dict, const pickle_value *taken, char *text, size_t room)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < dict->n_items && used < room; i += 2) {
        const pickle_value *key = dict->items[i], *value = dict->items[i + 1];
        if (value == taken || (taken == dict && torch_is_tensor(value)))
            continue;
        const char *shown = key->kind == PICKLE_TEXT ? key->bytes : pickle_kind_text(key);
        used += (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "", shown);
    }
}

static fsdp_status find_state_dict(const char *path, const pickle_value *root, const pickle_value **out)
{
    char keys[400];
    *out = NULL;
    for (size_t i = 0; i < sizeof model_keys / sizeof *model_keys && !*out; i++) {
        const pickle_value *inner = pickle_find(root, model_keys[i]);
        *out = has_tensors(inner) ? inner : NULL;
    }
    if (!*out && has_tensors(root)) /* beside a model, tensors at the top are a best loss or random states */
        *out = root;
    if (!pickle_is(root, PICKLE_DICT))
        return error_set(FSDP_ERR_INPUT,
                         "%s: holds %s, no state dict; save the weights by "
                         "torch.save(model.state_dict(), ...)",
                         path, torch_is_tensor(root) ? "a single tensor" : pickle_kind_text(root));
    list_keys(root, *out, keys, sizeof keys);
    if (!*out)
        return error_set(FSDP_ERR_INPUT,
                         "%s: there are no tensors at its top or under \"model\" or \"state_dict\"; it "
                         "has: %s",
                         path, keys[0] ? keys : "nothing");
    if (keys[0])
        log_write(FSDP_LOG_WARNING, "%s: only the model's weights are read; left out: %s", path, keys);
    return FSDP_OK;
}

static fsdp_status collect(torch_file *file, arena *memory, const char *path, const pickle_value *dict,
                           safetensors_tensor *tensors, size_t *n)
{
    bool parallel = true; /* every name begins with what DataParallel adds */
    for (size_t i = 0; i < dict->n_items && parallel; i += 2)
        if (dict->items[i]->kind == PICKLE_TEXT && torch_is_tensor(dict->items[i + 1]))
            parallel = strncmp(dict->items[i]->bytes, DATA_PARALLEL, strlen(DATA_PARALLEL)) == 0;
    for (size_t i = 0; i < dict->n_items; i += 2) {
        const pickle_value *key = dict->items[i], *value = dict->items[i + 1];
        if (key->kind != PICKLE_TEXT || !torch_is_tensor(value))
            continue;
        char *name = arena_strdup(memory, key->bytes + (parallel ? strlen(DATA_PARALLEL) : 0));
        if (!name)
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading it", path);
        torch_clean_name(name);
        FSDP_TRY(torch_file_tensor(file, value, name, &tensors[(*n)++]));
    }
    return FSDP_OK;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const safetensors_tensor *)left)->name, ((const safetensors_tensor *)right)->name);
}

fsdp_status torch_file_state_dict(torch_file *file, safetensors_tensor **out, size_t *n)
{
    const pickle_value *root = torch_file_root(file), *dict;
    const char *path = torch_file_path(file);
    arena *memory = torch_file_memory(file);
    *n = 0;
    FSDP_TRY(find_state_dict(path, root, &dict));
    *out = arena_alloc(memory, (dict->n_items / 2 + 1) * sizeof **out);
    if (!*out)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading it", path);
    FSDP_TRY(collect(file, memory, path, dict, *out, n));
    qsort(*out, *n, sizeof **out, by_name);
    for (size_t i = 1; i < *n; i++)
        if (strcmp((*out)[i - 1].name, (*out)[i].name) == 0)
            return error_set(FSDP_ERR_INPUT, "%s: has two tensors of the name %s", path, (*out)[i].name);
    return FSDP_OK;
}
