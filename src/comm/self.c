/* Collectives of one rank, by itself: copies and conversions. Also what other backends run for groups of one, and the
 * memory of backends that have none of their own. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "comm/engine.h"
#include "comm/reduce.h"

static bool is_reduction(const comm_request *r)
{
    return r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_REDUCE;
}

/* Data on an accelerator: enqueued after the work that made it. */
static fsdp_status run_on_device(device *d, comm_request *r)
{
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        int64_t n = span_count(p, 0);
        if (is_reduction(r)) {
            axpby_args a = {.n = n, .alpha = 1, .a = p->send, .out = p->recv};
            if (p->add)
                a.b = p->recv, a.beta = 1;
            if (n > 0 && (p->add || p->send.p != p->recv.p))
                FSDP_TRY(d->kernels->axpby(r->op.stream, &a));
        } else if (n > 0 && p->send.p != p->recv.p) {
            FSDP_TRY(d->copy(r->op.stream, p->recv.p, p->send.p, (size_t)n * fsdp_dtype_size(p->send.dtype)));
        }
    }
    return FSDP_OK;
}

bool self_enqueues(const comm_request *r)
{
    const device *d = r->group->comm->config.device;
    return r->group->size == 1 && d && r->op.stream && d->own_memory;
}

fsdp_status self_run(comm_request *r)
{
    if (self_enqueues(r))
        return run_on_device(r->group->comm->config.device, r);
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        int64_t n = span_count(p, 0);
        if (is_reduction(r)) {
            const void *sources[] = {p->send.p};
            reduce_ordered(&(reduce_args){.reduction = r->op.reduction,
                                          .n_sources = 1,
                                          .sources = sources,
                                          .from = p->send.dtype,
                                          .to = p->recv.dtype,
                                          .n = n,
                                          .out = p->recv.p,
                                          .add = p->add});
        } else {
            copy_bytes(p->recv.p, p->send.p, (size_t)n * fsdp_dtype_size(p->send.dtype), false, 1);
        }
    }
    return FSDP_OK;
}

fsdp_status staging_grow(device *d, stream *s, device_staging *m, size_t bytes)
{
    void *memory;
    if (bytes <= m->bytes)
        return FSDP_OK;
    FSDP_TRY(d->stream_synchronize(s));
    staging_free(d, m);
    FSDP_TRY(d->allocate(d, MEMORY_DEVICE, round_up(bytes, COMM_STAGING_PAGE), &memory));
    *m = (device_staging){memory, round_up(bytes, COMM_STAGING_PAGE)};
    return FSDP_OK;
}

void staging_free(device *d, device_staging *m)
{
    d->release(d, MEMORY_DEVICE, m->start, m->bytes);
    *m = (device_staging){NULL, 0};
}

typedef struct host_memory {
    void *start;
    size_t bytes;
    struct host_memory *next;
} host_memory;

static fsdp_status take_from_system(size_t bytes, void **out)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set_errno(FSDP_ERR_MEMORY, "cannot allocate %zu bytes", bytes);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes); /* first touch now, not in the first step */
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, (int64_t)bytes, 1);
    *out = memory;
    return FSDP_OK;
}

fsdp_status host_allocate(comm *c, size_t bytes, void **out)
{
    if (bytes == 0)
        return FSDP_OK;
    host_memory *m = malloc(sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "no memory to keep track of %zu bytes", bytes);
    device *d = c->config.device;
    fsdp_status status = d ? d->allocate(d, MEMORY_DEVICE, bytes, &m->start) : take_from_system(bytes, &m->start);
    if (status != FSDP_OK) {
        free(m);
        return status;
    }
    m->bytes = bytes;
    m->next = c->memories;
    c->memories = m;
    *out = m->start;
    return FSDP_OK;
}

void host_release(comm *c, void *memory)
{
    host_memory **link = &c->memories;
    while (*link && (*link)->start != memory)
        link = &(*link)->next;
    host_memory *m = *link;
    if (!m)
        return;
    *link = m->next;
    device *d = c->config.device;
    if (d) {
        d->release(d, MEMORY_DEVICE, m->start, m->bytes);
    } else {
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, -(int64_t)m->bytes, 1);
        munmap(m->start, m->bytes);
    }
    free(m);
}

void host_release_all(comm *c)
{
    while (c->memories)
        host_release(c, c->memories->start);
}

static fsdp_status self_open(comm *c)
{
    if (c->world_size != 1)
        return error_set(FSDP_ERR_INPUT, "backend self is for one rank, this job has %d; use shm, ucx or mpi",
                         c->world_size);
    return FSDP_OK;
}

static void self_abort(comm *c, const char *message)
{
    (void)c, (void)message; /* no other rank to tell */
}

/* Groups of one rank never reach the backend. */
static fsdp_status self_group_open(comm_group *g)
{
    return error_set(FSDP_ERR_STATE, "backend self has no group of %d ranks", g->size);
}

static void self_group_close(comm_group *g)
{
    (void)g;
}

const comm_backend comm_self_backend = {
    .name = "self",
    .open = self_open,
    .close = host_release_all,
    .group_open = self_group_open,
    .group_close = self_group_close,
    .run = self_run,
    .allocate = host_allocate,
    .release = host_release,
    .abort = self_abort,
};
