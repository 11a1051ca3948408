/* Makes the page's data of a run: curves thinned to what a screen can show, settings with their origin, ranks, history.
 * Only fields that are known, of the type that they should have, get through. */
#include "report/report_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/history.h"
#include "report/verdict.h"

enum { MOST_SETTINGS = 400, MOST_SESSIONS = 200, MOST_RANKS = 256 };
static const int64_t most_trace_bytes = (int64_t)256 << 20;

/* ---- Curves ---- */

/* Adds the run's steps to `all`. */
static void set_curves(json_t *all, const run_files *r)
{
    history h;
    if (history_open(&h) != FSDP_OK)
        return;
    for (int64_t i = 0; i < r->n_rows; i++)
        history_add(&h, &r->rows[i]);
    json_t *curves = history_curves(&h, -1);
    history_end(&h, curves);
    json_object_set_new(all, "curves", curves);
    json_object_set_new(all, "times", history_times(&h));
    history_close(&h);
}

json_t *report_validations(const validation_row *rows, int64_t n)
{
    json_t *steps = json_array(), *loss = json_array(), *accuracy = json_array();
    int64_t apart = n / HISTORY_POINTS + 1;
    for (int64_t i = n > 0 ? (n - 1) % apart : 0; i < n; i += apart) { /* the newest is always among them */
        json_array_append_new(steps, json_integer(rows[i].step));
        json_array_append_new(loss, history_number(rows[i].loss));
        json_array_append_new(accuracy, history_number(rows[i].accuracy));
    }
    return json_pack("{s:o, s:o, s:o}", "step", steps, "loss", loss, "accuracy", accuracy);
}

json_t *report_spikes(const loss_spikes *s)
{
    json_t *steps = json_array();
    for (int i = 0; i < s->n_steps; i++)
        json_array_append_new(steps, json_integer(s->steps[i]));
    return steps;
}

/* ---- Settings and history ---- */

static json_t *value_text(const json_t *value)
{
    if (json_is_string(value))
        return shown_text(json_string_value(value));
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_t *shown = shown_text(text);
    free(text);
    return shown;
}

static json_t *settings_json(const run_files *r)
{
    json_t *list = json_array(), *origins = json_object_get(r->run, "origins");
    const char *name;
    json_t *value;
    json_object_foreach(r->settings, name, value)
    {
        if (json_array_size(list) < MOST_SETTINGS)
            json_array_append_new(list,
                                  json_pack("{s:o, s:o, s:o}", "name", shown_text(name), "value", value_text(value),
                                            "origin", shown_text(json_string_value(json_object_get(origins, name)))));
    }
    return list;
}

static json_t *sessions_json(const run_files *r)
{
    json_t *list = json_array();
    const json_t *sessions = json_object_get(r->run, "sessions"), *s;
    size_t i;
    json_array_foreach(sessions, i, s)
    {
        if (i < MOST_SESSIONS)
            json_array_append_new(
                list, json_pack("{s:o, s:I, s:I, s:o, s:o, s:o}", "began",
                                shown_text(json_string_value(json_object_get(s, "began"))), "step",
                                json_integer_value(json_object_get(s, "step")), "ranks",
                                json_integer_value(json_object_get(s, "ranks")), "host",
                                shown_text(json_string_value(json_object_get(s, "host"))), "resumed_from",
                                shown_text(json_string_value(json_object_get(s, "resumed_from"))), "ended",
                                shown_text(json_string_value(json_object_get(json_object_get(s, "ended"), "how")))));
    }
    return list;
}

/* ---- Ranks ---- */

/* The numbers of an object by name. */
static json_t *numbers_of(const json_t *object)
{
    json_t *made = json_array();
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        if (json_is_number(value) && json_number_value(value) >= 0 && json_array_size(made) < 32)
            json_array_append_new(made, json_pack("[o, f]", shown_text(name), json_number_value(value)));
    }
    return made;
}

static json_t *ranks_json(const run_files *r)
{
    json_t *list = json_array();
    const json_t *ranks = json_object_get(r->ranks, "ranks"), *rank;
    size_t i;
    json_array_foreach(ranks, i, rank)
    {
        if (i < MOST_RANKS && json_is_object(rank))
            json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:o, s:o, s:o}", "rank", (int)i, "planned",
                                                  json_number_value(json_object_get(rank, "planned")), "measured",
                                                  json_number_value(json_object_get(rank, "measured")), "classes",
                                                  numbers_of(json_object_get(rank, "classes")), "taken",
                                                  numbers_of(json_object_get(rank, "taken")), "seconds",
                                                  numbers_of(json_object_get(rank, "seconds"))));
    }
    return list;
}

/* ---- The command that runs it again ---- */

/* A word for a shell, whatever it holds. */
static void print_quoted(FILE *out, const char *word)
{
    fputc('\'', out);
    for (; *word; word++) {
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    }
    fputc('\'', out);
}

/* What the run wrote outside its folder goes into the new one: the command must not write over it. */
static void print_outputs(FILE *out, const json_t *settings)
{
    static const char *const outputs[] = {"checkpoint_dir",  "export_dir", "export_adapter", "metrics",
                                          "tensorboard_dir", "trace",      "log_samples"};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const char *path = json_string_value(json_object_get(settings, outputs[i]));
        const char *slash = path ? strrchr(path, '/') : NULL, *last = slash ? slash + 1 : path;
        char *place = NULL;
        if (!path || !path[0])
            continue;
        fprintf(out, " --%s ", outputs[i]);
        if (asprintf(&place, "again/%s", last[0] ? last : outputs[i]) > 0)
            print_quoted(out, place);
        free(place);
    }
}

static json_t *reproduce(const run_files *r)
{
    char *text = NULL;
    size_t bytes;
    const json_t *sessions = json_object_get(r->run, "sessions"),
                 *last = json_array_get(sessions, json_array_size(sessions) - 1);
    json_int_t ranks = json_integer_value(json_object_get(last, "ranks"));
    FILE *out = r->settings ? open_memstream(&text, &bytes) : NULL;
    if (!out)
        return json_null();
    if (ranks > 1)
        fprintf(out, "fsdp run --standalone --nproc-per-node %lld ", (long long)ranks);
    fputs("fsdp train --config ", out);
    char *settings = NULL;
    if (asprintf(&settings, "%s/settings.json", r->path) > 0)
        print_quoted(out, settings);
    fputs(" --output_dir again", out);
    print_outputs(out, r->settings);
    free(settings);
    fclose(out);
    json_t *shown = shown_text(text);
    free(text);
    return shown;
}

/* ---- All of it ---- */

/* The file in the folder that has the name of the run's --trace. */
static json_t *timeline(run_files *r, const char *trace)
{
    const char *named = json_string_value(json_object_get(r->settings, "trace")), *slash;
    if (trace)
        return step_spans(r, trace);
    if (!named)
        return NULL;
    slash = strrchr(named, '/');
    char *path = run_files_find(r, slash ? slash + 1 : named, most_trace_bytes);
    if (!path)
        run_files_trouble(r, "the trace %s is not in the folder: `fsdp report --trace FILE` draws its step", named);
    json_t *spans = path ? step_spans(r, path) : NULL;
    free(path);
    return spans;
}

void report_documents(json_t *all, const run_files *r)
{
    json_object_set_new(all, "name", shown_text(r->name));
    json_object_set_new(all, "path", shown_text(r->path));
    json_object_set_new(all, "settings", settings_json(r));
    json_object_set_new(all, "sessions", sessions_json(r));
    json_object_set(all, "checkpoints", r->checkpoints);
    json_object_set_new(all, "reproduce", reproduce(r));
    json_object_set(all, "troubles", r->troubles);
}

json_t *report_data(run_files *r, const char *trace)
{
    loss_spikes spikes;
    loss_spikes_find(r, &spikes);
    json_t *all = json_object(), *spans = timeline(r, trace);
    report_documents(all, r);
    json_object_set_new(all, "steps", json_integer(r->n_rows));
    set_curves(all, r);
    json_object_set_new(all, "validation", report_validations(r->validations, r->n_validations));
    json_object_set_new(all, "spikes", report_spikes(&spikes));
    json_object_set_new(all, "verdict", verdict_of(r, &spikes));
    json_object_set_new(all, "ranks", ranks_json(r));
    json_object_set_new(all, "timeline", spans ? spans : json_null());
    return all;
}
