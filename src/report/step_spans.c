/* Takes the timeline of one step out of a trace. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "report/report_data.h"

enum { MOST_RANKS = 4, MOST_SPANS = 6000 };

typedef struct span {
    const char *category, *name, *detail;
    json_int_t rank;
    double from, to;
} span;

static bool read_span(const json_t *e, span *out)
{
    const char *kind = json_string_value(json_object_get(e, "ph"));
    const json_t *rank = json_object_get(e, "pid"), *args = json_object_get(e, "args");
    double length = json_number_value(json_object_get(e, "dur"));
    *out = (span){.category = json_string_value(json_object_get(e, "cat")),
                  .name = json_string_value(json_object_get(e, "name")),
                  .detail = json_string_value(json_object_get(args, "detail")),
                  .rank = json_integer_value(rank),
                  .from = json_number_value(json_object_get(e, "ts"))};
    out->to = out->from + length;
    return kind && strcmp(kind, "X") == 0 && out->category && out->name && json_is_integer(rank) && length >= 0;
}

static bool is(const span *s, const char *category)
{
    return strcmp(s->category, category) == 0;
}

/* The last step of rank 0. */
static bool find_step(const json_t *events, span *out)
{
    bool found = false;
    size_t i;
    const json_t *e;
    json_array_foreach(events, i, e)
    {
        span s;
        if (read_span(e, &s) && s.rank == 0 && is(&s, "phase") && strcmp(s.name, "step") == 0) {
            *out = s;
            found = true;
        }
    }
    return found;
}

/* Adds a rank's spans of one category that touch the step. */
static void add_spans(json_t *list, const json_t *events, const span *step, int rank, const char *category, int *left)
{
    size_t i;
    const json_t *e;
    json_array_foreach(events, i, e)
    {
        span s;
        bool touches = read_span(e, &s) && s.rank == rank && s.to > step->from && s.from < step->to;
        if (!touches || !is(&s, category) || strcmp(s.name, "step") == 0 || *left <= 0)
            continue;
        json_array_append_new(list, json_pack("[f, f, o, o]", (fmax(s.from, step->from) - step->from) / 1e3,
                                              (fmin(s.to, step->to) - step->from) / 1e3,
                                              shown_text(is(&s, "wait") ? "wait" : s.name), shown_text(s.detail)));
        --*left;
    }
}

/* Waits lie within phases, so they are drawn after them. */
static json_t *spans_of(const json_t *events, const span *step, int rank, bool collectives, int *left)
{
    json_t *list = json_array();
    add_spans(list, events, step, rank, collectives ? "collective" : "phase", left);
    if (!collectives)
        add_spans(list, events, step, rank, "wait", left);
    return list;
}

json_t *step_spans(run_files *r, const char *path)
{
    json_t *events = NULL, *tracks = json_array();
    span step;
    int left = MOST_SPANS;
    if (json_read_file(path, &events) != FSDP_OK)
        run_files_trouble(r, "the trace: %s", fsdp_last_error());
    else if (!json_is_array(events) || !find_step(events, &step))
        run_files_trouble(r, "the trace %s has no whole step of rank 0", path);
    for (int rank = 0; json_is_array(events) && rank < MOST_RANKS && find_step(events, &step); rank++)
        for (int collectives = 0; collectives < 2; collectives++) {
            char name[48];
            json_t *spans = spans_of(events, &step, rank, collectives, &left);
            snprintf(name, sizeof name, "rank %d %s", rank, collectives ? "comm" : "phases");
            if (json_array_size(spans) > 0)
                json_array_append_new(tracks, json_pack("{s:s, s:O}", "name", name, "spans", spans));
            json_decref(spans);
        }
    json_t *made = json_array_size(tracks) > 0
                       ? json_pack("{s:f, s:O}", "length", (step.to - step.from) / 1e3, "tracks", tracks)
                       : NULL;
    json_decref(tracks);
    json_decref(events);
    return made;
}
