/* Looks at what a job that hung or died left behind: what `fsdp debug` does.
 *
 *     char *text;
 *     if (fsdp_debug_report("runs/llama", &text) == FSDP_OK)
 *         puts(text);
 *     free(text);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_DEBUG_H
#define FSDP_DEBUG_H

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the flight files (flight-RANK.bin) of a folder and says in words which rank is behind, at which collective,
 * what the others wait for, which ranks called different things, and which left no file. Ranks write the files into
 * their output folder (FSDP_FLIGHT_DIR names another) when a collective fails, when they crash, and on SIGUSR2; `fsdp
 * run` writes them for ranks that could not. *text is the caller's to free(). */
FSDP_API fsdp_status fsdp_debug_report(const char *folder, char **text);

#ifdef __cplusplus
}
#endif
#endif
