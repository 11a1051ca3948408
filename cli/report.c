/* `fsdp report`: a page about one run, or several compared. The work is <fsdp/report.h>'s. */
#include <stdlib.h>

#include <fsdp/report.h>

#include "commands.h"
#include "flag_rows.h"

typedef struct report_options {
    fsdp_flag_state state;
    const char *html, *trace, *svg;
} report_options;

#define OPTIONS report_options

static const fsdp_flag report_table[] = {
    {TEXT(html, "FILE.html", "the page to write (default: report.html in DIR; of several runs, here)")},
    {TEXT(trace, "FILE", "a trace of the first run, for the picture of one step (default: the one in its folder)")},
    {TEXT(svg, "DIR", "also write each picture as an SVG file into this folder")},
    {.name = NULL},
};

static const fsdp_flag *report_flags(void)
{
    return report_table;
}

static int run_report(int argc, char **argv)
{
    report_options options;
    const char **folders = calloc((size_t)argc + 1, sizeof *folders);
    fsdp_report_config config = FSDP_REPORT_CONFIG_INIT;
    char *text = NULL;
    int n = 0;
    if (!folders)
        return command_failed("report", FSDP_ERR_MEMORY);
    fsdp_status status = command_options(report_table, &options, &options.state, "report", argc, argv, folders, &n);
    if (status == FSDP_OK) {
        config.folders = folders;
        config.n_folders = n;
        config.html = options.html;
        config.trace = options.trace;
        config.svg = options.svg;
        status = fsdp_report(&config, &text);
    }
    int code = status == FSDP_OK ? 0 : command_failed("report", status);
    if (text)
        fputs(text, stdout);
    free(text);
    free(folders);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_report = {
    .name = "report",
    .summary = "Write a page about a run, with a verdict in words, or compare several runs",
    .usage = "DIR... [--html FILE.html] [--svg DIR] [--trace FILE]",
    .details =
        "  fsdp report fsdp_runs/latest\n"
        "  fsdp report runs/a runs/b --html compared.html\n"
        "  fsdp report fsdp_runs/latest --svg pictures\n\n"
        "A run writes report.html into its folder when it ends; this does so at any time, also while it trains.\n"
        "The page needs nothing but itself. A stranger's folder is safe to open: nothing in it is run.",
    .flags = report_flags,
    .run = run_report,
};
