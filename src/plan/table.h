/* What every strategy takes on a rank, side by side, as `fsdp plan` and `fsdp train --dry_run` print it. */
#ifndef PLAN_TABLE_H
#define PLAN_TABLE_H

#include "plan/assemble.h"

typedef struct plan_table {
    const workload *work;
    const assembled_sharding *sharding;
    plan_world world;
    int64_t n_parameters;
    const plan_found *found; /* the fastest that fits; NULL: none was looked for, or nothing fits */
    const char *misfit;      /* why nothing fits, or NULL */
    plan_entry entries[FSDP_STRATEGY_COUNT];
} plan_table;

/* A table, or JSON; malloc'd. Fills in the entries. */
fsdp_status plan_table_print(plan_table *p, bool json, char **text);

#endif
