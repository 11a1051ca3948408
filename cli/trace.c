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
    .summary = "Sum up traces of `fsdp train --trace`: where the time of a step went, and the slowest rank",
    .usage = "summary FILE...",
    .details = "Prints milliseconds a step by phase, operation and collective, how much of the communication was\n"
               "hidden, and the slowest rank. Two files are compared:\n"
               "  fsdp trace summary before.json after.json\n"
               "Perfetto (ui.perfetto.dev) and chrome://tracing draw the same files.\n",
    .run = run_trace,
};
