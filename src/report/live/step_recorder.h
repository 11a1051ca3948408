/* One step as it happened on this rank, for the picture of the live page: phases and waits of the training thread, and
 * for each unit when it was gathered, whole, and reduced. It listens to what src/base/record/hooks.h reports, but notes
 * a step only when somebody asked for one, so that nobody pays who does not look. */
#ifndef REPORT_LIVE_STEP_RECORDER_H
#define REPORT_LIVE_STEP_RECORDER_H

#include <jansson.h>

#include <fsdp/status.h>

typedef struct step_recorder step_recorder;

/* Listens from now on; opened and closed while no work runs. */
fsdp_status step_recorder_open(step_recorder **out);
void step_recorder_close(step_recorder *r); /* NULL is legal */

/* Any thread: the next whole step is noted. */
void step_recorder_ask(step_recorder *r);
/* Any one thread: the newest step that was noted, as step_spans (report/report_data.h) gives one of a trace; NULL: none
 * since the last call. */
json_t *step_recorder_take(step_recorder *r);

#endif
