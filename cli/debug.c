/* `fsdp debug`: says what the flight files of a job that hung or died mean. The work is <fsdp/debug.h>'s. */
#include <stdlib.h>

#include <fsdp/debug.h>

#include "commands.h"

static int run_debug(int argc, char **argv)
{
    char *text;
    if (argc != 1 || argv[0][0] == '-')
        return command_misused("debug", "give the folder with the flight files: fsdp debug DIR");
    fsdp_status status = fsdp_debug_report(argv[0], &text);
    if (status != FSDP_OK)
        return command_failed("debug", status);
    fputs(text, stdout);
    free(text);
    return 0;
}

const command command_debug = {
    .name = "debug",
    .summary = "Show which rank of a hung or dead job was behind, and where",
    .usage = "DIR",
    .details = "DIR is the job's --output_dir. Every rank writes its last events there (flight-RANK.bin) when a\n"
               "collective fails or times out, when it crashes, and on SIGUSR2; `fsdp run` writes them for ranks that\n"
               "were killed or stopped. To inspect a running job, send SIGUSR2 to `fsdp run`, then\n"
               "  fsdp debug runs/llama\n"
               "FSDP_FLIGHT_DIR puts the files elsewhere; docs/flight-format.md describes them.",
    .run = run_debug,
};
