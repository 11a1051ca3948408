/* Text from a model: of a folder, which is what `fsdp generate` does, or from one that is open, also while it is being
 * trained. LLaMA continues a prompt, T5 answers it.
 *
 *     static void show(void *context, const char *text, size_t bytes) { fwrite(text, 1, bytes, context); }
 *
 *     fsdp_generate_config what = FSDP_GENERATE_CONFIG_INIT;
 *     what.model = "model", what.prompt = "Once", what.prompt_bytes = 4, what.text = show, what.context = stdout;
 *     FSDP_TRY(fsdp_generate(&what, NULL));
 *
 * Between the steps of a training, on every rank:
 *
 *     what.model = NULL;
 *     FSDP_TRY(fsdp_generate_with(model, tokenizer, &what, NULL));
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_GENERATE_H
#define FSDP_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/shard.h>
#include <fsdp/status.h>
#include <fsdp/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_prompt {
    const char *text;
    size_t bytes;
} fsdp_prompt;

/* What became of one of several prompts; valid during the call. */
typedef struct fsdp_written_text {
    int64_t index; /* of the prompt */
    const char *text;
    size_t bytes;
    int64_t prompt_tokens, new_tokens;
    bool ended; /* by an end token */
} fsdp_written_text;

typedef struct fsdp_generate_config {
    size_t size;
    const char *model; /* a Hugging Face folder, a checkpoint, a folder of checkpoints (its newest), or a hub name */
    const char *tokenizer; /* NULL: the model folder's tokenizer.json, the one it was trained with, or bytes */
    const char *prompt;
    size_t prompt_bytes;
    int64_t max_new_tokens;
    double temperature; /* 0: always the likeliest token */
    int64_t top_k;      /* draw from this many of the likeliest tokens; 0: from all */
    double top_p;       /* draw from the likeliest tokens that together have this probability; 1: from all */
    uint64_t seed;
    bool stop_at_eos;
    bool echo;          /* the prompt comes first */
    fsdp_dtype dtype;   /* precision of the computation */
    const char *device; /* "auto", "cpu", "cuda" */
    int threads;        /* 0: OMP_NUM_THREADS, otherwise all cores */
    /* Called as text comes, with whole UTF-8 characters; on rank 0 only. NULL: silence. */
    void (*text)(void *context, const char *text, size_t bytes);
    void *context;
    int64_t window; /* of the text so far, a LLaMA sees no more than this many tokens; 0: what it has positions for */
    uint64_t first_draw; /* random numbers are counted from here on: the same seed draws others */
    bool plain_prompt;   /* the prompt is its own tokens alone, without those that a tokenizer puts around a text */
    /* fsdp_generate_with a model of one's own: records the logits (1, window, vocabulary) of ids int32 (1, window). It
     * must be causal: what follows the text so far is padding. Each token takes a forward over the last `window`
     * tokens. fsdp_call will do where the net's own forward is of that kind. NULL: the library's models. */
    fsdp_tensor *(*logits)(fsdp_module *net, fsdp_tape *t, fsdp_tensor *ids);
    const char *adapters; /* folders of peft's, separated by commas: added to the weights; NULL: none */
    const char *base;     /* of a checkpoint that holds adapters alone: where their base is now; NULL: where it was */
    /* Instead of `prompt` and `text`: several prompts, `batch` (0: 8) of them side by side. Each gives the text that it
     * would give alone, up to rounding. `written` is told of each, in their order, on rank 0; may be NULL. The result
     * has the sums over all. */
    const fsdp_prompt *prompts;
    int64_t n_prompts, batch;
    void (*written)(void *context, const fsdp_written_text *text);
    void *written_context;
    /* Prompts are a user's messages, rendered by this chat template: a file, or a folder that has one; "": the one that
     * is beside the tokenizer. Of a file, too, special tokens are the tokenizer's. NULL: prompts are plain text. */
    const char *chat_template;
} fsdp_generate_config;

#define FSDP_GENERATE_CONFIG_INIT                                                                                      \
    {                                                                                                                  \
        .size = sizeof(fsdp_generate_config), .max_new_tokens = 128, .top_p = 1, .stop_at_eos = true, .device = "auto" \
    }

typedef struct fsdp_generate_result {
    size_t size;
    int64_t prompt_tokens, new_tokens;
    double load_seconds, prompt_seconds, seconds; /* seconds: of the new tokens */
    bool ended;                                   /* by an end token, not by max_new_tokens */
    int rank;                                     /* of this process; the text went out on rank 0 */
} fsdp_generate_result;

#define FSDP_GENERATE_RESULT_INIT                                                                                      \
    {                                                                                                                  \
        .size = sizeof(fsdp_generate_result)                                                                           \
    }

/* result may be NULL. With several ranks the model is sharded over them, and every rank calls it. */
FSDP_API fsdp_status fsdp_generate(const fsdp_generate_config *config, fsdp_generate_result *result);

/* The same with a model that is open, however it is sharded, between two steps: parameters, gradients so far, random
 * position and optimizer stay as they are. The model is fsdp_llama_new's or fsdp_t5_new's, with one param_dtype for all
 * units, or any other with `logits`; the tokenizer is the one that its texts are read with, and generation ends at its
 * end token. Of `config`, model, tokenizer, dtype, device and threads are as in the _INIT: they were chosen when the
 * model was opened. Collective: every rank calls it with the same arguments. */
FSDP_API fsdp_status fsdp_generate_with(fsdp_model *m, fsdp_tokenizer *tokenizer, const fsdp_generate_config *config,
                                        fsdp_generate_result *result);

#ifdef __cplusplus
}
#endif
#endif
