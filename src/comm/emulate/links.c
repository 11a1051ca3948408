/* A collective as a ring: every rank receives its bytes over the slowest link of the ring, and a round passes all
 * ranks. Between hosts a group uses as many adapters as it has ranks on a host. Latencies are those of NCCL's own model
 * of a ring with its Simple protocol (src/graph/tuning.cc). On symmetric memory the switch multiplies and sums, which
 * takes few blocks at the same rate (NVLS), or copy engines gather. */
#include "comm/emulate/links.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/ctas.h"

static const double launch_seconds = 8.4e-6, hop_within_seconds = 3.4e-6, hop_between_seconds = 14e-6;

/* The ring channels that NCCL opens between eight H100s (github.com/NVIDIA/nccl/issues/1259): a block each. */
enum { RING_BLOCKS = 24, MAX_RANKS = 16384 };

/* Bytes a second. No link is slower than a modem or faster than memory; others would make times overflow. */
#define MIN_RATE 1e3
#define MAX_RATE 1e15

/* Channels with which NCCL saturates the links on registered memory (src/register/coll_reg.cc). */
enum { SWITCH_GATHER_BLOCKS = 4, SWITCH_REDUCE_BLOCKS = 5, SWITCH_HOSTS_BLOCKS = 6 };

static fsdp_status refuse(const char *text)
{
    return error_set(FSDP_ERR_INPUT,
                     "\"%s\" does not describe links; 8@450GBs is eight ranks at 450 GB/s each, 8@450GBs,2@50GBs two "
                     "such hosts with 50 GB/s a rank between them",
                     text);
}

static bool read_level(const char *text, int *count, double *rate, int *used)
{
    double gigabytes = 0;
    *used = 0;
    if (sscanf(text, "%5d@%lfGB/s%n", count, &gigabytes, used) < 2 || *used == 0) {
        *used = 0;
        (void)sscanf(text, "%5d@%lfGBs%n", count, &gigabytes, used);
    }
    *rate = gigabytes * 1e9;
    return *used > 0 && *count >= 1 && *rate >= MIN_RATE && *rate <= MAX_RATE;
}

fsdp_status links_parse(const char *text, links *out)
{
    links l = {.n_hosts = 1};
    const char *at = text;
    int used;
    if (!read_level(at, &l.per_host, &l.within, &used))
        return refuse(text);
    at += used;
    if (*at == ',' && strchr(at, '@')) {
        if (!read_level(at + 1, &l.n_hosts, &l.between, &used))
            return refuse(text);
        at += 1 + used;
    }
    if (*at || (int64_t)l.per_host * l.n_hosts > MAX_RANKS)
        return refuse(text);
    *out = l;
    return FSDP_OK;
}

typedef struct placement {
    int hosts, most_here; /* that the ranks are on; ranks on the host that has most */
} placement;

/* Members are in order of rank, so those of a host are neighbours. */
static placement place(const links *l, const int *members, int n)
{
    placement p = {0, 0};
    for (int i = 0, here = 0; i < n; i++) {
        bool next = i == 0 || members[i] / l->per_host != members[i - 1] / l->per_host;
        p.hosts += next;
        here = next ? 1 : here + 1;
        p.most_here = here > p.most_here ? here : p.most_here;
    }
    return p;
}

/* A switch joins the ranks of a host, and serves symmetric memory. */
static bool has_switch(const links *l, placement p)
{
    return l->memory != FSDP_COMM_MEMORY_PLAIN && p.most_here > 1;
}

bool links_switched(const links *l, const int *members, int n)
{
    return has_switch(l, place(l, members, n));
}

/* Blocks with which NCCL reaches the rate of the links. */
static int wanted_blocks(const links *l, placement p, comm_kind kind)
{
    if (!has_switch(l, p))
        return RING_BLOCKS;
    if (p.hosts > 1)
        return SWITCH_HOSTS_BLOCKS;
    if (kind == COMM_ALL_GATHER && l->memory == FSDP_COMM_MEMORY_COPY_ENGINE)
        return 0;
    return kind == COMM_REDUCE_SCATTER ? SWITCH_REDUCE_BLOCKS : SWITCH_GATHER_BLOCKS;
}

int links_blocks(const links *l, const int *members, int n, comm_kind kind)
{
    int wanted = wanted_blocks(l, place(l, members, n), kind), most = l->ctas > 0 ? l->ctas : ctas_for_rate(l->within);
    return most < wanted ? most : wanted;
}

/* Bytes a second within a host, less where the blocks of a ring are too few for its links. */
static double rate_within(const links *l, int blocks, int wanted)
{
    if (wanted == RING_BLOCKS)
        return fmin(l->within, blocks * CTAS_RING_RATE);
    return wanted > 0 ? l->within * blocks / wanted : l->within;
}

double links_seconds(const links *l, const int *members, int n, comm_kind kind, double bytes)
{
    placement p = place(l, members, n);
    double rounds = kind == COMM_ALL_REDUCE ? 2 : 1;
    double hops_between = rounds * (p.hosts - 1), hops_within = rounds * (n - 1) - hops_between;
    double latency = launch_seconds + hops_within * hop_within_seconds + hops_between * hop_between_seconds;
    double rate = rate_within(l, links_blocks(l, members, n, kind), wanted_blocks(l, p, kind));
    double within = p.most_here > 1 ? bytes / rate : 0, between = p.hosts > 1 ? bytes / (l->between * p.most_here) : 0;
    return latency + fmax(within, between);
}

int links_direct_blocks(const links *l)
{
    int most = l->ctas > 0 ? l->ctas : ctas_for_rate(l->within);
    return most < RING_BLOCKS ? most : RING_BLOCKS;
}

/* All peers at once, so the latency is one hop's. What comes from other hosts comes over this rank's own adapter, where
 * a ring would pass partial sums over all adapters of its host. */
double links_direct_seconds(const links *l, const int *members, int n, double bytes)
{
    placement p = place(l, members, n);
    double here = bytes * (p.most_here - 1) / (n - 1), elsewhere = bytes - here;
    double within = here / rate_within(l, links_direct_blocks(l), RING_BLOCKS);
    double between = p.hosts > 1 ? elsewhere / l->between : 0;
    return launch_seconds + (p.hosts > 1 ? hop_between_seconds : hop_within_seconds) + fmax(within, between);
}
