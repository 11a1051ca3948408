/* Plans as a table of text, or as JSON. */
#include "plan/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "device/gpu.h"
#include "observe/table.h"
#include "observe/units.h"

static const char *const checkpointing_names[] = {"none", "full", "selective"};

/* One line of the table: a quantity over all strategies. */
typedef struct quantity {
    const char *name, *key;
    size_t offset;
    bool wide; /* int64_t traffic instead of size_t memory; both are 8 bytes */
} quantity;

#define QUANTITY(name, field)                                                                                          \
    {                                                                                                                  \
        name, #field, offsetof(memory_plan, field), false                                                              \
    }

static const quantity quantities[] = {QUANTITY("parameters", parameters),
                                      QUANTITY("low-precision copies", copies),
                                      QUANTITY("gradients", gradients),
                                      QUANTITY("optimizer", optimizer),
                                      QUANTITY("gathered units", gather),
                                      QUANTITY("full gradients", full_gradients),
                                      QUANTITY("activations", activations),
                                      QUANTITY("workspace", workspace),
                                      QUANTITY("buffers", buffers),
                                      QUANTITY("communication", communication),
                                      QUANTITY("validation", validation),
                                      QUANTITY("shadow steps", shadow),
                                      QUANTITY("total", total),
                                      QUANTITY("NCCL's own, beside it", libraries),
                                      QUANTITY("offloaded state on the host", host_state),
                                      QUANTITY("activations on the host", host_activations),
                                      QUANTITY("snapshot on the host", host_snapshot),
                                      QUANTITY("hot snapshot on the host", host_hot),
                                      QUANTITY("host memory", host),
                                      QUANTITY("held by fsdp run", host_held),
                                      QUANTITY("updated on the host a step", host_update_bytes),
                                      QUANTITY("gathered a step", gathered_bytes),
                                      QUANTITY("reduced a step", reduced_bytes),
                                      QUANTITY("exchanged by the update", update_bytes),
                                      QUANTITY("replicas a step", replica_bytes)};

enum { N_QUANTITIES = sizeof quantities / sizeof quantities[0] };

static int64_t value_of(const memory_plan *plan, const quantity *q)
{
    int64_t value;
    memcpy(&value, (const char *)plan + q->offset, sizeof value);
    return value;
}

static void describe_fit(const plan_table *p, char *text, size_t bytes)
{
    char flags[PLAN_FLAGS], device_bytes[UNITS_TEXT], host_bytes[UNITS_TEXT], cost[128] = "";
    const plan_entry *e = &p->found->fit;
    if (e->config.cpu_offload)
        snprintf(cost, sizeof cost, ", with %s of host memory and about %.2f s a step for the update there",
                 units_bytes(host_bytes, (int64_t)e->plan.host),
                 plan_update_seconds(&e->plan, p->world.ranks_per_node));
    snprintf(text, bytes, "\nThe fastest that fits: %s, %s a rank%s.",
             plan_flags(&e->config, &p->sharding->config, flags, sizeof flags),
             units_bytes(device_bytes, (int64_t)e->plan.total), cost);
}

/* What the plan is for, "CPUs" or a GPU's name. */
static const char *device_of(const plan_table *p)
{
    return p->world.dev->gpu ? p->world.dev->gpu->name : "CPUs";
}

/* How gradients of 16 bits are added up; other sums have one way. */
static const char *accumulation_of(const plan_table *p)
{
    bool library = p->world.dev->gpu && p->work->reduce_accumulation == FSDP_ACCUMULATE_LIBRARY;
    if (p->world.n_ranks == 1 || p->sharding->config.reduce_dtype == FSDP_F32)
        return "";
    return library ? " (summed by NCCL)" : " (summed in fp32)";
}

static fsdp_status text_of(const plan_table *p, char **out)
{
    char row[512], cell[UNITS_TEXT], count[UNITS_TEXT], *body = NULL;
    table *t;
    size_t used = (size_t)snprintf(row, sizeof row, "per rank");
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        if (p->entries[s].planned)
            used += (size_t)snprintf(row + used, sizeof row - used, "|%s", fsdp_strategy_name((fsdp_strategy)s));
    }
    FSDP_TRY(table_new(row, &t));
    fsdp_status status = FSDP_OK;
    for (int q = 0; q < N_QUANTITIES && status == FSDP_OK; q++) {
        used = (size_t)snprintf(row, sizeof row, "%s", quantities[q].name);
        for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
            if (p->entries[s].planned)
                used += (size_t)snprintf(row + used, sizeof row - used, "|%s",
                                         units_bytes(cell, value_of(&p->entries[s].plan, &quantities[q])));
        }
        status = table_row(t, "%s", row);
    }
    if (status == FSDP_OK)
        status = table_text(t, &body);
    table_free(t);
    FSDP_TRY(status);
    char fit[512] = "", unplanned[384] = "";
    if (p->found)
        describe_fit(p, fit, sizeof fit);
    else if (p->misfit)
        snprintf(fit, sizeof fit, "\n%s", p->misfit);
    if (p->world.dev->unplanned)
        snprintf(unplanned, sizeof unplanned, "\nNot planned: %s.", p->world.dev->unplanned);
    int n =
        asprintf(out,
                 "%s, %s parameters in %d units, %d rank%s on %s, %lld x %lld a rank, parameters %s, reduction "
                 "%s%s, checkpointing %s\n\n%s%s%s",
                 model_type_name(&p->work->model), units_count(count, (double)p->n_parameters),
                 p->entries[0].plan.n_units, p->world.n_ranks, p->world.n_ranks == 1 ? "" : "s", device_of(p),
                 (long long)p->work->batch, (long long)p->work->width, fsdp_dtype_name(p->sharding->config.param_dtype),
                 fsdp_dtype_name(p->sharding->config.reduce_dtype), accumulation_of(p),
                 checkpointing_names[p->sharding->config.checkpointing], body, fit, unplanned);
    free(body);
    return n < 0 ? error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory") : FSDP_OK;
}

static json_t *entry_json(const plan_entry *e)
{
    json_t *o =
        json_pack("{s:s, s:s, s:I}", "strategy", fsdp_strategy_name(e->config.strategy), "activation_checkpointing",
                  checkpointing_names[e->config.checkpointing], "largest_unit", (json_int_t)e->plan.largest_unit);
    if (o) {
        json_object_set_new(o, "offload_activations", json_boolean(e->config.offload_activations));
        json_object_set_new(o, "cpu_offload", json_boolean(e->config.cpu_offload));
    }
    for (int q = 0; o && q < N_QUANTITIES; q++)
        json_object_set_new(o, quantities[q].key, json_integer(value_of(&e->plan, &quantities[q])));
    return o;
}

/* With the flags that choose it. */
static json_t *fit_json(const plan_table *p)
{
    char flags[PLAN_FLAGS];
    json_t *o = entry_json(&p->found->fit);
    if (o)
        json_object_set_new(o, "flags",
                            json_string(plan_flags(&p->found->fit.config, &p->sharding->config, flags, sizeof flags)));
    return o;
}

static fsdp_status json_of(const plan_table *p, char **out)
{
    json_t *list = json_array(), *o;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        if (p->entries[s].planned)
            json_array_append_new(list, entry_json(&p->entries[s]));
    }
    o = json_pack("{s:s, s:I, s:i, s:i, s:o}", "model", model_type_name(&p->work->model), "parameters",
                  (json_int_t)p->n_parameters, "units", p->entries[0].plan.n_units, "ranks", p->world.n_ranks,
                  "strategies", list);
    if (o)
        json_object_set_new(o, "device", json_string(device_of(p)));
    if (o && p->world.dev->unplanned)
        json_object_set_new(o, "unplanned", json_string(p->world.dev->unplanned));
    if (o && p->found)
        json_object_set_new(o, "fit", fit_json(p));
    if (o && p->misfit)
        json_object_set_new(o, "misfit", json_string(p->misfit));
    *out = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory");
}

fsdp_status plan_table_print(plan_table *p, bool json, char **text)
{
    FSDP_TRY(plan_strategies(p->work, &p->sharding->config, &p->world, p->entries));
    return json ? json_of(p, text) : text_of(p, text);
}
