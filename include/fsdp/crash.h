/* Crash reports: a process that dies of a fatal signal prints what it was doing. */
#ifndef FSDP_CRASH_H
#define FSDP_CRASH_H

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT and SIGSYS print, on standard error, the rank, the step, the
 * unit, the phase and a backtrace; then the process dies of the same signal, as it would have. SIGUSR2 writes the last
 * events of the rank into its flight file (`fsdp debug`) and the process goes on; a crash writes it, too. A signal that
 * already has a handler (a sanitizer's, MPI's) is left alone. Call it once, at the start of a program, on its first
 * thread. It also gives that thread a stack for signal handlers: install yours with SA_ONSTACK, because oneDNN's matrix
 * products keep numbers below the stack pointer, where a handler on the thread's own stack would write over them. */
FSDP_API void fsdp_report_crashes(void);

#ifdef __cplusplus
}
#endif
#endif
