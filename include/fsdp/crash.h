/* Last words: a process that dies of a fatal signal says what it was doing. */
#ifndef FSDP_CRASH_H
#define FSDP_CRASH_H

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT and SIGSYS print, on standard error, the rank, the step, the
 * unit, the phase and a backtrace; then the process dies of the same signal, as it would have. A signal that somebody
 * else (a sanitizer, MPI) handles already is left alone. Call it once, at the start of a program, on its first thread.
 */
FSDP_API void fsdp_report_crashes(void);

#ifdef __cplusplus
}
#endif
#endif
