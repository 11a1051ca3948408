/* A folder of its own for a test that writes files, removed when the test ends. */
#ifndef TESTS_BASE_SCRATCH_H
#define TESTS_BASE_SCRATCH_H

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "support/scratch_parent.h"

/* For cmocka's setup and teardown: *state becomes the path of an empty folder. */
static inline int scratch_setup(void **state)
{
    char *path = file_join(scratch_parent(), "fsdp-test-XXXXXX");
    *state = path;
    return path && mkdtemp(path) ? 0 : -1;
}

static inline int scratch_teardown(void **state)
{
    int failed = file_remove_tree(*state) != FSDP_OK;
    free(*state);
    return failed;
}

#endif
