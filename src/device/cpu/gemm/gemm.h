/* Matrix products on the CPU: which implementation this machine gets, and the entry points behind the kernel table's
 * `gemm`. The arithmetic lies in blocked.c (our own kernels) and onednn.c (the library). */
#ifndef DEVICE_CPU_GEMM_GEMM_H
#define DEVICE_CPU_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

#include "device/device.h"
#include "device/kernels.h"

struct gemm_kernel;

/* No product asks for more workspace than this, whatever its shape and the number of threads. */
#define GEMM_WORKSPACE_LIMIT ((size_t)64 << 20)

/* What a machine computes products with. Filled by gemm_choose, read-only afterwards; owns nothing. */
typedef struct cpu_gemm_set {
    const struct gemm_kernel *fp32; /* for fp32 and fp16 operands: fp16 is widened while it is packed */
    const struct gemm_kernel *bf16; /* for bf16 operands; the same as `fp32` where bf16 is widened too */
    bool onednn;                    /* products with nothing but fp32 in them go to oneDNN */
    int max_threads;                /* workspaces are sized for this many; no product runs on more */
    char description[160];          /* "fp32 own AVX-512, bf16 own AVX-512 bf16" */
} cpu_gemm_set;

/* AUTO takes the fastest this machine runs. A forced choice it cannot run is FSDP_ERR_UNSUPPORTED with the reason; what
 * a choice has no kernel for (fp32 under CPU_GEMM_AMX, bf16 under CPU_GEMM_ONEDNN) is filled in as by AUTO.
 * Probing happens once in a process, in the first call; later calls and other threads see its result. */
fsdp_status gemm_choose(cpu_gemm wanted, cpu_gemm_set *out);

/* For --version and reports; lives as long as the set. */
const char *gemm_describe(const cpu_gemm_set *set);

/* Our own kernels give the same bits for any number of threads: k is never split between them. */
fsdp_status gemm_gemm(const cpu_gemm_set *set, const gemm_args *a);
size_t gemm_workspace_bytes(const cpu_gemm_set *set, const gemm_args *a);

#endif
