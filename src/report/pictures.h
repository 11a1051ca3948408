/* The pictures of a report as SVG files, for documents and slides. */
#ifndef REPORT_PICTURES_H
#define REPORT_PICTURES_H

#include <jansson.h>

#include <fsdp/status.h>

/* `runs` is the page's data. Makes the folder; each file appears complete or not at all. *n: files written. A picture
 * for which there are no numbers is left out, as on the page. */
fsdp_status report_pictures_write(const json_t *runs, const char *folder, int *n);

#endif
