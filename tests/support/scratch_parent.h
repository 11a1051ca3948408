/* Where tests make their folders. */
#ifndef TESTS_SUPPORT_SCRATCH_PARENT_H
#define TESTS_SUPPORT_SCRATCH_PARENT_H

#include <stdlib.h>
#include <unistd.h>

/* In memory where there is a file system for that: tests sync thousands of times, and none pulls a plug. */
static inline const char *scratch_parent(void)
{
    const char *parent = getenv("TMPDIR");
    if (parent && *parent)
        return parent;
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

#endif
