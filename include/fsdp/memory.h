/* The memory that this rank uses, like PyTorch's max_memory_allocated.
 *
 *     fsdp_memory_meter *meter;
 *     fsdp_memory_meter_start(&meter);       // before the world is opened
 *     ...
 *     printf("peak: %lld bytes\n", (long long)fsdp_memory_meter_peak(meter));
 *     fsdp_memory_meter_reset(meter);        // the peak from here on */
#ifndef FSDP_MEMORY_H
#define FSDP_MEMORY_H

#include <stdint.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_memory_meter fsdp_memory_meter;

/* Counts what the library takes from now on: shards, gathered units, activations, buffers of collectives. Start it
 * before the world is opened, on any rank; never while a step runs. The caller frees *out. */
FSDP_API fsdp_status fsdp_memory_meter_start(fsdp_memory_meter **out);
FSDP_API void fsdp_memory_meter_free(fsdp_memory_meter *m); /* never while a step runs; NULL is legal */

/* Bytes taken now, of the device; on the CPU, where there is no other memory, all. */
FSDP_API int64_t fsdp_memory_meter_bytes(const fsdp_memory_meter *m);
/* The most that fsdp_memory_meter_bytes was at any one time. */
FSDP_API int64_t fsdp_memory_meter_peak(const fsdp_memory_meter *m);
/* Peak of host memory used besides a device's; 0 on the CPU. */
FSDP_API int64_t fsdp_memory_meter_host_peak(const fsdp_memory_meter *m);
/* Peaks start again from what is in use now. */
FSDP_API void fsdp_memory_meter_reset(fsdp_memory_meter *m);

#ifdef __cplusplus
}
#endif
#endif
