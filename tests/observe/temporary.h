/* A folder of its own for a test, removed afterwards. */
#ifndef TESTS_OBSERVE_TEMPORARY_H
#define TESTS_OBSERVE_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static inline int make_folder(void **state)
{
    char name[] = "/tmp/fsdp-observe-XXXXXX";
    if (!mkdtemp(name))
        return -1;
    *state = strdup(name);
    return *state ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    int failed = file_remove_tree(*state) != FSDP_OK;
    free(*state);
    return failed;
}

#endif
