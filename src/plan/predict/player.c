/* Clocks, one per stream. Items come in the order in which the rank starts them, so one pass is enough. */
#include "plan/predict/player.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

enum { STEPS = 3 }; /* the last of which counts */

/* A collective that runs only while somebody waits for it. */
typedef struct pending {
    int slot;
    script_collective which;
    double seconds;
} pending;

typedef struct playing {
    const plan_script *s;
    const kernel_profile *p;
    int ranks_per_node;
    double *seconds;                             /* (n_works) */
    profile_source *sources;                     /* (n_works) */
    double host, compute, comm, out, in, worker; /* when each is free */
    double launched;                             /* what follows was given to the device then */
    bool in_graph;
    double *done;   /* (n_slots): when the collective or transfer is over */
    int *kinds;     /* (n_slots): the collective, or -1: a transfer */
    pending *queue; /* (n_slots) */
    int n_queued;
    const script_item **early; /* (n_slots): updates that may be made before the close */
    int n_early;
    bool *made;       /* (n_slots): the update was */
    double turn, end; /* when backward began, and the close */
    played_step step;
} playing;

static void play_work(playing *g, const script_item *item)
{
    double length = g->seconds[item->work];
    if (g->p->streams) {
        if (!g->in_graph)
            g->host += g->p->launch.kernel;
        double given = g->in_graph ? g->launched : g->host;
        length = g->in_graph ? length * (g->p->busy > 0 ? g->p->busy : 1) + g->p->launch.gap : length;
        if (given > g->compute) {
            g->step.launch_wait += given - g->compute;
            g->compute = given;
        }
    } else {
        g->step.launch_wait += g->p->launch.kernel;
        g->compute += g->p->launch.kernel;
    }
    g->step.compute += length;
    g->step.by_source[g->sources[item->work]] += length;
    double beside = fmin(g->comm - g->compute, length / (1 - g->p->slowdown));
    if (g->p->slowdown > 0 && beside > 0) { /* `beside` seconds at the lower rate */
        g->step.slowed += beside * g->p->slowdown;
        length += beside * g->p->slowdown;
    }
    g->compute += length;
    if (!g->p->streams)
        g->host = g->compute;
}

static void play_launch(playing *g, const script_item *item)
{
    if (item->backward && g->turn < 0)
        g->turn = g->compute;
    g->in_graph = item->graph;
    if (!g->p->streams)
        return;
    g->host += item->graph ? g->p->launch.graph : 0;
    g->launched = g->host;
}

static void stand_still(playing *g, int kind, double until)
{
    double wait = fmax(0, until - g->compute);
    if (kind >= 0) {
        g->step.exposed += wait;
        g->step.exposed_by[kind] += wait;
    } else {
        g->step.transfer_wait += wait;
    }
    g->compute += wait;
    if (!g->p->streams)
        g->host = g->compute;
}

/* In the order in which they were started, up to the one that is waited for. */
static void run_queue(playing *g, int slot)
{
    int n = 0;
    for (bool found = false; n < g->n_queued && !found; n++) {
        found = g->queue[n].slot == slot;
        g->comm = fmax(g->comm, g->compute) + g->queue[n].seconds;
        g->done[g->queue[n].slot] = g->comm;
        stand_still(g, (int)g->queue[n].which, g->comm);
    }
    for (int i = n; i < g->n_queued; i++)
        g->queue[i - n] = g->queue[i];
    g->n_queued -= n;
}

static void play_collective(playing *g, const script_item *item)
{
    double seconds = profile_collective_seconds(g->p, item, g->ranks_per_node);
    seconds += item->direct ? g->seconds[item->work] : 0;
    g->host += g->p->streams ? g->p->launch.collective : 0;
    g->step.communication += seconds;
    g->kinds[item->slot] = (int)item->collective;
    if (!g->p->overlaps) {
        if (isinf(g->done[item->slot])) /* started again before anybody waited */
            run_queue(g, item->slot);
        g->done[item->slot] = INFINITY; /* until somebody waits */
        g->queue[g->n_queued++] = (pending){item->slot, item->collective, seconds};
        return;
    }
    g->comm = fmax(g->comm, fmax(g->compute, g->p->streams ? g->host : 0)) + seconds;
    g->done[item->slot] = g->comm;
}

static void play_wait(playing *g, const script_item *item)
{
    if (isinf(g->done[item->slot]))
        run_queue(g, item->slot);
    stand_still(g, g->kinds[item->slot], g->done[item->slot]);
}

/* A copy on `stream`, after compute and `after`. */
static void play_copy(playing *g, const script_item *item, double *line, bool after_compute)
{
    double start = fmax(*line, after_compute ? g->compute : 0);
    if (item->after >= 0) {
        if (isinf(g->done[item->after]))
            run_queue(g, item->after);
        start = fmax(start, g->done[item->after]);
    }
    *line = start + item->bytes / g->p->host_copy;
    g->done[item->slot] = *line;
    g->kinds[item->slot] = -1;
}

static void run_update(playing *g, const script_item *item, double start, double rate)
{
    g->worker = start + item->bytes / rate;
    g->done[item->slot] = g->worker;
    g->kinds[item->slot] = -1;
}

/* Those that run ahead are begun until the host comes to the close; the device does not share them, and gradients that
 * leave take some of host memory's bandwidth. */
static void run_early(playing *g)
{
    double beside = g->p->host_beside > 0 ? g->p->host_beside : 1;
    for (int i = 0; i < g->n_early; i++) {
        const script_item *item = g->early[i];
        double start = fmax(g->worker, g->done[item->after]);
        g->made[item->slot] = start < g->host;
        if (g->made[item->slot])
            run_update(g, item, start, g->p->host_update * (start < g->out ? beside : 1));
    }
    g->n_early = 0;
}

static void play_update(playing *g, const script_item *item)
{
    double start = fmax(fmax(g->worker, g->host), g->done[item->after]);
    double rate = g->s->shares_updates && g->p->host_shared > 0 ? g->p->host_shared : g->p->host_update;
    if (item->ahead)
        g->early[g->n_early++] = item;
    else if (g->made[item->slot])
        g->made[item->slot] = false;
    else
        run_update(g, item, start, rate);
}

static void play_item(playing *g, const script_item *item)
{
    switch (item->kind) {
    case SCRIPT_WORK:
        play_work(g, item);
        break;
    case SCRIPT_LAUNCH:
        play_launch(g, item);
        break;
    case SCRIPT_COLLECTIVE:
        play_collective(g, item);
        break;
    case SCRIPT_WAIT:
        play_wait(g, item);
        break;
    case SCRIPT_OUT:
        play_copy(g, item, &g->out, true);
        break;
    case SCRIPT_IN:
        play_copy(g, item, &g->in, true);
        break;
    case SCRIPT_UPDATE:
        play_update(g, item);
        break;
    case SCRIPT_RETURN:
        play_copy(g, item, &g->in, false);
        break;
    case SCRIPT_SYNC:
        g->host = fmax(g->host, g->compute);
        run_early(g);
        break;
    }
}

static void play_step(playing *g)
{
    double start = g->host;
    g->step = (played_step){.seconds = 0};
    g->turn = -1;
    g->host += g->p->launch.step;
    g->compute = fmax(g->compute, start);
    if (!g->p->streams)
        g->compute = g->host;
    double forward = g->compute, backward = -1, close = forward;
    for (int i = 0; i < g->s->n_sections; i++) {
        const script_section *part = &g->s->sections[i];
        if (i + 1 == g->s->n_sections)
            close = g->compute;
        for (int64_t k = 0; k < part->times; k++)
            for (int at = part->first; at < part->end; at++)
                play_item(g, &g->s->items[at]);
        if (i == 0)
            backward = g->turn;
    }
    g->host = fmax(g->host, g->compute);
    g->step.seconds = g->host - start;
    g->step.forward = (backward < 0 ? close : backward) - forward;
    g->step.backward = backward < 0 ? 0 : close - backward;
    g->step.close = g->host - close;
}

fsdp_status player_play(const plan_script *s, const kernel_profile *p, int ranks_per_node, played_step *out)
{
    playing g = {.s = s, .p = p, .ranks_per_node = ranks_per_node};
    size_t slots = (size_t)s->n_slots + 1, works = (size_t)s->n_works + 1;
    g.seconds = calloc(works, sizeof *g.seconds);
    g.sources = calloc(works, sizeof *g.sources);
    g.done = calloc(slots, sizeof *g.done);
    g.kinds = calloc(slots, sizeof *g.kinds);
    g.queue = calloc(slots, sizeof *g.queue);
    g.early = calloc(slots, sizeof *g.early);
    g.made = calloc(slots, sizeof *g.made);
    fsdp_status status = FSDP_OK;
    if (!g.seconds || !g.sources || !g.done || !g.kinds || !g.queue || !g.early || !g.made)
        status = error_set(FSDP_ERR_MEMORY, "playing a step: out of host memory");
    for (int i = 0; i < s->n_works && status == FSDP_OK; i++)
        g.seconds[i] = profile_seconds(p, &s->works[i], &g.sources[i]);
    for (int i = 0; i < STEPS && status == FSDP_OK; i++)
        play_step(&g);
    *out = g.step;
    free(g.seconds);
    free(g.sources);
    free(g.done);
    free(g.kinds);
    free(g.queue);
    free(g.early);
    free(g.made);
    return status;
}
