/* How much of the communication is hidden under compute: time that collectives take, and time that the computing thread
 * waits for them, heard through hooks. */
#ifndef OBSERVE_OVERLAP_H
#define OBSERVE_OVERLAP_H

#include <stdint.h>

#include <fsdp/status.h>

typedef struct overlap_meter overlap_meter;

typedef struct overlap_times {
    int64_t communication_ns; /* collectives at work, waiting for slower ranks included */
    int64_t exposed_ns;       /* the computing thread stood still for them */
} overlap_times;

/* Listens from now on. The caller owns *out. */
fsdp_status overlap_meter_start(overlap_meter **out);
void overlap_meter_free(overlap_meter *m); /* NULL is legal */

/* What came together since the last call (or the start). With no collective under way. */
overlap_times overlap_meter_take(overlap_meter *m);

#endif
