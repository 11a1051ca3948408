/* Measurements: whole training steps on random tokens, with named workloads. */
#ifndef FSDP_BENCH_H
#define FSDP_BENCH_H

#include <fsdp/settings.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_bench_config {
    size_t size;
    const char *workload; /* a name of fsdp_bench_workloads; NULL: the settings' model and batch as they are */
    int steps, warmup;    /* measured, and run before */
    bool breakdown;       /* time per operation; synchronises after each, so the whole is slower */
} fsdp_bench_config;

#define FSDP_BENCH_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_config), .steps = 12, .warmup = 5                                                    \
    }

typedef struct fsdp_bench_result {
    size_t size;
    int64_t parameters;
    int world_size;
    int64_t batch, width;
    double milliseconds;       /* median of a step */
    double fastest;            /* the quickest step */
    double tokens_per_second;  /* over all ranks */
    double tflops;             /* of one rank; 6 per parameter and token, and causal attention */
    double first_step_seconds; /* from the call to the end of the first step */
    int64_t memory_bytes;      /* most that this rank's plan took */
    double first_losses[3];
    char breakdown[4096]; /* a table; "" when not asked for */
} fsdp_bench_result;

#define FSDP_BENCH_RESULT_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_result)                                                                              \
    }

/* Names and what they are, a line each. */
FSDP_API const char *fsdp_bench_workloads(void);

/* Every rank of the job calls it. The settings give device, strategy, precision and the rest. */
FSDP_API fsdp_status fsdp_bench_step(const fsdp_settings *settings, const fsdp_bench_config *config,
                                     fsdp_bench_result *result);

#ifdef __cplusplus
}
#endif
#endif
