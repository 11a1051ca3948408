/* Memory plans without a device. */
#ifndef FSDP_PLAN_H
#define FSDP_PLAN_H

#include <fsdp/settings.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What every strategy would take on each rank, side by side, and what it would move; with settings->fit the fastest
 * setting that fits. `*text` is a table, or JSON when settings->json; malloc'd. Needs no data, no ranks and no GPU. */
FSDP_API fsdp_status fsdp_plan(const fsdp_settings *settings, char **text);

#ifdef __cplusplus
}
#endif
#endif
