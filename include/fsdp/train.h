/* The training program as a call: everything that `fsdp train` does between reading its flags and printing.
 *
 *     fsdp_settings settings;
 *     FSDP_TRY(fsdp_settings_init(&settings));
 *     FSDP_TRY(fsdp_settings_parse(&settings, "train", argc - 1, argv + 1));
 *     fsdp_status status = fsdp_train(&settings, NULL, NULL);
 *     fsdp_settings_free(&settings);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_TRAIN_H
#define FSDP_TRAIN_H

#include <fsdp/settings.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_line {
    FSDP_LINE_PROGRESS, /* "Batch N Loss: x, Speed: y samples/sec, lr: z ...": a terminal shows the newest in place */
    FSDP_LINE_INFO,     /* lines and tables to keep; may hold newlines */
    FSDP_LINE_WARNING,  /* also from ranks other than 0, with their number in front */
} fsdp_line;

/* How a job reports to its caller. Called between steps, on the thread that called fsdp_train. */
typedef struct fsdp_train_callbacks {
    size_t size;
    void *context;
    /* Text without a newline at its end, valid during the call. NULL: silence. */
    void (*line)(void *context, fsdp_line kind, const char *text);
    /* Called after every step; any value but 0 (a signal's number) ends the run after a checkpoint. NULL: never. */
    int (*stop_requested)(void *context);
    bool live;   /* progress lines replace each other: several per second may come between logging steps */
    int columns; /* width of the terminal, 0 when there is none */
} fsdp_train_callbacks;

#define FSDP_TRAIN_CALLBACKS_INIT                                                                                      \
    {                                                                                                                  \
        .size = sizeof(fsdp_train_callbacks)                                                                           \
    }

typedef struct fsdp_train_result {
    size_t size;
    int64_t steps, epochs;   /* in total, including those before a resume */
    int64_t tokens, samples; /* of this run, over all ranks */
    double seconds;
    double loss;                /* of the last step; NaN when there was none */
    double validation_loss;     /* NaN when there was no validation */
    int64_t peak_bytes;         /* most that a rank took, and host memory beside it where that is the device's */
    bool stopped;               /* stop_requested ended it */
    char checkpoint[4096];      /* the last one written, "" when none */
    double validation_accuracy; /* of image classes, 0 to 1; NaN when there was no such validation */
    int stop_reason;            /* what stop_requested returned, the largest of all ranks; 0: it did not end the run */
    int64_t planned_bytes;      /* peak_bytes according to the plan */
} fsdp_train_result;

#define FSDP_TRAIN_RESULT_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_train_result)                                                                              \
    }

/* Trains with `settings`, which fsdp_settings_check has checked. Every rank of the job calls it. With dry_run it hands
 * the plan and the settings to the callback and returns. callbacks and result may be NULL. */
FSDP_API fsdp_status fsdp_train(const fsdp_settings *settings, const fsdp_train_callbacks *callbacks,
                                fsdp_train_result *result);

#ifdef __cplusplus
}
#endif
#endif
