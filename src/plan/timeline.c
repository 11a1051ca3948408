/* A plan's step as data, and the page that draws it. */
#include <stdio.h>

#include "base/checked.h"
#include "base/error.h"
#include "device/gpu.h"
#include "page/page.h"
#include "plan/detail_print.h"

enum { MOST_POINTS = 3000 };

static json_t *number(size_t bytes)
{
    return json_integer((json_int_t)bytes);
}

/* Instructions first .. first + step - 1 are one point: the one of them at which most lives, so that no peak is lost.
 */
static int fullest(const plan_detail *d, int first, int step)
{
    int at = first;
    int64_t most = -1;
    for (int i = first; i < first + step && i <= d->picture.length; i++) {
        int64_t sum = 0;
        for (int k = 0; k < PICTURE_CLASSES; k++)
            sum += d->series[i * PICTURE_CLASSES + k];
        if (sum > most) {
            most = sum;
            at = i;
        }
    }
    return at;
}

static json_t *series_json(const plan_detail *d)
{
    int step = d->picture.length / MOST_POINTS + 1;
    json_t *x = json_array(), *classes = json_array(), *o = json_object();
    for (int k = 0; k < PICTURE_CLASSES; k++) {
        json_t *values = json_array();
        for (int i = 0; i <= d->picture.length; i += step) {
            int at = fullest(d, i, step);
            if (k == 0)
                json_array_append_new(x, json_integer(at));
            json_array_append_new(values, json_integer(d->series[at * PICTURE_CLASSES + k]));
        }
        json_array_append_new(classes, json_pack("{s:s, s:o}", "name", picture_class_names[k], "values", values));
    }
    json_object_set_new(o, "x", x);
    json_object_set_new(o, "classes", classes);
    return o;
}

static json_t *units_json(const plan_detail *d)
{
    json_t *list = json_array();
    for (int i = 0; i < d->picture.n_units; i++) {
        const picture_unit *u = &d->picture.units[i];
        json_t *stays = json_array();
        for (int k = 0; k < d->picture.n_lives; k++) {
            const picture_life *l = &d->picture.lives[k];
            if (l->unit == i && l->class <= PICTURE_FULL_GRADIENTS)
                json_array_append_new(stays,
                                      json_pack("{s:s, s:i, s:i, s:o, s:b}", "class", picture_class_names[l->class],
                                                "first", l->first, "last", (int)min_i64(l->last, d->picture.length),
                                                "bytes", number(l->bytes), "backward", (int)l->backward));
        }
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:b, s:o}", "name", u->name, "parameters",
                                        (json_int_t)u->parameters, "trained", (json_int_t)u->trained, "bytes",
                                        number(u->bytes), "shard_bytes", number(u->shard_bytes), "gathered_bytes",
                                        number(u->gathered_bytes), "gradient_bytes", number(u->gradient_bytes),
                                        "offloaded", (int)u->offloaded, "stays", stays));
    }
    return list;
}

static json_t *peak_json(const plan_detail *d)
{
    json_t *values = json_array();
    for (int i = 0; i < d->n_values && i < 40; i++)
        json_array_append_new(values, json_pack("{s:s, s:s, s:i, s:o}", "class",
                                                picture_class_names[d->values[i].class], "name", d->values[i].name,
                                                "count", d->values[i].count, "bytes", number(d->values[i].bytes)));
    return json_pack("{s:i, s:s, s:o, s:o}", "index", d->peak, "unit", plan_detail_unit(d), "bytes",
                     number(d->peak_bytes), "values", values);
}

static json_t *remedies_json(const plan_detail *d)
{
    json_t *list = json_array();
    for (int i = 0; i < d->n_remedies; i++)
        json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:b}", "flags", d->remedies[i].flags, "total",
                                              number(d->remedies[i].total), "host", number(d->remedies[i].host), "fits",
                                              (int)d->remedies[i].fits));
    return list;
}

json_t *plan_detail_json(const plan_detail *d)
{
    char flags[PLAN_FLAGS];
    json_t *residents = json_array();
    for (int i = 0; i < PLAN_RESIDENTS; i++)
        json_array_append_new(residents, json_pack("{s:s, s:o}", "name", plan_resident_names[i], "bytes",
                                                   number(plan_resident(&d->plan, i))));
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:s, s:I, s:I, s:s}", "flags", plan_flags(d->config, d->config, flags, sizeof flags),
                  "model", model_type_name(&d->work->model), "ranks", d->world.n_ranks, "device",
                  d->world.dev->gpu ? d->world.dev->gpu->name : "CPUs", "batch", (json_int_t)d->work->batch, "width",
                  (json_int_t)d->work->width, "param_dtype", fsdp_dtype_name(d->config->param_dtype));
    if (!o)
        return NULL;
    json_object_set_new(o, "total", number(d->plan.total));
    json_object_set_new(o, "host", number(d->plan.host));
    json_object_set_new(o, "limit", number(d->limit.device));
    json_object_set_new(o, "gather_arena", number(d->picture.gather_bytes));
    json_object_set_new(o, "gradient_arena", number(d->picture.gradient_bytes));
    json_object_set_new(o, "slab", number(d->picture.slab_bytes));
    json_object_set_new(o, "length", json_integer(d->picture.length));
    json_object_set_new(o, "forward", json_integer(d->picture.forward_length));
    json_object_set_new(o, "residents", residents);
    json_object_set_new(o, "series", series_json(d));
    json_object_set_new(o, "peak", peak_json(d));
    json_object_set_new(o, "remedies", remedies_json(d));
    json_object_set_new(o, "units", units_json(d));
    return o;
}

fsdp_status plan_timeline_write(const plan_detail *d, const plan_detail *against, const char *path)
{
    json_t *plans = json_array(), *data = json_pack("{s:o}", "plans", plans);
    json_array_append_new(plans, plan_detail_json(d));
    if (against)
        json_array_append_new(plans, plan_detail_json(against));
    fsdp_status status = data ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "writing %s: out of host memory", path);
    page p = {.title = "Memory of one training step", .language = "en", .view = "plan", .data = data};
    if (status == FSDP_OK)
        status = page_write(&p, path);
    json_decref(data);
    return status;
}
