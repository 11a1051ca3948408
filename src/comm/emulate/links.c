/* A collective as a ring: every rank receives its bytes over the slowest link of the ring, and a round passes all
 * ranks. Between hosts a group uses as many adapters as it has ranks on a host. Latencies are those of NCCL's own model
 * of a ring with its Simple protocol (src/graph/tuning.cc). */
#include "comm/emulate/links.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const double launch_seconds = 8.4e-6, hop_within_seconds = 3.4e-6, hop_between_seconds = 14e-6;

/* The ring channels that NCCL opens between eight H100s (github.com/NVIDIA/nccl/issues/1259): a block each. */
enum { DEFAULT_BLOCKS = 24, MAX_BLOCKS = 128, MAX_RANKS = 16384 };

static fsdp_status refuse(const char *text)
{
    return error_set(FSDP_ERR_INPUT,
                     "\"%s\" does not describe links; 8@450GBs is eight ranks at 450 GB/s each, 8@450GBs,2@50GBs two "
                     "such hosts with 50 GB/s a rank between them; ,16ctas sets the blocks a collective takes (%d)",
                     text, DEFAULT_BLOCKS);
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
    return *used > 0 && *count >= 1 && isfinite(*rate) && *rate > 0;
}

fsdp_status links_parse(const char *text, links *out)
{
    links l = {.n_hosts = 1, .blocks = DEFAULT_BLOCKS};
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
    if (*at == ',') {
        used = 0;
        (void)sscanf(at, ",%3dctas%n", &l.blocks, &used);
        at += used;
    }
    if (*at || l.blocks < 1 || l.blocks > MAX_BLOCKS || (int64_t)l.per_host * l.n_hosts > MAX_RANKS)
        return refuse(text);
    *out = l;
    return FSDP_OK;
}

double links_seconds(const links *l, const int *members, int n, comm_kind kind, double bytes)
{
    int hosts = 0, here = 0, most_here = 0;
    for (int i = 0; i < n; i++) { /* members are in order of rank, so those of a host are neighbours */
        bool next = i == 0 || members[i] / l->per_host != members[i - 1] / l->per_host;
        hosts += next;
        here = next ? 1 : here + 1;
        most_here = here > most_here ? here : most_here;
    }
    double rounds = kind == COMM_ALL_REDUCE ? 2 : 1;
    double hops_between = rounds * (hosts - 1), hops_within = rounds * (n - 1) - hops_between;
    double latency = launch_seconds + hops_within * hop_within_seconds + hops_between * hop_between_seconds;
    double within = most_here > 1 ? bytes / l->within : 0, between = hosts > 1 ? bytes / (l->between * most_here) : 0;
    return latency + fmax(within, between);
}
