/* The shared memory backend's coming and going: meets the other ranks, maps the control page and the staging areas,
 * exchanges process handles, and leaves. The protocol is described in control.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "comm/shm/control.h"

enum { PAGE = 4096, LEAST_STAGING = 64 << 10 };

/* Handle of this process, readable by poll once it has ended. -1 on kernels without: then only timeouts find it out. */
static int own_pidfd(void)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
#else
    return -1;
#endif
}

/* Rank 0 makes the file; its descriptor goes around like any other. */
static fsdp_status share_control(comm *c)
{
    shm_world *w = world_of(c);
    w->staging_bytes =
        round_up(c->config.staging_bytes > LEAST_STAGING ? c->config.staging_bytes : LEAST_STAGING, PAGE);
    w->slot_bytes = w->staging_bytes / SHM_SLOTS / 64 * 64;
    w->control_bytes = round_up(sizeof(shm_control) + (size_t)c->world_size * sizeof(shm_rank), PAGE);
    size_t bytes = w->control_bytes + (size_t)c->world_size * w->staging_bytes;
    int fd = -1, *fds = calloc((size_t)c->world_size, sizeof *fds);
    if (!fds)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    fsdp_status status = FSDP_OK;
    if (c->rank == 0) {
        fd = memfd_create("fsdp-control", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
            status = error_set_errno(FSDP_ERR_MEMORY, "cannot create shared memory");
    }
    if (status == FSDP_OK)
        status = shm_pass_descriptors(c, fd, fds);
    if (status == FSDP_OK && fds[0] < 0)
        status = error_set(FSDP_ERR_PEER, "rank 0 could not create shared memory");
    if (status == FSDP_OK) {
        void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
        if (start == MAP_FAILED)
            status = error_set_errno(FSDP_ERR_MEMORY, "cannot map %zu bytes of shared memory", bytes);
        else
            w->control = start;
    }
    if (fd >= 0)
        close(fd);
    else if (status == FSDP_OK && fds[0] >= 0)
        close(fds[0]);
    free(fds);
    if (w->control)
        w->staging = (char *)w->control + w->control_bytes;
    return status;
}

static fsdp_status share_pidfds(comm *c)
{
    shm_world *w = world_of(c);
    int mine = own_pidfd();
    fsdp_status status = shm_pass_descriptors(c, mine, w->pidfds);
    if (status != FSDP_OK)
        for (int i = 0; i < c->world_size; i++)
            w->pidfds[i] = -1;
    if (mine >= 0)
        close(mine);
    w->pidfds[c->rank] = -1; /* we know when we end */
    return status;
}

static fsdp_status shm_open_backend(comm *c)
{
    if (c->world_size != c->local_world_size)
        return error_set(FSDP_ERR_INPUT,
                         "backend shm joins the ranks of one host, but only %d of %d are on this one; use mpi",
                         c->local_world_size, c->world_size);
    if (c->world_size > SHM_MAX_RANKS)
        return error_set(FSDP_ERR_UNSUPPORTED, "backend shm joins at most %d ranks, this job has %d; use mpi",
                         SHM_MAX_RANKS, c->world_size);
    shm_world *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    c->state = w;
    w->sockets = malloc((size_t)c->world_size * sizeof *w->sockets);
    w->pidfds = malloc((size_t)c->world_size * sizeof *w->pidfds);
    if (!w->sockets || !w->pidfds)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    for (int i = 0; i < c->world_size; i++)
        w->sockets[i] = w->pidfds[i] = -1;
    w->spin = sysconf(_SC_NPROCESSORS_ONLN) >= c->world_size;
    FSDP_TRY(shm_meet(c));
    FSDP_TRY(share_control(c));
    FSDP_TRY(share_pidfds(c));
    w->control->ranks[c->rank].state = SHM_RANK_HERE;
    if (c->rank == 0) {
        w->control->magic = SHM_MAGIC;
        w->control->world_size = c->world_size;
    }
    return FSDP_OK;
}

static void close_all(int *fds, int n)
{
    for (int i = 0; fds && i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(fds);
}

static void shm_close_backend(comm *c)
{
    shm_world *w = world_of(c);
    if (!w)
        return;
    if (w->control) {
        atomic_store(&w->control->ranks[c->rank].state, SHM_RANK_LEFT);
        shm_release_all(c);
        munmap(w->control, w->control_bytes + (size_t)c->world_size * w->staging_bytes);
    }
    close_all(w->pidfds, c->world_size);
    close_all(w->sockets, c->world_size);
    free(w);
    c->state = NULL;
}

static fsdp_status shm_group_open(comm_group *g)
{
    g->backend = calloc(1, sizeof(shm_group));
    if (!g->backend)
        return error_set(FSDP_ERR_MEMORY, "no memory for communication group %s", g->name);
    return FSDP_OK;
}

static void shm_group_close(comm_group *g)
{
    /* Peers may still read chunks of this group; without the group the next user of the slot could not wait for them.
     */
    if (!atomic_load(&g->comm->failed) && !atomic_load(&g->comm->stop))
        shm_slots_free(g);
    free(g->backend);
}

const comm_backend comm_shm_backend = {
    .name = "shm",
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
