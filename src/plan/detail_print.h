/* A plan in detail as text, as JSON and as a page. */
#ifndef PLAN_DETAIL_PRINT_H
#define PLAN_DETAIL_PRINT_H

#include <jansson.h>

#include "plan/detail.h"

/* The units: name, parameters, bytes, when they are gathered and released. A table, or JSON; malloc'd. */
fsdp_status plan_units_print(const plan_detail *d, bool json, char **text);

/* Why the plan does not fit: what stands at the peak, and what each remedy saves; malloc'd. */
fsdp_status plan_why_print(const plan_detail *d, char **text);

/* All of it, for a page and for --json; NULL: out of memory. */
json_t *plan_detail_json(const plan_detail *d);

/* A page that draws the step; `against` (may be NULL) is drawn over it. */
fsdp_status plan_timeline_write(const plan_detail *d, const plan_detail *against, const char *path);
/* Its first picture by itself, as SVG. */
fsdp_status plan_svg_write(const plan_detail *d, const plan_detail *against, const char *path);

#endif
