/* A run's files as the data that the page draws. */
#ifndef REPORT_REPORT_DATA_H
#define REPORT_REPORT_DATA_H

#include "report/run_files.h"
#include "report/verdict.h"

/* One object; NULL when out of memory. `trace` (may be NULL) is a file to take the picture of a step from. */
json_t *report_data(run_files *r, const char *trace);
/* Parts of it, which the live page has, too: what the folder's documents say goes into `all`. */
void report_documents(json_t *all, const run_files *r);
json_t *report_validations(const validation_row *rows, int64_t n);
json_t *report_spikes(const loss_spikes *s);
/* One step of a trace, the last that rank 0 has whole: {x, tracks: [{name, spans: [[from, to, name, unit]]}]} in
 * milliseconds (the live page's have a fifth: 1, 2: upper, lower half of the track). NULL: there is none, which is
 * noted in `r`. */
json_t *step_spans(run_files *r, const char *path);

#endif
