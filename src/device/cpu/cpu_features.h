/* What this processor and its operating system let a program use, asked once. */
#ifndef DEVICE_CPU_CPU_FEATURES_H
#define DEVICE_CPU_CPU_FEATURES_H

#include <stdbool.h>

typedef struct cpu_features {
    bool avx512;             /* F, BW, DQ, VL, and the system saves the registers */
    bool avx512_bf16;        /* vdpbf16ps exists */
    bool avx512_bf16_fast;   /* and runs at twice the rate of fp32 (AMD); Intel's takes four times as long */
    bool amx_bf16;           /* tiles with bf16 products, and the system saves them */
    bool amx_palette_listed; /* CPUID leaf 0x1D describes palette 1; some hypervisors hide it though tiles work */
} cpu_features;

/* The same pointer in every call; never NULL. */
const cpu_features *cpu_features_get(void);

/* Asks the system for leave to use tiles, for the whole process. False where it is refused. */
bool cpu_features_request_tiles(void);

#endif
