/* Sums up traces that `fsdp train --trace` wrote: what `fsdp trace` does.
 *
 *     char *text;
 *     const char *files[] = {"before.json", "after.json"};
 *     if (fsdp_trace_summary(files, 2, &text) == FSDP_OK)
 *         puts(text);
 *     free(text);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_TRACE_H
#define FSDP_TRACE_H

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For each file a table of milliseconds a step: phases, operations by name, collectives and the waits for them, with
 * the share of communication that was hidden and the slowest rank. Two files are also compared, line by line. *text is
 * the caller's to free(). */
FSDP_API fsdp_status fsdp_trace_summary(const char *const *files, int n, char **text);

#ifdef __cplusplus
}
#endif
#endif
