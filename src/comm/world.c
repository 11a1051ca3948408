/* Opening of the world: environment, threads, device, communicator, in this order; closed in reverse. */
#include "comm/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/record/pulse.h"
#include "base/record/ring.h"
#include "base/sized.h"
#include "base/host/threads.h"
#include "comm/engine.h"

static const char *const gemm_names[] = {"auto", "onednn", "amx", "avx512", "portable"};

static fsdp_status parse_products(const char *name, cpu_gemm *out)
{
    for (int i = 0; i < 5; i++) {
        if (!name || strcmp(name, gemm_names[i]) == 0) {
            *out = (cpu_gemm)i;
            return FSDP_OK;
        }
    }
    return error_set(FSDP_ERR_INPUT, "products \"%s\": auto, onednn, amx, avx512 and portable are known", name);
}

fsdp_status world_describe_cpu(const fsdp_world_config *config, int local_ranks, device **out)
{
    cpu_gemm product = CPU_GEMM_AUTO;
    int before = threads_count();
    FSDP_TRY(parse_products(config->products, &product));
    threads_set(config->threads, local_ranks);
    fsdp_status status = device_open_cpu(product, out);
    threads_set(before, 1);
    return status;
}

/* A GPU for every rank of the host, unless FSDP_GPU names one (several ranks may then share it). */
static int gpu_index(int local_rank)
{
    int64_t named;
    return environment_int("FSDP_GPU", &named) ? (int)named : local_rank;
}

static fsdp_status open_device(const fsdp_world_config *config, int local_rank, device **out)
{
    cpu_gemm product = CPU_GEMM_AUTO;
    FSDP_TRY(parse_products(config->products, &product));
    if (strcmp(config->device, "cpu") == 0)
        return device_open_cpu(product, out);
    if (strcmp(config->device, "cuda") == 0)
        return device_open_cuda(gpu_index(local_rank), out);
    if (device_is_described(config->device))
        return error_set(
            FSDP_ERR_INPUT,
            "device \"%s\" is a description, for `fsdp plan` and --dry_run; to compute on such a GPU say cuda",
            config->device);
    if (strcmp(config->device, "auto") != 0)
        return error_set(FSDP_ERR_INPUT, "device \"%s\": cpu, cuda and auto are known", config->device);
    if (device_open_cuda(gpu_index(local_rank), out) == FSDP_OK)
        return FSDP_OK;
    log_write(FSDP_LOG_INFO, "using the CPU: %s", fsdp_last_error());
    return device_open_cpu(product, out);
}

/* Without a launcher's word, MPI knows who we are. */
static void take_numbers(job *j, const comm *c)
{
    j->rank = c->rank;
    j->world_size = c->world_size;
    j->local_rank = c->local_rank;
    j->local_world_size = c->local_world_size;
    j->node = c->node;
    j->n_nodes = c->n_nodes;
}

static fsdp_status check_threads(int threads)
{
    if (threads >= 0 && threads <= THREADS_MAX)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "%d threads are not possible; give 1 to %d, or 0 for this rank's share of the cores", threads,
                     THREADS_MAX);
}

static fsdp_status check_comm(const fsdp_world_config *config)
{
    if (config->comm_ctas < 0 || config->comm_ctas > COMM_MAX_CTAS)
        return error_set(FSDP_ERR_INPUT,
                         "%lld blocks of a collective are not possible; give 1 to %d, or 0 for the "
                         "default",
                         (long long)config->comm_ctas, COMM_MAX_CTAS);
    if ((unsigned)config->comm_memory > FSDP_COMM_MEMORY_COPY_ENGINE)
        return error_set(FSDP_ERR_INPUT, "comm_memory %d is not one of fsdp_comm_memory", (int)config->comm_memory);
    if ((unsigned)config->reduce_accumulation > FSDP_ACCUMULATE_LIBRARY)
        return error_set(FSDP_ERR_INPUT, "reduce_accumulation %d is not one of fsdp_reduce_accumulation",
                         (int)config->reduce_accumulation);
    return FSDP_OK;
}

fsdp_status fsdp_world_open(const fsdp_world_config *given, fsdp_world **out)
{
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    if (given)
        FSDP_TRY(sized_read(&config, sizeof config, given, "fsdp_world_config", "FSDP_WORLD_CONFIG_INIT"));
    fsdp_world *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "opening the world: out of host memory");
    comm_config link = COMM_CONFIG_INIT;
    fsdp_status status;
    pulse_attach();
    TRY_OR(fail, job_from_environment(&w->job));
    error_set_rank(w->job.rank, w->job.world_size);
    ring_open(w->job.rank, w->job.world_size);
    TRY_OR(fail, check_threads(config.threads));
    TRY_OR(fail, check_comm(&config));
    w->threads = threads_set(config.threads, w->job.local_world_size);
    TRY_OR(fail, open_device(&config, w->job.local_rank, &w->dev));
    TRY_OR(fail, w->dev->stream_create(w->dev, 0, &w->compute));
    link.backend = config.backend;
    link.job = w->job;
    link.timeout_seconds = config.comm_timeout;
    link.progress = config.comm_thread ? COMM_PROGRESS_THREAD : COMM_PROGRESS_AUTO;
    link.device = w->dev;
    link.ctas = (int)config.comm_ctas;
    link.memory = config.comm_memory;
    link.accumulation = config.reduce_accumulation;
    TRY_OR(fail, comm_open(&link, &w->comm));
    take_numbers(&w->job, w->comm);
    ring_open(w->job.rank, w->job.world_size); /* MPI may have known better */
    *out = w;
    return FSDP_OK;
fail:
    fsdp_world_close(w);
    return status;
}

void fsdp_world_close(fsdp_world *w)
{
    if (!w)
        return;
    comm_close(w->comm);
    if (w->compute)
        w->dev->stream_free(w->compute);
    device_close(w->dev);
    free(w);
}

int fsdp_world_rank(const fsdp_world *w)
{
    return comm_rank(w->comm);
}

int fsdp_world_size(const fsdp_world *w)
{
    return comm_world_size(w->comm);
}

int fsdp_world_local_rank(const fsdp_world *w)
{
    return comm_local_rank(w->comm);
}

int fsdp_world_threads(const fsdp_world *w)
{
    return w->threads;
}

const char *fsdp_world_device(const fsdp_world *w)
{
    return w->dev->name;
}

const char *fsdp_world_description(const fsdp_world *w)
{
    return w->dev->description;
}

const char *fsdp_world_backend(const fsdp_world *w)
{
    return comm_backend_name(w->comm);
}

void fsdp_world_abort(fsdp_world *w)
{
    if (w)
        comm_abort(w->comm, fsdp_last_error());
}

fsdp_status fsdp_describe_cpu(const char *products, char *text, size_t bytes)
{
    cpu_gemm product = CPU_GEMM_AUTO;
    device *dev;
    FSDP_TRY(parse_products(products, &product));
    FSDP_TRY(device_open_cpu(product, &dev));
    snprintf(text, bytes, "%s", dev->description);
    device_close(dev);
    return FSDP_OK;
}
