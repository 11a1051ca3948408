/* A folder of its own for each test program, removed at its end, and files in it. */
#ifndef TESTS_FORMAT_SCRATCH_H
#define TESTS_FORMAT_SCRATCH_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "support/scratch_parent.h"

static char scratch_folder[512];

static inline int scratch_setup(void **state)
{
    (void)state;
    snprintf(scratch_folder, sizeof scratch_folder, "%s/fsdp-test-XXXXXX", scratch_parent());
    return mkdtemp(scratch_folder) ? 0 : -1;
}

static inline int scratch_teardown(void **state)
{
    (void)state;
    return file_remove_tree(scratch_folder) == FSDP_OK ? 0 : -1;
}

/* The path of `name` in the folder; valid until the eighth next call. */
static inline const char *scratch_path(const char *name)
{
    static char paths[8][1200];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

static inline void scratch_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* The whole file; free() it. */
static inline uint8_t *scratch_read(const char *path, size_t *bytes)
{
    char *text;
    assert_int_equal(file_read(path, &text, bytes), FSDP_OK);
    return (uint8_t *)text;
}

/* The call fails with `status`, and its message holds each of the texts. */
#define assert_fails(status, call, ...)                                                                                \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        const char *texts_[] = {__VA_ARGS__};                                                                          \
        for (size_t i_ = 0; i_ < sizeof texts_ / sizeof *texts_; i_++)                                                 \
            if (!strstr(fsdp_last_error(), texts_[i_]))                                                                \
                fail_msg("\"%s\" is not in \"%s\"", texts_[i_], fsdp_last_error());                                    \
    } while (0)

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != FSDP_OK)                                                                                         \
            fail_msg("%s: %s", #call, fsdp_last_error());                                                              \
    } while (0)

#endif
