/* A run's document, of its page or its folder, as lines for a terminal. */
#ifndef REPORT_LIVE_TOP_TEXT_H
#define REPORT_LIVE_TOP_TEXT_H

#include <jansson.h>

#include <fsdp/status.h>

/* `document` is {runs: [run], live} of live_run.h; `live` may be missing. It may be a stranger's. Lines are cut to
 * `columns`, their number to `rows`, if these are not 0. *text is malloc'd. */
fsdp_status top_text(const json_t *document, int columns, int rows, char **text);

#endif
