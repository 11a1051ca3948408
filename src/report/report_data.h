/* A run's files as the data that the page draws. */
#ifndef REPORT_REPORT_DATA_H
#define REPORT_REPORT_DATA_H

#include "report/run_files.h"

/* One object; NULL when out of memory. `trace` (may be NULL) is a file to take the picture of a step from. */
json_t *report_data(run_files *r, const char *trace);
/* One step of a trace, the last that rank 0 has whole: {x, tracks: [{name, spans: [[from, to, name, unit]]}]} in
 * milliseconds. NULL: there is none, which is noted in `r`. */
json_t *step_spans(run_files *r, const char *path);

#endif
