/* The report of a job: one line of JSON for every round that ended before its time, with the reason and what followed.
 * Written by the launcher that holds the store, which hears of all. */
#ifndef LAUNCH_JOB_REPORT_H
#define LAUNCH_JOB_REPORT_H

#include <fsdp/launch.h>

typedef struct job_report job_report;

/* *out is NULL when no report is wanted. The file is opened with the first line. */
fsdp_status job_report_open(const fsdp_launch_config *config, job_report **out);
void job_report_write(void *report, int round, const char *reason, const char *what_follows);
void job_report_close(job_report *r); /* NULL is legal */

#endif
