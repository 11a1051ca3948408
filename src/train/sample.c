/* A sample of what a language model has learned, at the end of a run: written by all ranks together, since each holds
 * only its shards. `fsdp generate` is the tool for more. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "train/run.h"
#include "generate/generate.h"

typedef struct writing {
    generator *generator;
    int32_t *ids;
    float *logits;
    void *scratch;
    int64_t vocabulary;
} writing;

static fsdp_status write_tokens(train_run *run, const char *prompt, int64_t n_tokens, writing *w)
{
    const int32_t *start;
    size_t n_start;
    choice_options options = {.temperature = 0.7, .top_p = 1, .seed = (uint64_t)run->settings->seed};
    FSDP_TRY(fsdp_tokenizer_encode(run->tokenizer, prompt, strlen(prompt), false, &start, &n_start));
    int64_t n = min_i64((int64_t)n_start, n_tokens);
    memcpy(w->ids, start, (size_t)n * sizeof *w->ids);
    for (; n < n_tokens; n++) {
        if (n == (int64_t)n_start)
            FSDP_TRY(generator_start(w->generator, w->ids, n, w->logits));
        else
            FSDP_TRY(generator_next(w->generator, w->ids[n - 1], w->logits));
        w->ids[n] = choice_make(&options, w->logits, w->vocabulary, (uint64_t)n, w->scratch);
    }
    return FSDP_OK;
}

fsdp_status run_sample(train_run *run, const char *prompt, int64_t n_tokens, char **text)
{
    *text = NULL;
    const fsdp_llama_config *c = &run->model_config.llama;
    if (run->model_config.type != MODEL_LLAMA || !run->tokenizer ||
        fsdp_tokenizer_vocab_size(run->tokenizer) > c->vocabulary) /* trained on tokens of another kind */
        return FSDP_OK;
    writing w = {.vocabulary = c->vocabulary};
    FSDP_TRY(generator_create(run->model, &run->model_config, min_i64(run->info.width, c->positions), 0, &w.generator));
    w.ids = calloc((size_t)n_tokens + 1, sizeof *w.ids);
    w.logits = calloc((size_t)w.vocabulary, sizeof *w.logits);
    w.scratch = malloc(choice_scratch_bytes(w.vocabulary));
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!w.ids || !w.logits || !w.scratch)
        error_set(status, "writing a sample: out of host memory");
    else
        status = write_tokens(run, prompt, n_tokens, &w);
    const char *decoded;
    if (status == FSDP_OK)
        status = fsdp_tokenizer_decode(run->tokenizer, w.ids, (size_t)n_tokens, true, &decoded, NULL);
    if (status == FSDP_OK && !(*text = strdup(decoded)))
        status = error_set(FSDP_ERR_MEMORY, "writing a sample: out of host memory");
    generator_free(w.generator);
    free(w.ids);
    free(w.logits);
    free(w.scratch);
    return status;
}
