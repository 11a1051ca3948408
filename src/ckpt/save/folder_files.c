/* Writes, copies and checks config.json and tokenizer files, so that a folder of ours is a whole Hugging Face model
 * folder. Nothing is copied that is not what its name says. */
#include "ckpt/save/folder_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "ckpt/load/base.h"

#define CONFIG_NAME "config.json"
#define MAX_CONFIG_BYTES ((uint64_t)16 << 20)
#define MAX_SMALL_BYTES ((uint64_t)256 << 20) /* of any other */

typedef enum file_content {
    CONTENT_OBJECT,    /* JSON */
    CONTENT_JSON,      /* JSON, an object or an array */
    CONTENT_TOKENIZER, /* JSON with a "model" */
    CONTENT_TEXT,
    CONTENT_SENTENCEPIECE,
} file_content;

static const struct {
    const char *name;
    file_content content;
} tokenizer_files[] = {
    {"tokenizer.json", CONTENT_TOKENIZER},
    {"tokenizer_config.json", CONTENT_OBJECT},
    {"special_tokens_map.json", CONTENT_OBJECT},
    {"added_tokens.json", CONTENT_JSON},
    {"vocab.json", CONTENT_OBJECT},
    {"vocab.txt", CONTENT_TEXT},
    {"merges.txt", CONTENT_TEXT},
    {"spiece.model", CONTENT_SENTENCEPIECE},
    {"tokenizer.model", CONTENT_SENTENCEPIECE},
    {"generation_config.json", CONTENT_OBJECT},
    {"chat_template.jinja", CONTENT_TEXT},
    {"chat_template.json", CONTENT_OBJECT},
};
enum { N_TOKENIZER_FILES = sizeof tokenizer_files / sizeof *tokenizer_files };

static fsdp_status out_of_memory(const char *folder)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
}

/* ---- config.json ---- */

static const char *torch_name(fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 ? "bfloat16" : dtype == FSDP_F16 ? "float16" : "float32";
}

/* In the object, and in those inside it that have one: models of several parts describe each. */
static bool set_dtype(json_t *config, const char *name, bool always)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    const char *key;
    json_t *value;
    for (int i = 0; i < 2; i++)
        if ((always || json_is_string(json_object_get(config, keys[i]))) &&
            json_object_set_new(config, keys[i], json_string(name)) != 0)
            return false;
    json_object_foreach(config, key, value)
    {
        if (json_is_object(value) && !set_dtype(value, name, false))
            return false;
    }
    return true;
}

fsdp_status folder_write_config(const char *folder, const json_t *model, fsdp_dtype dtype, int64_t parameters_numel)
{
    json_t *config = model ? json_deep_copy(model)
                           : json_pack("{s:s, s:[s], s:I}", "model_type", "fsdp-custom", "architectures", "FsdpModule",
                                       "parameters", (json_int_t)parameters_numel);
    char *path = file_join(folder, CONFIG_NAME);
    fsdp_status status = out_of_memory(folder);
    if (config && path && set_dtype(config, torch_name(dtype), true))
        status = json_write_file(path, config);
    free(path);
    json_decref(config);
    return status;
}

static fsdp_status read_object(const char *path, json_t **out)
{
    char *text;
    size_t bytes;
    FSDP_TRY(file_read_at_most(path, MAX_CONFIG_BYTES, &text, &bytes));
    fsdp_status status = json_parse(path, text, bytes, out);
    free(text);
    if (status == FSDP_OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        status = error_set(FSDP_ERR_INPUT, "%s: is not a JSON object", path);
    }
    return status;
}

fsdp_status folder_read_config(const char *folder, json_t **out)
{
    *out = NULL;
    char *path = file_join(folder, CONFIG_NAME);
    if (!path)
        return out_of_memory(folder);
    fsdp_status status = file_exists(path) ? read_object(path, out) : FSDP_OK;
    free(path);
    return status;
}

/* ---- Tokenizers ---- */

static bool is_text(const char *data, size_t bytes)
{
    json_t *value = memchr(data, '\0', bytes) ? NULL : json_stringn(data, bytes);
    bool is = value != NULL; /* jansson takes UTF-8 only */
    json_decref(value);
    return is;
}

/* SentencePiece models are protocol buffers that begin with their first piece: field 1, its length, field 1 again. */
static bool is_sentencepiece(const char *data, size_t bytes)
{
    return bytes > 16 && data[0] == 0x0a && (unsigned char)data[1] < 0x80 && data[2] == 0x0a;
}

static fsdp_status check_json(const char *path, file_content content, const char *data, size_t bytes)
{
    json_t *root = NULL;
    FSDP_TRY(json_parse(path, data, bytes, &root));
    bool is = json_is_object(root) || (content == CONTENT_JSON && json_is_array(root));
    if (content == CONTENT_TOKENIZER)
        is &= json_is_object(json_object_get(root, "model"));
    json_decref(root);
    if (is)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: is not %s; it is not copied", path,
                     content == CONTENT_TOKENIZER ? "a tokenizer" : "a JSON object");
}

static fsdp_status check_content(const char *path, file_content content, const char *data, size_t bytes)
{
    if (content == CONTENT_TEXT)
        return is_text(data, bytes) ? FSDP_OK : error_set(FSDP_ERR_INPUT, "%s: is not text; it is not copied", path);
    if (content == CONTENT_SENTENCEPIECE)
        return is_sentencepiece(data, bytes)
                   ? FSDP_OK
                   : error_set(FSDP_ERR_INPUT, "%s: is not a SentencePiece model; it is not copied", path);
    return check_json(path, content, data, bytes);
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static fsdp_status copy_file(const char *from, file_content content, bool strange, const char *folder, const char *name)
{
    char *data = NULL, *to = file_join(folder, name);
    size_t bytes;
    fsdp_status status;
    if (!to)
        return out_of_memory(folder);
    if (strange && is_link(from))
        status = error_set(FSDP_ERR_INPUT, "%s: is a link; a checkpoint's files lie in it", from);
    else
        status = file_read_at_most(from, MAX_SMALL_BYTES, &data, &bytes);
    if (status == FSDP_OK)
        status = check_content(from, content, data, bytes);
    if (status == FSDP_OK)
        status = file_write_atomic(to, data, bytes);
    free(data);
    free(to);
    return status;
}

static bool has_file(const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    bool there = path && file_exists(path);
    free(path);
    return there;
}

bool folder_has_tokenizer(const char *folder)
{
    bool has = false;
    for (int i = 0; i < N_TOKENIZER_FILES && !has; i++)
        has = has_file(folder, tokenizer_files[i].name);
    return has;
}

fsdp_status folder_copy_tokenizer(const char *from, bool strange, const char *to)
{
    if (!from || !*from)
        return FSDP_OK;
    if (file_exists(from) && !file_is_directory(from))
        return copy_file(from, CONTENT_TOKENIZER, strange, to, "tokenizer.json");
    for (int i = 0; i < N_TOKENIZER_FILES; i++) {
        char *source = file_join(from, tokenizer_files[i].name);
        fsdp_status status = source ? FSDP_OK : out_of_memory(to);
        if (status == FSDP_OK && file_exists(source))
            status = copy_file(source, tokenizer_files[i].content, strange, to, tokenizer_files[i].name);
        free(source);
        if (status == FSDP_ERR_INPUT && !strange) {
            log_write(FSDP_LOG_WARNING, "left out: %s", fsdp_last_error());
            status = FSDP_OK;
        }
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* ---- Checksums ---- */

static const char *beside_name(int index)
{
    static const char *const others[] = {CONFIG_NAME, "model.safetensors.index.json"};
    return index < 2 ? others[index] : tokenizer_files[index - 2].name;
}

static fsdp_status measure(const char *folder, const char *name, int64_t *bytes, uint64_t *checksum)
{
    char *data = NULL, *path = file_join(folder, name);
    size_t length;
    hash_stream hash;
    if (!path)
        return out_of_memory(folder);
    fsdp_status status = file_read_at_most(path, MAX_SMALL_BYTES, &data, &length);
    if (status == FSDP_OK) {
        hash_stream_start(&hash);
        hash_stream_add(&hash, data, length);
        *checksum = hash_stream_end(&hash);
        *bytes = (int64_t)length;
    }
    free(data);
    free(path);
    return status;
}

fsdp_status folder_list_beside(const char *folder, manifest *m)
{
    m->beside = arena_alloc(m->memory, (2 + N_TOKENIZER_FILES) * sizeof *m->beside);
    if (!m->beside)
        return out_of_memory(folder);
    m->n_beside = 0;
    for (int i = 0; i < 2 + N_TOKENIZER_FILES; i++) {
        manifest_beside *file = &m->beside[m->n_beside];
        if (!has_file(folder, beside_name(i)))
            continue;
        file->name = beside_name(i);
        FSDP_TRY(measure(folder, file->name, &file->bytes, &file->checksum));
        m->n_beside++;
    }
    return FSDP_OK;
}

static fsdp_status check_listed(const char *folder, const manifest *m)
{
    for (int i = 0; i < m->n_beside; i++) {
        const manifest_beside *file = &m->beside[i];
        int64_t bytes = 0;
        uint64_t checksum = 0;
        if (!has_file(folder, file->name))
            return error_set(FSDP_ERR_INPUT, "%s: %s is missing", folder, file->name);
        FSDP_TRY(measure(folder, file->name, &bytes, &checksum));
        if (bytes != file->bytes || checksum != file->checksum)
            return error_set(FSDP_ERR_INPUT, "%s: %s is not as it was written: the checksum does not hold", folder,
                             file->name);
    }
    return FSDP_OK;
}

/* ---- config.json against the tensors ---- */

/* Layers of "model.layers.<n>." names; 0: there are none. */
static int64_t count_layers(const ckpt_source *source)
{
    int64_t most = 0;
    for (int i = 0; i < source_count(source); i++) {
        int layer = -1;
        if (source_at(source, i)->role == CKPT_PARAMETER &&
            sscanf(source_at(source, i)->name, "model.layers.%8d.", &layer) == 1 && layer >= most)
            most = layer + 1;
    }
    return most;
}

static bool has_shape(const ckpt_source *source, int64_t rows, int64_t columns)
{
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        if (tensor->role == CKPT_PARAMETER && tensor->n_dims == 2 && tensor->shape[0] == rows &&
            tensor->shape[1] == columns)
            return true;
    }
    return false;
}

/* What can be told without building the model: its embedding, and how many layers there are. */
static fsdp_status check_config(const ckpt_source *source, const json_t *config)
{
    const char *path = source_path(source), *type = json_string_value(json_object_get(config, "model_type"));
    if (!type || (strcmp(type, "llama") != 0 && strcmp(type, "t5") != 0))
        return FSDP_OK; /* others may mean something else by these fields */
    const json_t *vocabulary = json_object_get(config, "vocab_size"), *width = json_object_get(config, "hidden_size");
    const json_t *layers = json_object_get(config, "num_hidden_layers");
    int64_t n_layers = count_layers(source);
    if (!width)
        width = json_object_get(config, "d_model");
    if (json_is_integer(vocabulary) && json_is_integer(width) &&
        !has_shape(source, json_integer_value(vocabulary), json_integer_value(width)))
        return error_set(FSDP_ERR_INPUT,
                         "%s: " CONFIG_NAME " is of another model: it says %lld tokens and width %lld, and no tensor "
                         "has that shape",
                         path, (long long)json_integer_value(vocabulary), (long long)json_integer_value(width));
    if (json_is_integer(layers) && n_layers > 0 && json_integer_value(layers) != n_layers)
        return error_set(FSDP_ERR_INPUT,
                         "%s: " CONFIG_NAME " is of another model: it says %lld layers, the tensors are of %" PRId64,
                         path, (long long)json_integer_value(layers), n_layers);
    return FSDP_OK;
}

fsdp_status folder_check_beside(const ckpt_source *source)
{
    const manifest *m = source_manifest(source);
    const char *path = source_path(source);
    json_t *config = NULL;
    if (!file_is_directory(path))
        return FSDP_OK;
    if (m && m->n_beside >= 0)
        FSDP_TRY(check_listed(path, m));
    else if (m && m->kind == FSDP_CKPT_FULL && !has_file(path, CONFIG_NAME))
        return error_set(FSDP_ERR_INPUT, "%s: " CONFIG_NAME " is missing", path);
    FSDP_TRY(folder_read_config(path, &config));
    base_reference base; /* whose tensors the configuration is about */
    fsdp_status status = config && !base_refers(source, &base) ? check_config(source, config) : FSDP_OK;
    json_decref(config);
    return status;
}
