/* The CPU device with streams that are queues, each with a thread of its own, as on a GPU: work that is enqueued runs
 * some time later, and only events say what comes before what. A wait that is missing between two streams, or between a
 * stream and the host, shows as numbers that change. Collectives find all that was enqueued before them done. */
#ifndef TESTS_DIFFERENTIAL_QUEUES_H
#define TESTS_DIFFERENTIAL_QUEUES_H

#include <fsdp/world.h>

/* As fsdp_world_open with device "cpu", on this device. `seed` decides which work is late. */
fsdp_status queued_world_open(const fsdp_world_config *config, uint64_t seed, fsdp_world **out);

#endif
