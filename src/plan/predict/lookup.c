/* From rows to the time of any call. What a call takes at least follows from the fastest product and the fastest pass
 * over memory in the profile; how near calls come to that changes slowly with their shape, where times do not. So that
 * share is interpolated, over the logarithms of what a call is made of. */
#include <math.h>

#include "plan/predict/profile.h"

enum { NEIGHBOURS = 4, OTHER_KERNELS = 7, FAR_DOUBLINGS = 3, LARGEST_ELEMENT = 8, PLACE_DIMS = KERNEL_WORK_DIMS };

/* ---- the least that a call takes ---- */

typedef struct roofs {
    double products[LARGEST_ELEMENT + 1]; /* operations a second, by bytes of an element; 0: none was measured */
    double memory;                        /* bytes a second */
    double start;                         /* seconds of the shortest call: what one takes whatever it does */
} roofs;

static roofs find_roofs(const kernel_profile *p)
{
    roofs r = {.start = INFINITY};
    for (int i = 0; i < p->n_rows; i++) {
        const kernel_work *w = &p->rows[i].work;
        double *most = w->flops > 0 ? &r.products[fsdp_dtype_size(w->dtype)] : &r.memory;
        *most = fmax(*most, (w->flops > 0 ? w->flops : w->bytes) / p->rows[i].seconds);
        r.start = fmin(r.start, p->rows[i].seconds);
    }
    r.start = isfinite(r.start) ? r.start : 0;
    return r;
}

/* Types that nobody has multiplied count as those that somebody has. */
static double product_rate(const roofs *r, fsdp_dtype dtype)
{
    double rate = r->products[fsdp_dtype_size(dtype)];
    for (int i = 0; i <= LARGEST_ELEMENT && rate == 0; i++)
        rate = r->products[i];
    return rate;
}

/* Seconds at full speed, on a device that is so many times faster. Thin products are bound by memory; in between, both
 * count, since a product reads and writes before and after it multiplies. */
static double least_seconds(const roofs *r, const kernel_work *w, double compute, double memory)
{
    double moving = r->memory > 0 ? w->bytes / (r->memory * memory) : 0;
    if (w->flops == 0)
        return moving;
    return hypot(w->flops / (product_rate(r, w->dtype) * compute), moving);
}

/* ---- neighbours ---- */

static double doublings(int64_t n)
{
    return log2((double)(n > 0 ? n : 1));
}

/* Where a call lies among those of its kernel. How many rows of attention there are matters little beside their
 * length. */
static void find_place(const kernel_work *w, double *out)
{
    const int64_t *s = w->shape;
    for (int i = 0; i < PLACE_DIMS; i++)
        out[i] = doublings(s[i]);
    if (w->kernel != KERNEL_attention_forward && w->kernel != KERNEL_attention_backward)
        return;
    const double little = 0.25;
    out[0] = little * (doublings(s[0]) + doublings(s[3]));
    out[3] = little * (doublings(s[3]) - doublings(s[4]));
    out[4] = 0;
}

/* In doublings. Another type, result or switch of the same kernel is as far away as another shape. */
static double distance(const kernel_work *a, const kernel_work *b)
{
    double x[PLACE_DIMS], y[PLACE_DIMS], sum = 0;
    double unlike =
        (a->dtype != b->dtype) + 0.5 * (a->result != b->result) + 0.5 * __builtin_popcount(a->variant ^ b->variant);
    find_place(a, x);
    find_place(b, y);
    for (int i = 0; i < PLACE_DIMS; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sqrt(sum + unlike * unlike);
}

/* Of any kernel, by how much it multiplies or moves. */
static double distance_in_amount(const kernel_work *a, const kernel_work *b)
{
    bool other_units = a->flops > 0 && fsdp_dtype_size(a->dtype) != fsdp_dtype_size(b->dtype);
    double ratio = a->flops > 0 ? a->flops / b->flops : a->bytes / fmax(b->bytes, 1);
    return fabs(log2(ratio)) + (other_units ? 16 : 0);
}

typedef struct neighbour {
    const profile_row *row;
    double distance;
} neighbour;

/* Products of other units (8 bits) are another kind. Copies may go to the host and back, so they tell nothing. */
static bool may_tell(const kernel_work *a, const kernel_work *b, bool any_kernel)
{
    if ((a->bytes <= 0 && a->flops <= 0) || (a->flops > 0) != (b->flops > 0) || a->kernel == KERNEL_COPY)
        return false;
    return any_kernel ||
           (a->kernel == b->kernel && (a->flops == 0 || fsdp_dtype_size(a->dtype) == fsdp_dtype_size(b->dtype)));
}

/* The nearest, at most OTHER_KERNELS of any kernel, or NEIGHBOURS of the same. */
static int find_neighbours(const kernel_profile *p, const kernel_work *w, bool any_kernel, neighbour *found)
{
    int n = 0, most = any_kernel ? OTHER_KERNELS : NEIGHBOURS;
    for (int i = 0; i < p->n_rows; i++) {
        const profile_row *r = &p->rows[i];
        if (!may_tell(&r->work, w, any_kernel))
            continue;
        neighbour one = {r, any_kernel ? distance_in_amount(&r->work, w) : distance(&r->work, w)};
        int at = n < most ? n++ : most;
        for (; at > 0 && found[at - 1].distance > one.distance; at--)
            if (at < most)
                found[at] = found[at - 1];
        if (at < most)
            found[at] = one;
    }
    return n;
}

/* The share of full speed that a row comes to. */
static double share_of(const roofs *r, const profile_row *row)
{
    double at_work = fmax(row->seconds - r->start, 0.1 * row->seconds);
    return least_seconds(r, &row->work, 1, 1) / at_work;
}

/* That of the neighbours, the near ones with more weight. */
static double share_of_neighbours(const roofs *r, const neighbour *found, int n)
{
    double weights = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        double weight = 1 / (found[i].distance * found[i].distance + 1e-2);
        weights += weight;
        sum += weight * log(share_of(r, found[i].row));
    }
    return exp(sum / weights);
}

/* The median of other kernels: among them are slow ones, which say nothing of this one. */
static double share_of_others(const roofs *r, const neighbour *found, int n)
{
    double shares[OTHER_KERNELS];
    for (int i = 0; i < n; i++) {
        double one = share_of(r, found[i].row);
        int at = i;
        for (; at > 0 && shares[at - 1] > one; at--)
            shares[at] = shares[at - 1];
        shares[at] = one;
    }
    return shares[n / 2];
}

/* A call that moves much more memory than any that was measured of its kernel: those say little but what a call takes
 * at least. Others that move as much tell more. */
static bool is_far(const kernel_work *w, const neighbour *nearest)
{
    return w->flops == 0 && log2(fmax(w->bytes, 1) / nearest->row->work.bytes) > FAR_DOUBLINGS;
}

static const profile_row *find_row(const kernel_profile *p, const kernel_work *w)
{
    for (int i = 0; i < p->n_rows; i++)
        if (kernel_work_same(&p->rows[i].work, w))
            return &p->rows[i];
    return NULL;
}

double profile_seconds(const kernel_profile *p, const kernel_work *w, profile_source *source)
{
    neighbour found[OTHER_KERNELS];
    roofs r = find_roofs(p);
    const profile_row *row = find_row(p, w);
    double least = least_seconds(&r, w, 1, 1), there = least_seconds(&r, w, p->compute, p->memory);
    profile_source unused;
    source = source ? source : &unused;
    *source = PROFILE_MEASURED;
    if (row) /* what a call takes whatever it does is no shorter on a faster device */
        return row->seconds <= r.start || least <= 0 ? row->seconds
                                                     : r.start + (row->seconds - r.start) * there / least;
    *source = PROFILE_INTERPOLATED;
    int n = find_neighbours(p, w, false, found);
    if (n == 0 || is_far(w, &found[0])) {
        *source = PROFILE_ESTIMATED;
        n = find_neighbours(p, w, true, found);
    }
    if (n == 0 || least <= 0)
        return r.start;
    bool others = *source == PROFILE_ESTIMATED;
    return r.start + there / (others ? share_of_others(&r, found, n) : share_of_neighbours(&r, found, n));
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

/* All peers at once, each over the way that joins it to this rank; the sums of an all-reduce then go round a ring. */
static double direct_seconds(const profile_links *l, const script_item *c, const ring *r)
{
    double each = c->bytes / c->ranks, scattered = each * (c->ranks - 1);
    double inside = each * (r->neighbours - 1) / l->inside, outside = each * (c->ranks - r->neighbours) / l->outside;
    double seconds = l->start + (r->nodes > 1 ? l->hop_outside : l->hop_inside) + fmax(inside, outside);
    return c->collective == SCRIPT_ALL_REDUCE ? seconds + l->start + r->hops + (c->received - scattered) / r->bandwidth
                                              : seconds;
}

double profile_collective_seconds(const kernel_profile *p, const script_item *c, int ranks_per_node)
{
    const profile_links *l = &p->links;
    double seconds, n = c->ranks;
    if (c->ranks <= 1)
        return 0;
    ring r = ring_of(l, c->ranks, c->stride, ranks_per_node);
    if (c->direct)
        return direct_seconds(l, c, &r);
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
