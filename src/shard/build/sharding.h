/* How each unit is spread over the ranks: into how many shards, which of them this rank has, who has the same one, and
 * the groups of ranks that gather and sum. The model's strategy is only the default of a unit's. */
#ifndef SHARD_BUILD_SHARDING_H
#define SHARD_BUILD_SHARDING_H

#include <fsdp/shard.h>

#include "comm/comm.h"

typedef struct unit_sharding {
    int n_shards, shard_rank;     /* cut into so many shards; this rank's */
    int n_replicas, replica_rank; /* groups of ranks that each have all shards; this rank's. 1: there is one */
    /* Every rank holds all shards: no_shard over several ranks, or ignored. The cuts are those that a sharded unit
     * would have, so that sums over shards have the same bits. */
    bool whole;
    /* NULL before sharding_open_groups, and where there is none. Units that are spread alike share them. */
    comm_group *shard_group;   /* whole: all ranks */
    comm_group *replica_group; /* ranks with the same shard; NULL: n_replicas is 1 */
    comm_group *keep_group;    /* ranks that keep the unit between forward and backward */
} unit_sharding;

/* The numbers, for rank m->rank of m->n_ranks. A group of size 0 is the ranks of a node. `whose` begins the message of
 * a size that cannot be. */
fsdp_status sharding_find(const fsdp_model *m, const char *whose, fsdp_strategy strategy, int group_size,
                          unit_sharding *out);

/* Collective. All ranks make the same groups: their policies have been compared. */
int sharding_groups(const struct fsdp_model *m); /* of several ranks that it opens, and the world */
fsdp_status sharding_open_groups(fsdp_model *m);
void sharding_close_groups(fsdp_model *m);

#endif
