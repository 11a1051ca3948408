/* Adapters beside linear layers. The side path is a composition of ordinary operations, so recording, schedules,
 * strategies and checkpoints know nothing of it. */
#include "nn/lora.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tensor/linear.h"

/* ---- Forward ---- */

static double scale_of(const fsdp_lora_config *config)
{
    return config->alpha / (config->rslora ? sqrt((double)config->rank) : (double)config->rank);
}

/* y (..., columns) with the adapter's product added from column `first` on. */
static fsdp_tensor *add_side_path(fsdp_tape *t, fsdp_tensor *x, const fsdp_parameter *weight, fsdp_tensor *y,
                                  int64_t first)
{
    const lora_path *path = &weight->lora;
    x = path->dropout > 0 ? fsdp_dropout(t, x, path->dropout) : x;
    fsdp_tensor *low = fsdp_scale(t, fsdp_linear(t, x, fsdp_use(t, path->a), NULL), path->scale);
    return linear_add_columns(t, low, fsdp_use(t, path->b), y, first);
}

fsdp_tensor *lora_project(fsdp_tape *t, fsdp_tensor *x, fsdp_parameter *weight, fsdp_parameter *bias,
                          fsdp_tensor *residual)
{
    fsdp_tensor *w = fsdp_use_group(t, weight), *b = bias ? fsdp_use_group(t, bias) : NULL, *y;
    if (!w)
        return NULL;
    bool input_major = weight->linear == LINEAR_INPUT_MAJOR;
    if (input_major)
        y = fsdp_linear_input_major(t, x, w, b, residual);
    else
        y = residual ? fsdp_linear_add(t, x, w, b, residual) : fsdp_linear(t, x, w, b);
    int64_t first = 0;
    for (const fsdp_parameter *member = weight; member; member = member->group_next) {
        if (member->lora.b)
            y = add_side_path(t, x, member, y, first);
        first += member->shape[input_major ? 1 : 0];
    }
    return y;
}

/* ---- Which layers ---- */

typedef struct linear_layer {
    fsdp_module *module;
    fsdp_parameter *weight;
    char *name; /* full, without ".weight" */
    bool chosen;
} linear_layer;

typedef struct layer_list {
    linear_layer *list;
    int n;
    bool adapted; /* already */
} layer_list;

static void free_layers(layer_list *layers)
{
    for (int i = 0; i < layers->n; i++)
        free(layers->list[i].name);
    free(layers->list);
}

static bool list_layers(void *context, fsdp_module *m, const char *path)
{
    layer_list *layers = context;
    for (int i = 0; i < m->n_parameters; i++) {
        fsdp_parameter *p = m->parameters[i];
        layers->adapted |= p->adapter;
        if (p->linear == LINEAR_NONE)
            continue;
        linear_layer *grown = realloc(layers->list, (size_t)(layers->n + 1) * sizeof *grown);
        if (!grown)
            return false;
        layers->list = grown;
        char *name = NULL;
        const char *end = strrchr(p->name, '.'); /* NULL: "weight" is all there is */
        int length = end ? (int)(end - p->name) : 0;
        if (asprintf(&name, "%s%s%.*s", path, path[0] && length ? "." : "", length, p->name) < 0)
            return false;
        layers->list[layers->n++] = (linear_layer){.module = m, .weight = p, .name = name};
    }
    return true;
}

static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* The pattern is one of the whole name, or of its last words. */
static bool matches(const char *name, const char *pattern)
{
    for (const char *at = name; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        if (fnmatch(pattern, at, 0) == 0)
            return true;
    }
    return false;
}

static fsdp_status choose_by_list(layer_list *layers, const char *targets)
{
    char text[FSDP_LORA_TARGETS], *rest = text;
    snprintf(text, sizeof text, "%s", targets);
    for (char *item = strtok_r(rest, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
        int found = 0;
        for (int i = 0; i < layers->n; i++) {
            bool match = strcmp(item, "all-linear") == 0 || matches(layers->list[i].name, item);
            layers->list[i].chosen |= match;
            found += match;
        }
        if (found > 0)
            continue;
        char known[512] = "";
        size_t used = 0;
        for (int i = 0; i < layers->n && used < sizeof known; i++) {
            const char *word = last_word(layers->list[i].name);
            bool repeated = false;
            for (int k = 0; k < i && !repeated; k++)
                repeated = strcmp(word, last_word(layers->list[k].name)) == 0;
            if (!repeated)
                used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", word);
        }
        return error_set(FSDP_ERR_INPUT, "LoRA: no linear layer is called \"%s\"; there are %s", item,
                         known[0] ? known : "none that can be adapted");
    }
    return FSDP_OK;
}

/* The last word of a chosen layer's name serves, unless a layer that was not chosen has the same: then its full name.
 */
static fsdp_status resolve_targets(const layer_list *layers, char *targets)
{
    size_t used = 0;
    for (int i = 0; i < layers->n; i++) {
        const char *word = last_word(layers->list[i].name);
        bool known = !layers->list[i].chosen, shared = false;
        for (int k = 0; k < layers->n && !known; k++) {
            if (strcmp(word, last_word(layers->list[k].name)) != 0)
                continue;
            shared |= !layers->list[k].chosen;
        }
        for (int k = 0; k < i && !known && !shared; k++)
            known = layers->list[k].chosen && strcmp(word, last_word(layers->list[k].name)) == 0;
        if (known)
            continue;
        used += (size_t)snprintf(targets + used, FSDP_LORA_TARGETS - used, "%s%s", used ? "," : "",
                                 shared ? layers->list[i].name : word);
        if (used >= FSDP_LORA_TARGETS)
            return error_set(FSDP_ERR_INPUT,
                             "LoRA: the names of the layers take more than %d characters; choose all "
                             "layers of a name",
                             FSDP_LORA_TARGETS);
    }
    return used ? FSDP_OK : error_set(FSDP_ERR_INPUT, "LoRA: no names of layers");
}

/* ---- Building ---- */

static fsdp_parameter *add_matrix(const linear_layer *l, const char *which, int64_t rows, int64_t columns,
                                  fsdp_init init, float bound)
{
    char *name = NULL;
    const char *end = strrchr(l->weight->name, '.');
    int length = end ? (int)(end + 1 - l->weight->name) : 0;
    int64_t shape[] = {rows, columns};
    if (asprintf(&name, "%.*slora_%s.weight", length, l->weight->name, which) < 0)
        return NULL;
    fsdp_parameter *p = fsdp_module_parameter(l->module, name, 2, shape, init, bound);
    free(name);
    if (p)
        p->adapter = true;
    return p;
}

static void adapt(const linear_layer *l, const fsdp_lora_config *c)
{
    bool input_major = l->weight->linear == LINEAR_INPUT_MAJOR;
    int64_t inputs = l->weight->shape[input_major ? 0 : 1], outputs = l->weight->shape[input_major ? 1 : 0];
    l->weight->lora = (lora_path){.a = add_matrix(l, "A", c->rank, inputs, FSDP_INIT_UNIFORM, 1 / sqrtf((float)inputs)),
                                  .b = add_matrix(l, "B", outputs, c->rank, FSDP_INIT_ZERO, 0),
                                  .scale = (float)scale_of(c),
                                  .dropout = (float)c->dropout};
}

static bool freeze(void *context, fsdp_module *m, const char *path)
{
    (void)context, (void)path;
    for (int i = 0; i < m->n_parameters; i++)
        m->parameters[i]->trainable &= m->parameters[i]->adapter;
    return true;
}

static fsdp_status check(const fsdp_lora_config *c)
{
    if (c->rank < 1 || c->rank > 1 << 16)
        return error_set(FSDP_ERR_INPUT, "LoRA: a rank of %lld; 1 to %d are possible", (long long)c->rank, 1 << 16);
    if (!isfinite(c->alpha))
        return error_set(FSDP_ERR_INPUT, "LoRA: an alpha of %g", c->alpha);
    if (!(c->dropout >= 0 && c->dropout < 1))
        return error_set(FSDP_ERR_INPUT, "LoRA: a dropout of %g; it must lie in [0, 1)", c->dropout);
    if (!memchr(c->targets, '\0', sizeof c->targets) || !c->targets[0])
        return error_set(FSDP_ERR_INPUT, "LoRA: no names of layers");
    return FSDP_OK;
}

fsdp_status lora_apply(fsdp_module *root, fsdp_lora_config *config)
{
    layer_list layers = {NULL, 0, false};
    fsdp_status status = check(config);
    FSDP_TRY(status);
    FSDP_TRY(fsdp_module_check(root));
    if (!module_walk(root, list_layers, &layers))
        status = error_set(FSDP_ERR_MEMORY, "LoRA: out of host memory");
    else if (layers.adapted)
        status = error_set(FSDP_ERR_STATE, "LoRA: the model has adapters already");
    else
        status = choose_by_list(&layers, config->targets);
    if (status == FSDP_OK)
        status = resolve_targets(&layers, config->targets);
    for (int i = 0; i < layers.n && status == FSDP_OK; i++) {
        if (layers.list[i].chosen)
            adapt(&layers.list[i], config);
    }
    free_layers(&layers);
    FSDP_TRY(status);
    module_walk(root, freeze, NULL);
    return fsdp_module_check(root);
}
