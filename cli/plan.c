/* `fsdp plan`: what a job would take, before it is started. Takes the flags of `fsdp train`. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/plan.h>

#include "commands.h"

static const fsdp_flag *plan_flags(void)
{
    return fsdp_settings_flags();
}

/* The flags of the first plan and those of --against after them: of a flag given twice, the last counts. `text` is cut
 * at spaces, in place. */
static fsdp_status read_against(int argc, char **argv, char *text, fsdp_settings *out)
{
    char **all = calloc((size_t)argc + strlen(text) + 1, sizeof *all);
    int n = 0;
    for (int i = 0; all && i < argc; i++)
        all[n++] = argv[i];
    for (char *word = strtok(text, " \t\n"); all && word; word = strtok(NULL, " \t\n"))
        all[n++] = word;
    fsdp_status status = all ? fsdp_settings_init(out) : FSDP_ERR_MEMORY;
    if (status == FSDP_OK)
        status = fsdp_settings_parse(out, "plan", n, all);
    free(all);
    return status;
}

static fsdp_status make_plan(int argc, char **argv, fsdp_settings *settings, fsdp_settings *other, char **report)
{
    FSDP_TRY(fsdp_settings_init(settings));
    FSDP_TRY(fsdp_settings_parse(settings, "plan", argc, argv));
    if (!settings->against)
        return fsdp_plan(settings, report);
    char *text = strdup(settings->against);
    fsdp_status status = text ? read_against(argc, argv, text, other) : FSDP_ERR_MEMORY;
    if (status == FSDP_OK)
        status = fsdp_plan_against(settings, other, report);
    free(text);
    return status;
}

static int run_plan(int argc, char **argv)
{
    fsdp_settings settings = {.size = 0}, other = {.size = 0};
    char *report = NULL;
    command_show_warnings("plan");
    fsdp_status status = make_plan(argc, argv, &settings, &other, &report);
    int code = status == FSDP_OK ? 0 : command_failed("plan", status);
    if (report)
        puts(report);
    free(report);
    fsdp_settings_free(&other);
    fsdp_settings_free(&settings);
    return code;
}

const command command_plan = {
    .name = "plan",
    .summary = "Show a job's memory and communication without running it",
    .usage = "[FLAGS of fsdp train...] [--device GPU] [--world_size N|auto] [--fit SIZE] [--units] "
             "[--predict] [--predict_scaling N,N...|auto] [--profile FILE|GPU] [--timeline FILE.html] [--svg FILE.svg] "
             "[--against='FLAGS'] [--json]",
    .details = "  fsdp plan --preset llama3_1_8b --device h100 --world_size 8\n"
               "  fsdp plan --preset llama3_1_70b --device h200 --world_size auto\n"
               "  fsdp plan --model_config model/config.json --world_size 4 --fit 80GB\n"
               "  fsdp plan --preset tiny --world_size 2 --units\n"
               "  fsdp plan --preset llama3_1_8b --device h100 --world_size 8 --sharding_strategy full \\\n"
               "      --timeline step.html --against='--activation_checkpointing full'",
    .flags = plan_flags,
    .run = run_plan,
};
