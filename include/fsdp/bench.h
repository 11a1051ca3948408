/* Measurements with named workloads: whole training steps on random tokens, the kernels a step is made of, and
 * collectives. All of them run on the device and with the precision that the settings name.
 *
 *     fsdp_bench_config what = FSDP_BENCH_CONFIG_INIT;
 *     fsdp_bench_result result = FSDP_BENCH_RESULT_INIT;
 *     FSDP_TRY(fsdp_bench_step(&settings, &what, &result));
 *     printf("%g ms a step\n", result.milliseconds);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_BENCH_H
#define FSDP_BENCH_H

#include <fsdp/settings.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    FSDP_BENCH_NAME = 64,
    FSDP_BENCH_CLASSES = 7,
    FSDP_BENCH_OPERATIONS = 96,
    FSDP_BENCH_WAITS = 12,
    FSDP_BENCH_ROWS = 64
};

/* Name of workload `index`, counted from 0, and what it is; NULL after the last. */
FSDP_API const char *fsdp_bench_workload(int index, const char **what);

typedef struct fsdp_bench_config {
    size_t size;
    const char *workload; /* a name of fsdp_bench_workload; NULL: step: the settings' model and batch as they are,
                             kernel: the one that suits the device */
    int steps, warmup;    /* step: measured, and run before */
    bool breakdown;       /* step: also run steps that wait for every operation and time it */
    const int64_t *sizes; /* comm: bytes of the whole buffer; borrowed */
    int n_sizes;          /* 0: 1, 16 and 128 MiB */
    const char *emulate;  /* step: as one rank of a world with these links, "8@450GBs,2@50GBs"; NULL: none; borrowed */
    const char *profile;  /* profile: the file that is written, or added to; "auto": where runs look for it; borrowed */
} fsdp_bench_config;

#define FSDP_BENCH_CONFIG_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_config), .steps = 12, .warmup = 5                                                    \
    }

/* What every other rate is compared with. */
typedef struct fsdp_bench_rates {
    char device[256];
    const char *dtype;     /* of parameters and products */
    double peak_tflops;    /* of matrix products, as the device's maker states it; 0: not known */
    double matrix_tflops;  /* one large matrix product, timed in the same run; 0: there was no memory for it */
    double copy_gigabytes; /* per second, read and written, timed in the same run; only for kernels */
} fsdp_bench_rates;

/* ---- whole steps ---- */

/* A part of a step: a class of kernels, or an operation. */
typedef struct fsdp_bench_part {
    char name[FSDP_BENCH_NAME];
    double milliseconds; /* of a step */
    int64_t count;       /* in a step */
} fsdp_bench_part;

typedef struct fsdp_bench_result {
    size_t size;
    int64_t parameters;
    int world_size;
    int64_t batch, width;
    int64_t micro_batches;     /* of a step: --gradient_accumulation_steps */
    double milliseconds;       /* median of a step */
    double fastest;            /* the quickest step */
    double tokens_per_second;  /* over all ranks */
    double tflops;             /* of one rank; 6 per parameter and token, and causal attention */
    double first_step_seconds; /* from the call to the end of the first step */
    int64_t memory_bytes;      /* the largest plan of this rank */
    double communication_ms;   /* of a step, mean: collectives at work; not known (0) where a device runs them, unless
                                  they are emulated */
    double exposed_ms;         /* and the part of it during which nothing was computed; emulated: what a step takes
                                  longer than one whose collectives take no time */
    double host_update_ms;     /* of a step, mean: the update of offloaded units in host memory; 0: none is */
    double host_wait_ms;       /* and the part of it that the next forward waited for */
    double host_gigabytes;     /* a second, read and written by that update */
    double first_losses[3];
    double predicted_milliseconds; /* of a step, and the exposed communication in it, from settings->profile; 0: there
                                      is */
    double predicted_exposed_ms;   /* none */
    fsdp_bench_rates rates;
    /* With `breakdown`: */
    double waited_milliseconds; /* mean of a step that waits for every operation */
    int n_classes, n_operations;
    fsdp_bench_part classes[FSDP_BENCH_CLASSES];       /* products, attention, ...; together they are the whole */
    fsdp_bench_part operations[FSDP_BENCH_OPERATIONS]; /* the slowest first */
    /* With several ranks: how long a step stood still for collectives, */
    double waits_ms;
    int n_waits;
    fsdp_bench_part waits[FSDP_BENCH_WAITS]; /* and for which; the longest first: "reduce_scatter layers.0" */
} fsdp_bench_result;

#define FSDP_BENCH_RESULT_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_result)                                                                              \
    }

/* Every rank of the job calls it. The settings give device, strategy, precision and the rest. */
FSDP_API fsdp_status fsdp_bench_step(const fsdp_settings *settings, const fsdp_bench_config *config,
                                     fsdp_bench_result *result);

/* ---- kernels ---- */

typedef struct fsdp_bench_kernel {
    char name[FSDP_BENCH_NAME], shape[FSDP_BENCH_NAME];
    double milliseconds; /* of one call */
    double tflops;       /* products and attention; 0 for the rest, whose time is that of memory: */
    double gigabytes;    /* per second, the bytes it must read and write */
} fsdp_bench_kernel;

typedef struct fsdp_bench_kernels {
    size_t size;
    const char *workload;
    fsdp_bench_rates rates;
    int n;
    fsdp_bench_kernel rows[FSDP_BENCH_ROWS];
} fsdp_bench_kernels;

#define FSDP_BENCH_KERNELS_INIT                                                                                        \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_kernels)                                                                             \
    }

/* The kernels of one decoder layer, the loss and the optimizer, at the shapes of the workload. */
FSDP_API fsdp_status fsdp_bench_kernels_run(const fsdp_settings *settings, const fsdp_bench_config *config,
                                            fsdp_bench_kernels *result);

/* ---- profiles ---- */

typedef struct fsdp_bench_profiled {
    size_t size;
    int kernels;                   /* kernels at their shapes that the profile has now */
    double milliseconds;           /* median of a step, measured without timing its kernels */
    double predicted_milliseconds; /* of the same step, from the profile; 0 with several ranks */
} fsdp_bench_profiled;

#define FSDP_BENCH_PROFILED_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_profiled)                                                                            \
    }

/* Times every kernel of a workload's steps where it runs, and with several ranks collectives; rank 0 writes
 * config->profile, which predictions are made from (settings->profile). A file that is there is added to. Every rank of
 * the job calls it. */
FSDP_API fsdp_status fsdp_bench_profile(const fsdp_settings *settings, const fsdp_bench_config *config,
                                        fsdp_bench_profiled *result);

/* ---- collectives ---- */

typedef struct fsdp_bench_collective {
    const char *name;
    int64_t bytes;       /* of the whole buffer */
    double milliseconds; /* of the slowest rank; the best round */
    double
        bus_gigabytes; /* a second, what each rank sends and receives: (n-1)/n of the buffer, all_reduce twice that */
    double copy_gigabytes; /* a second, every rank copying as many bytes as the buffer has within its own memory */
} fsdp_bench_collective;

typedef struct fsdp_bench_collectives {
    size_t size;
    char device[256];
    const char *backend;
    int world_size;
    int n;
    fsdp_bench_collective rows[FSDP_BENCH_ROWS];
} fsdp_bench_collectives;

#define FSDP_BENCH_COLLECTIVES_INIT                                                                                    \
    {                                                                                                                  \
        .size = sizeof(fsdp_bench_collectives)                                                                         \
    }

/* all_gather, reduce_scatter and all_reduce of fp32 over the job's ranks; every rank calls it. */
FSDP_API fsdp_status fsdp_bench_comm(const fsdp_settings *settings, const fsdp_bench_config *config,
                                     fsdp_bench_collectives *result);

#ifdef __cplusplus
}
#endif
#endif
