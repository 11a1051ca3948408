/* Samples of what a language model has learned so far, written by all ranks together, since each holds only its
 * shards. `fsdp generate` is the tool for more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/generate.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "train/run.h"

static void keep(void *file, const char *text, size_t bytes)
{
    fwrite(text, 1, bytes, file);
}

/* What every sample is written with. A run on conversations is asked as its data asks: by the same template, or with
 * the prompt as the beginning of a text; and an answer has an end. */
static fsdp_generate_config usual(const train_run *run)
{
    const char *named = run->settings->chat_template;
    fsdp_generate_config c = FSDP_GENERATE_CONFIG_INIT;
    c.echo = true;
    c.plain_prompt = !run->info.chat;
    c.stop_at_eos = run->info.chat;
    c.chat_template = !run->info.rendered ? NULL : named ? named : "";
    c.temperature = 0.7;
    c.seed = (uint64_t)run->settings->seed;
    return c;
}

static fsdp_status write_one(train_run *run, fsdp_generate_config config, const char *prompt, int64_t n_tokens,
                             FILE *file)
{
    const int32_t *ids;
    size_t n_prompt;
    FSDP_TRY(fsdp_tokenizer_encode(run->tokenizer, prompt, strlen(prompt), false, &ids, &n_prompt));
    config.prompt = prompt;
    config.prompt_bytes = strlen(prompt);
    config.max_new_tokens = max_i64(1, n_tokens - (int64_t)n_prompt);
    config.first_draw = n_prompt;    /* a place in the text has its own random number, whatever was written before it */
    config.window = run->info.width; /* longer texts are not what it was trained on */
    config.text = keep;
    config.context = file;
    return fsdp_generate_with(run->model, run->tokenizer, &config, NULL);
}

/* ---- Several prompts ---- */

enum { MOST_PROMPTS = 64, MOST_BYTES = 1 << 20 };

typedef struct prompt_file {
    char *text;
    fsdp_prompt prompts[MOST_PROMPTS];
    int64_t n;
} prompt_file;

/* Every line that is not empty. */
static fsdp_status read_prompts(const char *path, prompt_file *out)
{
    size_t bytes;
    FSDP_TRY(file_read_at_most(path, MOST_BYTES, &out->text, &bytes));
    for (char *at = out->text, *end = at + bytes; at < end;) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        size_t kept = length > 0 && at[length - 1] == '\r' ? length - 1 : length;
        if (kept > 0 && out->n == MOST_PROMPTS)
            return error_set(FSDP_ERR_INPUT, "--sample_prompt: %s has more than %d prompts", path, MOST_PROMPTS);
        if (kept > 0)
            out->prompts[out->n++] = (fsdp_prompt){at, kept};
        at += length + 1;
    }
    return out->n > 0 ? FSDP_OK : error_set(FSDP_ERR_INPUT, "--sample_prompt: %s has no prompt", path);
}

/* Ranks that read other prompts would wait for each other forever. */
static fsdp_status compare_prompts(train_run *run, const prompt_file *p, fsdp_status status)
{
    int64_t hash = status == FSDP_OK ? (int64_t)(hash_text(HASH_START, p->text) >> 1) : -1, least = hash;
    comm_group *world = comm_world(run->world->comm);
    FSDP_TRY(comm_all_reduce_i64(world, "prompts", run->step, FSDP_REDUCE_MIN, &least, 1));
    int64_t most = hash;
    FSDP_TRY(comm_all_reduce_i64(world, "prompts", run->step, FSDP_REDUCE_MAX, &most, 1));
    FSDP_TRY(status);
    return least == most ? FSDP_OK
                         : error_set(FSDP_ERR_INPUT, "--sample_prompt: ranks read different prompts, or cannot read "
                                                     "them: the file must be the same on every host");
}

static void keep_text(void *file, const fsdp_written_text *text)
{
    fprintf(file, "%s%lld: ", text->index > 0 ? "\n\n" : "", (long long)text->index + 1);
    fwrite(text->text, 1, text->bytes, file);
}

static fsdp_status write_several(train_run *run, fsdp_generate_config config, const char *path, int64_t n_tokens,
                                 FILE *file)
{
    prompt_file p = {.text = NULL};
    fsdp_status status = compare_prompts(run, &p, read_prompts(path, &p));
    config.prompts = p.prompts;
    config.n_prompts = p.n;
    config.max_new_tokens = n_tokens;
    config.written = keep_text;
    config.written_context = file;
    if (status == FSDP_OK)
        status = fsdp_generate_with(run->model, run->tokenizer, &config, NULL);
    free(p.text);
    return status;
}

fsdp_status run_sample(train_run *run, const char *prompt, int64_t n_tokens, char **text)
{
    size_t n_text;
    *text = NULL;
    if (run->model_config.type != MODEL_DECODER || !run->tokenizer ||
        fsdp_tokenizer_vocab_size(run->tokenizer) > run->model_config.decoder.vocabulary) /* trained on other tokens */
        return FSDP_OK;
    FILE *file = open_memstream(text, &n_text);
    if (!file)
        return error_set(FSDP_ERR_MEMORY, "writing a sample: out of host memory");
    fsdp_generate_config config = usual(run);
    fsdp_status status = prompt[0] == '@' ? write_several(run, config, prompt + 1, n_tokens, file)
                                          : write_one(run, config, prompt, n_tokens, file);
    if (fclose(file) != 0 && status == FSDP_OK)
        status = error_set(FSDP_ERR_MEMORY, "writing a sample: out of host memory");
    return status;
}
