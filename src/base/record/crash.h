/* The report of a process that dies of a fatal signal: its rank, what it was doing, and a backtrace.
 * base/record/hooks.h notes what it is doing with every event; the program decides whether to report
 * (fsdp_report_crashes). */
#ifndef BASE_RECORD_CRASH_H
#define BASE_RECORD_CRASH_H

#include <stdint.h>

#include <fsdp/crash.h>

/* Each keeps the newest; a few stores, no lock, from any thread. Names of phases and operations are literals or live as
 * long as the process; names of units are copied. NULL: none. */
void crash_note_step(int64_t step); /* being made, from 1 */
void crash_note_phase(const char *phase);
void crash_note_operation(const char *operation, const char *direction); /* "linear", "backward" */
void crash_note_unit(const char *unit);
void crash_note_wait(const char *collective, const char *subject); /* for other ranks; NULL: it is over. The pulse's */

#endif
