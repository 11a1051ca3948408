/* Profiles as JSON: read with every number checked, written with what was measured. A profile may build on one of the
 * library's ("base"), of which it takes the rows; its own fields then say how this device differs. */
#include "plan/predict/profile.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/embedded.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/host/environment.h"
#include "base/json.h"

extern const embedded_file plan_assets[];

enum { VERSION = 1, MAX_ROWS = 100000, ROW_FIELDS = 8, COLLECTIVE_FIELDS = 4, STEP_FIELDS = 3 };

static const char *const collective_names[] = {
    [SCRIPT_ALL_GATHER] = "all_gather", [SCRIPT_REDUCE_SCATTER] = "reduce_scatter", [SCRIPT_ALL_REDUCE] = "all_reduce"};

void profile_clear(kernel_profile *p)
{
    free(p->rows);
    free(p->steps);
    free(p->collectives);
    p->rows = NULL;
    p->steps = NULL;
    p->collectives = NULL;
    p->n_rows = p->n_steps = p->n_collectives = 0;
    p->rows_capacity = p->steps_capacity = p->collectives_capacity = 0;
}

/* Room for one more entry of `bytes` bytes. */
static fsdp_status make_room(void **list, int n, int *capacity, size_t bytes)
{
    if (n < *capacity)
        return FSDP_OK;
    int wanted = *capacity ? 2 * *capacity : 64;
    void *grown = realloc(*list, (size_t)wanted * bytes);
    if (!grown)
        return error_set(FSDP_ERR_MEMORY, "a profile of %d kernels: out of host memory", n);
    *list = grown;
    *capacity = wanted;
    return FSDP_OK;
}

fsdp_status profile_add(kernel_profile *p, const kernel_work *work, double seconds)
{
    for (int i = 0; i < p->n_rows; i++) {
        if (kernel_work_same(&p->rows[i].work, work)) {
            p->rows[i] = (profile_row){*work, seconds};
            return FSDP_OK;
        }
    }
    FSDP_TRY(make_room((void **)&p->rows, p->n_rows, &p->rows_capacity, sizeof *p->rows));
    p->rows[p->n_rows++] = (profile_row){*work, seconds};
    return FSDP_OK;
}

fsdp_status profile_add_collective(kernel_profile *p, const profile_collective *c)
{
    for (int i = 0; i < p->n_collectives; i++) {
        profile_collective *at = &p->collectives[i];
        if (at->which == c->which && at->ranks == c->ranks && at->bytes == c->bytes) {
            *at = *c;
            return FSDP_OK;
        }
    }
    FSDP_TRY(make_room((void **)&p->collectives, p->n_collectives, &p->collectives_capacity, sizeof *p->collectives));
    p->collectives[p->n_collectives++] = *c;
    return FSDP_OK;
}

fsdp_status profile_add_step(kernel_profile *p, const profile_step *s)
{
    FSDP_TRY(make_room((void **)&p->steps, p->n_steps, &p->steps_capacity, sizeof *p->steps));
    p->steps[p->n_steps++] = *s;
    return FSDP_OK;
}

/* ---- reading ---- */

static fsdp_status damaged(const char *name, const char *what)
{
    return error_set(FSDP_ERR_INPUT,
                     "%s: %s: this profile is damaged, or of another version of fsdp; measure anew with fsdp bench "
                     "kernel --profile FILE",
                     name, what);
}

/* A number of `object` times `unit`, at least `least`; absent: it stays. */
static fsdp_status read_number(const char *name, const json_t *object, const char *key, double unit, double least,
                               double *out)
{
    double value = *out / unit;
    if (!object)
        return FSDP_OK;
    FSDP_TRY(json_opt_number(name, object, key, &value));
    if (!isfinite(value) || value < least || value > 1e15)
        return damaged(name, key);
    *out = value * unit;
    return FSDP_OK;
}

static fsdp_status read_count(const char *name, const json_t *object, const char *key, int *out)
{
    int64_t value = *out;
    FSDP_TRY(json_opt_int(name, object, key, &value));
    if (value < 1 || value > 1 << 20)
        return damaged(name, key);
    *out = (int)value;
    return FSDP_OK;
}

static fsdp_status read_row(const char *name, const json_t *row, kernel_profile *p)
{
    kernel_work w = {.kernel = KERNEL_COUNT};
    const char *kernel = json_string_value(json_array_get(row, 0));
    const char *dtype = json_string_value(json_array_get(row, 1)), *result = json_string_value(json_array_get(row, 2));
    const json_t *shape = json_array_get(row, 4);
    if (json_array_size(row) != ROW_FIELDS || !kernel || !dtype || !result ||
        !json_is_integer(json_array_get(row, 3)) || json_array_size(shape) > KERNEL_WORK_DIMS)
        return damaged(name, "kernels");
    w.kernel = kernel_find(kernel);
    if (w.kernel == KERNEL_COUNT || fsdp_dtype_parse(dtype, &w.dtype) != FSDP_OK ||
        fsdp_dtype_parse(result, &w.result) != FSDP_OK)
        return damaged(name, kernel);
    w.variant = (uint32_t)json_integer_value(json_array_get(row, 3));
    for (size_t i = 0; i < json_array_size(shape); i++) {
        w.shape[i] = json_integer_value(json_array_get(shape, i));
        if (!json_is_integer(json_array_get(shape, i)) || w.shape[i] < 0)
            return damaged(name, kernel);
    }
    double micros = json_number_value(json_array_get(row, 5));
    w.flops = json_number_value(json_array_get(row, 6));
    w.bytes = json_number_value(json_array_get(row, 7));
    if (!(micros > 0 && micros < 1e12) || !(w.flops >= 0 && w.flops < 1e24) || !(w.bytes >= 0 && w.bytes < 1e18))
        return damaged(name, kernel);
    return profile_add(p, &w, micros * 1e-6);
}

static fsdp_status read_collective(const char *name, const json_t *row, kernel_profile *p)
{
    profile_collective c = {.which = SCRIPT_ALL_GATHER};
    const char *kind = json_string_value(json_array_get(row, 0));
    int known = (int)(sizeof collective_names / sizeof *collective_names), which = 0;
    while (kind && which < known && strcmp(collective_names[which], kind) != 0)
        which++;
    int64_t ranks = json_integer_value(json_array_get(row, 1));
    c.which = (script_collective)which;
    c.ranks = (int)ranks;
    c.bytes = json_number_value(json_array_get(row, 2));
    c.seconds = json_number_value(json_array_get(row, 3)) * 1e-6;
    c.alone = json_is_true(json_array_get(row, COLLECTIVE_FIELDS));
    if (json_array_size(row) < COLLECTIVE_FIELDS || json_array_size(row) > COLLECTIVE_FIELDS + 1 || !kind ||
        which == known || ranks < 2 || ranks > 1 << 20 || !(c.bytes > 0 && c.bytes < 1e18) ||
        !(c.seconds > 0 && c.seconds < 1e6))
        return damaged(name, "collectives");
    return profile_add_collective(p, &c);
}

static fsdp_status read_step(const char *name, const json_t *row, kernel_profile *p)
{
    double values[STEP_FIELDS];
    if (json_array_size(row) != STEP_FIELDS)
        return damaged(name, "steps");
    for (size_t i = 0; i < STEP_FIELDS; i++) {
        values[i] = json_number_value(json_array_get(row, i));
        if (!(values[i] > 0 && values[i] < 1e12))
            return damaged(name, "steps");
    }
    return profile_add_step(p, &(profile_step){values[0] * 1e-6, values[1] * 1e-6, values[2]});
}

typedef fsdp_status (*row_reader)(const char *name, const json_t *row, kernel_profile *p);

static fsdp_status read_list(const char *name, const json_t *object, const char *key, row_reader read,
                             kernel_profile *p)
{
    const json_t *list = json_object_get(object, key);
    if (list && (!json_is_array(list) || json_array_size(list) > MAX_ROWS))
        return damaged(name, key);
    for (size_t i = 0; i < json_array_size(list); i++)
        FSDP_TRY(read(name, json_array_get(list, i), p));
    return FSDP_OK;
}

static fsdp_status read_rates(const char *name, const json_t *object, kernel_profile *p)
{
    const json_t *links = json_object_get(object, "links"), *launch = json_object_get(object, "launch"),
                 *host = json_object_get(object, "host");
    const double gb = 1e9, us = 1e-6;
    FSDP_TRY(read_number(name, links, "inside", gb, 1e-6, &p->links.inside));
    FSDP_TRY(read_number(name, links, "outside", gb, 1e-6, &p->links.outside));
    FSDP_TRY(read_number(name, links, "hop_inside", us, 0, &p->links.hop_inside));
    FSDP_TRY(read_number(name, links, "hop_outside", us, 0, &p->links.hop_outside));
    FSDP_TRY(read_number(name, links, "start", us, 0, &p->links.start));
    FSDP_TRY(read_number(name, launch, "gap", us, -1e6, &p->launch.gap));
    FSDP_TRY(read_number(name, launch, "graph", us, 0, &p->launch.graph));
    FSDP_TRY(read_number(name, launch, "kernel", us, 0, &p->launch.kernel));
    FSDP_TRY(read_number(name, launch, "collective", us, 0, &p->launch.collective));
    FSDP_TRY(read_number(name, launch, "step", us, 0, &p->launch.step));
    FSDP_TRY(read_number(name, host, "copy", gb, 1e-6, &p->host_copy));
    FSDP_TRY(read_number(name, host, "update", gb, 1e-6, &p->host_update));
    FSDP_TRY(read_number(name, host, "shared", gb, 0, &p->host_shared));
    return read_number(name, host, "beside", 1, 0, &p->host_beside);
}

static fsdp_status read_fields(const char *name, const json_t *object, kernel_profile *p)
{
    int64_t version = 0;
    const char *described = p->device;
    FSDP_TRY(json_opt_int(name, object, "fsdp_profile", &version));
    if (version != VERSION)
        return damaged(name, "fsdp_profile");
    FSDP_TRY(json_opt_string(name, object, "device", &described));
    if (described != p->device)
        snprintf(p->device, sizeof p->device, "%s", described);
    FSDP_TRY(read_count(name, object, "ranks", &p->ranks));
    FSDP_TRY(read_count(name, object, "threads", &p->threads));
    FSDP_TRY(json_opt_bool(name, object, "streams", &p->streams));
    FSDP_TRY(json_opt_bool(name, object, "overlaps", &p->overlaps));
    FSDP_TRY(read_number(name, object, "slowdown", 1, 0, &p->slowdown));
    FSDP_TRY(read_number(name, object, "busy", 1, 0.1, &p->busy));
    FSDP_TRY(read_number(name, object, "compute", 1, 1e-6, &p->compute));
    FSDP_TRY(read_number(name, object, "memory", 1, 1e-6, &p->memory));
    if (p->slowdown > 0.9)
        return damaged(name, "slowdown");
    FSDP_TRY(read_rates(name, object, p));
    FSDP_TRY(read_list(name, object, "kernels", read_row, p));
    FSDP_TRY(read_list(name, object, "steps", read_step, p));
    return read_list(name, object, "collectives", read_collective, p);
}

static const char *brought_along(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "%s.json", name);
    for (const embedded_file *a = plan_assets; a->name; a++)
        if (strcmp(a->name, file) == 0)
            return a->text;
    return NULL;
}

static fsdp_status open_brought(const char *name, int depth, kernel_profile *out);

static fsdp_status read_profile(const char *name, const json_t *object, int depth, kernel_profile *out)
{
    const char *base = NULL;
    if (!json_is_object(object))
        return damaged(name, "no object");
    FSDP_TRY(json_opt_string(name, object, "base", &base));
    if (base && (depth > 0 || !brought_along(base)))
        return damaged(name, "base");
    if (base)
        FSDP_TRY(open_brought(base, depth + 1, out));
    FSDP_TRY(read_fields(name, object, out));
    snprintf(out->origin, sizeof out->origin, "%s", name);
    return out->n_rows > 0 ? FSDP_OK : damaged(name, "no kernels");
}

static fsdp_status open_brought(const char *name, int depth, kernel_profile *out)
{
    const char *text = brought_along(name);
    json_t *object;
    FSDP_TRY(json_parse(name, text, strlen(text), &object));
    fsdp_status status = read_profile(name, object, depth, out);
    json_decref(object);
    return status;
}

fsdp_status profile_open(const char *name, kernel_profile *out)
{
    json_t *object;
    *out = (kernel_profile){.ranks = 1,
                            .threads = 1,
                            .busy = 1,
                            .compute = 1,
                            .memory = 1,
                            .host_copy = 50e9,
                            .host_update = 100e9,
                            .links = {.inside = 1e9, .outside = 1e9}};
    fsdp_status status;
    if (brought_along(name)) {
        status = open_brought(name, 0, out);
    } else {
        if (!file_exists(name))
            return error_set(FSDP_ERR_INPUT,
                             "--profile %s: there is no such file, and no profile of this name comes with fsdp (h200, "
                             "h100 and a100 do); measure one with fsdp bench kernel --profile FILE",
                             name);
        FSDP_TRY(json_read_file(name, &object));
        status = read_profile(name, object, 0, out);
        json_decref(object);
    }
    if (status != FSDP_OK)
        profile_clear(out);
    return status;
}

char *profile_default_path(const char *described, int ranks)
{
    char file[64];
    const char *own = environment_text("FSDP_CACHE_DIR"), *user = environment_text("XDG_CACHE_HOME");
    const char *home = environment_text("HOME");
    snprintf(file, sizeof file, "%sprofiles/%016" PRIx64 "-%d.json",
             own    ? ""
             : user ? "fsdp/"
                    : ".cache/fsdp/",
             hash_bytes(HASH_START, described, strlen(described)), ranks);
    return own || user || home ? file_join(own ? own : user ? user : home, file) : NULL;
}

/* ---- writing ---- */

static json_t *row_json(const profile_row *r)
{
    json_t *shape = json_array();
    int n = KERNEL_WORK_DIMS;
    while (n > 0 && r->work.shape[n - 1] == 0)
        n--;
    for (int i = 0; i < n; i++)
        json_array_append_new(shape, json_integer(r->work.shape[i]));
    return json_pack("[s,s,s,I,o,f,f,f]", kernel_name(r->work.kernel), fsdp_dtype_name(r->work.dtype),
                     fsdp_dtype_name(r->work.result), (json_int_t)r->work.variant, shape, r->seconds * 1e6,
                     r->work.flops, r->work.bytes);
}

static json_t *profile_json(const kernel_profile *p)
{
    const profile_links *l = &p->links;
    const profile_launch *h = &p->launch;
    json_t *kernels = json_array(), *collectives = json_array(), *steps = json_array();
    for (int i = 0; i < p->n_rows; i++)
        json_array_append_new(kernels, row_json(&p->rows[i]));
    for (int i = 0; i < p->n_steps; i++)
        json_array_append_new(
            steps, json_pack("[f,f,f]", p->steps[i].seconds * 1e6, p->steps[i].kernels * 1e6, p->steps[i].calls));
    for (int i = 0; i < p->n_collectives; i++) {
        const profile_collective *c = &p->collectives[i];
        json_array_append_new(collectives, json_pack("[s,i,f,f,b]", collective_names[c->which], c->ranks, c->bytes,
                                                     c->seconds * 1e6, c->alone));
    }
    return json_pack("{s:i,s:s,s:i,s:i,s:b,s:b,s:f,s:f,s:{s:f,s:f,s:f,s:f},s:{s:f,s:f,s:f,s:f,s:f},s:{s:f,s:f,s:f,s:f,"
                     "s:f},s:o,s:o,s:o}",
                     "fsdp_profile", VERSION, "device", p->device, "ranks", p->ranks, "threads", p->threads, "streams",
                     p->streams, "overlaps", p->overlaps, "slowdown", p->slowdown, "busy", p->busy, "host", "copy",
                     p->host_copy / 1e9, "update", p->host_update / 1e9, "shared", p->host_shared / 1e9, "beside",
                     p->host_beside, "links", "inside", l->inside / 1e9, "outside", l->outside / 1e9, "hop_inside",
                     l->hop_inside * 1e6, "hop_outside", l->hop_outside * 1e6, "start", l->start * 1e6, "launch", "gap",
                     h->gap * 1e6, "graph", h->graph * 1e6, "kernel", h->kernel * 1e6, "collective",
                     h->collective * 1e6, "step", h->step * 1e6, "steps", steps, "kernels", kernels, "collectives",
                     collectives);
}

fsdp_status profile_write(const kernel_profile *p, const char *path)
{
    json_t *object = profile_json(p);
    fsdp_status status = object ? json_write_file(path, object)
                                : error_set(FSDP_ERR_MEMORY, "%s: out of host memory for a profile", path);
    json_decref(object);
    return status;
}
