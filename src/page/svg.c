/* Draws with the classes of page.css, which the file carries along. */
#include "page/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "page/page.h"

enum {
    WIDTH = SVG_WIDTH,
    PLOT = 360,
    LEFT = 84,
    RIGHT = 16,
    TOP = 44,
    AXIS = 40,
    LEGEND_ROW = 20,
    LEGEND_COLUMN = 230,
    TEXT = 40
};

typedef struct drawing {
    FILE *out;
    const svg_picture *p;
    double high; /* of the y axis */
} drawing;

static double at_x(const drawing *d, double x)
{
    double from = d->p->x[0], to = d->p->x[d->p->n - 1];
    return LEFT + (to > from ? (x - from) / (to - from) * (WIDTH - LEFT - RIGHT) : 0);
}

static double at_y(const drawing *d, double y)
{
    return TOP + PLOT - y / d->high * PLOT;
}

/* U+FFFE and U+FFFF, which XML does not have. */
static bool is_no_character(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    return c[0] == 0xef && c[1] == 0xbf && c[2] >= 0xbe;
}

void svg_escape(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if (is_no_character(text))
            text += 2;
        else if ((unsigned char)*text >= 0x20)
            fputc(*text, out);
    }
}

void svg_text(FILE *out, double x, double y, const char *class, const char *anchor, const char *text)
{
    fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y, anchor);
    svg_escape(out, text);
    fputs("</text>\n", out);
}

void svg_begin(FILE *out, const char *title, const char *about, int height)
{
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"title about\" width=\"%d\" "
            "height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"system-ui, sans-serif\">\n<title id=\"title\">",
            SVG_WIDTH, height, SVG_WIDTH, height);
    svg_escape(out, title);
    fputs("</title>\n<desc id=\"about\">", out);
    svg_escape(out, about);
    fprintf(out,
            "</desc>\n<style>\n%s.sheet { fill: var(--card); }\n</style>\n"
            "<rect class=\"sheet\" width=\"100%%\" height=\"100%%\"/>\n",
            page_style());
    svg_text(out, 20, 24, "name", "start", title);
}

static void draw_text(const drawing *d, double x, double y, const char *class, const char *anchor, const char *text)
{
    svg_text(d->out, x, y, class, anchor, text);
}

/* Bytes are counted in powers of two: so are the steps of their axis. */
static void draw_axes(const drawing *d)
{
    char text[TEXT];
    const svg_picture *p = d->p;
    double step = exp2(ceil(log2(d->high / 6))), from = p->x[0], to = p->x[p->n - 1];
    for (double v = 0; v <= d->high; v += step) {
        fprintf(d->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, at_y(d, v), WIDTH - RIGHT);
        draw_text(d, LEFT - 6, at_y(d, v) + 4, "soft", "end", p->format(text, (int64_t)v));
    }
    double rough = to > from ? (to - from) / 8 : 1, base = pow(10, floor(log10(rough)));
    double wide = rough > 5 * base ? 10 * base : rough > 2 * base ? 5 * base : rough > base ? 2 * base : base;
    for (double v = ceil(from / wide) * wide; v <= to; v += wide) {
        snprintf(text, sizeof text, "%.6g", v);
        draw_text(d, at_x(d, v), TOP + PLOT + 17, "soft", "middle", text);
    }
    draw_text(d, WIDTH - RIGHT, TOP + PLOT + 34, "soft", "end", p->x_name);
}

/* The upper edge of `values`, forwards, or backwards to close an area. */
static void draw_edge(const drawing *d, const double *values, bool back)
{
    int n = d->p->n;
    for (int k = 0; k < n; k++) {
        int i = back ? n - 1 - k : k, corner = back && i + 1 < n ? i + 1 : i;
        const char *pen = k > 0 || back ? "L" : "M";
        if (k > 0 && !back)
            fprintf(d->out, "H%.1f", at_x(d, d->p->x[i]));
        if (back)
            fprintf(d->out, "%s%.1f %.1f", pen, at_x(d, d->p->x[corner]), at_y(d, values[i]));
        if (back)
            fprintf(d->out, "H%.1f", at_x(d, d->p->x[i]));
        else if (k > 0)
            fprintf(d->out, "V%.1f", at_y(d, values[i]));
        else
            fprintf(d->out, "%s%.1f %.1f", pen, at_x(d, d->p->x[i]), at_y(d, values[i]));
    }
}

static void draw_areas(const drawing *d, double *under, double *over)
{
    const svg_picture *p = d->p;
    memset(under, 0, (size_t)p->n * sizeof *under);
    for (int k = 0; k < p->n_areas; k++) {
        for (int i = 0; i < p->n; i++)
            over[i] = under[i] + (double)p->areas[k].values[i];
        fprintf(d->out, "<path class=\"f%d\" d=\"", p->areas[k].color);
        draw_edge(d, over, false);
        draw_edge(d, under, true);
        fputs("Z\"><title>", d->out);
        svg_escape(d->out, p->areas[k].name);
        fputs("</title></path>\n", d->out);
        memcpy(under, over, (size_t)p->n * sizeof *under);
    }
    for (int k = 0; k < p->n_outlines; k++) {
        for (int i = 0; i < p->n; i++)
            over[i] = (double)p->outlines[k].values[i];
        fprintf(d->out, "<path class=\"outline%s\" d=\"", k ? " second" : "");
        draw_edge(d, over, false);
        fputs("\"/>\n", d->out);
    }
}

static void draw_marks(const drawing *d)
{
    char text[TEXT], limit[TEXT + 8];
    const svg_picture *p = d->p;
    for (int i = 0; i < p->n_marks; i++) {
        double x = at_x(d, p->marks[i].x);
        bool right = x > WIDTH / 2.;
        fprintf(d->out, "<path class=\"mark\" d=\"M%.1f %dv%d\"/>\n", x, TOP, PLOT);
        draw_text(d, x + (right ? -4 : 4), TOP + 10 + 14 * i, "label", right ? "end" : "start", p->marks[i].name);
    }
    if (p->limit <= 0)
        return;
    snprintf(limit, sizeof limit, "limit %s", p->format(text, p->limit));
    fprintf(d->out, "<path class=\"limit\" d=\"M%d %.1fH%d\"/>\n", LEFT, at_y(d, (double)p->limit), WIDTH - RIGHT);
    draw_text(d, LEFT + 4, at_y(d, (double)p->limit) - 5, "label", "start", limit);
}

static void draw_legend(const drawing *d)
{
    const svg_picture *p = d->p;
    for (int k = 0; k < p->n_areas + p->n_outlines; k++) {
        const svg_series *s = k < p->n_areas ? &p->areas[k] : &p->outlines[k - p->n_areas];
        int columns = (WIDTH - 20) / LEGEND_COLUMN, x = 20 + k % columns * LEGEND_COLUMN;
        int y = TOP + PLOT + AXIS + k / columns * LEGEND_ROW;
        if (k < p->n_areas)
            fprintf(d->out, "<rect class=\"f%d\" x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" rx=\"3\"/>\n", s->color,
                    x, y);
        else
            fprintf(d->out, "<path class=\"outline%s\" d=\"M%d %dh14\"/>\n", k > p->n_areas ? " second" : "", x, y + 7);
        draw_text(d, x + 20, y + 12, "name", "start", s->name);
    }
}

static double highest(const svg_picture *p)
{
    double high = p->limit > 0 ? (double)p->limit : 1;
    for (int i = 0; i < p->n; i++) {
        double sum = 0;
        for (int k = 0; k < p->n_areas; k++)
            sum += (double)p->areas[k].values[i];
        high = fmax(high, sum);
        for (int k = 0; k < p->n_outlines; k++)
            high = fmax(high, (double)p->outlines[k].values[i]);
    }
    return high * (p->n_marks ? 1.18 : 1.05);
}

static void draw(const drawing *d, double *under, double *over)
{
    const svg_picture *p = d->p;
    int columns = (WIDTH - 20) / LEGEND_COLUMN, rows = (p->n_areas + p->n_outlines + columns - 1) / columns;
    svg_begin(d->out, p->title, p->about, TOP + PLOT + AXIS + rows * LEGEND_ROW + 8);
    draw_axes(d);
    draw_areas(d, under, over);
    draw_marks(d);
    draw_legend(d);
    fputs("</svg>\n", d->out);
}

fsdp_status svg_write(const svg_picture *p, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    double *under = calloc(2 * (size_t)p->n + 1, sizeof *under);
    FILE *out = under ? open_memstream(&text, &bytes) : NULL;
    if (out) {
        drawing d = {out, p, highest(p)};
        draw(&d, under, under + p->n);
    }
    fsdp_status status = out && fclose(out) == 0 ? file_write_atomic(path, text, bytes)
                                                 : error_set(FSDP_ERR_MEMORY, "drawing %s: out of host memory", path);
    free(under);
    free(text);
    return status;
}
