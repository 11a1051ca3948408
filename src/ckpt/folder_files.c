/* Writes config.json and copies tokenizer files, so that a folder of ours is a whole Hugging Face model folder. */
#include "ckpt/folder_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

static const char *const tokenizer_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
};

static const char *torch_name(fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 ? "bfloat16" : dtype == FSDP_F16 ? "float16" : "float32";
}

static fsdp_status out_of_memory(const char *folder)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
}

fsdp_status folder_write_config(const char *folder, const json_t *model, fsdp_dtype dtype, int64_t parameters_numel)
{
    json_t *config = model ? json_copy((json_t *)(uintptr_t)model)
                           : json_pack("{s:s, s:[s], s:I}", "model_type", "fsdp-custom", "architectures", "FsdpModule",
                                       "parameters", (json_int_t)parameters_numel);
    char *path = file_join(folder, "config.json");
    fsdp_status status = out_of_memory(folder);
    if (config && path && json_object_set_new(config, "torch_dtype", json_string(torch_name(dtype))) == 0)
        status = json_write_file(path, config);
    free(path);
    json_decref(config);
    return status;
}

fsdp_status folder_read_config(const char *folder, json_t **out)
{
    *out = NULL;
    char *path = file_join(folder, "config.json");
    if (!path)
        return out_of_memory(folder);
    fsdp_status status = file_exists(path) ? json_read_file(path, out) : FSDP_OK;
    free(path);
    return status;
}

static fsdp_status copy_file(const char *from, const char *to)
{
    char *data;
    size_t bytes;
    FSDP_TRY(file_read(from, &data, &bytes));
    fsdp_status status = file_write_atomic(to, data, bytes);
    free(data);
    return status;
}

static fsdp_status copy_into(const char *source, const char *to, const char *name)
{
    char *target = file_join(to, name);
    fsdp_status status = target ? copy_file(source, target) : out_of_memory(to);
    free(target);
    return status;
}

fsdp_status folder_copy_tokenizer(const char *from, const char *to)
{
    if (!from || !*from)
        return FSDP_OK;
    if (file_exists(from) && !file_is_directory(from))
        return copy_into(from, to, "tokenizer.json");
    for (size_t i = 0; i < sizeof tokenizer_files / sizeof *tokenizer_files; i++) {
        char *source = file_join(from, tokenizer_files[i]);
        fsdp_status status = source ? FSDP_OK : out_of_memory(to);
        if (status == FSDP_OK && file_exists(source))
            status = copy_into(source, to, tokenizer_files[i]);
        free(source);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}
