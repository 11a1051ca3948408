/* `fsdp plan`: settings to a table of plans, or JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/plan.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/job.h"
#include "observe/table.h"
#include "observe/units.h"
#include "optim/update.h"
#include "plan/search.h"
#include "train/assemble.h"

typedef struct planning {
    workload work;
    assembled_sharding sharding;
    int n_ranks, ranks_per_node;
    int64_t n_parameters;
    device *dev;
    plan_entry entries[FSDP_STRATEGY_COUNT];
    plan_entry fit;
    bool has_fit;
} planning;

static const char *const checkpointing_names[] = {"none", "full", "selective"};

static fsdp_status prepare(const fsdp_settings *s, planning *p)
{
    job here = job_single();
    FSDP_TRY(job_from_environment(&here));
    fsdp_optimizer_config optimizer = assemble_optimizer(s);
    FSDP_TRY(assemble_model(s, s->vocab_size, NULL, &p->work.model));
    FSDP_TRY(assemble_count(&p->work.model, &p->n_parameters));
    p->n_ranks = s->world_size > 0 ? (int)s->world_size : here.world_size;
    p->ranks_per_node = s->ranks_per_node > 0 ? (int)s->ranks_per_node : (int)min_i64(8, p->n_ranks);
    p->work.batch = s->train_batch_size;
    p->work.width = s->max_context_width;
    p->work.target = s->max_target_width;
    p->work.moments = update_moments(&optimizer);
    fsdp_world_config world;
    assemble_world(s, &world);
    p->work.backend = world.backend;
    FSDP_TRY(assemble_sharding(s, &p->work.model, p->n_parameters, p->n_ranks, &p->sharding));
    FSDP_TRY(device_open_cpu(CPU_PRODUCT_AUTO, &p->dev));
    FSDP_TRY(plan_strategies(&p->work, &p->sharding.config, p->dev, p->n_ranks, p->ranks_per_node, p->entries));
    bool may_offload = !fsdp_settings_given(s, "cpu_offload");
    if (s->fit > 0) {
        FSDP_TRY(plan_fit(&p->work, &p->sharding.config, p->dev, p->n_ranks, p->ranks_per_node, (size_t)s->fit,
                          may_offload, &p->fit));
        p->has_fit = true;
    }
    return FSDP_OK;
}

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
                                      QUANTITY("total", total),
                                      QUANTITY("offloaded state on the host", host_state),
                                      QUANTITY("activations on the host", host_activations),
                                      QUANTITY("host memory", host),
                                      QUANTITY("gathered a step", gathered_bytes),
                                      QUANTITY("reduced a step", reduced_bytes),
                                      QUANTITY("replicas a step", replica_bytes)};

enum { N_QUANTITIES = sizeof quantities / sizeof quantities[0] };

static int64_t value_of(const memory_plan *plan, const quantity *q)
{
    int64_t value;
    memcpy(&value, (const char *)plan + q->offset, sizeof value);
    return value;
}

static void describe_fit(const planning *p, char *text, size_t bytes)
{
    char flags[PLAN_FLAGS], device_bytes[UNITS_TEXT], host_bytes[UNITS_TEXT], cost[128] = "";
    const plan_entry *e = &p->fit;
    if (e->cpu_offload)
        snprintf(cost, sizeof cost, ", with %s of host memory and about %.2f s a step for the update there",
                 units_bytes(host_bytes, (int64_t)e->plan.host), plan_update_seconds(&e->plan, p->ranks_per_node));
    snprintf(text, bytes, "\nThe fastest that fits: %s, %s a rank%s.", plan_entry_flags(e, flags, sizeof flags),
             units_bytes(device_bytes, (int64_t)e->plan.total), cost);
}

static fsdp_status text_of(const planning *p, char **out)
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
    char fit[512] = "";
    if (p->has_fit)
        describe_fit(p, fit, sizeof fit);
    int n = asprintf(out,
                     "%s, %s parameters in %d units, %d rank%s, %lld x %lld a rank, parameters %s, reduction %s, "
                     "checkpointing %s\n\n%s%s",
                     model_type_name(p->work.model.type), units_count(count, (double)p->n_parameters),
                     p->entries[0].plan.n_units, p->n_ranks, p->n_ranks == 1 ? "" : "s", (long long)p->work.batch,
                     (long long)p->work.width, fsdp_dtype_name(p->sharding.config.param_dtype),
                     fsdp_dtype_name(p->sharding.config.reduce_dtype),
                     checkpointing_names[p->sharding.config.checkpointing], body, fit);
    free(body);
    return n < 0 ? error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory") : FSDP_OK;
}

static json_t *entry_json(const plan_entry *e)
{
    json_t *o = json_pack("{s:s, s:s, s:I}", "strategy", fsdp_strategy_name(e->strategy), "activation_checkpointing",
                          checkpointing_names[e->checkpointing], "largest_unit", (json_int_t)e->plan.largest_unit);
    if (o)
        json_object_set_new(o, "cpu_offload", json_boolean(e->cpu_offload));
    for (int q = 0; o && q < N_QUANTITIES; q++)
        json_object_set_new(o, quantities[q].key, json_integer(value_of(&e->plan, &quantities[q])));
    return o;
}

static fsdp_status json_of(const planning *p, char **out)
{
    json_t *list = json_array(), *o;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        if (p->entries[s].planned)
            json_array_append_new(list, entry_json(&p->entries[s]));
    }
    o = json_pack("{s:s, s:I, s:i, s:i, s:o}", "model", model_type_name(p->work.model.type), "parameters",
                  (json_int_t)p->n_parameters, "units", p->entries[0].plan.n_units, "ranks", p->n_ranks, "strategies",
                  list);
    if (o && p->has_fit)
        json_object_set_new(o, "fit", entry_json(&p->fit));
    *out = o ? json_dumps(o, JSON_INDENT(1)) : NULL;
    json_decref(o);
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "printing a plan: out of host memory");
}

fsdp_status fsdp_plan(const fsdp_settings *settings, char **text)
{
    planning *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "planning: out of host memory");
    fsdp_status status = prepare(settings, p);
    if (status == FSDP_OK)
        status = settings->json ? json_of(p, text) : text_of(p, text);
    device_close(p->dev);
    free(p);
    return status;
}
