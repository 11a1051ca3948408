/* Checkpoints without a training job: show, verify, compare and convert them.
 *
 * A path is a checkpoint directory ("run/step-00000020"), a directory of checkpoints ("run": its newest complete one is
 * meant), a Hugging Face folder, a file of weights (.safetensors, or PyTorch's .pt, .pth and .bin), or a folder of
 * torch.distributed.checkpoint. Results come as text, a report for people or one JSON object; the caller frees it with
 * free(). docs/checkpoint-format.md describes the files.
 *
 *     fsdp_checkpoint_export_config what = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
 *     char *text;
 *     what.source = "run/checkpoints", what.destination = "model", what.dtype = FSDP_BF16;
 *     FSDP_TRY(fsdp_checkpoint_export(&what, &text));
 *     puts(text);
 *     free(text); */
#ifndef FSDP_CHECKPOINT_H
#define FSDP_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lists the contents: of a run or a directory of checkpoints, all of them and their condition; otherwise step, world,
 * files and tensors.
 */
FSDP_API fsdp_status fsdp_checkpoint_show(const char *path, bool json, char **text);

/* Reads everything and compares every checksum. FSDP_ERR_INPUT when anything is wrong; the report, which is set then
 * too, names every damaged file and tensor. For a run or a directory of checkpoints it checks all of them. */
FSDP_API fsdp_status fsdp_checkpoint_verify(const char *path, bool json, char **text);

/* Names the tensors that only one of the two has, whose shapes differ, or where elements differ by more than
 * `tolerance` (0: in any bit), and by how much. *same is false when there are any. */
FSDP_API fsdp_status fsdp_checkpoint_diff(const char *a, const char *b, double tolerance, bool json, bool *same,
                                          char **text);

typedef struct fsdp_checkpoint_export_config {
    size_t size;
    const char *source;
    const char *destination; /* to be made; an earlier Hugging Face export is replaced, anything else refused */
    const char *tokenizer;   /* folder with tokenizer files; NULL: those that the source has */
    fsdp_dtype dtype;        /* fp32, bf16 or fp16 */
    int64_t max_file_bytes;  /* larger models are split into several files with an index */
    bool json;
    /* "hf": a Hugging Face folder; "pt": a state dict in a file of PyTorch; "dcp": a folder that
     * torch.distributed.checkpoint loads, with the optimizer's state; "peft": the adapter alone, of a run with
     * adapters; NULL: "hf" */
    const char *format;
    int world_size;       /* dcp: files, each with an even share of the rows; 0: one */
    bool average;         /* the average of the weights instead of the last: of runs with --ema */
    const char *adapters; /* hf: folders of peft's, separated by commas, whose adapters are merged; NULL: none. A run's
                           * own are merged anyway */
    const char *base;     /* of a checkpoint that holds adapters alone: where their base is now; NULL: where it was */
} fsdp_checkpoint_export_config;

#define FSDP_CHECKPOINT_EXPORT_CONFIG_INIT                                                                             \
    {                                                                                                                  \
        .size = sizeof(fsdp_checkpoint_export_config), .dtype = FSDP_F32, .max_file_bytes = 5000000000                 \
    }

/* Writes the model as a Hugging Face folder that transformers opens, or as what PyTorch loads. */
FSDP_API fsdp_status fsdp_checkpoint_export(const fsdp_checkpoint_export_config *config, char **text);

typedef struct fsdp_checkpoint_convert_config {
    size_t size;
    const char *source;
    const char *destination; /* a directory of checkpoints; "step-..." is made in it */
    const char *kind;        /* "sharded" or "full" */
    int world_size;          /* sharded: number of files, each the even share of a rank */
    bool json;
} fsdp_checkpoint_convert_config;

#define FSDP_CHECKPOINT_CONVERT_CONFIG_INIT                                                                            \
    {                                                                                                                  \
        .size = sizeof(fsdp_checkpoint_convert_config), .kind = "sharded", .world_size = 1                             \
    }

/* Writes a checkpoint again for another world size or as another kind, with the same step, values and state. (Loading
 * needs none of this: any world loads any sharded or full checkpoint.) */
FSDP_API fsdp_status fsdp_checkpoint_reshard(const fsdp_checkpoint_convert_config *config, char **text);

/* Makes a checkpoint from what others wrote: of step 0 and with parameters alone from a Hugging Face folder or a file
 * of weights; with the optimizer's state, at its step, from a folder of torch.distributed.checkpoint that has it. */
FSDP_API fsdp_status fsdp_checkpoint_import(const fsdp_checkpoint_convert_config *config, char **text);

typedef struct fsdp_checkpoint_prune_config {
    size_t size;
    const char *directory;
    int keep;           /* newest complete ones to keep, at least 1 */
    int64_t keep_every; /* and those whose step is a multiple of this; 0: no others */
    bool dry_run;       /* only list what would be removed */
    bool json;
} fsdp_checkpoint_prune_config;

#define FSDP_CHECKPOINT_PRUNE_CONFIG_INIT                                                                              \
    {                                                                                                                  \
        .size = sizeof(fsdp_checkpoint_prune_config), .keep = 1                                                        \
    }

/* Removes old checkpoints of a run or a directory: complete ones beyond `keep` and `keep_every`. The newest stay. Of a
 * run that saves where others do, only its own count and go. */
FSDP_API fsdp_status fsdp_checkpoint_prune(const fsdp_checkpoint_prune_config *config, char **text);

#ifdef __cplusplus
}
#endif
#endif
