/* `fsdp trace`: sums up traces. The work is <fsdp/trace.h>'s. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/trace.h>

#include "commands.h"

static int run_trace(int argc, char **argv)
{
    char *text;
    if (argc < 2 || strcmp(argv[0], "summary") != 0 || argv[1][0] == '-')
        return command_misused("trace", "give files that `fsdp train --trace FILE` wrote: fsdp trace summary FILE...");
    fsdp_status status = fsdp_trace_summary((const char *const *)argv + 1, argc - 1, &text);
    if (status != FSDP_OK)
        return command_failed("trace", status);
    fputs(text, stdout);
    free(text);
    return 0;
}

const command command_trace = {
    .name = "trace",
    .summary = "Summarize traces of `fsdp train --trace`: where step time goes, and the slowest rank",
    .usage = "summary FILE...",
    .details = "Prints milliseconds per step by phase, operation and collective, how much communication was hidden,\n"
               "and the slowest rank. Given two files, compares them:\n"
               "  fsdp trace summary before.json after.json\n"
               "Perfetto (ui.perfetto.dev) and chrome://tracing show the same files.",
    .run = run_trace,
};
