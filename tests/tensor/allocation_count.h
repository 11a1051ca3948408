/* Counts every allocation of the process, on all threads and in all libraries: the C library's allocation functions are
 * defined here, in the executable, and stand before those of the C library. One source file of a program includes this.
 */
#ifndef TESTS_TENSOR_ALLOCATION_COUNT_H
#define TESTS_TENSOR_ALLOCATION_COUNT_H

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __has_feature /* clang's way to tell; gcc defines macros */
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
    __has_feature(thread_sanitizer)
#define ALLOCATIONS_ARE_COUNTED 0 /* the sanitizers have these functions */
#else
#define ALLOCATIONS_ARE_COUNTED 1
#endif

static atomic_long allocations_made, allocations_freed;
static atomic_bool allocations_watched;

/* Nothing is counted outside begin .. end. */
static inline void allocations_begin(void)
{
    atomic_store(&allocations_made, 0);
    atomic_store(&allocations_freed, 0);
    atomic_store(&allocations_watched, true);
}

static inline void allocations_end(void)
{
    atomic_store(&allocations_watched, false);
}

#if ALLOCATIONS_ARE_COUNTED

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

#define INTERPOSED __attribute__((visibility("default")))

/* UCX's pools of messages grow when messages overtake each other: its allocations are its own. */
static inline bool caller_is_ucx(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "/libuc");
}

static inline void count(atomic_long *what, const void *caller)
{
    if (atomic_load_explicit(&allocations_watched, memory_order_relaxed) && !caller_is_ucx(caller))
        atomic_fetch_add_explicit(what, 1, memory_order_relaxed);
}

INTERPOSED void *malloc(size_t bytes)
{
    count(&allocations_made, __builtin_return_address(0));
    return __libc_malloc(bytes);
}

INTERPOSED void *calloc(size_t n, size_t bytes)
{
    count(&allocations_made, __builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

INTERPOSED void *realloc(void *memory, size_t bytes)
{
    count(&allocations_made, __builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

INTERPOSED void free(void *memory)
{
    if (memory)
        count(&allocations_freed, __builtin_return_address(0));
    __libc_free(memory);
}

INTERPOSED void *memalign(size_t alignment, size_t bytes);
INTERPOSED void *memalign(size_t alignment, size_t bytes)
{
    count(&allocations_made, __builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

INTERPOSED void *aligned_alloc(size_t alignment, size_t bytes)
{
    count(&allocations_made, __builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

INTERPOSED int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count(&allocations_made, __builtin_return_address(0));
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

INTERPOSED void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    count(&allocations_made, __builtin_return_address(0));
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

INTERPOSED void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off64_t offset)
{
    count(&allocations_made, __builtin_return_address(0));
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

#endif
#endif
