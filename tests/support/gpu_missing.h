/* Tests that need a GPU say so with the status of a skipped test. */
#ifndef TESTS_SUPPORT_GPU_MISSING_H
#define TESTS_SUPPORT_GPU_MISSING_H

#include <stdio.h>
#include <unistd.h>

/* 0, or what main returns where there is no GPU. */
static inline int gpu_missing(void)
{
    if (access("/dev/nvidiactl", R_OK) == 0)
        return 0;
    printf("no CUDA device\n");
    return 77;
}

#endif
