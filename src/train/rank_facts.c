/* Gathers the facts of all ranks on rank 0 and writes them down. */
#include "train/rank_facts.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/host/host_memory.h"
#include "base/json.h"
#include "base/record/laps.h"
#include "base/log.h"
#include "train/run.h"

/* Plain data that travels between ranks. */
typedef struct rank_facts {
    int64_t classes[MEMORY_USES]; /* bytes planned */
    int64_t available;            /* bytes still free; 0: not known */
} rank_facts;

void rank_facts_classes(const train_run *run, const memory_plan *p, int64_t classes[MEMORY_USES])
{
    bool beside = run_plan_world(run).dev->own_memory;
    const size_t bytes[MEMORY_USES] = {p->parameters,
                                       p->copies,
                                       p->gradients,
                                       p->optimizer,
                                       p->gather,
                                       p->full_gradients,
                                       p->activations,
                                       p->workspace,
                                       p->buffers,
                                       p->communication,
                                       p->validation + p->shadow,
                                       beside ? 0 : p->host};
    for (int i = 0; i < MEMORY_USES; i++)
        classes[i] = (int64_t)bytes[i];
}

static rank_facts facts_of(const train_run *run, const memory_plan *p)
{
    device *dev = run_plan_world(run).dev;
    size_t free_bytes = !dev->own_memory ? host_memory_available() : dev->available ? dev->available(dev) : 0;
    rank_facts facts = {.available = (int64_t)free_bytes};
    rank_facts_classes(run, p, facts.classes);
    return facts;
}

static json_t *uses_json(const int64_t uses[MEMORY_USES])
{
    json_t *all = json_object();
    for (int i = 0; i < MEMORY_USES; i++)
        if (uses[i] > 0)
            json_object_set_new(all, memory_use_names[i], json_integer(uses[i]));
    return all;
}

static json_t *rank_json(const rank_facts *f, const memory_row *row, const rank_snapshot *newest, const double *seconds)
{
    json_t *laps = json_object();
    for (int i = 0; i < LAP_COUNT; i++)
        if (seconds[i] > 0)
            json_object_set_new(laps, lap_name((lap)i), json_real(seconds[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "planned", (json_int_t)row->plan_bytes, "measured",
                     (json_int_t)row->measured_bytes, "host_planned", (json_int_t)row->host_plan_bytes, "host_measured",
                     (json_int_t)row->host_measured_bytes, "available", (json_int_t)f->available, "classes",
                     uses_json(f->classes), "taken", uses_json(newest->uses), "seconds", laps);
}

static fsdp_status write_file(const train_run *run, const rank_facts *facts, const memory_row *rows,
                              const rank_snapshot *newest, const double *seconds)
{
    json_t *list = json_array(), *all = json_pack("{s:s, s:O}", "format", "fsdp-ranks", "ranks", list);
    for (int i = 0; i < run->n_ranks; i++)
        json_array_append_new(list, rank_json(&facts[i], &rows[i], &newest[i], seconds + (size_t)i * LAP_COUNT));
    char *path = file_join(run->folder.path, "ranks.json");
    fsdp_status status = path && all ? json_write_file(path, all)
                                     : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", run->folder.path);
    json_decref(list);
    json_decref(all);
    free(path);
    return status;
}

fsdp_status rank_facts_write(train_run *run, const memory_plan *plan, const memory_row *rows,
                             const rank_snapshot *newest, const double *seconds)
{
    rank_facts mine = facts_of(run, plan), *all = calloc((size_t)run->n_ranks, sizeof *all);
    size_t *bytes = calloc((size_t)run->n_ranks, sizeof *bytes);
    fsdp_status status = all && bytes ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "facts of ranks: out of host memory");
    if (status == FSDP_OK)
        status =
            comm_exchange(comm_world(run->world->comm), "facts of ranks", &mine, sizeof mine, sizeof mine, all, bytes);
    if (status == FSDP_OK && run->rank == 0 && write_file(run, all, rows, newest, seconds) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "no ranks.json, so the report lacks memory by rank: %s", fsdp_last_error());
    free(all);
    free(bytes);
    return status;
}
