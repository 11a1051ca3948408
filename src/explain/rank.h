/* One rank of the job that is told about; ranks.c starts it in a process of its own. */
#ifndef EXPLAIN_RANK_H
#define EXPLAIN_RANK_H

#include "explain/record.h"

fsdp_status rank_run(fsdp_strategy strategy, int rank, int n_ranks, rank_record *r);

#endif
