/* Public structs that may grow begin with `size_t size`, which the caller's _INIT sets to what its headers know. These
 * functions carry such structs over the border, whichever of program and library is newer. */
#ifndef BASE_SIZED_H
#define BASE_SIZED_H

#include <stddef.h>

#include <fsdp/status.h>

/* Copies the caller's `given` over the defaults in `full`, of `known` bytes: what a smaller struct lacks keeps its
 * default, and full's size is `known`. FSDP_ERR_INPUT, naming the struct `type` and its `init`, where `given` is NULL,
 * its size is 0 or absurd, or bytes beyond those known here are set. */
fsdp_status sized_read(void *full, size_t known, const void *given, const char *type, const char *init);

/* Whether a result can be written to `given`; to be asked before the work begins. NULL is legal: nobody wants it. */
fsdp_status sized_check(const void *given, size_t known, const char *type, const char *init);

/* Fills the caller's `given` (checked, or NULL) from `full`, as far as it goes; what it has beyond that becomes 0, and
 * its size stays. */
void sized_write(void *given, const void *full, size_t known);

/* Declares `full` with the defaults of INIT and the caller's fields; returns from the function where that fails. */
#define SIZED_READ(type, INIT, full, given)                                                                            \
    type full = INIT;                                                                                                  \
    FSDP_TRY(sized_read(&full, sizeof full, given, #type, #INIT))
#define SIZED_CHECK(type, INIT, given) FSDP_TRY(sized_check(given, sizeof(type), #type, #INIT))

#endif
