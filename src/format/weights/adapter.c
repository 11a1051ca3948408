/* Folders of adapters, and the product of an adapter's two matrices. */
#include "format/weights/adapter.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/weights/safetensors.h"
#include "format/weights/safetensors_writer.h"

#define PREFIX "base_model.model."

static const char weights_file[] = "adapter_model.safetensors", config_file[] = "adapter_config.json";
static const char *const endings[] = {".lora_A.weight", ".lora_B.weight"};

static fsdp_status no_memory(void)
{
    return error_set(FSDP_ERR_MEMORY, "an adapter: out of host memory");
}

fsdp_status adapter_create(const adapter_config *config, adapter **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return no_memory();
    (*out)->config = *config;
    return FSDP_OK;
}

void adapter_free(adapter *a)
{
    for (int i = 0; a && i < a->n_pairs; i++) {
        free(a->pairs[i].layer);
        free(a->pairs[i].a);
        free(a->pairs[i].b);
    }
    if (a)
        free(a->pairs);
    free(a);
}

static int by_layer(const void *a, const void *b)
{
    return strcmp(((const adapter_pair *)a)->layer, ((const adapter_pair *)b)->layer);
}

fsdp_status adapter_add_pair(adapter *a, const char *layer, int64_t inputs, int64_t outputs, adapter_pair **out)
{
    int64_t rank = a->config.lora.rank, n_a, n_b;
    if (inputs < 1 || outputs < 1 || checked_mul_i64(rank, inputs, &n_a) || checked_mul_i64(rank, outputs, &n_b))
        return error_set(FSDP_ERR_INPUT, "an adapter of %s: %lld inputs and %lld outputs", layer, (long long)inputs,
                         (long long)outputs);
    adapter_pair pair = {.layer = strdup(layer), .inputs = inputs, .outputs = outputs};
    pair.a = malloc((size_t)n_a * sizeof *pair.a);
    pair.b = malloc((size_t)n_b * sizeof *pair.b);
    adapter_pair *grown = realloc(a->pairs, (size_t)(a->n_pairs + 1) * sizeof *grown);
    if (grown)
        a->pairs = grown;
    if (!grown || !pair.layer || !pair.a || !pair.b) {
        free(pair.layer);
        free(pair.a);
        free(pair.b);
        return no_memory();
    }
    int at = a->n_pairs++;
    for (; at > 0 && by_layer(&pair, &a->pairs[at - 1]) < 0; at--)
        a->pairs[at] = a->pairs[at - 1];
    a->pairs[at] = pair;
    *out = &a->pairs[at];
    return FSDP_OK;
}

bool adapter_layer_of(const char *tensor, size_t *length, bool *is_b)
{
    size_t n = strlen(tensor), end = strlen(endings[0]);
    for (int k = 0; k < 2; k++) {
        if (n > end && strcmp(tensor + n - end, endings[k]) == 0) {
            *length = n - end;
            *is_b = k == 1;
            return true;
        }
    }
    return false;
}

/* ---- Reading ---- */

/* Both matrices of the layer whose A this is. */
static fsdp_status read_pair(adapter *a, const safetensors *file, const safetensors_tensor *t, size_t length)
{
    char layer[1024], partner[1200];
    const safetensors_tensor *b;
    adapter_pair *pair;
    int64_t rank = a->config.lora.rank;
    snprintf(layer, sizeof layer, "%.*s", (int)(length - strlen(PREFIX)), t->name + strlen(PREFIX));
    snprintf(partner, sizeof partner, "%.*s%s", (int)length, t->name, endings[1]);
    FSDP_TRY(safetensors_get(file, partner, &b));
    if (t->n_dims != 2 || b->n_dims != 2 || t->shape[0] != rank || b->shape[1] != rank)
        return error_set(FSDP_ERR_INPUT, "%s: %s and %s are no matrices of rank %lld", t->path, t->name, b->name,
                         (long long)rank);
    FSDP_TRY(adapter_add_pair(a, layer, t->shape[1], b->shape[0], &pair));
    FSDP_TRY(safetensors_read_f32(t, 0, t->numel, pair->a));
    return safetensors_read_f32(b, 0, b->numel, pair->b);
}

static fsdp_status read_pairs(adapter *a, const safetensors *file)
{
    int partners = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *t = safetensors_at(file, i);
        size_t length;
        bool is_b;
        if (strncmp(t->name, PREFIX, strlen(PREFIX)) != 0 || strlen(t->name) > 1000 ||
            !adapter_layer_of(t->name, &length, &is_b) || length <= strlen(PREFIX))
            return error_set(FSDP_ERR_UNSUPPORTED,
                             "%s: %s is no matrix of an adapter; " PREFIX "LAYER%s and %s are known", t->path, t->name,
                             endings[0], endings[1]);
        partners += is_b;
        if (!is_b)
            FSDP_TRY(read_pair(a, file, t, length));
    }
    if (partners != a->n_pairs || a->n_pairs == 0)
        return error_set(FSDP_ERR_INPUT, "%d matrices A and %d matrices B do not make pairs", a->n_pairs, partners);
    return FSDP_OK;
}

/* The layers that an expression of Python's was for are those that there are pairs of: full names, or where those are
 * too many the last words. */
static void name_layers(adapter *a)
{
    char *out = a->config.lora.targets;
    size_t used = FSDP_LORA_TARGETS;
    for (int words = 0; words < 2 && used >= FSDP_LORA_TARGETS; words++) {
        used = 0;
        for (int i = 0; i < a->n_pairs && used < FSDP_LORA_TARGETS; i++) {
            const char *layer = a->pairs[i].layer, *dot = words ? strrchr(layer, '.') : NULL;
            used +=
                (size_t)snprintf(out + used, FSDP_LORA_TARGETS - used, "%s%s", used ? "," : "", dot ? dot + 1 : layer);
        }
    }
}

fsdp_status adapter_open(const char *folder, adapter **out)
{
    char *config_path = file_join(folder, config_file), *path = file_join(folder, weights_file);
    json_t *object = NULL;
    safetensors *file = NULL;
    adapter_config config;
    *out = NULL;
    fsdp_status status = config_path && path ? FSDP_OK : no_memory();
    if (status == FSDP_OK && !file_exists(config_path))
        status = error_set(FSDP_ERR_INPUT, "%s: no adapter there: %s is missing", folder, config_file);
    if (status == FSDP_OK)
        status = json_read_file(config_path, &object);
    if (status == FSDP_OK)
        status = adapter_config_parse(config_path, object, &config);
    if (status == FSDP_OK)
        status = safetensors_open(path, &file);
    if (status == FSDP_OK)
        status = adapter_create(&config, out);
    if (status == FSDP_OK)
        status = read_pairs(*out, file);
    if (status == FSDP_OK && !(*out)->config.lora.targets[0])
        name_layers(*out);
    if (status != FSDP_OK) {
        adapter_free(*out);
        *out = NULL;
    }
    safetensors_close(file);
    json_decref(object);
    free(config_path);
    free(path);
    return status;
}

/* ---- Writing ---- */

/* Nothing of somebody else's is in the way. */
static fsdp_status check_folder(const char *folder)
{
    DIR *d = opendir(folder);
    fsdp_status status = FSDP_OK;
    for (struct dirent *e; d && status == FSDP_OK && (e = readdir(d));) {
        bool ours = e->d_name[0] == '.' || strcmp(e->d_name, weights_file) == 0 ||
                    strcmp(e->d_name, config_file) == 0 || strcmp(e->d_name, "README.md") == 0;
        if (!ours)
            status = error_set(FSDP_ERR_INPUT, "%s: holds %s, which is of no adapter; choose another folder", folder,
                               e->d_name);
    }
    if (d)
        closedir(d);
    return status;
}

static fsdp_status declare(const adapter *a, safetensors_writer *w)
{
    char name[1200];
    for (int i = 0; i < a->n_pairs; i++) {
        const adapter_pair *p = &a->pairs[i];
        int64_t rank = a->config.lora.rank, shapes[2][2] = {{rank, p->inputs}, {p->outputs, rank}};
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, PREFIX "%s%s", p->layer, endings[k]);
            FSDP_TRY(safetensors_writer_add(w, name, FSDP_F32, 2, shapes[k], NULL));
        }
    }
    return safetensors_writer_begin(w);
}

static fsdp_status write_weights(const adapter *a, const char *path)
{
    safetensors_writer *w;
    FSDP_TRY(safetensors_writer_create(path, &w));
    fsdp_status status = declare(a, w);
    for (int i = 0; i < a->n_pairs && status == FSDP_OK; i++) {
        const adapter_pair *p = &a->pairs[i];
        size_t row = (size_t)a->config.lora.rank * sizeof(float), index = 2 * (size_t)i;
        status = safetensors_writer_write(w, index, 0, p->a, row * (size_t)p->inputs);
        if (status == FSDP_OK)
            status = safetensors_writer_write(w, index + 1, 0, p->b, row * (size_t)p->outputs);
    }
    if (status == FSDP_OK)
        return safetensors_writer_commit(w);
    safetensors_writer_abort(w);
    return status;
}

fsdp_status adapter_write(const adapter *a, const char *folder, const char *task, const char *base)
{
    char *config_path = file_join(folder, config_file), *path = file_join(folder, weights_file);
    json_t *object = adapter_config_json(&a->config, task, base);
    fsdp_status status = config_path && path && object ? FSDP_OK : no_memory();
    if (status == FSDP_OK)
        status = file_make_directories(folder);
    if (status == FSDP_OK)
        status = check_folder(folder);
    if (status == FSDP_OK)
        status = write_weights(a, path);
    if (status == FSDP_OK)
        status = json_write_file(config_path, object);
    json_decref(object);
    free(config_path);
    free(path);
    return status;
}

/* ---- The product ---- */

static double scale_of(const adapter *a)
{
    const fsdp_lora_config *c = &a->config.lora;
    return c->alpha / (c->rslora ? sqrt((double)c->rank) : (double)c->rank);
}

const adapter_pair *adapter_find(const adapter *a, const char *weight)
{
    char layer[1024];
    size_t n = strlen(weight), end = strlen(".weight");
    if (n <= end || n >= sizeof layer || strcmp(weight + n - end, ".weight") != 0)
        return NULL;
    snprintf(layer, sizeof layer, "%.*s", (int)(n - end), weight);
    adapter_pair key = {.layer = layer};
    return bsearch(&key, a->pairs, (size_t)a->n_pairs, sizeof key, by_layer);
}

/* Element (output, input) of B A. */
static double element(const adapter_pair *p, int64_t rank, int64_t output, int64_t input)
{
    double sum = 0;
    for (int64_t k = 0; k < rank; k++)
        sum += (double)p->b[output * rank + k] * p->a[k * p->inputs + input];
    return sum;
}

fsdp_status adapter_add_product(const adapter *a, const adapter_pair *pair, const int64_t shape[2], int64_t first,
                                int64_t n, float *values)
{
    bool input_major = a->config.input_major;
    int64_t rank = a->config.lora.rank;
    double scale = scale_of(a);
    if (shape[input_major ? 0 : 1] != pair->inputs || shape[input_major ? 1 : 0] != pair->outputs)
        return error_set(FSDP_ERR_INPUT,
                         "the adapter of %s has %lld inputs and %lld outputs; its weight is %lld x %lld", pair->layer,
                         (long long)pair->inputs, (long long)pair->outputs, (long long)shape[0], (long long)shape[1]);
#pragma omp parallel for schedule(static) if (n >= 4096)
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (first + i) / shape[1], column = (first + i) % shape[1];
        double product = element(pair, rank, input_major ? column : row, input_major ? row : column);
        values[i] = (float)((double)values[i] + scale * product);
    }
    return FSDP_OK;
}
