/* Matches names and shapes of a source with those of a state. */
#include "ckpt/match.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

/* Three lists for one message. What does not fit into the message is still in the log, where each name is a line. */
typedef struct complaint {
    const char *title;
    int n;
    size_t used;
    char text[500];
} complaint;

static void __attribute__((format(printf, 3, 4))) complain(complaint *c, const char *path, const char *format, ...)
{
    char item[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(item, sizeof item, format, arguments);
    va_end(arguments);
    log_write(LOG_ERROR, "%s: %s: %s", path, c->title, item);
    c->n++;
    size_t room = sizeof c->text - c->used, length = strlen(item) + 2;
    if (length + 4 < room)
        c->used += (size_t)snprintf(c->text + c->used, room, "%s%s", c->used ? ", " : "", item);
    else if (room > 5 && c->used && strcmp(c->text + c->used - 3, "...") != 0)
        c->used += (size_t)snprintf(c->text + c->used, room, " ...");
}

static const source_tensor *find(const ckpt_source *source, const ckpt_load_config *config, const ckpt_tensor *tensor)
{
    const source_tensor *found = source_find(source, tensor->role, tensor->name);
    for (int i = 0; !found && i < config->n_aliases; i++)
        if (strcmp(config->aliases[i].name, tensor->name) == 0)
            found = source_find(source, tensor->role, config->aliases[i].source);
    return found;
}

static bool same_shape(const ckpt_tensor *a, const source_tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) == 0;
}

static bool is_ignored(const ckpt_load_config *config, const char *name)
{
    for (int i = 0; i < config->n_ignored; i++)
        if (fnmatch(config->ignored[i], name, 0) == 0)
            return true;
    return false;
}

static const char *label(const char *name, ckpt_role role, char *text, size_t bytes)
{
    if (CKPT_ROLES_MODEL & CKPT_ROLE_BIT(role))
        snprintf(text, bytes, "%s", name);
    else
        snprintf(text, bytes, "%s of %s", ckpt_role_name(role), name);
    return text;
}

static void match_wanted(const ckpt_source *source, const ckpt_load_config *config, const ckpt_state *state,
                         ckpt_match *out, bool *used, complaint *missing, complaint *misshapen)
{
    char name[300], has[160], wants[160];
    for (int i = 0; i < state->n_tensors; i++) {
        const ckpt_tensor *tensor = &state->tensors[i];
        unsigned bit = CKPT_ROLE_BIT(tensor->role);
        if (!(config->roles & bit) || (out->absent & bit))
            continue;
        const source_tensor *found = find(source, config, tensor);
        label(tensor->name, tensor->role, name, sizeof name);
        if (!found) {
            complain(missing, source_path(source), "%s", name);
            continue;
        }
        used[found - source_at(source, 0)] = true;
        if (same_shape(tensor, found))
            out->sources[i] = found;
        else
            complain(misshapen, source_path(source), "%s has shape %s, the model wants %s", name,
                     safetensors_shape_text(found->n_dims, found->shape, has, sizeof has),
                     safetensors_shape_text(tensor->n_dims, tensor->shape, wants, sizeof wants));
    }
}

static fsdp_status report(const ckpt_source *source, const complaint *lists, int n_lists)
{
    char text[1800];
    size_t used = 0;
    for (int i = 0; i < n_lists; i++)
        if (lists[i].n > 0 && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d %s: %s", used ? "; " : "", lists[i].n,
                                     lists[i].title, lists[i].text);
    if (used == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: not the tensors of this model: %s", source_path(source), text);
}

fsdp_status ckpt_match_make(const ckpt_source *source, const ckpt_load_config *config, const ckpt_state *state,
                            ckpt_match *out)
{
    complaint lists[] = {
        {.title = "missing"}, {.title = "that the model does not have"}, {.title = "of another shape"}};
    char name[300];
    *out = (ckpt_match){.sources = calloc((size_t)state->n_tensors + 1, sizeof *out->sources)};
    bool *used = calloc((size_t)source_count(source) + 1, sizeof *used);
    if (!used || !out->sources) {
        free(used);
        ckpt_match_free(out);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory while comparing names", source_path(source));
    }
    for (int role = 0; role < CKPT_ROLE_COUNT; role++)
        if ((config->roles & config->optional & CKPT_ROLE_BIT(role)) && !source_has_role(source, (ckpt_role)role))
            out->absent |= CKPT_ROLE_BIT(role);
    match_wanted(source, config, state, out, used, &lists[0], &lists[2]);
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        if (!used[i] && (config->roles & CKPT_ROLE_BIT(tensor->role)) && !is_ignored(config, tensor->name))
            complain(&lists[1], source_path(source), "%s", label(tensor->name, tensor->role, name, sizeof name));
    }
    free(used);
    fsdp_status status = report(source, lists, 3);
    if (status != FSDP_OK)
        ckpt_match_free(out);
    return status;
}

void ckpt_match_free(ckpt_match *match)
{
    free(match->sources);
    *match = (ckpt_match){0};
}
