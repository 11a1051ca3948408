/* `fsdp plan`: what a job would take, before it is started. Takes the flags of `fsdp train`. */
#include <stdlib.h>

#include <fsdp/plan.h>

#include "commands.h"

static const fsdp_flag *plan_flags(void)
{
    return fsdp_settings_flags();
}

static int run_plan(int argc, char **argv)
{
    fsdp_settings settings;
    char *report = NULL;
    command_show_warnings("plan");
    fsdp_status status = fsdp_settings_init(&settings);
    if (status == FSDP_OK)
        status = fsdp_settings_parse(&settings, "plan", argc, argv);
    if (status == FSDP_OK)
        status = fsdp_plan(&settings, &report);
    int code = status == FSDP_OK ? 0 : command_failed("plan", status);
    if (report)
        puts(report);
    free(report);
    fsdp_settings_free(&settings);
    return code;
}

const command command_plan = {
    .name = "plan",
    .summary = "Show a job's memory and communication without running it",
    .usage = "[FLAGS of fsdp train...] [--device GPU] [--world_size N|auto] [--fit SIZE] [--json]",
    .details = "  fsdp plan --preset llama3_1_8b --device h100 --world_size 8\n"
               "  fsdp plan --preset llama3_1_70b --device h200 --world_size auto\n"
               "  fsdp plan --model_config model/config.json --world_size 4 --fit 80GB",
    .flags = plan_flags,
    .run = run_plan,
};
