/* The units of a plan as a table, and why a plan does not fit, in words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "observe/table.h"
#include "observe/units.h"
#include "plan/detail_print.h"

enum { SHOWN_VALUES = 10 };

/* "12-40, 310-352": the instructions between which the unit has memory of that class. */
static const char *stays_of(const plan_detail *d, int index, picture_class class, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < d->picture.n_lives && used < bytes; i++) {
        const picture_life *l = &d->picture.lives[i];
        if (l->unit != index || l->class != class)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%d-%d", used ? ", " : "", l->first,
                                 (int)min_i64(l->last, d->picture.length));
    }
    return used ? text : "never";
}

static fsdp_status units_table(const plan_detail *d, table *t)
{
    char count[UNITS_TEXT], bytes[4][UNITS_TEXT], gathered[128], reduced[128];
    picture_unit sum = {.parameters = 0};
    for (int i = 0; i < d->picture.n_units; i++) {
        const picture_unit *u = &d->picture.units[i];
        sum.parameters += u->parameters;
        sum.bytes += u->bytes;
        sum.shard_bytes += u->shard_bytes;
        sum.gathered_bytes += u->gathered_bytes;
        sum.gradient_bytes += u->gradient_bytes;
        FSDP_TRY(table_row(t, "%s%s|%s|%s|%s|%s|%s|%s|%s", u->name, u->offloaded ? " (on the host)" : "",
                           units_count(count, (double)u->parameters), units_bytes(bytes[0], (int64_t)u->bytes),
                           units_bytes(bytes[1], (int64_t)u->shard_bytes),
                           units_bytes(bytes[2], (int64_t)u->gathered_bytes),
                           units_bytes(bytes[3], (int64_t)u->gradient_bytes),
                           stays_of(d, i, PICTURE_GATHERED, gathered, sizeof gathered),
                           stays_of(d, i, PICTURE_FULL_GRADIENTS, reduced, sizeof reduced)));
    }
    return table_row(t, "all|%s|%s|%s|%s|%s", units_count(count, (double)sum.parameters),
                     units_bytes(bytes[0], (int64_t)sum.bytes), units_bytes(bytes[1], (int64_t)sum.shard_bytes),
                     units_bytes(bytes[2], (int64_t)sum.gathered_bytes),
                     units_bytes(bytes[3], (int64_t)sum.gradient_bytes));
}

static fsdp_status units_text(const plan_detail *d, char **text)
{
    char *body = NULL;
    table *t;
    *text = NULL;
    FSDP_TRY(
        table_new("unit|parameters|fp32|shard of a rank|gathered|full gradient|gathered during|gradient during", &t));
    fsdp_status status = units_table(d, t);
    if (status == FSDP_OK)
        status = table_text(t, &body);
    table_free(t);
    FSDP_TRY(status);
    int n = asprintf(text,
                     "%d units, strategy %s, %d ranks; a step has %d instructions, 0 to %d are forward\n\n%s\n\n"
                     "The numbers under \"during\" are instructions: memory is held from the first to the last.",
                     d->picture.n_units, fsdp_strategy_name(d->config->strategy), d->world.n_ranks, d->picture.length,
                     d->picture.forward_length - 1, body);
    free(body);
    return n < 0 ? error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory") : FSDP_OK;
}

fsdp_status plan_units_print(const plan_detail *d, bool json, char **text)
{
    if (!json)
        return units_text(d, text);
    json_t *o = plan_detail_json(d);
    *text = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return *text ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory");
}

static fsdp_status peak_table(const plan_detail *d, table *t)
{
    char bytes[UNITS_TEXT], count[32];
    size_t rest = 0, arenas = d->picture.gather_bytes + d->picture.gradient_bytes + d->picture.slab_bytes;
    for (int i = 0; i < PLAN_RESIDENTS; i++) {
        if (plan_resident(&d->plan, i) > 0)
            FSDP_TRY(table_row(t, "%s||%s|%.0f %%", plan_resident_names[i],
                               units_bytes(bytes, (int64_t)plan_resident(&d->plan, i)),
                               100. * (double)plan_resident(&d->plan, i) / (double)d->plan.total));
    }
    for (int i = 0; i < d->n_values; i++) {
        const peak_value *v = &d->values[i];
        if (i >= SHOWN_VALUES) {
            rest += v->bytes;
            continue;
        }
        snprintf(count, sizeof count, "%d", v->count);
        FSDP_TRY(table_row(t, "%s: %s|%s|%s|%.0f %%", picture_class_names[v->class], v->name, count,
                           units_bytes(bytes, (int64_t)v->bytes), 100. * (double)v->bytes / (double)d->plan.total));
    }
    if (rest > 0)
        FSDP_TRY(table_row(t, "%d smaller kinds||%s|%.0f %%", d->n_values - SHOWN_VALUES,
                           units_bytes(bytes, (int64_t)rest), 100. * (double)rest / (double)d->plan.total));
    if (arenas > d->peak_bytes)
        FSDP_TRY(table_row(t, "room that other moments need||%s|%.0f %%",
                           units_bytes(bytes, (int64_t)(arenas - d->peak_bytes)),
                           100. * (double)(arenas - d->peak_bytes) / (double)d->plan.total));
    return FSDP_OK;
}

static fsdp_status remedy_table(const plan_detail *d, table *t)
{
    char total[UNITS_TEXT], saved[UNITS_TEXT], host[UNITS_TEXT];
    for (int i = 0; i < d->n_remedies; i++) {
        const plan_remedy *r = &d->remedies[i];
        FSDP_TRY(table_row(t, "%s|%s|%s|%s|%s", r->flags, units_bytes(total, (int64_t)r->total),
                           units_bytes(saved, (int64_t)(d->plan.total - r->total)),
                           r->host > d->plan.host ? units_bytes(host, (int64_t)(r->host - d->plan.host)) : "",
                           d->limit.device == 0 ? ""
                           : r->fits            ? "fits"
                                                : "too large"));
    }
    return FSDP_OK;
}

static fsdp_status text_of(const plan_detail *d, const char *heads, fsdp_status (*fill)(const plan_detail *, table *),
                           char **text)
{
    table *t;
    *text = NULL;
    FSDP_TRY(table_new(heads, &t));
    fsdp_status status = fill(d, t);
    if (status == FSDP_OK)
        status = table_text(t, text);
    table_free(t);
    return status;
}

fsdp_status plan_why_print(const plan_detail *d, char **text)
{
    char *peak = NULL, *remedies = NULL, total[UNITS_TEXT], over[UNITS_TEXT], misses[UNITS_TEXT + 32] = "";
    *text = NULL;
    FSDP_TRY(text_of(d, "at the peak|values|bytes|share", peak_table, &peak));
    fsdp_status status = text_of(d, "remedy|a rank|saves|more on the host|", remedy_table, &remedies);
    if (d->limit.device > 0 && d->plan.total > d->limit.device)
        snprintf(misses, sizeof misses, ", %s too many", units_bytes(over, (int64_t)(d->plan.total - d->limit.device)));
    int n = status == FSDP_OK
                ? asprintf(text,
                           "Why it does not fit: %s takes %s a rank%s. Its peak is at instruction %d of %d, in %s%s%s:"
                           "\n\n%s\n\nWhat each remedy saves, planned one by one:\n\n%s",
                           fsdp_strategy_name(d->config->strategy), units_bytes(total, (int64_t)d->plan.total), misses,
                           d->peak, d->picture.length, d->peak < d->picture.forward_length ? "forward" : "backward",
                           *plan_detail_unit(d) ? " of " : "", plan_detail_unit(d), peak,
                           d->n_remedies ? remedies : "none of those that fsdp knows")
                : 0;
    free(peak);
    free(remedies);
    return n < 0 ? error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory") : status;
}
