/* Failure messages: set where the failure is seen, widened on the way up, read by fsdp_last_error().
 * The text lives in thread-local storage; nothing here allocates, prints or exits. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <fsdp/status.h>

/* Sets this thread's message and returns `status`, so that a failing line reads
 *     return error_set(FSDP_ERR_INPUT, "%s: hidden_size is %d; it must be positive", path, size);
 * When the process knows its rank and the world is larger than one, "rank N: " is put in front. A message is one line:
 * control characters in it, which names from files may hold, are escaped (base/text/printable.h). */
fsdp_status error_set(fsdp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, closing with ": " and the text of errno. */
fsdp_status error_set_errno(fsdp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts context in front of the present message ("checkpoint/step-20: ") and returns `status` unchanged. */
fsdp_status error_prefix(fsdp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The status of this thread's last failure, FSDP_OK before the first: for those who learn of it by a NULL. */
fsdp_status error_last(void);

/* How often this thread's message was set: a callback that fails without a message is told apart. */
unsigned error_count(void);

/* Who this process is, for messages and logs. Set once at start, by the code that read the environment. */
void error_set_rank(int rank, int world_size);
int error_rank(void);
int error_world_size(void);

/* `goto label` on failure, for functions with cleanup; wants a local `fsdp_status status`. */
#define TRY_OR(label, call)                                                                                            \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != FSDP_OK)                                                                                         \
            goto label;                                                                                                \
    } while (0)

#endif
