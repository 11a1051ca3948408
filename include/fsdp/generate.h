/* Text from a trained model: what `fsdp generate` does. LLaMA continues a prompt, T5 answers it.
 *
 *     static void show(void *context, const char *text, size_t bytes) { fwrite(text, 1, bytes, context); }
 *
 *     fsdp_generate_config what = FSDP_GENERATE_CONFIG_INIT;
 *     what.model = "model", what.prompt = "Once", what.prompt_bytes = 4, what.text = show, what.context = stdout;
 *     FSDP_TRY(fsdp_generate(&what, NULL));
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_GENERATE_H
#define FSDP_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
