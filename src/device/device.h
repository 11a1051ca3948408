/* A device: memory, streams, events, graphs and kernels behind one table. cpu/ and cuda/ each fill it in.
 *
 * Streams are queues: work enqueued on one runs in order, work on two may overlap until an event joins them. On the
 * CPU the compute stream runs inline (enqueue returns when the work is done), so events are free there.
 * Calls on one stream come from one thread at a time; different streams may be used by different threads. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/status.h>

#include "device/kernels.h"

typedef struct device device;
typedef struct stream stream;
typedef struct event event;
typedef struct graph graph;
typedef struct gpu_properties gpu_properties;   /* gpu.h */
typedef struct device_activity device_activity; /* activity.h */
typedef void (*activity_sink)(void *context, const device_activity *a);

typedef enum memory_kind {
    MEMORY_DEVICE, /* what kernels read and write */
    MEMORY_HOST,   /* host memory that transfers can use asynchronously (pinned with CUDA) */
} memory_kind;

struct device {
    const char *name;          /* "cpu", "cuda" */
    char description[256];     /* for --version and reports: the processor and what the products run on */
    bool own_memory;           /* beside the host's: what MEMORY_HOST is does not lie there */
    size_t workspace_limit;    /* no kernel is given more workspace than this, none may ask for more */
    size_t chunk_bytes;        /* how much of a large intermediate (logits) is computed at a time; 0: 128 MiB */
    const gpu_properties *gpu; /* NULL: not a GPU */
    const char *unplanned;     /* what the workspaces leave out, for a sentence; NULL: nothing */
    bool autotune_off;         /* set before the first kernel: implementations are chosen by rule, never by timing */
    bool awaits_autotune;      /* likewise, until what rank 0 timed is imported */
    int threads;               /* that kernels run on; 1 where the device has its own */
    const kernel_table *kernels;

    /* 256-byte aligned (CPU: huge pages where that helps), contents undefined. Reported through HOOK_MEMORY. */
    fsdp_status (*allocate)(device *d, memory_kind kind, size_t bytes, void **out);
    void (*release)(device *d, memory_kind kind, void *memory, size_t bytes); /* NULL is legal */

    fsdp_status (*stream_create)(device *d, int priority, stream **out); /* priority: 0 normal, 1 ahead of it */
    void (*stream_free)(stream *s);
    fsdp_status (*stream_synchronize)(stream *s); /* waits for the host's sake; reports asynchronous failures */

    fsdp_status (*event_create)(device *d, event **out);
    void (*event_free)(event *e);
    fsdp_status (*event_record)(stream *s, event *e);
    fsdp_status (*stream_wait)(stream *s, event *e); /* later work of s waits for e */
    fsdp_status (*event_elapsed)(event *from, event *to, double *milliseconds);
    fsdp_status (*event_done)(event *e, bool *done); /* what came before its record is done; never waits */

    fsdp_status (*copy)(stream *s, void *to, const void *from, size_t bytes); /* any of the two kinds, either way */
    fsdp_status (*zero)(stream *s, void *to, size_t bytes);

    /* Graphs: what is enqueued between begin and end is recorded instead of run, then launched as often as wanted.
     * NULL where the device has none (CPU). */
    fsdp_status (*graph_begin)(stream *s);
    fsdp_status (*graph_end)(stream *s, graph **out);
    fsdp_status (*graph_launch)(stream *s, graph *g);
    void (*graph_free)(graph *g);
    bool (*is_recording)(const stream *s);                     /* between graph_begin and graph_end */
    fsdp_status (*event_record_in_graph)(stream *s, event *e); /* there: every launch records e, for event_elapsed */

    /* Masters of bf16 parameters kept as halves, of which the high ones are what is gathered: 4 bytes instead of 6.
     * NULL where masters are kept whole (CPU); the optimizer then has no `rest`. */
    fsdp_status (*halves)(stream *s, const halves_args *a);

    /* Fills device memory with random numbers; NULL: the host makes them (CPU). */
    fsdp_status (*random)(stream *s, const random_args *a);

    /* Stands in for a link (comm/emulate); NULL where the host can move the bytes itself (CPU). */
    fsdp_status (*paced_move)(stream *s, const paced_move_args *a);

    /* Choices made by timing, as bytes: those of one rank are handed to the others and kept in checkpoints. What is
     * imported is taken instead of timing, also for kernels that ran before (recorded graphs keep theirs); what another
     * GPU or library version chose is skipped. `name` is for messages. *bytes is the caller's to free(). NULL where
     * nothing is timed (CPU). */
    fsdp_status (*autotune_export)(device *d, char **bytes, size_t *n);
    fsdp_status (*autotune_import)(device *d, const char *name, const char *bytes, size_t n);

    /* Records of what ran, for activity.h: from begin to end, which gives them out, or drops them (sink NULL). Begin is
     * FSDP_ERR_UNSUPPORTED, with the reason, where nothing keeps any. NULL: the host's clock says it all (CPU). */
    fsdp_status (*activity_begin)(device *d);
    fsdp_status (*activity_end)(device *d, activity_sink sink, void *context);

    void *(*native_stream)(stream *s); /* the library's own handle (cudaStream_t); NULL: there is none (CPU) */

    size_t (*available)(device *d); /* bytes that could be allocated now; NULL, or a result of 0: not known */

    void (*close)(device *d);
};

/* How matrix products are computed on the CPU. AUTO picks the best that this machine runs. */
typedef enum cpu_gemm { CPU_GEMM_AUTO, CPU_GEMM_ONEDNN, CPU_GEMM_AMX, CPU_GEMM_AVX512, CPU_GEMM_PORTABLE } cpu_gemm;

fsdp_status device_open_cpu(cpu_gemm product, device **out);

/* FSDP_ERR_UNSUPPORTED, with the reason, when built without CUDA or run without a GPU. */
fsdp_status device_open_cuda(int index, device **out);

/* A GPU that need not be here, by name (h200, h100, a100): a device of which only what plans ask for is there: name,
 * limits, gpu, unplanned, the kernels' workspaces, available, and which of the optional functions it has. Everything
 * else refuses. FSDP_ERR_INPUT for other names. */
bool device_is_described(const char *name);
fsdp_status device_describe(const char *name, device **out);

static inline void device_close(device *d)
{
    if (d)
        d->close(d);
}

#endif
