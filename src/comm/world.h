/* The world seen from inside: the device and the communicator that everything of this process shares. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include <fsdp/world.h>

#include "base/host/job.h"
#include "comm/comm.h"
#include "device/device.h"

struct fsdp_world {
    job job;
    device *dev;
    comm *comm;
    stream *compute;
    int threads;
};

/* The CPU as each of `local_ranks` ranks of a host would open it, for plans: this process keeps its threads. */
fsdp_status world_describe_cpu(const fsdp_world_config *config, int local_ranks, device **out);

#endif
