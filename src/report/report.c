/* `fsdp report`: reads run folders, writes the page, says the verdict. */
#include <fsdp/report.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "page/page.h"
#include "report/pictures.h"
#include "report/report_data.h"

static void print_run(FILE *out, const json_t *run)
{
    const json_t *one;
    size_t i;
    fprintf(out, "%s: %lld steps\n", json_string_value(json_object_get(run, "name")),
            (long long)json_integer_value(json_object_get(run, "steps")));
    json_array_foreach(json_object_get(run, "verdict"), i, one)
        fprintf(out, "  %-24s%-9s%s\n", json_string_value(json_object_get(one, "question")),
                json_string_value(json_object_get(one, "level")), json_string_value(json_object_get(one, "text")));
    json_array_foreach(json_object_get(run, "troubles"), i, one) fprintf(out, "  note: %s\n", json_string_value(one));
}

static void print_place(FILE *out, const char *what, const char *path)
{
    json_t *shown = shown_text(path);
    fprintf(out, "%s: %s\n", what, json_string_value(shown));
    json_decref(shown);
}

static fsdp_status print_all(const json_t *runs, const char *path, const char *svg, char **text)
{
    size_t bytes, i;
    const json_t *run;
    FILE *out = open_memstream(text, &bytes);
    if (!out)
        return error_set(FSDP_ERR_MEMORY, "the report: out of host memory");
    json_array_foreach(runs, i, run) print_run(out, run);
    print_place(out, "report", path);
    if (svg)
        print_place(out, "pictures", svg);
    return fclose(out) == 0 ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "the report: out of host memory");
}

static fsdp_status add_run(json_t *runs, const char *folder, const char *trace)
{
    run_files files = {0};
    fsdp_status status = run_files_read(folder, &files);
    if (status == FSDP_OK && json_array_append_new(runs, report_data(&files, trace)) != 0)
        status = error_set(FSDP_ERR_MEMORY, "%s: out of host memory for its report", folder);
    run_files_clear(&files);
    return status;
}

static fsdp_status write_page(const json_t *runs, const char *path)
{
    char title[256];
    bool one = json_array_size(runs) == 1;
    snprintf(title, sizeof title, one ? "Run %.200s" : "Runs compared",
             json_string_value(json_object_get(json_array_get(runs, 0), "name")));
    json_t *data = json_pack("{s:O}", "runs", runs);
    page p = {.title = title, .language = "en", .view = "report", .kit = "run", .data = data};
    fsdp_status status = data ? page_write(&p, path) : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", path);
    json_decref(data);
    return status;
}

fsdp_status fsdp_report(const fsdp_report_config *config, char **text)
{
    *text = NULL;
    SIZED_READ(fsdp_report_config, FSDP_REPORT_CONFIG_INIT, c, config);
    if (c.n_folders < 1 || c.n_folders > FSDP_REPORT_RUNS)
        return error_set(FSDP_ERR_INPUT, "give the folders of 1 to %d runs: fsdp report fsdp_runs/latest",
                         FSDP_REPORT_RUNS);
    fsdp_status status = FSDP_OK;
    json_t *runs = json_array();
    char *path = c.html             ? strdup(c.html)
                 : c.n_folders == 1 ? file_join(c.folders[0], "report.html")
                                    : strdup("report.html");
    if (!runs || !path)
        status = error_set(FSDP_ERR_MEMORY, "the report: out of host memory");
    for (int i = 0; i < c.n_folders && status == FSDP_OK; i++)
        status = add_run(runs, c.folders[i], i == 0 ? c.trace : NULL);
    if (status == FSDP_OK)
        status = write_page(runs, path);
    int n_pictures = 0;
    if (status == FSDP_OK && c.svg)
        status = report_pictures_write(runs, c.svg, &n_pictures);
    if (status == FSDP_OK)
        status = print_all(runs, path, c.svg, text);
    json_decref(runs);
    free(path);
    return status;
}
