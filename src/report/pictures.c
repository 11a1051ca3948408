/* Draws what report.js draws: curves of all runs over each other, and of a single run where its time and memory went.
 * Works on the page's data, in which strangers' texts are printable and numbers finite or null. */
#include "report/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "observe/units.h"
#include "page/svg.h"

enum {
    PLOT = 320,
    LEFT = 84,
    RIGHT = 16,
    TOP = 44,
    AXIS = 44,
    ROW = 20,
    COLUMN = 230,
    COLORS = 12,
    MOST_ROWS = 64,
    TEXT = 48
};

typedef char *(*number_format)(char *text, double value);

static char *plain(char *text, double value)
{
    snprintf(text, TEXT, "%.4g", value);
    return text;
}

static char *percent(char *text, double value)
{
    snprintf(text, TEXT, "%.4g %%", 100 * value);
    return text;
}

static char *seconds(char *text, double value)
{
    double scale = value >= 1 || value <= 0 ? 1 : value >= 1e-3 ? 1e3 : 1e6;
    snprintf(text, TEXT, "%.4g %s", value * scale, scale == 1 ? "s" : scale == 1e3 ? "ms" : "us");
    return text;
}

static char *bytes(char *text, double value)
{
    return units_bytes(text, (int64_t)value);
}

/* What numbers a plot shows, and where. */
typedef struct plot {
    FILE *out;
    double x0, x1, y0, y1;
    number_format format;
} plot;

static double at_x(const plot *p, double x)
{
    return LEFT + (p->x1 > p->x0 ? (x - p->x0) / (p->x1 - p->x0) * (SVG_WIDTH - LEFT - RIGHT) : 0);
}

static double at_y(const plot *p, double y)
{
    return TOP + PLOT - (p->y1 > p->y0 ? (y - p->y0) / (p->y1 - p->y0) * PLOT : PLOT / 2.);
}

/* Steps of an axis: 1, 2 or 5 times a power of ten. */
static double axis_step(double range, int parts)
{
    double rough = range > 0 ? range / parts : 1, base = pow(10, floor(log10(rough)));
    return rough > 5 * base ? 10 * base : rough > 2 * base ? 5 * base : rough > base ? 2 * base : base;
}

static void draw_axes(const plot *p, const char *x_name)
{
    char text[TEXT];
    double dy = axis_step(p->y1 - p->y0, 6), dx = axis_step(p->x1 - p->x0, 8);
    for (int i = 0; i < 20; i++) {
        double v = (ceil(p->y0 / dy) + i) * dy;
        if (v > p->y1)
            break;
        fprintf(p->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, at_y(p, v), SVG_WIDTH - RIGHT);
        svg_text(p->out, LEFT - 6, at_y(p, v) + 4, "soft", "end", p->format(text, v));
    }
    for (int i = 0; i < 20; i++) {
        double v = (ceil(p->x0 / dx) + i) * dx;
        if (v > p->x1)
            break;
        snprintf(text, sizeof text, "%.6g", v);
        svg_text(p->out, at_x(p, v), TOP + PLOT + 17, "soft", "middle", text);
    }
    svg_text(p->out, SVG_WIDTH - RIGHT, TOP + PLOT + 34, "soft", "end", x_name);
}

static int legend_rows(int n)
{
    int columns = (SVG_WIDTH - 20) / COLUMN;
    return (n + columns - 1) / columns;
}

static void draw_legend(FILE *out, int top, int index, int color, const char *name)
{
    int columns = (SVG_WIDTH - 20) / COLUMN, x = 20 + index % columns * COLUMN, y = top + index / columns * ROW;
    fprintf(out, "<rect class=\"f%d\" x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" rx=\"3\"/>\n", color, x, y);
    svg_text(out, x + 20, y + 12, "name", "start", name);
}

/* ---- files ---- */

typedef struct picture_file {
    const char *folder, *name;
    char *text;
    size_t bytes;
    FILE *out;
} picture_file;

static fsdp_status begin_file(picture_file *f)
{
    f->out = open_memstream(&f->text, &f->bytes);
    return f->out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "drawing %s: out of host memory", f->name);
}

static fsdp_status end_file(picture_file *f, int *n)
{
    char *path = file_join(f->folder, f->name);
    fputs("</svg>\n", f->out);
    bool whole = fclose(f->out) == 0 && path;
    fsdp_status status = whole ? file_write_atomic(path, f->text, f->bytes)
                               : error_set(FSDP_ERR_MEMORY, "drawing %s: out of host memory", f->name);
    *n += status == FSDP_OK;
    free(path);
    free(f->text);
    return status;
}

/* ---- curves ---- */

/* One line: values over steps; entries may be null. */
typedef struct curve {
    const json_t *x, *y;
    char name[160];
    int color;
} curve;

static bool has_numbers(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_number(json_array_get(list, i)))
            return true;
    return false;
}

static void widen(double value, double *low, double *high)
{
    *low = fmin(*low, value);
    *high = fmax(*high, value);
}

static plot plot_of(FILE *out, const curve *curves, int n, number_format format)
{
    plot p = {out, INFINITY, -INFINITY, INFINITY, -INFINITY, format};
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < json_array_size(curves[k].y); i++) {
            const json_t *value = json_array_get(curves[k].y, i);
            widen(json_number_value(json_array_get(curves[k].x, i)), &p.x0, &p.x1);
            if (json_is_number(value))
                widen(json_number_value(value), &p.y0, &p.y1);
        }
    double margin = 0.05 * (p.y1 - p.y0);
    p.y1 += margin > 0 ? margin : fabs(p.y1) * 0.05 + 1e-12;
    p.y0 = p.y0 >= 0 && p.y0 < 0.5 * p.y1 ? 0 : p.y0 - margin;
    return p;
}

/* A null lifts the pen. */
static void draw_curve(const plot *p, const curve *c)
{
    bool down = false;
    fprintf(p->out, "<path class=\"line s%d\" d=\"", c->color);
    for (size_t i = 0; i < json_array_size(c->y); i++) {
        const json_t *value = json_array_get(c->y, i);
        if (json_is_number(value))
            fprintf(p->out, "%s%.1f %.1f", down ? "L" : "M", at_x(p, json_number_value(json_array_get(c->x, i))),
                    at_y(p, json_number_value(value)));
        down = json_is_number(value);
    }
    fputs("\"><title>", p->out);
    svg_escape(p->out, c->name);
    fputs("</title></path>\n", p->out);
}

static fsdp_status write_curves(picture_file *f, const char *title, const curve *curves, int n, number_format format,
                                int *written)
{
    char about[128];
    if (n == 0)
        return FSDP_OK;
    FSDP_TRY(begin_file(f));
    plot p = plot_of(f->out, curves, n, format);
    snprintf(about, sizeof about, "%s over the steps of %d curve%s.", title, n, n == 1 ? "" : "s");
    svg_begin(f->out, title, about, TOP + PLOT + AXIS + legend_rows(n) * ROW + 8);
    draw_axes(&p, "step");
    for (int k = 0; k < n; k++) {
        draw_curve(&p, &curves[k]);
        draw_legend(f->out, TOP + PLOT + AXIS, k, curves[k].color, curves[k].name);
    }
    return end_file(f, written);
}

enum { MOST_CURVES = 32 };

/* Adds the curve `key` of part `part` of a run, where it has numbers. */
static void add_curve(const json_t *run, const char *part, const char *key, const char *what, bool several,
                      curve *curves, int *n)
{
    const json_t *from = json_object_get(run, part), *values = json_object_get(from, key);
    if (*n == MOST_CURVES || !has_numbers(values))
        return;
    curve *c = &curves[*n];
    *c = (curve){.x = json_object_get(from, "step"), .y = values, .color = *n % COLORS};
    snprintf(c->name, sizeof c->name, "%.100s%s%s", several ? json_string_value(json_object_get(run, "name")) : "",
             several ? ", " : "", what);
    ++*n;
}

static const struct {
    const char *file, *title, *key;
    number_format format;
} figures[] = {{"tokens_per_s.svg", "Tokens a second", "tokens_per_s", plain},
               {"utilization.svg", "Utilization", "utilization", percent},
               {"seconds.svg", "Seconds a step", "seconds", seconds},
               {"grad_norm.svg", "Gradient norm", "grad_norm", plain},
               {"lr.svg", "Learning rate", "lr", plain},
               {"memory_taken.svg", "Memory taken by rank 0", "memory", bytes}};

static fsdp_status write_all_curves(const json_t *runs, const char *folder, int *written)
{
    curve curves[MOST_CURVES];
    bool several = json_array_size(runs) > 1;
    int n = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        add_curve(json_array_get(runs, i), "curves", "loss", "loss", several, curves, &n);
        add_curve(json_array_get(runs, i), "validation", "loss", "validation", several, curves, &n);
    }
    FSDP_TRY(write_curves(&(picture_file){folder, "loss.svg", NULL, 0, NULL}, "Loss", curves, n, plain, written));
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++) {
        n = 0;
        for (size_t i = 0; i < json_array_size(runs); i++)
            add_curve(json_array_get(runs, i), "curves", figures[k].key, figures[k].title, several, curves, &n);
        if (strcmp(figures[k].key, "seconds") == 0)
            for (size_t i = 0; i < json_array_size(runs); i++)
                add_curve(json_array_get(runs, i), "curves", "predicted_seconds", "predicted", several, curves, &n);
        FSDP_TRY(write_curves(&(picture_file){folder, figures[k].file, NULL, 0, NULL}, figures[k].title, curves, n,
                              figures[k].format, written));
    }
    return FSDP_OK;
}

/* ---- where the time went ---- */

static double value_at(const json_t *lap, size_t i)
{
    return json_number_value(json_array_get(json_object_get(lap, "values"), i));
}

/* Seconds of the laps before `until` at place i. */
static double stacked(const json_t *laps, size_t until, size_t i)
{
    double sum = 0;
    for (size_t k = 0; k < until; k++)
        sum += value_at(json_array_get(laps, k), i);
    return sum;
}

static void draw_area(const plot *p, const json_t *steps, const json_t *laps, size_t which, int color)
{
    size_t n = json_array_size(steps);
    fprintf(p->out, "<path class=\"f%d\" d=\"", color);
    for (size_t i = 0; i < n; i++)
        fprintf(p->out, "%s%.1f %.1f", i ? "L" : "M", at_x(p, json_number_value(json_array_get(steps, i))),
                at_y(p, stacked(laps, which + 1, i)));
    for (size_t i = n; i-- > 0;)
        fprintf(p->out, "L%.1f %.1f", at_x(p, json_number_value(json_array_get(steps, i))),
                at_y(p, stacked(laps, which, i)));
    fputs("Z\"/>\n", p->out);
}

static bool takes_time(const json_t *lap)
{
    double most = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(lap, "values")); i++)
        most = fmax(most, value_at(lap, i));
    return most > 0;
}

static fsdp_status write_times(const json_t *run, const char *folder, int *written)
{
    const json_t *times = json_object_get(run, "times"), *steps = json_object_get(times, "step"),
                 *laps = json_object_get(times, "laps");
    picture_file f = {folder, "times.svg", NULL, 0, NULL};
    size_t n = json_array_size(steps), n_laps = json_array_size(laps);
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, stacked(laps, n_laps, i));
    if (most <= 0)
        return FSDP_OK;
    FSDP_TRY(begin_file(&f));
    plot p = {f.out,
              json_number_value(json_array_get(steps, 0)),
              json_number_value(json_array_get(steps, n - 1)),
              0,
              1.05 * most,
              seconds};
    svg_begin(f.out, "Where the time went", "Mean seconds of a step over the ranks, by phase.",
              TOP + PLOT + AXIS + legend_rows((int)n_laps) * ROW + 8);
    draw_axes(&p, "step");
    int shown = 0;
    for (size_t k = 0; k < n_laps; k++) {
        if (!takes_time(json_array_get(laps, k)))
            continue;
        draw_area(&p, steps, laps, k, (int)k % COLORS);
        draw_legend(f.out, TOP + PLOT + AXIS, shown++, (int)k % COLORS,
                    json_string_value(json_object_get(json_array_get(laps, k), "name")));
    }
    return end_file(&f, written);
}

/* ---- ranks ---- */

/* The number of that name among [[name, number]...]; NAN: there is none. */
static double named_number(const json_t *pairs, const char *name)
{
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *pair = json_array_get(pairs, i);
        if (strcmp(json_string_value(json_array_get(pair, 0)), name) == 0)
            return json_number_value(json_array_get(pair, 1));
    }
    return NAN;
}

/* Names that any rank has under `key`, in the order of their first appearance. */
static int list_names(const json_t *ranks, const char *key, const char **names, int most)
{
    int n = 0;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        const json_t *pairs = json_object_get(json_array_get(ranks, r), key);
        for (size_t i = 0; i < json_array_size(pairs); i++) {
            const char *name = json_string_value(json_array_get(json_array_get(pairs, i), 0));
            int k = 0;
            while (k < n && strcmp(names[k], name) != 0)
                k++;
            if (k == n && n < most)
                names[n++] = name;
        }
    }
    return n;
}

static void draw_cell(FILE *out, double x, double y, double width, double share, double value)
{
    char text[TEXT];
    fprintf(out, "<rect class=\"f0\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" opacity=\"%.3f\"/>\n", x, y,
            width - 2, ROW - 2, 0.08 + 0.72 * share);
    svg_text(out, x + width / 2, y + 13, "label", "middle", seconds(text, value));
}

/* One row a rank, one column a phase; darker is longer within its column. */
static fsdp_status write_heat(const json_t *run, const char *folder, int *written)
{
    const json_t *ranks = json_object_get(run, "ranks");
    picture_file f = {folder, "ranks.svg", NULL, 0, NULL};
    const char *names[16];
    int n = list_names(ranks, "seconds", names, 16), rows = (int)fmin(MOST_ROWS, (double)json_array_size(ranks));
    if (n == 0)
        return FSDP_OK;
    FSDP_TRY(begin_file(&f));
    double width = (SVG_WIDTH - LEFT - RIGHT) / (double)n;
    svg_begin(f.out, "Seconds by rank and phase", "One row a rank, one column a phase.", TOP + ROW * (rows + 1) + 12);
    for (int k = 0; k < n; k++) {
        double most = 0;
        svg_text(f.out, LEFT + (k + 0.5) * width, TOP + 12, "soft", "middle", names[k]);
        for (int r = 0; r < rows; r++)
            most = fmax(most, named_number(json_object_get(json_array_get(ranks, (size_t)r), "seconds"), names[k]));
        for (int r = 0; r < rows; r++) {
            double value = named_number(json_object_get(json_array_get(ranks, (size_t)r), "seconds"), names[k]);
            if (isfinite(value))
                draw_cell(f.out, LEFT + k * width, TOP + ROW * (r + 1), width, most > 0 ? value / most : 0, value);
        }
    }
    for (int r = 0; r < rows; r++) {
        char name[TEXT];
        snprintf(name, sizeof name, "rank %d", r);
        svg_text(f.out, LEFT - 6, TOP + ROW * (r + 1) + 13, "soft", "end", name);
    }
    return end_file(&f, written);
}

static void draw_bar(FILE *out, double *x, double y, double length, int color, const char *name, double value)
{
    char text[TEXT];
    fprintf(out, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"><title>", color, *x, y, length,
            ROW - 4);
    svg_escape(out, name);
    fprintf(out, " %s</title></rect>\n", bytes(text, value));
    *x += length;
}

/* Two bars a rank: planned by class, and what was taken at most. */
static void draw_rank(FILE *out, const json_t *rank, int row, const char **names, int n, double scale)
{
    char text[2 * TEXT], size[TEXT];
    double x = LEFT, y = TOP + 2 * ROW * row, taken = json_number_value(json_object_get(rank, "measured"));
    for (int k = 0; k < n; k++) {
        double value = named_number(json_object_get(rank, "classes"), names[k]);
        if (value > 0)
            draw_bar(out, &x, y, value * scale, k % COLORS, names[k], value);
    }
    x = LEFT;
    draw_bar(out, &x, y + ROW - 3, taken * scale, 11, "taken", taken);
    snprintf(text, sizeof text, "rank %d", row);
    svg_text(out, LEFT - 6, y + 13, "soft", "end", text);
    snprintf(text, sizeof text, "taken %s", bytes(size, taken));
    svg_text(out, LEFT + 6, y + ROW + 9, "label", "start", text);
}

static fsdp_status write_memory(const json_t *run, const char *folder, int *written)
{
    const json_t *ranks = json_object_get(run, "ranks");
    picture_file f = {folder, "memory.svg", NULL, 0, NULL};
    const char *names[24];
    int n = list_names(ranks, "classes", names, 24), rows = (int)fmin(MOST_ROWS, (double)json_array_size(ranks));
    double most = 0;
    for (int r = 0; r < rows; r++) {
        const json_t *rank = json_array_get(ranks, (size_t)r);
        most = fmax(most, fmax(json_number_value(json_object_get(rank, "planned")),
                               json_number_value(json_object_get(rank, "measured"))));
    }
    if (n == 0 || most <= 0)
        return FSDP_OK;
    FSDP_TRY(begin_file(&f));
    int below = TOP + 2 * ROW * rows + 12;
    svg_begin(f.out, "Memory of each rank, planned and taken", "Two bars a rank: planned by class, and taken.",
              below + legend_rows(n + 1) * ROW + 8);
    for (int r = 0; r < rows; r++)
        draw_rank(f.out, json_array_get(ranks, (size_t)r), r, names, n, (SVG_WIDTH - LEFT - RIGHT) / most);
    for (int k = 0; k < n; k++)
        draw_legend(f.out, below, k, k % COLORS, names[k]);
    draw_legend(f.out, below, n, 11, "taken");
    return end_file(&f, written);
}

/* ---- one step ---- */

/* The place of a name among those seen so far. */
static int kind_of(const char *name, const char **kinds, int *n, int most)
{
    int k = 0;
    while (k < *n && strcmp(kinds[k], name) != 0)
        k++;
    if (k == *n && *n < most)
        kinds[(*n)++] = name;
    return k;
}

static void draw_track(const plot *p, const json_t *track, int row, const char **kinds, int *n)
{
    const json_t *spans = json_object_get(track, "spans");
    double y = TOP + ROW * row;
    svg_text(p->out, LEFT - 6, y + 13, "soft", "end", json_string_value(json_object_get(track, "name")));
    for (size_t i = 0; i < json_array_size(spans); i++) {
        const json_t *s = json_array_get(spans, i);
        double from = json_number_value(json_array_get(s, 0)), to = json_number_value(json_array_get(s, 1));
        const char *name = json_string_value(json_array_get(s, 2));
        if (name)
            fprintf(p->out, "<rect class=\"f%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>\n",
                    kind_of(name, kinds, n, 24) % COLORS, at_x(p, from), y, fmax(0.3, at_x(p, to) - at_x(p, from)),
                    ROW - 3);
    }
}

static fsdp_status write_step(const json_t *run, const char *folder, int *written)
{
    const json_t *timeline = json_object_get(run, "timeline"), *tracks = json_object_get(timeline, "tracks");
    picture_file f = {folder, "step.svg", NULL, 0, NULL};
    const char *kinds[24];
    char length[TEXT];
    int n = 0, rows = (int)fmin(MOST_ROWS, (double)json_array_size(tracks));
    if (rows == 0)
        return FSDP_OK;
    FSDP_TRY(begin_file(&f));
    plot p = {f.out, 0, json_number_value(json_object_get(timeline, "length")), 0, 1, plain};
    int below = TOP + ROW * rows + 24;
    svg_begin(f.out, "Timeline of one step", "Phases and collectives of each rank.", below + legend_rows(24) * ROW + 8);
    for (int r = 0; r < rows; r++)
        draw_track(&p, json_array_get(tracks, (size_t)r), r, kinds, &n);
    snprintf(length, sizeof length, "%.4g ms", p.x1);
    svg_text(f.out, SVG_WIDTH - RIGHT, below - 8, "soft", "end", length);
    for (int k = 0; k < n; k++)
        draw_legend(f.out, below, k, k % COLORS, kinds[k]);
    return end_file(&f, written);
}

fsdp_status report_pictures_write(const json_t *runs, const char *folder, int *n)
{
    const json_t *run = json_array_get(runs, 0);
    *n = 0;
    FSDP_TRY(file_make_directories(folder));
    FSDP_TRY(write_all_curves(runs, folder, n));
    if (json_array_size(runs) > 1)
        return FSDP_OK;
    FSDP_TRY(write_times(run, folder, n));
    FSDP_TRY(write_heat(run, folder, n));
    FSDP_TRY(write_memory(run, folder, n));
    return write_step(run, folder, n);
}
