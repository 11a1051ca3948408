/* A plan's step as one picture in a file of its own. */
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "observe/units.h"
#include "page/svg.h"
#include "plan/detail_print.h"

enum { SERIES = PLAN_RESIDENTS + PICTURE_CLASSES };

/* As the page colours them. */
static const int resident_colors[PLAN_RESIDENTS] = {2, 10, 1, 3, 9, 8, 11};
static const int class_colors[PICTURE_CLASSES] = {5, 4, 9, 0, 11, 7, 6};

/* Two programs differ in length: over each other, forward is 0 to 1 and backward 1 to 2. */
static double place(const plan_detail *d, int index, bool two)
{
    int forward = d->picture.forward_length, rest = (int)max_i64(1, d->picture.length - forward);
    return !two ? index : index < forward ? (double)index / forward : 1 + (double)(index - forward) / rest;
}

static int index_at(const plan_detail *d, double x)
{
    int forward = d->picture.forward_length, rest = (int)max_i64(1, d->picture.length - forward);
    int index = x < 1 ? (int)(x * forward) : forward + (int)((x - 1) * rest + 1e-9);
    return (int)min_i64(index, d->picture.length);
}

static int64_t lives_at(const plan_detail *d, int index)
{
    int64_t sum = 0;
    for (int k = 0; k < PLAN_RESIDENTS; k++)
        sum += (int64_t)plan_resident(&d->plan, k);
    for (int k = 0; k < PICTURE_CLASSES; k++)
        sum += d->series[index * PICTURE_CLASSES + k];
    return sum;
}

/* Fills (SERIES + 1, n) values and names those that are not zero throughout; returns how many. */
static int list_series(const plan_detail *d, int n, int64_t *values, svg_series *out)
{
    int used = 0;
    for (int k = 0; k < SERIES; k++) {
        int64_t *row = values + (size_t)used * (size_t)n, most = 0;
        for (int i = 0; i < n; i++) {
            row[i] = k < PLAN_RESIDENTS ? (int64_t)plan_resident(&d->plan, k)
                                        : d->series[i * PICTURE_CLASSES + k - PLAN_RESIDENTS];
            most = max_i64(most, row[i]);
        }
        if (most == 0)
            continue;
        bool stays = k < PLAN_RESIDENTS;
        out[used++] = (svg_series){.name = stays ? plan_resident_names[k] : picture_class_names[k - PLAN_RESIDENTS],
                                   .values = row,
                                   .color = stays ? resident_colors[k] : class_colors[k - PLAN_RESIDENTS]};
    }
    return used;
}

fsdp_status plan_svg_write(const plan_detail *d, const plan_detail *against, const char *path)
{
    int n = d->picture.length + 1;
    double *x = calloc((size_t)n, sizeof *x);
    int64_t *values = calloc((size_t)n * (SERIES + 1), sizeof *values);
    svg_series areas[SERIES], other = {.name = "lives in the other plan", .values = values + (size_t)n * SERIES};
    svg_mark marks[2] = {{.x = place(d, d->picture.forward_length, against), .name = "backward begins"},
                         {.x = place(d, d->peak, against)}};
    char about[256], lives[UNITS_TEXT], planned[UNITS_TEXT];
    fsdp_status status = FSDP_OK;
    if (!x || !values)
        status = error_set(FSDP_ERR_MEMORY, "drawing %s: out of host memory", path);
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        x[i] = place(d, i, against);
        if (against)
            values[(size_t)n * SERIES + (size_t)i] = lives_at(against, index_at(against, x[i]));
    }
    snprintf(marks[1].name, sizeof marks[1].name, "peak: %.80s", plan_detail_unit(d));
    snprintf(about, sizeof about, "At the peak %s live on a rank; %s are planned.",
             units_bytes(lives, lives_at(d, d->peak)), units_bytes(planned, (int64_t)d->plan.total));
    if (status == FSDP_OK) {
        svg_picture p = {.title = "Memory of one training step",
                         .about = about,
                         .x_name = against ? "forward 0-1, backward 1-2" : "instruction",
                         .n = n,
                         .x = x,
                         .areas = areas,
                         .n_areas = list_series(d, n, values, areas),
                         .outlines = &other,
                         .n_outlines = against ? 1 : 0,
                         .limit = (int64_t)d->limit.device,
                         .marks = marks,
                         .n_marks = 2,
                         .format = units_bytes};
        status = svg_write(&p, path);
    }
    free(x);
    free(values);
    return status;
}
