/* Text into token files: the public call, and the sink that writes. */
#include <sys/stat.h>

#include "base/error.h"
#include "base/sized.h"
#include "data/token_build.h"
#include "format/token/token_file.h"

static fsdp_status append(void *context, const int32_t *ids, size_t n)
{
    return token_writer_append(context, ids, n);
}

static fsdp_status end_document(void *context)
{
    return token_writer_end_document(context);
}

fsdp_status token_build_file(const source_list *files, const fsdp_tokenizer *tokenizer,
                             const token_build_options *options, const char *path, fsdp_tokenize_result *result)
{
    token_writer *writer = NULL;
    FSDP_TRY(token_writer_create(path, fsdp_tokenizer_vocab_size(tokenizer), &writer));
    token_sink sink = {writer, append, end_document, NULL};
    fsdp_status status = token_build(files, tokenizer, options, &sink, result);
    if (status != FSDP_OK) {
        token_writer_abort(writer);
        return status;
    }
    return token_writer_commit(writer);
}

/* What is written must not replace what is read. */
static fsdp_status check_output(const source_list *files, const char *output)
{
    struct stat written, read;
    if (stat(output, &written) != 0)
        return FSDP_OK;
    for (size_t i = 0; i < files->n_files; i++)
        if (stat(files->files[i].path, &read) == 0 && read.st_dev == written.st_dev && read.st_ino == written.st_ino)
            return error_set(FSDP_ERR_INPUT, "%s: is read and would be replaced by its tokens; name another output",
                             output);
    return FSDP_OK;
}

fsdp_status fsdp_tokenize_files(const fsdp_tokenizer *tokenizer, const fsdp_tokenize_config *given,
                                fsdp_tokenize_result *result)
{
    source_list files;
    SIZED_READ(fsdp_tokenize_config, FSDP_TOKENIZE_CONFIG_INIT, full, given);
    const fsdp_tokenize_config *config = &full;
    if (config->output == NULL)
        return error_set(FSDP_ERR_INPUT, "no output file is named for the tokens");
    FSDP_TRY(source_list_make(config->inputs, config->n_inputs, config->config_name, FSDP_PART_ALL, false, &files));
    token_build_options options = {.field = config->field,
                                   .strict = config->strict,
                                   .n_threads = config->n_threads,
                                   .max_tokens = config->max_tokens,
                                   .progress = config->progress,
                                   .stop_requested = config->stop_requested,
                                   .context = config->context};
    fsdp_status status = FSDP_OK;
    for (size_t i = 0; i < files.n_files && config->jsonl; i++)
        if (files.files[i].kind == SOURCE_TEXT)
            files.files[i].kind = SOURCE_JSONL;
    if (files.files[0].kind > SOURCE_ROWS)
        status = error_set(FSDP_ERR_INPUT, "%s holds %s, not text", files.files[0].path,
                           source_kind_name(files.files[0].kind));
    else
        status = check_output(&files, config->output);
    if (status == FSDP_OK)
        status = token_build_file(&files, tokenizer, &options, config->output, result);
    source_list_free(&files);
    return status;
}
