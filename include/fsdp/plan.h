/* Memory plans without a device.
 *
 *     char *text;
 *     FSDP_TRY(fsdp_plan(&settings, &text));
 *     puts(text);
 *     free(text);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_PLAN_H
#define FSDP_PLAN_H

#include <fsdp/settings.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Compares the memory that every strategy needs on each rank and the bytes it moves. If the memory of a rank is known
 * (settings->fit, or a GPU's), it also names the fastest setting that fits, and where the plan does not fit, what
 * stands at its peak and what each remedy would save. settings->device may name a GPU that is not here. With
 * settings->units it lists the units instead; settings->timeline names a page and settings->svg a picture that it
 * writes besides. `*text` is a table, or JSON when settings->json; malloc'd. After a failure it may hold the reasons,
 * otherwise it is NULL. Needs no data, no ranks and no GPU. */
FSDP_API fsdp_status fsdp_plan(const fsdp_settings *settings, char **text);

/* The same with a second plan, drawn over the first on the page and in the picture. `against` NULL: none. */
FSDP_API fsdp_status fsdp_plan_against(const fsdp_settings *settings, const fsdp_settings *against, char **text);

#ifdef __cplusplus
}
#endif
#endif
