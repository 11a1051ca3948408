/* A sample of what a language model has learned so far, written by all ranks together, since each holds only its
 * shards. `fsdp generate` is the tool for more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/generate.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/hub/hub.h"
#include "tokenizer/template/chat_template.h"
#include "train/run.h"

static void keep(void *file, const char *text, size_t bytes)
{
    fwrite(text, 1, bytes, file);
}

/* Where conversations have their template from: --chat_template, or the tokenizer's folder. malloc'd; NULL: the run
 * does not train on conversations, or there is none. */
static char *template_place(const train_run *run)
{
    const fsdp_settings *s = run->settings;
    char *path = NULL, *slash;
    if (s->chat_template)
        return strdup(s->chat_template);
    if (!s->chat || !s->tokenizer || hub_find(HUB_MODEL, s->tokenizer, NULL, &path) != FSDP_OK)
        return NULL;
    if (!file_is_directory(path) && (slash = strrchr(path, '/')))
        *slash = '\0';
    chat_template *found = NULL; /* prompts and responses need none */
    bool there = chat_template_load(path, NULL, &found) == FSDP_OK && found;
    chat_template_free(found);
    if (there)
        return path;
    free(path);
    return NULL;
}

fsdp_status run_sample(train_run *run, const char *prompt, int64_t n_tokens, char **text)
{
    const int32_t *ids;
    size_t n_prompt, n_text;
    *text = NULL;
    if (run->model_config.type != MODEL_DECODER || !run->tokenizer ||
        fsdp_tokenizer_vocab_size(run->tokenizer) > run->model_config.decoder.vocabulary) /* trained on other tokens */
        return FSDP_OK;
    FSDP_TRY(fsdp_tokenizer_encode(run->tokenizer, prompt, strlen(prompt), false, &ids, &n_prompt));
    FILE *file = open_memstream(text, &n_text);
    if (!file)
        return error_set(FSDP_ERR_MEMORY, "writing a sample: out of host memory");
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    config.prompt = prompt;
    config.prompt_bytes = strlen(prompt);
    config.plain_prompt = config.echo = true;
    config.max_new_tokens = max_i64(1, n_tokens - (int64_t)n_prompt);
    config.first_draw = n_prompt; /* a place in the text has its own random number, whatever was written before it */
    config.temperature = 0.7;
    config.seed = (uint64_t)run->settings->seed;
    config.window = run->info.width; /* longer texts are not what it was trained on */
    char *template = template_place(run);
    config.chat_template = template;
    config.stop_at_eos = template != NULL; /* an answer has an end */
    config.text = keep;
    config.context = file;
    fsdp_status status = fsdp_generate_with(run->model, run->tokenizer, &config, NULL);
    free(template);
    if (fclose(file) != 0 && status == FSDP_OK)
        status = error_set(FSDP_ERR_MEMORY, "writing a sample: out of host memory");
    return status;
}
