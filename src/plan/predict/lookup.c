/* From rows to the time of any call. Rates change slowly with size where times do not, so rates are interpolated, over
 * the logarithms of what a call is made of. */
#include <math.h>

#include "plan/predict/profile.h"

enum { NEIGHBOURS = 4, FAR_DOUBLINGS = 3 };

static double rate_of(const profile_row *r)
{
    return (r->work.flops > 0 ? r->work.flops : r->work.bytes) / r->seconds;
}

static double amount_of(const kernel_work *w)
{
    return w->flops > 0 ? w->flops : w->bytes;
}

/* Distance of two shapes: how often a dimension is doubled. */
static double distance(const kernel_work *a, const kernel_work *b)
{
    double sum = 0;
    for (int i = 0; i < KERNEL_WORK_DIMS; i++) {
        double x = log2((double)(a->shape[i] > 0 ? a->shape[i] : 1)),
               y = log2((double)(b->shape[i] > 0 ? b->shape[i] : 1));
        sum += (x - y) * (x - y);
    }
    return sqrt(sum);
}

/* How alike two kinds of call are; the larger, the less. -1: not to be compared. */
static int unlike(const kernel_work *a, const kernel_work *b, bool any_kernel)
{
    if (any_kernel && a->flops == 0 && b->flops == 0)
        return 0;
    if (a->kernel != b->kernel && !any_kernel)
        return -1;
    if ((a->flops > 0) != (b->flops > 0))
        return -1;
    bool other_units = a->flops > 0 && fsdp_dtype_size(a->dtype) != fsdp_dtype_size(b->dtype);
    if (other_units && !any_kernel)
        return -1;
    return other_units * 16 + (a->kernel != b->kernel) * 8 + (a->dtype != b->dtype) * 4 + (a->result != b->result) * 2 +
           (a->variant != b->variant);
}

typedef struct neighbour {
    const profile_row *row;
    double distance;
} neighbour;

/* The nearest rows among those that are most alike. */
static int find_neighbours(const kernel_profile *p, const kernel_work *w, bool any_kernel, neighbour *found)
{
    int n = 0, least = -1;
    for (int i = 0; i < p->n_rows; i++) {
        const profile_row *r = &p->rows[i];
        int other = unlike(&r->work, w, any_kernel);
        if (other < 0 || amount_of(&r->work) <= 0 || (least >= 0 && other > least))
            continue;
        if (least < 0 || other < least)
            n = 0;
        least = other;
        neighbour one = {r, any_kernel ? fabs(log2(amount_of(&r->work) / amount_of(w))) : distance(&r->work, w)};
        int at = n < NEIGHBOURS ? n++ : NEIGHBOURS;
        for (; at > 0 && found[at - 1].distance > one.distance; at--)
            if (at < NEIGHBOURS)
                found[at] = found[at - 1];
        if (at < NEIGHBOURS)
            found[at] = one;
    }
    return n;
}

/* Rates of the neighbours, the near ones with more weight. A smaller call than all of them is not faster for it: it
 * takes at least as long per byte. */
static double between(const neighbour *found, int n)
{
    double weights = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        double weight = 1 / (found[i].distance * found[i].distance + 1e-6);
        weights += weight;
        sum += weight * log(rate_of(found[i].row));
    }
    return exp(sum / weights);
}

static double shortest(const kernel_profile *p)
{
    double least = INFINITY;
    for (int i = 0; i < p->n_rows; i++)
        least = fmin(least, p->rows[i].seconds);
    return isfinite(least) ? least : 0;
}

/* A call that moves much more or less memory than the nearest that was measured of its kernel: others that move as much
 * tell more. */
static bool is_far(const kernel_work *w, const neighbour *nearest)
{
    return w->flops == 0 && fabs(log2(amount_of(&nearest->row->work) / fmax(amount_of(w), 1))) > FAR_DOUBLINGS;
}

/* On the device that was measured. */
static double measured_seconds(const kernel_profile *p, const kernel_work *w, profile_source *source)
{
    neighbour found[NEIGHBOURS];
    for (int i = 0; i < p->n_rows; i++) {
        if (kernel_work_same(&p->rows[i].work, w)) {
            *source = PROFILE_MEASURED;
            return p->rows[i].seconds;
        }
    }
    *source = PROFILE_INTERPOLATED;
    int n = find_neighbours(p, w, false, found);
    if (n == 0 || is_far(w, &found[0])) {
        *source = PROFILE_ESTIMATED;
        n = find_neighbours(p, w, true, found);
    }
    double least = shortest(p);
    return n == 0 ? least : fmax(least, amount_of(w) / between(found, n));
}

double profile_seconds(const kernel_profile *p, const kernel_work *w, profile_source *source)
{
    profile_source unused;
    double seconds = measured_seconds(p, w, source ? source : &unused), least = shortest(p);
    double faster = w->flops > 0 ? p->compute : p->memory;
    /* What a kernel takes at least, whatever it does, is no faster on a device that is. */
    return seconds <= least ? seconds : least + (seconds - least) / faster;
}

/* ---- collectives ---- */

/* Among those measured over as many ranks: the time lies on the line between the two sizes around it. */
static bool measured_collective(const kernel_profile *p, const script_item *c, double *seconds)
{
    const profile_collective *below = NULL, *above = NULL;
    for (int i = 0; i < p->n_collectives; i++) {
        const profile_collective *m = &p->collectives[i];
        if (m->which != c->collective || m->ranks != c->ranks)
            continue;
        if (m->bytes <= c->bytes && (!below || m->bytes > below->bytes))
            below = m;
        if (m->bytes >= c->bytes && (!above || m->bytes < above->bytes))
            above = m;
    }
    if (!below && !above)
        return false;
    if (!above)
        *seconds = below->seconds * c->bytes / below->bytes;
    else if (!below || below == above)
        *seconds = above->seconds;
    else
        *seconds = below->seconds +
                   (above->seconds - below->seconds) * (c->bytes - below->bytes) / (above->bytes - below->bytes);
    return true;
}

typedef struct ring {
    double hops;      /* seconds of one way round */
    double bandwidth; /* bytes a second through each rank */
    int nodes, neighbours;
} ring;

/* Ranks of a node share its ways out: each has one of its own, and a ring uses all of those of its ranks. */
static ring ring_of(const profile_links *l, int ranks, int stride, int ranks_per_node)
{
    int inside = ranks_per_node / stride > 1 ? ranks_per_node / stride : 1;
    ring r = {.neighbours = inside < ranks ? inside : ranks};
    r.nodes = (ranks + r.neighbours - 1) / r.neighbours;
    r.bandwidth = r.nodes > 1 ? fmin(r.neighbours > 1 ? l->inside : INFINITY, l->outside * r.neighbours) : l->inside;
    r.hops = r.nodes > 1 ? (ranks - r.nodes) * l->hop_inside + r.nodes * l->hop_outside : (ranks - 1) * l->hop_inside;
    return r;
}

double profile_collective_seconds(const kernel_profile *p, const script_item *c, int ranks_per_node)
{
    const profile_links *l = &p->links;
    double seconds, n = c->ranks;
    if (c->ranks <= 1)
        return 0;
    ring r = ring_of(l, c->ranks, c->stride, ranks_per_node);
    if (r.nodes == 1 && measured_collective(p, c, &seconds))
        return seconds;
    double once = c->bytes * (n - 1) / n / r.bandwidth;
    if (c->collective != SCRIPT_ALL_REDUCE)
        return l->start + r.hops + once;
    double around = 2 * (r.hops + once);
    double tree = 2 * (ceil(log2(r.nodes > 1 ? r.nodes : 1)) * l->hop_outside + (r.neighbours - 1) * l->hop_inside) +
                  2 * c->bytes / r.bandwidth;
    return l->start + fmin(around, tree);
}
