/* Stretches double in length whenever there are too many of them to draw. */
#include "report/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

fsdp_status history_open(history *h)
{
    *h = (history){.stretches = calloc(HISTORY_POINTS, sizeof *h->stretches), .length = 1};
    return h->stretches ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "the steps of a run: out of host memory");
}

void history_close(history *h)
{
    free(h->stretches);
    *h = (history){0};
}

void history_clear(history *h)
{
    *h = (history){.stretches = h->stretches, .length = 1, .edition = h->edition + 1};
}

static double loss_of(const metrics_row *row)
{
    return row->figures[FIGURE_LOSS];
}

static void widen(history_stretch *s, const metrics_row *row)
{
    if (loss_of(row) < loss_of(&s->low) || !isfinite(loss_of(&s->low)))
        s->low = *row;
    if (!isfinite(loss_of(row)) || loss_of(row) > loss_of(&s->high))
        s->high = *row;
}

static void join(history_stretch *s, const history_stretch *next)
{
    widen(s, &next->low);
    widen(s, &next->high);
    s->n += next->n;
    for (int k = 0; k < LAP_COUNT; k++)
        s->laps[k] += next->laps[k];
}

static void halve(history *h)
{
    int64_t n = 0;
    for (int64_t i = 0; i < h->n_stretches; i += 2) {
        history_stretch s = h->stretches[i];
        if (i + 1 < h->n_stretches)
            join(&s, &h->stretches[i + 1]);
        h->stretches[n++] = s;
    }
    h->n_stretches = n;
    h->length *= 2;
    h->edition++;
}

static int64_t last_step(const history_stretch *s)
{
    return s->low.step > s->high.step ? s->low.step : s->high.step;
}

static int64_t first_step(const history_stretch *s)
{
    return s->low.step < s->high.step ? s->low.step : s->high.step;
}

void history_add(history *h, const metrics_row *row)
{
    h->newest = *row;
    history_stretch *last = h->n_stretches > 0 ? &h->stretches[h->n_stretches - 1] : NULL;
    history_stretch one = {.low = *row, .high = *row, .n = 1};
    for (int k = 0; k < LAP_COUNT; k++)
        one.laps[k] = row->laps[k];
    h->n_steps++;
    if (last && last->n < h->length) {
        join(last, &one);
        return;
    }
    h->stretches[h->n_stretches++] = one;
    while (h->n_stretches * (h->length > 1 ? 2 : 1) >= HISTORY_POINTS)
        halve(h);
}

void history_copy(history *to, const history *from)
{
    history_stretch *room = to->stretches;
    int64_t same = to->edition == from->edition && to->n_stretches > 0 ? to->n_stretches - 1 : 0;
    memcpy(room + same, from->stretches + same, (size_t)(from->n_stretches - same) * sizeof *room);
    *to = *from;
    to->stretches = room;
}

json_t *history_number(double value)
{
    return isfinite(value) && fabs(value) < 1e100 ? json_real(value) : json_null();
}

/* The rows of a stretch after `since`, in order; returns how many. */
static int rows_after(const history_stretch *s, int64_t since, const metrics_row *rows[2])
{
    const metrics_row *first = s->low.step < s->high.step ? &s->low : &s->high;
    const metrics_row *second = first == &s->low ? &s->high : &s->low;
    int n = 0;
    if (first->step > since)
        rows[n++] = first;
    if (second->step > since && second->step != first->step)
        rows[n++] = second;
    return n;
}

static void append_row(json_t *curves, const metrics_row *row)
{
    json_array_append_new(json_object_get(curves, "step"), json_integer(row->step));
    for (int k = 0; k < N_FIGURES; k++)
        json_array_append_new(json_object_get(curves, figure_names[k]), history_number(row->figures[k]));
}

json_t *history_curves(const history *h, int64_t since)
{
    json_t *all = json_object();
    int64_t begin = h->n_stretches;
    while (begin > 0 && last_step(&h->stretches[begin - 1]) > since)
        begin--;
    json_object_set_new(all, "step", json_array());
    for (int k = 0; k < N_FIGURES; k++)
        json_object_set_new(all, figure_names[k], json_array());
    for (int64_t i = begin; i < h->n_stretches; i++) {
        const metrics_row *rows[2];
        int n = rows_after(&h->stretches[i], since, rows);
        for (int r = 0; r < n; r++)
            append_row(all, rows[r]);
    }
    return all;
}

void history_end(const history *h, json_t *curves)
{
    const json_t *steps = json_object_get(curves, "step");
    size_t n = json_array_size(steps);
    if (h->n_steps > 0 && (n == 0 || json_integer_value(json_array_get(steps, n - 1)) < h->newest.step))
        append_row(curves, &h->newest);
}

json_t *history_newest(const history *h)
{
    json_t *all = json_object();
    for (int k = 0; k < N_FIGURES; k++)
        json_object_set_new(all, figure_names[k], history_number(h->n_steps > 0 ? h->newest.figures[k] : NAN));
    return all;
}

json_t *history_times(const history *h)
{
    enum { PIECES = 200 };
    int64_t together = (h->n_stretches + PIECES - 1) / PIECES;
    json_t *steps = json_array(), *laps = json_array(), *values[LAP_COUNT];
    for (int k = 0; k < LAP_COUNT; k++)
        values[k] = json_array();
    for (int64_t first = 0; first < h->n_stretches; first += together) {
        history_stretch sum = h->stretches[first];
        for (int64_t i = first + 1; i < first + together && i < h->n_stretches; i++)
            join(&sum, &h->stretches[i]);
        json_array_append_new(steps, json_integer(first_step(&h->stretches[first])));
        for (int k = 0; k < LAP_COUNT; k++)
            json_array_append_new(values[k], json_real(sum.laps[k] / (double)sum.n));
    }
    for (int k = 0; k < LAP_COUNT; k++)
        json_array_append_new(laps, json_pack("{s:s, s:o}", "name", lap_name((lap)k), "values", values[k]));
    return json_pack("{s:o, s:o}", "step", steps, "laps", laps);
}
