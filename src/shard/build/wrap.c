/* Assignment of parameters to units. */
#include "shard/build/wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* A single layer left to the root becomes a unit of its own from this many parameters on. */
#define LARGE_LAYER (1 << 20)

typedef struct wrapping {
    const fsdp_wrap *policy;
    char **names;
    int n_units;
    wrapped_module *modules; /* (n_modules): the units' before any are merged */
    int n_modules;
    bool failed;
    char path[1024];
} wrapping;

bool wrap_lists_type(const char *list, const char *type)
{
    size_t length = strlen(type);
    for (const char *at = list; at && *at;) {
        size_t word = strcspn(at, ",");
        if (word == length && strncmp(at, type, length) == 0)
            return true;
        at += word + (at[word] == ',');
    }
    return false;
}

/* Parameters of the tree below m that no unit has claimed. */
static int64_t unclaimed(const fsdp_module *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->n_parameters; i++)
        n += m->parameters[i]->unit < 0 ? m->parameters[i]->numel : 0;
    for (int i = 0; i < m->n_children; i++)
        n += unclaimed(m->children[i]);
    return n;
}

static void claim(fsdp_module *m, int unit)
{
    for (int i = 0; i < m->n_parameters; i++) {
        if (m->parameters[i]->unit < 0)
            m->parameters[i]->unit = unit;
    }
    for (int i = 0; i < m->n_children; i++)
        claim(m->children[i], unit);
}

static bool is_unit(const wrapping *w, const fsdp_module *m)
{
    switch (w->policy->kind) {
    case FSDP_WRAP_TYPE:
        return wrap_lists_type(w->policy->type, m->module_class->type);
    case FSDP_WRAP_SIZE:
        return unclaimed(m) >= w->policy->min_parameters;
    case FSDP_WRAP_FUNCTION:
        return w->policy->is_unit(m, w->policy->context);
    case FSDP_WRAP_NONE:
        break;
    }
    return false;
}

static void add_unit(wrapping *w, fsdp_module *m, const char *name)
{
    char **grown = realloc(w->names, (size_t)(w->n_units + 1) * sizeof *grown);
    wrapped_module *modules = realloc(w->modules, (size_t)(w->n_modules + 1) * sizeof *modules);
    w->names = grown ? grown : w->names;
    w->modules = modules ? modules : w->modules;
    if (!grown || !modules || !(w->names[w->n_units] = strdup(name))) {
        w->failed = true;
        return;
    }
    w->modules[w->n_modules++] = (wrapped_module){m, w->n_units};
    claim(m, w->n_units++);
}

/* Children before parents, so a unit's numbers leave out the units inside it. `wants` decides. */
static void visit(wrapping *w, fsdp_module *m, size_t used, bool root,
                  bool (*wants)(const wrapping *, const fsdp_module *))
{
    for (int i = 0; i < m->n_children; i++) {
        int more = snprintf(w->path + used, sizeof w->path - used, used ? ".%s" : "%s", m->children[i]->name);
        size_t length = used + (size_t)more;
        visit(w, m->children[i], length < sizeof w->path ? length : sizeof w->path - 1, false, wants);
        w->path[used] = '\0';
    }
    if (!root && unclaimed(m) > 0 && wants(w, m))
        add_unit(w, m, w->path);
}

static bool is_large_layer(const wrapping *w, const fsdp_module *m)
{
    (void)w;
    return m->n_children == 0 && unclaimed(m) >= LARGE_LAYER;
}

/* Merges neighbours while they stay below the bucket. */
static void merge_small(const module_contents *contents, wrapping *w, int64_t bucket_bytes)
{
    int kept = 0;
    int64_t kept_bytes = 0;
    for (int u = 0; u < w->n_units; u++) {
        int64_t bytes = 0;
        for (int i = 0; i < contents->n_parameters; i++)
            bytes += contents->parameters[i]->unit == u ? contents->parameters[i]->numel * 4 : 0;
        bool merge = u > 0 && kept_bytes + bytes <= bucket_bytes;
        if (merge) {
            free(w->names[u]);
            kept_bytes += bytes;
        } else {
            w->names[kept++] = w->names[u];
            kept_bytes = bytes;
        }
        for (int i = 0; i < contents->n_parameters; i++) {
            if (contents->parameters[i]->unit == u)
                contents->parameters[i]->unit = kept - 1;
        }
        w->modules[u].unit = kept - 1;
    }
    w->n_units = kept;
}

fsdp_status wrap_assign(fsdp_module *root, const module_contents *contents, const fsdp_wrap *policy,
                        int64_t bucket_bytes, wrap_result *out)
{
    wrapping w = {.policy = policy};
    for (int i = 0; i < contents->n_parameters; i++)
        contents->parameters[i]->unit = -1;
    if (policy->kind != FSDP_WRAP_NONE)
        visit(&w, root, 0, true, is_unit);
    if (policy->kind == FSDP_WRAP_TYPE && w.n_units == 0 && !w.failed)
        return error_set(FSDP_ERR_INPUT, "wrap policy: the model has no module of type \"%s\"", policy->type);
    if (policy->kind != FSDP_WRAP_NONE)
        visit(&w, root, 0, true, is_large_layer);
    if (unclaimed(root) > 0)
        add_unit(&w, root, "root");
    if (bucket_bytes > 0 && !w.failed)
        merge_small(contents, &w, bucket_bytes);
    *out = (wrap_result){w.names, w.n_units, w.modules, w.n_modules};
    if (w.failed) {
        wrap_result_free(out);
        return error_set(FSDP_ERR_MEMORY, "wrapping a model: out of host memory");
    }
    return FSDP_OK;
}

void wrap_result_free(wrap_result *r)
{
    for (int i = 0; i < r->n_units; i++)
        free(r->names[i]);
    free(r->names);
    free(r->modules);
    *r = (wrap_result){NULL, 0, NULL, 0};
}

fsdp_status wrap_no_such_unit(const char *setting, const char *glob, int n_units, const char *const *names)
{
    char list[512] = "";
    size_t used = 0;
    for (int i = 0; i < n_units && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    return error_set(FSDP_ERR_INPUT, "%s: no unit matches \"%s\"; the units are %s%s", setting, glob, list,
                     used >= sizeof list ? "..." : "");
}
