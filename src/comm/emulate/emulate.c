/* One process as rank 0 of a world whose other ranks are not there: "emulate:8@450GBs,2@50GBs" (links.h). Shards,
 * buffers and bytes are those of the real world, and a collective takes as long as its links would, on a stream of its
 * own; on a GPU a kernel of as many blocks as NCCL's, or its copy engines, move as many bytes meanwhile, so that what
 * is computed beside it is slowed down as it would be. Every peer is taken to hold what this rank holds, so results are
 * wrong and only times and memory mean something.
 *
 * Two tables: where the device has a queue a collective is enqueued, otherwise the engine's thread moves the bytes and
 * sleeps. */
#include "comm/emulate/emulate.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "comm/direct.h"
#include "comm/emulate/links.h"
#include "comm/engine.h"
#include "comm/reduce.h"

/* Collectives of a group whose end can be told apart. Older ones are done when a newer one is: one stream. */
enum { EMULATE_EVENTS = 64 };

/* Where the bytes of peers go that a reduction would add up, as NCCL's buffers. */
static const size_t landing_bytes = (size_t)16 << 20;

typedef struct emulated_world {
    links links;
    atomic_bool without; /* these two are read or written while a thread runs collectives */
    _Atomic double seconds;
    void *landing;
} emulated_world;

typedef struct emulated_group {
    stream *stream;
    stream *wire; /* what arrives without any of this GPU's blocks: the switch's writes and reads */
    event *ready, *arrived, *done[EMULATE_EVENTS];
    device_staging staging; /* for values that wait to be summed */
} emulated_group;

static emulated_world *world_of(const comm *c)
{
    return c->state;
}

void emulate_without_links(comm *c, bool without)
{
    world_of(c)->without = without;
}

double emulate_take_seconds(comm *c)
{
    return atomic_exchange(&world_of(c)->seconds, 0.0);
}

static void count_seconds(emulated_world *w, double seconds)
{
    double before = atomic_load(&w->seconds);
    while (!atomic_compare_exchange_weak(&w->seconds, &before, before + seconds))
        ;
}

static bool has_queue(const comm *c)
{
    return c->config.device && c->config.device->paced_move;
}

static fsdp_status emulate_open(comm *c)
{
    const char *links_text = strchr(c->config.backend, ':');
    if (c->world_size != 1)
        return error_set(FSDP_ERR_INPUT, "an emulated world is one process, this job has %d ranks; start it alone",
                         c->world_size);
    emulated_world *w = c->state = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "no memory to emulate other ranks");
    FSDP_TRY(links_parse(links_text ? links_text + 1 : "", &w->links));
    w->links.ctas = c->config.ctas;
    w->links.memory = c->config.memory;
    c->config.backend = "emulate"; /* the text is the caller's */
    c->rank = c->local_rank = c->node = 0;
    c->n_nodes = w->links.n_hosts;
    c->local_world_size = w->links.per_host;
    c->world_size = w->links.n_hosts * w->links.per_host;
    return has_queue(c) ? host_allocate(c, landing_bytes, &w->landing) : FSDP_OK;
}

static void emulate_close(comm *c)
{
    host_release_all(c);
    free(c->state);
}

static size_t emulate_overhead(const comm_config *config)
{
    return config->device && config->device->paced_move ? landing_bytes : 0;
}

static void emulate_abort(comm *c, const char *message)
{
    (void)c, (void)message; /* no other rank to tell */
}

static void emulate_group_close(comm_group *g)
{
    emulated_group *n = g->backend;
    device *d = g->comm->config.device;
    if (!n)
        return;
    for (int i = 0; i < EMULATE_EVENTS; i++)
        if (n->done[i])
            d->event_free(n->done[i]);
    if (n->ready)
        d->event_free(n->ready);
    if (n->arrived)
        d->event_free(n->arrived);
    if (n->wire)
        d->stream_free(n->wire);
    staging_free(d, &n->staging);
    if (n->stream)
        d->stream_free(n->stream);
    free(n);
    g->backend = NULL;
}

static fsdp_status open_queue(device *d, emulated_group *n)
{
    FSDP_TRY(d->stream_create(d, 1, &n->stream));
    FSDP_TRY(d->stream_create(d, 1, &n->wire));
    FSDP_TRY(d->event_create(d, &n->ready));
    FSDP_TRY(d->event_create(d, &n->arrived));
    for (int i = 0; i < EMULATE_EVENTS; i++)
        FSDP_TRY(d->event_create(d, &n->done[i]));
    return FSDP_OK;
}

static fsdp_status emulate_group_open(comm_group *g)
{
    if (!has_queue(g->comm))
        return FSDP_OK;
    g->backend = calloc(1, sizeof(emulated_group));
    if (!g->backend)
        return error_set(FSDP_ERR_MEMORY, "no memory for communication group %s", g->name);
    fsdp_status status = open_queue(g->comm->config.device, g->backend);
    if (status != FSDP_OK)
        emulate_group_close(g);
    return status;
}

static char *element(buffer b, int64_t index)
{
    return (char *)b.p + index * (int64_t)fsdp_dtype_size(b.dtype);
}

static bool is_reduction(const comm_request *r)
{
    return r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_REDUCE;
}

/* How long the links take; counted. */
static double seconds_of(const comm_request *r)
{
    const comm_group *g = r->group;
    emulated_world *w = world_of(g->comm);
    double seconds =
        w->without ? 0 : links_seconds(&w->links, g->members, g->size, r->kind, (double)request_received(r));
    count_seconds(w, seconds);
    return seconds;
}

/* ---- on the host ---- */

/* Every part of recv is this rank's, repeated where a part is longer. */
static void gather_on_host(const comm_group *g, const comm_span *p)
{
    size_t mine = (size_t)span_count(p, g->rank) * fsdp_dtype_size(p->send.dtype);
    for (int rank = 0; rank < g->size && mine > 0; rank++) {
        char *to = element(p->recv, span_offset(p, rank));
        size_t bytes = (size_t)span_count(p, rank) * fsdp_dtype_size(p->recv.dtype);
        for (size_t done = 0; done < bytes && to != p->send.p; done += mine)
            memcpy(to + done, p->send.p, bytes - done < mine ? bytes - done : mine);
    }
}

static void reduce_on_host(const comm_request *r, const comm_span *p, const void **sources)
{
    const comm_group *g = r->group;
    bool scatters = r->kind == COMM_REDUCE_SCATTER;
    for (int i = 0; i < g->size; i++)
        sources[i] = scatters ? element(p->send, span_offset(p, g->rank)) : p->send.p;
    reduce_ordered(&(reduce_args){.reduction = r->op.reduction,
                                  .n_sources = g->size,
                                  .sources = sources,
                                  .from = p->send.dtype,
                                  .to = p->recv.dtype,
                                  .n = scatters ? span_count(p, g->rank) : p->count,
                                  .out = p->recv.p,
                                  .add = p->add});
}

static void sleep_until(double when)
{
    double left = when - clock_seconds();
    if (left <= 0)
        return;
    struct timespec pause = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
    nanosleep(&pause, NULL);
}

static fsdp_status run_on_host(comm_request *r)
{
    double end = clock_seconds() + seconds_of(r);
    const void **sources = calloc((size_t)r->group->size, sizeof *sources);
    if (!sources)
        return error_set(FSDP_ERR_MEMORY, "no memory to emulate %d ranks", r->group->size);
    for (int i = 0; i < r->op.n_spans; i++) {
        if (is_reduction(r))
            reduce_on_host(r, &r->op.spans[i], sources);
        else
            gather_on_host(r->group, &r->op.spans[i]);
    }
    free(sources);
    sleep_until(end);
    return FSDP_OK;
}

/* ---- on a device's queue ---- */

/* The switch sends to all and sums for all: this GPU's blocks carry what one rank gives or gets, the rest of the bytes
 * pass its memory without them. */
static fsdp_status move_by_switch(const comm_group *g, paced_move_args *a)
{
    const emulated_group *n = g->backend;
    device *d = g->comm->config.device;
    paced_move_args rest = *a;
    rest.blocks = 0;
    FSDP_TRY(d->event_record(n->stream, n->arrived));
    FSDP_TRY(d->stream_wait(n->wire, n->arrived));
    FSDP_TRY(d->paced_move(n->wire, &rest));
    FSDP_TRY(d->event_record(n->wire, n->arrived));
    a->to = world_of(g->comm)->landing;
    a->to_bytes = landing_bytes;
    a->bytes /= (size_t)(g->size - 1);
    FSDP_TRY(d->paced_move(n->stream, a));
    return d->stream_wait(n->stream, n->arrived);
}

/* Where every rank sends to every other: blocks carry all of it. */
static fsdp_status move_directly(const comm_group *g, paced_move_args *a)
{
    a->blocks = links_direct_blocks(&world_of(g->comm)->links);
    return g->comm->config.device->paced_move(((const emulated_group *)g->backend)->stream, a);
}

static fsdp_status move(const comm_request *r, const void *from, size_t from_bytes, void *to, size_t to_bytes,
                        double bytes, double seconds)
{
    const comm_group *g = r->group;
    const emulated_group *n = g->backend;
    const links *l = &world_of(g->comm)->links;
    paced_move_args a = {.from = from,
                         .to = to,
                         .from_bytes = from_bytes,
                         .to_bytes = to_bytes,
                         .bytes = (size_t)bytes,
                         .seconds = seconds,
                         .blocks = links_blocks(l, g->members, g->size, r->kind)};
    if (from_bytes == 0 || to_bytes == 0 || world_of(g->comm)->without)
        return FSDP_OK;
    if (a.blocks > 0 && links_switched(l, g->members, g->size))
        return move_by_switch(g, &a);
    return g->comm->config.device->paced_move(n->stream, &a);
}

/* This rank's own part; by a copy engine, as all others, where a gather takes no blocks. */
static fsdp_status copy_own(const comm_request *r, void *to, const void *from, size_t bytes)
{
    const comm_group *g = r->group;
    const emulated_group *n = g->backend;
    const device *d = g->comm->config.device;
    paced_move_args a = {.from = from, .to = to, .from_bytes = bytes, .to_bytes = bytes, .bytes = bytes};
    if (links_blocks(&world_of(g->comm)->links, g->members, g->size, r->kind) == 0)
        return d->paced_move(n->stream, &a);
    return d->copy(n->stream, to, from, bytes);
}

/* The parts before and behind this rank's own, which is copied unless it is there. */
static fsdp_status gather_on_device(const comm_request *r, const comm_span *p, double seconds)
{
    const comm_group *g = r->group;
    const emulated_group *n = g->backend;
    int64_t size = (int64_t)fsdp_dtype_size(p->send.dtype), total = span_offset(p, g->size);
    int64_t first = span_offset(p, g->rank), mine = span_count(p, g->rank), end = first + mine;
    double each = total > mine ? seconds / (double)(total - mine) : 0;
    char *own = element(p->recv, first);
    if (mine == 0 && total > 0 &&
        p->recv.dtype <= FSDP_F16) { /* nothing to repeat: ones, with which layers compute on */
        fill_args ones = {.n = total, .alpha = 1, .out = p->recv};
        return g->comm->config.device->kernels->fill(n->stream, &ones);
    }
    if (own != p->send.p && mine > 0)
        FSDP_TRY(copy_own(r, own, p->send.p, (size_t)(mine * size)));
    FSDP_TRY(move(r, p->send.p, (size_t)(mine * size), p->recv.p, (size_t)(first * size), (double)(first * size),
                  each * (double)first));
    return move(r, p->send.p, (size_t)(mine * size), element(p->recv, end), (size_t)((total - end) * size),
                (double)((total - end) * size), each * (double)(total - end));
}

static fsdp_status reduce_on_device(const comm_request *r, const comm_span *p, double bytes, double seconds)
{
    const comm_group *g = r->group;
    const emulated_group *n = g->backend;
    device *d = g->comm->config.device;
    bool scatters = r->kind == COMM_REDUCE_SCATTER;
    int64_t total = scatters ? span_offset(p, g->size) : p->count;
    FSDP_TRY(move(r, p->send.p, (size_t)total * fsdp_dtype_size(p->send.dtype), world_of(g->comm)->landing,
                  landing_bytes, bytes, seconds));
    int64_t numel = scatters ? span_count(p, g->rank) : p->count;
    buffer mine = {scatters ? element(p->send, span_offset(p, g->rank)) : p->send.p, p->send.dtype};
    /* The largest of equals, of any type; and no kernel adds up fp64 and integers, on which no time depends. */
    if ((r->op.reduction != FSDP_REDUCE_SUM && p->send.dtype == p->recv.dtype) || p->send.dtype > FSDP_F16)
        return mine.p == p->recv.p || numel == 0
                   ? FSDP_OK
                   : d->copy(n->stream, p->recv.p, mine.p, (size_t)numel * fsdp_dtype_size(mine.dtype));
    axpby_args a = {
        .n = numel, .alpha = r->op.reduction == FSDP_REDUCE_SUM ? (float)g->size : 1, .a = mine, .out = p->recv};
    if (p->add) {
        a.b = p->recv;
        a.beta = 1;
    }
    return a.n > 0 ? d->kernels->axpby(n->stream, &a) : FSDP_OK;
}

/* Peers' values are parts of what this rank would send, as many bytes. */
static fsdp_status scatter_parts(void *context, const direct_sum *d, int64_t round, void *staging)
{
    emulated_world *w = context;
    const comm_group *g = d->group;
    int64_t size = (int64_t)fsdp_dtype_size(d->span->send.dtype), mine = direct_part_of(d, round, g->rank).n;
    int64_t all = d->scatters ? span_offset(d->span, g->size) : d->span->count;
    paced_move_args a = {.from = d->span->send.p,
                         .to = staging,
                         .from_bytes = (size_t)(all * size),
                         .to_bytes = (size_t)((g->size - 1) * d->stride * size),
                         .bytes = (size_t)((g->size - 1) * mine * size)};
    if (a.bytes == 0)
        return FSDP_OK;
    a.seconds = links_direct_seconds(&w->links, g->members, g->size, (double)a.bytes);
    count_seconds(w, a.seconds);
    return move_directly(g, &a);
}

/* Sums of peers are this rank's; what the last rank has besides is cleared. */
static fsdp_status gather_sums(void *context, const direct_sum *d, int64_t round, buffer whole)
{
    emulated_world *w = context;
    const comm_group *g = d->group;
    const emulated_group *n = g->backend;
    int64_t part = direct_part_of(d, round, 0).n, rest = direct_part_of(d, round, g->size - 1).n - part;
    size_t size = fsdp_dtype_size(whole.dtype);
    comm_request r = {.kind = COMM_ALL_GATHER, .group = (comm_group *)(uintptr_t)g};
    comm_span span = {
        .send = {element(whole, part * g->rank), whole.dtype}, .recv = whole, .count = part}; /* in place */
    double bytes = (double)((g->size - 1) * part) * (double)size;
    double seconds = links_seconds(&w->links, g->members, g->size, COMM_ALL_GATHER, bytes);
    count_seconds(w, seconds);
    FSDP_TRY(g->comm->config.device->zero(n->stream, element(whole, part * g->size), (size_t)rest * size));
    return part > 0 ? gather_on_device(&r, &span, seconds) : FSDP_OK;
}

static fsdp_status sum_directly(const comm_request *r, const comm_span *p)
{
    const comm_group *g = r->group;
    emulated_group *n = g->backend;
    int64_t numel = r->kind == COMM_REDUCE_SCATTER ? span_count(p, g->rank) : p->count;
    direct_carrier carrier = {
        .stream = n->stream, .context = world_of(g->comm), .scatter = scatter_parts, .gather = gather_sums};
    direct_sum sum = direct_begin(r, p);
    device *d = g->comm->config.device;
    size_t before = n->staging.bytes;
    FSDP_TRY(staging_grow(d, n->stream, &n->staging, direct_staging_bytes(&g->comm->config, r->kind, g->size, numel)));
    if (n->staging.bytes > before) /* the move writes as many bytes as arrive, not all that is summed */
        FSDP_TRY(d->zero(n->stream, n->staging.start, n->staging.bytes));
    return direct_run(&sum, &carrier, n->staging.start);
}

/* The time of a collective is shared among its spans by bytes. Without links a direct sum takes no more than another,
 * so what its kernel takes counts as exposed. */
static fsdp_status enqueue(comm_request *r)
{
    bool all_direct = !world_of(r->group->comm)->without;
    for (int i = 0; i < r->op.n_spans; i++)
        all_direct = all_direct && direct_is(r, &r->op.spans[i]);
    double seconds = all_direct ? 0 : seconds_of(r), all = (double)request_received(r);
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        comm_request one = {.kind = r->kind, .group = r->group, .op = {.n_spans = 1, .spans = p}};
        double bytes = (double)request_received(&one), share = all > 0 ? seconds * bytes / all : 0;
        if (direct_is(r, p) && !world_of(r->group->comm)->without)
            FSDP_TRY(sum_directly(r, p));
        else
            FSDP_TRY(is_reduction(r) ? reduce_on_device(r, p, bytes, share) : gather_on_device(r, p, share));
    }
    return FSDP_OK;
}

static fsdp_status run_on_device(comm_request *r)
{
    if (!r->op.stream)
        return run_on_host(r);
    device *d = r->group->comm->config.device;
    emulated_group *n = r->group->backend;
    FSDP_TRY(d->event_record(r->op.stream, n->ready));
    FSDP_TRY(d->stream_wait(n->stream, n->ready));
    FSDP_TRY(enqueue(r));
    return d->event_record(n->stream, n->done[r->sequence % EMULATE_EVENTS]);
}

static fsdp_status wait_on_device(comm_request *r, stream *s)
{
    device *d = r->group->comm->config.device;
    emulated_group *n = r->group->backend;
    if (!r->op.stream)
        return FSDP_OK; /* the host has waited */
    engine_report_wait(r, HOOK_BEGIN);
    fsdp_status status =
        s ? d->stream_wait(s, n->done[r->sequence % EMULATE_EVENTS]) : d->stream_synchronize(n->stream);
    engine_report_wait(r, HOOK_END);
    return status;
}

const comm_backend comm_emulate_host_backend = {
    .name = "emulate",
    .overhead = emulate_overhead,
    .open = emulate_open,
    .close = emulate_close,
    .group_open = emulate_group_open,
    .group_close = emulate_group_close,
    .run = run_on_host,
    .allocate = host_allocate,
    .release = host_release,
    .abort = emulate_abort,
};

const comm_backend comm_emulate_device_backend = {
    .name = "emulate",
    .enqueues = true,
    .overhead = emulate_overhead,
    .open = emulate_open,
    .close = emulate_close,
    .group_open = emulate_group_open,
    .group_close = emulate_group_close,
    .run = run_on_device,
    .wait = wait_on_device,
    .allocate = host_allocate,
    .release = host_release,
    .abort = emulate_abort,
};
