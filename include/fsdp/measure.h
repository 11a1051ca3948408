/* How well trained models predict a data set: loss, accuracy and speed, as `fsdp eval` shows them.
 *
 *     fsdp_settings settings;
 *     fsdp_measurement result = FSDP_MEASUREMENT_INIT;
 *     const char *model = "fsdp_run";
 *     FSDP_TRY(fsdp_settings_init(&settings));
 *     FSDP_TRY(fsdp_settings_set(&settings, "validation_dataset", "held_back.txt"));
 *     FSDP_TRY(fsdp_measure(&settings, &model, 1, NULL, &result));
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_MEASURE_H
#define FSDP_MEASURE_H

#include <fsdp/train.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_measurement {
    size_t size;
    char path[4096]; /* what was measured: of a run or a folder of checkpoints, the newest checkpoint */
    int64_t step;    /* of the checkpoint; -1: a model folder */
    int64_t parameters;
    int64_t samples;     /* of the data set that were read, over all ranks */
    int64_t predictions; /* tokens or images that count in the means */
    double loss;         /* mean over the predictions */
    double accuracy;     /* share of the predictions whose likeliest token or class is right */
    double seconds;      /* of the evaluation, without loading */
    bool images;         /* predictions are classes of images, not tokens */
    bool average;        /* the weights are an average over steps (--ema) */
    int rank, world_size;
} fsdp_measurement;

#define FSDP_MEASUREMENT_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(fsdp_measurement)                                                                               \
    }

/* Measures each of models[0 .. n_models-1] (Hugging Face folders, run folders, checkpoints, folders of checkpoints, hub
 * names) on validation_dataset of `settings`, and fills results[0 .. n_models-1]; those after a failure stay as they
 * are. Settings that were not given are a checkpoint's own where they decide what is computed: widths, batch,
 * precision, fields. So at the same world size the loss of a run's checkpoint is its validation loss at that step, to
 * the bit. Every rank calls it. callbacks may be NULL. */
FSDP_API fsdp_status fsdp_measure(const fsdp_settings *settings, const char *const *models, int n_models,
                                  const fsdp_train_callbacks *callbacks, fsdp_measurement *results);

#ifdef __cplusplus
}
#endif
#endif
