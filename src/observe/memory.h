/* Memory that a rank took: what the library asked for (the public meter, heard through hooks), and what the system says
 * of the process. */
#ifndef OBSERVE_MEMORY_H
#define OBSERVE_MEMORY_H

#include <stdint.h>

#include <fsdp/memory.h>

#include "base/record/memory_use.h"

/* Bytes that are taken now, by what they are for. */
void memory_meter_uses(const fsdp_memory_meter *m, int64_t uses[MEMORY_USES]);

/* Of this process, from /proc; zeros where the system does not say. */
typedef struct process_memory {
    int64_t rss_bytes;      /* resident */
    int64_t rss_peak_bytes; /* most that ever was */
    int64_t pss_bytes;      /* resident, what is shared counted by its share */
} process_memory;

process_memory process_memory_read(void);

/* A rank's row of the report; zeros are left empty, and so is a column without any number. */
typedef struct memory_row {
    int rank;
    int64_t plan_bytes, measured_bytes;           /* promised, and taken at most */
    int64_t host_plan_bytes, host_measured_bytes; /* the same of host memory beside a device's */
    int64_t replicated_bytes;                     /* what the plan would be without sharding */
    process_memory process;
} memory_row;

/* The table; malloc'd. */
fsdp_status memory_report(const memory_row *rows, int n, char **text);

#endif
