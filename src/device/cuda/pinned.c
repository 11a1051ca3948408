/* Host memory that the GPU reads and writes directly. Small requests are CUDA's own. Large ones are mapped on huge
 * pages, touched by all threads and then registered: they come several times faster than from CUDA, and code on the
 * host that streams through them misses the translation cache 512 times less often. */
#include "device/cuda/cuda_device.h"

#include <sys/mman.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/host/threads.h"
#include "device/cpu/parallel.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MIN_MAPPED ((size_t)64 << 20)

static size_t mapped_bytes(size_t bytes)
{
    return round_up(bytes, HUGE_PAGE);
}

static void touch_page(const void *context, int64_t at)
{
    volatile char *memory = *(char *const *)context;
    for (size_t page = 0; page < HUGE_PAGE; page += 4096) /* where there are no huge pages */
        memory[(size_t)at + page] = 0;
}

static char *map_aligned(size_t bytes)
{
    char *start = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    char *aligned = (char *)round_up((size_t)start, HUGE_PAGE);
    size_t before = (size_t)(aligned - start);
    if (before)
        munmap(start, before);
    if (before < HUGE_PAGE)
        munmap(aligned + bytes, HUGE_PAGE - before);
    madvise(aligned, bytes, MADV_HUGEPAGE); /* advice: a refusal changes nothing but speed */
    /* Pages that a device writes are copied at a fork, which takes seconds and serves nobody. */
    madvise(aligned, bytes, MADV_DONTFORK);
    return aligned;
}

static fsdp_status too_much(size_t bytes)
{
    return error_set(FSDP_ERR_MEMORY,
                     "%.1f MiB of pinned host memory could not be had; free host memory, raise the limit on locked "
                     "memory, or offload fewer units (--cpu_offload_units)",
                     (double)bytes / (1 << 20));
}

static fsdp_status map_and_register(size_t bytes, void **out)
{
    char *memory = map_aligned(mapped_bytes(bytes));
    if (!memory)
        return too_much(bytes);
    parallel_for(threads_count(), (int64_t)mapped_bytes(bytes), (int64_t)HUGE_PAGE, touch_page, &memory);
    cudaError_t error = cudaHostRegister(memory, mapped_bytes(bytes), cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        munmap(memory, mapped_bytes(bytes));
        (void)cudaGetLastError();
        return error == cudaErrorMemoryAllocation ? too_much(bytes) : cuda_check(error, "pinning host memory");
    }
    *out = memory;
    return FSDP_OK;
}

fsdp_status pinned_allocate(size_t bytes, void **out)
{
    if (bytes >= MIN_MAPPED)
        return map_and_register(bytes, out);
    cudaError_t error = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return too_much(bytes);
    }
    return cuda_check(error, "allocating pinned host memory");
}

void pinned_release(void *memory, size_t bytes)
{
    if (bytes < MIN_MAPPED) {
        (void)cudaFreeHost(memory);
        return;
    }
    (void)cudaHostUnregister(memory);
    munmap(memory, mapped_bytes(bytes));
}
