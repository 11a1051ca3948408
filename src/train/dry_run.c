/* `fsdp train --dry_run`: prints the memory that the job would need and the settings it would use, and does not run it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/table.h"
#include "train/run.h"
#include "settings/settings_used.h"

static fsdp_status say_text(train_run *run, const char *plan)
{
    char *settings;
    FSDP_TRY(settings_used_text(run->settings, &settings));
    run_say(run, FSDP_LINE_INFO, "\n%s\n", plan);
    if (run->misfit[0])
        run_say(run, FSDP_LINE_INFO, "This would not start here: %s\n", run->misfit);
    run_say(run, FSDP_LINE_INFO, "%s", settings);
    run_say_notes(run);
    free(settings);
    return FSDP_OK;
}

static fsdp_status say_json(train_run *run, const char *plan)
{
    const fsdp_text_list *lines = &run->settings->notes;
    json_t *notes = json_array();
    for (int i = 0; i < lines->n; i++)
        json_array_append_new(notes, json_string(lines->items[i]));
    json_t *all = json_pack("{s:o, s:o, s:s, s:s, s:o}", "plan", json_loads(plan, 0, NULL), "settings",
                            settings_used_json(run->settings), "reason", run->sharding.reason, "misfit", run->misfit,
                            "notes", notes);
    char *text = all ? json_dumps(all, JSON_INDENT(1)) : NULL;
    json_decref(all);
    if (!text)
        return error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory");
    if (run->rank == 0 && run->callbacks.line)
        run->callbacks.line(run->callbacks.context, FSDP_LINE_INFO, text);
    free(text);
    return FSDP_OK;
}

fsdp_status run_dry(train_run *run)
{
    char *text = NULL;
    plan_table *table = calloc(1, sizeof *table);
    if (!table)
        return error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory");
    table->work = &run->work;
    table->sharding = &run->sharding;
    table->world = run_plan_world(run);
    fsdp_status status = assemble_count(&run->model_config, &table->n_parameters);
    if (status == FSDP_OK)
        status = plan_table_print(table, run->used.json, &text);
    if (status == FSDP_OK)
        status = run->used.json ? say_json(run, text) : say_text(run, text);
    free(text);
    free(table);
    return status;
}
