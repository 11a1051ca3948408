/* A small text that is always at hand: what `fsdp train --preset tiny` learns where this repository's own text is not
 * there. Readers open files, so it is shown to them as one that lives in memory. */
#include "train/builtin_text.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/embedded.h"
#include "base/error.h"

extern const embedded_file train_assets[]; /* one */

fsdp_status builtin_text_open(int *fd, char path[BUILTIN_TEXT_PATH])
{
    *fd = memfd_create("fsdp-text", MFD_CLOEXEC);
    if (*fd < 0)
        return error_set_errno(FSDP_ERR_IO, "no file in memory for the built-in text");
    for (const char *at = train_assets[0].text; *at;) {
        ssize_t written = write(*fd, at, strlen(at));
        if (written <= 0) {
            close(*fd);
            *fd = -1;
            return error_set_errno(FSDP_ERR_IO, "the built-in text cannot be kept in memory");
        }
        at += written;
    }
    snprintf(path, BUILTIN_TEXT_PATH, "/proc/self/fd/%d", *fd);
    return FSDP_OK;
}
