/* Numbers of shards and replicas by strategy, and their groups, which units share. */
#include "shard/build/sharding.h"

#include "base/error.h"
#include "shard/model.h"

fsdp_status sharding_find(const fsdp_model *m, const char *whose, fsdp_strategy strategy, int group_size,
                          unit_sharding *out)
{
    int size;
    FSDP_TRY(strategy_count_shards(strategy, whose, group_size, m->n_ranks, m->ranks_per_node, &size));
    *out = (unit_sharding){.n_shards = size,
                           .shard_rank = m->rank % size,
                           .n_replicas = m->n_ranks / size,
                           .replica_rank = m->rank / size,
                           .whole = !strategy_of(strategy)->shards_optimizer && size > 1};
    return FSDP_OK;
}

/* The first unit before `index` that is spread alike; NULL: there is none. */
static const unit_sharding *alike(const fsdp_model *m, int index)
{
    for (int i = 0; i < index; i++) {
        if (m->shardings[i].n_shards == m->shardings[index].n_shards)
            return &m->shardings[i];
    }
    return NULL;
}

static comm_group *find_keepers(const fsdp_model *m, int index)
{
    for (int i = 0; i < index; i++) {
        if (m->keep_groups[i] == m->keep_groups[index])
            return m->shardings[i].keep_group;
    }
    return NULL;
}

/* Whether unit `index` is the first whose keepers are so many. */
static bool keeps_first(const fsdp_model *m, int index)
{
    for (int i = 0; i < index; i++)
        if (m->keep_groups[i] == m->keep_groups[index])
            return false;
    return m->keep_groups[index] > 1;
}

int sharding_groups(const fsdp_model *m)
{
    int n = m->n_ranks > 1;
    for (int i = 0; i < m->n_policies; i++) {
        const unit_sharding *s = &m->shardings[i];
        if (!alike(m, i) && s->n_shards != m->n_ranks)
            n += (s->n_shards > 1) + (s->n_replicas > 1);
        n += keeps_first(m, i);
    }
    return n;
}

fsdp_status sharding_open_groups(fsdp_model *m)
{
    comm *c = m->world->comm;
    for (int i = 0; i < m->n_policies; i++) {
        unit_sharding *s = &m->shardings[i];
        const unit_sharding *same = alike(m, i);
        if (same) {
            s->shard_group = same->shard_group;
            s->replica_group = same->replica_group;
        } else if (s->n_shards == m->n_ranks) {
            s->shard_group = comm_world(c);
        } else {
            FSDP_TRY(comm_group_split_by_size(c, s->n_shards, &s->shard_group, &s->replica_group));
        }
        if (m->keep_groups[i] > 0 && !(s->keep_group = find_keepers(m, i)))
            FSDP_TRY(comm_group_split_neighbours(c, "keep", m->keep_groups[i], &s->keep_group));
    }
    return FSDP_OK;
}

void sharding_close_groups(fsdp_model *m)
{
    for (int i = m->shardings ? m->n_policies - 1 : -1; i >= 0; i--) {
        unit_sharding *s = &m->shardings[i];
        if (s->keep_group && !find_keepers(m, i))
            comm_group_free(s->keep_group);
        if (s->shard_group == comm_world(m->world->comm) || alike(m, i))
            continue;
        comm_group_free(s->replica_group);
        comm_group_free(s->shard_group);
    }
}
