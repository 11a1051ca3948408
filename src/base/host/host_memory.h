/* How much host memory this process could still take. */
#ifndef BASE_HOST_HOST_MEMORY_H
#define BASE_HOST_HOST_MEMORY_H

#include <stddef.h>

/* Bytes: what the system has free or can drop, and not more than the control groups that this process runs in still
 * allow. 0: the system does not say. */
size_t host_memory_available(void);

/* The same with /proc and /sys below another folder; for tests. */
size_t host_memory_available_in(const char *root);

#endif
