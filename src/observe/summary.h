/* What a run says when it ends: time, losses, where things are. */
#ifndef OBSERVE_SUMMARY_H
#define OBSERVE_SUMMARY_H

#include <stdint.h>

#include <fsdp/status.h>

/* Numbers that are 0 or NaN and texts that are NULL are left out. */
typedef struct run_summary {
    const char *model;       /* "llama_v3, 1.24B parameters" */
    const char *strategy;    /* "full over 8 ranks" */
    const char *ended;       /* "stopped by signal 15"; NULL: it ran to its end */
    int64_t steps;           /* in all, those before a resume included */
    int64_t samples, tokens; /* of this run */
    double epochs;
    double seconds; /* of this run, and the parts of it: */
    double step_seconds, starting_seconds, validating_seconds, saving_seconds;
    double median_seconds; /* the median step of this run, and what it computed, on all ranks: */
    int64_t median_samples, median_tokens;
    double predicted_seconds; /* what a step should take by a profile */
    double tflops;            /* its rate */
    double peak_tflops;       /* of all devices */
    double first_loss, loss, validation_loss;
    double validation_accuracy; /* of images; 0: not known */
    int64_t peak_bytes;         /* of the rank that took most */
    const char *output_dir, *checkpoint, *metrics, *tensorboard, *trace, *export_dir;
} run_summary;

/* A table of two columns; malloc'd. */
fsdp_status summary_text(const run_summary *s, char **text);

#endif
