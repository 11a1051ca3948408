/* Keeps the chosen matrix algorithms between runs and carries them between ranks, as JSON: the library version and GPU
 * they hold for, and for each product its key and the algorithm's eight opaque words in hexadecimal. */
#include "device/cuda/gemm/gemm_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#define N_WORDS (sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t))

static json_t *entry_to_json(const gemm_entry *entry)
{
    uint64_t words[N_WORDS];
    memcpy(words, &entry->algorithm, sizeof words);
    char text[N_WORDS * 17 + 1] = "";
    for (size_t i = 0; i < N_WORDS; i++)
        snprintf(text + 17 * i, 18, "%016" PRIx64 "%s", words[i], i + 1 < N_WORDS ? " " : "");
    return json_pack("{s:s, s:s, s:f}", "product", entry->key, "algorithm", text, "milliseconds",
                     (double)entry->milliseconds);
}

static json_t *table_to_json(cuda_device *d)
{
    json_t *products = json_array();
    gemm_table_lock(d->gemms);
    for (int i = 0; i < 256; i++)
        for (const gemm_entry *entry = d->gemms->entries[i]; entry; entry = entry->next)
            if (entry->chosen && entry->milliseconds > 0) /* timed, here or in an earlier run */
                json_array_append_new(products, entry_to_json(entry));
    gemm_table_unlock(d->gemms);
    return json_pack("{s:I, s:s, s:o}", "cublaslt", (json_int_t)d->libraries.cublaslt.cublasLtGetVersion(), "gpu",
                     d->gpu.name, "products", products);
}

static bool parse_words(const char *text, uint64_t words[N_WORDS])
{
    for (size_t i = 0; i < N_WORDS; i++) {
        char *end = NULL;
        words[i] = strtoull(text, &end, 16);
        if (end != text + 16)
            return false;
        text = end + (*end == ' ');
    }
    return *text == '\0';
}

static fsdp_status load_product(cuda_device *d, const char *name, const json_t *product)
{
    const char *key = NULL, *text = NULL;
    double milliseconds = 0;
    uint64_t words[N_WORDS];
    FSDP_TRY(json_get_string(name, product, "product", &key));
    FSDP_TRY(json_get_string(name, product, "algorithm", &text));
    FSDP_TRY(json_opt_number(name, product, "milliseconds", &milliseconds));
    if (strlen(key) >= GEMM_KEY_CHARS || !parse_words(text, words))
        return error_set(FSDP_ERR_INPUT, "%s: the algorithm of product '%.100s' is damaged; delete the file", name,
                         key);
    gemm_table_lock(d->gemms);
    gemm_entry *entry = gemm_table_entry(d->gemms, key);
    if (entry && !(entry->described && !entry->usable)) {
        memcpy(&entry->algorithm, words, sizeof words);
        entry->chosen = entry->loaded = true;
        entry->milliseconds = (float)milliseconds;
    }
    gemm_table_unlock(d->gemms);
    return entry ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of host memory for the table of products");
}

static fsdp_status load_table(cuda_device *d, const char *name, const json_t *root)
{
    int64_t version = 0;
    const char *gpu = NULL;
    FSDP_TRY(json_get_int(name, root, "cublaslt", &version));
    FSDP_TRY(json_get_string(name, root, "gpu", &gpu));
    if ((size_t)version != d->libraries.cublaslt.cublasLtGetVersion() || strcmp(gpu, d->gpu.name) != 0)
        return FSDP_OK;
    const json_t *products = json_object_get(root, "products");
    if (!json_is_array(products))
        return error_set(FSDP_ERR_INPUT, "%s: products is not a list; delete the file", name);
    for (size_t i = 0; i < json_array_size(products); i++)
        FSDP_TRY(load_product(d, name, json_array_get(products, i)));
    return FSDP_OK;
}

fsdp_status cuda_autotune_import(device *d, const char *name, const char *bytes, size_t n)
{
    json_t *root = NULL;
    FSDP_TRY(json_parse(name, bytes, n, &root));
    fsdp_status status = load_table((cuda_device *)d, name, root);
    json_decref(root);
    return status;
}

fsdp_status cuda_gemm_cache_load(device *d, const char *path)
{
    json_t *root = NULL;
    FSDP_TRY(json_read_file(path, &root));
    fsdp_status status = load_table((cuda_device *)d, path, root);
    json_decref(root);
    return status;
}

fsdp_status cuda_autotune_export(device *d, char **bytes, size_t *n)
{
    json_t *root = table_to_json((cuda_device *)d);
    *bytes = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    *n = *bytes ? strlen(*bytes) : 0;
    json_decref(root);
    return *bytes ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of host memory for the list of products");
}

fsdp_status cuda_gemm_cache_save(device *d, const char *path)
{
    json_t *root = table_to_json((cuda_device *)d);
    if (!root)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for the list of products");
    fsdp_status status = json_write_file(path, root);
    json_decref(root);
    return status;
}
