/* Bytes that arrive without any of the GPU's blocks: copy engines move them in pieces, and after each the stream waits
 * in a stream memory operation until a link would have carried it (pacer.h). No kernel takes part, as in NCCL's
 * copy-engine collectives: one would start only when products leave room on a multiprocessor. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cudaTypedefs.h>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

/* A piece takes at least this long on the link, so that what a wait costs does not count; at most so many to a move. */
static const double piece_seconds = 100e-6;
enum { MAX_PIECES = 64, BATCH = 16 };

typedef CUresult (*memory_operation)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

struct paced_copies {
    memory_operation write, wait;
    pacer *pacer;
    void *words;
};

#if CUDART_VERSION >= 13000
/* The driver is not linked, so that programs start without one. */
static memory_operation find_operation(const char *name)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    memory_operation operation = NULL;
    if (cudaGetDriverEntryPointByVersion(name, &function, 11070, cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess)
        memcpy(&operation, &function, sizeof operation);
    else
        (void)cudaGetLastError();
    return operation;
}
#else /* before, a copy could not ask for copy engines: it may be a kernel */
static memory_operation find_operation(const char *name)
{
    (void)name;
    return NULL;
}
#endif

static fsdp_status open_copies(paced_copies *c)
{
    c->write = find_operation("cuStreamWriteValue32");
    c->wait = find_operation("cuStreamWaitValue32");
    if (!c->write || !c->wait)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "copies are paced with CUDA 13 and a driver that has stream memory operations, and one of "
                         "them is missing; update it or use --comm_memory plain");
    FSDP_TRY(pinned_allocate(pacer_bytes, &c->words));
    memset(c->words, 0, pacer_bytes);
    return pacer_open(c->words, &c->pacer);
}

void paced_copies_free(paced_copies *c)
{
    if (!c)
        return;
    pacer_close(c->pacer);
    if (c->words)
        pinned_release(c->words, pacer_bytes);
    free(c);
}

/* With the first paced copy of a device; groups may begin theirs on several threads. */
static fsdp_status need_copies(cuda_device *d)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&lock);
    if (!d->paced) {
        paced_copies *c = calloc(1, sizeof *c);
        status = c ? open_copies(c) : error_set(FSDP_ERR_MEMORY, "out of host memory for paced copies");
        if (status == FSDP_OK)
            d->paced = c;
        else
            paced_copies_free(c);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void paced_copies_leave(stream *s)
{
    if (!s->pace)
        return;
    (void)cudaStreamSynchronize(s->launch.stream); /* another stream may get the word */
    pacer_give_back(s->device->paced->pacer, s->pace);
    s->pace = NULL;
}

static fsdp_status need_word(stream *s)
{
    FSDP_TRY(need_copies(s->device));
    if (!s->pace)
        s->pace = pacer_take(s->device->paced->pacer);
    if (!s->pace)
        return error_set(FSDP_ERR_UNSUPPORTED, "more than %d streams pace copies; use --comm_memory plain",
                         PACER_WAITERS);
    return FSDP_OK;
}

static fsdp_status operate(const stream *s, memory_operation operation, uint32_t value, unsigned flags)
{
    CUresult result = operation(s->launch.stream, (CUdeviceptr)(uintptr_t)s->pace, value, flags);
    if (result == CUDA_SUCCESS)
        return FSDP_OK;
    return error_set(FSDP_ERR_DEVICE,
                     "pacing copies: a stream memory operation failed with CUDA's error %d; use "
                     "--comm_memory plain",
                     (int)result);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The next copies of the move's bytes from *at to `end`, as many as one batch takes: from and to begin again at their
 * ends. */
static size_t next_copies(const paced_move_args *a, size_t *at, size_t end, void **to, const void **from, size_t *bytes)
{
    size_t n = 0;
    for (; n < BATCH && *at < end; *at += bytes[n++]) {
        const size_t read = *at % a->from_bytes, written = *at % a->to_bytes;
        bytes[n] = smaller(end - *at, smaller(a->from_bytes - read, a->to_bytes - written));
        from[n] = (const char *)a->from + read;
        to[n] = (char *)a->to + written;
    }
    return n;
}

#if CUDART_VERSION >= 13000
/* As NCCL's copy-engine collectives copy: in batches, beside what is computed. */
static cudaError_t copy_batch(const stream *s, void **to, const void **from, size_t *bytes, size_t n)
{
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream,
                                              .flags = cudaMemcpyFlagPreferOverlapWithCompute};
    size_t all = 0;
    return cudaMemcpyBatchAsync(to, from, bytes, n, &attributes, &all, 1, s->launch.stream);
}
#else
static cudaError_t copy_batch(const stream *s, void **to, const void **from, const size_t *bytes, size_t n)
{
    (void)s, (void)to, (void)from, (void)bytes, (void)n;
    return cudaErrorNotSupported;
}
#endif

static fsdp_status copy_range(const stream *s, const paced_move_args *a, size_t first, size_t end)
{
    void *to[BATCH];
    const void *from[BATCH];
    size_t bytes[BATCH];
    for (size_t at = first; at < end;) {
        const size_t n = next_copies(a, &at, end, to, from, bytes);
        FSDP_TRY(cuda_check(copy_batch(s, to, from, bytes, n), "copying with copy engines"));
    }
    return FSDP_OK;
}

static int count_pieces(double seconds)
{
    double pieces = fmin(seconds / piece_seconds, MAX_PIECES);
    return (int)fmax(pieces, ceil(seconds / PACER_MAX_SECONDS));
}

static fsdp_status request_time(const stream *s, const paced_copies *c, double seconds, bool follows)
{
    pacer_expect(c->pacer, 1);
    fsdp_status status = operate(s, c->write, pacer_request(seconds, follows), CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status != FSDP_OK)
        pacer_expect(c->pacer, -1);
    return status;
}

fsdp_status cuda_paced_copy(stream *s, const paced_move_args *a)
{
    if (a->seconds <= 0)
        return copy_range(s, a, 0, a->bytes);
    const int pieces = count_pieces(a->seconds);
    FSDP_TRY(need_word(s));
    const paced_copies *c = s->device->paced;
    for (int i = 0; i < pieces; i++) {
        const size_t first = a->bytes / (size_t)pieces * (size_t)i;
        const size_t end = i + 1 < pieces ? first + a->bytes / (size_t)pieces : a->bytes;
        FSDP_TRY(request_time(s, c, a->seconds / pieces, i > 0));
        FSDP_TRY(copy_range(s, a, first, end));
        FSDP_TRY(operate(s, c->wait, 0, CU_STREAM_WAIT_VALUE_EQ));
    }
    return FSDP_OK;
}
