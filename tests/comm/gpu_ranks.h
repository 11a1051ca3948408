/* Ranks that share the first GPU: each says it is a host of its own, so NCCL goes over sockets. */
#ifndef TESTS_COMM_GPU_RANKS_H
#define TESTS_COMM_GPU_RANKS_H

#include "comm/ranks.h"
#include "support/gpu_missing.h"

typedef struct gpu_rank {
    device *device;
    stream *stream;
    comm *comm;
} gpu_rank;

static inline comm_config gpu_config(const ranks *all, int rank, gpu_rank *g)
{
    char host[32];
    snprintf(host, sizeof host, "host-%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    RANK_CHECK(device_open_cuda(0, &g->device) == FSDP_OK);
    RANK_CHECK(g->device->stream_create(g->device, 0, &g->stream) == FSDP_OK);
    comm_config config = ranks_config(all, rank);
    config.backend = "nccl";
    config.device = g->device;
    config.job.master_port = all->port;
    return config;
}

static inline void gpu_close(gpu_rank *g)
{
    comm_close(g->comm);
    g->device->stream_free(g->stream);
    device_close(g->device);
}

static inline void put(gpu_rank *g, void *to, const void *from, size_t bytes)
{
    RANK_CHECK(g->device->copy(g->stream, to, from, bytes) == FSDP_OK);
    RANK_CHECK(g->device->stream_synchronize(g->stream) == FSDP_OK);
}

#endif
