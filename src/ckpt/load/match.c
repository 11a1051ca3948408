/* Matches names and shapes of a source with those of a state. */
#include "ckpt/load/match.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/load/base.h"

/* Three lists for one message. What does not fit into the message is still in the log, where each name is a line. */
typedef struct complaint {
    const char *title;
    fsdp_log_level level;
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
    log_write(c->level, "%s: %s: %s", path, c->title, item);
    c->n++;
    size_t room = sizeof c->text - c->used, length = strlen(item) + 2;
    if (length + 4 < room)
        c->used += (size_t)snprintf(c->text + c->used, room, "%s%s", c->used ? ", " : "", item);
    else if (room > 5 && c->used && strcmp(c->text + c->used - 3, "...") != 0)
        c->used += (size_t)snprintf(c->text + c->used, room, " ...");
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
    base_reference reference;
    bool refers = base_refers(source, &reference);
    for (int i = 0; i < state->n_tensors; i++) {
        const ckpt_tensor *tensor = &state->tensors[i];
        unsigned bit = CKPT_ROLE_BIT(tensor->role);
        if (!(config->roles & bit) || (out->absent & bit))
            continue;
        const source_tensor *found = source_find(source, tensor->role, config->names ? config->names[i] : tensor->name);
        label(tensor->name, tensor->role, name, sizeof name);
        if (!found && tensor->base && refers)
            continue;
        if (!found) {
            bool renamed = config->names && strcmp(config->names[i], tensor->name) != 0;
            complain(missing, source_path(source), "%s%s%s", renamed ? config->names[i] : name, renamed ? " for " : "",
                     renamed ? name : "");
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

/* What does not fit, in words and numbers. */
static void sum_up(const complaint *lists, const ckpt_match *match, int n_tensors, ckpt_fit *fit)
{
    size_t used = 0;
    *fit = (ckpt_fit){.missing = lists[0].n, .unexpected = lists[1].n, .mismatched = lists[2].n};
    for (int i = 0; i < n_tensors; i++)
        fit->loaded += match->sources[i] != NULL;
    for (int i = 0; i < 3; i++)
        if (lists[i].n > 0 && used < sizeof fit->text)
            used += (size_t)snprintf(fit->text + used, sizeof fit->text - used, "%s%d %s: %s", used ? "; " : "",
                                     lists[i].n, lists[i].title, lists[i].text);
}

static fsdp_status list_left_over(const ckpt_source *source, const ckpt_load_config *config, const bool *used,
                                  complaint *list)
{
    char name[300];
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        bool fine = used[i] || !(config->roles & CKPT_ROLE_BIT(tensor->role)) || is_ignored(config, tensor->name);
        if (!fine && config->leaves)
            FSDP_TRY(config->leaves(config->context, source, tensor, &fine));
        if (!fine)
            complain(list, source_path(source), "%s", label(tensor->name, tensor->role, name, sizeof name));
    }
    return FSDP_OK;
}

static fsdp_status match_all(const ckpt_source *source, const ckpt_load_config *config, const ckpt_state *state,
                             bool *used, ckpt_match *out)
{
    fsdp_log_level level = config->partial ? FSDP_LOG_INFO : FSDP_LOG_ERROR;
    complaint lists[] = {{.title = "missing", .level = level},
                         {.title = "that the model does not have", .level = level},
                         {.title = "of another shape", .level = level}};
    ckpt_fit fit;
    for (int role = 0; role < CKPT_ROLE_COUNT; role++)
        if ((config->roles & config->optional & CKPT_ROLE_BIT(role)) && !source_has_role(source, (ckpt_role)role))
            out->absent |= CKPT_ROLE_BIT(role);
    match_wanted(source, config, state, out, used, &lists[0], &lists[2]);
    FSDP_TRY(list_left_over(source, config, used, &lists[1]));
    sum_up(lists, out, state->n_tensors, &fit);
    if (config->fit)
        *config->fit = fit;
    if (!fit.text[0] || config->partial)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s does not fit the model: %s", source_path(source), fit.text);
}

fsdp_status ckpt_match_make(const ckpt_source *source, const ckpt_load_config *config, const ckpt_state *state,
                            ckpt_match *out)
{
    *out = (ckpt_match){.sources = calloc((size_t)state->n_tensors + 1, sizeof *out->sources)};
    bool *used = calloc((size_t)source_count(source) + 1, sizeof *used);
    fsdp_status status = used && out->sources ? match_all(source, config, state, used, out)
                                              : error_set(FSDP_ERR_MEMORY, "%s: out of memory while comparing names",
                                                          source_path(source));
    free(used);
    if (status != FSDP_OK)
        ckpt_match_free(out);
    return status;
}

void ckpt_match_free(ckpt_match *match)
{
    free(match->sources);
    *match = (ckpt_match){0};
}
