/* Collectives of host values for a user's program: thin calls over comm.h. Objects of any size travel in rounds of what
 * one exchange takes. */
#include <fsdp/world.h>

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "comm/world.h"

struct fsdp_group {
    comm_group *members;
};

static comm_group *members_of(fsdp_world *w, fsdp_group *group)
{
    return group ? group->members : comm_world(w->comm);
}

fsdp_status fsdp_group_split(fsdp_world *w, const char *name, int color, int key, fsdp_group **out)
{
    fsdp_group *g = calloc(1, sizeof *g);
    if (!g) /* the other ranks are told when they wait for this one */
        return error_set(FSDP_ERR_MEMORY, "splitting a group: out of host memory");
    fsdp_status status = comm_group_split(w->comm, name, color, key, &g->members);
    if (status != FSDP_OK) {
        free(g);
        return status;
    }
    *out = g;
    return FSDP_OK;
}

void fsdp_group_free(fsdp_group *group)
{
    if (!group)
        return;
    comm_group_free(group->members);
    free(group);
}

int fsdp_group_rank(const fsdp_group *group)
{
    return comm_group_rank(group->members);
}

int fsdp_group_size(const fsdp_group *group)
{
    return comm_group_size(group->members);
}

int fsdp_group_world_rank(const fsdp_group *group, int rank)
{
    return rank >= 0 && rank < fsdp_group_size(group) ? comm_group_world_rank(group->members, rank) : -1;
}

fsdp_status fsdp_world_barrier(fsdp_world *w, fsdp_group *group)
{
    return comm_barrier(members_of(w, group), "barrier", 0);
}

static fsdp_status check_reduction(fsdp_reduction reduction, int64_t n)
{
    if ((unsigned)reduction > FSDP_REDUCE_MIN || n < 0)
        return error_set(FSDP_ERR_INPUT, "all_reduce: reduction %d of %lld values", (int)reduction, (long long)n);
    return FSDP_OK;
}

fsdp_status fsdp_world_all_reduce(fsdp_world *w, fsdp_group *group, fsdp_reduction reduction, double *values, int64_t n)
{
    FSDP_TRY(check_reduction(reduction, n));
    return comm_all_reduce_f64(members_of(w, group), "all_reduce", 0, reduction, values, n);
}

fsdp_status fsdp_world_all_reduce_i64(fsdp_world *w, fsdp_group *group, fsdp_reduction reduction, int64_t *values,
                                      int64_t n)
{
    FSDP_TRY(check_reduction(reduction, n));
    return comm_all_reduce_i64(members_of(w, group), "all_reduce", 0, reduction, values, n);
}

/* One exchange: `bytes` of this rank (0: it only listens), slots of `slot` bytes a rank in `all`. A rank that gives
 * another number than all others is named. */
typedef struct exchange {
    comm_group *members;
    const char *label;
    size_t slot;
    uint8_t *all;
    size_t *sizes;
} exchange;

static fsdp_status exchange_begin(fsdp_world *w, fsdp_group *group, const char *label, size_t bytes, exchange *x)
{
    *x = (exchange){.members = members_of(w, group), .label = label};
    int n = comm_group_size(x->members);
    x->slot = bytes < COMM_EXCHANGE_BYTES ? bytes : COMM_EXCHANGE_BYTES;
    x->all = malloc(x->slot * (size_t)n + 1);
    x->sizes = calloc((size_t)n, sizeof *x->sizes);
    if (x->all && x->sizes)
        return FSDP_OK;
    free(x->all);
    free(x->sizes);
    return error_set(FSDP_ERR_MEMORY, "%s of %zu bytes: out of host memory", label, bytes);
}

static void exchange_end(exchange *x)
{
    free(x->all);
    free(x->sizes);
}

fsdp_status fsdp_world_broadcast(fsdp_world *w, fsdp_group *group, int root, void *data, size_t bytes)
{
    exchange x;
    comm_group *members = members_of(w, group);
    if (root < 0 || root >= comm_group_size(members))
        return error_set(FSDP_ERR_INPUT, "broadcast: root %d of %d ranks", root, comm_group_size(members));
    FSDP_TRY(exchange_begin(w, group, "broadcast", bytes, &x));
    bool gives = comm_group_rank(members) == root;
    fsdp_status status = FSDP_OK;
    for (size_t done = 0, n; done < bytes && status == FSDP_OK; done += n) {
        n = bytes - done < x.slot ? bytes - done : x.slot;
        status = comm_exchange(members, x.label, (uint8_t *)data + done, gives ? n : 0, x.slot, x.all, x.sizes);
        if (status == FSDP_OK && x.sizes[root] != n)
            status = error_set(FSDP_ERR_PEER, "broadcast: rank %d gives %zu bytes, this rank wants %zu",
                               comm_group_world_rank(members, root), x.sizes[root], n);
        if (status == FSDP_OK && !gives)
            memcpy((uint8_t *)data + done, x.all + (size_t)root * x.slot, n);
    }
    exchange_end(&x);
    return status;
}

fsdp_status fsdp_world_all_gather(fsdp_world *w, fsdp_group *group, const void *mine, size_t bytes, void *all)
{
    exchange x;
    FSDP_TRY(exchange_begin(w, group, "all_gather", bytes, &x));
    int ranks = comm_group_size(x.members);
    fsdp_status status = FSDP_OK;
    for (size_t done = 0, n; done < bytes && status == FSDP_OK; done += n) {
        n = bytes - done < x.slot ? bytes - done : x.slot;
        status = comm_exchange(x.members, x.label, (const uint8_t *)mine + done, n, x.slot, x.all, x.sizes);
        for (int r = 0; status == FSDP_OK && r < ranks; r++) {
            if (x.sizes[r] != n)
                status = error_set(FSDP_ERR_PEER, "all_gather: rank %d gives %zu bytes where this rank gives %zu",
                                   comm_group_world_rank(x.members, r), x.sizes[r], n);
            else
                memcpy((uint8_t *)all + (size_t)r * bytes + done, x.all + (size_t)r * x.slot, n);
        }
    }
    exchange_end(&x);
    return status;
}
