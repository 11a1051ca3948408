/* The shared memory backend's coming and going: tells the other ranks where its memory is, maps every rank's control
 * pages and staging areas, opens handles of their processes, and leaves. The protocol is described in control.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "comm/shm/control.h"
#include "meet/meeting.h"

/* Larger slots than 512 KiB would not stay in the second-level cache between filling and reading. */
enum { MIN_STAGING = 64 << 10, DEFAULT_STAGING = 1 << 20 };

/* Handle of a process, readable by poll once it has ended. -1 on kernels without: then only timeouts find it out. */
static int open_pidfd(int pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

static size_t staging_bytes(const comm_config *config)
{
    size_t asked = config->staging_bytes ? config->staging_bytes : DEFAULT_STAGING;
    return round_up(asked > MIN_STAGING ? asked : MIN_STAGING, SHM_PAGE);
}

size_t shm_overhead(const comm_config *config)
{
    return SHM_SHARE_BYTES + staging_bytes(config);
}

/* What a rank tells the others: the process whose memory they may map, and its descriptor of it; -1: it has none. */
typedef struct introduction {
    int32_t pid, fd;
} introduction;

static fsdp_status map_share(comm *c, int rank, const introduction *peer, shm_share **out)
{
    shm_world *w = world_of(c);
    int fd;
    if (peer->fd < 0)
        return error_set(FSDP_ERR_PEER, "rank %d could not create shared memory", rank);
    FSDP_TRY(shm_open_file(c, rank, peer->fd, w->share_bytes, &fd));
    void *start = mmap(NULL, w->share_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (start == MAP_FAILED)
        return error_set_errno(FSDP_ERR_MEMORY, "cannot map %zu bytes of shared memory", w->share_bytes);
    *out = start;
    return FSDP_OK;
}

/* On failure nothing stays mapped. */
static fsdp_status map_shares(comm *c, const introduction *all)
{
    shm_world *w = world_of(c);
    shm_share **shares = calloc((size_t)c->world_size, sizeof *shares);
    if (!shares)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    fsdp_status status = FSDP_OK;
    for (int rank = 0; status == FSDP_OK && rank < c->world_size; rank++) {
        if (!w->near[rank])
            continue;
        status = map_share(c, rank, &all[rank], &shares[rank]);
        w->pidfds[rank] =
            status == FSDP_OK && rank != c->rank ? open_pidfd(all[rank].pid) : -1; /* we know when we end */
    }
    if (status == FSDP_OK) {
        w->shares = shares;
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, (int64_t)w->share_bytes, 1);
        return FSDP_OK;
    }
    for (int rank = 0; rank < c->world_size; rank++)
        if (shares[rank])
            munmap(shares[rank], w->share_bytes);
    free(shares);
    return status;
}

static void unmap_shares(comm *c)
{
    shm_world *w = world_of(c);
    for (int rank = 0; rank < c->world_size; rank++)
        if (w->shares[rank])
            munmap(w->shares[rank], w->share_bytes);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, -(int64_t)w->share_bytes, 1);
    free(w->shares);
    w->shares = NULL;
}

/* Every rank makes a file, says where it is, and maps everybody's. A rank that cannot says -1: all of them learn it.
 * Who has come to the end of this has its peers alive and mapped. */
static fsdp_status share_control(comm *c)
{
    shm_world *w = world_of(c);
    w->share_bytes = shm_overhead(&c->config);
    w->slot_bytes = (w->share_bytes - SHM_SHARE_BYTES) / SHM_SLOTS / 64 * 64;
    introduction *all = calloc((size_t)c->world_size, sizeof *all);
    if (!all)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    introduction mine = {.pid = getpid(), .fd = memfd_create("fsdp-control", MFD_CLOEXEC)};
    fsdp_status own = FSDP_OK;
    int fd = mine.fd;
    if (fd < 0 || ftruncate(fd, (off_t)w->share_bytes) < 0) {
        own = error_set_errno(FSDP_ERR_MEMORY, "cannot create %zu bytes of shared memory", w->share_bytes);
        mine.fd = -1;
    }
    all[0] = mine;
    fsdp_status status =
        c->meeting ? meeting_gather_equal(c->meeting, "shared memory", &mine, sizeof mine, all) : FSDP_OK;
    for (int rank = 0; status == FSDP_OK && rank < c->world_size; rank++)
        w->pids[rank] = all[rank].pid;
    if (status == FSDP_OK)
        status = own == FSDP_OK ? map_shares(c, all) : own;
    if (status == FSDP_OK && c->meeting)
        status = meeting_barrier(c->meeting, "shared memory is mapped");
    if (fd >= 0)
        close(fd);
    free(all);
    return status;
}

static int count(const bool *flags, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        found += flags[i];
    return found;
}

fsdp_status shm_join(comm *c, const bool *near)
{
    shm_world *w = world_of(c);
    size_t n = (size_t)c->world_size;
    w->near = calloc(n, sizeof *w->near);
    w->pids = calloc(n, sizeof *w->pids);
    w->pidfds = malloc(n * sizeof *w->pidfds);
    for (size_t i = 0; w->pidfds && i < n; i++)
        w->pidfds[i] = -1;
    if (!w->near || !w->pids || !w->pidfds)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    for (int rank = c->world_size - 1; rank >= 0; rank--) {
        w->near[rank] = !near || near[rank];
        w->first = w->near[rank] ? rank : w->first;
    }
    int n_near = count(w->near, c->world_size);
    if (n_near > SHM_MAX_RANKS)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "at most %d ranks share the memory of a host, %d are on this one; use mpi", SHM_MAX_RANKS,
                         n_near);
    w->spin = sysconf(_SC_NPROCESSORS_ONLN) >= n_near;
    FSDP_TRY(share_control(c));
    atomic_store(&shm_rank_of(w, c->rank)->state, SHM_RANK_HERE);
    return FSDP_OK;
}

static fsdp_status shm_open_backend(comm *c)
{
    if (c->world_size != c->local_world_size)
        return error_set(FSDP_ERR_INPUT,
                         "backend shm joins the ranks of one host, but only %d of %d are on this one; use ucx or mpi",
                         c->local_world_size, c->world_size);
    c->state = calloc(1, sizeof(shm_world));
    if (!c->state)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    return shm_join(c, NULL);
}

static void close_all(int *fds, int n)
{
    for (int i = 0; fds && i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(fds);
}

void shm_leave(comm *c)
{
    shm_world *w = world_of(c);
    if (w->shares) {
        atomic_store(&shm_rank_of(w, c->rank)->state, SHM_RANK_LEFT);
        shm_release_all(c);
        unmap_shares(c);
    }
    close_all(w->pidfds, c->world_size);
    free(w->pids);
    free(w->near);
}

static void shm_close_backend(comm *c)
{
    if (!c->state)
        return;
    shm_leave(c);
    free(c->state);
    c->state = NULL;
}

/* The counts of a group that had the slot before are forgotten: all its members have freed it. */
fsdp_status shm_group_open(comm_group *g)
{
    shm_channel *mine = channel_of(g, g->rank);
    atomic_store(&mine->arrived, 0);
    atomic_store(&mine->produced, 0);
    atomic_store(&mine->done, 0);
    atomic_store(&mine->consumed, 0);
    g->backend = calloc(1, sizeof(shm_group));
    if (!g->backend)
        return error_set(FSDP_ERR_MEMORY, "no memory for communication group %s", g->name);
    return FSDP_OK;
}

void shm_group_close(comm_group *g)
{
    /* Peers may still read chunks of this group; without the group the next user of the slot could not wait for them.
     */
    if (!atomic_load(&g->comm->failed) && !atomic_load(&g->comm->stop))
        shm_slots_free(g);
    free(g->backend);
}

const comm_backend comm_shm_backend = {
    .name = "shm",
    .works = true,
    .meets = true,
    .page = SHM_PAGE,
    .overhead = shm_overhead,
    .open = shm_open_backend,
    .close = shm_close_backend,
    .group_open = shm_group_open,
    .group_close = shm_group_close,
    .start = shm_start,
    .run = shm_run,
    .is_sent = shm_is_sent,
    .wait_sent = shm_wait_sent,
    .allocate = shm_allocate,
    .release = shm_release,
    .abort = shm_abort,
    .check = shm_check,
};
