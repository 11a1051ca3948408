/* The CUDA device: opening it, memory, streams, events and graphs. Kernels are in kernels_cuda.c and the files it
 * names; the libraries are opened by libraries.c. */
#include "device/cuda/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"

#define MEBIBYTE (1024.0 * 1024.0)

fsdp_status cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return FSDP_OK;
    return error_set(error == cudaErrorMemoryAllocation ? FSDP_ERR_MEMORY : FSDP_ERR_DEVICE, "%s failed: %s (%s)", what,
                     cudaGetErrorString(error), cudaGetErrorName(error));
}

fsdp_status cuda_enter(const cuda_device *d)
{
    if (d->index < 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s is only described: it can be planned for, not computed on",
                         d->gpu.name);
    return cuda_check(cudaSetDevice(d->index), "choosing the GPU");
}

static fsdp_status out_of_memory(const cuda_device *d, size_t bytes)
{
    size_t available = 0, total = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&available, &total);
    return error_set(FSDP_ERR_MEMORY,
                     "GPU %d (%s) is out of memory: %.1f MiB asked for, %.1f of %.1f MiB free; use a smaller batch, "
                     "activation checkpointing or --cpu_offload",
                     d->index, d->gpu.name, (double)bytes / MEBIBYTE, (double)available / MEBIBYTE,
                     (double)total / MEBIBYTE);
}

static fsdp_status device_allocate(device *base, memory_kind kind, size_t bytes, void **out)
{
    cuda_device *d = (cuda_device *)base;
    FSDP_TRY(cuda_enter(d));
    *out = NULL;
    if (kind == MEMORY_DEVICE) {
        cudaError_t error = cudaMalloc(out, bytes ? bytes : 1);
        if (error == cudaErrorMemoryAllocation)
            return out_of_memory(d, bytes);
        FSDP_TRY(cuda_check(error, "allocating device memory"));
    } else {
        FSDP_TRY(pinned_allocate(bytes, out));
    }
    HOOK(HOOK_MEMORY, HOOK_INSTANT, kind == MEMORY_DEVICE ? "cuda" : "cuda.host", NULL, (int64_t)bytes, 0);
    return FSDP_OK;
}

static void device_release(device *base, memory_kind kind, void *memory, size_t bytes)
{
    if (!memory || cuda_enter((cuda_device *)base) != FSDP_OK)
        return;
    if (kind == MEMORY_DEVICE)
        (void)cudaFree(memory);
    else
        pinned_release(memory, bytes);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, kind == MEMORY_DEVICE ? "cuda" : "cuda.host", NULL, -(int64_t)bytes, 0);
}

static void device_stream_free(stream *s)
{
    if (!s)
        return;
    if (cuda_enter(s->device) == FSDP_OK) {
        paced_copies_leave(s);
        if (s->launch.stream)
            (void)cudaStreamDestroy(s->launch.stream);
        (void)cudaFree(s->launch.scratch);
    }
    free(s);
}

static fsdp_status device_stream_create(device *base, int priority, stream **out)
{
    cuda_device *d = (cuda_device *)base;
    FSDP_TRY(cuda_enter(d));
    stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for a stream");
    s->device = d;
    s->launch.n_multiprocessors = d->gpu.n_multiprocessors;
    s->launch.shared_bytes = d->gpu.shared_bytes;
    s->launch.clusters = d->gpu.compute_capability >= 90;
    fsdp_status status = cuda_check(cudaStreamCreateWithPriority(&s->launch.stream, cudaStreamNonBlocking,
                                                                 priority > 0 ? d->priority_ahead : d->priority_normal),
                                    "creating a stream");
    if (status == FSDP_OK)
        status = cuda_check(cudaMalloc((void **)&s->launch.scratch, SUM_PARTIALS * sizeof(double)),
                            "allocating a stream's scratch memory");
    if (status != FSDP_OK) {
        device_stream_free(s);
        return status;
    }
    *out = s;
    return FSDP_OK;
}

static fsdp_status device_stream_synchronize(stream *s)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaStreamSynchronize(s->launch.stream), "waiting for the GPU");
}

static fsdp_status device_event_create(device *base, event **out)
{
    cuda_device *d = (cuda_device *)base;
    FSDP_TRY(cuda_enter(d));
    event *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for an event");
    e->device_index = d->index;
    fsdp_status status = cuda_check(cudaEventCreate(&e->handle), "creating an event");
    if (status != FSDP_OK) {
        free(e);
        return status;
    }
    *out = e;
    return FSDP_OK;
}

static void device_event_free(event *e)
{
    if (!e)
        return;
    (void)cudaEventDestroy(e->handle);
    free(e);
}

static fsdp_status device_event_record(stream *s, event *e)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaEventRecord(e->handle, s->launch.stream), "recording an event");
}

static fsdp_status device_stream_wait(stream *s, event *e)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaStreamWaitEvent(s->launch.stream, e->handle, 0), "making a stream wait");
}

static fsdp_status device_event_elapsed(event *from, event *to, double *milliseconds)
{
    float elapsed = 0;
    FSDP_TRY(cuda_check(cudaEventSynchronize(to->handle), "waiting for an event"));
    FSDP_TRY(cuda_check(cudaEventElapsedTime(&elapsed, from->handle, to->handle), "reading the time between events"));
    *milliseconds = elapsed;
    return FSDP_OK;
}

static fsdp_status device_copy(stream *s, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || to == from)
        return FSDP_OK;
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->launch.stream), "copying memory");
}

static fsdp_status device_zero(stream *s, void *to, size_t bytes)
{
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaMemsetAsync(to, 0, bytes, s->launch.stream), "clearing memory");
}

static fsdp_status device_graph_begin(stream *s)
{
    FSDP_TRY(cuda_enter(s->device));
    if (s->recording)
        return error_set(FSDP_ERR_STATE, "a graph is already being recorded on this stream");
    cuda_cache_save(s->device); /* the plain run before a recording has chosen what there is to choose */
    /* Thread-local: another thread's allocation (a checkpoint writer) must not break the recording. */
    FSDP_TRY(cuda_check(cudaStreamBeginCapture(s->launch.stream, cudaStreamCaptureModeThreadLocal),
                        "starting to record a graph"));
    s->recording = true;
    return FSDP_OK;
}

static fsdp_status device_graph_end(stream *s, graph **out)
{
    if (!s->recording)
        return error_set(FSDP_ERR_STATE, "no graph is being recorded on this stream");
    s->recording = false;
    FSDP_TRY(cuda_enter(s->device));
    cudaGraph_t recorded = NULL;
    FSDP_TRY(cuda_check(cudaStreamEndCapture(s->launch.stream, &recorded), "recording a graph"));
    graph *g = calloc(1, sizeof *g);
    if (!g) {
        (void)cudaGraphDestroy(recorded);
        return error_set(FSDP_ERR_MEMORY, "out of host memory for a graph");
    }
    fsdp_status status = cuda_check(cudaGraphInstantiate(&g->executable, recorded, 0), "preparing a recorded graph");
    (void)cudaGraphDestroy(recorded);
    if (status != FSDP_OK) {
        free(g);
        return status;
    }
    *out = g;
    return cuda_check(cudaGraphUpload(g->executable, s->launch.stream), "uploading a graph");
}

static fsdp_status device_graph_launch(stream *s, graph *g)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaGraphLaunch(g->executable, s->launch.stream), "launching a graph");
}

static void device_graph_free(graph *g)
{
    if (!g)
        return;
    (void)cudaGraphExecDestroy(g->executable);
    free(g);
}

static bool device_is_recording(const stream *s)
{
    return s->recording;
}

static fsdp_status device_event_record_in_graph(stream *s, event *e)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(cudaEventRecordWithFlags(e->handle, s->launch.stream, cudaEventRecordExternal),
                      "recording an event in a graph");
}

static fsdp_status device_halves(stream *s, const halves_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(launch_halves(&s->launch, a), "halves");
}

static fsdp_status device_random(stream *s, const random_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    return cuda_check(launch_random(&s->launch, a), "random numbers");
}

static fsdp_status device_paced_move(stream *s, const paced_move_args *a)
{
    FSDP_TRY(cuda_enter(s->device));
    return a->blocks > 0 ? cuda_check(launch_paced_move(&s->launch, a), "paced move") : cuda_paced_copy(s, a);
}

static size_t device_available(device *base)
{
    const cuda_device *d = (const cuda_device *)base;
    size_t available = 0, total = 0;
    if (d->index < 0)
        return gpu_usable(d->gpu.memory_bytes - GPU_CONTEXT_BYTES);
    if (cuda_enter(d) != FSDP_OK || cudaMemGetInfo(&available, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return gpu_usable(available);
}

static void device_shut(device *base)
{
    cuda_device *d = (cuda_device *)base;
    if (d->index >= 0 && cuda_enter(d) == FSDP_OK)
        (void)cudaDeviceSynchronize();
    paced_copies_free(d->paced);
    cuda_cache_save(d);
    free(d->cache);
    gemm_table_free(d, d->gemms);
    cudnn_plans_free(d, d->plans);
    cuda_forget_description(d);
    libraries_close(&d->libraries);
    free(d);
}

static void *native_stream(stream *s)
{
    return s->launch.stream;
}

const device cuda_device_table = {
    .name = "cuda",
    .own_memory = true,
    .workspace_limit = GPU_WORKSPACE_LIMIT,
    .chunk_bytes = GPU_CHUNK_BYTES,
    .kernels = &cuda_kernels,
    .allocate = device_allocate,
    .release = device_release,
    .stream_create = device_stream_create,
    .stream_free = device_stream_free,
    .stream_synchronize = device_stream_synchronize,
    .event_create = device_event_create,
    .event_free = device_event_free,
    .event_record = device_event_record,
    .stream_wait = device_stream_wait,
    .event_elapsed = device_event_elapsed,
    .event_done = cuda_event_done,
    .copy = device_copy,
    .zero = device_zero,
    .graph_begin = device_graph_begin,
    .graph_end = device_graph_end,
    .graph_launch = device_graph_launch,
    .graph_free = device_graph_free,
    .is_recording = device_is_recording,
    .event_record_in_graph = device_event_record_in_graph,
    .threads = 1,
    .native_stream = native_stream,
    .halves = device_halves,
    .random = device_random,
    .paced_move = device_paced_move,
    .autotune_export = cuda_autotune_export,
    .autotune_import = cuda_autotune_import,
    .activity_begin = cuda_activity_begin,
    .activity_end = cuda_activity_end,
    .available = device_available,
    .close = device_shut,
};

/* Why there is no GPU to use, in words that say what to do. */
static fsdp_status check_gpus(int index)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        (void)cudaGetLastError();
        if (driver == 0)
            return error_set(FSDP_ERR_UNSUPPORTED, "no NVIDIA driver is loaded; install one or use --device cpu");
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "the NVIDIA driver supports CUDA %d.%d, this program needs %d.%d; update the driver or use "
                         "--device cpu",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return error_set(FSDP_ERR_UNSUPPORTED, "no GPU can be used: %s (%s); use --device cpu",
                         cudaGetErrorString(error), cudaGetErrorName(error));
    }
    if (index < 0 || index >= count)
        return error_set(FSDP_ERR_UNSUPPORTED, "there is no GPU %d: this process sees %d", index, count);
    return FSDP_OK;
}

static fsdp_status read_properties(cuda_device *d)
{
    struct cudaDeviceProp properties;
    FSDP_TRY(cuda_check(cudaGetDeviceProperties(&properties, d->index), "reading the GPU's properties"));
    snprintf(d->gpu.name, sizeof d->gpu.name, "%.*s", (int)sizeof d->gpu.name - 1, properties.name);
    d->gpu.compute_capability = properties.major * 10 + properties.minor;
    d->gpu.n_multiprocessors = properties.multiProcessorCount;
    d->gpu.shared_bytes = (int)properties.sharedMemPerBlockOptin;
    d->gpu.l2_bytes = properties.l2CacheSize;
    d->gpu.memory_bytes = properties.totalGlobalMem;
    FSDP_TRY(cuda_check(cudaDeviceGetPCIBusId(d->gpu.pci_bus_id, sizeof d->gpu.pci_bus_id, d->index),
                        "reading the GPU's place on the bus"));
    d->base.gpu = &d->gpu;
    if (d->gpu.compute_capability < 80)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "GPU %d (%s) has compute capability %d.%d; 8.0 or newer is needed (use --device cpu)",
                         d->index, d->gpu.name, properties.major, properties.minor);
    FSDP_TRY(cuda_check(cudaDeviceGetStreamPriorityRange(&d->priority_normal, &d->priority_ahead),
                        "reading stream priorities"));
    return FSDP_OK;
}

static void describe(cuda_device *d)
{
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    unsigned cublaslt = (unsigned)d->libraries.cublaslt.cublasLtGetVersion();
    unsigned cudnn = (unsigned)d->libraries.cudnn_version;
    char attention[64] = "own attention";
    if (cudnn)
        snprintf(attention, sizeof attention, "cuDNN %u.%u.%u", cudnn / 10000, cudnn % 10000 / 100, cudnn % 100);
    snprintf(d->base.description, sizeof d->base.description,
             "%.80s (compute capability %d.%d, %d multiprocessors, driver for CUDA %d.%d), cuBLASLt %u.%u.%u, %s",
             d->gpu.name, d->gpu.compute_capability / 10, d->gpu.compute_capability % 10, d->gpu.n_multiprocessors,
             driver / 1000, driver % 1000 / 10, cublaslt / 10000, cublaslt % 10000 / 100, cublaslt % 100, attention);
}

fsdp_status device_open_cuda(int index, device **out)
{
    FSDP_TRY(check_gpus(index));
    cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for the CUDA device");
    d->base = cuda_device_table;
    d->index = index;
    d->tuning = true;
    d->cudnn = true;
    fsdp_status status;
    TRY_OR(fail, cuda_enter(d));
    TRY_OR(fail, read_properties(d));
    TRY_OR(fail, libraries_open(&d->libraries));
    TRY_OR(fail, gemm_table_create(&d->gemms));
    TRY_OR(fail, cudnn_plans_create(&d->plans));
    cuda_cache_open(d);
    describe(d);
    *out = &d->base;
    return FSDP_OK;
fail:
    gemm_table_free(d, d->gemms);
    cudnn_plans_free(d, d->plans);
    libraries_close(&d->libraries);
    free(d);
    return status;
}

void cuda_set_tf32(device *d, bool on)
{
    ((cuda_device *)d)->tf32 = on;
}

void cuda_set_tuning(device *d, bool on)
{
    ((cuda_device *)d)->tuning = on;
}

void cuda_set_cudnn(device *d, bool on)
{
    ((cuda_device *)d)->cudnn = on;
}

void *cuda_stream_handle(stream *s)
{
    return s->launch.stream;
}

fsdp_status cuda_event_done(event *e, bool *done)
{
    /* A thread that has not chosen a GPU yet would open a context on the first one. */
    FSDP_TRY(cuda_check(cudaSetDevice(e->device_index), "choosing the GPU"));
    cudaError_t error = cudaEventQuery(e->handle);
    *done = error == cudaSuccess;
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError();
    return error == cudaErrorNotReady ? FSDP_OK : cuda_check(error, "asking for an event");
}
