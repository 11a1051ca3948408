/* Where the ranks of an NCCL job find each other: rank 0 listens at the master's address, the others come to it with
 * the job's token and get what rank 0 has to give (NCCL's unique id). The connections stay, to pass on failures. */
#ifndef COMM_NCCL_MEET_H
#define COMM_NCCL_MEET_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

#include "base/job.h"

enum { MEET_GIFT_BYTES = 128, MEET_TEXT_BYTES = 1016 };

typedef struct meeting meeting;

/* Returns when all ranks have come, or fails at the timeout naming those that did not. `gift` is read on rank 0 and
 * written on the others. The caller owns *out. */
fsdp_status meeting_open(const job *j, double timeout_seconds, void *gift, meeting **out);
void meeting_close(meeting *m); /* says goodbye, waits for nobody; NULL is legal */

/* Tells all others that this rank failed. Any thread. */
void meeting_tell(meeting *m, const char *text);

/* Waits up to `milliseconds` for news: true when a rank failed, or was lost without a goodbye; *rank and text say which
 * and why. Rank 0 passes on what it hears. One thread at a time. */
bool meeting_listen(meeting *m, int milliseconds, int *rank, char text[MEET_TEXT_BYTES]);

#endif
